/*
 * lease_pace.h - limits how often a worker requests leases. A hostile server could grant steps that
 * are over, or evaluations of a single image, so that a worker requests leases and weights without
 * end. A push requires the computation of a granted batch, so the first lease after a push has no
 * limit: neither an honest nor a hostile server gets leases and pushes faster than the worker
 * computes.
 *
 * After MAX_EMPTY_LEASES leases in a row without a push or a result, each lease waits
 * LEASE_PAUSE_MS. Every lease except the first one after a push is also taken from a token bucket.
 * A full bucket has LEASES_AT_ONCE leases, and LEASES_PER_S leases are put back in each second.
 *
 * Promises:
 * (1) a server that grants only leases without pushes gets at most LEASES_AT_ONCE + 1 +
 *     LEASES_PER_S * t leases in t seconds (evaluations_without_end_are_paced).
 */
#ifndef WORKER_CLIENT_LEASE_PACE_H
#define WORKER_CLIENT_LEASE_PACE_H
#include <stdint.h>

enum {
	MAX_EMPTY_LEASES = 16,
	LEASE_PAUSE_MS = 100,
	LEASES_AT_ONCE = 64,
	LEASES_PER_S = 500,
};

/* A struct of zeros has a full bucket. */
struct lease_pace {
	uint32_t empty; /* number of leases requested since the newest push or result */
	int idle;       /* 1 if there was a lease since the newest push */
	uint64_t taken; /* number of leases taken from the bucket and not put back, times 1000 */
	uint64_t ms;    /* time at which leases were last put back into the bucket */
};

/* Returns 1 if the worker may request a lease at `now_ms`, after it has waited `waited_ms`. */
int lease_pace_allows(struct lease_pace *p, uint64_t waited_ms, uint64_t now_ms);
/* After the worker has sent a LEASE, PUSH or RESULT, call the function that is named after this
 * message. */
void lease_pace_lease(struct lease_pace *p);
void lease_pace_push(struct lease_pace *p);
void lease_pace_result(struct lease_pace *p);

#endif
