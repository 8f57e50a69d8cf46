/*
 * Proves that a lease is not a lock (server/core/leases.h): if a worker does not deliver its work,
 * another worker gets the work, and the first result counts. The server answers a repeated request
 * with the same grant.
 */
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

TEST(a_suspects_lease_is_given_away_and_the_first_push_wins)
{
	struct core_fixture f;
	struct stamp s, t;
	struct msg_grant g;
	struct msg m;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	g = fixture_train(&f, 9, s, 1);
	assert_work(&g, 0, 0, 2);
	t = fixture_join(&f, 10, "");
	f.now_ms += f.cfg.sessions.suspect_ms + 1;
	fixture_heartbeat(&f, 10, t);
	fixture_tick(&f, 0);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_SUSPECT);
	assert_int_equal(core_stats(f.core)->released, 2);
	g = fixture_train(&f, 10, t, 1);
	assert_work(&g, 0, 0, 2); /* worker 2 gets the batches of worker 1 */
	/* the first worker, which was only slow, delivers its batch */
	m = fixture_batch(s, 1, 0, 0, 1);
	fixture_applied(&f, 9, &m);
	m = fixture_batch(t, 1, 0, 0, 1);
	fixture_rejected(&f, 10, &m, REJECT_WORK);
	m = fixture_batch(t, 2, 0, 1, 1);
	fixture_applied(&f, 10, &m);
	m = fixture_batch(s, 2, 0, 1, 1);
	fixture_rejected(&f, 9, &m, REJECT_WORK);
	/* a batch counts even if its worker has no lease for it */
	m = fixture_batch(s, 3, 0, 3, 1);
	fixture_applied(&f, 9, &m);
	assert_int_equal(core_epoch(f.core, 0)->images, 25);
	fixture_close(&f);
}

/* A GRANT is lost, or a failing disk delays it until the worker's timeout. */
TEST(a_lost_grant_is_repeated)
{
	struct core_fixture f;
	struct stamp s;
	struct msg_grant g;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	g = fixture_train(&f, 9, s, 1);
	assert_work(&g, 0, 0, 2);
	fixture_tick(&f, f.cfg.sessions.suspect_ms + 1);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_SUSPECT);
	g = fixture_train(&f, 9, s, 1);
	assert_work(&g, 0, 0, 2);
	fixture_close(&f);
}

TEST(a_lease_given_to_another_worker_is_not_granted_again)
{
	struct core_fixture f;
	struct stamp s, t;
	struct msg_grant g;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	fixture_train(&f, 9, s, 1);
	fixture_tick(&f, f.cfg.sessions.suspect_ms + 1);
	t = fixture_join(&f, 10, "");
	g = fixture_train(&f, 10, t, 1);
	assert_work(&g, 0, 0, 2);
	/* the batches were granted to another worker, so the repeated request gets other batches */
	g = fixture_train(&f, 9, s, 1);
	assert_work(&g, 0, 2, 1);
	g = fixture_train(&f, 9, s, 2);
	assert_true(g.work.first >= 2);
	assert_int_equal(core_stats(f.core)->released, 3);
	fixture_close(&f);
}

TEST(a_new_process_numbers_its_requests_anew)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "anna");
	fixture_train(&f, 9, s, 7);
	s = fixture_join(&f, 10, "anna");
	fixture_train(&f, 10, s, 1);
	fixture_close(&f);
	cfg.leases.min_workers = 2;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "anna");
	fixture_lease(&f, 9, s, 1);
	fixture_join(&f, 10, "anna");
	fixture_join(&f, 11, "");
	/* no grant, because the request came from the old process of "anna" */
	assert_null(fixture_granted(&f, 10));
	fixture_close(&f);
}

TEST(workers_that_leave_or_are_fenced_release_their_leases)
{
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "anna");
	fixture_train(&f, 9, s, 1);
	assert_int_equal(f.core->leases.n_free, 2);
	fixture_bye(&f, 9, s);
	assert_int_equal(f.core->leases.n_free, 4);
	s = fixture_join(&f, 10, "anna");
	fixture_train(&f, 10, s, 1);
	fixture_join(&f, 11, "anna");
	assert_int_equal(f.core->leases.n_free, 4);
	fixture_close(&f);
}

TEST(nothing_is_granted_to_a_connection_that_is_gone)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s;

	cfg.leases.min_workers = 2;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	fixture_lease(&f, 9, s, 1);
	fixture_gone(&f, 9);
	fixture_join(&f, 10, "");
	assert_int_equal(f.core->leases.n_free, 4);
	fixture_close(&f);
}
