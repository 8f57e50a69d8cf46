/*
 * zepoll.h - keeps libzmq from ending the process when a peer closes its connection at a bad time.
 *
 * A thread of libzmq stops reading a connection while the queue of its socket is full. If the peer
 * closes the connection meanwhile, epoll still reports the end (EPOLLERR, EPOLLHUP) to libzmq,
 * which then notes an I/O error. When libzmq continues to read the messages that it has already
 * received, a PING of ZMTP among them makes it write to the connection, and libzmq ends the
 * process: "Assertion failed: !_io_error". Any peer can send such bytes. libzmq 4.3.4 has this
 * fault; its developers know the assertion, but had not changed it in 2026
 * (https://github.com/zeromq/libzmq/pull/4852).
 *
 * zepoll.c defines epoll_ctl and epoll_wait. A program that contains this file uses these functions
 * instead of those of libc, also in libzmq. They do the same, with one exception: epoll_wait does
 * not report the end of a connection that the caller does not want to read now, or that has data to
 * read. The caller learns of the end when it has read and handled what it has received.
 *
 * Promises:
 * (1) a peer that sends PINGs and closes its connection cannot end the process
 *     (pings_before_the_end_of_a_connection_do_no_harm, unit zepoll);
 * (2) each end of a connection is reported once the caller wants to read
 *     (the_end_is_reported_when_the_caller_reads_again);
 * (3) epoll_wait does not return again and again because of an end that it does not report
 *     (an_end_that_is_not_reported_wakes_nobody).
 */
#ifndef COMMON_ZEPOLL_H
#define COMMON_ZEPOLL_H

/* Does nothing. A program that calls this function contains zepoll.c. Call it before zmq_ctx_new.
 * The client library does not call it, because a library must not replace functions of libc for the
 * program that loads it. */
void zepoll_use(void);

#endif
