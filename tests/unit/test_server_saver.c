/*
 * test_server_saver.c - what is saved comes back, a disk that fails is a state and not an end, and
 * a start refuses what it must not continue (server/saver.h, server/restore.h).
 */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include "common/checkpoint.h"
#include "common/safetensors.h"
#include "server_lab.h"
#include "server/core/image.h"
#include "server/saver.h"

static struct options options;
static struct restored run;
static struct lab_worker worker;
static struct saver *saver;
static uv_loop_t loop;
static struct capture errors;
static char dir[64], line[1024];

static struct {
	int calls, rc;
	uint64_t generation;
} done;

static void on_done(void *arg, uint64_t generation, int rc)
{
	assert_ptr_equal(arg, &done);
	done.calls++;
	done.rc = rc;
	done.generation = generation;
}

static int set_up(void **state)
{
	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	memset(&done, 0, sizeof(done));
	scratch_make(dir);
	return uv_loop_init(&loop);
}

static int tear_down(void **state)
{
	(void)state;
	saver_free(&saver);
	assert_null(saver);
	restore_release(&run);
	scratch_remove(dir);
	return uv_loop_close(&loop);
}

/* A start with these options and this directory, up to where the port would be bound. */
static void start(const char *more)
{
	struct err e;

	snprintf(line, sizeof(line), "--checkpoint-dir;%s;--warm-updates;0;%s", dir, more);
	lab_options(&options, line);
	lab_restore(&run, &options);
	worker = (struct lab_worker){.core = run.core, .peer = 5, .now_ms = 1000};
	assert_int_equal(saver_new(&saver, &loop, dir, on_done, &done), PS_OK);
	assert_int_equal(
		saver_write(saver, run.core, core_config(run.core)->generation, &e), PS_OK);
}

/* The process is gone: no file is written, the lock is free. */
static void die(void)
{
	saver_free(&saver);
	restore_release(&run);
}

static void start_must_fail(const char *more, int status, const char *named)
{
	struct err e = {0};

	snprintf(line, sizeof(line), "--checkpoint-dir;%s;--warm-updates;0;%s", dir, more);
	lab_options(&options, line);
	assert_int_equal(restore(&run, &options, &e), status);
	if (!strstr(e.text, named))
		fail_msg("\"%s\" does not name \"%s\"", e.text, named);
}

static void save(uint64_t generation)
{
	saver_start(saver, run.core, generation);
	assert_true(saver_busy(saver));
	assert_int_equal(done.calls, 0); /* never from inside */
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_false(saver_busy(saver));
	assert_int_equal(done.calls, 1);
	assert_int_equal(done.generation, generation);
	done.calls = 0;
}

/* Join as the core wants it: its WELCOME comes when a snapshot holds its incarnation. */
static void join(uint32_t n_train, uint32_t n_test)
{
	assert_null(lab_hello(&worker, "ann", n_train, n_test));
	const struct effect *e = core_effect(run.core, 0);
	assert_non_null(e);
	assert_int_equal(e->kind, EFFECT_SNAPSHOT);
	const struct event durable = {.kind = EVENT_DURABLE, .generation = e->generation};
	save(e->generation);
	core_step(run.core, &durable, 1000);
	const struct msg *welcome = lab_sent(run.core, MSG_WELCOME);
	assert_non_null(welcome);
	worker.stamp = welcome->welcome.stamp;
}

static unsigned char *image(size_t *size)
{
	unsigned char *bytes = NULL;

	*size = 0;
	for (int i = IMAGE_LEDGER; i < IMAGE_LIVE; i++) { /* RUN counts its recoveries */
		size_t n = image_size(run.core, (enum image_section)i);
		bytes = realloc(bytes, *size + n + 1);
		assert_non_null(bytes);
		image_write(run.core, (enum image_section)i, bytes + *size);
		*size += n;
	}
	return bytes;
}

static uint64_t epoch(void)
{
	return core_config(run.core)->epoch;
}

/* ---- saving ------------------------------------------------------------------------------ */

static void what_is_saved_comes_back(void **state)
{
	size_t size, size_again;

	(void)state;
	start("--model;fc:10");
	const struct run_id id = core_config(run.core)->run;
	join(1000, 500);
	lab_push(&worker, (struct work){0, 3, 1}, 100, 0.5f, 0.5f);
	save(3);
	assert_int_equal(done.rc, PS_OK);
	unsigned char *before = image(&size);
	die();
	start("--model;fc:10");
	assert_true(run.resumed);
	assert_memory_equal(&core_config(run.core)->run, &id, sizeof(id));
	assert_int_equal(core_stats(run.core)->version, 1);
	assert_int_equal(core_stats(run.core)->images, 100);
	unsigned char *after = image(&size_again);
	assert_int_equal(size, size_again);
	assert_memory_equal(before, after, size);
	free(before);
	free(after);
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

/* The image is of the instant of saver_start, whatever happens while it is written. */
static void a_snapshot_is_one_instant(void **state)
{
	(void)state;
	start("--model;vector:8;--optimizer;sgd;--lr;1");
	join(0, 0);
	lab_push(&worker, (struct work){0}, 0, 0, 1);
	uv_work_t before = {0}; /* the pool's one thread writes only after the second push */
	assert_int_equal(uv_sem_init(&gate, 0), 0);
	assert_int_equal(uv_queue_work(&loop, &before, wait_at_gate, went_through), 0);
	saver_start(saver, run.core, 3);
	lab_push(&worker, (struct work){0}, 0, 0, 1);
	uv_sem_post(&gate);
	uv_run(&loop, UV_RUN_DEFAULT);
	uv_sem_destroy(&gate);
	assert_true(core_weights(run.core)[0] == -2);
	die();
	start("--model;vector:8;--optimizer;sgd;--lr;1");
	assert_true(core_weights(run.core)[0] == -1);
	assert_int_equal(core_stats(run.core)->version, 1);
}

static void statistics_are_kept(void **state)
{
	(void)state;
	start("--model;fc:10");
	save(2);
	const struct saver_stats *s = saver_stats(saver);
	assert_true(s->saved == 2 && s->failed == 0 && s->generation == 2 && !s->failing);
	assert_true(s->bytes > 2 * 4 * 7850 && s->seconds > 0);
}

/* ---- disks that fail --------------------------------------------------------------------- */

static void limit_files(rlim_t bytes)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_full_disk_is_said_once_and_gets_over(void **state)
{
	(void)state;
	start("--model;fc:10");
	limit_files(1000); /* after that many bytes a write fails, like on a full disk */
	capture_begin(&errors, STDERR_FILENO);
	for (uint64_t g = 2; g <= 5; g++) {
		saver_start(saver, run.core, g);
		uv_run(&loop, UV_RUN_DEFAULT);
		assert_int_equal(done.rc, PS_EIO);
	}
	limit_files(RLIM_INFINITY);
	capture_end(&errors);
	const struct saver_stats *s = saver_stats(saver);
	assert_true(s->failing && s->failed == 4 && s->saved == 1 && s->generation == 1);
	assert_non_null(strstr(s->why, dir));
	assert_int_equal(count_lines(errors.text), 1);
	assert_non_null(strstr(errors.text, "checkpoint_failed"));
	done.calls = 0;
	log_set_level(LOG_INFO);
	capture_begin(&errors, STDERR_FILENO);
	save(6);
	save(7);
	capture_end(&errors);
	assert_false(s->failing);
	assert_string_equal(s->why, "");
	assert_int_equal(count_lines(errors.text), 1);
	assert_non_null(strstr(errors.text, "checkpoints_work_again"));
	die();
	start("--model;fc:10"); /* and nothing half-written is in the way */
	assert_int_equal(core_config(run.core)->generation, 8);
}

static void a_start_on_a_full_disk_fails_before_it_serves(void **state)
{
	struct err e;

	(void)state;
	start("--model;fc:10");
	limit_files(1000);
	assert_int_equal(saver_write(saver, run.core, 2, &e), PS_EIO);
	limit_files(RLIM_INFINITY);
	assert_non_null(strstr(e.text, dir));
}

static void a_directory_that_vanished_is_an_error_of_that_save(void **state)
{
	(void)state;
	start("--model;fc:10");
	scratch_remove(dir);
	capture_begin(&errors, STDERR_FILENO);
	save(2);
	capture_end(&errors);
	assert_int_equal(done.rc, PS_EIO);
	assert_true(saver_stats(saver)->failing);
	assert_int_equal(mkdir(dir, 0700), 0);
	save(3);
	assert_int_equal(done.rc, PS_OK);
}

/* ---- starts ------------------------------------------------------------------------------ */

static void every_start_has_a_higher_epoch(void **state)
{
	(void)state;
	for (uint64_t n = 1; n <= 4; n++) {
		start("--model;fc:10");
		assert_int_equal(epoch(), n);
		assert_int_equal(run.resumed, n > 1);
		die();
	}
}

/* The checkpoints that knew of epochs 2 and 3 are gone; the file EPOCH still knows. */
static void an_epoch_is_not_used_twice_when_checkpoints_are_lost(void **state)
{
	(void)state;
	for (int n = 0; n < 3; n++) {
		start("--model;fc:10");
		die();
	}
	char name[320];
	for (int g = 2; g <= 3; g++) {
		snprintf(name, sizeof(name), "%s/ckpt-%016x", dir, g);
		assert_int_equal(unlink(name), 0);
	}
	start("--model;fc:10");
	assert_int_equal(epoch(), 4);
	die();
	assert_int_equal(unlink(scratch_path(dir, "EPOCH", name)), 0);
	start("--model;fc:10"); /* the other way round the checkpoint knows */
	assert_int_equal(epoch(), 5);
}

static void flip_a_byte(const char *name)
{
	char path[320];
	FILE *f = fopen(scratch_path(dir, name, path), "r+b");

	assert_non_null(f);
	assert_int_equal(fseek(f, -100, SEEK_END), 0);
	int byte = fgetc(f);
	assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
	fputc(byte ^ 1, f);
	assert_int_equal(fclose(f), 0);
}

static void a_bad_checkpoint_gives_way_to_the_one_before(void **state)
{
	(void)state;
	start("--model;fc:10");
	save(2);
	die();
	flip_a_byte("ckpt-0000000000000002");
	capture_begin(&errors, STDERR_FILENO);
	start("--model;fc:10");
	capture_end(&errors);
	assert_true(run.resumed);
	assert_int_equal(core_config(run.core)->generation, 3);
	assert_non_null(strstr(errors.text, "0000000000000002"));
}

static void no_good_checkpoint_is_no_fresh_run(void **state)
{
	(void)state;
	start("--model;fc:10");
	die();
	flip_a_byte("ckpt-0000000000000001");
	capture_begin(&errors, STDERR_FILENO);
	start_must_fail("--model;fc:10", PS_ECHECKPOINT, dir);
	capture_end(&errors);
}

static void another_run_is_refused_and_the_option_named(void **state)
{
	static const char *const row[][2] = {
		{"--model;fc:11", "--model \"fc:10\""},
		{"--model;fc:10;--seed;2", "--seed"},
		{"--model;fc:10;--batch;99", "--batch"},
		{"--model;fc:10;--optimizer;sgd", "--optimizer"},
	};

	(void)state;
	start("--model;fc:10");
	die();
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		start_must_fail(row[i][0], PS_ECHECKPOINT, row[i][1]);
	start("--model;fc:10;--lr;0.5;--max-workers;7"); /* these may change */
	assert_true(run.resumed);
	assert_int_equal(epoch(), 2); /* refused starts have not used any up */
}

static void a_second_start_is_refused_at_once(void **state)
{
	struct restored second;
	struct err e;
	char pid[32];

	(void)state;
	start("--model;fc:10");
	snprintf(pid, sizeof(pid), "%ld", (long)getpid());
	assert_int_equal(restore(&second, &options, &e), PS_ELOCKED);
	assert_non_null(strstr(e.text, pid));
	assert_null(second.memory);
	assert_int_equal(epoch(), 1);
}

static void a_garbled_epoch_file_is_refused(void **state)
{
	static const char *const texts[] = {"", "x\n", "12", "-1\n", "1 2\n",
		"18446744073709551615\n", "99999999999999999999999\n", "\n", "1\n\n"};

	(void)state;
	start("--model;fc:10");
	die();
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		scratch_write(dir, "EPOCH", texts[i], strlen(texts[i]));
		start_must_fail("--model;fc:10", PS_ECHECKPOINT, "EPOCH");
	}
	scratch_write(dir, "EPOCH", "41\n", 3);
	start("--model;fc:10");
	assert_int_equal(epoch(), 42);
}

static void a_checkpoint_of_something_else_is_refused(void **state)
{
	const struct checkpoint c = {.generation = 7,
		.n_sections = 1,
		.section = {{.name = "hello", .data = "world", .size = 5}}};
	struct err e;

	(void)state;
	assert_int_equal(checkpoint_write(dir, &c, &e), PS_OK);
	start_must_fail("--model;fc:10", PS_ECHECKPOINT, "7");
}

static void first_weights_come_from_the_seed_or_a_file(void **state)
{
	float w[7850], from_seed[7850];
	char path[320];
	struct err e;

	(void)state;
	lab_options(&options, "--model;fc:10;--seed;3");
	lab_restore(&run, &options);
	memcpy(from_seed, core_weights(run.core), sizeof(from_seed));
	model_init(&options.model, 3, w);
	assert_memory_equal(from_seed, w, sizeof(w));
	restore_release(&run);
	for (size_t i = 0; i < 7850; i++)
		w[i] = (float)i;
	scratch_path(dir, "w.safetensors", path);
	assert_int_equal(safetensors_write(path, &options.model, w, &e), PS_OK);
	snprintf(line, sizeof(line), "--model;fc:10;--init;%s", path);
	lab_options(&options, line);
	lab_restore(&run, &options);
	assert_memory_equal(core_weights(run.core), w, sizeof(w));
	restore_release(&run);
	snprintf(line, sizeof(line), "--model;fc:11;--init;%s", path);
	lab_options(&options, line);
	assert_int_equal(restore(&run, &options, &e), PS_EDATA);
}

int main(void)
{
	setenv("UV_THREADPOOL_SIZE", "1", 1);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_is_saved_comes_back, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_snapshot_is_one_instant, set_up, tear_down),
		cmocka_unit_test_setup_teardown(statistics_are_kept, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_full_disk_is_said_once_and_gets_over, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_start_on_a_full_disk_fails_before_it_serves, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_directory_that_vanished_is_an_error_of_that_save, set_up, tear_down),
		cmocka_unit_test_setup_teardown(every_start_has_a_higher_epoch, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			an_epoch_is_not_used_twice_when_checkpoints_are_lost, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_bad_checkpoint_gives_way_to_the_one_before, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			no_good_checkpoint_is_no_fresh_run, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			another_run_is_refused_and_the_option_named, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_second_start_is_refused_at_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_garbled_epoch_file_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_checkpoint_of_something_else_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			first_weights_come_from_the_seed_or_a_file, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
