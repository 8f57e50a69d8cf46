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
 * A durable checkpoint makes only those events flushed that do not wait for the log any more.
 * Otherwise a worker could get the acknowledgements of its pushes, and send further ones, while the
 * acknowledged ones still use memory in the queue.
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
 * (2) the number of pushes in the queue is at most twice the workers' push windows, and one more
 *     for each sender without a live worker: dispatch.c drops other pushes
 *     (tests/wire/test_trust.py, test_trust_worker_ids_use_no_share_of_another_key);
 * (3) a sender that sends any number of messages, with any worker ids in them, leaves the other
 *     senders their share of the queue (wal_share_is_used) (a_sender_has_its_share_of_the_queue,
 *     worker_ids_use_no_share_of_another_sender);
 * (4) messages alone never fill the queue, whatever the number of their senders
 *     (many_senders_do_not_fill_the_queue);
 * (5) a worker that stays within its push window always has room for its next push
 *     (a_checkpoint_does_not_let_pushes_pile_up).
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
	const char *dir; /* directory of the log files, borrowed */
	struct run_id run;
	uint64_t term, generation; /* generation: the checkpoint that the first event follows */
	/* size of the file, in bytes, from which on wal_wants_snapshot returns 1 */
	uint64_t max_bytes;
	wal_done_fn *done;
	void *arg;
};

struct wal_stats {
	/* events: number of events that the log has written; groups: number of groups that it has
	 * synced */
	uint64_t events, groups;
	uint64_t begun; /* number of groups whose write has begun */
	uint64_t bytes; /* size of the current file in bytes */
	/* sum over all groups of the time to write and sync a group, in seconds */
	double seconds;
	double newest_seconds; /* time to write and sync the newest group, in seconds */
	uint64_t failures;
	/* 1 if a write failed, so that the flushed LSN does not grow until the next checkpoint is
	 * durable */
	int failing;
	char why[256]; /* reason of the last failure, while `failing` is 1 */
};

struct wal; /* opaque, see wal.c */

/* Makes a log and begins its first file. Errors: PS_EIO, PS_ENOMEM. */
int wal_new(struct wal **out, const struct wal_config *cfg, struct err *e) PS_MUST_CHECK;
/* Frees *w, which must not be busy, and sets it to NULL; *w may be NULL. */
void wal_free(struct wal **w);
/* Queues an event that the core is about to handle; drops it if the file can no longer be written.
 * `f` (borrowed) has the frames of the event's message, or is NULL if the event has no message.
 * `key` is the key of the connection from which the message has arrived; it is "" if the server has
 * no keys, or if the event has no message. Returns the event's LSN. */
uint64_t wal_append(
	struct wal *w, const struct event *ev, uint64_t now_ms, struct frames *f, const char *key);
/* Begins to write and sync all events in the queue, at once or after the group under way. The
 * caller calls this function when a reply waits for an event in the queue, or soon will. */
void wal_flush(struct wal *w);
/* Notes that the core took snapshot `generation` after the newest event, so all later events follow
 * this snapshot. */
void wal_rotate(struct wal *w, uint64_t generation);
/* Notes that snapshot `generation` is on disk. The events that it contains count as flushed, each
 * as soon as it is in neither the queue nor the group under way. */
void wal_checkpointed(struct wal *w, uint64_t generation);
/* Sets the size of the newest checkpoint to `bytes`. From now on, the log ends its file before the
 * disk has too little space for a checkpoint of this size. */
void wal_reserve(struct wal *w, uint64_t bytes);
uint64_t wal_flushed_lsn(const struct wal *w);
/* Returns 1 if the log needs a snapshot, because its file is large or can no longer be written. */
int wal_wants_snapshot(const struct wal *w);
/* Returns the number of bytes in the queue and in the group under way. */
size_t wal_pending_bytes(const struct wal *w);
/* Returns 1 if the sender of the message of event `ev`, with frames `f`, has used up its share of
 * the events that wait for the disk. The caller then drops the message. With keys, a sender is a
 * key; without keys (`key` is ""), it is a connection. The content of the message, for example the
 * worker id in its stamp, makes no difference. The share of a sender has two parts. At most
 * `pushes` of its pushes may wait. Its other waiting messages, with this one, may have at most as
 * many bytes as the queue then has left. So n senders that send without end have 1/(n + 1) of the
 * queue each, and leave as much to all others. */
int wal_share_is_used(const struct wal *w, const struct event *ev, struct frames *f,
	const char *key, size_t pushes);
int wal_busy(const struct wal *w);
const struct wal_stats *wal_stats(const struct wal *w);

/* ---- before the loop ------------------------------------------------------------------------ */

/*
 * Replaces the sections of `c`, the newest good checkpoint of `dir`, by the state at the end of the
 * log files that follow it. For this purpose, a new core repeats the steps that the server's core
 * took after the checkpoint. Each step depends only on the core's state and the event, so the
 * result is the same bit for bit. If no log files follow the checkpoint, *c does not change.
 * Returns PS_ECHECKPOINT if the log has lost events that had been durable. With --accept-rollback,
 * the replay does not fail in this case: it ends before the first lost event and writes an error to
 * the program's log. Other errors: PS_EIO, PS_ENOMEM. On failure *c is unchanged.
 */
int wal_replay(const char *dir, const struct core_config *now, struct checkpoint *c,
	struct err *e) PS_MUST_CHECK;
/* Returns 1 if a log with at least one event follows checkpoint `c`, and 0 if not. Errors: PS_EIO,
 * PS_ENOMEM. */
int wal_follows(const char *dir, const struct checkpoint *c, struct err *e) PS_MUST_CHECK;
/* Returns the highest generation in the names of the log files, or 0 if there is no log file. */
uint64_t wal_newest_file(const char *dir);
/* Removes the log files of all generations up to `last`. */
void wal_remove_files(const char *dir, uint64_t last);

#endif
