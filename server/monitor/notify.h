/*
 * notify.h - notifies systemd that the server is ready or stops (sd_notify(3), the protocol of
 * NOTIFY_SOCKET). If the variable NOTIFY_SOCKET is not set, nothing happens. Thread: the loop's.
 */
#ifndef SERVER_MONITOR_NOTIFY_H
#define SERVER_MONITOR_NOTIFY_H

/* Sends `state`, such as "READY=1", to the service manager that started this process. A message
 * that cannot be delivered is lost: the service manager then applies its own time-outs. */
void notify_manager(const char *state);

#endif
