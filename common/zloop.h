/*
 * zloop.h - serves one ZeroMQ socket in a libuv loop. Only this module reads ZMQ_FD.
 *
 * The descriptor ZMQ_FD is edge-triggered, and a send also consumes the edge. A loop that waits
 * only for this descriptor can therefore miss a message. This module never stalls, because it works
 * as follows. If the socket was used, a prepare handle reads ZMQ_EVENTS before the loop sleeps, and
 * starts an idle handle if the socket is ready. A check handle then calls on_readable up to
 * ZLOOP_BUDGET times. The poll handle on the descriptor only wakes the loop. A timer checks every
 * 100 ms that no message was missed. zloop_rescues returns the number of missed messages, which
 * must stay 0.
 *
 * Only the loop's thread may call these functions, and the socket must belong to this thread. The
 * caller may free a struct zloop only in `on_closed`.
 */
#ifndef COMMON_ZLOOP_H
#define COMMON_ZLOOP_H
#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "common/err.h"

#define ZLOOP_BUDGET 64 /* maximum number of messages of a socket in one iteration of the loop */

/* Receives one message with ZMQ_DONTWAIT and handles it. Returns 1 if there was a message, and 0 if
 * there was none (EAGAIN). The function may receive more messages, and handle them in its next
 * calls. The module calls the function until it returns 0, also in the next iterations of the
 * loop. */
typedef int zloop_readable_fn(void *arg);
typedef void zloop_closed_fn(void *arg);
/* Called in each iteration before the loop sleeps, after libzmq has noted which peers have read
 * messages. Returns 1 if it has used the socket; it need not call zloop_used as well. */
typedef int zloop_iteration_fn(void *arg);

struct zloop {
	void *socket; /* the ZeroMQ socket, which the caller owns */
	zloop_readable_fn *on_readable;
	zloop_closed_fn *on_closed;
	void *arg;
	/* private: only zloop.c uses the members below */
	uv_poll_t poll;
	uv_prepare_t prepare;
	uv_check_t check;
	uv_idle_t idle;
	uv_timer_t timer;
	int open_handles;
	int ready; /* 1 if the socket may have messages that on_readable has not handled */
	int woken; /* 1 if a message was handled since the last check of the timer */
	/* 1 if the socket was used after prepare or on_readable last found it empty, or if neither
	 * has run yet */
	int used;
	/* 1 if nothing has happened to the socket since zloop_found_empty */
	int is_quiet;
	uint64_t rescues;
	zloop_iteration_fn *on_iteration; /* NULL: nothing runs in each iteration */
};

/* Starts watching `socket`. After PS_ENET, the call has had no effect. */
int zloop_start(struct zloop *z, uv_loop_t *loop, void *socket, zloop_readable_fn *on_readable,
	void *arg) PS_MUST_CHECK;
/* Stops watching. The caller may close the socket at once, but may free *z only in
 * on_closed(arg). */
void zloop_stop(struct zloop *z, zloop_closed_fn *on_closed);
/* Handles at most `max` messages now instead of in the next iteration. Do not call zloop_read from
 * on_readable. */
void zloop_read(struct zloop *z, size_t max);
/* Notes that the socket was used outside on_readable, or in a call of on_readable that returns 0.
 * Call this function after each such use, for example after a send, because the use may consume the
 * edge of a message. Only then does the next run of the prepare handle look for the message. */
void zloop_used(struct zloop *z);
/* Lets the loop call on_readable in this iteration or the next, because on_readable has something
 * to do that did not come from the socket. */
void zloop_wake(struct zloop *z);
/* Notes that a receive has just found the socket empty. */
void zloop_found_empty(struct zloop *z);
/* Returns 1 if the socket has no message that the loop knows of: since zloop_found_empty, nobody
 * has used the socket, and its descriptor has reported nothing. on_readable then need not ask the
 * socket. */
int zloop_is_quiet(const struct zloop *z);
/* Sets a function that runs in each iteration of the loop. This function can send messages that
 * wait for room in a peer's queue. libzmq does not report that a queue has room, but the loop wakes
 * up when the peer has read messages. */
void zloop_on_iteration(struct zloop *z, zloop_iteration_fn *on_iteration);
/* Returns the number of messages that only the safety timer found. */
uint64_t zloop_rescues(const struct zloop *z);

#endif
