/*
 * Proves what server/core/leases.c says of leases as hints: what a worker does not do somebody else
 * does, whoever pushes first counts, and who was not answered gets the same again.
 */
#include "tests/unit/core_work.h"

static void a_suspects_lease_is_given_away_and_the_first_push_wins(void **state)
{
	struct bench b;
	struct stamp s, t;
	struct msg_grant g;
	struct msg m;

	(void)state;
	bench_open(&b, bench_training());
	s = bench_join(&b, 9, "");
	g = lease(&b, 9, s, 1);
	assert_work(&g, 0, 0, 2);
	t = bench_join(&b, 10, "");
	b.now_ms += b.cfg.sessions.suspect_ms + 1;
	bench_beat(&b, 10, t);
	bench_tick(&b, 0);
	assert_int_equal(bench_worker(&b, 1).state, SESSION_SUSPECT);
	assert_int_equal(core_stats(b.core)->released, 2);
	g = lease(&b, 10, t, 1);
	assert_work(&g, 0, 0, 2); /* the same batches */
	m = batch(s, 1, 0, 0, 1); /* it was only slow */
	bench_applied(&b, 9, &m);
	m = batch(t, 1, 0, 0, 1);
	bench_rejected(&b, 10, &m, REJECT_WORK);
	m = batch(t, 2, 0, 1, 1);
	bench_applied(&b, 10, &m);
	m = batch(s, 2, 0, 1, 1);
	bench_rejected(&b, 9, &m, REJECT_WORK);
	m = batch(s, 3, 0, 3, 1); /* nobody asked for it: it counts all the same */
	bench_applied(&b, 9, &m);
	assert_int_equal(core_epoch(b.core, 0)->images, 25);
	bench_close(&b);
}

/* Its answer was lost, or waited for a disk that failed, until the silence was too long. */
static void a_lease_that_nobody_got_is_given_again(void **state)
{
	struct bench b;
	struct stamp s;
	struct msg_grant g;

	(void)state;
	bench_open(&b, bench_training());
	s = bench_join(&b, 9, "");
	g = lease(&b, 9, s, 1);
	assert_work(&g, 0, 0, 2);
	bench_tick(&b, b.cfg.sessions.suspect_ms + 1);
	assert_int_equal(bench_worker(&b, 1).state, SESSION_SUSPECT);
	g = lease(&b, 9, s, 1);
	assert_work(&g, 0, 0, 2);
	bench_close(&b);
}

static void what_was_given_away_is_not_given_back_again(void **state)
{
	struct bench b;
	struct stamp s, t;
	struct msg_grant g;

	(void)state;
	bench_open(&b, bench_training());
	s = bench_join(&b, 9, "");
	lease(&b, 9, s, 1);
	bench_tick(&b, b.cfg.sessions.suspect_ms + 1);
	t = bench_join(&b, 10, "");
	g = lease(&b, 10, t, 1);
	assert_work(&g, 0, 0, 2);
	g = lease(&b, 9, s, 1); /* asks for the answer again: it is another one now */
	assert_work(&g, 0, 2, 1);
	g = lease(&b, 9, s, 2);
	assert_true(g.work.first >= 2);
	assert_int_equal(core_stats(b.core)->released, 3);
	bench_close(&b);
}

static void a_new_process_numbers_its_requests_anew(void **state)
{
	struct core_config cfg = bench_training();
	struct bench b;
	struct stamp s;

	(void)state;
	bench_open(&b, cfg);
	s = bench_join(&b, 9, "anna");
	lease(&b, 9, s, 7);
	s = bench_join(&b, 10, "anna");
	lease(&b, 10, s, 1);
	bench_close(&b);
	cfg.leases.min_workers = 2;
	bench_open(&b, cfg);
	s = bench_join(&b, 9, "anna");
	bench_lease(&b, 9, s, 1);
	bench_join(&b, 10, "anna");
	bench_join(&b, 11, "");
	assert_null(granted(&b, 10)); /* it was its predecessor who asked */
	bench_close(&b);
}

static void leavers_and_the_fenced_give_their_leases_back(void **state)
{
	struct bench b;
	struct stamp s;

	(void)state;
	bench_open(&b, bench_training());
	s = bench_join(&b, 9, "anna");
	lease(&b, 9, s, 1);
	assert_int_equal(b.core->leases.n_free, 2);
	bench_bye(&b, 9, s);
	assert_int_equal(b.core->leases.n_free, 4);
	s = bench_join(&b, 10, "anna");
	lease(&b, 10, s, 1);
	bench_join(&b, 11, "anna");
	assert_int_equal(b.core->leases.n_free, 4);
	bench_close(&b);
}

static void nothing_is_granted_to_a_connection_that_is_gone(void **state)
{
	struct core_config cfg = bench_training();
	struct bench b;
	struct stamp s;

	(void)state;
	cfg.leases.min_workers = 2;
	bench_open(&b, cfg);
	s = bench_join(&b, 9, "");
	bench_lease(&b, 9, s, 1);
	bench_gone(&b, 9);
	bench_join(&b, 10, "");
	assert_int_equal(b.core->leases.n_free, 4);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_suspects_lease_is_given_away_and_the_first_push_wins),
		cmocka_unit_test(a_lease_that_nobody_got_is_given_again),
		cmocka_unit_test(what_was_given_away_is_not_given_back_again),
		cmocka_unit_test(a_new_process_numbers_its_requests_anew),
		cmocka_unit_test(leavers_and_the_fenced_give_their_leases_back),
		cmocka_unit_test(nothing_is_granted_to_a_connection_that_is_gone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
