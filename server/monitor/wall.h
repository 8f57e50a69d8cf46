/*
 * wall.h - the grid of test images on the monitoring page, with the network's newest predictions.
 *
 * While a page is open, the server asks one worker for its predictions every WALL_MS milliseconds;
 * the workers take turns. The worker evaluates a few test images with its newest weights and
 * answers with JSON (worker/show.h). Only the page uses this answer; the core gets no event. Only
 * the loop's thread may call these functions.
 */
#ifndef SERVER_MONITOR_WALL_H
#define SERVER_MONITOR_WALL_H
#include <stdint.h>
#include "proto/msg.h"

#define WALL_MS 2000
/* an answer with more images is refused; a correct worker sends at most SHOW_IMAGES */
#define WALL_IMAGES 24u

struct core;

struct wall {
	/* peer: connection of the worker that was asked last; 0: none. next: the worker slot that
	 * wall_choose checks first */
	uint32_t peer, next;
	uint64_t request_ms;
};

/* Returns the connection of the live worker to ask now, or 0 if it is too early to ask the next
 * worker, or if no worker can be asked. */
uint32_t wall_choose(struct wall *w, const struct core *c, uint64_t now_ms);
/* Returns the answer of `peer` as one line of JSON, which the caller frees. Returns NULL if the
 * server did not ask `peer`, or if the answer is not JSON or has more than WALL_IMAGES pictures. */
char *wall_take(struct wall *w, uint32_t peer, const struct msg_status *answer);

#endif
