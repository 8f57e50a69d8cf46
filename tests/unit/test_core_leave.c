/* Proves what beats tell a worker, and how it takes leave. Invariants of server/core/sessions.c. */
#include "tests/unit/core_images.h"

/* ---- beats ---------------------------------------------------------------------------------- */

static void a_beat_is_answered_with_what_is_decided_and_durable(void **state)
{
	struct bench b;
	struct stamp s = bench_open_with_pushes(&b, bench_config(), 3);
	const struct msg *m;

	(void)state;
	bench_beat(&b, 19, s);
	assert_int_equal(bench_count(&b, EFFECT_SEND), 1);
	m = bench_sent(&b, 19, MSG_BEAT);
	assert_non_null(m);
	assert_int_equal(m->beat.last_seq, 3);
	assert_int_equal(m->beat.durable_seq, 0);
	assert_memory_equal(&m->beat.stamp, &s, sizeof(s));
	bench_close(&b);
}

/* checkpoint_ms has passed: a snapshot of what happened. */
static void save(struct bench *b, struct stamp s)
{
	b->now_ms += b->cfg.checkpoint.interval_ms;
	bench_beat(b, 19, s);
	bench_durable(b);
}

static void what_became_durable_is_told_unasked_on_the_beat_connection(void **state)
{
	struct bench b;
	struct stamp s = bench_open_with_pushes(&b, bench_config(), 3);
	struct msg m;

	(void)state;
	save(&b, s);
	assert_int_equal(bench_count(&b, EFFECT_SEND), 1);
	assert_int_equal(bench_sent(&b, 19, MSG_BEAT)->beat.durable_seq, 3);
	m = bench_push_ones(s, 4);
	bench_applied(&b, 9, &m);
	b.now_ms += b.cfg.checkpoint.interval_ms;
	bench_beat(&b, 19, s);
	bench_gone(&b, 19);
	bench_durable(&b);
	assert_int_equal(bench_sent(&b, 9, MSG_BEAT)->beat.durable_seq, 4); /* bulk will do */
	m = bench_push_ones(s, 5);
	bench_applied(&b, 9, &m);
	b.now_ms += b.cfg.checkpoint.interval_ms;
	bench_beat(&b, 19, s);
	bench_gone(&b, 9);
	bench_gone(&b, 19);
	bench_durable(&b);
	assert_int_equal(bench_count(&b, EFFECT_SEND), 0);
	assert_int_equal(bench_worker(&b, 1).durable_seq, 5);
	bench_close(&b);
}

/* ---- leave ---------------------------------------------------------------------------------- */

static void bye_is_answered_when_all_pushes_are_durable(void **state)
{
	struct bench b;
	struct stamp s = bench_open_with_pushes(&b, bench_config(), 2);
	struct msg m;

	(void)state;
	bench_bye(&b, 9, s);
	assert_int_equal(bench_count(&b, EFFECT_SEND), 0);
	assert_int_equal(bench_worker(&b, 1).state, SESSION_DEAD);
	assert_int_not_equal(b.saving, 0); /* urgent */
	bench_durable(&b);
	assert_int_equal(bench_count(&b, EFFECT_SEND), 1);
	assert_int_equal(bench_sent(&b, 9, MSG_BYE)->bye.status, PS_OK);
	m = bench_push_ones(s, 3);
	bench_message(&b, 9, &m);
	bench_refused(&b, 9, PS_ESTATE);
	bench_close(&b);
}

/* Its beats go on until it hears the answer, and it may ask again: neither is a reason to start
 * over. */
static void who_waits_for_the_answer_to_bye_is_alive(void **state)
{
	struct bench b;
	struct stamp s = bench_open_with_pushes(&b, bench_config(), 2);
	struct msg beat = {.type = MSG_BEAT, .beat = {.stamp = s, .last_seq = 2}};

	(void)state;
	bench_bye(&b, 9, s);
	bench_message(&b, 10, &beat);
	assert_int_equal(bench_sent(&b, 10, MSG_BEAT)->beat.last_seq, 2);
	assert_int_equal(bench_worker(&b, 1).state, SESSION_DEAD);
	bench_bye(&b, 9, s);
	assert_int_equal(bench_count(&b, EFFECT_SEND), 0);
	bench_durable(&b);
	assert_int_equal(bench_count(&b, EFFECT_SEND), 1);
	assert_int_equal(bench_sent(&b, 9, MSG_BYE)->bye.status, PS_OK);
	bench_message(&b, 10, &beat);
	bench_refused(&b, 10, PS_ESTATE);
	bench_close(&b);
}

static void bye_with_nothing_to_save_is_answered_at_once(void **state)
{
	struct bench b;
	struct stamp s = bench_open_with_pushes(&b, bench_config(), 1);

	(void)state;
	save(&b, s);
	bench_bye(&b, 9, s);
	assert_non_null(bench_sent(&b, 9, MSG_BYE));
	assert_int_equal(bench_count(&b, EFFECT_SNAPSHOT), 0);
	bench_close(&b);
}

static void who_said_bye_and_vanished_is_not_answered(void **state)
{
	struct bench b;
	struct stamp s = bench_open_with_pushes(&b, bench_config(), 1);

	(void)state;
	bench_bye(&b, 9, s);
	bench_gone(&b, 9);
	bench_durable(&b);
	assert_int_equal(bench_count(&b, EFFECT_SEND), 0);
	bench_close(&b);
}

static void who_said_bye_waits_for_no_lease(void **state)
{
	struct core_config cfg = bench_training();
	struct bench b;
	struct stamp s;
	struct msg m;

	(void)state;
	cfg.leases.min_workers = 2;
	s = bench_open_with_pushes(&b, cfg, 0);
	bench_lease(&b, 9, s, 1);
	bench_bye(&b, 9, s);
	m = bench_resume(s, 0, 0);
	bench_message(&b, 9, &m);
	bench_durable(&b);
	bench_join(&b, 10, "");
	assert_int_equal(core_live_workers(b.core), 2);
	assert_null(bench_sent(&b, 9, MSG_GRANT));
	bench_close(&b);
}

static void answers_go_where_the_question_came_from(void **state)
{
	struct core_config cfg = bench_training();
	struct bench b;
	struct stamp s;
	struct msg m;

	(void)state;
	bench_open(&b, cfg);
	s = bench_join(&b, 9, "");
	bench_lease(&b, 20, s, 1);
	assert_non_null(bench_sent(&b, 20, MSG_GRANT));
	m = bench_push_ones(s, 1);
	bench_work(&m, 0, 0, 1);
	bench_applied(&b, 21, &m);
	bench_pull(&b, 22, s, WEIGHTS_CURRENT);
	assert_non_null(bench_sent(&b, 22, MSG_PARAMS));
	bench_beat(&b, 23, s);
	assert_non_null(bench_sent(&b, 23, MSG_BEAT));
	bench_bye(&b, 24, s);
	bench_durable(&b);
	assert_non_null(bench_sent(&b, 24, MSG_BYE));
	bench_close(&b);
}

static void who_comes_back_after_bye_is_welcome(void **state)
{
	struct bench b;
	struct stamp s = bench_open_with_pushes(&b, bench_config(), 1);
	struct msg m = bench_resume(s, 1, 0);

	(void)state;
	bench_bye(&b, 9, s);
	bench_message(&b, 9, &m); /* its BYE's answer is late */
	bench_durable(&b);
	assert_null(bench_sent(&b, 9, MSG_BYE));
	bench_durable(&b);
	assert_non_null(bench_sent(&b, 9, MSG_WELCOME));
	assert_null(bench_sent(&b, 9, MSG_BYE));
	assert_int_equal(bench_worker(&b, 1).state, SESSION_LIVE);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_beat_is_answered_with_what_is_decided_and_durable),
		cmocka_unit_test(what_became_durable_is_told_unasked_on_the_beat_connection),
		cmocka_unit_test(bye_is_answered_when_all_pushes_are_durable),
		cmocka_unit_test(who_waits_for_the_answer_to_bye_is_alive),
		cmocka_unit_test(bye_with_nothing_to_save_is_answered_at_once),
		cmocka_unit_test(who_said_bye_and_vanished_is_not_answered),
		cmocka_unit_test(who_said_bye_waits_for_no_lease),
		cmocka_unit_test(answers_go_where_the_question_came_from),
		cmocka_unit_test(who_comes_back_after_bye_is_welcome),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
