/*
 * group_commit.h - group commit: every event of the core goes to the journal of the checkpoint that
 * it follows, and what the core says because of it is held back until it is on disk.
 *
 * Events have positions, 1, 2, 3, ... in the order in which the core took them. `reached` is the
 * newest one up to which all are durable: in a checkpoint, or in the unbroken journals behind one.
 *
 *   event -> queue -> (pool) append all that has gathered, one fdatasync -> reached -> replies
 *   snapshot taken -> what follows goes to a journal of its own; it is durable -> older ones go
 *   snapshot failed -> the next one's place is marked in the same journal, until one is durable
 *
 * So the number of files is bounded however long a disk takes no checkpoints; the bytes of the
 * journal are not, as they are all there is.
 *
 * A journal ends before it would take the space that the next checkpoint needs, older ones dropped.
 *
 * A journal that ended so, or that could not be written or synced, is never touched again: what
 * follows goes nowhere until the next snapshot begins another, and nothing is reached before that
 * snapshot is durable.
 *
 * Invariants:
 * (1) an event at or before `reached` is found again after a crash of everything;
 * (2) at most one group is under way;
 * (3) `done` is called on the loop's thread after each;
 * (4) frames wait only while their journal can be written, and no more of them than workers have
 *     pushes unanswered.
 * Thread: the loop's; the pool owns a group from its start to its end.
 */
#ifndef SERVER_DURABILITY_GROUP_COMMIT_H
#define SERVER_DURABILITY_GROUP_COMMIT_H
#include <stdint.h>
#include <uv.h>
#include "common/err.h"
#include "proto/wire.h"
#include "server/core/core.h"

typedef void commit_done_fn(void *arg);

struct commit_config {
	uv_loop_t *loop;
	const char *dir; /* borrowed */
	struct run_id run;
	uint64_t term, generation; /* of the checkpoint on disk that the first event follows */
	uint64_t most_bytes;       /* a journal should not be larger */
	commit_done_fn *done;
	void *arg;
};

struct commit_stats {
	uint64_t events, groups; /* on disk */
	uint64_t bytes;          /* of the journal under way */
	uint64_t failures;
	int failing;   /* nothing is reached until the next checkpoint */
	char why[256]; /* of the last failure, while failing */
};

struct commit; /* opaque, see group_commit.c */

/* Begins the first journal. PS_EIO, PS_ENOMEM. */
int commit_new(struct commit **out, const struct commit_config *cfg, struct err *e) PS_MUST_CHECK;
/* Frees and nulls *k, which is not busy; NULL is fine. */
void commit_free(struct commit **k);
/* The core takes this event now, a message in the frames `f` (else NULL), which stay the caller's.
 * Returns its position. */
uint64_t commit_event(struct commit *k, const struct event *ev, uint64_t now_ms, struct frames *f);
/* Somebody waits: bring all there is to the disk. */
void commit_start(struct commit *k);
/* The newest event ended with a snapshot, `generation`. */
void commit_rotate(struct commit *k, uint64_t generation);
/* That one is on disk. */
void commit_durable(struct commit *k, uint64_t generation);
/* A checkpoint has that many bytes: a journal that would take the last space for the next one gives
 * way to it. */
void commit_reserve(struct commit *k, uint64_t bytes);
uint64_t commit_reached(const struct commit *k);
/* A snapshot would help: the journal is large, or lost. */
int commit_wants_snapshot(const struct commit *k);
/* Bytes that wait for the disk. */
size_t commit_waiting(const struct commit *k);
int commit_busy(const struct commit *k);
const struct commit_stats *commit_stats(const struct commit *k);

#endif
