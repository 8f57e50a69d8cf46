/*
 * sandblaster.h - steps over a window of batches, with backup copies. Rules and invariants are in
 * sandblaster.c.
 */
#ifndef SERVER_CORE_SANDBLASTER_H
#define SERVER_CORE_SANDBLASTER_H
#include "server/core/modes.h"

/* This struct describes the step under way, if there is one. */
struct sandblaster {
	uint32_t first, end; /* the portions of the step are batches [first, end) */
	int open;            /* 1: a step is under way */
	/* number of the pass in this step since this start of the server, from 1; only for
	 * display */
	uint32_t pass;
};

extern const struct rules rules_sandblaster;

#endif
