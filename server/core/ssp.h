/*
 * ssp.h - stale synchronous parallel: downpour in which no worker runs too many batches ahead of the
 * slowest one. Rules and invariants are in ssp.c.
 */
#ifndef SERVER_CORE_SSP_H
#define SERVER_CORE_SSP_H
#include "server/core/modes.h"

/* The state of a worker slot in mode ssp. A snapshot contains all of it. */
struct worker_ssp {
	uint64_t clock; /* grows by 1 with each counted batch of this worker */
	int racing;     /* 1: the other workers may not run far ahead of this worker */
};

extern const struct rules rules_ssp;

#endif
