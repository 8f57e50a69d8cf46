/*
 * notify.h - notifies systemd that the server is ready or that it stops, with the protocol of
 * NOTIFY_SOCKET (sd_notify(3)). Does nothing if the environment variable NOTIFY_SOCKET is not set.
 * Only the loop's thread may call the function.
 */
#ifndef SERVER_MONITOR_NOTIFY_H
#define SERVER_MONITOR_NOTIFY_H

/* Sends `state`, such as "READY=1", to the service manager that started this process. If the
 * message cannot be delivered, it is lost, and the time-outs of the service manager apply. */
void notify_manager(const char *state);

#endif
