/*
 * test_server_checkpointer.c - a start restores the state in the newest checkpoint, and a failing
 * disk degrades the server without ending it (server/durability/checkpointer.h).
 */
#include <errno.h>
#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include "tests/device/store_double.h"
#include "tests/support/double_device.h"
#include "tests/support/run_fixture.h"
#include "tests/support/test.h"

/* ---- saving ------------------------------------------------------------------------------ */

TEST_IN(what_is_saved_comes_back, run_set_up, run_tear_down)
{
	size_t size, size_again;

	run_start("--model;fc:10");
	const struct run_id id = core_config(run_startup.core)->run;
	run_join(1000, 500);
	direct_push(&run_worker, (struct work){0, 3, 1}, 100, 0.5f, 0.5f);
	run_save(3);
	assert_int_equal(run_saved.rc, PS_OK);
	unsigned char *before = run_sections(&size);
	run_die();
	run_start("--model;fc:10");
	assert_true(run_startup.resumed);
	assert_memory_equal(&core_config(run_startup.core)->run, &id, sizeof(id));
	assert_int_equal(core_stats(run_startup.core)->version, 1);
	assert_int_equal(core_stats(run_startup.core)->images, 100);
	unsigned char *after = run_sections(&size_again);
	assert_int_equal(size, size_again);
	assert_memory_equal(before, after, size);
	free(before);
	free(after);
}

/* The core never computes weights that are not finite. If a bug makes weights non-finite, the
 * checkpointer must refuse to save them, and the last good checkpoint must stay in place. */
TEST_IN(weights_that_are_not_finite_are_not_saved, run_set_up, run_tear_down)
{
	static const float wild[] = {NAN, INFINITY, -INFINITY};

	run_start("--model;fc:10");
	capture_begin(&run_errors, STDERR_FILENO);
	for (uint64_t i = 0; i < 3; i++) {
		float *w = (float *)(uintptr_t)core_weights(run_startup.core), kept = w[7849];

		w[7849] = wild[i];
		run_save(2 + i);
		assert_int_not_equal(run_saved.rc, PS_OK);
		w[7849] = kept;
	}
	capture_end(&run_errors);
	assert_int_equal(checkpointer_stats(run_checkpointer)->saved, 1);
	assert_non_null(strstr(run_errors.text, "not finite"));
	run_die();
	run_start("--model;fc:10");
	/* the next generation is 2, because the directory contains only generation 1 */
	assert_int_equal(core_config(run_startup.core)->generation, 2);
}

static uv_sem_t gate;

static void wait_at_gate(uv_work_t *work)
{
	(void)work;
	uv_sem_wait(&gate);
}

static void went_through(uv_work_t *work, int status)
{
	(void)work;
	assert_int_equal(status, 0);
}

/* The checkpoint must contain the state at the call of checkpointer_start, no matter what happens
 * during the write. */
TEST_IN(a_snapshot_is_one_instant, run_set_up, run_tear_down)
{
	run_start("--model;vector:8;--optimizer;sgd;--lr;1");
	run_join(0, 0);
	direct_push(&run_worker, (struct work){0}, 0, 0, 1);
	/* keep the only thread of the pool busy, so that the write begins after the second push */
	uv_work_t before = {0};
	assert_int_equal(uv_sem_init(&gate, 0), 0);
	assert_int_equal(uv_queue_work(&run_loop, &before, wait_at_gate, went_through), 0);
	checkpointer_start(run_checkpointer, run_startup.core, 3);
	direct_push(&run_worker, (struct work){0}, 0, 0, 1);
	uv_sem_post(&gate);
	uv_run(&run_loop, UV_RUN_DEFAULT);
	uv_sem_destroy(&gate);
	assert_true(core_weights(run_startup.core)[0] == -2);
	run_die();
	run_start("--model;vector:8;--optimizer;sgd;--lr;1");
	assert_true(core_weights(run_startup.core)[0] == -1);
	assert_int_equal(core_stats(run_startup.core)->version, 1);
}

TEST_IN(a_held_snapshot_is_written_after_its_release, run_set_up, run_tear_down)
{
	run_start("--model;vector:8;--optimizer;sgd;--lr;1");
	run_join(0, 0);
	checkpointer_hold(run_checkpointer);
	checkpointer_start(run_checkpointer, run_startup.core, 3);
	direct_push(&run_worker, (struct work){0}, 0, 0, 1);
	uv_run(&run_loop, UV_RUN_DEFAULT);
	assert_true(checkpointer_busy(run_checkpointer));
	assert_int_not_equal(checkpointer_stats(run_checkpointer)->generation, 3);
	checkpointer_release(run_checkpointer);
	uv_run(&run_loop, UV_RUN_DEFAULT);
	assert_false(checkpointer_busy(run_checkpointer));
	run_die();
	run_start("--model;vector:8;--optimizer;sgd;--lr;1");
	/* 0, the version at the time when the checkpointer copied the weights */
	assert_int_equal(core_stats(run_startup.core)->version, 0);
}

TEST_IN(statistics_are_kept, run_set_up, run_tear_down)
{
	run_start("--model;fc:10");
	run_save(2);
	const struct checkpointer_stats *s = checkpointer_stats(run_checkpointer);
	assert_true(s->saved == 2 && s->failed == 0 && s->generation == 2 && !s->failing);
	assert_true(s->bytes > 2 * 4 * 7850 && s->seconds > 0);
}

/* ---- weights and state on a device ------------------------------------------------------- */

#define ON_DEVICE "--model;vector:5000;--optimizer;adam;--lr;0.1"

static struct double_device run_double;

static void start_on_device(int number, int defers)
{
	double_device_open(&run_double, cnnps_store_module(), number, 5000, 2);
	run_double.device.defers = defers;
	run_device = &run_double.device;
	run_start(ON_DEVICE);
	run_join(0, 0);
}

static void push_times(int n)
{
	for (int i = 0; i < n; i++)
		assert_non_null(direct_push(&run_worker, (struct work){0}, 0, 0, 1));
}

/* Kills the server, starts it again with the weights on the CPU, and compares the state of the
 * run. */
static void assert_resumes_with(unsigned char *expected, size_t size, uint64_t version)
{
	size_t size_again;

	run_die();
	double_device_close(&run_double);
	run_device = NULL;
	run_start(ON_DEVICE);
	assert_int_equal(core_stats(run_startup.core)->version, version);
	unsigned char *after = run_sections(&size_again);
	assert_int_equal(size, size_again);
	assert_memory_equal(expected, after, size);
	free(expected);
	free(after);
}

static void snapshot_during_updates(int defers)
{
	size_t size;

	start_on_device(0, defers);
	push_times(2);
	unsigned char *before = run_sections(&size);
	run_double.fetches = 0;
	store_double_hold(1);
	checkpointer_start(run_checkpointer, run_startup.core, 3);
	push_times(5);
	assert_int_equal(core_stats(run_startup.core)->version, 7);
	assert_int_equal(run_double.fetches, 0); /* no update has waited for a copy */
	store_double_hold(0);
	uv_run(&run_loop, UV_RUN_DEFAULT);
	assert_int_equal(run_saved.rc, PS_OK);
	assert_resumes_with(before, size, 2);
}

TEST_IN(updates_continue_while_a_device_gives_the_snapshot, run_set_up, run_tear_down)
{
	snapshot_during_updates(0);
}

TEST_IN(a_snapshot_has_the_weights_that_only_a_device_has, run_set_up, run_tear_down)
{
	snapshot_during_updates(1);
}

TEST_IN(each_snapshot_of_a_device_has_the_state_of_its_instant, run_set_up, run_tear_down)
{
	size_t size;

	start_on_device(0, 1);
	for (uint64_t g = 3; g < 6; g++) {
		push_times(3);
		run_save(g);
		assert_int_equal(run_saved.rc, PS_OK);
	}
	unsigned char *before = run_sections(&size);
	push_times(1);
	assert_resumes_with(before, size, 9);
}

TEST_IN(a_device_without_memory_for_a_copy_gives_the_same_snapshot, run_set_up, run_tear_down)
{
	size_t size;

	start_on_device(STORE_DOUBLE_NARROW, 1);
	push_times(2);
	unsigned char *before = run_sections(&size);
	run_double.fetches = 0;
	checkpointer_start(run_checkpointer, run_startup.core, 3);
	assert_true(run_double.fetches > 0);
	push_times(5);
	uv_run(&run_loop, UV_RUN_DEFAULT);
	assert_resumes_with(before, size, 2);
}

/* ---- disks that fail --------------------------------------------------------------------- */

static void limit_files(rlim_t bytes)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST_IN(a_full_disk_is_logged_once_and_recovers, run_set_up, run_tear_down)
{
	run_start("--model;fc:10");
	limit_files(1000); /* as on a full disk, a write beyond 1000 bytes of a file fails */
	capture_begin(&run_errors, STDERR_FILENO);
	for (uint64_t g = 2; g <= 5; g++) {
		checkpointer_start(run_checkpointer, run_startup.core, g);
		uv_run(&run_loop, UV_RUN_DEFAULT);
		assert_int_equal(run_saved.rc, PS_EIO);
	}
	limit_files(RLIM_INFINITY);
	capture_end(&run_errors);
	const struct checkpointer_stats *s = checkpointer_stats(run_checkpointer);
	assert_true(s->failing && s->failed == 4 && s->saved == 1 && s->generation == 1);
	assert_non_null(strstr(s->why, run_dir));
	assert_int_equal(count_lines(run_errors.text), 1);
	assert_non_null(strstr(run_errors.text, "checkpoint failed"));
	run_saved.calls = 0;
	log_set_level(LOG_INFO);
	capture_begin(&run_errors, STDERR_FILENO);
	run_save(6);
	run_save(7);
	capture_end(&run_errors);
	assert_false(s->failing);
	assert_string_equal(s->why, "");
	assert_int_equal(count_lines(run_errors.text), 1);
	assert_non_null(strstr(run_errors.text, "checkpoint works_again"));
	run_die();
	run_start("--model;fc:10"); /* the start must succeed in spite of a partly written file */
	assert_int_equal(core_config(run_startup.core)->generation, 8);
}

TEST_IN(a_start_on_a_full_disk_fails_before_it_serves, run_set_up, run_tear_down)
{
	struct err e;

	run_start("--model;fc:10");
	limit_files(1000);
	assert_int_equal(checkpointer_write(run_checkpointer, run_startup.core, 2, &e), PS_EIO);
	limit_files(RLIM_INFINITY);
	assert_non_null(strstr(e.text, run_dir));
}

TEST_IN(a_directory_that_vanished_is_an_error_of_that_save, run_set_up, run_tear_down)
{
	run_start("--model;fc:10");
	temp_dir_remove(run_dir);
	capture_begin(&run_errors, STDERR_FILENO);
	run_save(2);
	capture_end(&run_errors);
	assert_int_equal(run_saved.rc, PS_EIO);
	assert_true(checkpointer_stats(run_checkpointer)->failing);
	assert_int_equal(mkdir(run_dir, 0700), 0);
	run_save(3);
	assert_int_equal(run_saved.rc, PS_OK);
}

TEST_GROUP(run_with_one_thread, NULL)
