/*
 * Proves the invariants numbered in server/core/leases.c for training: each batch counts once, an
 * epoch ends when all its batches are done. After every step the bench compares
 * n_free and n_done with batch[] (invariant 3). (A lease is a hint: test_core_hints.c;
 * evaluation: test_core_evaluation.c.)
 */
#include "tests/unit/core_images.h"
#include "tests/unit/core_work.h"

/* ---- counting ------------------------------------------------------------------------------- */

static void a_batch_counts_once_and_its_second_push_is_rejected(void **state)
{
	struct bench b;
	struct stamp s, t;
	struct msg m;

	(void)state;
	bench_open(&b, bench_training());
	s = bench_join(&b, 9, "");
	t = bench_join(&b, 10, "");
	m = batch(s, 1, 0, 1, 1);
	bench_applied(&b, 9, &m);
	m = batch(t, 1, 0, 1, 1);
	bench_rejected(&b, 10, &m, REJECT_WORK);
	m = batch(t, 2, 0, 0, 2); /* one of the two is done: all or nothing */
	bench_rejected(&b, 10, &m, REJECT_WORK);
	m = batch(t, 3, 0, 2, 2);
	bench_applied(&b, 10, &m);
	assert_true(core_weights(b.core)[0] == -2.0f);
	assert_int_equal(core_epoch(b.core, 0)->images, 25);
	assert_int_equal(core_epoch(b.core, 0)->updates, 2);
	assert_true(core_epoch(b.core, 0)->loss_sum == 0.5 * 25);
	assert_int_equal(bench_worker(&b, 1).images, 10);
	assert_int_equal(bench_worker(&b, 2).images, 15);
	assert_int_equal(core_stats(b.core)->images, 25);
	bench_close(&b);
}

static void work_must_fit_the_data_and_images_must_be_its_number(void **state)
{
	const struct {
		uint32_t epoch, first, count, images;
		enum reject why;
	} bad[] = {{0, 0, 0, 0, REJECT_SHAPE}, {0, 0, 1, 9, REJECT_SHAPE},
		{0, 0, 1, 11, REJECT_SHAPE}, {0, 3, 1, 10, REJECT_SHAPE},
		{0, 0, 5, 35, REJECT_SHAPE}, {0, 4, 1, 0, REJECT_SHAPE}, {0, 4, 0, 0, REJECT_SHAPE},
		{1, 0, 1, 10, REJECT_SHAPE}, {0, 1, UINT32_MAX, 0, REJECT_SHAPE},
		{0, UINT32_MAX, 1, 10, REJECT_SHAPE}, {UINT32_MAX, 0, 1, 10, REJECT_SHAPE}};
	struct bench b;
	struct stamp s;
	struct msg m;

	(void)state;
	bench_open(&b, bench_training());
	s = bench_join(&b, 9, "");
	for (uint64_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		m = bench_push_ones(s, i + 1);
		m.push.work = (struct work){bad[i].epoch, bad[i].first, bad[i].count};
		m.push.images = bad[i].images;
		bench_rejected(&b, 9, &m, bad[i].why);
	}
	assert_int_equal(core_stats(b.core)->version, 0);
	assert_int_equal(core_stats(b.core)->images, 0);
	assert_int_equal(b.core->leases.n_free, 4);
	m = batch(s, 12, 0, 0, 4); /* the whole epoch in one push */
	assert_int_equal(m.push.images, 35);
	bench_applied(&b, 9, &m);
	m = batch(s, 13, 0, 0, 1); /* an epoch that is over */
	bench_rejected(&b, 9, &m, REJECT_WORK);
	bench_close(&b);
}

static void an_epoch_ends_when_all_its_batches_are_done_and_only_then(void **state)
{
	struct bench b;
	struct stamp s;
	const uint32_t order[] = {3, 0, 2, 1};

	(void)state;
	bench_open(&b, bench_training());
	s = bench_join(&b, 9, "");
	for (uint64_t i = 0; i < 4; i++) {
		struct msg m = batch(s, i + 1, 0, order[i], 1);

		assert_int_equal(core_training_epoch(b.core), 0);
		b.now_ms += 10;
		bench_applied(&b, 9, &m);
		assert_int_equal(bench_count(&b, EFFECT_TRAINED), i == 3);
	}
	assert_int_equal(bench_effect(&b, EFFECT_TRAINED)->epoch, 0);
	assert_int_equal(core_training_epoch(b.core), 1);
	assert_int_equal(core_epoch(b.core, 0)->images, 35);
	assert_int_equal(core_epoch(b.core, 0)->end_ms, b.now_ms);
	assert_int_equal(core_epoch(b.core, 1)->images, 0);
	assert_int_equal(b.core->leases.n_free, 4);
	bench_close(&b);
}

/* ---- giving out ----------------------------------------------------------------------------- */

static void a_worker_goes_on_where_it_was_and_starts_at_its_share(void **state)
{
	struct core_config cfg = bench_training();
	struct bench b;
	struct stamp s, t;
	struct msg_grant g;

	(void)state;
	cfg.leases.max_batches = 1;
	bench_open(&b, cfg);
	s = bench_join(&b, 9, "");
	t = bench_join(&b, 10, "");
	g = lease(&b, 9, s, 1);
	assert_work(&g, 0, 0, 1);
	g = lease(&b, 10, t, 1);
	assert_work(&g, 0, 2, 1);
	struct msg m = batch(t, 1, 0, 2, 1);
	bench_applied(&b, 10, &m);
	g = lease(&b, 10, t, 2);
	assert_work(&g, 0, 3, 1);
	bench_close(&b);
}

static void leases_shrink_at_the_end_of_an_epoch(void **state)
{
	struct core_config cfg = bench_training();
	struct bench b;
	struct stamp s, t;
	uint32_t left = 100, before = 20;

	(void)state;
	cfg.leases.max_batches = 20;
	bench_open(&b, cfg);
	struct msg hello = bench_hello("");
	hello.hello.data.n_train = 1000;
	bench_message(&b, 9, &hello);
	bench_durable(&b);
	s = bench_sent(&b, 9, MSG_WELCOME)->welcome.stamp;
	bench_message(&b, 10, &hello);
	bench_durable(&b);
	t = bench_sent(&b, 10, MSG_WELCOME)->welcome.stamp;
	for (uint64_t i = 0; left > 0; i++) {
		struct msg_grant g = lease(&b, i % 2 ? 10 : 9, i % 2 ? t : s, i / 2 + 1);
		uint32_t most = (left + 3) / 4; /* a half of everybody's share */

		assert_true(g.work.count >= 1 && g.work.count <= most && g.work.count <= 20);
		assert_true(i > 0 || g.work.count == 20);
		assert_true(left > 4 || g.work.count == 1);
		before = g.work.count;
		for (uint32_t k = 0; k < g.work.count; k++) /* done, whoever pushes it */
			b.core->leases.batch[g.work.first + k] = BATCH_DONE;
		b.core->leases.n_done += g.work.count;
		left -= g.work.count;
	}
	assert_int_equal(before, 1);
	bench_close(&b);
}

/* Nobody waits for it. */
static void who_is_alone_gets_whole_leases_to_the_end_of_an_epoch(void **state)
{
	struct core_config cfg = bench_training();
	struct bench b;
	struct stamp s;
	struct msg_grant g;

	(void)state;
	cfg.leases.max_batches = 3;
	bench_open(&b, cfg);
	s = bench_join(&b, 9, "");
	g = lease(&b, 9, s, 1);
	assert_work(&g, 0, 0, 3);
	for (uint32_t i = 0; i < 3; i++) {
		struct msg m = batch(s, i + 1, 0, i, 1);
		bench_applied(&b, 9, &m);
	}
	g = lease(&b, 9, s, 2);
	assert_work(&g, 0, 3, 1);
	bench_close(&b);
}

static void a_repeated_request_gets_the_same_grant(void **state)
{
	struct bench b;
	struct stamp s;
	struct msg_grant first, again;
	uint64_t n;

	(void)state;
	bench_open(&b, bench_training());
	s = bench_join(&b, 9, "");
	struct msg fixes_the_data_set = batch(s, 1, 0, 3, 1);
	bench_applied(&b, 9, &fixes_the_data_set);
	first = lease(&b, 9, s, 5);
	n = core_stats(b.core)->leases;
	again = lease(&b, 9, s, 5);
	assert_memory_equal(&first, &again, sizeof(first));
	assert_int_equal(core_stats(b.core)->leases, n);
	bench_lease(&b, 9, s, 4); /* an old one that the network kept */
	assert_int_equal(bench_count(&b, EFFECT_SEND), 0);
	bench_lease(&b, 9, s, 0); /* no request */
	assert_int_equal(bench_count(&b, EFFECT_SEND), 0);
	again = lease(&b, 9, s, 5);
	assert_memory_equal(&first, &again, sizeof(first));
	bench_restart(&b); /* the answer was lost in a crash */
	s = bench_come_back(&b, 9, s, 1);
	again = lease(&b, 9, s, 5);
	assert_memory_equal(&first, &again, sizeof(first));
	assert_int_equal(core_stats(b.core)->leases, n);
	bench_close(&b);
}

static void a_new_request_gives_back_what_is_undone(void **state)
{
	struct bench b;
	struct stamp s;
	struct msg_grant g;
	struct msg m;

	(void)state;
	bench_open(&b, bench_training());
	s = bench_join(&b, 9, "");
	g = lease(&b, 9, s, 1);
	assert_work(&g, 0, 0, 2);
	m = batch(s, 1, 0, 0, 1);
	bench_applied(&b, 9, &m);
	assert_int_equal(b.core->leases.n_free, 2);
	g = lease(&b, 9, s, 2); /* 1 is given back, then a lease after the last one */
	assert_work(&g, 0, 2, 2);
	assert_int_equal(b.core->leases.n_free, 1);
	assert_int_equal(core_stats(b.core)->released, 1);
	g = lease(&b, 9, s, 3);
	assert_int_equal(core_stats(b.core)->released, 3);
	assert_int_equal(g.work.first, 1); /* at its share, which is all */
	bench_close(&b);
}

static void nobody_gets_a_lease_before_min_workers_are_there_once(void **state)
{
	struct core_config cfg = bench_training();
	struct bench b;
	struct stamp s, t;

	(void)state;
	cfg.leases.min_workers = 2;
	bench_open(&b, cfg);
	s = bench_join(&b, 9, "");
	bench_lease(&b, 9, s, 1);
	bench_tick(&b, 100);
	assert_null(granted(&b, 9));
	t = bench_join(&b, 10, ""); /* the step that welcomes the second one grants to the first */
	assert_non_null(granted(&b, 9));
	bench_bye(&b, 10, t);
	lease(&b, 9, s, 2); /* begun is begun */
	bench_restart(&b);
	bench_tick(&b, 0);
	s = bench_come_back(&b, 9, s, 0);
	lease(&b, 9, s, 3); /* and stays begun */
	bench_close(&b);
}

static void warm_start_holds_the_others_back(void **state)
{
	struct core_config cfg = bench_training();
	struct bench b;
	struct stamp s, t;
	struct msg m;

	(void)state;
	cfg.leases.warm_start_updates = 2;
	bench_open(&b, cfg);
	s = bench_join(&b, 9, "");
	t = bench_join(&b, 10, "");
	bench_lease(&b, 9, s, 1);
	bench_lease(&b, 10, t, 1);
	assert_null(granted(&b, 10));
	m = batch(s, 1, 0, 0, 1);
	bench_applied(&b, 9, &m);
	assert_null(granted(&b, 10));
	m = batch(s, 2, 0, 1, 1);
	bench_applied(&b, 9, &m); /* the second update */
	assert_non_null(granted(&b, 10));
	bench_close(&b);
	bench_open(&b, cfg); /* who warms up and dies is replaced */
	s = bench_join(&b, 9, "");
	t = bench_join(&b, 10, "");
	bench_lease(&b, 9, s, 1);
	bench_lease(&b, 10, t, 1);
	b.now_ms += cfg.sessions.suspect_ms;
	bench_beat(&b, 10, t);
	assert_null(granted(&b, 10));
	bench_tick(&b, 1);
	assert_non_null(granted(&b, 10));
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_batch_counts_once_and_its_second_push_is_rejected),
		cmocka_unit_test(work_must_fit_the_data_and_images_must_be_its_number),
		cmocka_unit_test(an_epoch_ends_when_all_its_batches_are_done_and_only_then),
		cmocka_unit_test(a_worker_goes_on_where_it_was_and_starts_at_its_share),
		cmocka_unit_test(leases_shrink_at_the_end_of_an_epoch),
		cmocka_unit_test(who_is_alone_gets_whole_leases_to_the_end_of_an_epoch),
		cmocka_unit_test(a_repeated_request_gets_the_same_grant),
		cmocka_unit_test(a_new_request_gives_back_what_is_undone),
		cmocka_unit_test(nobody_gets_a_lease_before_min_workers_are_there_once),
		cmocka_unit_test(warm_start_holds_the_others_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
