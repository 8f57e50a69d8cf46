/*
 * test_core_backup.c - the last batches of an epoch, in modes where gradients meet as they come:
 * nobody waits for who is slow or stopped, and each batch still counts once.
 * (Sandblaster's copies: test_core_sandblaster.c.)
 */
#include "tests/unit/core_modes.h"

static struct core_config config(enum mode mode)
{
	struct core_config cfg = bench_training();

	cfg.mode = mode;
	cfg.ssp_bound = 100;
	cfg.lease_batches = 1;
	cfg.suspect_ms = 100000; /* nobody is missed: only copies can help */
	cfg.dead_ms = 200000;
	cfg.durable = 0;
	return cfg;
}

/* So that one worker goes through an epoch in one order, whatever is refused. */
static void a_batch_that_came_to_nothing_is_given_to_its_worker_again(void **state)
{
	struct core_config cfg = config(MODE_SYNC);
	struct crew k;
	float g[CREW_PARAMS];

	(void)state;
	crew_open(&k, cfg, 1, 80, crew_bowl);
	assert_int_equal(crew_ask(&k, 0), 1);
	assert_int_equal(crew_push(&k, 0), REJECT_NONE);
	assert_int_equal(crew_ask(&k, 0), 1);
	crew_granted(&k, 0, 1, 1);
	struct msg m = crew_gradient(&k, 0, g);
	m.push.base_version = 0;
	assert_int_equal(bench_acked(&k.b, k.hand[0].peer, &m).reject, REJECT_STALE);
	k.hand[0].seq++;
	assert_int_equal(crew_ask(&k, 0), 1);
	crew_granted(&k, 0, 1, 1);
	crew_close(&k);
}

static void nobody_waits_for_a_stopped_worker(enum mode mode)
{
	struct crew k;

	crew_open(&k, config(mode), 3, 80, crew_bowl);
	assert_int_equal(crew_ask(&k, 2), 1); /* and is never heard of again */
	for (int i = 0; i < 1000 && core_training_epoch(k.b.core) < 2; i++)
		crew_act(&k, (uint32_t)i % 2);
	assert_int_equal(core_training_epoch(k.b.core), 2);
	for (uint32_t e = 0; e < 2; e++)
		assert_int_equal(core_epoch(k.b.core, e)->images, 80);
	assert_true(core_stats(k.b.core)->backups > 0);
	crew_close(&k);
}

static void downpour_waits_for_no_stopped_worker(void **state)
{
	(void)state;
	nobody_waits_for_a_stopped_worker(MODE_DOWNPOUR);
}

static void ssp_waits_for_no_stopped_worker(void **state)
{
	(void)state;
	nobody_waits_for_a_stopped_worker(MODE_SSP);
}

static void the_first_result_counts_and_the_second_is_rejected(void **state)
{
	struct crew k;

	(void)state;
	crew_open(&k, config(MODE_DOWNPOUR), 2, 10, crew_ones);
	assert_int_equal(crew_ask(&k, 0), 1);
	assert_int_equal(crew_ask(&k, 1), 1);
	crew_granted(&k, 1, 0, 1);
	assert_int_equal(crew_push(&k, 1), REJECT_NONE);
	assert_int_equal(crew_push(&k, 0), REJECT_WORK);
	assert_int_equal(core_stats(k.b.core)->images, 10);
	assert_true(core_weights(k.b.core)[0] == -1);
	crew_close(&k);
}

/* A batch is free again when the last of those who have it gives it back. */
static void a_copy_given_back_leaves_the_batch_to_its_other_holder(void **state)
{
	struct crew k;

	(void)state;
	crew_open(&k, config(MODE_DOWNPOUR), 3, 20, crew_ones);
	assert_int_equal(crew_ask(&k, 0), 1); /* the first batch */
	assert_int_equal(crew_ask(&k, 1), 1); /* the second */
	assert_int_equal(crew_ask(&k, 2), 1); /* a copy of the first */
	crew_granted(&k, 2, 0, 1);
	assert_int_equal(crew_ask(&k, 2), 1); /* given back: a copy of it once more */
	assert_int_equal(k.b.core->leases.n_free, 0);
	assert_int_equal(core_stats(k.b.core)->backups, 2);
	bench_bye(&k.b, k.hand[2].peer, k.hand[2].s);
	assert_int_equal(k.b.core->leases.n_free, 0);
	bench_bye(&k.b, k.hand[0].peer, k.hand[0].s);
	assert_int_equal(k.b.core->leases.n_free, 1);
	crew_close(&k);
}

/* Who is alone has nobody to copy. */
static void one_worker_gets_no_copies(void **state)
{
	struct crew k;

	(void)state;
	crew_open(&k, config(MODE_DOWNPOUR), 1, 80, crew_bowl);
	crew_run(&k, 1, NULL);
	assert_int_equal(core_stats(k.b.core)->backups, 0);
	assert_int_equal(core_stats(k.b.core)->rejected[REJECT_WORK], 0);
	crew_close(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_batch_that_came_to_nothing_is_given_to_its_worker_again),
		cmocka_unit_test(downpour_waits_for_no_stopped_worker),
		cmocka_unit_test(ssp_waits_for_no_stopped_worker),
		cmocka_unit_test(the_first_result_counts_and_the_second_is_rejected),
		cmocka_unit_test(a_copy_given_back_leaves_the_batch_to_its_other_holder),
		cmocka_unit_test(one_worker_gets_no_copies),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
