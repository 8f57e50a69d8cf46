/*
 * Proves the promises of later_epochs.h about replayed pushes of a later epoch. In these tests, a
 * crash has lost the end of an epoch and the beginning of the next one, and the workers return in
 * any order.
 */
#include <math.h>
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

/* Returns a configuration with three epochs of 4 batches. The last batch of an epoch has 5
 * images. */
static struct core_config training_in_mode(enum mode mode)
{
	struct core_config cfg = fixture_training();

	cfg.training.mode = mode;
	cfg.training.epochs = 3;
	return cfg;
}

/* Start a server with two workers, and restart it from a snapshot without pushes. The two workers
 * return, each with `n` pushes to replay. */
static void crash_after_pushes(
	struct core_fixture *f, struct core_config cfg, struct stamp s[2], uint64_t n)
{
	fixture_open(f, cfg);
	for (uint32_t i = 0; i < 2; i++)
		s[i] = fixture_join(f, 9 + i, "");
	fixture_restart(f);
	for (uint32_t i = 0; i < 2; i++)
		s[i] = fixture_come_back(f, 9 + i, s[i], n);
}

static struct msg replay_of(struct stamp s, uint64_t seq, uint32_t epoch, uint32_t first)
{
	struct msg m = fixture_batch(s, seq, epoch, first, 1);

	m.push.verdict = VERDICT_OK;
	m.push.base_version = 2 * seq;
	return m;
}

static void taken(struct core_fixture *f, uint32_t i, struct stamp s, uint64_t seq, uint32_t epoch,
	uint32_t first)
{
	struct msg m = replay_of(s, seq, epoch, first);

	fixture_applied(f, 9 + i, &m);
}

static void assert_images(const struct core_fixture *f, uint64_t first, uint64_t second)
{
	assert_int_equal(core_epoch(f->core, 0)->images, first);
	assert_int_equal(core_epoch(f->core, 1)->images, second);
}

TEST(replays_of_a_lone_worker_have_the_age_that_they_had)
{
	struct core_config cfg = training_in_mode(MODE_DOWNPOUR);
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	fixture_restart(&f); /* the snapshot lacks the four pushes below */
	s = fixture_come_back(&f, 9, s, 4);
	for (uint64_t seq = 1; seq <= 4; seq++) {
		struct msg m = fixture_batch(s, seq, 0, (uint32_t)seq - 1, 1);

		m.push.verdict = VERDICT_OK;
		m.push.base_version = seq - 1;
		m.push.base_term = f.cfg.term - 1;
		fixture_applied(&f, 9, &m);
	}
	assert_int_equal(core_stats(f.core)->staleness_sum, 0);
	fixture_close(&f);
}

/* The first worker replays two batches of the next epoch before the second worker completes the
 * current epoch. again = 1: the server restarts between these replays. */
static void counts_at_once(enum mode mode, uint32_t buffer_size, int again)
{
	struct core_config cfg = training_in_mode(mode);
	struct core_fixture f;
	struct stamp s[2];

	cfg.push.buffer_size = buffer_size;
	crash_after_pushes(&f, cfg, s, 4);
	taken(&f, 0, s[0], 1, 0, 0);
	taken(&f, 0, s[0], 2, 0, 1);
	taken(&f, 0, s[0], 3, 1, 0);
	taken(&f, 0, s[0], 4, 1, 2);
	assert_int_equal(core_training_epoch(f.core), 0);
	assert_int_equal(core_epoch(f.core, 1)->images, 20);
	if (again) {
		fixture_restart(&f);
		s[0] = fixture_come_back(&f, 9, s[0], 4);
		s[1] = fixture_come_back(&f, 10, s[1], 4);
	}
	taken(&f, 1, s[1], 1, 0, 2);
	taken(&f, 1, s[1], 2, 0, 3);
	assert_int_equal(core_training_epoch(f.core), 1);
	assert_images(&f, 35, 20);
	/* rejected, because another push of this batch has already counted */
	struct msg m = replay_of(s[1], 3, 1, 0);
	fixture_rejected(&f, 10, &m, REJECT_WORK);
	taken(&f, 1, s[1], 4, 1, 1);
	/* in sync this batch counts only after the evaluation of the first epoch */
	m = fixture_batch(s[1], 5, 1, 3, 1);
	if (mode == MODE_DOWNPOUR) {
		m.push.base_version = core_stats(f.core)->version;
		fixture_applied(&f, 10, &m);
		assert_images(&f, 35, 35);
	}
	fixture_close(&f);
}

TEST(an_accepted_push_of_the_next_epoch_counts_at_once)
{
	counts_at_once(MODE_DOWNPOUR, 1, 0);
	counts_at_once(MODE_SSP, 1, 0);
	counts_at_once(MODE_EASGD, 1, 0);
	counts_at_once(MODE_SYNC, 1, 0);
}

TEST(an_accepted_push_of_the_next_epoch_counts_in_a_buffer)
{
	counts_at_once(MODE_DOWNPOUR, 3, 0);
}

TEST(later_replays_survive_another_crash)
{
	counts_at_once(MODE_DOWNPOUR, 1, 1);
	counts_at_once(MODE_DOWNPOUR, 3, 1);
	counts_at_once(MODE_SYNC, 1, 1);
}

/* Workers may replay all batches of later epochs before the current epoch is trained and evaluated
 * again. Workers do not retain the results of evaluations, so they evaluate again. */
TEST(whole_later_epochs_may_be_replayed)
{
	struct core_fixture f;
	struct stamp s[2];

	crash_after_pushes(&f, training_in_mode(MODE_DOWNPOUR), s, 8);
	for (uint32_t i = 0; i < 8; i++)
		taken(&f, 0, s[0], 1 + i, 1 + i / 4, i % 4);
	assert_int_equal(core_training_epoch(f.core), 0);
	for (uint32_t i = 0; i < 4; i++)
		taken(&f, 1, s[1], 1 + i, 0, i);
	assert_int_equal(core_training_epoch(f.core), 1);
	assert_images(&f, 35, 35);
	fixture_close(&f);
}

/* Replay a push of the next epoch in sync. The replayed push ends the current step, and then makes
 * a step alone. Each step multiplies the weights by about a million. Returns the reason for which
 * the core rejects the push, or REJECT_NONE. */
static enum reject after_two_steps(float weight)
{
	struct core_config cfg = training_in_mode(MODE_SYNC);
	struct stamp s[2];
	struct core_fixture f;

	cfg.rate.lr = 1e6;
	cfg.optim.weight_decay = 1;
	fixture_open(&f, cfg);
	for (uint32_t i = 0; i < 2; i++)
		s[i] = fixture_join(&f, 9 + i, "");
	for (uint32_t i = 0; i < FIXTURE_PARAMS; i++)
		f.core->store.weights[i] = weight;
	fixture_restart(&f);
	for (uint32_t i = 0; i < 2; i++)
		s[i] = fixture_come_back(&f, 9 + i, s[i], 1);
	taken(&f, 0, s[0], 1, 0, 0);
	assert_int_equal(f.core->accumulator.pushes, 1);
	struct msg m = replay_of(s[1], 1, 1, 0);
	enum reject reject = fixture_acked(&f, 10, &m).reject;
	for (uint32_t i = 0; i < FIXTURE_PARAMS; i++)
		assert_true(isfinite(core_weights(f.core)[i]));
	assert_images(&f, 10, reject == REJECT_NONE ? 10 : 0);
	fixture_close(&f);
	return reject;
}

TEST(a_gradient_of_the_next_epoch_is_a_step_of_its_own)
{
	assert_int_equal(after_two_steps(1e20f), REJECT_NONE);
	assert_int_equal(after_two_steps(1e30f), REJECT_NONFINITE);
}

TEST(only_replays_may_belong_to_the_next_epoch)
{
	struct core_fixture f;
	struct stamp s[2];

	crash_after_pushes(&f, training_in_mode(MODE_DOWNPOUR), s, 2);
	fixture_tick(&f, f.cfg.sessions.recovery_ms);
	struct msg m = fixture_batch(s[0], 1, 1, 0, 1); /* this push was never acknowledged */
	fixture_rejected(&f, 9, &m, REJECT_SHAPE);
	m = replay_of(s[0], 2, 3, 0); /* the run has no such epoch */
	fixture_rejected(&f, 9, &m, REJECT_SHAPE);
	m = replay_of(s[0], 3, 1, 0); /* the seq is above the last_seq of the worker's HELLO */
	fixture_rejected(&f, 9, &m, REJECT_SHAPE);
	m = replay_of(s[1], 1, 1, 0);
	m.push.images = 9;
	fixture_rejected(&f, 10, &m, REJECT_SHAPE);
	fixture_close(&f);
}
