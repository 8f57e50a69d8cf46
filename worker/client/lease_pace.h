/*
 * lease_pace.h - limits how often a worker requests leases. A hostile server could grant steps that
 * are over, or evaluations of a single image, so that a worker requests leases and weights without
 * end. A push takes the computing of a batch, so a lease that is the first one since the newest
 * push has no limit.
 *
 * After MAX_EMPTY_LEASES leases in a row without a push or a result, each lease waits
 * LEASE_PAUSE_MS. Each further lease before the next push is also taken from a token bucket. A full
 * bucket has LEASES_AT_ONCE leases, and LEASES_PER_S leases are put back in each second.
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

/* All zero is a pace with a full bucket. */
struct lease_pace {
	uint32_t empty; /* leases requested since the newest push or result */
	int idle;       /* 1 if there was a lease since the newest push */
	uint64_t taken; /* leases taken from the bucket and not put back, in thousandths */
	uint64_t ms;    /* when leases were last put back into the bucket */
};

/* Returns 1 if the worker may request a lease at `now_ms`, after it has waited `waited_ms`. */
int lease_pace_allows(struct lease_pace *p, uint64_t waited_ms, uint64_t now_ms);
/* Call the function for LEASE, PUSH or RESULT after the worker has sent this message. */
void lease_pace_lease(struct lease_pace *p);
void lease_pace_push(struct lease_pace *p);
void lease_pace_result(struct lease_pace *p);

#endif
