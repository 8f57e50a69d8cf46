/*
 * run.h - tells whether the run has begun, whether it grants work and whether it decides pushes,
 * and ends the run.
 */
#ifndef SERVER_CORE_RUN_H
#define SERVER_CORE_RUN_H
#include "server/core/core.h"

enum ending { END_NOT, END_SNAPSHOT, END_SAVING, END_OVER };

struct run {
	/* 1: min_workers workers have been live at the same time. The replay of an accepted push
	 * proves this to a server that has lost its newest state. */
	int begun;
	/* 1: the server has started from a snapshot and grants no lease yet */
	int recovering;
	/* core time at which the recovery ends at the latest; 0: not set yet */
	uint64_t recover_by_ms;
	enum ending ending;
	int end_status;
	/* 1: the run is drained because it has met a stop rule (`rule_met` in core.h) */
	int rule_met;
};

/* Returns 1 if min_workers workers have been live at the same time. A run without a data set counts
 * as begun from its start, so the function returns 1. */
int run_has_begun(const struct core *c);
/* Begins the end of the run: the server takes the last snapshot, sends BYE to all workers and emits
 * EFFECT_FINISH with `status`. */
void run_end(struct core *c, int status);
/* Begins a drain: ends the run with PS_ESHUTDOWN, because it can continue later. `rule_met` is 1 if
 * the run has met a stop rule. */
void run_drain(struct core *c, int rule_met);
/* Returns 1 if the core neither decides nor answers new pushes. */
int run_is_closed(const struct core *c);
/* Returns 1 if the run has begun, and the core grants new work. If the run has not begun but enough
 * workers are live, the function begins the run. */
int run_gives_work(struct core *c);

#endif
