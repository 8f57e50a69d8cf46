/*
 * Proves the comparison of norms (server/core/norms.h): the mean size of a worker's gradients must
 * agree with that of the median worker, and a single large gradient is scaled down or rejected.
 * Covers attack A13 of docs/faults.md.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "common/rng.h"
#include "server/core/norms.h"
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

#define WORKERS 5u
#define RATIO   4.0
#define CAP     1.5 /* the server scales gradients with a larger size down to this size */

struct fleet {
	struct core_fixture f;
	struct stamp stamp[2 * WORKERS];
	uint64_t seq[2 * WORKERS];
	uint64_t checked; /* number of calls of check_norm */
	float g[FIXTURE_PARAMS];
};

static struct core_config with_ratio(void)
{
	struct core_config cfg = fixture_training();

	cfg.durable = 0;
	cfg.limits.norm_ratio = RATIO;
	cfg.sessions.max_workers = WORKERS;
	return cfg;
}

static void open_norms_fleet(struct fleet *t, struct core_config cfg, uint32_t n)
{
	*t = (struct fleet){0};
	fixture_open(&t->f, cfg);
	for (uint32_t i = 0; i < n; i++)
		t->stamp[i] = fixture_join(&t->f, 9 + i, "");
}

/* Returns a push of worker i whose gradient has this norm. */
static struct msg push_with_norm(struct fleet *t, uint32_t i, double norm)
{
	struct msg m = fixture_push(t->stamp[i], ++t->seq[i]);

	for (size_t k = 0; k < FIXTURE_PARAMS; k++)
		t->g[k] = (float)(norm / sqrt(FIXTURE_PARAMS));
	fixture_slice(&m, 0, FIXTURE_PARAMS, t->g);
	return m;
}

static enum reject check_norm_over(struct fleet *t, uint32_t i, double norm, uint32_t images)
{
	/* vary the norm slightly, as different batches do */
	struct msg m = push_with_norm(t, i, norm * (1 + 1e-6 * (double)(++t->checked % 10000)));

	m.push.base_version = t->seq[i];
	m.push.images = images;
	enum reject r = norms_check(t->f.core, &t->f.core->worker[i], &m.push);

	t->f.core->stats.pushes++;
	t->f.core->stats.accepted += r == REJECT_NONE;
	return r;
}

static enum reject check_norm(struct fleet *t, uint32_t i, double norm)
{
	return check_norm_over(t, i, norm, 0);
}

static double scale_of_push(struct fleet *t, uint32_t i, double norm)
{
	struct msg m = push_with_norm(t, i, norm);

	return norms_scale(t->f.core, &m.push);
}

/* Changes each weight of the server by `by`. */
static void move_weights(struct fleet *t, float by)
{
	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		fixture_set_weight(&t->f, i, core_weights(t->f.core)[i] + by);
}

/* Let each worker in [first, end) send `rounds` gradients whose norm is about `norm`. The server
 * must accept all these gradients. */
static void honest(struct fleet *t, uint32_t first, uint32_t end, int rounds, double norm)
{
	for (int r = 0; r < rounds; r++)
		for (uint32_t i = first; i < end; i++)
			assert_int_equal(check_norm(t, i, norm * (1 + 0.1 * (r % 3))), REJECT_NONE);
}

TEST(a_worker_with_another_mean_is_rejected)
{
	/* factors by which the norms of the bad worker differ from those of the other workers */
	static const double bad[] = {10, 0.1, 0};

	for (size_t b = 0; b < sizeof(bad) / sizeof(bad[0]); b++) {
		struct fleet t;
		int rejected = 0;

		open_norms_fleet(&t, with_ratio(), WORKERS);
		for (int r = 0; r < 40; r++) {
			honest(&t, 0, WORKERS - 1, 1, 2);
			rejected += check_norm(&t, WORKERS - 1, 2 * bad[b]) == REJECT_NORM;
		}
		assert_int_equal(
			/* all but the first 7, because a worker's mean counts only from its
			 * eighth gradient on */
			rejected, 40 - 7);
		fixture_close(&t.f);
	}
}

TEST(a_worker_that_turns_bad_is_rejected_soon)
{
	struct fleet t;
	int accepted = 0;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	honest(&t, 0, WORKERS, 50, 1);
	while (accepted <= 20 && check_norm(&t, 4, 50) == REJECT_NONE) {
		honest(&t, 0, 4, 1, 1);
		accepted++;
	}
	assert_in_range(accepted, 5, 20);
	fixture_close(&t.f);
}

/* The first updates of a run can make the gradients of honest workers much larger. A single large
 * gradient is therefore no reason to reject the gradients of its worker. */
TEST(one_large_gradient_among_the_first_is_no_reason)
{
	for (int large = 0; large < 20; large++) {
		struct fleet t;

		open_norms_fleet(&t, with_ratio(), WORKERS);
		honest(&t, 0, WORKERS - 1, 1, 1);
		for (int n = 0; n < 20; n++)
			assert_int_equal(check_norm(&t, 4, n == large ? 5e4 : 1), REJECT_NONE);
		fixture_close(&t.f);
	}
}

/* Late in a run, the gradients of most images are almost 0, and that of a single image can be
 * millions of times larger. If the server rejected it, the worker would compute the same batch
 * again, and at last be excluded. */
TEST(one_large_gradient_is_scaled_and_not_rejected)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), 3);
	honest(&t, 0, 3, 20, 1);
	assert_true(scale_of_push(&t, 0, 1.5) >= 1);
	for (double norm = 3.9; norm < 1e15; norm *= 10) { /* both yardsticks are from 1 to 1.2 */
		double s = scale_of_push(&t, 0, norm);

		assert_true(norm * s >= CAP && norm * s <= 1.2 * CAP);
	}
	assert_int_equal(check_norm(&t, 0, 50), REJECT_NONE);
	assert_int_equal(check_norm(&t, 0, 1e15), REJECT_NONE);
	/* two large gradients do not move the mean of the sizes above RATIO */
	assert_int_equal(check_norm(&t, 0, 1), REJECT_NONE);
	fixture_close(&t.f);
}

/* Norms change during a run. If the norms of all workers change at the same time, the server
 * rejects no gradient. */
TEST(norms_that_change_for_all_are_no_reason)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	for (double norm = 1; norm < 1e6; norm *= 30)
		honest(&t, 0, WORKERS, 40, norm);
	for (double norm = 1e6; norm > 1e-6; norm /= 30)
		honest(&t, 0, WORKERS, 40, norm);
	fixture_close(&t.f);
}

/* When a worker pushes rarely, its norm is compared with the norms that the other workers have at
 * that time. */
TEST(a_slow_worker_is_compared_with_the_norms_of_its_time)
{
	struct fleet t;
	double norm = 100;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	for (int r = 0; r < 30; r++, norm *= 0.6) {
		honest(&t, 0, 4, 12, norm);
		assert_int_equal(check_norm(&t, 4, norm), REJECT_NONE);
	}
	fixture_close(&t.f);
}

TEST(fewer_than_three_workers_have_no_majority)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), 2);
	for (int r = 0; r < 50; r++) {
		assert_int_equal(check_norm(&t, 0, 1), REJECT_NONE);
		assert_int_equal(check_norm(&t, 1, 1e9), REJECT_NONE);
		assert_true(scale_of_push(&t, 1, 1e9) >= 1);
	}
	fixture_close(&t.f);
}

TEST(two_of_five_cannot_move_the_yardstick)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	honest(&t, 0, 3, 10, 1);
	for (int r = 0; r < 50; r++) {
		(void)check_norm(&t, 3, 1e9);
		(void)check_norm(&t, 4, 1e9);
		honest(&t, 0, 3, 1, 1);
	}
	double s = scale_of_push(&t, 0, 50);
	assert_true(50 * s <= 1.2 * CAP);
	fixture_close(&t.f);
}

static void set_owner_key(struct fleet *t, uint32_t i, char key)
{
	t->f.core->worker[i].session.owner[0] = key;
}

/* Three workers of one key send gradients of one size, and two workers of other keys send gradients
 * of another size. */
TEST(a_key_with_many_slots_cannot_move_the_yardstick)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	for (uint32_t i = 0; i < WORKERS; i++)
		set_owner_key(&t, i, "aaabc"[i]);
	for (int r = 0; r < 50; r++) {
		for (uint32_t i = 0; i < 3; i++)
			(void)check_norm(&t, i, 1e4);
		honest(&t, 3, WORKERS, 1, 1);
	}
	double s = scale_of_push(&t, 4, 50);
	assert_true(50 * s <= 1.2 * CAP);
	fixture_close(&t.f);
}

/* If only two keys have workers, there is no majority of keys, so each worker counts. */
TEST(with_two_keys_each_worker_counts)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	for (uint32_t i = 0; i < WORKERS; i++)
		set_owner_key(&t, i, "aaaab"[i]);
	honest(&t, 0, 4, 10, 1);
	double s = scale_of_push(&t, 4, 50);
	assert_true(50 * s <= 1.2 * CAP);
	fixture_close(&t.f);
}

/* Starts a new process of worker i, which may get another slot than the old process. With `key`,
 * the worker has a key and no name, otherwise a name and no key. Returns the index of the slot. */
static uint32_t start_again(struct fleet *t, uint32_t i, int key)
{
	static uint32_t peer = 1000;
	struct msg m = fixture_hello("");

	*(key ? m.hello.owner : m.hello.name) = (char)('a' + (char)i);
	fixture_message(&t->f, ++peer, &m);
	return fixture_sent(&t->f, peer, MSG_WELCOME)->welcome.stamp.worker - 1;
}

/* Opens a fleet whose workers have keys or names, and which has twice as many slots as workers. */
static void open_known(struct fleet *t, int key)
{
	struct core_config cfg = with_ratio();

	cfg.sessions.max_workers = 2 * WORKERS;
	open_norms_fleet(t, cfg, 0);
	for (uint32_t i = 0; i < WORKERS; i++)
		assert_int_equal(start_again(t, i, key), i);
}

TEST(a_new_process_does_not_escape_the_comparison)
{
	/* factors by which the norms of the bad worker differ from those of the other workers */
	static const double bad[] = {10, 0.1, 0};

	for (size_t b = 0; b < 6; b++) {
		struct fleet t;
		uint32_t bad_one = WORKERS - 1;
		int rejected = 0;

		open_known(&t, b < 3);
		for (int r = 0; r < 30; r++) {
			honest(&t, 0, WORKERS - 1, 1, 2);
			rejected += check_norm(&t, bad_one, 2 * bad[b % 3]) == REJECT_NORM;
			if (r % 3 == 2) {
				t.f.core->worker[bad_one].session.state = SESSION_DEAD;
				bad_one = start_again(&t, WORKERS - 1, b < 3);
			}
		}
		assert_int_equal(rejected, 30 - 7);
		/* after its repair, the worker sends normal gradients, which count */
		honest(&t, bad_one, bad_one + 1, 9, 2);
		bad_one = start_again(&t, WORKERS - 1, b < 3);
		assert_true(bad_one >= WORKERS || b >= 3);
		honest(&t, bad_one, bad_one + 1, 9, 2);
		fixture_close(&t.f);
	}
}

/* A worker has used two slots. Its gradients were too large in one slot and too small in the other.
 * Its new process begins at the upper limit, whatever the order of the slots is. */
TEST(a_new_process_continues_the_larger_of_two_sizes)
{
	const struct worker_norms large = {.size = 2 * RATIO, .n_sizes = 3};
	const struct worker_norms small = {.size = 0.5 / RATIO, .n_sizes = 50};
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	for (int first = 0; first < 2; first++) {
		struct worker_norms n = {0};

		norms_inherit(t.f.core, &n, first ? &large : &small);
		norms_inherit(t.f.core, &n, first ? &small : &large);
		assert_float_equal(n.size, RATIO, 0);
		assert_int_equal(n.n_sizes, 7);
	}
	fixture_close(&t.f);
}

/* If the mean of a worker's sizes is within the limits, a new process of this worker does not
 * continue this mean, but begins a new one. */
TEST(a_new_process_of_an_honest_worker_may_begin_with_a_large_gradient)
{
	struct fleet t;

	open_known(&t, 1);
	honest(&t, 0, WORKERS, 9, 1);
	uint32_t slot = start_again(&t, 4, 1);
	assert_int_equal(check_norm(&t, slot, 1e4), REJECT_NONE);
	honest(&t, slot, slot + 1, 9, 1);
	fixture_close(&t.f);
}

TEST(a_new_process_does_not_repeat_the_last_gradient)
{
	struct fleet t;

	open_known(&t, 1);
	honest(&t, 0, WORKERS, 3, 1);
	uint32_t slot = 4;
	for (uint64_t n = 0; n < 6; n++) {
		struct msg m = push_with_norm(&t, 4, 1);

		move_weights(&t, 0.1f);
		assert_int_equal(norms_check(t.f.core, &t.f.core->worker[slot], &m.push),
			n < 2 ? REJECT_NONE : REJECT_NORM);
		t.f.core->stats.accepted++;
		t.f.core->worker[slot].session.state = SESSION_DEAD;
		slot = start_again(&t, 4, 1);
	}
	fixture_close(&t.f);
}

/* A worker may send any number of pushes that are rejected, for example as stale. Such pushes do
 * not make the norms of the other workers count as old. */
TEST(rejected_pushes_do_not_end_the_comparison)
{
	struct fleet t;
	int rejected = 0;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	for (int r = 0; r < 20; r++) {
		honest(&t, 0, WORKERS - 1, 1, 2);
		t.f.core->stats.pushes += 100;
		rejected += check_norm(&t, WORKERS - 1, 20) == REJECT_NORM;
	}
	assert_int_equal(rejected, 20 - 7);
	fixture_close(&t.f);
}

/* Two of five workers have one key, and three have another key. Two keys have no majority, so no
 * gradient is rejected, even if only one of the keys has pushed recently. */
TEST(one_key_cannot_exclude_another_one)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	for (uint32_t i = 0; i < WORKERS; i++)
		set_owner_key(&t, i, "aabbb"[i]);
	for (int r = 0; r < 60; r++) {
		honest(&t, 2, WORKERS, r < 30 ? 1 : 30, 0.01);
		honest(&t, 0, 2, 1, 1);
	}
	fixture_close(&t.f);
}

/* All workers have the same key, and are compared with each other: the gradients of a worker whose
 * norms are different are rejected. */
TEST(workers_of_a_single_key_are_compared)
{
	struct fleet t;
	int rejected = 0;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	for (uint32_t i = 0; i < WORKERS; i++)
		set_owner_key(&t, i, 'a');
	for (int r = 0; r < 40; r++) {
		honest(&t, 0, WORKERS - 1, 1, 2);
		rejected += check_norm(&t, WORKERS - 1, 20) == REJECT_NORM;
	}
	assert_int_equal(rejected, 40 - 7);
	fixture_close(&t.f);
}

/* Opens a fleet whose honest workers have pushed gradients over `usual` images. The last worker
 * then sends 40 gradients over `images` images. Returns the number of those that are rejected. */
static int rejected_over(struct core_config cfg, uint32_t usual, uint32_t images, double norm)
{
	struct fleet t;
	int rejected = 0;

	open_norms_fleet(&t, cfg, WORKERS);
	for (uint32_t i = 0; i < WORKERS - 1; i++) {
		t.f.core->worker[i].ledger.images = 10 * usual;
		t.f.core->worker[i].ledger.last_seq = 10;
	}
	for (int r = 0; r < 40; r++) {
		honest(&t, 0, WORKERS - 1, 1, 1);
		double s = scale_of_push(&t, 4, 20);
		assert_true(20 * s <= 1.2 * (cfg.training.epochs ? CAP : RATIO));
		rejected += check_norm_over(&t, 4, norm, images) == REJECT_NORM;
	}
	fixture_close(&t.f);
	return rejected;
}

/* The noise of a mean falls with the root of the number of images. So a slow worker whose pushes
 * have 25 times fewer images than those of the others may send gradients that are 5 times larger,
 * and a fast worker may send smaller ones. The limit above which a gradient is scaled does not
 * change. */
TEST(gradients_over_other_numbers_of_images_may_have_other_norms)
{
	assert_int_equal(rejected_over(with_ratio(), 4, 4, 5.5), 40 - 7);
	assert_int_equal(rejected_over(with_ratio(), 100, 4, 5.5), 0);
	assert_int_equal(rejected_over(with_ratio(), 100, 4, 5 * 5.5), 40 - 7);
	assert_int_equal(rejected_over(with_ratio(), 4, 100, 5.5), 40 - 7);
	assert_int_equal(rejected_over(with_ratio(), 4, 4, 0.2), 40 - 7);
	assert_int_equal(rejected_over(with_ratio(), 4, 100, 0.2), 0);
	assert_int_equal(rejected_over(with_ratio(), 4, 100, 0.2 / 5), 40 - 7);
	assert_int_equal(rejected_over(with_ratio(), 100, 4, 0.2), 40 - 7);
}

/* In a run without a data set, a worker can claim any number of images. */
TEST(a_claimed_number_of_images_changes_no_limit)
{
	struct core_config cfg = with_ratio();

	cfg.training.epochs = 0;
	assert_int_equal(rejected_over(cfg, 1000000, 1, 1e4), 40 - 7);
}

static struct core_config with_lbfgs(void)
{
	struct core_config cfg = with_ratio();

	cfg.training.mode = MODE_SANDBLASTER;
	cfg.optim.kind = OPTIM_LBFGS;
	cfg.lbfgs.history = 5;
	cfg.lbfgs.trials = 20;
	return cfg;
}

/* Check a push of worker i in a pass of L-BFGS. */
static enum reject check_in_pass(struct fleet *t, uint32_t i, double norm, uint32_t images)
{
	enum reject r = check_norm_over(t, i, norm, images);

	t->f.core->accumulator.pushes += r == REJECT_NONE;
	return r;
}

/* Let the workers before `end` push a gradient in a pass. The norms of the passes differ by factors
 * of thousands, but nobody is rejected. */
static double honest_pass(struct fleet *t, uint32_t end, int pass)
{
	double norm = pass % 2 ? 3000 : 0.003;

	for (uint32_t i = 0; i < end; i++)
		assert_int_equal(check_in_pass(t, i, norm * (1 + 0.1 * i), 30), REJECT_NONE);
	return norm;
}

static void end_pass(struct fleet *t)
{
	norms_end_pass(t->f.core);
	t->f.core->accumulator.pushes = 0;
}

/* The number of the worker's pushes includes rejected ones, so it says nothing about the number of
 * images of a push that counts. */
TEST(rejected_pushes_do_not_excuse_large_gradients_of_a_pass)
{
	struct fleet t;

	open_norms_fleet(&t, with_lbfgs(), WORKERS);
	for (int pass = 0; pass < 10; pass++) {
		double norm = honest_pass(&t, 4, pass);

		for (uint32_t i = 0; i < WORKERS; i++) {
			struct worker_ledger *l = &t.f.core->worker[i].ledger;

			l->images = 30 * (uint64_t)(pass + 1);
			l->last_seq = (i == 4 ? 1000 : 1) * (uint64_t)(pass + 1);
		}
		(void)check_in_pass(&t, 4, 10 * norm, 30);
		end_pass(&t);
	}
	assert_int_equal(check_in_pass(&t, 4, 1, 30), REJECT_NORM);
	fixture_close(&t.f);
}

TEST(small_pushes_do_not_hide_a_large_one_in_a_pass)
{
	struct fleet t;

	open_norms_fleet(&t, with_lbfgs(), WORKERS);
	for (int pass = 0; pass < 10; pass++) {
		double norm = honest_pass(&t, 4, pass);

		(void)check_in_pass(&t, 4, 20 * norm, 100);
		for (int i = 0; i < 20; i++)
			(void)check_in_pass(&t, 4, norm, 1);
		end_pass(&t);
	}
	assert_int_equal(check_in_pass(&t, 4, 1, 30), REJECT_NORM);
	fixture_close(&t.f);
}

TEST(a_new_process_continues_the_pass_of_the_earlier_one)
{
	struct core_config cfg = with_lbfgs();
	struct fleet t;
	uint32_t slot = 4;

	cfg.sessions.max_workers = 2 * WORKERS;
	open_norms_fleet(&t, cfg, 0);
	for (uint32_t i = 0; i < WORKERS; i++)
		assert_int_equal(start_again(&t, i, 1), i);
	for (int pass = 0; pass < 10; pass++) {
		double norm = honest_pass(&t, 4, pass);

		(void)check_in_pass(&t, slot, 10 * norm, 30);
		if (pass < (int)WORKERS) /* one slot for each new process */
			slot = start_again(&t, 4, 1);
		end_pass(&t);
	}
	assert_int_equal(check_in_pass(&t, slot, 1, 30), REJECT_NORM);
	fixture_close(&t.f);
}

static struct core_config without_data_set(void)
{
	struct core_config cfg = with_ratio();

	cfg.training.epochs = 0;
	return cfg;
}

/* In a run without a data set, the workers may train on different data, so their means may differ
 * by 25 times the ratio, and a worker whose gradients are small is honest. */
TEST(without_a_data_set_means_may_differ_more)
{
	struct fleet t;

	open_norms_fleet(&t, without_data_set(), WORKERS);
	for (int r = 0; r < 50; r++) {
		honest(&t, 1, 4, 1, 1);
		assert_int_equal(check_norm(&t, 0, 1e-9), REJECT_NONE);
		assert_int_equal(check_norm(&t, 4, 24 * RATIO), REJECT_NONE);
	}
	assert_true(scale_of_push(&t, 4, 3.9) >= 1);
	assert_true(100 * scale_of_push(&t, 4, 100) <= 1.2 * RATIO);
	fixture_close(&t.f);
}

/* Late in a run, the gradient of a single image can be a million times larger than the others. */
TEST(without_a_data_set_one_large_gradient_is_scaled_and_not_rejected)
{
	struct fleet t;

	open_norms_fleet(&t, without_data_set(), WORKERS);
	for (int r = 0; r < 50; r++) {
		honest(&t, 0, WORKERS, 1, 1);
		assert_int_equal(check_norm(&t, 4, r % 3 ? 1 : 1e6), REJECT_NONE);
		assert_true(1e6 * scale_of_push(&t, 4, 1e6) < 2 * RATIO);
	}
	fixture_close(&t.f);
}

TEST(without_a_data_set_a_worker_with_a_wild_mean_is_rejected)
{
	struct fleet t;
	int rejected = 0;

	open_norms_fleet(&t, without_data_set(), WORKERS);
	for (int r = 0; r < 40; r++) {
		honest(&t, 0, 4, 1, 1);
		rejected += check_norm(&t, 4, 60 * RATIO) == REJECT_NORM;
	}
	assert_int_equal(rejected, 40 - 7);
	fixture_close(&t.f);
}

/* Check the norm of a push that has only the first of the values of a gradient. */
static enum reject check_norm_of_part(struct fleet *t, uint32_t i, double norm)
{
	struct msg m = push_with_norm(t, i, 1);

	t->g[0] = (float)norm;
	m.push.slices.n = 0;
	fixture_slice(&m, 0, 1, t->g);
	enum reject r = norms_check(t->f.core, &t->f.core->worker[i], &m.push);

	t->f.core->stats.pushes++;
	t->f.core->stats.accepted += r == REJECT_NONE;
	return r;
}

/* The norm of a part of a gradient says nothing about the norms of whole gradients. So workers that
 * push small parts get no whole gradient scaled, and they are still compared with the others. */
TEST(parts_of_gradients_are_no_yardstick)
{
	struct fleet t;
	int rejected = 0;

	open_norms_fleet(&t, without_data_set(), WORKERS);
	for (int r = 0; r < 40; r++)
		for (uint32_t i = 0; i < WORKERS; i++)
			assert_int_equal(check_norm_of_part(&t, i, i ? 1e-6 : 1e6), REJECT_NONE);
	assert_true(scale_of_push(&t, 0, 1e6) >= 1);
	for (int r = 0; r < 40; r++) {
		honest(&t, 0, 3, 1, 1);
		assert_int_equal(check_norm_of_part(&t, 3, 1e-6), REJECT_NONE);
		rejected += check_norm_of_part(&t, 4, 1e6) == REJECT_NORM;
	}
	assert_true(scale_of_push(&t, 3, 3.9) >= 1);
	/* fewer than 40 - 7, because the mean includes the sizes of the first whole gradients */
	assert_in_range(rejected, 30, 40 - 7);
	fixture_close(&t.f);
}

/* In a run without a data set, a gradient can be 0 most of the time, for example if only a reward
 * gives one. The other gradients then have the usual size. */
TEST(gradients_of_0_are_no_yardstick)
{
	struct fleet t;

	open_norms_fleet(&t, without_data_set(), WORKERS);
	honest(&t, 0, WORKERS, 10, 1);
	assert_true(scale_of_push(&t, 0, 1) >= 1);
	for (int r = 0; r < 1000; r++)
		for (uint32_t i = 0; i < WORKERS; i++) {
			assert_int_equal(check_norm(&t, i, 0), REJECT_NONE);
			assert_true(scale_of_push(&t, i, 0) >= 1);
		}
	assert_int_equal(check_norm(&t, 4, 1), REJECT_NONE);
	assert_true(scale_of_push(&t, 4, 1) >= 1);
	fixture_close(&t.f);
}

TEST(ratio_0_compares_nothing)
{
	struct core_config cfg = with_ratio();
	struct fleet t;

	cfg.limits.norm_ratio = 0;
	open_norms_fleet(&t, cfg, WORKERS);
	honest(&t, 0, 4, 50, 1);
	assert_int_equal(check_norm(&t, 4, 1e14), REJECT_NONE);
	assert_true(scale_of_push(&t, 4, 1e14) >= 1);
	fixture_close(&t.f);
}

/* Opens a run without a data set, in which all workers but the last have pushed a gradient. */
static void open_majority(struct fleet *t)
{
	open_norms_fleet(t, without_data_set(), WORKERS);
	for (uint32_t i = 0; i < WORKERS - 1; i++) {
		struct msg m = push_with_norm(t, i, 1);

		fixture_applied(&t->f, 9 + i, &m);
	}
}

/* Let worker 4 push the first gradients whose norm is much too large. They are scaled. */
static void push_first_wild_norms(struct fleet *t)
{
	for (int n = 0; n < 7; n++) {
		struct msg m = push_with_norm(t, 4, 1e6);

		fixture_applied(&t->f, 13, &m);
	}
}

/* A worker whose norms are much too large has its pushes rejected, and is then excluded. */
TEST(a_worker_with_wild_norms_is_excluded)
{
	struct fleet t;

	open_majority(&t);
	push_first_wild_norms(&t);
	for (int n = 0; n < 20; n++) {
		struct msg m = push_with_norm(&t, 4, 1e6);

		fixture_rejected(&t.f, 13, &m, REJECT_NORM);
	}
	assert_int_equal(fixture_sent(&t.f, 13, MSG_ERROR)->error.status, PS_EQUARANTINE);
	assert_true(fixture_worker(&t.f, 5).excluded);
	fixture_close(&t.f);
}

/* A server that has lost its newest state gets pushes of epochs that it has not reached again. The
 * worker that sends these pushes is honest, so the server must not exclude it. */
TEST(work_of_a_later_epoch_excludes_nobody)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	for (int n = 0; n < 40; n++) {
		struct msg m = push_with_norm(&t, 4, 1);

		fixture_work(&m, 1, 0, 1);
		fixture_rejected(&t.f, 13, &m, REJECT_SHAPE);
	}
	assert_false(fixture_worker(&t.f, 5).excluded);
	fixture_close(&t.f);
}

TEST(a_replay_counts_whatever_its_norm_is)
{
	struct fleet t;

	open_majority(&t);
	push_first_wild_norms(&t);
	/* as after HELLO of a resumed session with this last_seq */
	t.f.core->worker[4].ledger.replay_target = 8;
	struct msg replay = push_with_norm(&t, 4, 1e6);
	replay.push.verdict = VERDICT_OK;
	fixture_applied(&t.f, 13, &replay);
	struct msg later = push_with_norm(&t, 4, 1e6); /* the same gradient, but no replay */
	fixture_rejected(&t.f, 13, &later, REJECT_NORM);
	fixture_close(&t.f);
}

TEST(a_restart_keeps_what_is_known_of_the_norms)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	honest(&t, 0, WORKERS, 20, 3);
	t.f.core->worker[2].norms.accepted_no = 77;
	struct worker_norms before = t.f.core->worker[2].norms;
	fixture_restart(&t.f);
	assert_memory_equal(&before, &t.f.core->worker[2].norms, sizeof(before));
	fixture_close(&t.f);
}

/* After a restart, the first worker returns before all others. The server scales the gradients of
 * this worker with the last yardstick of the run. */
TEST(a_gradient_is_scaled_before_the_others_are_back)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	honest(&t, 0, WORKERS, 20, 3);
	assert_true(scale_of_push(&t, 0, 3) >= 1);
	fixture_restart(&t.f);
	for (int i = 0; i < 3; i++)
		assert_true(1e12 * scale_of_push(&t, 4, 1e12) < 2 * RATIO * 3);
	assert_true(scale_of_push(&t, 0, 3) >= 1);
	/* if the others never come back, larger gradients are scaled for a bounded time */
	int scaled = 0;
	while (scaled < 100 && scale_of_push(&t, 0, 300) < 1)
		scaled++;
	assert_in_range(scaled, 1, 40);
	fixture_close(&t.f);
}

/* Without --norm-ratio, a snapshot has the same content as that of a release without this
 * option. */
TEST(without_the_option_a_snapshot_has_no_norms)
{
	struct core_config cfg = with_ratio();
	struct core_snapshot snapshot;
	struct fleet t;
	const char *why;

	cfg.limits.norm_ratio = 0;
	open_norms_fleet(&t, cfg, WORKERS);
	honest(&t, 0, WORKERS, 20, 3);
	assert_int_equal(snapshot_size(t.f.core, SNAPSHOT_NORMS), 0);
	fixture_close(&t.f);

	cfg = with_ratio();
	open_norms_fleet(&t, cfg, WORKERS);
	assert_int_not_equal(snapshot_size(t.f.core, SNAPSHOT_NORMS), 0);
	snapshot = fixture_save(&t.f);
	fixture_close(&t.f);
	/* as if the section lacked its last number */
	snapshot.size[SNAPSHOT_NORMS] -= 8;
	assert_int_equal(fixture_read(&t.f, cfg, &snapshot, &why), PS_ECHECKPOINT);
	fixture_close(&t.f);
	/* as in a snapshot of a version whose section ended before the numbers of accepted pushes
	 */
	snapshot.size[SNAPSHOT_NORMS] -= 24 * WORKERS - 8;
	assert_int_equal(fixture_read(&t.f, cfg, &snapshot, &why), PS_OK);
	fixture_close(&t.f);
	snapshot.size[SNAPSHOT_NORMS] = 0; /* as in an older snapshot, which has no norms */
	assert_int_equal(fixture_read(&t.f, cfg, &snapshot, &why), PS_OK);
	fixture_close(&t.f);
	fixture_drop(&snapshot);
}

/* A worker that pushes only the signs of its gradient, or a normalised gradient, always has the
 * same norm. The server must not take such a gradient for a repetition of an earlier one. */
TEST(other_gradients_of_the_same_norm_are_no_reason)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	honest(&t, 0, WORKERS, 4, 1);
	struct worker *w = &t.f.core->worker[4];
	for (uint64_t n = 0; n < 40; n++) {
		struct msg m = push_with_norm(&t, 4, 1);

		for (size_t k = 0; k < FIXTURE_PARAMS; k++)
			t.g[k] *= n >> k & 1 ? -1 : 1;
		m.push.base_version = 500 + n;
		assert_int_equal(norms_check(t.f.core, w, &m.push), REJECT_NONE);
	}
	fixture_close(&t.f);
}

TEST(the_same_gradient_again_is_rejected)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	honest(&t, 0, WORKERS, 3, 1);
	struct msg m = push_with_norm(&t, 4, 1);
	struct worker *w = &t.f.core->worker[4];
	assert_int_equal(norms_check(t.f.core, w, &m.push), REJECT_NONE);
	/* the same batch and weights once more, because an exact mode grants a rejected batch
	 * again */
	assert_int_equal(norms_check(t.f.core, w, &m.push), REJECT_NONE);
	for (uint64_t n = 0; n < 3; n++) {
		move_weights(&t, 0.1f);
		for (int grant = 0; grant < 2; grant++)
			assert_int_equal(norms_check(t.f.core, w, &m.push), REJECT_NORM);
	}
	fixture_close(&t.f);
}

/* If the learning rate is almost 0, the weights do not change, or only in their last bits. An
 * honest worker then computes the same gradient of the same images in each epoch. */
TEST(the_same_gradient_of_the_same_weights_counts)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	honest(&t, 0, WORKERS, 3, 1);
	move_weights(&t, 0.5f);
	struct msg m = push_with_norm(&t, 4, 1);
	for (uint64_t n = 0; n < 50; n++) {
		m.push.base_version = 500 + n;
		move_weights(&t, n % 2 ? 1e-7f : -1e-7f);
		assert_int_equal(norms_check(t.f.core, &t.f.core->worker[4], &m.push), REJECT_NONE);
	}
	/* the sum of many small steps is a movement */
	int accepted = 0;
	while (accepted < 1000 &&
		norms_check(t.f.core, &t.f.core->worker[4], &m.push) == REJECT_NONE) {
		move_weights(&t, 1e-6f);
		accepted++;
	}
	assert_in_range(accepted, 2, 900);
	fixture_close(&t.f);
}

/* Workers 3 and 4 of five send a number of old gradients in turn. Returns the number of these
 * gradients that the server accepts. */
static int accepted_in_turn(const char *owners)
{
	struct fleet t;
	int accepted = 0;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	for (uint32_t i = 0; i < WORKERS; i++)
		set_owner_key(&t, i, owners[i]);
	honest(&t, 0, WORKERS, 3, 1);
	for (uint64_t n = 0; n < 10 * 50; n++) {
		uint32_t i = n % 2 ? 3 : 4;
		struct msg m = push_with_norm(&t, i, 1.0000003 + 1e-3 * (double)(n % 50));

		move_weights(&t, 0.1f);
		int is_new = norms_check(t.f.core, &t.f.core->worker[i], &m.push) == REJECT_NONE;
		t.f.core->stats.accepted += (uint64_t)is_new;
		accepted += is_new;
		honest(&t, 0, 3, 1, 1);
	}
	fixture_close(&t.f);
	return accepted;
}

/* If workers send old gradients again and again, each old gradient of a key counts at most
 * twice. */
TEST(old_gradients_in_turn_are_rejected)
{
	assert_int_equal(accepted_in_turn("abcdd"), 2 * 50);
}

/* A worker that sends the same gradients as a worker of another key does not cause the server to
 * reject any gradient of that key. */
TEST(gradients_of_another_key_are_no_repetition)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	for (uint32_t i = 0; i < WORKERS; i++)
		set_owner_key(&t, i, "abcde"[i]);
	honest(&t, 0, WORKERS, 3, 1);
	for (uint64_t n = 0; n < 40; n++) {
		struct msg m = push_with_norm(&t, 4, 1.0000003 + 1e-3 * (double)n);

		for (uint64_t k = 0; k < 3; k++) {
			move_weights(&t, 0.1f);
			(void)norms_check(t.f.core, &t.f.core->worker[4], &m.push);
		}
		assert_int_equal(norms_check(t.f.core, &t.f.core->worker[3], &m.push), REJECT_NONE);
	}
	fixture_close(&t.f);
}

/* A push that was rejected because it repeats an old one must be rejected when a log is replayed,
 * too. The replay begins with a snapshot from the time between the two pushes. */
TEST(a_restart_keeps_the_recent_gradients)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	honest(&t, 0, WORKERS, 3, 1);
	struct msg m = push_with_norm(&t, 4, 1);
	for (int n = 0; n < 2; n++)
		assert_int_equal(norms_check(t.f.core, &t.f.core->worker[4], &m.push), REJECT_NONE);
	fixture_restart(&t.f);
	for (uint32_t i = 0; i < WORKERS; i++)
		t.stamp[i] = fixture_come_back(&t.f, 9 + i, t.stamp[i], 0);
	move_weights(&t, 0.1f);
	assert_int_equal(norms_check(t.f.core, &t.f.core->worker[4], &m.push), REJECT_NORM);
	fixture_close(&t.f);
}

/* After a push that makes the weights almost 0, the gradients of other workers must not be
 * rejected. */
TEST(weights_of_almost_0_are_no_yardstick)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		fixture_set_weight(&t.f, i, 1e-15f);
	assert_int_equal(check_norm(&t, 4, 1), REJECT_NONE);
	assert_int_equal(check_norm(&t, 4, 1e10), REJECT_NORM);
	fixture_close(&t.f);
}

/* The very first push of this run has a huge gradient. */
TEST(the_first_gradients_are_compared_with_the_weights)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		fixture_set_weight(&t.f, i, 0.5f);
	assert_int_equal(check_norm(&t, 4, 1e10), REJECT_NORM);
	assert_int_equal(check_norm(&t, 0, 100), REJECT_NONE);
	fixture_close(&t.f);
	open_norms_fleet(&t, with_ratio(), 2);
	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		fixture_set_weight(&t.f, i, 0.5f);
	assert_int_equal(check_norm(&t, 1, 1e10), REJECT_NONE);
	fixture_close(&t.f);
}

/* ---- fast workers ---------------------------------------------------------------------------- */

/* Workers 0 and 1 of five push so often that only one of the others has pushed recently. The honest
 * gradients have norm 1. */
static void fast_pair(int with_keys, double norm)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), WORKERS);
	for (uint32_t i = 0; with_keys && i < WORKERS; i++)
		set_owner_key(&t, i, "abcde"[i]);
	honest(&t, 0, WORKERS, 1, 1);
	for (uint32_t r = 0; r < 60; r++) {
		for (uint32_t n = 0; n < 30; n++)
			(void)check_norm(&t, n % 2, norm);
		/* pretend that the server has accepted all pushes */
		t.f.core->stats.accepted = 1000 + 31 * r;
		assert_true(scale_of_push(&t, 2 + r % 3, 1) >= 1);
		double s = scale_of_push(&t, 0, 100);
		assert_true(100 * s <= 1.2 * RATIO);
		assert_int_equal(check_norm(&t, 2 + r % 3, 1), REJECT_NONE);
	}
	fixture_close(&t.f);
}

TEST(two_fast_workers_of_five_get_no_other_one_rejected)
{
	for (int with_keys = 0; with_keys <= 1; with_keys++)
		for (double norm = 1e-9; norm < 1e10; norm *= 10)
			fast_pair(with_keys, norm);
}

/* The run has three keys, and no worker of the third key has pushed yet. The two workers of the
 * first key must not determine the yardstick for the worker of the second key. */
TEST(a_key_with_two_workers_scales_no_other_key_of_three)
{
	struct fleet t;

	open_norms_fleet(&t, with_ratio(), 4);
	for (uint32_t i = 0; i < 4; i++)
		set_owner_key(&t, i, "aabc"[i]);
	honest(&t, 2, 3, 1, 1);
	honest(&t, 0, 2, 10, 1e-3);
	assert_true(scale_of_push(&t, 2, 1) >= 1);
	fixture_close(&t.f);
}

/* Most workers are stalled. Their norms are old, so they do not count in the medians. */
TEST(norms_of_stalled_workers_do_not_count)
{
	struct core_config cfg = with_ratio();
	struct fleet t;

	cfg.sessions.max_workers = WORKERS + 2;
	open_norms_fleet(&t, cfg, WORKERS + 2);
	honest(&t, 0, WORKERS + 2, 10, 1000);
	for (uint32_t i = 3; i < WORKERS + 2; i++)
		t.f.core->worker[i].pace.stalled = 1;
	for (int r = 0; r < 100; r++)
		for (uint32_t i = 0; i < 3; i++)
			(void)check_norm(&t, i, 1);
	double s = scale_of_push(&t, 0, 50);
	assert_true(50 * s <= 1.2 * CAP);
	fixture_close(&t.f);
}

static int has_key_a(const struct core *c, const struct worker *w)
{
	(void)c;
	return w->session.owner[0] == 'a';
}

/* All gradients of a step of sync are of three workers with the same key. The run has two more
 * keys, so the limit of this step comes from the norms of all three keys. */
TEST(three_workers_of_a_key_do_not_set_the_limit_of_a_step)
{
	struct core_config cfg = with_ratio();
	struct fleet t;

	cfg.training.mode = MODE_SYNC;
	open_norms_fleet(&t, cfg, WORKERS);
	for (uint32_t i = 0; i < WORKERS; i++)
		set_owner_key(&t, i, "aaabc"[i]);
	honest(&t, 0, WORKERS, 10, 1);
	for (uint32_t i = 0; i < 3; i++)
		(void)check_norm(&t, i, 1e4);
	assert_true(norms_limit_of_step(t.f.core, has_key_a) <= 1.2 * RATIO);
	fixture_close(&t.f);
}

static int compare_norms(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Returns 1 if no other worker of the key has pushed after worker i, or if it has no key. */
static int is_newest(const struct core *c, uint32_t i, uint32_t n)
{
	const struct worker *w = &c->worker[i];
	int newest = 1;

	for (uint32_t k = 0; k < n && w->session.owner[0]; k++)
		newest &= strcmp(w->session.owner, c->worker[k].session.owner) != 0 ||
			  c->worker[k].norms.push_no <= w->norms.push_no;
	return newest;
}

/* Returns the larger one of the two medians, computed in another way: with a sort, and with a
 * comparison of each worker with each other one. */
static double larger_median(const struct core *c, uint32_t n)
{
	double *mean = calloc(n, sizeof(double)), *last = calloc(n, sizeof(double));
	uint32_t keys = 0, voters = 0;

	assert_true(mean && last);
	for (uint32_t i = 0; i < n; i++)
		keys += (uint32_t)is_newest(c, i, n);
	for (uint32_t i = 0; i < n; i++)
		if (keys < 3 || is_newest(c, i, n)) {
			mean[voters] = c->worker[i].norms.mean;
			last[voters++] = c->worker[i].norms.last;
		}
	qsort(mean, voters, sizeof(double), compare_norms);
	qsort(last, voters, sizeof(double), compare_norms);
	double median = fmax(mean[voters / 2], last[voters / 2]);

	free(mean);
	free(last);
	return median;
}

/* Gives each of the n workers random norms, and one of `keys` keys (0: no key). Many norms are
 * equal. */
static void random_norms(struct core *c, uint32_t n, uint32_t keys, struct rng *r)
{
	for (uint32_t i = 0; i < n; i++) {
		struct worker *w = &c->worker[i];

		w->norms.mean = 1 + (double)rng_below(r, 20);
		w->norms.last = 1 + 20 * rng_unit(r);
		w->norms.push_no = 1 + (i * 7919u) % n; /* 7919 is a prime, so all differ */
		if (keys)
			(void)snprintf(w->session.owner, sizeof(w->session.owner), "key%02u",
				(unsigned)rng_below(r, keys));
	}
}

TEST(a_gradient_is_scaled_to_the_medians_of_many_workers)
{
	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct rng r = rng_seed(seed, RNG_SIM, 0);
		struct core_config cfg = with_ratio();
		uint32_t n = 3 + (uint32_t)rng_below(&r, 254);
		uint32_t keys = seed % 3 ? 1 + (uint32_t)rng_below(&r, n) : 0;
		struct fleet t = {0};

		cfg.sessions.max_workers = n;
		fixture_open(&t.f, cfg);
		for (uint32_t i = 0; i < n; i++)
			t.stamp[0] = fixture_join(&t.f, 9 + i, "");
		t.stamp[0] = worker_stamp(t.f.core, &t.f.core->worker[0]);
		random_norms(t.f.core, n, keys, &r);
		double limit = 1e6 * scale_of_push(&t, 0, 1e6);
		double expected = CAP * larger_median(t.f.core, n);

		if (fabs(limit - expected) > 1e-5 * expected)
			fail_msg("seed %" PRIu64
				 ": %u workers, %u keys: scaled to %g instead of %g",
				seed, n, keys, limit, expected);
		fixture_close(&t.f);
	}
}
