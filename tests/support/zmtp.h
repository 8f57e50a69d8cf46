/*
 * zmtp.h - the start of a ZMTP connection without libzmq, for tests that send frames byte by byte.
 */
#ifndef TESTS_SUPPORT_ZMTP_H
#define TESTS_SUPPORT_ZMTP_H

/* Send the start of a ZMTP 3.0 connection: the greeting with mechanism NULL, then the command READY
 * of a DEALER. */
void zmtp_greet(int fd);
/* Send the greeting of a ZMTP 3.0 client with mechanism CURVE. After this greeting, the client
 * would send the command HELLO of CURVE, which this function does not send. */
void zmtp_greet_curve(int fd);

#endif
