/*
 * Proves the invariants numbered in server/core/session_close.c: what a crash has lost is replayed
 * before anybody goes home, or kept for the server's next life.
 */
#include "tests/unit/core_images.h"

/* Worker 1 has 3 pushes acknowledged; a crash lost all of them. It is not back yet. */
static struct stamp lose(struct bench *b)
{
	struct core_config cfg = bench_config();
	struct bench_image before;
	struct stamp s;

	bench_open(b, cfg);
	s = bench_join(b, 9, "");
	before = bench_save(b);
	for (uint64_t seq = 1; seq <= 3; seq++) {
		struct msg m = bench_push_ones(s, seq);
		bench_applied(b, 9, &m);
	}
	bench_close(b);
	bench_load(b, cfg, &before);
	b->saving = 0;
	bench_drop(&before);
	bench_tick(b, 1);
	return s;
}

static void drain(struct bench *b)
{
	bench_step(b, &(struct event){.kind = EVENT_DRAIN});
}

static struct stamp resume(struct bench *b, struct stamp s)
{
	struct msg m = bench_resume(s, 3, 0);

	bench_message(b, 20, &m);
	assert_non_null(bench_sent(b, 20, MSG_WELCOME));
	return bench_sent(b, 20, MSG_WELCOME)->welcome.stamp;
}

static void replay(struct bench *b, struct stamp s)
{
	for (uint64_t seq = 1; seq <= 3; seq++) {
		struct msg m = bench_push_ones(s, seq);

		m.push.verdict = VERDICT_OK;
		bench_applied(b, 20, &m);
	}
}

static void a_drain_lets_the_replays_of_a_crash_through(void **state)
{
	struct bench b;
	struct stamp s = lose(&b);

	(void)state;
	drain(&b);
	assert_int_equal(b.saving, 0);
	s = resume(&b, s);
	assert_int_equal(b.saving, 0);
	replay(&b, s);
	assert_int_not_equal(b.saving, 0);
	bench_durable(&b);
	assert_int_equal(bench_count(&b, EFFECT_FINISH), 1);
	assert_int_equal(bench_sent(&b, 20, MSG_BYE)->bye.status, PS_ESHUTDOWN);
	assert_int_equal(bench_worker(&b, 1).durable_seq, 3);
	bench_close(&b);
}

static void a_drain_waits_for_no_longer_than_a_recovery(void **state)
{
	struct bench b;

	(void)state;
	lose(&b);
	drain(&b);
	bench_tick(&b, b.cfg.sessions.recovery_ms - 1);
	assert_int_equal(b.saving, 0);
	bench_tick(&b, 1);
	assert_int_not_equal(b.saving, 0);
	bench_durable(&b);
	assert_int_equal(bench_count(&b, EFFECT_FINISH), 1);
	bench_close(&b);
}

/* ... so that it goes on with the next life of the server. */
static void who_holds_what_a_crash_lost_is_not_sent_home(void **state)
{
	struct bench b;
	struct stamp s = lose(&b);
	struct msg late = bench_resume(s, 3, 0), nothing_lost = bench_resume(s, 0, 0);

	(void)state;
	drain(&b);
	bench_tick(&b, b.cfg.sessions.recovery_ms);
	bench_durable(&b);
	assert_int_equal(bench_count(&b, EFFECT_FINISH), 1);
	bench_message(&b, 20, &late);
	bench_silent(&b);
	bench_message(&b, 21, &nothing_lost);
	assert_int_equal(bench_sent(&b, 21, MSG_BYE)->bye.status, PS_ESHUTDOWN);
	bench_close(&b);
}

static void nor_is_who_came_back_too_late_to_replay(void **state)
{
	struct bench b;
	struct stamp s = lose(&b);
	struct msg m;

	(void)state;
	drain(&b);
	bench_tick(&b, b.cfg.sessions.recovery_ms);
	assert_int_not_equal(b.saving, 0);
	s = resume(&b, s); /* while the last snapshot is on its way */
	m = bench_push_ones(s, 1);
	m.push.verdict = VERDICT_OK;
	bench_message(&b, 20, &m);
	bench_silent(&b);
	bench_bye(&b, 20, s); /* a refusal would have it say all this again, at once and for ever */
	bench_silent(&b);
	bench_durable(&b);
	assert_int_equal(bench_count(&b, EFFECT_FINISH), 1);
	assert_null(bench_sent(&b, 20, MSG_BYE));
	bench_beat(&b, 29, s);
	bench_silent(&b);
	bench_close(&b);
}

static void a_leaver_replays_first(void **state)
{
	struct bench b;
	struct stamp s = lose(&b);

	(void)state;
	s = resume(&b, s);
	bench_bye(&b, 20, s); /* it overtook the replays */
	bench_refused(&b, 20, PS_EGAP);
	assert_int_equal(bench_sent(&b, 20, MSG_ERROR)->error.expected, 1);
	assert_int_equal(bench_worker(&b, 1).state, SESSION_LIVE);
	replay(&b, s);
	bench_bye(&b, 20, s);
	assert_null(bench_sent(&b, 20, MSG_BYE));
	while (b.saving && !bench_sent(&b, 20, MSG_BYE))
		bench_durable(&b);
	assert_int_equal(bench_sent(&b, 20, MSG_BYE)->bye.status, PS_OK);
	bench_close(&b);
}

static void who_was_replaced_is_fenced_after_the_end_too(void **state)
{
	struct bench b;
	struct stamp first;
	struct msg m;

	(void)state;
	bench_open(&b, bench_config());
	first = bench_join(&b, 9, "anna");
	bench_join(&b, 10, "anna");
	drain(&b);
	while (b.saving)
		bench_durable(&b);
	assert_int_equal(bench_sent(&b, 10, MSG_BYE)->bye.status, PS_ESHUTDOWN);
	m = bench_resume(first, 1, 0);
	bench_message(&b, 11, &m);
	bench_refused(&b, 11, PS_EFENCED);
	bench_close(&b);
}

/* ---- a state that went back ------------------------------------------------------------------ */

/* Slot 1 was given to somebody, the checkpoint that said so is lost, and the slot is given again.
 */
static struct stamp give_twice(struct bench *b, int accept)
{
	struct core_config cfg = bench_config();
	struct bench_image before;
	struct stamp first, second;

	cfg.sessions.accept_rollback = accept;
	bench_open(b, cfg);
	before = bench_save(b);
	first = bench_join(b, 9, "");
	bench_close(b);
	bench_load(b, cfg, &before);
	b->saving = 0;
	bench_drop(&before);
	second = bench_join(b, 10, "");
	assert_int_equal(second.worker, first.worker);
	assert_int_equal(second.incarnation, first.incarnation);
	return first;
}

static void a_namesake_of_before_a_rollback_is_not_taken_for_the_new_worker(void **state)
{
	const int status[] = {PS_EROLLEDBACK, PS_EFENCED};

	(void)state;
	for (int accept = 0; accept < 2; accept++) {
		struct bench b;
		struct stamp s = give_twice(&b, accept);
		struct msg m = bench_resume(s, 0, 0);

		bench_message(&b, 9, &m);
		bench_refused(&b, 9, status[accept]);
		assert_int_equal(b.core->worker[0].peer, 10);
		bench_restart(&b); /* the image remembers whose it is */
		b.saving = 0;
		bench_message(&b, 9, &m);
		bench_refused(&b, 9, status[accept]);
		bench_close(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_drain_lets_the_replays_of_a_crash_through),
		cmocka_unit_test(a_drain_waits_for_no_longer_than_a_recovery),
		cmocka_unit_test(who_holds_what_a_crash_lost_is_not_sent_home),
		cmocka_unit_test(nor_is_who_came_back_too_late_to_replay),
		cmocka_unit_test(a_leaver_replays_first),
		cmocka_unit_test(who_was_replaced_is_fenced_after_the_end_too),
		cmocka_unit_test(a_namesake_of_before_a_rollback_is_not_taken_for_the_new_worker),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
