/*
 * checkpointer.h - writes snapshots of the core to disk, without stopping the loop.
 *
 * The loop's thread copies the core into a buffer (one instant), and libuv's pool writes the buffer
 * to a file. Invariants: (1) at most one checkpoint is under way; (2) every checkpointer_start is
 * followed by one call of `done`, later, on the loop's thread; (3) the first failure and the first
 * success after it are logged, not every failure. Thread: the loop's; the pool owns the buffer
 * between start and done.
 */
#ifndef SERVER_DURABILITY_CHECKPOINTER_H
#define SERVER_DURABILITY_CHECKPOINTER_H
#include <stdint.h>
#include <uv.h>
#include "common/err.h"

struct core;

struct checkpointer_stats {
	uint64_t saved, failed;
	uint64_t generation; /* newest on disk */
	uint64_t bytes;      /* of the newest snapshot */
	double seconds;      /* to write it */
	int failing;         /* the last one failed */
	char why[256];       /* and why; "" otherwise */
};

/* `rc` 0: generation is on disk. */
typedef void checkpointer_done_fn(void *arg, uint64_t generation, int rc);

struct checkpointer; /* opaque, see checkpointer.c */

/* Write to `dir` (borrowed). PS_ENOMEM. */
int checkpointer_new(struct checkpointer **out, uv_loop_t *loop, const char *dir,
	checkpointer_done_fn *done, void *arg) PS_MUST_CHECK;
/* Generation `sound` is known to be good: it is never dropped to make space for the next one. */
void checkpointer_keep(struct checkpointer *s, uint64_t sound);
/* Frees and nulls *s, which is not busy; NULL is fine. */
void checkpointer_free(struct checkpointer **s);
/* Write `core` as `generation` now, at the start of the server. PS_EIO, PS_ENOMEM. */
int checkpointer_write(struct checkpointer *s, struct core *core, uint64_t generation,
	struct err *e) PS_MUST_CHECK;
/* Copy `core` now and write the copy as `generation`. Not while busy. */
void checkpointer_start(struct checkpointer *s, struct core *core, uint64_t generation);
int checkpointer_busy(const struct checkpointer *s);
/* The process ends while a write hangs: remove its temporary file. */
void checkpointer_abandon(const struct checkpointer *s);
const struct checkpointer_stats *checkpointer_stats(const struct checkpointer *s);

#endif
