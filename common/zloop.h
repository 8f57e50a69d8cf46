/*
 * zloop.h - one ZeroMQ socket inside a libuv loop; the only place that reads ZMQ_FD.
 *
 * ZMQ_FD is edge-triggered and a send eats the edge too. The pattern that never stalls: a prepare
 * handle asks ZMQ_EVENTS before the loop sleeps and arms an idle handle when the socket is ready; a
 * check handle then calls on_readable up to ZLOOP_BUDGET times; the poll handle on the fd only
 * wakes the loop. A 100 ms timer checks that nothing was missed and counts the times that it was:
 * zloop_rescues must stay 0.
 *
 * Thread: the loop's. The socket must belong to that thread. Memory may be freed only in
 * `on_closed`.
 */
#ifndef COMMON_ZLOOP_H
#define COMMON_ZLOOP_H
#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "common/err.h"

#define ZLOOP_BUDGET 64 /* messages handled per loop iteration and socket */

/* Receive and handle ONE message with ZMQ_DONTWAIT. Return 1 if there was one, 0 on EAGAIN. */
typedef int zloop_readable_fn(void *arg);
typedef void zloop_closed_fn(void *arg);

struct zloop {
	void *socket; /* borrowed */
	zloop_readable_fn *on_readable;
	zloop_closed_fn *on_closed;
	void *arg;
	/* private */
	uv_poll_t poll;
	uv_prepare_t prepare;
	uv_check_t check;
	uv_idle_t idle;
	uv_timer_t timer;
	int open_handles;
	int ready; /* prepare or the fd said so: the check handle has work */
	int woken; /* a message was handled since the timer last looked */
	int used;  /* zloop_used, since prepare last asked the socket; or it never has */
	uint64_t rescues;
};

/* Start watching `socket`. PS_ENET: nothing to undo. */
int zloop_start(struct zloop *z, uv_loop_t *loop, void *socket, zloop_readable_fn *on_readable,
	void *arg) PS_MUST_CHECK;
/* Stop watching; the socket may be closed at once, the struct after on_closed(arg) was called. */
void zloop_stop(struct zloop *z, zloop_closed_fn *on_closed);
/* Handle at most so many messages now, without waiting for the loop's turn. Not from on_readable.
 */
void zloop_read(struct zloop *z, size_t most);
/* The owner has used the socket outside on_readable (a send): the edge of what arrived meanwhile
 * may be eaten, which the next prepare finds and nobody has missed. */
void zloop_used(struct zloop *z);
/* Wake-ups that the safety timer had to rescue. */
uint64_t zloop_rescues(const struct zloop *z);

#endif
