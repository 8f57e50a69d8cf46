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
	wal_saved(0); /* the snapshot has failed */
	wal_push(3);
	wal.f.now_ms += core_config(wal.f.core)->checkpoint.interval_ms;
	wal_tick();
	assert_int_not_equal(wal.f.saving, 0);
	wal_push(1);
	wal_settle();
	wal_assert_recovers(0);
}

/* The disk is full, or fdatasync fails. The flushed LSN must not advance until a snapshot is
 * durable. When a snapshot is durable, all records count as flushed, and the next log file
 * works. */
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
		/* a failed log keeps no records in memory */
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

/* The log fails while a snapshot is not yet on the disk. The records after the snapshot belong in
 * the log file that begins after this snapshot or, if earlier snapshots failed, in a file that
 * began after one of those. When the snapshot is durable, the events before it are safe. Later
 * events wait for the next snapshot. */
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
 * files must not accumulate. */
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
	/* the flushed LSN stays, because the log has a gap */
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

/* While fdatasync hangs, days of ticks and heartbeats must use bounded memory. The checkpoints
 * fail, too, so they free no memory. When the disk answers again, the next checkpoint contains the
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
	/* the snapshot in progress began while the queue was full, so a second one is needed */
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

/* A5: while the disk hangs, a sender fills its share of the queue with pushes, and then with other
 * messages. Another worker, and messages without a worker id, still have their shares. */
TEST_IN(a_sender_has_its_share_of_the_queue, wal_set_up, wal_tear_down)
{
	const size_t window = 2000;
	struct msg own = {.type = MSG_PUSH, .push = {.stamp = wal.stamp}}, other = own;
	const struct msg hello = {.type = MSG_HELLO};

	other.push.stamp.worker++;
	wal_settle();
	atomic_store(&disk_sync_hangs, 1);
	wal_push(1);
	wal_flush(wal.wal);
	assert_false(wal_share_is_used(wal.wal, &own, window));
	wal_push(40);
	assert_true(wal_share_is_used(wal.wal, &own, window));
	assert_false(wal_share_is_used(wal.wal, &other, window));
	own = (struct msg){.type = MSG_HEARTBEAT, .heartbeat = {.stamp = wal.stamp}};
	other = own;
	other.heartbeat.stamp.worker++;
	heartbeats(100);
	assert_false(wal_share_is_used(wal.wal, &own, window));
	for (int i = 0; i < 1000 && !wal_share_is_used(wal.wal, &own, window); i++)
		heartbeats(100);
	assert_true(wal_share_is_used(wal.wal, &own, window));
	assert_false(wal_stats(wal.wal)->failing);
	assert_false(wal_share_is_used(wal.wal, &other, window));
	assert_false(wal_share_is_used(wal.wal, &hello, window));
	atomic_store(&disk_sync_hangs, 0);
	wal_settle();
	assert_false(wal_share_is_used(wal.wal, &own, window));
	wal_assert_recovers(0);
}
