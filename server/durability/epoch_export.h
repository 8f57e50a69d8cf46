/*
 * epoch_export.h - --keep: weights of evaluated epochs as .safetensors files in the checkpoint
 * directory.
 *
 *   best.safetensors          the epoch with the best accuracy so far; without accuracy, the epoch
 *                             with the least test loss
 *   epoch-000010.safetensors  each N-th epoch
 *
 * A file has the weights at the end of its epoch, which are the weights that the workers evaluated.
 * Only the results of the evaluated epochs in the core decide which epochs are exported, so a
 * restart does not change the choice. Before the files of an epoch are written, the caller writes
 * no checkpoint with the result of this epoch's evaluation (checkpointer_hold). So if the server
 * dies before it has written a file, the next process evaluates the epoch again and then writes the
 * file. A write-ahead log, however, may have the evaluation already: then the next process does not
 * evaluate the epoch again, and the file is missing. If a file cannot be written, the server logs
 * this and continues the run. After each later evaluation, the server tries again to write
 * best.safetensors, until a better epoch takes the place of the unwritten one. The metadata of a
 * file has the results of its epoch. A thread of libuv's pool writes the files; only the loop's
 * thread may call the functions of this header.
 */
#ifndef SERVER_DURABILITY_EPOCH_EXPORT_H
#define SERVER_DURABILITY_EPOCH_EXPORT_H
#include <stdint.h>
#include <uv.h>
#include "common/err.h"
#include "common/model.h"
#include "server/config/keep_rule.h"

struct core;

struct epoch_export; /* opaque, see epoch_export.c */

struct epoch_export_of {
	const char *dir; /* the directory of the files, borrowed */
	struct keep_rule rule;
	const struct model *model; /* the model of the run, borrowed */
	/* returns the results of an epoch as JSON, in memory that the caller frees; NULL: no
	 * memory. `epoch` counts from 0 */
	char *(*results)(const struct core *c, uint32_t epoch);
};

/* Called when the files of all epochs so far are written, or have failed. */
typedef void epoch_export_done_fn(void *arg);

/* Makes an exporter that writes the epochs that the rule selects. Error: PS_ENOMEM. */
int epoch_export_new(struct epoch_export **out, uv_loop_t *loop, const struct epoch_export_of *of,
	epoch_export_done_fn *done, void *arg) PS_MUST_CHECK;
/* Begins to write the weights of the newest evaluated epoch if the rule keeps this epoch. Called
 * when an epoch was evaluated. */
void epoch_export_evaluated(struct epoch_export *k, const struct core *c);
/* Returns 1 if a file is being written. `k` may be NULL. */
int epoch_export_busy(const struct epoch_export *k);
/* Frees *k, which is not busy, and sets it to NULL; *k may be NULL. */
void epoch_export_free(struct epoch_export **k);

#endif
