/*
 * wal.h - the write-ahead log of --durability always: appends every event of the core to a file
 * that follows the newest checkpoint, makes events durable in groups, and replays them after a
 * crash.
 *
 * Each event has a log sequence number (LSN): 1, 2, 3, ... in the order in which the core handles
 * the events. All events up to the flushed LSN are durable: a checkpoint contains them, or the log
 * files that follow a checkpoint contain them without a gap.
 *
 *   event -> queue -> (pool) append the queue, one fdatasync -> flushed LSN -> replies
 *   snapshot taken  -> later events go to a new file; once it is durable, older files are useless
 *   snapshot failed -> the next snapshot is marked in the same file, until one is durable
 *
 * Because failed snapshots begin no new file, the number of files stays bounded even if every
 * checkpoint fails. The size of the current file is not bounded in this case, because the file has
 * events that are in no checkpoint.
 *
 * In two cases the log ends a file early: before the file takes the space on the disk that the next
 * checkpoint needs (wal_reserve), and when a write or sync of the file has failed. The log never
 * writes to such a file again. After that, the log stores no event until the next snapshot begins
 * another file, and the flushed LSN does not grow until that snapshot is durable.
 *
 * Invariants:
 * (1) the flushed LSN is never above the LSN of the newest event (asserted by advance_flushed);
 * (2) at most one group is under way (asserted by start_group;
 *     a_disk_that_hangs_takes_bounded_memory);
 * (3) `done` is called on the loop's thread once after each group (asserted by on_group_written;
 *     flushed_events_are_replayed);
 * (4) while the log can write no file, it adds no frame of a message to the queue (asserted by
 *     enqueue);
 * (5) waiting events that are not pushes take at most WAL_MAX_QUEUE bytes plus one event. If the
 *     disk hangs and the queue reaches this bound, the log ends its file as after a failed write
 *     (asserted by enqueue; a_disk_that_hangs_takes_bounded_memory).
 *
 * Promises:
 * (1) after a crash, wal_replay finds every event up to the flushed LSN (tests/sim/node_wal.c);
 * (2) the queue has only frames of pushes within the workers' push windows: dispatch.c drops pushes
 *     beyond the windows (mutant pushes-without-windows);
 * (3) a sender that sends any number of messages leaves the other senders their share of the queue
 *     (wal_share_is_used) (a_sender_has_its_share_of_the_queue).
 *
 * Only the loop's thread may call these functions; a group belongs to a thread of the pool from its
 * start to its end. The main thread calls wal_replay, wal_newest_file and wal_remove_files before
 * it runs the loop.
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
	uint64_t term, generation; /* generation: the checkpoint that the first event follows */
	uint64_t max_bytes;        /* wal_wants_snapshot returns 1 from this size on */
	wal_done_fn *done;
	void *arg;
};

struct wal_stats {
	uint64_t events, groups; /* events that were written, groups that were synced */
	uint64_t begun;          /* groups whose write has begun */
	uint64_t bytes;          /* size of the current file */
	double seconds;          /* sum of the times to write a group, with fsync */
	double newest_seconds;   /* the time to write the newest group */
	uint64_t failures;
	/* 1 if a write failed, so that the flushed LSN does not grow until the next checkpoint is
	 * durable */
	int failing;
	char why[256]; /* reason of the last failure, while `failing` is 1 */
};

struct wal; /* opaque, see wal.c */

/* Makes a log and begins its first file. PS_EIO, PS_ENOMEM. */
int wal_new(struct wal **out, const struct wal_config *cfg, struct err *e) PS_MUST_CHECK;
/* Frees *w, which must not be busy, and sets it to NULL; *w may be NULL. */
void wal_free(struct wal **w);
/* Queues an event that the core is about to handle; drops it if the file can no longer be written.
 * `f` (borrowed) has the frames of the event's message, or is NULL if the event has no message.
 * Returns the event's LSN. */
uint64_t wal_append(struct wal *w, const struct event *ev, uint64_t now_ms, struct frames *f);
/* Begins to write and sync all events in the queue, at once or after the group under way. The
 * caller calls this function when a reply waits for an event in the queue, or soon will. */
void wal_flush(struct wal *w);
/* Notes that the core took snapshot `generation` after the newest event, so all later events follow
 * this snapshot. */
void wal_rotate(struct wal *w, uint64_t generation);
/* Notes that snapshot `generation` is on disk, so all events that it contains count as flushed. */
void wal_checkpointed(struct wal *w, uint64_t generation);
/* Sets the size of the newest checkpoint to `bytes`. From now on, the log ends its file before the
 * disk has too little space for a checkpoint of this size. */
void wal_reserve(struct wal *w, uint64_t bytes);
uint64_t wal_flushed_lsn(const struct wal *w);
/* Returns 1 if the log needs a snapshot, because its file is large or can no longer be written. */
int wal_wants_snapshot(const struct wal *w);
/* Returns the number of bytes in the queue and in the group under way. */
size_t wal_pending_bytes(const struct wal *w);
/* Returns 1 if the sender of message `m` has used up its share of the events that wait for the
 * disk. The caller then drops the message. A worker is a sender; all messages without a worker id
 * have one share together. The share of a sender has two parts. Its waiting pushes may have
 * `pushes` bytes, and one push more. Its other waiting messages may have an eighth of WAL_MAX_QUEUE
 * bytes or, while the queue is less than half full, any number of bytes. */
int wal_share_is_used(const struct wal *w, const struct msg *m, size_t pushes);
int wal_busy(const struct wal *w);
const struct wal_stats *wal_stats(const struct wal *w);

/* ---- before the loop ------------------------------------------------------------------------ */

/*
 * Replaces the sections of `c`, the newest good checkpoint of `dir`, by the state at the end of the
 * log files that follow it. If there are no such files, *c does not change. For this purpose, a new
 * core takes the steps again that the server's core took after the checkpoint. Each step depends
 * only on the core's state and the event, so the result is the same bit for bit. Returns
 * PS_ECHECKPOINT if the log has lost events that had been durable. With --accept-rollback, the
 * replay does not fail in this case: it ends before the first lost event and writes an error to the
 * program's log. PS_EIO, PS_ENOMEM. On failure *c is unchanged.
 */
int wal_replay(const char *dir, const struct core_config *now, struct checkpoint *c,
	struct err *e) PS_MUST_CHECK;
/* Returns 1 if a log with at least one event follows checkpoint `c`, and 0 if not. PS_EIO,
 * PS_ENOMEM. */
int wal_follows(const char *dir, const struct checkpoint *c, struct err *e) PS_MUST_CHECK;
/* Returns the highest generation in the names of the log files, or 0 if there is no log file. */
uint64_t wal_newest_file(const char *dir);
/* Removes the log files of all generations up to `last`. */
void wal_remove_files(const char *dir, uint64_t last);

#endif
