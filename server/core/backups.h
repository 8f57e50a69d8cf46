/*
 * backups.h - the weights that delay compensation compares with; invariants in backups.c. Without
 * it these functions do nothing.
 */
#ifndef SERVER_CORE_BACKUPS_H
#define SERVER_CORE_BACKUPS_H
#include "server/core/core.h"

struct worker;

/* Delay compensation: a copy of the weights of one version, shared by all workers that hold it. */
struct backup {
	uint64_t version, made; /* made: term in which this version came about */
	uint32_t refs;          /* 0: free */
	uint32_t order;         /* while a snapshot is written: its place there */
	double peak;            /* bound of the magnitudes in it; 0: unknown, after a restart */
};

#define BACKUPS_MAX_HELD 6 /* versions that one worker holds at most */

/* A version that a worker has pulled and may still push a gradient of. */
struct held {
	uint64_t version, sent; /* sent: term that sent it */
	uint32_t copy;          /* index in backups */
};

/* Of a worker slot: the versions that it holds, in the order of its pulls. In the snapshot. */
struct worker_backups {
	struct held held[BACKUPS_MAX_HELD];
	uint32_t n_held;
};

/* Delay compensation: the copies. Memory of one is touched only while it has been used. */
struct backups {
	uint32_t n;          /* 0: no delay compensation */
	struct backup *copy; /* n */
	float *values;       /* of copy i: from i * stride on */
	size_t stride;
	uint32_t newest; /* the copy made last */
};

/* `w` was sent the current weights. */
void backups_hold(struct core *c, struct worker *w);
/* `w` repeats pushes of a server's earlier life, whose pulls are lost: it may have these weights.
 */
void backups_hold_replayed(struct core *c, struct worker *w);
/* A push of `w` was decided: it pushes nothing of older weights any more. */
void backups_pushed(struct core *c, struct worker *w, const struct msg_push *p);
/* `w` is gone. */
void backups_release(struct core *c, struct worker *w);
/* The weights that `p` was computed at; NULL: they are not held. */
const float *backups_find(const struct core *c, const struct worker *w, const struct msg_push *p);
float *backups_values(const struct core *c, uint32_t copy);
/* A bound of the magnitudes in a copy that backups_find returned; 0: unknown, after a restart. */
double backups_peak(const struct core *c, const float *copy);
/* The lowest free copy, which becomes one of `version`, made in term `made`; n: none is free. */
uint32_t backups_take(struct core *c, uint64_t version, uint64_t made);

#endif
