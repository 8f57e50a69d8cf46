/*
 * Proves that wal_replay() restores a core from a directory: the result has the exact bytes of the
 * core whose events the log contains.
 */
#include "tests/support/wal_fixture.h"
#include "tests/support/test.h"

/* ---- the log of one checkpoint -------------------------------------------------------------- */

static void log_file_path(uint64_t generation, char out[320])
{
	char name[32];

	snprintf(name, sizeof(name), "journal-%016llx", (unsigned long long)generation);
	temp_dir_path(wal.dir, name, out);
}

/* The newest checkpoint is damaged. The previous checkpoint and two log files must restore the same
 * bytes. */
TEST_IN(a_bad_checkpoint_costs_nothing, wal_set_up, wal_tear_down)
{
	char path[320];

	wal_push(3);
	wal_snapshot();
	wal_push(3);
	wal_settle();
	assert_int_equal(truncate(temp_dir_path(wal.dir, "ckpt-0000000000000002", path), 100), 0);
	wal_assert_recovers(0);
}

TEST_IN(a_torn_end_is_an_end, wal_set_up, wal_tear_down)
{
	char path[320];
	int rc;

	wal_push(4);
	wal_settle();
	log_file_path(1, path);
	assert_int_equal(wal_recovered_pushes(0, &rc), 4);
	assert_int_equal(truncate(path, (long)wal_stats(wal.wal)->bytes - 9), 0);
	assert_int_equal(wal_recovered_pushes(0, &rc), 3);
	assert_int_equal(rc, PS_OK);
}

TEST_IN(a_loss_in_the_middle_is_refused_unless_it_is_accepted, wal_set_up, wal_tear_down)
{
	char path[320];
	int rc;

	for (int i = 0; i < 6; i++) {
		wal_push(1);
		wal_settle();
	}
	log_file_path(1, path);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, "x", 1, 700), 1);
	close(fd);
	wal_recovered_pushes(0, &rc);
	assert_int_equal(rc, PS_ECHECKPOINT);
	int pushes = wal_recovered_pushes(1, &rc);
	assert_int_equal(rc, PS_OK);
	assert_in_range(pushes, 0, 5);
}

TEST_IN(a_log_file_of_another_start_is_refused, wal_set_up, wal_tear_down)
{
	struct wal_config config = {.loop = &wal.loop,
		.dir = wal.dir,
		.run = core_config(wal.f.core)->run,
		.term = 4711,
		.generation = 1,
		.done = wal_on_done};
	struct err e;
	int rc;

	wal_settle();
	wal_free(&wal.wal);
	assert_int_equal(wal_new(&wal.wal, &config, &e), PS_OK);
	wal_recovered_pushes(1, &rc);
	assert_int_equal(rc, PS_ECHECKPOINT);
}

/* ---- a checkpoint in the middle of an older log file ----------------------------------------- */

/* Let snapshots 2 to 4 fail, and write checkpoint 5. The log file that begins after snapshot 2
 * contains all later events. Returns the size of this file at the time of snapshot 5. */
static long continue_in_an_older_log_file(char path[320])
{
	wal_push(3);
	wal_failing_snapshots(3);
	wal_begin_snapshot();
	wal_settle();
	long place = (long)wal_stats(wal.wal)->bytes;
	wal_save(wal.f.saving);
	wal_saved(1);
	for (int i = 0; i < 4; i++) {
		wal_push(1);
		wal_settle();
	}
	assert_int_equal(wal_flushed_lsn(wal.wal), wal.newest);
	assert_int_equal(wal_count_files(), 2);
	log_file_path(2, path);
	return place;
}

TEST_IN(events_after_it_are_replayed, wal_set_up, wal_tear_down)
{
	char path[320];

	continue_in_an_older_log_file(path);
	wal_assert_recovers(0);
	assert_int_equal(truncate(temp_dir_path(wal.dir, "ckpt-0000000000000005", path), 100), 0);
	/* the newer checkpoints are gone, so the replay begins at checkpoint 1 and continues beyond
	 * the positions of snapshots 2 to 5 */
	wal_assert_recovers(0);
}

TEST_IN(events_after_it_may_be_torn, wal_set_up, wal_tear_down)
{
	char path[320];
	int rc, all;

	long place = continue_in_an_older_log_file(path);
	all = wal_recovered_pushes(0, &rc);
	for (long bytes = place + 500; bytes >= 0; bytes -= 100) {
		assert_int_equal(truncate(path, bytes), 0);
		int pushes = wal_recovered_pushes(0, &rc);
		assert_int_equal(rc, PS_OK);
		/* at most the 4 pushes after checkpoint 5 may be lost */
		assert_in_range(pushes, all - 4, all);
	}
}

/* Flip a bit in every 24th byte of the file, one byte at a time. After each flip, the replay must
 * either find all pushes or report a loss. */
static void assert_losses_are_reported(const char *path, long size, int all, int min)
{
	int rc, fd = open(path, O_RDWR | O_CLOEXEC);

	for (long at = 0; at < size; at += 24) {
		unsigned char byte, wrong;

		assert_int_equal(pread(fd, &byte, 1, at), 1);
		wrong = byte ^ 0x40;
		assert_int_equal(pwrite(fd, &wrong, 1, at), 1);
		int pushes = wal_recovered_pushes(0, &rc);
		assert_true(rc == PS_ECHECKPOINT || (rc == PS_OK && pushes == all));
		pushes = wal_recovered_pushes(1, &rc);
		assert_int_equal(rc, PS_OK);
		assert_in_range(pushes, min, all);
		assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	}
	close(fd);
}

TEST_IN(a_loss_before_these_events_is_reported, wal_set_up, wal_tear_down)
{
	char path[320], newest[320];
	int rc;

	long place = continue_in_an_older_log_file(path);
	int all = wal_recovered_pushes(0, &rc);
	assert_losses_are_reported(path, place + 200, all, all - 4);
	temp_dir_path(wal.dir, "ckpt-0000000000000005", newest);
	assert_int_equal(truncate(newest, 100), 0);
	assert_losses_are_reported(
		/* min is 0, because the replay begins at checkpoint 1 */
		path, place + 200, all, 0);
}

/* A checkpoint without a log file of its own may continue in an older file only if the same start
 * of the server wrote both. */
TEST_IN(a_log_file_of_an_earlier_start_is_not_used, wal_set_up, wal_tear_down)
{
	struct checkpoint c;
	struct err e;
	char path[320];

	continue_in_an_older_log_file(path);
	wal.f.core->cfg.term++; /* pretend that the next start ended before it created a log file */
	wal_save(6);
	assert_int_equal(checkpoint_read_newest(wal.dir, 0, &c, NULL, &e), PS_OK);
	assert_int_equal(c.generation, 6);
	assert_int_equal(wal_replay(wal.dir, &wal.f.cfg, &c, &e), PS_OK);
	checkpoint_release(&c);
}
