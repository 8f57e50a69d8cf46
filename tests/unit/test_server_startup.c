/*
 * test_server_startup.c - a start continues from the newest good checkpoint, and refuses runs that
 * it must not continue (server/durability/startup.h).
 */
#include <math.h>
#include "common/checkpoint.h"
#include "common/safetensors.h"
#include "tests/support/run_fixture.h"
#include "tests/support/test.h"

TEST_IN(every_start_has_a_higher_term, run_set_up, run_tear_down)
{
	for (uint64_t n = 1; n <= 4; n++) {
		run_start("--model;fc:10");
		assert_int_equal(run_term(), n);
		assert_int_equal(run_startup.resumed, n > 1);
		run_die();
	}
}

/* The checkpoints of terms 2 and 3 are lost, but the file TERM still contains the newest term. The
 * next start must take a higher term than this. */
TEST_IN(a_term_is_not_used_twice_when_checkpoints_are_lost, run_set_up, run_tear_down)
{
	for (int n = 0; n < 3; n++) {
		run_start("--model;fc:10");
		run_die();
	}
	char name[320];
	for (int g = 2; g <= 3; g++) {
		snprintf(name, sizeof(name), "%s/ckpt-%016x", run_dir, g);
		assert_int_equal(unlink(name), 0);
	}
	run_start("--model;fc:10");
	assert_int_equal(run_term(), 4);
	run_die();
	assert_int_equal(unlink(temp_dir_path(run_dir, "TERM", name)), 0);
	/* without the file TERM, the server takes the term from the checkpoint */
	run_start("--model;fc:10");
	assert_int_equal(run_term(), 5);
}

static void flip_a_byte(const char *name)
{
	char path[320];
	FILE *f = fopen(temp_dir_path(run_dir, name, path), "r+b");

	assert_non_null(f);
	assert_int_equal(fseek(f, -100, SEEK_END), 0);
	int byte = fgetc(f);
	assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
	fputc(byte ^ 1, f);
	assert_int_equal(fclose(f), 0);
}

TEST_IN(a_bad_checkpoint_gives_way_to_the_one_before, run_set_up, run_tear_down)
{
	run_start("--model;fc:10");
	run_save(2);
	run_die();
	flip_a_byte("ckpt-0000000000000002");
	capture_begin(&run_errors, STDERR_FILENO);
	run_start("--model;fc:10");
	capture_end(&run_errors);
	assert_true(run_startup.resumed);
	assert_int_equal(core_config(run_startup.core)->generation, 3);
	assert_non_null(strstr(run_errors.text, "0000000000000002"));
}

/* Save a checkpoint with NaN weights and valid checksums, as an older program or a program with a
 * bug might do. */
static void save_poisoned(uint64_t generation)
{
	struct checkpoint c = {.generation = generation, .n_sections = SNAPSHOT_SECTIONS};
	struct err e;

	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		struct checkpoint_section *s = &c.section[i];
		unsigned char *data;

		s->size = snapshot_size(run_startup.core, (enum snapshot_section)i);
		s->data = data = malloc(s->size + 1);
		assert_non_null(data);
		snprintf(s->name, sizeof(s->name), "%s", snapshot_names[i]);
		(void)snapshot_encode(
			run_startup.core, (enum snapshot_section)i, data, s->size, NULL);
		if (i == SNAPSHOT_WEIGHTS)
			memset(data + 4000, 0xff, 4);
	}
	assert_int_equal(checkpoint_write(run_dir, &c, &e), PS_OK);
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++)
		free((void *)(uintptr_t)c.section[i].data);
}

TEST_IN(refused_content_gives_way_to_the_generation_before, run_set_up, run_tear_down)
{
	run_start("--model;fc:10");
	run_join(1000, 500); /* run_join saves generation 2 */
	direct_push(&run_worker, (struct work){0, 3, 1}, 100, 0.5f, 0.5f);
	run_save(3);
	save_poisoned(4);
	save_poisoned(5);
	run_die();
	capture_begin(&run_errors, STDERR_FILENO);
	run_start("--model;fc:10");
	capture_end(&run_errors);
	assert_true(run_startup.resumed);
	assert_int_equal(core_stats(run_startup.core)->version, 1);
	assert_int_equal(core_config(run_startup.core)->generation, 6);
	assert_non_null(strstr(run_errors.text, "checkpoint 5 cannot be resumed"));
	assert_non_null(strstr(run_errors.text, "checkpoint 4 cannot be resumed"));
	assert_non_null(strstr(run_errors.text, "checkpoint fallback\" generation=3"));
	run_die();
	run_start("--model;fc:10"); /* the previous start has saved a valid checkpoint */
	assert_int_equal(core_config(run_startup.core)->generation, 7);
}

TEST_IN(no_usable_content_is_no_fresh_run, run_set_up, run_tear_down)
{
	run_start("--model;fc:10");
	for (uint64_t g = 2; g <= 4; g++)
		save_poisoned(g);
	run_die();
	capture_begin(&run_errors, STDERR_FILENO);
	run_start_must_fail("--model;fc:10", PS_ECHECKPOINT, "none of its checkpoints");
	capture_end(&run_errors);
	assert_non_null(strstr(run_errors.text, "checkpoint 4 cannot be resumed"));
	assert_non_null(strstr(run_errors.text, "checkpoint 2 cannot be resumed"));
}

/* If the options do not fit the newest checkpoint, the server must refuse to start. The server must
 * not try an older generation. */
TEST_IN(other_options_do_not_go_back_a_generation, run_set_up, run_tear_down)
{
	run_start("--model;fc:10;--max-workers;1");
	run_die();
	run_start("--model;fc:10");
	run_join(1000, 500);
	run_die();
	capture_begin(&run_errors, STDERR_FILENO);
	run_start_must_fail("--model;fc:10;--seed;9", PS_ECHECKPOINT, "--seed");
	capture_end(&run_errors);
	assert_null(strstr(run_errors.text, "fallback"));
}

TEST_IN(no_good_checkpoint_is_no_fresh_run, run_set_up, run_tear_down)
{
	run_start("--model;fc:10");
	run_die();
	flip_a_byte("ckpt-0000000000000001");
	capture_begin(&run_errors, STDERR_FILENO);
	run_start_must_fail("--model;fc:10", PS_ECHECKPOINT, run_dir);
	capture_end(&run_errors);
}

TEST_IN(another_run_is_refused_and_the_option_named, run_set_up, run_tear_down)
{
	static const char *const row[][2] = {
		{"--model;fc:11", "--model \"fc:10\""},
		{"--model;fc:10;--seed;2", "--seed 1, not 2: give the run's own value"},
		{"--model;fc:10;--batch-size;99", "--batch-size 100, not 99: "},
		{"--model;fc:10;--optimizer;sgd", "--optimizer rmsprop, not sgd: "},
		{"--model;fc:10;--mode;sync", "--mode downpour, not sync: "},
		{"--model;fc:10;--mode;sandblaster;--seed;3",
			"--mode downpour, not sandblaster; --seed 1, not 3: "},
		{"--model;fc:10;--delay-compensation;adaptive",
			"--delay-compensation none, not adaptive: "},
		{"--model;fc:10;--push;sum", "--push mean, not sum: "},
		{"--model;fc:10;--epochs;0", "--epochs 3, not 0: "},
		{"--model;fc:10;--metrics;accuracy,f1",
			"--metrics accuracy, not accuracy f1: give the run's own value"},
		{"--model;fc:10;--metrics;none;--seed;3",
			"--seed 1, not 3; --metrics accuracy, not none"},
	};

	run_start("--model;fc:10");
	run_die();
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		run_start_must_fail(row[i][0], PS_ECHECKPOINT, row[i][1]);
	/* succeeds, because these options may change */
	run_start("--model;fc:10;--lr;0.5;--max-workers;7");
	assert_true(run_startup.resumed);
	assert_int_equal(run_term(), 2); /* 2, because the refused starts have used up no term */
}

static void assert_norm_ratio(const char *options, double ratio)
{
	run_start(options);
	assert_true(fabs(core_config(run_startup.core)->limits.norm_ratio - ratio) < 1e-9);
	run_die();
}

TEST_IN(a_run_without_a_data_set_keeps_its_norm_ratio, run_set_up, run_tear_down)
{
	assert_norm_ratio("--model;vector:8", 100);
	assert_norm_ratio("--model;vector:8;--norm-ratio;0", 0);
	assert_norm_ratio("--model;vector:8", 0);
	assert_norm_ratio("--model;vector:8;--norm-ratio;7", 7);
	assert_norm_ratio("--model;vector:8", 7);
}

TEST_IN(a_second_start_is_refused_at_once, run_set_up, run_tear_down)
{
	struct startup second;
	struct err e;
	char pid[32];

	run_start("--model;fc:10");
	snprintf(pid, sizeof(pid), "%ld", (long)getpid());
	assert_int_equal(startup(&second, &run_options, &e), PS_ELOCKED);
	assert_non_null(strstr(e.text, pid));
	assert_null(second.memory);
	assert_int_equal(run_term(), 1);
}

TEST_IN(a_garbled_term_file_is_refused, run_set_up, run_tear_down)
{
	static const char *const texts[] = {"", "x\n", "12", "-1\n", "1 2\n",
		"18446744073709551615\n", "99999999999999999999999\n", "\n", "1\n\n"};

	run_start("--model;fc:10");
	run_die();
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		temp_dir_write(run_dir, "TERM", texts[i], strlen(texts[i]));
		run_start_must_fail("--model;fc:10", PS_ECHECKPOINT, "TERM");
	}
	temp_dir_write(run_dir, "TERM", "41\n", 3);
	run_start("--model;fc:10");
	assert_int_equal(run_term(), 42);
}

/* The generation after the highest possible one would be 0, and a checkpoint of generation 0 stops
 * the process (common/checkpoint.h, invariant 1). */
TEST_IN(a_generation_that_no_run_reaches_is_refused, run_set_up, run_tear_down)
{
	const char *const names[] = {"ckpt-ffffffffffffffff", "journal-fffffffffffffffe"};
	char path[320];

	run_start("--model;fc:10");
	run_die();
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		temp_dir_write(run_dir, names[i], "no checkpoint", 13);
		run_start_must_fail("--model;fc:10", PS_ECHECKPOINT, strchr(names[i], '-') + 1);
		assert_int_equal(unlink(temp_dir_path(run_dir, names[i], path)), 0);
	}
	run_start("--model;fc:10");
	assert_int_equal(run_term(), 2);
}

TEST_IN(a_checkpoint_of_something_else_is_refused, run_set_up, run_tear_down)
{
	const struct checkpoint c = {.generation = 7,
		.n_sections = 1,
		.section = {{.name = "hello", .data = "world", .size = 5}}};
	struct err e;

	assert_int_equal(checkpoint_write(run_dir, &c, &e), PS_OK);
	run_start_must_fail("--model;fc:10", PS_ECHECKPOINT, "7");
}

TEST_IN(first_weights_come_from_the_seed_or_a_file, run_set_up, run_tear_down)
{
	float w[7850], from_seed[7850];
	char path[320];
	struct err e;

	parse_options(&run_options, "--model;fc:10;--seed;3");
	start_core(&run_startup, &run_options);
	memcpy(from_seed, core_weights(run_startup.core), sizeof(from_seed));
	model_init(&run_options.model, 3, w);
	assert_memory_equal(from_seed, w, sizeof(w));
	startup_release(&run_startup);
	for (size_t i = 0; i < 7850; i++)
		w[i] = (float)i;
	temp_dir_path(run_dir, "w.safetensors", path);
	assert_int_equal(safetensors_write(path, &run_options.model, w, &e), PS_OK);
	snprintf(run_line, sizeof(run_line), "--model;fc:10;--init;%s", path);
	parse_options(&run_options, run_line);
	start_core(&run_startup, &run_options);
	assert_memory_equal(core_weights(run_startup.core), w, sizeof(w));
	startup_release(&run_startup);
	snprintf(run_line, sizeof(run_line), "--model;fc:11;--init;%s", path);
	parse_options(&run_options, run_line);
	assert_int_equal(startup(&run_startup, &run_options, &e), PS_EDATA);
}

TEST_GROUP(run_with_one_thread, NULL)
