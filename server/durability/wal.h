/*
 * wal.h - the write-ahead log of --durability always: appends every event of the core to a file
 * behind the newest checkpoint, commits events in groups, and replays them after a crash.
 *
 * Each event has a log sequence number (LSN): 1, 2, 3, ... in the order in which the core takes
 * them. The flushed LSN is the newest one up to which all events are durable: in a checkpoint, or in
 * the log files behind one without a gap.
 *
 *   event -> queue -> (pool) append the queue, one fdatasync -> flushed LSN -> replies
 *   snapshot taken  -> later events go to a new file; once it is durable, older files are useless
 *   snapshot failed -> the next snapshot is marked in the same file, until one is durable
 *
 * So the number of files is bounded for any time that a disk takes no checkpoint. The size of the
 * file is not, because then it is the only copy.
 *
 * A file ends before it takes the space of the next checkpoint (wal_reserve). A file that ended so,
 * or that could not be written or synced, is never written again: later events are not logged until
 * the next snapshot begins another file, and the flushed LSN does not grow until that snapshot is
 * durable.
 *
 * Invariants:
 * (1) after a crash, wal_replay finds every event up to the flushed LSN (tests/sim/node_journal.c);
 * (2) at most one group is under way;
 * (3) `done` is called on the loop's thread after each group;
 * (4) frames wait only while their file can be written, and at most as many as the workers'
 *     unanswered pushes have: dispatch.c drops pushes beyond;
 * (5) all other events that wait take at most WAL_MAX_QUEUE bytes and one event more. A log that
 *     reaches this bound, because the disk does not answer, ends its file as if a write had failed.
 * Thread: the loop's; the pool owns a group from its start to its end. wal_replay, wal_newest_file
 * and wal_remove_files: main, before the loop.
 */
#ifndef SERVER_DURABILITY_WAL_H
#define SERVER_DURABILITY_WAL_H
#include <stdint.h>
#include <uv.h>
#include "common/checkpoint.h"
#include "common/err.h"
#include "proto/wire.h"
#include "server/core/core.h"

#define WAL_MAX_QUEUE ((size_t)4 << 20)

typedef void wal_done_fn(void *arg);

struct wal_config {
	uv_loop_t *loop;
	const char *dir; /* borrowed */
	struct run_id run;
	uint64_t term, generation; /* of the checkpoint on disk that the first event follows */
	uint64_t max_bytes;        /* a larger file asks for a snapshot */
	wal_done_fn *done;
	void *arg;
};

struct wal_stats {
	uint64_t events, groups; /* on disk */
	uint64_t begun;          /* groups that were given to the disk */
	uint64_t bytes;          /* of the current file */
	uint64_t failures;
	int failing;   /* the flushed LSN waits for the next checkpoint */
	char why[256]; /* of the last failure, while failing */
};

struct wal; /* opaque, see wal.c */

/* Begins the first file. PS_EIO, PS_ENOMEM. */
int wal_new(struct wal **out, const struct wal_config *cfg, struct err *e) PS_MUST_CHECK;
/* Frees and nulls *w, which is not busy; NULL is fine. */
void wal_free(struct wal **w);
/* Queue the event that the core takes now; `f`: the frames of its message, borrowed, or NULL.
 * Returns its LSN. */
uint64_t wal_append(struct wal *w, const struct event *ev, uint64_t now_ms, struct frames *f);
/* A reply waits: write and sync everything in the queue. */
void wal_flush(struct wal *w);
/* The core took snapshot `generation` at the end of the newest event. */
void wal_rotate(struct wal *w, uint64_t generation);
/* That snapshot is on disk. */
void wal_checkpointed(struct wal *w, uint64_t generation);
/* A checkpoint has so many bytes: the file ends before it takes the space of the next one. */
void wal_reserve(struct wal *w, uint64_t bytes);
uint64_t wal_flushed_lsn(const struct wal *w);
/* A snapshot is needed: the file is large, or lost. */
int wal_wants_snapshot(const struct wal *w);
/* Bytes in the queue and in the group under way. */
size_t wal_pending_bytes(const struct wal *w);
int wal_busy(const struct wal *w);
const struct wal_stats *wal_stats(const struct wal *w);

/* ---- before the loop ------------------------------------------------------------------------ */

/*
 * Replace the sections of `c`, the newest good checkpoint of `dir`, by the state at the end of the
 * log files behind it; without any, *c stays as it is. The core repeats the steps that it took after
 * the checkpoint, with the same result bit for bit, because it is a function of its state and its
 * events. A log that lost events which had been durable is refused with PS_ECHECKPOINT, unless
 * --accept-rollback is set: then the replay ends before the loss, and the program's log reports it. PS_EIO,
 * PS_ENOMEM. On failure *c is unchanged.
 */
int wal_replay(const char *dir, const struct core_config *now, struct checkpoint *c,
	struct err *e) PS_MUST_CHECK;
/* 1: the log behind `c` has an event. 0: it has none. PS_EIO, PS_ENOMEM. */
int wal_follows(const char *dir, const struct checkpoint *c, struct err *e) PS_MUST_CHECK;
/* The newest generation that the name of a log file claims; 0: none. */
uint64_t wal_newest_file(const char *dir);
/* Remove the log files of all generations up to `last`. */
void wal_remove_files(const char *dir, uint64_t last);

#endif
