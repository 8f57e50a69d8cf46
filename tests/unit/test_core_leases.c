/*
 * Proves for training that each batch counts once, and that an epoch ends when all its batches are
 * done (invariant 1 of server/core/leases.h). After every event the fixture compares n_free and
 * n_done with the array `batch`. Two other files have related tests: test_core_regrants.c for
 * promise 1 (a lease is not a lock), and test_core_evaluation.c for the evaluation.
 */
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

/* ---- counting ------------------------------------------------------------------------------- */

TEST(a_batch_counts_once_and_its_second_push_is_rejected)
{
	struct core_fixture f;
	struct stamp s, t;
	struct msg m;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	t = fixture_join(&f, 10, "");
	m = fixture_batch(s, 1, 0, 1, 1);
	fixture_applied(&f, 9, &m);
	m = fixture_batch(t, 1, 0, 1, 1);
	fixture_rejected(&f, 10, &m, REJECT_WORK);
	/* one of the two batches is done, so the whole push is rejected */
	m = fixture_batch(t, 2, 0, 0, 2);
	fixture_rejected(&f, 10, &m, REJECT_WORK);
	m = fixture_batch(t, 3, 0, 2, 2);
	fixture_applied(&f, 10, &m);
	assert_true(core_weights(f.core)[0] == -2.0f);
	assert_int_equal(core_epoch(f.core, 0)->images, 25);
	assert_int_equal(core_epoch(f.core, 0)->updates, 2);
	assert_true(core_epoch(f.core, 0)->loss_sum == 0.5 * 25);
	assert_int_equal(fixture_worker(&f, 1).images, 10);
	assert_int_equal(fixture_worker(&f, 2).images, 15);
	assert_int_equal(core_stats(f.core)->images, 25);
	fixture_close(&f);
}

TEST(work_must_fit_the_data_and_images_must_be_its_number)
{
	const struct {
		uint32_t epoch, first, count, images;
		enum reject why;
	} bad[] = {{0, 0, 0, 0, REJECT_SHAPE}, {0, 0, 1, 9, REJECT_SHAPE},
		{0, 0, 1, 11, REJECT_SHAPE}, {0, 3, 1, 10, REJECT_SHAPE},
		{0, 0, 5, 35, REJECT_SHAPE}, {0, 4, 1, 0, REJECT_SHAPE}, {0, 4, 0, 0, REJECT_SHAPE},
		{1, 0, 1, 10, REJECT_SHAPE}, {0, 1, UINT32_MAX, 0, REJECT_SHAPE},
		{0, UINT32_MAX, 1, 10, REJECT_SHAPE}, {UINT32_MAX, 0, 1, 10, REJECT_SHAPE}};
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	for (uint64_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		m = fixture_push_ones(s, i + 1);
		m.push.work = (struct work){bad[i].epoch, bad[i].first, bad[i].count};
		m.push.images = bad[i].images;
		fixture_rejected(&f, 9, &m, bad[i].why);
	}
	assert_int_equal(core_stats(f.core)->version, 0);
	assert_int_equal(core_stats(f.core)->images, 0);
	assert_int_equal(f.core->leases.n_free, 4);
	m = fixture_batch(s, 12, 0, 0, 4); /* all batches of the epoch in one push */
	assert_int_equal(m.push.images, 35);
	fixture_applied(&f, 9, &m);
	m = fixture_batch(s, 13, 0, 0, 1); /* rejected: a batch of an epoch that is over */
	fixture_rejected(&f, 9, &m, REJECT_WORK);
	fixture_close(&f);
}

TEST(an_epoch_ends_when_all_its_batches_are_done_and_only_then)
{
	struct core_fixture f;
	struct stamp s;
	const uint32_t order[] = {3, 0, 2, 1};

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	for (uint64_t i = 0; i < 4; i++) {
		struct msg m = fixture_batch(s, i + 1, 0, order[i], 1);

		assert_int_equal(core_training_epoch(f.core), 0);
		f.now_ms += 10;
		fixture_applied(&f, 9, &m);
		assert_int_equal(fixture_count(&f, EFFECT_TRAINED), i == 3);
	}
	assert_int_equal(fixture_effect(&f, EFFECT_TRAINED)->epoch, 0);
	assert_int_equal(core_training_epoch(f.core), 1);
	assert_int_equal(core_epoch(f.core, 0)->images, 35);
	assert_int_equal(core_epoch(f.core, 0)->end_ms, f.now_ms);
	assert_int_equal(core_epoch(f.core, 1)->images, 0);
	assert_int_equal(f.core->leases.n_free, 4);
	fixture_close(&f);
}

/* ---- grants ---------------------------------------------------------------------------------- */

TEST(a_worker_goes_on_where_it_was_and_starts_at_its_share)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s, t;
	struct msg_grant g;

	cfg.leases.max_batches = 1;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	t = fixture_join(&f, 10, "");
	g = fixture_train(&f, 9, s, 1);
	assert_work(&g, 0, 0, 1);
	g = fixture_train(&f, 10, t, 1);
	assert_work(&g, 0, 2, 1);
	struct msg m = fixture_batch(t, 1, 0, 2, 1);
	fixture_applied(&f, 10, &m);
	g = fixture_train(&f, 10, t, 2);
	assert_work(&g, 0, 3, 1);
	fixture_close(&f);
}

TEST(leases_shrink_at_the_end_of_an_epoch)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s, t;
	uint32_t left = 100, before = 20;

	cfg.leases.max_batches = 20;
	fixture_open(&f, cfg);
	struct msg hello = fixture_hello("");
	hello.hello.data.n_train = 1000;
	fixture_message(&f, 9, &hello);
	fixture_durable(&f);
	s = fixture_sent(&f, 9, MSG_WELCOME)->welcome.stamp;
	fixture_message(&f, 10, &hello);
	fixture_durable(&f);
	t = fixture_sent(&f, 10, MSG_WELCOME)->welcome.stamp;
	for (uint64_t i = 0; left > 0; i++) {
		struct msg_grant g = fixture_train(&f, i % 2 ? 10 : 9, i % 2 ? t : s, i / 2 + 1);
		/* a lease has at most half of the worker's share of the batches that are left */
		uint32_t max = (left + 3) / 4;

		assert_true(g.work.count >= 1 && g.work.count <= max && g.work.count <= 20);
		assert_true(i > 0 || g.work.count == 20);
		assert_true(left > 4 || g.work.count == 1);
		before = g.work.count;
		/* mark the batches as done, as if a worker had pushed them */
		for (uint32_t k = 0; k < g.work.count; k++)
			f.core->leases.batch[g.work.first + k] = BATCH_DONE;
		f.core->leases.n_done += g.work.count;
		left -= g.work.count;
	}
	assert_int_equal(before, 1);
	fixture_close(&f);
}

/* A single worker gets long leases, because no other worker has to wait for its batches. */
TEST(a_single_worker_gets_whole_leases_to_the_end_of_an_epoch)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s;
	struct msg_grant g;

	cfg.leases.max_batches = 3;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	g = fixture_train(&f, 9, s, 1);
	assert_work(&g, 0, 0, 3);
	for (uint32_t i = 0; i < 3; i++) {
		struct msg m = fixture_batch(s, i + 1, 0, i, 1);

		fixture_applied(&f, 9, &m);
	}
	g = fixture_train(&f, 9, s, 2);
	assert_work(&g, 0, 3, 1);
	fixture_close(&f);
}

TEST(a_repeated_request_gets_the_same_grant)
{
	struct core_fixture f;
	struct stamp s;
	struct msg_grant first, again;
	uint64_t n;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	struct msg fixes_the_data_set = fixture_batch(s, 1, 0, 3, 1);
	fixture_applied(&f, 9, &fixes_the_data_set);
	first = fixture_train(&f, 9, s, 5);
	n = core_stats(f.core)->leases;
	again = fixture_train(&f, 9, s, 5);
	assert_memory_equal(&first, &again, sizeof(first));
	assert_int_equal(core_stats(f.core)->leases, n);
	fixture_lease(&f, 9, s, 4); /* an old request that the network has delayed */
	assert_int_equal(core_requester(f.core), 1);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	fixture_lease(&f, 9, s, 0); /* request number 0 is invalid */
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	again = fixture_train(&f, 9, s, 5);
	assert_memory_equal(&first, &again, sizeof(first));
	fixture_restart(&f); /* as if the crash had lost the answer */
	s = fixture_come_back(&f, 9, s, 1);
	again = fixture_train(&f, 9, s, 5);
	assert_memory_equal(&first, &again, sizeof(first));
	assert_int_equal(core_stats(f.core)->leases, n);
	fixture_close(&f);
}

TEST(a_step_says_whose_request_for_work_it_has_taken)
{
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, fixture_training());
	(void)fixture_join(&f, 9, "");
	s = fixture_join(&f, 10, "");
	assert_int_equal(core_requester(f.core), 0);
	fixture_lease(&f, 10, s, 1);
	assert_int_equal(core_requester(f.core), 2);
	s.incarnation++;
	fixture_lease(&f, 10, s, 2); /* refused, because of the wrong incarnation */
	assert_int_equal(core_requester(f.core), 0);
	fixture_close(&f);
}

TEST(a_new_request_gives_back_what_is_undone)
{
	struct core_fixture f;
	struct stamp s;
	struct msg_grant g;
	struct msg m;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	g = fixture_train(&f, 9, s, 1);
	assert_work(&g, 0, 0, 2);
	m = fixture_batch(s, 1, 0, 0, 1);
	fixture_applied(&f, 9, &m);
	assert_int_equal(f.core->leases.n_free, 2);
	/* batch 1 is free again, but the new lease begins after the last batch of the old one */
	g = fixture_train(&f, 9, s, 2);
	assert_work(&g, 0, 2, 2);
	assert_int_equal(f.core->leases.n_free, 1);
	assert_int_equal(core_stats(f.core)->released, 1);
	g = fixture_train(&f, 9, s, 3);
	assert_int_equal(core_stats(f.core)->released, 3);
	/* the lease begins at the first free batch of the worker's share, which is the whole
	 * epoch */
	assert_int_equal(g.work.first, 1);
	fixture_close(&f);
}

TEST(no_lease_before_min_workers_have_joined_once)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s, t;

	cfg.leases.min_workers = 2;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	fixture_lease(&f, 9, s, 1);
	fixture_tick(&f, 100);
	assert_null(fixture_granted(&f, 9));
	t = fixture_join(
		/* now there are two workers, so this event also makes the grant for which worker
		 * 1 waits */
		&f, 10, "");
	assert_non_null(fixture_granted(&f, 9));
	fixture_bye(&f, 10, t);
	fixture_train(&f, 9, s, 2); /* training has begun, so it continues */
	fixture_restart(&f);
	fixture_tick(&f, 0);
	s = fixture_come_back(&f, 9, s, 0);
	fixture_train(&f, 9, s, 3); /* training still goes on */
	fixture_close(&f);
}

TEST(warm_start_holds_the_others_back)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s, t;
	struct msg m;

	cfg.leases.warm_start_updates = 2;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	t = fixture_join(&f, 10, "");
	fixture_lease(&f, 9, s, 1);
	fixture_lease(&f, 10, t, 1);
	assert_null(fixture_granted(&f, 10));
	m = fixture_batch(s, 1, 0, 0, 1);
	fixture_applied(&f, 9, &m);
	assert_null(fixture_granted(&f, 10));
	m = fixture_batch(s, 2, 0, 1, 1);
	fixture_applied(&f, 9, &m); /* makes the second update, which ends the warm start */
	assert_non_null(fixture_granted(&f, 10));
	fixture_close(&f);
	/* second part: in the warm start, another worker takes the place of a dead worker */
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	t = fixture_join(&f, 10, "");
	fixture_lease(&f, 9, s, 1);
	fixture_lease(&f, 10, t, 1);
	f.now_ms += cfg.sessions.suspect_ms;
	fixture_heartbeat(&f, 10, t);
	assert_null(fixture_granted(&f, 10));
	fixture_tick(&f, 1);
	assert_non_null(fixture_granted(&f, 10));
	fixture_close(&f);
}
