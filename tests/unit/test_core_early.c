/*
 * Proves what becomes of replays whose epoch is still to come: a crash loses the end of an epoch
 * and the beginning of the next one, and the workers come back in any order. See early.c.
 */
#include "tests/unit/core_images.h"
#include "tests/unit/core_work.h"

/* Three epochs of 4 batches, the last one of 5 images. */
static struct core_config training(enum mode mode)
{
	struct core_config cfg = bench_training();

	cfg.training.mode = mode;
	cfg.training.epochs = 3;
	return cfg;
}

/* Started from an image of before any push; workers 1 and 2 are back and have each `n` pushes to
 * replay. */
static void crash(struct bench *b, struct core_config cfg, struct stamp s[2], uint64_t n)
{
	bench_open(b, cfg);
	for (uint32_t i = 0; i < 2; i++)
		s[i] = bench_join(b, 9 + i, "");
	bench_restart(b);
	for (uint32_t i = 0; i < 2; i++)
		s[i] = bench_come_back(b, 9 + i, s[i], n);
}

static struct msg replay(struct stamp s, uint64_t seq, uint32_t epoch, uint32_t first)
{
	struct msg m = batch(s, seq, epoch, first, 1);

	m.push.verdict = VERDICT_OK;
	m.push.base_version = 2 * seq;
	return m;
}

static void taken(
	struct bench *b, uint32_t i, struct stamp s, uint64_t seq, uint32_t epoch, uint32_t first)
{
	struct msg m = replay(s, seq, epoch, first);

	bench_applied(b, 9 + i, &m);
}

static void assert_images(const struct bench *b, uint64_t first, uint64_t second)
{
	assert_int_equal(core_epoch(b->core, 0)->images, first);
	assert_int_equal(core_epoch(b->core, 1)->images, second);
}

/* The first worker replays two batches of the next epoch before the second has ended this one. */
static void counts_at_once(enum mode mode, uint32_t buffer_size, int again)
{
	struct core_config cfg = training(mode);
	struct bench b;
	struct stamp s[2];

	cfg.push.buffer_size = buffer_size;
	crash(&b, cfg, s, 4);
	taken(&b, 0, s[0], 1, 0, 0);
	taken(&b, 0, s[0], 2, 0, 1);
	taken(&b, 0, s[0], 3, 1, 0);
	taken(&b, 0, s[0], 4, 1, 2);
	assert_int_equal(core_training_epoch(b.core), 0);
	assert_int_equal(core_epoch(b.core, 1)->images, 20);
	if (again) {
		bench_restart(&b);
		s[0] = bench_come_back(&b, 9, s[0], 4);
		s[1] = bench_come_back(&b, 10, s[1], 4);
	}
	taken(&b, 1, s[1], 1, 0, 2);
	taken(&b, 1, s[1], 2, 0, 3);
	assert_int_equal(core_training_epoch(b.core), 1);
	assert_images(&b, 35, 20);
	struct msg m = replay(s[1], 3, 1, 0); /* counted already */
	bench_rejected(&b, 10, &m, REJECT_WORK);
	taken(&b, 1, s[1], 4, 1, 1);
	m = batch(s[1], 5, 1, 3, 1); /* not before the evaluation of the first epoch */
	if (mode == MODE_DOWNPOUR) {
		m.push.base_version = core_stats(b.core)->version;
		bench_applied(&b, 10, &m);
		assert_images(&b, 35, 35);
	}
	bench_close(&b);
}

static void an_accepted_push_of_the_next_epoch_counts_at_once(void **state)
{
	(void)state;
	counts_at_once(MODE_DOWNPOUR, 1, 0);
	counts_at_once(MODE_SSP, 1, 0);
	counts_at_once(MODE_EASGD, 1, 0);
	counts_at_once(MODE_SYNC, 1, 0);
}

static void so_it_does_in_a_buffer(void **state)
{
	(void)state;
	counts_at_once(MODE_DOWNPOUR, 3, 0);
}

static void and_after_another_crash(void **state)
{
	(void)state;
	counts_at_once(MODE_DOWNPOUR, 1, 1);
	counts_at_once(MODE_DOWNPOUR, 3, 1);
	counts_at_once(MODE_SYNC, 1, 1);
}

/* While the epoch before is evaluated, whose results no worker keeps. */
static void whole_epochs_may_come_early(void **state)
{
	struct bench b;
	struct stamp s[2];

	(void)state;
	crash(&b, training(MODE_DOWNPOUR), s, 8);
	for (uint32_t i = 0; i < 8; i++)
		taken(&b, 0, s[0], 1 + i, 1 + i / 4, i % 4);
	assert_int_equal(core_training_epoch(b.core), 0);
	for (uint32_t i = 0; i < 4; i++)
		taken(&b, 1, s[1], 1 + i, 0, i);
	assert_int_equal(core_training_epoch(b.core), 1);
	assert_images(&b, 35, 35);
	bench_close(&b);
}

static void only_replays_do(void **state)
{
	struct bench b;
	struct stamp s[2];

	(void)state;
	crash(&b, training(MODE_DOWNPOUR), s, 2);
	struct msg m = batch(s[0], 1, 1, 0, 1); /* never acknowledged */
	bench_rejected(&b, 9, &m, REJECT_SHAPE);
	m = replay(s[0], 2, 3, 0); /* no such epoch */
	bench_rejected(&b, 9, &m, REJECT_SHAPE);
	m = replay(s[0], 3, 1, 0); /* newer than what its HELLO promised */
	bench_rejected(&b, 9, &m, REJECT_SHAPE);
	m = replay(s[1], 1, 1, 0);
	m.push.images = 9;
	bench_rejected(&b, 10, &m, REJECT_SHAPE);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_accepted_push_of_the_next_epoch_counts_at_once),
		cmocka_unit_test(so_it_does_in_a_buffer),
		cmocka_unit_test(and_after_another_crash),
		cmocka_unit_test(whole_epochs_may_come_early),
		cmocka_unit_test(only_replays_do),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
