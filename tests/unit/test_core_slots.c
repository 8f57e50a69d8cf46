/*
 * Proves invariants 1 and 4 of server/core/sessions.c in the table of slots: who gets which one,
 * and that no incarnation is given twice.
 */
#include "tests/unit/core_images.h"

static void a_full_table_refuses_until_a_worker_is_dead(void **state)
{
	struct core_config cfg = bench_config();
	struct bench b;
	struct msg m = bench_hello("");

	(void)state;
	cfg.sessions.max_workers = 2;
	bench_open(&b, cfg);
	bench_join(&b, 9, "");
	bench_join(&b, 10, "");
	bench_message(&b, 11, &m);
	bench_refused(&b, 11, PS_EFULL);
	bench_tick(&b, cfg.sessions.dead_ms);
	bench_message(&b, 11, &m); /* suspect is not dead */
	bench_refused(&b, 11, PS_EFULL);
	bench_tick(&b, 1);
	assert_int_equal(core_stats(b.core)->deaths, 2);
	assert_int_equal(bench_join(&b, 11, "").incarnation, 2);
	bench_close(&b);
}

static void a_dead_nameless_slot_is_taken_before_an_unused_before_a_dead_named_one(void **state)
{
	struct core_config cfg = bench_config();
	struct bench b;

	(void)state;
	cfg.sessions.max_workers = 3;
	bench_open(&b, cfg);
	bench_join(&b, 9, "anna");
	bench_join(&b, 10, "");
	bench_tick(&b, cfg.sessions.dead_ms + 1);
	assert_int_equal(bench_join(&b, 11, "bert").worker, 2);
	assert_int_equal(bench_join(&b, 12, "").worker, 3);
	assert_int_equal(bench_join(&b, 13, "carl").worker, 1);
	assert_string_equal(bench_worker(&b, 1).name, "carl");
	bench_close(&b);
}

static void a_name_gets_its_slot_again_and_fences_who_held_it(void **state)
{
	struct bench b;
	struct stamp first, second;
	struct msg m;

	(void)state;
	bench_open(&b, bench_config());
	bench_join(&b, 9, "");
	first = bench_join(&b, 10, "anna");
	m = bench_push_ones(first, 1);
	bench_applied(&b, 10, &m);
	second = bench_join(&b, 11, "anna"); /* the first one still lives */
	assert_int_equal(second.worker, first.worker);
	assert_int_equal(second.incarnation, first.incarnation + 1);
	assert_int_equal(bench_sent(&b, 11, MSG_WELCOME)->welcome.last_seq, 1);
	m = bench_push_ones(first, 2);
	bench_message(&b, 10, &m);
	bench_refused(&b, 10, PS_EFENCED);
	m = bench_push_ones(second, 2); /* seq continues */
	bench_applied(&b, 11, &m);
	assert_int_equal(core_stats(b.core)->rejoins, 1);
	bench_close(&b);
}

/* Else a crash could lose what it was told is taken, and it would be gone. */
static void who_is_replaced_is_told_when_its_pushes_are_safe(void **state)
{
	struct bench b;
	struct stamp first;
	struct msg push, hello = bench_hello("anna"), resume;

	(void)state;
	bench_open(&b, bench_config());
	first = bench_join(&b, 10, "anna");
	push = bench_push_ones(first, 1);
	bench_applied(&b, 10, &push);
	bench_message(&b, 11, &hello);
	assert_null(bench_sent(&b, 11, MSG_WELCOME)); /* its snapshot is under way */
	push = bench_push_ones(first, 2);
	bench_message(&b, 10, &push);
	bench_silent(&b);
	resume = bench_resume(first, 1, 0);
	bench_message(&b, 12, &resume);
	bench_silent(&b);
	assert_int_equal(bench_worker(&b, 1).last_seq, 1);
	while (!bench_sent(&b, 11, MSG_WELCOME))
		bench_durable(&b);
	bench_message(&b, 10, &push);
	bench_refused(&b, 10, PS_EFENCED);
	bench_message(&b, 12, &resume);
	bench_refused(&b, 12, PS_EFENCED);
	bench_close(&b);
}

/* Also if whoever replaced it has died meanwhile, before a snapshot had either of them. */
static void who_is_replaced_by_the_short_lived_waits_for_the_snapshot_too(void **state)
{
	struct bench b;
	struct stamp first;
	struct msg push, hello = bench_hello("anna");

	(void)state;
	bench_open(&b, bench_config());
	first = bench_join(&b, 10, "anna");
	push = bench_push_ones(first, 1);
	bench_applied(&b, 10, &push);
	bench_message(&b, 11, &hello);
	for (uint64_t ms = 0; ms <= b.cfg.sessions.dead_ms; ms += 50)
		bench_tick(&b, 50);
	assert_int_equal(bench_worker(&b, 1).state, SESSION_DEAD);
	push = bench_push_ones(first, 2);
	bench_message(&b, 10, &push);
	bench_silent(&b);
	while (b.saving)
		bench_durable(&b);
	bench_message(&b, 10, &push);
	bench_refused(&b, 10, PS_EFENCED);
	bench_close(&b);
}

/* Nothing of a process, that owes replays or is about to leave, passes on to the one that takes its
 * slot over by name. */
static void inherit(int leaves)
{
	struct bench b;
	struct stamp s;
	struct msg m;

	bench_open(&b, bench_config());
	s = bench_join(&b, 9, "anna");
	bench_restart(&b);
	m = bench_resume(s, leaves ? 1 : 4, 0); /* so many replays are to come */
	memcpy(m.hello.name, "anna", 5);
	bench_message(&b, 9, &m);
	s = bench_sent(&b, 9, MSG_WELCOME)->welcome.stamp;
	bench_beat(&b, 19, s);
	m = bench_push_ones(s, 1);
	bench_applied(&b, 9, &m);
	if (leaves)
		bench_bye(&b, 9, s); /* its snapshot is under way */
	m = bench_hello("anna");
	bench_message(&b, 10, &m);
	if (leaves) {
		bench_durable(&b);
		assert_int_equal(
			bench_count(&b, EFFECT_SEND), 0); /* that BYE is not the new one's */
	}
	bench_durable(&b);
	s = bench_sent(&b, 10, MSG_WELCOME)->welcome.stamp;
	m = bench_push_ones(s, 2);
	bench_applied(&b, 10, &m);
	b.now_ms += b.cfg.checkpoint.interval_ms;
	bench_message(&b, 10, &m);
	bench_durable(&b);
	assert_non_null(bench_sent(&b, 10, MSG_BEAT)); /* not over its predecessor's connection */
	bench_tick(&b, b.cfg.sessions.dead_ms + 1);
	assert_int_equal(bench_worker(&b, 1).state, SESSION_DEAD); /* it owes no replays */
	bench_close(&b);
}

static void a_new_process_inherits_no_debts(void **state)
{
	(void)state;
	inherit(0);
	inherit(1);
}

static void a_restart_storm_stays_in_the_table_and_repeats_no_incarnation(void **state)
{
	struct core_config cfg = bench_config();
	struct bench b;
	uint32_t newest[3] = {0};

	(void)state;
	cfg.sessions.max_workers = 2;
	bench_open(&b, cfg);
	for (uint32_t i = 0; i < 1000; i++) {
		struct stamp s = bench_join(&b, 100 + i, i % 3 ? "" : "anna");

		assert_in_range(s.worker, 1, 2);
		assert_true(s.incarnation > newest[s.worker]);
		newest[s.worker] = s.incarnation;
		bench_tick(&b, cfg.sessions.dead_ms + 1);
	}
	assert_int_equal(newest[1] + newest[2], 1000);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_full_table_refuses_until_a_worker_is_dead),
		cmocka_unit_test(
			a_dead_nameless_slot_is_taken_before_an_unused_before_a_dead_named_one),
		cmocka_unit_test(a_name_gets_its_slot_again_and_fences_who_held_it),
		cmocka_unit_test(who_is_replaced_is_told_when_its_pushes_are_safe),
		cmocka_unit_test(who_is_replaced_by_the_short_lived_waits_for_the_snapshot_too),
		cmocka_unit_test(a_new_process_inherits_no_debts),
		cmocka_unit_test(a_restart_storm_stays_in_the_table_and_repeats_no_incarnation),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
