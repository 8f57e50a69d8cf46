/*
 * zmonitor.h - the events of a ZeroMQ socket's connections; the only place that decodes them.
 *
 * The queue of events has no limit: libzmq's I/O thread would wait for room in it, and with it all
 * traffic of the context. Thread: `socket` and the monitor are of one thread.
 */
#ifndef COMMON_ZMONITOR_H
#define COMMON_ZMONITOR_H
#include <stdint.h>

struct zmonitor_event {
	unsigned number; /* ZMQ_EVENT_*; 0: not an event of libzmq's */
	uint32_t value;  /* its meaning depends on the number: a file descriptor, an errno, ... */
};

/* A socket of `context` that receives `events` (ZMQ_EVENT_*) of `socket`. NULL: errno says why. */
void *zmonitor_open(void *context, void *socket, int events);
/* Take one event without waiting: 1, or 0: there is none. */
int zmonitor_next(void *monitor, struct zmonitor_event *e);
/* Closes and nulls *monitor; before `socket` is closed. NULL is fine. */
void zmonitor_close(void *socket, void **monitor);

#endif
