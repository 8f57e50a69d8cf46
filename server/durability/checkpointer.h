/*
 * checkpointer.h - writes snapshots of the core to disk while the event loop continues.
 *
 * The loop's thread copies the state of the core at one instant into a buffer, and a thread of
 * libuv's pool writes the buffer to a file. If a device has the weights and the state of the
 * optimizer, the device keeps a copy of them at this instant, and the thread of the pool gets this
 * copy while the core makes further updates (common/param_device.h).
 *
 * Invariants:
 * (1) at most one checkpoint is under way (asserted by checkpointer_start);
 * (2) after each call of checkpointer_start, `done` is called exactly once, later, on the loop's
 *     thread (asserted by on_checkpoint_written).
 *
 * Promises:
 * (1) the checkpointer logs only the first of several failures in a row, and it logs the success
 *     that follows them (a_full_disk_is_logged_once_and_recovers).
 *
 * Only the loop's thread may call these functions. Between checkpointer_start and `done`, only a
 * thread of the pool uses the buffer.
 */
#ifndef SERVER_DURABILITY_CHECKPOINTER_H
#define SERVER_DURABILITY_CHECKPOINTER_H
#include <stdint.h>
#include <uv.h>
#include "common/err.h"

struct core;

struct checkpointer_stats {
	uint64_t saved, failed;
	uint64_t generation; /* generation of the newest checkpoint on disk */
	uint64_t bytes;      /* size in bytes of the newest snapshot, also if its write failed */
	/* duration of the write of the newest checkpoint on disk, in seconds */
	double seconds;
	int failing;   /* 1 if the newest write failed */
	char why[256]; /* why the newest write failed; "" if it succeeded */
};

/* Called when a write has ended. If `rc` is 0, the checkpoint `generation` is on disk; otherwise
 * `rc` is the PS_E* of the failure. */
typedef void checkpointer_done_fn(void *arg, uint64_t generation, int rc);

struct checkpointer; /* opaque, see checkpointer.c */

/* Makes a checkpointer that writes to `dir` (borrowed). Error: PS_ENOMEM. */
int checkpointer_new(struct checkpointer **out, uv_loop_t *loop, const char *dir,
	checkpointer_done_fn *done, void *arg) PS_MUST_CHECK;
/* Notes that the file of generation `sound` is complete and undamaged. The checkpointer never
 * removes this generation to make space for the next one. */
void checkpointer_keep(struct checkpointer *s, uint64_t sound);
/* Frees *s, which must not be busy, and sets it to NULL; *s may be NULL. */
void checkpointer_free(struct checkpointer **s);
/* Writes `core` as `generation` and waits for the end of the write. The server calls this function
 * only at its start, before the loop runs. Errors: PS_EIO, PS_ENOMEM, PS_EDIVERGED. */
int checkpointer_write(struct checkpointer *s, struct core *core, uint64_t generation,
	struct err *e) PS_MUST_CHECK;
/* Copies `core` now and writes the copy as `generation` on the pool. Do not call this function
 * while the checkpointer is busy. */
void checkpointer_start(struct checkpointer *s, struct core *core, uint64_t generation);
/* From now on, checkpointer_start copies a snapshot as always, but the pool writes the copy only
 * after checkpointer_release. A write that has begun continues. */
void checkpointer_hold(struct checkpointer *s);
void checkpointer_release(struct checkpointer *s);
int checkpointer_busy(const struct checkpointer *s);
/* Removes the temporary file of a write that hangs. Call this function when the process ends. */
void checkpointer_abandon(const struct checkpointer *s);
const struct checkpointer_stats *checkpointer_stats(const struct checkpointer *s);

#endif
