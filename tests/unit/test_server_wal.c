/* Proves the invariants numbered in server/durability/wal.h. */
#include <malloc.h>
#include <stdatomic.h>
#include "tests/support/wal_fixture.h"
#include "tests/support/test.h"

/* ---- tests ---------------------------------------------------------------------------------- */

TEST_IN(flushed_events_are_replayed, wal_set_up, wal_tear_down)
{
	assert_int_equal(wal_flushed_lsn(wal.wal), 0);
	for (int i = 0; i < 100; i++) {
		wal_push(1);
		if (i % 7 == 0)
			wal_tick();
		if (i % 30 == 29)
			wal_snapshot();
		if (i % 11 == 0) {
			wal_settle();
			assert_int_equal(wal_flushed_lsn(wal.wal), wal.newest);
			wal_assert_recovers(0);
		}
	}
	wal_settle();
	wal_assert_recovers(0);
	assert_int_equal(wal_stats(wal.wal)->events, wal.newest);
	/* most groups contain several records */
	assert_true(wal_stats(wal.wal)->groups < wal.newest);
	assert_int_equal(wal.done > 0, 1);
}

/* A snapshot in progress may never become a checkpoint. The log files before and after this
 * snapshot must together contain all records. */
TEST_IN(an_unfinished_snapshot_is_not_needed, wal_set_up, wal_tear_down)
{
	wal_push(5);
	wal_event(&(struct event){.kind = EVENT_SAVE}, NULL);
	wal_push(5);
	wal_settle();
	assert_int_equal(wal_flushed_lsn(wal.wal), wal.newest);
	wal_assert_recovers(0);
	wal_saved(0); /* report that the checkpoint of the snapshot has failed */
	wal_push(3);
	wal.f.now_ms += core_config(wal.f.core)->checkpoint.interval_ms;
	wal_tick();
	assert_int_not_equal(wal.f.saving, 0);
	wal_push(1);
	wal_settle();
	wal_assert_recovers(0);
}

/* The test makes the writes fail, as on a full disk, or fdatasync. The flushed LSN must not advance
 * until a snapshot is durable. When a snapshot is durable, all records count as flushed, and the
 * next log file works. */
TEST_IN(a_lost_log_file_is_replaced_by_the_next_snapshot, wal_set_up, wal_tear_down)
{
	for (int how = 0; how < 2; how++) {
		wal_push(1);
		wal_settle();
		uint64_t before = wal_flushed_lsn(wal.wal);
		assert_int_equal(before, wal.newest);
		*(how ? &disk_syncs_left : &disk_writes_left) = 0;
		for (int i = 0; i < 20; i++) {
			wal_push(1);
			wal_settle();
		}
		assert_int_equal(wal_flushed_lsn(wal.wal), before);
		assert_true(wal_wants_snapshot(wal.wal));
		assert_true(wal_stats(wal.wal)->failing);
		assert_true(strlen(wal_stats(wal.wal)->why) > 0);
		/* after the failure, the log keeps no records in memory */
		assert_int_equal(wal_pending_bytes(wal.wal), 0);
		disk_writes_left = disk_syncs_left = -1;
		/* the disk works again, but the server does not write to this file any more */
		wal_push(1);
		wal_settle();
		assert_int_equal(wal_flushed_lsn(wal.wal), before);
		uint64_t in_snapshot = wal.newest + 1;
		wal_snapshot();
		assert_true(wal_flushed_lsn(wal.wal) >= in_snapshot);
		wal_push(1);
		wal_settle();
		assert_int_equal(wal_flushed_lsn(wal.wal), wal.newest);
		assert_false(wal_stats(wal.wal)->failing);
		assert_false(wal_wants_snapshot(wal.wal));
		wal_assert_recovers(0);
	}
}

/* While the log file before a snapshot has a gap, the log file after the snapshot is useless until
 * the snapshot is durable. */
TEST_IN(nothing_is_flushed_after_a_gap, wal_set_up, wal_tear_down)
{
	wal_settle();
	uint64_t before = wal_flushed_lsn(wal.wal);
	disk_writes_left = 0;
	wal_push(1);
	wal_settle();
	disk_writes_left = -1;
	wal_event(&(struct event){.kind = EVENT_SAVE}, NULL);
	wal_push(5);
	wal_settle();
	assert_int_equal(wal_flushed_lsn(wal.wal), before);
	int rc, pushes = wal_recovered_pushes(0, &rc);
	assert_int_equal(rc, PS_OK);
	assert_int_equal(pushes, 0);
	wal_saved(0);
	wal_push(1);
	wal_settle();
	assert_int_equal(wal_flushed_lsn(wal.wal), before);
}

TEST_IN(a_large_log_requests_a_snapshot, wal_set_up, wal_tear_down)
{
	for (int i = 0; i < 2000 && !wal_wants_snapshot(wal.wal); i++) {
		wal_push(1);
		if (i % 50 == 0)
			wal_settle();
	}
	assert_true(wal_wants_snapshot(wal.wal));
	assert_true(wal_stats(wal.wal)->bytes >= 100000);
	wal_snapshot();
	wal_settle();
	assert_false(wal_wants_snapshot(wal.wal));
	wal_assert_recovers(0);
}

/* The log fails while the checkpoint of a snapshot is not yet on the disk. The records after the
 * snapshot belong in the log file that begins after this snapshot or, if earlier snapshots failed,
 * in a file that began after one of those. When this snapshot is durable, the events before it are
 * safe. Later events wait for the next snapshot. */
TEST_IN(a_log_file_lost_after_a_snapshot_waits_for_the_next, wal_set_up, wal_tear_down)
{
	for (int before = 0; before < 3; before++) {
		wal_failing_snapshots(before);
		wal_begin_snapshot();
		wal_settle();
		uint64_t in_snapshot = wal.newest;
		disk_writes_left = 0;
		wal_push(1);
		wal_settle();
		disk_writes_left = -1;
		wal_save(wal.f.saving);
		wal_saved(1);
		wal_push(1);
		wal_settle();
		assert_int_equal(wal_flushed_lsn(wal.wal), in_snapshot);
		assert_true(wal_wants_snapshot(wal.wal));
		wal_snapshot();
		wal_push(1);
		wal_settle();
		assert_int_equal(wal_flushed_lsn(wal.wal), wal.newest);
		assert_false(wal_wants_snapshot(wal.wal));
		wal_assert_recovers(0);
	}
}

/* ---- checkpoints that fail for days ---------------------------------------------------------- */

TEST_IN(failing_checkpoints_do_not_leave_a_log_file_each, wal_set_up, wal_tear_down)
{
	for (int round = 0; round < 3; round++) {
		wal_failing_snapshots(100);
		assert_int_equal(wal_flushed_lsn(wal.wal), wal.newest);
		assert_in_range(wal_count_files(), 1, CHECKPOINT_KEEP + 2);
		wal_assert_recovers(0);
		wal_snapshot();
		wal_settle();
		assert_int_equal(wal_flushed_lsn(wal.wal), wal.newest);
		wal_assert_recovers(0);
	}
}

/* Snapshots and log files fail repeatedly. Each log file stores some records before it fails. The
 * number of log files must not grow. */
TEST_IN(failing_log_files_do_not_accumulate, wal_set_up, wal_tear_down)
{
	wal_settle();
	uint64_t flushed = wal_flushed_lsn(wal.wal);
	for (int i = 0; i < 100; i++) {
		disk_writes_left = i % 4;
		wal_failing_snapshots(1);
		assert_in_range(wal_count_files(), 1, CHECKPOINT_KEEP + 2);
		if (i < 4)
			flushed = wal_flushed_lsn(wal.wal);
	}
	/* the flushed LSN must not advance, because the log has a gap */
	assert_int_equal(wal_flushed_lsn(wal.wal), flushed);
	disk_writes_left = -1;
	wal_snapshot();
	wal_push(1);
	wal_settle();
	assert_int_equal(wal_flushed_lsn(wal.wal), wal.newest);
	wal_assert_recovers(0);
}

/* ---- a disk that does not answer ------------------------------------------------------------- */

static void heartbeats(int n)
{
	const struct msg m = {.type = MSG_HEARTBEAT, .heartbeat = {.stamp = wal.stamp}};

	while (n-- > 0)
		wal_receive(9, &m);
}

static void assert_grew_less_than(size_t bytes, size_t before)
{
	assert_true(mallinfo2().uordblks < before + bytes);
}

/* While fdatasync hangs, days of ticks and heartbeats must use bounded memory. The checkpoints fail
 * meanwhile, so they free no memory. When the disk answers again, the next checkpoint contains the
 * events that the log lacks. */
TEST_IN(a_disk_that_hangs_takes_bounded_memory, wal_set_up, wal_tear_down)
{
	wal_settle();
	size_t before = mallinfo2().uordblks;
	atomic_store(&disk_sync_hangs, 1);
	wal_push(1);
	uint64_t flushed = wal_flushed_lsn(wal.wal);
	wal_flush(wal.wal);
	for (int i = 0; i < 1000; i++) {
		wal_tick();
		heartbeats(1);
	}
	assert_grew_less_than((size_t)1000 * 600, before);
	for (int i = 0; i < 100; i++) {
		for (int k = 0; k < 1000; k++) {
			wal_tick();
			heartbeats(2);
		}
		wal_begin_snapshot();
		wal_saved(0);
	}
	assert_grew_less_than(WAL_MAX_QUEUE / 2 * 3, before);
	assert_int_equal(wal_flushed_lsn(wal.wal), flushed);
	assert_true(wal_stats(wal.wal)->failing);
	atomic_store(&disk_sync_hangs, 0);
	wal_settle();
	assert_int_equal(wal_flushed_lsn(wal.wal), flushed);
	/* the snapshot that is in progress began while the queue was full, so the log becomes
	 * complete only with the next one */
	for (int i = 0; i < 2; i++) {
		assert_true(wal_wants_snapshot(wal.wal));
		wal_snapshot();
	}
	wal_push(1);
	wal_settle();
	assert_int_equal(wal_flushed_lsn(wal.wal), wal.newest);
	assert_false(wal_stats(wal.wal)->failing);
	wal_assert_recovers(0);
}

/* Returns 1 if connection `peer` has used up its share of the queue for message `m`. */
static int is_used(uint32_t peer, const struct msg *m, size_t pushes)
{
	const struct event ev = {.kind = EVENT_MESSAGE, .peer = peer, .msg = m};
	struct frames f;

	assert_int_equal(wire_encode(m, &f), PS_OK);
	int used = wal_share_is_used(wal.wal, &ev, &f, wal.key, pushes);
	frames_release(&f);
	return used;
}

static void hang_disk(void)
{
	wal_settle();
	atomic_store(&disk_sync_hangs, 1);
	wal_push(1);
	wal_flush(wal.wal);
}

static void assert_works_again(void)
{
	assert_false(wal_stats(wal.wal)->failing);
	atomic_store(&disk_sync_hangs, 0);
	wal_settle();
	assert_int_equal(wal_flushed_lsn(wal.wal), wal.newest);
	wal_assert_recovers(0);
}

/* Receive `n` heartbeats from connection `peer`, with the ids of 64 workers in turn. */
static void heartbeats_of_any(uint32_t peer, int n)
{
	struct msg m = {.type = MSG_HEARTBEAT, .heartbeat = {.stamp = wal.stamp}};

	m.heartbeat.stamp.incarnation = 77;
	for (int i = 0; i < n; i++) {
		m.heartbeat.stamp.worker = 1 + (uint32_t)i % 64;
		wal_receive(peer, &m);
	}
}

/* A5: while the disk hangs, a sender fills its share of the queue with pushes, and then with other
 * messages. Another connection still has its share. */
TEST_IN(a_sender_has_its_share_of_the_queue, wal_set_up, wal_tear_down)
{
	const size_t window = 8;
	struct msg push = fixture_push_ones(wal.stamp, 100);
	const struct msg m = {.type = MSG_HEARTBEAT, .heartbeat = {.stamp = wal.stamp}};
	const struct msg hello = fixture_hello("");

	hang_disk();
	wal_push(6);
	assert_false(is_used(9, &push, window));
	wal_push(1);
	assert_true(is_used(9, &push, window));
	assert_false(is_used(10, &push, window));
	heartbeats(100);
	assert_false(is_used(9, &m, window));
	for (int i = 0; i < 1000 && !is_used(9, &m, window); i++)
		heartbeats(100);
	assert_true(is_used(9, &m, window));
	assert_true(is_used(9, &hello, window));
	assert_false(is_used(10, &m, window));
	assert_false(is_used(10, &hello, window));
	assert_works_again();
	assert_false(is_used(9, &push, window));
	assert_false(is_used(9, &m, window));
}

/* A5: a sender uses up its own share, and not that of the workers whose ids its messages contain.
 * All connections of a key have one share together. */
TEST_IN(worker_ids_use_no_share_of_another_sender, wal_set_up, wal_tear_down)
{
	struct msg push = fixture_push_ones(wal.stamp, 100);
	const struct msg m = {.type = MSG_HEARTBEAT, .heartbeat = {.stamp = wal.stamp}};

	hang_disk();
	snprintf(wal.key, sizeof(wal.key), "%040d", 2);
	push.push.stamp.incarnation++;
	for (uint32_t peer = 20; peer < 28; peer++)
		wal_receive(peer, &push);
	for (uint32_t peer = 20; peer < 1020 && !is_used(28, &m, 8); peer++)
		heartbeats_of_any(peer, 128);
	assert_true(is_used(28, &push, 8));
	assert_true(is_used(28, &m, 8));
	for (int keys = 0; keys < 2; keys++) {
		wal.key[0] = '\0';
		if (keys)
			snprintf(wal.key, sizeof(wal.key), "%040d", 1);
		assert_false(is_used(9, &push, 8));
		assert_false(is_used(20, &push, 8));
		assert_false(is_used(9, &m, 8));
		assert_false(is_used(20, &m, 8));
	}
	wal.key[0] = '\0';
	assert_works_again();
}

/* A5: many connections send without end. Together they do not fill the queue, so the log goes on,
 * and another connection still has its share. */
TEST_IN(many_senders_do_not_fill_the_queue, wal_set_up, wal_tear_down)
{
	const struct msg m = {.type = MSG_HEARTBEAT, .heartbeat = {.stamp = wal.stamp}};

	hang_disk();
	for (int round = 0; round < 40; round++)
		for (uint32_t peer = 20; peer < 1020; peer++)
			if (!is_used(peer, &m, 8))
				heartbeats_of_any(peer, 1);
	assert_true(is_used(20, &m, 8));
	assert_false(is_used(9, &m, 8));
	assert_works_again();
}

/* While the log waits for the disk, a checkpoint becomes durable, with events that the log has not
 * written yet. If the workers got the acknowledgements of these events, they would send further
 * pushes, and more pushes of a correct worker than its push window would wait. */
TEST_IN(a_checkpoint_does_not_let_pushes_pile_up, wal_set_up, wal_tear_down)
{
	hang_disk();
	uint64_t before = wal_flushed_lsn(wal.wal);
	wal_push(7);
	wal_snapshot();
	assert_int_equal(wal_flushed_lsn(wal.wal), before);
	wal_push(1);
	assert_works_again();
}
