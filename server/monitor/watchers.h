/*
 * watchers.h - observers that asked for the status lately: they are sent the last one, and BYE,
 * when the run ends, so that an observer can tell an end from a lost server. A worker is none,
 * whatever it asks: only the core may part with it, for it may hold pushes that the next term
 * needs.
 *
 * Thread: the loop's. Time comes in as an argument.
 */
#ifndef SERVER_MONITOR_WATCHERS_H
#define SERVER_MONITOR_WATCHERS_H
#include <stddef.h>
#include <stdint.h>

#define MAX_WATCHERS 64
#define WATCHER_MS   10000 /* a connection that asked within this time is a watcher */

struct watchers {
	struct {
		uint32_t peer; /* 0: free */
		int asked;     /* for the status, not only said HELLO */
		uint64_t asked_ms;
	} watcher[MAX_WATCHERS];
};

/* `peer` said HELLO as an observer. With MAX_WATCHERS others it takes the place of the one that
 * asked longest ago. */
void watchers_add(struct watchers *w, uint32_t peer, uint64_t now_ms);
/* `peer` asked for the status. 0: it is no observer. */
int watchers_asked(struct watchers *w, uint32_t peer, uint64_t now_ms);
/* Its connection is gone. */
void watchers_drop(struct watchers *w, uint32_t peer);
/* The i-th place's peer if it is a watcher now, else 0; i < MAX_WATCHERS. */
uint32_t watchers_peer(const struct watchers *w, size_t i, uint64_t now_ms);

#endif
