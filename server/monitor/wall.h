/*
 * wall.h - the wall of test images on the page: what the network believes about them now.
 *
 * While somebody watches, the server asks one worker after the other, every WALL_MS. The worker
 * evaluates the images with its newest weights and answers with JSON (worker/show.h), which nobody
 * else sees. The core does not know of it. Thread: the loop's.
 */
#ifndef SERVER_MONITOR_WALL_H
#define SERVER_MONITOR_WALL_H
#include <stdint.h>
#include "proto/msg.h"

#define WALL_MS 2000

struct core;

struct wall {
	uint32_t peer,
		next; /* the worker that has the request, 0: none; the slot to look at first */
	uint64_t request_ms;
};

/* If it is time, choose the connection of a live worker that shall be asked; 0: none now. */
uint32_t wall_choose(struct wall *w, const struct core *c, uint64_t now_ms);
/* The answer of `peer` as one line of JSON, which the caller frees. NULL: it was not asked, or the
 * answer is no JSON. */
char *wall_take(struct wall *w, uint32_t peer, const struct msg_status *answer);

#endif
