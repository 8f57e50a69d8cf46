/*
 * test_server_upgrade.c - this release resumes the checkpoints of release 0.1.0 in
 * tests/fixtures/run-0.1.0 with the state that they contain. Damaged checkpoints do no harm, and
 * the server refuses a write-ahead log of 0.1.0 (server/durability/upgrade.h,
 * server/core/snapshot_v5.h).
 */
#include "server/durability/upgrade.h"
#include <math.h>
#include "common/checkpoint.h"
#include "common/le.h"
#include "common/mem.h"
#include "server/core/core_state.h"
#include "server/core/snapshot_v5.h"
#include "server/core/view.h"
#include "server/core/workers.h"
#include "server/durability/wal.h"
#include "tests/support/direct_worker.h"
#include "tests/support/test.h"

#define FIXTURES "tests/fixtures/run-0.1.0/"

struct fixture {
	const char *name, *file, *options;
	/* the expected values, copied from expected.json */
	uint64_t version, images, last_seq[3];
	uint32_t epoch;
};
enum { DOWNPOUR, SYNC, SYNC_SUM, LBFGS, DC, FIXTURE_COUNT };
static const struct fixture fixtures[FIXTURE_COUNT] = {
	[DOWNPOUR] = {"downpour", "ckpt-000000000000000b", "--optimizer;adagrad;--epochs;4", 208,
		41600, {204, 4}, 0},
	[SYNC] = {"sync", "ckpt-0000000000000004", "--mode;sync;--optimizer;momentum;--epochs;4",
		10, 3400, {8, 9}, 0},
	[SYNC_SUM] = {"sync-sum", "ckpt-0000000000000009",
		"--mode;sync;--optimizer;momentum;--push;sum;--epochs;4", 12, 7200, {11, 13, 12},
		0},
	[LBFGS] = {"lbfgs", "ckpt-0000000000000018",
		"--mode;sandblaster;--optimizer;lbfgs;--lbfgs-history;3;--epochs;9", 2, 115400,
		{75, 47}, 1},
	[DC] = {"dc", "ckpt-0000000000000055",
		"--mode;ssp;--optimizer;adam;--delay-compensation;adaptive;--epochs;4", 300, 60000,
		{209, 91}, 1},
};

static struct options options;
static struct checkpoint old;
static void *memory;
static float *weights;
static struct core *core;

/* Read checkpoint `i`, and prepare a start with its options and the options in `more`. */
static void open_fixture(int i, const char *more)
{
	const struct fixture *f = &fixtures[i];
	char text[512];
	struct err e;

	snprintf(text, sizeof(text),
		"--checkpoint-dir;/nowhere;--model;seed:1;--batch-size;200;--max-workers;9;%s%s%s",
		strstr(more, "--seed") ? "" : "--seed;7;", f->options, more);
	parse_options(&options, text);
	snprintf(text, sizeof(text), FIXTURES "%s/%s", f->name, f->file);
	assert_int_equal(checkpoint_read(text, &old, &e), PS_OK);
	memory = mem_lazy(core_bytes(&options.core));
	weights = mem_try(options.core.n_params, sizeof(float));
	assert_non_null(memory);
	assert_non_null(weights);
}

static void close_fixture(void)
{
	mem_lazy_free(memory, core_bytes(&options.core));
	free(weights);
	checkpoint_release(&old);
}

struct sections {
	const unsigned char *data[SNAPSHOT_SECTIONS];
	size_t size[SNAPSHOT_SECTIONS];
};

static struct sections old_sections(void)
{
	struct sections s;

	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		const struct checkpoint_section *found = checkpoint_find(&old, snapshot_names[i]);

		assert_true(found || SNAPSHOT_MAY_LACK(i));
		s.data[i] = found ? found->data : NULL;
		s.size[i] = found ? found->size : 0;
	}
	return s;
}

/* Rewrite the sections to the present format. new->data[0] is a block of exactly the computed size,
 * so that AddressSanitizer finds writes past its end. Returns the status of the rewrite. */
static int rewrite_sections(const struct sections *s, struct sections *new)
{
	size_t bytes = 0, measured[SNAPSHOT_SECTIONS];
	int rc = snapshot_v5_rewrite(s->data, s->size, &options.core, NULL, measured);

	if (rc)
		return rc;
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++)
		bytes += measured[i];
	unsigned char *at = malloc(bytes);
	assert_non_null(at);
	assert_int_equal(
		snapshot_v5_rewrite(s->data, s->size, &options.core, at, new->size), PS_OK);
	assert_memory_equal(new->size, measured, sizeof(measured));
	for (int i = 0; i < SNAPSHOT_SECTIONS; at += new->size[i++])
		new->data[i] = at;
	return PS_OK;
}

/* Rewrite the sections and decode the result, as a start does. Returns the status. */
static int resume_sections(const struct sections *s, const char **why)
{
	struct core_config cfg = options.core;
	struct sections new;
	int rc = rewrite_sections(s, &new);

	*why = "";
	if (rc)
		return rc;
	cfg.term = 2;
	cfg.generation = 1000;
	rc = snapshot_decode(memory, weights, &cfg, new.data, new.size, &core, why);
	free((void *)(uintptr_t) new.data[0]);
	return rc;
}

static void resume_fixture(void)
{
	const struct sections s = old_sections();
	const char *why;

	assert_int_equal(resume_sections(&s, &why), PS_OK);
}

/* ---- the restored state ---------------------------------------------------------------------- */

TEST(a_checkpoint_of_0_1_0_has_the_same_state)
{
	for (int i = 0; i < FIXTURE_COUNT; i++) {
		const struct fixture *f = &fixtures[i];
		struct work_view work;
		struct worker_view w;

		print_message("%s\n", f->name);
		open_fixture(i, "");
		resume_fixture();
		const struct sections s = old_sections();
		assert_memory_equal(
			core_weights(core), s.data[SNAPSHOT_WEIGHTS], s.size[SNAPSHOT_WEIGHTS]);
		assert_int_equal(core_stats(core)->version, f->version);
		assert_int_equal(core_training_epoch(core), f->epoch);
		assert_true(core_data_is_fixed(core));
		core_work(core, &work);
		assert_int_equal(work.images, f->images);
		for (uint32_t n = 0; n < 3; n++) {
			core_worker(core, n, &w);
			assert_int_equal(w.last_seq, f->last_seq[n]);
			assert_int_equal(w.state, f->last_seq[n] ? SESSION_DEAD : SESSION_FREE);
		}
		close_fixture();
	}
}

TEST(work_of_gone_workers_is_free)
{
	for (int i = 0; i < FIXTURE_COUNT; i++) {
		uint32_t count[BATCH_SHUT + 1] = {0};

		open_fixture(i, "");
		resume_fixture();
		int is_sync = options.core.training.mode == MODE_SYNC;
		for (uint32_t b = 0; b < core->leases.n_batches; b++)
			count[core->leases.batch[b]]++;
		assert_int_equal(count[BATCH_LEASED], 0);
		assert_int_equal(count[BATCH_FREE] > 0, !is_sync);
		assert_int_equal(count[BATCH_SHUT] > 0, is_sync);
		for (uint32_t n = 0; n < 3; n++) {
			assert_int_equal(core->worker[n].lease.grant.request, 0);
			assert_int_equal(core->worker[n].backups.n_held, 0);
		}
		close_fixture();
	}
}

/* ---- mode sync: the gradients of an unfinished step ------------------------------------------ */

static double real_at(const unsigned char *at)
{
	uint64_t bits = le64_get(at);
	double v;

	memcpy(&v, &bits, 8);
	return v;
}

static void put_real_at(unsigned char *at, double v)
{
	uint64_t bits;

	memcpy(&bits, &v, 8);
	le64_put(at, bits);
}

/* Check that the next step applies the same gradient as release 0.1.0 would: `factor` times the
 * stored sum. */
static void assert_same_step(double factor)
{
	const unsigned char *sum = old_sections().data[SNAPSHOT_OPTIM] + 32;
	float *mean = mem_try(options.core.n_params, sizeof(float));

	assert_non_null(mean);
	accumulator_mean(core, mean);
	for (size_t i = 0; i < options.core.n_params; i++) {
		float was = (float)(factor * real_at(sum + 8 * i));

		assert_memory_equal(&mean[i], &was, sizeof(float));
	}
	free(mean);
}

TEST(gradients_of_a_step_under_way_are_in_the_next_step)
{
	open_fixture(SYNC, "");
	resume_fixture();
	assert_int_equal(core->accumulator.pushes, 1);
	assert_same_step(1.0 / 200);
	/* unlike 0.1.0, this release counts the images of a step when the step ends */
	assert_int_equal(core_stats(core)->images, 3200);
	assert_int_equal(core_epoch(core, 0)->images, 3200);
	close_fixture();
	open_fixture(SYNC_SUM, "");
	resume_fixture();
	assert_int_equal(core->accumulator.pushes, 2);
	assert_same_step(1);
	close_fixture();
}

/* The sums of this test need all bits of a double, while a single gradient has only the bits of a
 * float. */
TEST(the_sum_of_many_gradients_is_exact)
{
	for (uint64_t pushes = 1; pushes <= 9; pushes++) {
		open_fixture(SYNC, "");
		unsigned char *optim =
			(unsigned char *)(uintptr_t)old_sections().data[SNAPSHOT_OPTIM];

		le64_put(optim, pushes);
		le64_put(optim + 8, 200 * pushes);
		put_real_at(optim + 16, 200.0 * (double)pushes);
		for (size_t i = 0; i < options.core.n_params; i++)
			put_real_at(optim + 32 + 8 * i, real_at(optim + 32 + 8 * i) * M_PI);
		resume_fixture();
		assert_int_equal(core->accumulator.pushes, pushes);
		assert_same_step(1 / (200.0 * (double)pushes));
		close_fixture();
	}
}

/* ---- options --------------------------------------------------------------------------------- */

static void assert_upgrade_refused(int i, const char *more, const char *option)
{
	const char *why;

	open_fixture(i, more);
	const struct sections s = old_sections();
	assert_int_equal(resume_sections(&s, &why), PS_EUSAGE);
	if (!strstr(why, option))
		fail_msg("\"%s\" does not name %s", why, option);
	close_fixture();
}

TEST(other_options_are_refused_by_name)
{
	assert_upgrade_refused(DOWNPOUR, ";--seed;8", "--seed");
	assert_upgrade_refused(DOWNPOUR, ";--push;sum", "--push");
	assert_upgrade_refused(DOWNPOUR, ";--validate;3", "--validate");
	assert_upgrade_refused(DOWNPOUR, ";--buffer-size;2", "--buffer-size");
	assert_upgrade_refused(DOWNPOUR, ";--delay-compensation;constant", "--delay-compensation");
	assert_upgrade_refused(LBFGS, ";--step-images;200", "--step-images");
}

/* Some options must not change when a run is resumed. For each of these options, snapshot_v5.c must
 * have the value that a run of release 0.1.0 had. */
TEST(each_option_that_must_stay_the_same_is_known)
{
	static const char known[] = " mode epochs batch-size seed optimizer push buffer-size "
				    "delay-compensation step-images lbfgs-history validate "
				    "aggregate ";

	for (size_t i = 0; i < config_n_rows; i++) {
		char name[64];

		if (!config_rows[i].name || config_rows[i].resume == RESUME_ANY)
			continue;
		snprintf(name, sizeof(name), " %s ", config_rows[i].name);
		if (!strstr(known, name))
			fail_msg("read_options of snapshot_v5.c does not set --%s",
				config_rows[i].name);
	}
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* Check that a core works that has accepted a damaged snapshot. */
static void assert_upgraded_works(void)
{
	const struct event tick = {.kind = EVENT_TICK};
	struct direct_worker w = {.core = core, .peer = 5, .now_ms = 1000};
	size_t bytes = 0;

	(void)direct_hello(&w, "ann", 60000, 10000);
	for (uint64_t now = 1000; now < 8000; now += 2000)
		core_step(core, &tick, now);
	for (int s = 0; s < SNAPSHOT_SECTIONS; s++)
		bytes += snapshot_size(core, (enum snapshot_section)s);
	assert_true(bytes > 0);
}

static int try_to_resume(const struct sections *s)
{
	const char *why;
	int rc = resume_sections(s, &why);

	if (rc == PS_OK)
		assert_upgraded_works();
	else
		assert_true(rc == PS_ECHECKPOINT || rc == PS_EUSAGE);
	return rc;
}

/* Returns the next length or byte that a test tries after `at`. Large sections are repetitive, so
 * after the first 4096 bytes the test tries only every 97th byte. */
static size_t next_place(size_t at)
{
	return at < 4096 ? at + 1 : at + 97;
}

TEST(every_cut_section_is_refused)
{
	for (int i = 0; i < FIXTURE_COUNT; i++) {
		open_fixture(i, "");
		for (int n = 0; n < SNAPSHOT_SESSIONS; n++) {
			struct sections s = old_sections();
			size_t size = s.size[n];
			const unsigned char *whole = s.data[n];

			for (size_t cut = 0; cut < size; cut = next_place(cut)) {
				unsigned char *part = malloc(cut);

				memcpy(part, whole, cut);
				s.data[n] = part;
				s.size[n] = cut;
				assert_int_equal(try_to_resume(&s), PS_ECHECKPOINT);
				free(part);
			}
		}
		close_fixture();
	}
}

TEST(every_longer_section_is_refused)
{
	open_fixture(SYNC, "");
	for (int n = 0; n < SNAPSHOT_SESSIONS; n++)
		for (size_t more = 1; more <= 8; more += 7) {
			struct sections s = old_sections();
			unsigned char *longer = calloc(1, s.size[n] + more);

			if (s.size[n])
				memcpy(longer, s.data[n], s.size[n]);
			s.data[n] = longer;
			s.size[n] += more;
			assert_int_equal(try_to_resume(&s), PS_ECHECKPOINT);
			free(longer);
		}
	close_fixture();
}

TEST(no_flipped_byte_does_harm)
{
	static const unsigned char masks[] = {1, 0x80, 0xff};
	uint32_t accepted = 0, refused = 0;

	for (int i = 0; i < FIXTURE_COUNT; i++) {
		open_fixture(i, "");
		const struct sections s = old_sections();
		for (int n = 0; n < SNAPSHOT_SECTIONS; n++)
			for (size_t at = 0; at < s.size[n]; at = next_place(at)) {
				unsigned char *byte = (unsigned char *)(uintptr_t)s.data[n] + at;
				unsigned char mask = masks[(at + at / 8) % sizeof(masks)];

				*byte ^= mask;
				if (try_to_resume(&s) == PS_OK)
					accepted++;
				else
					refused++;
				*byte ^= mask;
			}
		assert_int_equal(try_to_resume(&s), PS_OK);
		close_fixture();
	}
	print_message("%u accepted, %u refused\n", accepted, refused);
	assert_true(accepted > 500 && refused > 500);
}

/* ---- directories of 0.1.0 -------------------------------------------------------------------- */

static void copy_file(const char *fixture, const char *name)
{
	static unsigned char bytes[1 << 17];
	char path[320];

	snprintf(path, sizeof(path), FIXTURES "%s/%s", fixture, name);
	FILE *f = fopen(path, "rb");

	assert_non_null(f);
	size_t n = fread(bytes, 1, sizeof(bytes), f);
	assert_int_equal(fclose(f), 0);
	assert_in_range(n, 1, sizeof(bytes) - 1);
	temp_dir_write(temp_dir, name, bytes, n);
}

static int start_vector(const char *more, struct startup *run, struct err *e)
{
	char line[512];

	snprintf(line, sizeof(line),
		"--checkpoint-dir;%s;--model;vector:40;--optimizer;sgd;--max-workers;4%s", temp_dir,
		more);
	parse_options(&options, line);
	return startup(run, &options, e);
}

TEST_IN(a_log_of_0_1_0_is_refused_unless_its_loss_is_accepted, temp_dir_set_up, temp_dir_tear_down)
{
	struct startup run;
	struct err e = {0};

	copy_file("wal-killed", "ckpt-0000000000000002");
	copy_file("wal-killed", "journal-0000000000000002");
	assert_int_equal(start_vector("", &run, &e), PS_ECHECKPOINT);
	assert_non_null(strstr(e.text, "stop it with SIGTERM"));
	assert_non_null(strstr(e.text, "--accept-rollback"));
	assert_false(temp_dir_exists(temp_dir, "TERM"));
	assert_int_equal(start_vector(";--accept-rollback", &run, &e), PS_OK);
	/* the server continues from the checkpoint, without the log */
	assert_int_equal(core_stats(run.core)->version, 0);
	startup_release(&run);
}

TEST_IN(a_log_that_has_no_event_is_no_loss, temp_dir_set_up, temp_dir_tear_down)
{
	struct startup run;
	struct err e = {0};
	char path[320];

	copy_file("wal-killed", "ckpt-0000000000000002");
	copy_file("wal-killed", "journal-0000000000000002");
	assert_int_equal(
		truncate(temp_dir_path(temp_dir, "journal-0000000000000002", path), 64), 0);
	assert_int_equal(start_vector("", &run, &e), PS_OK);
	startup_release(&run);
}

TEST_IN(what_follows_the_last_checkpoint_of_a_drain_is_no_loss, temp_dir_set_up, temp_dir_tear_down)
{
	struct startup run;
	struct err e = {0};

	copy_file("wal-stopped", "ckpt-0000000000000003");
	copy_file("wal-stopped", "journal-0000000000000003");
	assert_int_equal(start_vector("", &run, &e), PS_OK);
	assert_true(run.resumed);
	assert_int_equal(core_stats(run.core)->version, 30);
	startup_release(&run);
}

/* Release 0.1.0 compared no gradients of different workers. */
TEST_IN(a_run_of_0_1_0_without_a_data_set_compares_no_norms, temp_dir_set_up, temp_dir_tear_down)
{
	struct startup run;
	struct err e = {0};

	copy_file("wal-stopped", "ckpt-0000000000000003");
	assert_int_equal(start_vector("", &run, &e), PS_OK);
	assert_true(core_config(run.core)->limits.norm_ratio <= 0);
	startup_release(&run);
}

/* The replay of a log must take the steps of the release that wrote it. Release 0.2.0 compared no
 * gradients of different workers and aggregated them with their mean. */
TEST_IN(a_log_of_0_2_0_is_replayed_with_its_rules, temp_dir_set_up, temp_dir_tear_down)
{
	struct core_config then;
	struct err e = {0};
	char text[512];

	copy_file("../run-0.2.0/wal-killed", "ckpt-0000000000000002");
	copy_file("../run-0.2.0/wal-killed", "journal-0000000000000002");
	snprintf(text, sizeof(text),
		"--checkpoint-dir;%s;--model;seed:1;--seed;7;--batch-size;2000;--max-workers;3;"
		"--epochs;4;--buffer-size;3;--aggregate;median",
		temp_dir);
	parse_options(&options, text);
	assert_true(options.core.limits.norm_ratio > 0 && options.core.limits.statistics_ratio > 0);
	assert_int_equal(
		checkpoint_read(temp_dir_path(temp_dir, "ckpt-0000000000000002", text), &old, &e),
		PS_OK);
	assert_int_equal(wal_replay(temp_dir, &options.core, &old, &e), PS_OK);
	const struct checkpoint_section *live =
		checkpoint_find(&old, snapshot_names[SNAPSHOT_SESSIONS]);
	then = options.core;
	assert_int_equal(snapshot_config(live->data, live->size, &then), PS_OK);
	assert_true(then.limits.norm_ratio <= 0 && then.limits.statistics_ratio <= 0);
	assert_int_equal(then.push.aggregate, AGGREGATE_MEAN);
	checkpoint_release(&old);
}
