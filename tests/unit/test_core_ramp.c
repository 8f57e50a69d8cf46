/*
 * Proves the warm start and the ramp that follows it (server/core/downpour.c): one worker trains
 * alone for --warm-start-updates, then one more worker starts after every --warm-start-ramp
 * updates, in downpour and in ssp.
 */
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

#define WARM 10u
#define RAMP 7u

static struct core_config ramp_config(enum mode mode)
{
	struct core_config cfg = fixture_training();

	cfg.training.mode = mode;
	cfg.training.batch_size = 1;
	cfg.rate.lr = 0.001;
	cfg.ssp.bound = 2;
	cfg.leases.max_batches = 1;
	cfg.durable = 0;
	cfg.leases.warm_start_updates = WARM;
	cfg.leases.warm_start_ramp = RAMP;
	return cfg;
}

static uint32_t at_work(const struct cluster *k)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < k->n; i++)
		n += k->worker[i].grant.kind == GRANT_TRAIN && k->worker[i].grant.work.count;
	return n;
}

static uint32_t max_at(uint64_t version)
{
	uint64_t max = version < WARM ? 1 : 2 + (version - WARM) / RAMP;

	return max < CLUSTER_WORKERS ? (uint32_t)max : CLUSTER_WORKERS;
}

/* Run a cluster in which each worker requests a lease as often as possible. Returns the first
 * version of the weights at which all workers have work. */
static uint64_t ramp_run(enum mode mode, uint64_t seed)
{
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	struct core_config cfg = ramp_config(mode);
	uint64_t version = 0, all_at = UINT64_MAX;
	struct cluster k;

	cluster_open(&k, cfg, CLUSTER_WORKERS, 200, cluster_ones);
	while (version < 150) {
		for (uint32_t i = 0; i < CLUSTER_WORKERS; i++)
			if (k.worker[i].grant.work.count == 0)
				cluster_act(&k, i);
		assert_in_range(at_work(&k), 1, max_at(version));
		/* not in ssp, where some workers wait for the slowest worker */
		if (mode == MODE_DOWNPOUR)
			assert_int_equal(at_work(&k), max_at(version));
		if (at_work(&k) == CLUSTER_WORKERS && all_at == UINT64_MAX)
			all_at = version;
		uint32_t i = (uint32_t)rng_below(&r, CLUSTER_WORKERS);
		if (k.worker[i].grant.work.count)
			assert_int_equal(cluster_push(&k, i), REJECT_NONE);
		version = core_stats(k.f.core)->version;
	}
	cluster_close(&k);
	return all_at;
}

TEST(one_more_worker_starts_after_every_ramp_updates)
{
	for (uint64_t seed = 1; seed <= 20; seed++)
		assert_int_equal(ramp_run(MODE_DOWNPOUR, seed),
			WARM + (uint64_t)(CLUSTER_WORKERS - 2) * RAMP);
}

TEST(in_ssp_the_bound_holds_besides)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		uint64_t all_at = ramp_run(MODE_SSP, seed);

		assert_true(all_at >= WARM + (uint64_t)(CLUSTER_WORKERS - 2) * RAMP);
		assert_true(all_at < 150);
	}
}

static void start_ramp(struct cluster *k, uint32_t warm, uint32_t ramp)
{
	struct core_config cfg = ramp_config(MODE_DOWNPOUR);

	cfg.leases.warm_start_updates = warm;
	cfg.leases.warm_start_ramp = ramp;
	cluster_open(k, cfg, CLUSTER_WORKERS, 200, cluster_ones);
	for (uint32_t i = 0; i < CLUSTER_WORKERS; i++)
		cluster_request(k, i);
}

TEST(without_a_ramp_all_start_at_once)
{
	struct cluster k;

	start_ramp(&k, 1, 0);
	assert_int_equal(at_work(&k), 1);
	cluster_push(&k, 0);
	cluster_request(&k, 0);
	assert_int_equal(at_work(&k), CLUSTER_WORKERS);
	cluster_close(&k);
	start_ramp(&k, 0, RAMP); /* without a warm start there is no ramp */
	assert_int_equal(at_work(&k), CLUSTER_WORKERS);
	cluster_close(&k);
}

/* A silent worker makes room for another worker: the ramp counts the workers that are at work, not
 * all that have begun. */
TEST(a_suspected_worker_makes_room)
{
	struct cluster k;

	start_ramp(&k, 1, 1000);
	cluster_push(&k, 0);
	cluster_request(&k, 0);
	assert_int_equal(at_work(&k), 2);
	for (int i = 0; i < 4; i++) {
		fixture_tick(&k.f, 100);
		for (uint32_t h = 1; h < CLUSTER_WORKERS; h++)
			fixture_heartbeat(&k.f, k.worker[h].peer, k.worker[h].s);
	}
	assert_int_equal(fixture_worker(&k.f, 1).state, SESSION_SUSPECT);
	uint32_t granted = 0;
	for (uint32_t i = 0; i < CLUSTER_WORKERS; i++)
		granted += k.f.core->worker[i].session.state == SESSION_LIVE &&
			   k.f.core->worker[i].lease.grant.request > 0;
	assert_int_equal(granted, 2);
	cluster_close(&k);
}
