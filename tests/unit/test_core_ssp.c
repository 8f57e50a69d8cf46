/*
 * Proves mode ssp (server/core/ssp.c): no worker is more batches ahead of the slowest worker than
 * the bound allows, and no worker waits for a worker that is away.
 * Covers attack A14 of docs/faults.md.
 */
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

#define MANY_BATCHES 400u /* the number of batches of an epoch; no test completes an epoch */

static struct core_config ssp_config(uint32_t bound)
{
	struct core_config cfg = fixture_training();

	cfg.training.mode = MODE_SSP;
	cfg.ssp.bound = bound;
	cfg.durable = 0;
	cfg.leases.max_batches = 1;
	return cfg;
}

static void ssp_open(struct cluster *k, uint32_t bound, uint32_t lease, uint32_t n)
{
	struct core_config cfg = ssp_config(bound);

	cfg.leases.max_batches = lease;
	cluster_open(k, cfg, n, MANY_BATCHES * 10, cluster_ones);
}

/* Push one batch of the worker's grant, as a worker does in this mode. */
static void push_one_batch(struct cluster *k, uint32_t i)
{
	struct cluster_worker *h = &k->worker[i];
	struct work work = h->grant.work;

	h->grant.work.count = 1;
	assert_int_equal(cluster_push(k, i), REJECT_NONE);
	h->grant.work = (struct work){work.epoch, work.first + 1, work.count - 1};
}

/* ---- the bound ------------------------------------------------------------------------------ */

TEST(bound_0_is_lock_step)
{
	struct cluster k;

	ssp_open(&k, 0, 4, 3);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(cluster_request(&k, i), 1);
	for (int round = 0; round < 20; round++) {
		for (uint32_t i = 0; i < 3; i++) {
			assert_int_equal(k.worker[i].grant.work.count, 1);
			push_one_batch(&k, i);
			assert_int_equal(cluster_request(&k, i),
				/* only worker 2 gets work at once: its push ends the wait of all
				 * workers */
				i == 2);
		}
	}
	assert_int_equal(core_stats(k.f.core)->version, 60);
	cluster_close(&k);
}

TEST(one_may_be_as_many_batches_ahead_as_the_bound_says)
{
	for (uint32_t bound = 0; bound < 6; bound++) {
		struct cluster k;
		uint32_t n = 0;

		ssp_open(&k, bound, 1, 2);
		/* worker 1 has work, but does not push */
		assert_int_equal(cluster_request(&k, 1), 1);
		while (cluster_request(&k, 0)) {
			push_one_batch(&k, 0);
			n++;
			assert_in_range(n, 1, bound + 1);
		}
		assert_int_equal(n, bound + 1);
		push_one_batch(&k, 1);
		/* worker 0 has work again, because of the push of worker 1 */
		assert_int_equal(k.worker[0].grant.work.count, 1);
		cluster_close(&k);
	}
}

TEST(a_lease_is_as_long_as_the_bound_allows)
{
	struct cluster k;

	ssp_open(&k, 4, 100, 2);
	assert_int_equal(cluster_request(&k, 0), 1);
	/* 5 batches and no more, because a worker with clock 0 could still join */
	assert_int_equal(k.worker[0].grant.work.count, 5);
	assert_int_equal(cluster_request(&k, 1), 1);
	assert_int_equal(k.worker[1].grant.work.count, 5);
	push_one_batch(&k, 0);
	push_one_batch(&k, 0);
	for (int i = 0; i < 5; i++)
		push_one_batch(&k, 1);
	/* worker 1 has done 5 batches, and worker 0 has done 2 */
	assert_int_equal(cluster_request(&k, 1), 1);
	assert_int_equal(k.worker[1].grant.work.count, 2);
	cluster_close(&k);
}

/* A worker first gets leases of all batches and pushes nothing. Then it pushes all these
 * batches. */
TEST(old_grants_do_not_lead_past_the_bound)
{
	struct core_config cfg = ssp_config(2);
	struct msg_grant grant[20];
	uint32_t accepted = 0;
	struct cluster k;

	cfg.proof_key[0] = 1;
	cluster_open(&k, cfg, 2, MANY_BATCHES * 10, cluster_ones);
	assert_int_equal(cluster_request(&k, 1), 1);
	for (uint32_t i = 0; i < 20; i++) {
		assert_int_equal(cluster_request(&k, 0), 1);
		grant[i] = k.worker[0].grant;
	}
	for (uint32_t i = 0; i < 20; i++) {
		float g[CLUSTER_PARAMS];

		k.worker[0].grant = grant[i];
		struct msg m = cluster_gradient(&k, 0, g);
		m.push.grant_first = grant[i].work.first;
		m.push.grant_count = grant[i].work.count;
		m.push.grant_code = grant[i].code;
		k.worker[0].seq++;
		accepted += fixture_acked(&k.f, k.worker[0].peer, &m).reject == REJECT_NONE;
	}
	/* the bound allows 3 pushes with old grants, and the last push has the newest grant */
	assert_int_equal(accepted, 3 + 1);
	cluster_close(&k);
}

/* ---- absent workers ------------------------------------------------------------------------- */

static void heartbeat_of(struct cluster *k, uint32_t i)
{
	fixture_heartbeat(&k->f, k->worker[i].peer + 1, k->worker[i].s);
	cluster_receive(k);
}

TEST(a_silent_worker_delays_no_worker)
{
	struct cluster k;

	ssp_open(&k, 0, 1, 2);
	cluster_request(&k, 1);
	cluster_request(&k, 0);
	push_one_batch(&k, 0);
	assert_int_equal(cluster_request(&k, 0), 0);
	fixture_tick(&k.f, 200);
	heartbeat_of(&k, 0);
	fixture_tick(&k.f, 200); /* worker 1 (worker id 2) is suspect now */
	cluster_receive(&k);
	assert_int_equal(fixture_worker(&k.f, 2).state, SESSION_SUSPECT);
	assert_int_equal(k.worker[0].grant.work.count, 1);
	for (int i = 0; i < 10; i++) {
		push_one_batch(&k, 0);
		assert_int_equal(cluster_request(&k, 0), 1);
	}
	cluster_close(&k);
}

TEST(a_worker_that_returns_starts_with_the_slowest)
{
	struct cluster k;

	ssp_open(&k, 2, 1, 3);
	for (uint32_t i = 0; i < 3; i++)
		cluster_request(&k, i);
	for (int t = 0; t < 4; t++) { /* worker 2 sends nothing, so it becomes suspect */
		fixture_tick(&k.f, 100);
		heartbeat_of(&k, 0);
		heartbeat_of(&k, 1);
	}
	for (int i = 0; i < 9; i++)
		for (uint32_t w = 0; w < 2; w++) {
			push_one_batch(&k, w);
			assert_int_equal(cluster_request(&k, w), 1);
		}
	heartbeat_of(&k, 2); /* worker 2 returns with the clock of the slowest worker, which is 9 */
	for (uint32_t i = 0; i < 3; i++) {
		push_one_batch(&k, 0);
		/* at i = 2 the clock is 12, which exceeds 9 + bound 2 */
		assert_int_equal(cluster_request(&k, 0), i < 2);
	}
	push_one_batch(&k, 2);
	assert_int_equal(cluster_request(&k, 2), 1);
	/* worker 0 waits, because the clock of worker 1 is still 9 */
	assert_int_equal(k.worker[0].grant.work.count, 0);
	push_one_batch(&k, 1);
	assert_int_equal(k.worker[0].grant.work.count, 1);
	cluster_close(&k);
}

TEST(a_worker_that_joins_late_starts_with_the_slowest)
{
	struct cluster k;

	ssp_open(&k, 1, 1, 1);
	for (int i = 0; i < 7; i++) {
		assert_int_equal(cluster_request(&k, 0), 1);
		push_one_batch(&k, 0);
	}
	k.n = 2;
	cluster_join(&k, 1);
	assert_int_equal(cluster_request(&k, 1), 1);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(cluster_request(&k, 0), 1);
		push_one_batch(&k, 0);
	}
	assert_int_equal(cluster_request(&k, 0), 0); /* the clock is 9, which exceeds 7 + bound 1 */
	cluster_close(&k);
}

/* The training of an epoch must not wait for a worker that evaluates the previous epoch. */
TEST(a_worker_that_evaluates_delays_no_worker)
{
	struct core_config cfg = ssp_config(0);
	struct cluster k;

	cluster_open(&k, cfg, 2, 400, cluster_ones); /* 40 batches */
	cluster_request(&k, 0);
	while (core_training_epoch(k.f.core) == 0) {
		push_one_batch(&k, 0);
		cluster_request(&k, 0);
	}
	assert_int_equal(k.worker[0].grant.kind, GRANT_EVAL);
	for (uint32_t i = 0; i < 2; i++) { /* worker 0 holds the first of the three portions */
		cluster_request(&k, 1);
		cluster_evaluate(&k, 1);
	}
	for (int i = 0; i < 10; i++) {
		assert_int_equal(cluster_request(&k, 1), 1);
		push_one_batch(&k, 1);
	}
	cluster_close(&k);
}

/* The only worker evaluates when another one joins. Later it must not wait until the new worker has
 * computed as many batches. */
TEST(a_worker_that_joins_during_an_evaluation_starts_with_the_evaluator)
{
	struct core_config cfg = ssp_config(1);
	struct cluster k;

	/* the test set has one portion, and an epoch has 40 batches */
	cfg.leases.eval_images = 7;
	cluster_open(&k, cfg, 1, 400, cluster_ones);
	cluster_request(&k, 0);
	while (core_training_epoch(k.f.core) == 0) {
		push_one_batch(&k, 0);
		cluster_request(&k, 0);
	}
	assert_int_equal(k.worker[0].grant.kind, GRANT_EVAL);
	k.n = 2;
	cluster_join(&k, 1);
	assert_int_equal(cluster_request(&k, 1), 1);
	push_one_batch(&k, 1);
	assert_int_equal(cluster_request(&k, 1), 1);
	cluster_evaluate(&k, 0);
	assert_int_equal(cluster_request(&k, 0), 1);
	assert_int_equal(k.f.core->worker[0].ssp.clock, k.f.core->worker[1].ssp.clock);
	cluster_close(&k);
}

/* A worker requests work, closes the connection of this request, and sends heartbeats on the other
 * one. */
TEST(a_worker_that_requests_work_and_hangs_up_delays_no_worker)
{
	struct cluster k;

	ssp_open(&k, 0, 1, 2);
	assert_int_equal(cluster_request(&k, 0), 1);
	assert_int_equal(cluster_request(&k, 1), 1);
	push_one_batch(&k, 1);
	assert_int_equal(cluster_request(&k, 1), 0);
	fixture_gone(&k.f, k.worker[1].peer);
	for (int i = 0; i < 5; i++) {
		push_one_batch(&k, 0);
		assert_int_equal(cluster_request(&k, 0), 1);
	}
	cluster_close(&k);
}

TEST(clocks_survive_a_restart)
{
	struct cluster k;

	ssp_open(&k, 3, 1, 2);
	cluster_request(&k, 1);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(cluster_request(&k, 0), 1);
		push_one_batch(&k, 0);
	}
	assert_int_equal(cluster_request(&k, 0), 0);
	cluster_restart(&k, 2);
	cluster_request(&k, 1);
	assert_int_equal(cluster_request(&k, 0), 0);
	push_one_batch(&k, 1);
	assert_int_equal(k.worker[0].grant.work.count, 1);
	cluster_close(&k);
}

/* ---- any order ------------------------------------------------------------------------------ */

/* The cluster of a run with four workers, and the clocks of the workers. The test computes the
 * clocks from accepted pushes only. */
struct race {
	struct cluster k;
	struct rng r;
	uint64_t clock[4], silent_ms[4];
	int racing[4];
	uint64_t max_ahead;
};

static uint64_t slowest_but(const struct race *a, uint32_t w)
{
	uint64_t min = UINT64_MAX;

	for (uint32_t i = 0; i < 4; i++)
		if (i != w && a->racing[i] && a->clock[i] < min)
			min = a->clock[i];
	return min;
}

/* Record in max_ahead the largest number of batches that a granted batch is ahead of the slowest
 * worker. */
static void race_check(struct race *a)
{
	for (uint32_t i = 0; i < 4; i++) {
		const struct cluster_worker *h = &a->k.worker[i];
		uint64_t min = slowest_but(a, i);

		if (!a->racing[i] || h->grant.work.count == 0 || min == UINT64_MAX)
			continue;
		uint64_t last = a->clock[i] + h->grant.work.count - 1;
		if (last > min && last - min > a->max_ahead)
			a->max_ahead = last - min;
	}
}

/* Update the set of workers that count for the bound. A worker that is silent for longer than
 * suspect_ms does not count. When a silent worker returns, it gets the clock of the slowest worker
 * that counts. */
static void race_members(struct race *a)
{
	for (uint32_t i = 0; i < 4; i++) {
		int in = a->silent_ms[i] <= a->k.f.cfg.sessions.suspect_ms &&
			 a->k.worker[i].request > 0;

		if (in && !a->racing[i]) {
			uint64_t min = slowest_but(a, i);

			if (min != UINT64_MAX && a->clock[i] < min)
				a->clock[i] = min;
		}
		a->racing[i] = in;
	}
}

static void race_step(struct race *a)
{
	uint32_t i = (uint32_t)rng_below(&a->r, 4);
	struct cluster_worker *h = &a->k.worker[i];
	uint64_t dice = rng_below(&a->r, 100);

	/* the time is short enough that a worker may become suspect, but not dead */
	if (dice < 8) {
		uint64_t ms = rng_below(&a->r, 200);

		for (uint32_t w = 0; w < 4; w++)
			a->silent_ms[w] += ms;
		fixture_tick(&a->k.f, ms);
		race_members(a);
		cluster_receive(&a->k);
		for (uint32_t w = 0; w < 4; w++) {
			if (a->silent_ms[w] > 700) {
				a->silent_ms[w] = 0;
				/* the server has withdrawn the grant of the suspect worker */
				a->k.worker[w].grant.work.count = 0;
				heartbeat_of(&a->k, w);
				race_members(a);
			}
		}
	} else if (h->grant.work.count == 0 && h->grant.request == h->request) {
		a->silent_ms[i] = 0;
		cluster_request(&a->k, i);
		race_members(a);
	} else if (h->grant.work.count) {
		if (a->silent_ms[i] > a->k.f.cfg.sessions.suspect_ms)
			return; /* in this test, a suspect worker sends nothing */
		a->silent_ms[i] = 0;
		push_one_batch(&a->k, i);
		a->clock[i]++;
	}
}

TEST(no_worker_is_further_ahead_than_the_bound)
{
	for (uint64_t seed = 1; seed <= 24; seed++) {
		uint32_t bound = (uint32_t)seed % 6;
		struct race a = {.r = rng_seed(seed, RNG_SIM, 0)};

		print_message("seed %llu\n", (unsigned long long)seed);
		ssp_open(&a.k, bound, 1 + (uint32_t)seed % 9, 4);
		for (int i = 0; i < 3000 && a.k.f.core->leases.n_done < 380; i++) {
			race_step(&a);
			race_check(&a);
			assert_true(a.max_ahead <= bound);
		}
		/* all batches are done, so no worker has waited forever */
		assert_int_equal(a.k.f.core->leases.n_done, 380);
		assert_int_equal(a.max_ahead, bound);
		cluster_close(&a.k);
	}
}
