/*
 * checkpointer.h - snapshots of the core to disk, without stopping the loop.
 *
 * The image is written into a buffer on the loop's thread (one instant), the buffer into a file on
 * libuv's pool. Invariants: (1) at most one is under way; (2) every saver_start is answered by one
 * call of `done`, later, on the loop's thread; (3) a failure is logged when it begins and when it
 * is over, not each time. Thread: the loop's; the pool owns the buffer between start and done.
 */
#ifndef SERVER_DURABILITY_CHECKPOINTER_H
#define SERVER_DURABILITY_CHECKPOINTER_H
#include <stdint.h>
#include <uv.h>
#include "common/err.h"

struct core;

struct saver_stats {
	uint64_t saved, failed;
	uint64_t generation; /* newest on disk */
	uint64_t bytes;      /* of the newest image */
	double seconds;      /* that writing it took */
	int failing;         /* the last one failed */
	char why[256];       /* and why; "" otherwise */
};

/* `rc` 0: generation is on disk. */
typedef void saver_done_fn(void *arg, uint64_t generation, int rc);

struct saver; /* opaque, see checkpointer.c */

/* Save into `dir` (borrowed). PS_ENOMEM. */
int saver_new(struct saver **out, uv_loop_t *loop, const char *dir, saver_done_fn *done,
	void *arg) PS_MUST_CHECK;
/* Generation `sound` is good: it is never dropped to make space for the next one. */
void saver_keep(struct saver *s, uint64_t sound);
/* Frees and nulls *s, which is not busy; NULL is fine. */
void saver_free(struct saver **s);
/* Save `core` as `generation` and wait for it: for the start. PS_EIO, PS_ENOMEM. */
int saver_write(
	struct saver *s, struct core *core, uint64_t generation, struct err *e) PS_MUST_CHECK;
/* Save `core` as it is now as `generation`. Not while busy. */
void saver_start(struct saver *s, struct core *core, uint64_t generation);
int saver_busy(const struct saver *s);
/* The process ends while a write hangs: take away what it has written so far. */
void saver_abandon(const struct saver *s);
const struct saver_stats *saver_stats(const struct saver *s);

#endif
