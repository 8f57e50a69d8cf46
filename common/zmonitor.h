/*
 * zmonitor.h - receives and decodes the connection events of a ZeroMQ socket.
 *
 * The queue of events has no limit: with a limit, libzmq's I/O thread would block on a full queue
 * and stop all traffic of the context. One thread owns both `socket` and the monitor.
 */
#ifndef COMMON_ZMONITOR_H
#define COMMON_ZMONITOR_H
#include <stdint.h>

struct zmonitor_event {
	unsigned number; /* ZMQ_EVENT_*, or 0 if the message is not an event of libzmq */
	uint32_t value;  /* meaning depends on `number`, for example a descriptor or an errno */
};

/* Opens a socket of `context` that receives `events` (ZMQ_EVENT_*) of `socket`. Returns NULL on
 * failure; errno has the reason. */
void *zmonitor_open(void *context, void *socket, int events);
/* Receives one event without blocking. Returns 1 if it has received an event, and 0 if there was
 * none. */
int zmonitor_next(void *monitor, struct zmonitor_event *e);
/* Closes the monitor and sets *monitor to NULL; *monitor may be NULL. The caller must close
 * `socket` only after this call. */
void zmonitor_close(void *socket, void **monitor);

#endif
