/*
 * Proves the warm start and the ramp behind it (server/core/downpour.c): one worker alone for
 * --warm-start-updates, then one more after every --warm-start-ramp updates, in downpour and in ssp.
 */
#include "tests/unit/core_modes.h"

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

static uint32_t at_work(const struct crew *k)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < k->n; i++)
		n += k->hand[i].grant.kind == GRANT_TRAIN && k->hand[i].grant.work.count;
	return n;
}

static uint32_t most_at(uint64_t version)
{
	uint64_t most = version < WARM ? 1 : 2 + (version - WARM) / RAMP;

	return most < CREW ? (uint32_t)most : CREW;
}

/* Everybody asks as often as it can; returns the version from which all were at work at once. */
static uint64_t ramp_run(enum mode mode, uint64_t seed)
{
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	struct core_config cfg = ramp_config(mode);
	uint64_t version = 0, all_at = UINT64_MAX;
	struct crew k;

	crew_open(&k, cfg, CREW, 200, crew_ones);
	while (version < 150) {
		for (uint32_t i = 0; i < CREW; i++)
			if (k.hand[i].grant.work.count == 0)
				crew_act(&k, i);
		assert_in_range(at_work(&k), 1, most_at(version));
		if (mode == MODE_DOWNPOUR) /* in ssp some wait for the slowest */
			assert_int_equal(at_work(&k), most_at(version));
		if (at_work(&k) == CREW && all_at == UINT64_MAX)
			all_at = version;
		uint32_t i = (uint32_t)rng_below(&r, CREW);
		if (k.hand[i].grant.work.count)
			assert_int_equal(crew_push(&k, i), REJECT_NONE);
		version = core_stats(k.f.core)->version;
	}
	crew_close(&k);
	return all_at;
}

static void one_more_worker_starts_after_every_ramp_updates(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++)
		assert_int_equal(ramp_run(MODE_DOWNPOUR, seed), WARM + (uint64_t)(CREW - 2) * RAMP);
}

static void in_ssp_the_bound_holds_besides(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		uint64_t all_at = ramp_run(MODE_SSP, seed);

		assert_true(all_at >= WARM + (uint64_t)(CREW - 2) * RAMP);
		assert_true(all_at < 150);
	}
}

static void start(struct crew *k, uint32_t warm, uint32_t ramp)
{
	struct core_config cfg = ramp_config(MODE_DOWNPOUR);

	cfg.leases.warm_start_updates = warm;
	cfg.leases.warm_start_ramp = ramp;
	crew_open(k, cfg, CREW, 200, crew_ones);
	for (uint32_t i = 0; i < CREW; i++)
		crew_ask(k, i);
}

static void without_a_ramp_all_start_at_once(void **state)
{
	struct crew k;

	(void)state;
	start(&k, 1, 0);
	assert_int_equal(at_work(&k), 1);
	crew_push(&k, 0);
	crew_ask(&k, 0);
	assert_int_equal(at_work(&k), CREW);
	crew_close(&k);
	start(&k, 0, RAMP); /* nor is there one without a warm start */
	assert_int_equal(at_work(&k), CREW);
	crew_close(&k);
}

/* Who is silent makes room: the ramp counts workers at work, not workers that have begun. */
static void a_suspected_worker_makes_room(void **state)
{
	struct crew k;

	(void)state;
	start(&k, 1, 1000);
	crew_push(&k, 0);
	crew_ask(&k, 0);
	assert_int_equal(at_work(&k), 2);
	for (int i = 0; i < 4; i++) {
		fixture_tick(&k.f, 100);
		for (uint32_t h = 1; h < CREW; h++)
			fixture_beat(&k.f, k.hand[h].peer, k.hand[h].s);
	}
	assert_int_equal(fixture_worker(&k.f, 1).state, SESSION_SUSPECT);
	uint32_t granted = 0;
	for (uint32_t i = 0; i < CREW; i++)
		granted += k.f.core->worker[i].state == SESSION_LIVE &&
			   k.f.core->worker[i].grant.request > 0;
	assert_int_equal(granted, 2);
	crew_close(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_more_worker_starts_after_every_ramp_updates),
		cmocka_unit_test(in_ssp_the_bound_holds_besides),
		cmocka_unit_test(without_a_ramp_all_start_at_once),
		cmocka_unit_test(a_suspected_worker_makes_room),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
