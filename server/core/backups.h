/*
 * backups.h - keeps the old weights that delay compensation compares with the current weights.
 * backups.c lists the invariants. In a run without delay compensation these functions do nothing.
 */
#ifndef SERVER_CORE_BACKUPS_H
#define SERVER_CORE_BACKUPS_H
#include "server/core/core.h"

struct worker;

/* This struct describes a copy of the weights of one version. All workers that hold this version
 * share the copy. */
struct backup {
	/* version: version of the weights; made: the term in which the server made this version */
	uint64_t version, made;
	/* number of entries in the arrays held[] of all workers that refer to this copy; 0: the
	 * copy is free */
	uint32_t refs;
	/* used only while a snapshot is encoded: the number of this copy in the snapshot */
	uint32_t order;
	/* upper bound of the magnitudes in the copy; 0: unknown, as after a restart */
	double peak;
};

#define BACKUPS_MAX_HELD 6 /* maximum number of versions that one worker holds */

/* This struct describes a version that a worker has pulled. The worker may still push a gradient of
 * this version. */
struct held {
	uint64_t version, sent; /* sent: the term in which the server sent this version */
	uint32_t copy;          /* index in the array `copy` of struct backups */
};

/* This struct has the versions that the worker of a slot holds, in the order of its pulls. A
 * snapshot contains them. */
struct worker_backups {
	struct held held[BACKUPS_MAX_HELD];
	uint32_t n_held;
};

/* This struct has all copies of old weights. The system provides the memory for a copy only when
 * the copy is first used. */
struct backups {
	uint32_t n;          /* number of copies; 0: the run has no delay compensation */
	struct backup *copy; /* array of `n` copies */
	float *values;       /* copy i begins at values + i * stride */
	size_t stride;
	uint32_t newest; /* index of the newest copy */
};

/* Called when the server sends the current weights to worker `w`: adds their version to the
 * versions that `w` holds. */
void backups_hold(struct core *c, struct worker *w);
/* Called when the core has applied a replayed push of worker `w`. The server has lost its record of
 * the pulls that `w` made before the crash. `w` may therefore hold the weights that this push has
 * made. If the run never had another worker, nor an earlier process of `w`, the function adds the
 * version of these weights to the versions that `w` holds. In all other runs, the function does
 * nothing. */
void backups_hold_replayed(struct core *c, struct worker *w);
/* Called when the core has decided push `p` of worker `w`: drops the versions that no later push of
 * `w` can be based on, such as all versions older than that of `p`. */
void backups_pushed(struct core *c, struct worker *w, const struct msg_push *p);
/* Drops all versions that worker `w` holds, because `w` has left. */
void backups_release(struct core *c, struct worker *w);
/* Returns the weights with which the gradient of push `p` was computed, or NULL if the core has no
 * copy of these weights. */
const float *backups_find(const struct core *c, const struct worker *w, const struct msg_push *p);
float *backups_values(const struct core *c, uint32_t copy);
/* Returns an upper bound of the magnitudes in `copy`, or 0 if no bound is known. `copy` must be a
 * result of backups_find, and not the current weights. */
double backups_peak(const struct core *c, const float *copy);
/* Reserves the free copy with the lowest index for the weights of version `version`, which the
 * server made in term `made`. Returns the index of the copy, or the number of copies if none is
 * free. */
uint32_t backups_take(struct core *c, uint64_t version, uint64_t made);

#endif
