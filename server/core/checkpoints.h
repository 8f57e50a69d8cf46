/*
 * checkpoints.h - decides when the core takes a snapshot, answers the requests that wait for a
 * snapshot, and ends the run after the last snapshot. The core never starts a snapshot while
 * another one is being written.
 */
#ifndef SERVER_CORE_CHECKPOINTS_H
#define SERVER_CORE_CHECKPOINTS_H
#include "server/core/core.h"

#define CORE_MAX_ADMINS 8

struct checkpoints {
	uint64_t generation; /* number of the newest snapshot that was started */
	int saving;
	/* 1: the last completed attempt to save a snapshot failed */
	int failing;
	int urgent;        /* 1: a snapshot is due now or, after a failure, --checkpoint-ms
			    * after the newest one began */
	int dirty;         /* 1: the state has changed since the newest snapshot was started */
	uint64_t begin_ms; /* time at which the newest snapshot was started */
	struct {
		uint32_t peer; /* connection that requested the checkpoint; 0: this entry is free */
		uint64_t generation;
	} waiting[CORE_MAX_ADMINS]; /* requests for a checkpoint that wait until it is durable */
};

/* Called when operator `peer` requests a checkpoint: notes the request. Refuses it with ERROR if
 * the server writes no checkpoints, if the last checkpoint of the run has been taken, or if too
 * many requests wait. */
void checkpoints_request(struct core *c, uint32_t peer);
/* Answers the ADMIN request `verb` of `peer`. `generation` is the number of the checkpoint that the
 * request caused; 0: the request caused none. */
void checkpoints_answer(struct core *c, uint32_t peer, enum admin_verb verb, uint64_t generation);
/* Called at the end of each step: starts a snapshot if one is due. If the run is ending and the
 * server writes no checkpoints, the run needs no last snapshot, and the function completes the end
 * of the run at once. */
void checkpoints_settle(struct core *c);
void checkpoints_durable(struct core *c, uint64_t generation);
void checkpoints_failed(struct core *c);

#endif
