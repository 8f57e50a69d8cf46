/*
 * Proves the invariants numbered in server/core/sync.c. This file also proves that a run equals a
 * serial reference: the reference computes the means of the same gradients in the same order, in
 * double precision.
 */
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

static struct core_config sync_config(uint32_t backups)
{
	struct core_config cfg = fixture_training();

	cfg.training.mode = MODE_SYNC;
	cfg.sync.backup_workers = backups;
	cfg.durable = 0;
	cfg.rate.lr = 0.25;
	return cfg;
}

/* Open a cluster in mode sync, in which no step begins before all `n` workers have joined. */
static void open_sync_cluster(struct cluster *k, struct core_config cfg, uint32_t n,
	uint32_t n_train, cluster_gradient_fn *fn)
{
	cfg.leases.min_workers = n;
	cluster_open(k, cfg, n, n_train, fn);
}

/* Check that the core has made `steps` steps. */
static void assert_steps(const struct cluster *k, uint64_t steps)
{
	assert_int_equal(core_stats(k->f.core)->version, steps);
	assert_int_equal(core_stats(k->f.core)->updates, steps);
}

static void all_ask(struct cluster *k)
{
	for (uint32_t i = 0; i < k->n; i++)
		assert_int_equal(cluster_request(k, i), 1);
}

/* ---- one step ------------------------------------------------------------------------------- */

TEST(a_step_waits_for_all_but_the_backup_workers)
{
	for (uint32_t backups = 0; backups < 4; backups++) {
		struct cluster k;

		open_sync_cluster(&k, sync_config(backups), 4, 400, cluster_ones);
		all_ask(&k);
		for (uint32_t i = 0; i < 4 - backups; i++) {
			assert_steps(&k, 0);
			assert_int_equal(cluster_push(&k, i), REJECT_NONE);
		}
		assert_steps(&k, 1);
		/* the step applies the mean of the gradients, not their sum */
		assert_true(core_weights(k.f.core)[3] == -0.25f);
		cluster_close(&k);
	}
}

TEST(more_backups_than_workers_make_a_step_of_each_gradient)
{
	struct cluster k;

	open_sync_cluster(&k, sync_config(7), 2, 400, cluster_ones);
	all_ask(&k);
	assert_int_equal(cluster_push(&k, 0), REJECT_NONE);
	assert_steps(&k, 1);
	cluster_close(&k);
}

TEST(a_late_gradient_is_dropped_counted_and_its_batch_leased_again)
{
	struct cluster k;
	uint32_t late;

	open_sync_cluster(&k, sync_config(1), 3, 400, cluster_ones);
	all_ask(&k);
	late = k.worker[2].grant.work.first;
	cluster_push(&k, 0);
	cluster_push(&k, 1);
	assert_steps(&k, 1);
	assert_int_equal(k.f.core->leases.batch[late], BATCH_FREE);
	assert_int_equal(cluster_push(&k, 2), REJECT_STALE);
	assert_int_equal(core_stats(k.f.core)->rejected[REJECT_STALE], 0);
	assert_int_equal(core_stats(k.f.core)->superseded, 1);
	assert_int_equal(core_stats(k.f.core)->images, 20);
	/* the late batch now belongs to the next step */
	assert_int_equal(k.f.core->leases.batch[late], BATCH_FREE);
	assert_int_equal(cluster_request(&k, 2), 1);
	assert_int_equal(k.worker[2].grant.version, 1);
	assert_int_equal(cluster_push(&k, 2), REJECT_NONE);
	cluster_close(&k);
}

TEST(no_worker_gets_two_batches_of_one_step)
{
	struct cluster k;

	open_sync_cluster(&k, sync_config(0), 2, 400, cluster_ones);
	all_ask(&k);
	cluster_push(&k, 0);
	assert_int_equal(cluster_request(&k, 0), 0);
	cluster_push(&k, 1);
	assert_steps(&k, 1);
	/* worker 0 has work again, because the step has ended */
	assert_int_equal(k.worker[0].grant.work.count, 1);
	assert_int_equal(k.worker[0].grant.version, 1);
	cluster_close(&k);
}

/* A worker may push the gradient of a batch without a lease. But only one push of each worker
 * counts in a step. */
TEST(no_worker_counts_twice_in_one_step)
{
	struct cluster k;

	open_sync_cluster(&k, sync_config(0), 2, 400, cluster_ones);
	all_ask(&k);
	cluster_push(&k, 0);
	k.worker[0].grant.work = (struct work){0, 30, 1};
	assert_int_equal(cluster_push(&k, 0), REJECT_WORK);
	assert_int_equal(k.f.core->accumulator.pushes, 1);
	/* batch 30 belongs to no open step */
	assert_int_equal(k.f.core->leases.batch[30], BATCH_SHUT);
	cluster_push(&k, 1);
	assert_steps(&k, 1);
	assert_int_equal(core_stats(k.f.core)->images, 20);
	cluster_close(&k);
}

/* ---- members -------------------------------------------------------------------------------- */

/* A worker that is live when the step begins is a member, even if it has not requested a lease. */
TEST(a_step_waits_for_a_member_that_has_not_asked)
{
	struct cluster k;

	open_sync_cluster(&k, sync_config(0), 3, 400, cluster_ones);
	for (uint32_t i = 0; i < 2; i++) {
		cluster_request(&k, i);
		cluster_push(&k, i);
	}
	assert_steps(&k, 0);
	/* no grant: worker 0 must not get a second batch of the same step */
	assert_int_equal(cluster_request(&k, 0), 0);
	cluster_request(&k, 2);
	assert_int_equal(cluster_push(&k, 2), REJECT_NONE);
	assert_steps(&k, 1);
	assert_int_equal(core_stats(k.f.core)->images, 30);
	cluster_close(&k);
}

/* Returns large or small gradients, depending on the batch. If the core adds the gradients in the
 * order of the batches, the two large gradients of a step cancel first. In another order, rounding
 * errors would lose the small gradients. */
static double cluster_rough(uint32_t i, const float *w, double *g)
{
	static const double value[] = {1e15, -1e15, 0.1, 0.2};

	(void)w;
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		g[j] = value[i % 4] * (i % 4 < 2 ? 1 : (double)(1 + j % 3));
	return 0.5;
}

/* Make a complete run in which the members request and push in a random order. Each `seed` gives
 * another order. Writes the final weights to `weights`. */
static void permuted_run(uint64_t seed, float *weights)
{
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	struct core_config cfg = sync_config(0);
	struct cluster k;

	open_sync_cluster(&k, cfg, 4, 740, cluster_rough);
	cluster_run(&k, 4, &r);
	/* 19 steps, because each step has 4 of the 74 batches */
	assert_int_equal(core_epoch(k.f.core, 1)->updates, 19);
	assert_steps(&k, 38);
	memcpy(weights, core_weights(k.f.core), FIXTURE_PARAMS * sizeof(float));
	cluster_close(&k);
}

/* In this test step k of an epoch must have batches 4 k to 4 k + 3, no matter which workers get
 * them. */
TEST(a_step_has_the_next_batches_of_the_epoch)
{
	struct rng r = rng_seed(3, RNG_SIM, 0);
	struct cluster k;

	open_sync_cluster(&k, sync_config(0), 4, 735, cluster_ones);
	for (int n = 0; n < 100000 && k.f.core->run.ending == END_NOT; n++) {
		const struct msg_grant *g = &k.worker[rng_below(&r, 4)].grant;

		if (g->kind == GRANT_TRAIN && g->work.count)
			assert_int_equal(g->work.first / 4, g->version - 19 * g->work.epoch);
		cluster_act(&k, (uint32_t)rng_below(&r, 4));
	}
	assert_int_equal(k.f.core->run.ending, END_OVER);
	cluster_close(&k);
}

/* Returns weight j after two epochs of a serial run. Each epoch has 74 batches: four in each step,
 * and two in the last step. */
static double rough_end(size_t j)
{
	float w[FIXTURE_PARAMS] = {0};
	double end = 0, g[FIXTURE_PARAMS];

	for (uint32_t epoch = 0; epoch < 2; epoch++)
		for (uint32_t first = 0; first < 74; first += 4) {
			uint32_t n = first + 4 < 74 ? 4 : 74 - first;
			double sum = 0;

			for (uint32_t i = first; i < first + n; i++) {
				(void)cluster_rough(i, w, g);
				sum += (double)(float)g[j];
			}
			end -= 0.25 * sum / n;
		}
	return end;
}

TEST(any_order_of_arrival_makes_the_same_bytes)
{
	float first[FIXTURE_PARAMS], other[FIXTURE_PARAMS];

	permuted_run(1, first);
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		assert_true(fabs((double)first[j] - rough_end(j)) < 1e-5);
	for (uint64_t seed = 2; seed <= 50; seed++) {
		permuted_run(seed, other);
		assert_memory_equal(first, other, sizeof(first));
	}
}

/* Returns the value that the gradient of batch `i` has at every coordinate. Every eleventh batch
 * has a gradient 40 times larger than that of the others, and no two batches have the same
 * value. */
static double spike(uint32_t i)
{
	return (i % 11 == 2 ? 40 : 1) * (1 + i / 1024.0);
}

static double cluster_spikes(uint32_t i, const float *w, double *g)
{
	/* in the second epoch the gradients differ slightly, so that no gradient occurs twice */
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		g[j] = spike(i) * (1 + (w[0] < -8 ? 1 / 4096.0 : 0));
	return 0.5;
}

/* Returns the sum of the gradients of batches `first` to `first` + 3 after each gradient is limited
 * to 4 times their median, the third smallest of the four. At most one of these gradients is a
 * spike. */
static double limited_sum(uint32_t first)
{
	double sum = 0, others = 0;
	uint32_t at = first;

	for (uint32_t i = first; i < first + 4; i++) {
		at = i % 11 == 2 ? i : at;
		sum += spike(i);
	}
	if (at % 11 != 2)
		return sum;
	others = spike(at == first + 3 ? first + 2 : first + 3);
	return sum - spike(at) + 4 * others;
}

TEST(a_large_gradient_is_scaled_alike_in_any_order_of_arrival)
{
	float first = 0;

	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct rng r = rng_seed(seed, RNG_SIM, 0);
		struct core_config cfg = sync_config(0);
		struct cluster k;

		cfg.limits.norm_ratio = 4;
		open_sync_cluster(&k, cfg, 4, 740, cluster_spikes);
		cluster_run(&k, 4, &r);
		float end = core_weights(k.f.core)[0];
		cluster_close(&k);
		first = seed == 1 ? end : first;
		assert_true(end >= first && end <= first);
	}
	double end = 0;
	for (uint32_t i = 0; i < 72; i += 4)
		end -= 0.25 * limited_sum(i) / 4;
	end -= 0.25 * (spike(72) + spike(73)) / 2;
	assert_true(fabs((double)first - 2 * end) < 0.01);
}

/* The gradients of the first step are 1 at every coordinate. In later steps only every third
 * gradient is not 0. */
static double mostly_zero(uint32_t i, const float *w, double *g)
{
	(void)w;
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		g[j] = i < 3 || i % 3 == 2;
	return 0.5;
}

/* If most gradients of a step are 0, their median says nothing about the others. */
TEST(zeros_do_not_scale_the_other_gradients)
{
	struct core_config cfg = sync_config(0);
	struct cluster k;

	cfg.limits.norm_ratio = 4;
	open_sync_cluster(&k, cfg, 3, 300, mostly_zero);
	for (uint32_t step = 0; step < 3; step++) {
		float before = core_weights(k.f.core)[0];

		all_ask(&k);
		for (uint32_t i = 0; i < 3; i++)
			assert_int_equal(cluster_push(&k, i), REJECT_NONE);
		assert_steps(&k, step + 1);
		float moved = before - core_weights(k.f.core)[0];
		assert_true(fabsf(moved - 0.25f / (step ? 3 : 1)) < 1e-6f);
	}
	cluster_close(&k);
}

/* ---- absent workers ------------------------------------------------------------------------- */

static void silence(struct cluster *k, uint32_t ms, uint32_t but)
{
	for (uint32_t i = 0; i < ms; i += 100) {
		fixture_tick(&k->f, 100);
		cluster_receive(k);
		for (uint32_t w = 0; w < k->n; w++) {
			if (w == but)
				continue;
			fixture_heartbeat(&k->f, k->worker[w].peer + 1, k->worker[w].s);
			cluster_receive(k);
		}
	}
}

TEST(a_step_does_not_wait_for_a_silent_worker)
{
	struct cluster k;

	open_sync_cluster(&k, sync_config(0), 3, 400, cluster_ones);
	all_ask(&k);
	cluster_push(&k, 0);
	cluster_push(&k, 1);
	assert_steps(&k, 0);
	silence(&k, 400, 2);
	assert_int_equal(fixture_worker(&k.f, 3).state, SESSION_SUSPECT);
	assert_steps(&k, 1);
	for (int i = 0; i < 3; i++) { /* the other two workers make steps without worker 2 */
		cluster_request(&k, 0);
		cluster_request(&k, 1);
		cluster_push(&k, 0);
		cluster_push(&k, 1);
	}
	assert_steps(&k, 4);
	/* one short step: the first step ended with two of three gradients */
	assert_int_equal(core_stats(k.f.core)->steps_short, 1);
	/* worker 2 returns in the middle of a step */
	assert_int_equal(cluster_push(&k, 2), REJECT_WORK);
	assert_int_equal(core_stats(k.f.core)->superseded, 1);
	assert_int_equal(cluster_request(&k, 2), 0);
	for (uint32_t i = 0; i < 2; i++) {
		cluster_request(&k, i);
		cluster_push(&k, i);
	}
	assert_steps(&k, 5);
	for (uint32_t i = 0; i < 2; i++) { /* in the next step worker 2 is a member */
		cluster_request(&k, i);
		cluster_push(&k, i);
	}
	assert_steps(&k, 5);
	assert_int_equal(k.worker[2].grant.work.count, 1);
	cluster_push(&k, 2);
	assert_steps(&k, 6);
	cluster_close(&k);
}

TEST(a_gradient_of_a_dead_worker_stays_in_the_step)
{
	struct cluster k;

	open_sync_cluster(&k, sync_config(0), 2, 400, cluster_ones);
	all_ask(&k);
	cluster_push(&k, 1);
	silence(&k, 1200, 1);
	assert_int_equal(fixture_worker(&k.f, 2).state, SESSION_DEAD);
	assert_steps(&k, 0);
	cluster_push(&k, 0);
	assert_steps(&k, 1);
	assert_int_equal(core_stats(k.f.core)->images, 20);
	cluster_close(&k);
}

TEST(the_last_step_of_an_epoch_has_the_remaining_batches)
{
	struct cluster k;

	/* the epoch has a step of 4 batches and a step of 3; the last batch has 5 images */
	open_sync_cluster(&k, sync_config(0), 4, 65, cluster_ones);
	all_ask(&k);
	for (uint32_t i = 0; i < 4; i++)
		cluster_push(&k, i);
	assert_steps(&k, 1);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(cluster_request(&k, i), 1);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(core_training_epoch(k.f.core), 0);
		assert_int_equal(cluster_push(&k, i), REJECT_NONE);
	}
	assert_steps(&k, 2);
	assert_int_equal(core_training_epoch(k.f.core), 1);
	assert_int_equal(core_epoch(k.f.core, 0)->images, 65);
	assert_int_equal(core_epoch(k.f.core, 0)->updates, 2);
	cluster_close(&k);
}

/* ---- N of N + b ----------------------------------------------------------------------------- */

static struct core_config backup_config(uint32_t workers, uint32_t backups)
{
	struct core_config cfg = sync_config(backups);

	cfg.sync.workers = workers;
	return cfg;
}

/* A step uses the first N gradients, and b further workers are backups. If the run has more than N
 * + b workers, the first N + b that request work get a batch. All other workers wait for the next
 * step. */
TEST(the_first_n_of_n_plus_b_gradients_make_a_step)
{
	struct cluster k;
	uint32_t late;

	open_sync_cluster(&k, backup_config(2, 1), 4, 400, cluster_ones);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(cluster_request(&k, i), 1);
	late = k.worker[0].grant.work.first;
	assert_int_equal(cluster_push(&k, 1), REJECT_NONE);
	assert_steps(&k, 0);
	assert_int_equal(cluster_push(&k, 2), REJECT_NONE);
	assert_steps(&k, 1);
	assert_int_equal(core_stats(k.f.core)->images, 20);
	assert_int_equal(
		/* grants the remaining batch, with which the next step begins */
		cluster_request(&k, 3), 1);
	assert_int_equal(k.worker[3].grant.work.first, late);
	assert_int_equal(cluster_push(&k, 0), REJECT_STALE);
	assert_int_equal(core_stats(k.f.core)->superseded, 1);
	/* worker 3 now holds the batch of worker 0 */
	assert_int_equal(k.f.core->leases.batch[late], BATCH_LEASED);
	assert_int_equal(core_stats(k.f.core)->steps_short, 0);
	cluster_close(&k);
}

TEST(a_step_of_fewer_than_n_live_workers_is_short_and_reported)
{
	struct core_config cfg = backup_config(3, 1);
	struct cluster k;

	open_sync_cluster(&k, cfg, 2, 65, cluster_ones); /* 7 batches */
	for (int i = 0; i < 3; i++) {
		all_ask(&k);
		cluster_push(&k, 0);
		assert_steps(&k, (uint64_t)i);
		cluster_push(&k, 1);
		assert_steps(&k, (uint64_t)i + 1);
		assert_int_equal(core_stats(k.f.core)->steps_short, i + 1);
	}
	cluster_request(&k, 0);
	cluster_push(&k, 0);
	assert_int_equal(core_epoch(k.f.core, 0)->updates, 4);
	/* the last step is not short, because the epoch had only one batch left */
	assert_int_equal(core_stats(k.f.core)->steps_short, 3);
	cluster_close(&k);
}

/* ---- members that come and go --------------------------------------------------------------- */

TEST(a_worker_that_joins_during_a_step_is_in_the_next_one)
{
	struct cluster k;

	open_sync_cluster(&k, sync_config(0), 2, 400, cluster_ones);
	all_ask(&k);
	cluster_push(&k, 0);
	k.n = 3;
	cluster_join(&k, 2);
	assert_int_equal(cluster_request(&k, 2), 0);
	cluster_push(&k, 1);
	assert_steps(&k, 1); /* the step has not waited for worker 2, which joined during it */
	assert_int_equal(k.worker[2].grant.work.count, 1);
	cluster_request(&k, 0);
	cluster_request(&k, 1);
	cluster_push(&k, 0);
	cluster_push(&k, 1);
	assert_steps(&k, 1);
	cluster_push(&k, 2);
	assert_steps(&k, 2);
	cluster_close(&k);
}

/* Let worker i leave with BYE. */
static void leave_with_bye(struct cluster *k, uint32_t i)
{
	fixture_bye(&k->f, k->worker[i].peer, k->worker[i].s);
	cluster_receive(k);
}

TEST(a_member_that_leaves_is_not_waited_for)
{
	for (int asked = 0; asked < 3; asked++) {
		struct cluster k;

		(void)state;
		open_sync_cluster(&k, sync_config(0), 3, 400, cluster_ones);
		if (asked)
			cluster_request(&k, 2);
		if (asked == 2)
			cluster_push(&k, 2);
		for (uint32_t i = 0; i < 2; i++) {
			cluster_request(&k, i);
			cluster_push(&k, i);
			assert_steps(&k, asked == 2 && i == 1 ? 1 : 0);
		}
		leave_with_bye(&k, 2);
		assert_steps(&k, 1);
		assert_int_equal(core_stats(k.f.core)->steps_short, asked < 2);
		assert_int_equal(core_stats(k.f.core)->images, asked < 2 ? 20 : 30);
		cluster_close(&k);
	}
}

TEST(a_step_without_members_begins_again)
{
	struct cluster k;

	open_sync_cluster(&k, sync_config(0), 2, 400, cluster_ones);
	all_ask(&k);
	k.n = 3;
	cluster_join(&k, 2);
	assert_int_equal(cluster_request(&k, 2), 0);
	leave_with_bye(&k, 0);
	assert_int_equal(k.worker[2].grant.work.count, 0);
	leave_with_bye(&k, 1);
	cluster_granted(&k, 2, 0, 1);
	assert_int_equal(cluster_push(&k, 2), REJECT_NONE);
	assert_steps(&k, 1);
	assert_int_equal(core_stats(k.f.core)->steps_short, 0);
	cluster_close(&k);
}

/* A worker sends heartbeats but never requests work. The steps must not wait forever for this
 * worker. */
TEST(a_member_that_requests_no_work_is_left_out_until_it_does)
{
	struct core_config cfg = sync_config(0);
	struct cluster k;

	open_sync_cluster(&k, cfg, 2, 400, cluster_ones);
	cluster_request(&k, 0);
	cluster_push(&k, 0);
	silence(&k, cfg.sessions.dead_ms - 100, CLUSTER_WORKERS);
	assert_steps(&k, 0);
	silence(&k, 300, CLUSTER_WORKERS);
	assert_steps(&k, 1);
	assert_int_equal(core_stats(k.f.core)->steps_short, 1);
	cluster_request(&k, 0);
	cluster_push(&k, 0);
	assert_steps(&k, 2);
	assert_int_equal(cluster_request(&k, 1), 0); /* now worker 1 requests work */
	cluster_request(&k, 0);
	cluster_push(&k, 0);
	assert_steps(&k, 3);
	cluster_request(&k, 0);
	cluster_push(&k, 0);
	assert_steps(&k, 3);
	cluster_push(&k, 1);
	assert_steps(&k, 4);
	cluster_close(&k);
}

/* A worker requests work, closes the connection of this request, and sends heartbeats on the other
 * one. The steps must not wait forever for this worker. */
TEST(a_member_that_requests_work_and_hangs_up_is_left_out)
{
	struct core_config cfg = sync_config(0);
	struct cluster k;

	open_sync_cluster(&k, cfg, 2, 400, cluster_ones);
	all_ask(&k);
	cluster_push(&k, 1);
	/* no grant: worker 1 must wait for the next step */
	assert_int_equal(cluster_request(&k, 1), 0);
	fixture_gone(&k.f, k.worker[1].peer);
	cluster_push(&k, 0);
	assert_steps(&k, 1);
	cluster_request(&k, 0);
	cluster_push(&k, 0);
	assert_steps(&k, 1); /* the second step waits, because worker 1 may come back soon */
	silence(&k, cfg.sessions.dead_ms + 300, CLUSTER_WORKERS);
	assert_steps(&k, 2);
	cluster_close(&k);
}

/* A worker that evaluates is a member of the step, too, because it will push after the
 * evaluation. */
TEST(a_step_waits_for_members_that_evaluate)
{
	struct cluster k;

	open_sync_cluster(&k, sync_config(0), 2, 40, cluster_ones);
	for (int i = 0; i < 2; i++) {
		all_ask(&k);
		cluster_push(&k, 0);
		cluster_push(&k, 1);
	}
	assert_int_equal(core_training_epoch(k.f.core), 1);
	cluster_request(&k, 0);
	assert_int_equal(k.worker[0].grant.kind, GRANT_EVAL);
	for (int i = 0; i < 2; i++) { /* worker 1 evaluates two of the three portions */
		cluster_request(&k, 1);
		cluster_evaluate(&k, 1);
	}
	assert_int_equal(cluster_request(&k, 1), 1);
	cluster_push(&k, 1);
	assert_steps(&k, 2);
	cluster_evaluate(&k, 0);
	assert_int_equal(cluster_request(&k, 0), 1);
	cluster_push(&k, 0);
	assert_steps(&k, 3);
	cluster_close(&k);
}

/* ---- a restart ------------------------------------------------------------------------------ */

TEST(accumulated_gradients_survive_a_restart)
{
	struct cluster k;

	open_sync_cluster(&k, sync_config(0), 3, 400, cluster_bowl);
	all_ask(&k);
	cluster_push(&k, 0);
	cluster_push(&k, 1);
	float before = k.f.core->accumulator.part[1].g[5];
	cluster_restart(&k, 3);
	assert_int_equal(k.f.core->accumulator.pushes, 2);
	assert_true(k.f.core->accumulator.part[1].g[5] == before);
	assert_steps(&k, 0);
	/* no grant, because this step already has a gradient of worker 0 */
	assert_int_equal(cluster_request(&k, 0), 0);
	/* accepted, although worker 2 computed this gradient before the crash */
	assert_int_equal(cluster_push(&k, 2), REJECT_NONE);
	assert_steps(&k, 1);
	cluster_close(&k);
}

/* The core accepts no gradient that could make a value infinite. It accepts no snapshot with such a
 * gradient either: the step would apply it without another check. */
TEST(a_snapshot_with_a_gradient_that_no_step_can_apply_is_refused)
{
	struct core_config cfg = sync_config(0);
	struct cluster k;

	cfg.optim.kind = OPTIM_ADAGRAD;
	open_sync_cluster(&k, cfg, 2, 400, cluster_bowl);
	all_ask(&k);
	cluster_push(&k, 0);
	for (int huge = 0; huge <= 1; huge++) {
		struct core_fixture twin;
		const char *why = NULL;

		if (huge)
			k.f.core->accumulator.part[0].g[5] = 1e30f;
		struct core_snapshot img = fixture_save(&k.f);
		assert_int_equal(
			fixture_read(&twin, k.f.cfg, &img, &why), huge ? PS_ECHECKPOINT : PS_OK);
		free(twin.memory);
		fixture_drop(&img);
	}
	cluster_close(&k);
}

/* The snapshot lacks the accepted gradients of the first two steps. The workers replay the pushes
 * of these gradients, with the verdict that the server accepted them. */
TEST(replays_are_counted_though_their_step_is_not_there_yet)
{
	struct core_snapshot old;
	struct core_config cfg;
	struct cluster k;
	struct msg replay[2][2];
	static float g[2][2][CLUSTER_PARAMS];

	open_sync_cluster(&k, sync_config(0), 2, 400, cluster_ones);
	old = fixture_save(&k.f);
	for (int step = 0; step < 2; step++) {
		all_ask(&k);
		for (uint32_t i = 0; i < 2; i++) {
			replay[step][i] = cluster_gradient(&k, i, g[step][i]);
			assert_int_equal(cluster_push(&k, i), REJECT_NONE);
		}
	}
	assert_steps(&k, 2);
	cfg = k.f.cfg;
	fixture_close(&k.f);
	fixture_load(&k.f, cfg, &old);
	fixture_drop(&old);
	for (uint32_t i = 0; i < 2; i++) {
		struct msg m = fixture_resume(k.worker[i].s, 2, 0);

		m.hello.data = k.data;
		fixture_message(&k.f, k.worker[i].peer, &m);
		k.worker[i].s = fixture_sent(&k.f, k.worker[i].peer, MSG_WELCOME)->welcome.stamp;
	}
	for (int step = 0; step < 2; step++)
		for (uint32_t i = 0; i < 2; i++) {
			struct msg *m = &replay[step][i];

			m->push.stamp = k.worker[i].s;
			m->push.verdict = VERDICT_OK;
			m->push.slices.slice[0].data = g[step][i];
			fixture_applied(&k.f, k.worker[i].peer, m);
		}
	assert_int_equal(core_stats(k.f.core)->images, 40);
	assert_int_equal(core_stats(k.f.core)->rejected[REJECT_STALE], 0);
	assert_steps(&k, 2); /* the core makes as many steps as without a crash */
	assert_true(core_weights(k.f.core)[0] == -0.5f);
	cluster_close(&k);
}

/* ---- the serial reference ------------------------------------------------------------------- */

#define MAX_STEPS 400u

/* For each step: the sum of the accepted gradients, each multiplied by its number of images. */
struct step_sums {
	double sum[MAX_STEPS][FIXTURE_PARAMS], images[MAX_STEPS];
	uint32_t members[MAX_STEPS];
};

struct serial {
	double w[FIXTURE_PARAMS], v[FIXTURE_PARAMS], s[FIXTURE_PARAMS];
};

static void serial_update(
	struct serial *a, const struct optim *o, double lr, uint32_t t, size_t j, double g)
{
	switch (o->kind) {
	case OPTIM_MOMENTUM:
		a->v[j] = t == 1 ? g : o->momentum * a->v[j] + g;
		a->w[j] -= lr * a->v[j];
		break;
	case OPTIM_ADAM:
		a->v[j] = o->beta1 * a->v[j] + (1 - o->beta1) * g;
		a->s[j] = o->beta2 * a->s[j] + (1 - o->beta2) * g * g;
		a->w[j] -= lr * (a->v[j] / (1 - pow(o->beta1, t))) /
			   (sqrt(a->s[j] / (1 - pow(o->beta2, t))) + o->eps);
		break;
	default:
		a->w[j] -= lr * g;
	}
}

static void push_into(struct cluster *k, struct step_sums *d, uint32_t i)
{
	float g[CLUSTER_PARAMS];
	struct msg m = cluster_gradient(k, i, g);
	uint64_t version = core_stats(k->f.core)->version;

	if (cluster_push(k, i) != REJECT_NONE)
		return;
	assert_in_range(version, 0, MAX_STEPS - 1);
	d->members[version]++;
	d->images[version] += m.push.images;
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		d->sum[version][j] += m.push.images * (double)g[j];
}

/* Returns the largest difference between the weights of the run and those of the serial
 * reference. */
static double against_serial(const struct cluster *k, const struct step_sums *d)
{
	struct serial a = {0};
	double max = 0;

	for (uint32_t t = 1; t <= core_stats(k->f.core)->version; t++)
		for (size_t j = 0; j < FIXTURE_PARAMS; j++)
			serial_update(&a, &k->f.cfg.optim, k->f.cfg.rate.lr, t, j,
				d->sum[t - 1][j] / d->images[t - 1]);
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		max = fmax(max, fabs(a.w[j] - (double)core_weights(k->f.core)[j]));
	return max;
}

/* Make a complete run of five workers that act in random order, with restarts of the server.
 * Compare the weights of the run with those of the serial reference. */
static void assert_equals_serial_run(enum optim_kind kind, uint64_t seed)
{
	static struct step_sums d;
	struct core_config cfg = sync_config((uint32_t)seed % 3);
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	struct cluster k;

	memset(&d, 0, sizeof(d));
	cfg.optim.kind = kind;
	cfg.rate.lr = kind == OPTIM_ADAM ? 0.05 : 0.02;
	open_sync_cluster(&k, cfg, 5, 735, cluster_bowl);
	for (int n = 0; n < 100000 && !fixture_count(&k.f, EFFECT_FINISH); n++) {
		uint32_t i = (uint32_t)rng_below(&r, 5);

		if (rng_below(&r, 50) == 0)
			cluster_restart(&k, 5);
		else if (k.worker[i].grant.kind == GRANT_TRAIN && k.worker[i].grant.work.count)
			push_into(&k, &d, i);
		else
			cluster_act(&k, i);
	}
	assert_int_equal(fixture_count(&k.f, EFFECT_FINISH), 1);
	for (uint32_t e = 0; e < 2; e++)
		assert_int_equal(core_epoch(k.f.core, e)->images, 735);
	for (uint64_t v = 0; v < core_stats(k.f.core)->version; v++)
		assert_in_range(d.members[v], 1, 5);
	double max = against_serial(&k, &d);
	print_message("optimizer %d, seed %llu: %.1e after %llu steps\n", (int)kind,
		(unsigned long long)seed, max, (unsigned long long)core_stats(k.f.core)->version);
	assert_true(max < 1e-5);
	cluster_close(&k);
}

TEST(a_sync_run_equals_a_serial_one)
{
	const enum optim_kind kinds[] = {OPTIM_SGD, OPTIM_MOMENTUM, OPTIM_ADAM};

	for (size_t i = 0; i < 3; i++)
		for (uint64_t seed = 1; seed <= 10; seed++)
			assert_equals_serial_run(kinds[i], seed);
}

/* A crash has lost two steps of the only worker. The worker's replays must make two steps again,
 * because one step with the mean of both gradients would give other weights. */
TEST(replayed_steps_stay_steps)
{
	struct core_config cfg = sync_config(0);
	const float g[2][FIXTURE_PARAMS] = {{1, 1}, {4, 4}};
	struct core_fixture f;
	struct stamp s;

	cfg.sessions.recovery_ms = 100000;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	fixture_restart(&f);
	s = fixture_come_back(&f, 9, s, 3);
	for (uint32_t i = 0; i < 2; i++) {
		struct msg m = fixture_push(s, i + 1);

		fixture_slice(&m, 0, FIXTURE_PARAMS, g[i]);
		fixture_work(&m, 0, i, 1);
		m.push.verdict = VERDICT_OK;
		m.push.base_version = i;
		fixture_applied(&f, 9, &m);
		assert_int_equal(core_stats(f.core)->version, i);
	}
	/* weights after the first step, which the second replay has ended */
	assert_true(core_weights(f.core)[1] == -0.25f);
	fixture_tick(&f, cfg.sessions.recovery_ms);
	assert_int_equal(core_stats(f.core)->updates, 2);
	assert_true(core_weights(f.core)[1] == -1.25f);
	fixture_close(&f);
}
