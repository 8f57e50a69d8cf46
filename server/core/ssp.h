/*
 * ssp.h - stale synchronous parallel: like downpour, but no worker begins a batch too far ahead of
 * the slowest worker. Rules and invariants are in ssp.c.
 */
#ifndef SERVER_CORE_SSP_H
#define SERVER_CORE_SSP_H
#include "server/core/modes.h"

/* This struct has the state of a worker slot in mode ssp. A snapshot contains all these fields. */
struct worker_ssp {
	uint64_t clock; /* grows by 1 with each counted batch of this worker */
	int racing;     /* 1: the other workers must not run far ahead of this worker */
};

extern const struct rules rules_ssp;

#endif
