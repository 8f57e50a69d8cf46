/*
 * Proves what core.c promises of a run's life: when snapshots are taken and taken again, that
 * whoever waits for one hears when it is durable, and how work begins again after a crash. (How a
 * run ends: test_core_end.c.)
 */
#include "tests/unit/core_images.h"

static void push(struct bench *b, struct stamp s, uint64_t seq)
{
	struct msg m = bench_push_ones(s, seq);

	bench_applied(b, 9, &m);
}

/* ---- snapshots ------------------------------------------------------------------------------ */

static void snapshots_come_checkpoint_ms_apart_and_only_if_something_happened(void **state)
{
	struct core_config cfg = bench_config();
	struct bench b;
	struct stamp s;

	(void)state;
	cfg.checkpoint.interval_ms = 200;
	cfg.sessions.suspect_ms = cfg.sessions.dead_ms = cfg.sessions.ttl_ms = 1u << 30;
	bench_open(&b, cfg);
	bench_tick(&b, 1000);
	assert_int_equal(b.saving, 0); /* nothing happened */
	s = bench_join(&b, 9, "");
	push(&b, s, 1);
	assert_int_equal(b.saving, 0);
	bench_tick(&b, 199);
	assert_int_equal(b.saving, 0);
	bench_tick(&b, 1);
	assert_int_equal(b.saving, 2);
	push(&b, s, 2);
	bench_tick(&b, 1000);
	assert_int_equal(bench_count(&b, EFFECT_SNAPSHOT), 0); /* one at a time */
	bench_durable(&b);
	assert_int_equal(b.saving, 3); /* push 2 is in none yet */
	bench_durable(&b);
	bench_tick(&b, 1000);
	assert_int_equal(b.saving, 0);
	assert_int_equal(core_stats(b.core)->snapshots, 3);
	bench_close(&b);
}

static void a_failed_save_is_tried_again_but_no_sooner_than_checkpoint_ms(void **state)
{
	struct core_config cfg = bench_config();
	struct bench b;
	struct stamp s;
	uint64_t generation;

	(void)state;
	cfg.checkpoint.interval_ms = 200;
	bench_open(&b, cfg);
	s = bench_join(&b, 9, "");
	push(&b, s, 1);
	bench_tick(&b, 200);
	for (uint64_t i = 0; i < 3; i++) {
		generation = b.saving;
		b.now_ms += 50;
		bench_saved(&b, EVENT_SAVE_FAILED);
		assert_int_equal(core_stats(b.core)->save_failures, i + 1);
		bench_admin(&b, 8, ADMIN_CHECKPOINT); /* however urgent */
		b.now_ms += 149;
		bench_beat(&b, 19, s);
		assert_int_equal(b.saving, 0);
		assert_int_equal(bench_worker(&b, 1).durable_seq, 0);
		b.now_ms++;
		bench_beat(&b, 19, s);
		assert_int_equal(b.saving, generation + 1); /* never the same one again */
	}
	bench_durable(&b);
	assert_int_equal(bench_sent(&b, 19, MSG_BEAT)->beat.durable_seq, 1);
	assert_non_null(bench_sent(&b, 8, MSG_ADMIN));
	push(&b, s, 2);
	bench_admin(&b, 8, ADMIN_CHECKPOINT);
	assert_int_not_equal(b.saving, 0); /* the disk is well again: urgent is at once */
	bench_close(&b);
}

static void who_waits_for_a_failed_snapshot_waits_for_the_next(void **state)
{
	struct bench b;
	struct msg m = bench_hello("");

	(void)state;
	bench_open(&b, bench_config());
	bench_message(&b, 9, &m);
	bench_saved(&b, EVENT_SAVE_FAILED);
	bench_refused(&b, 9, PS_EAGAIN); /* it is told what it waits for */
	b.now_ms += b.cfg.checkpoint.interval_ms;
	bench_message(&b, 9, &m); /* HELLO again is a sign of life */
	bench_silent(&b);
	bench_durable(&b);
	assert_non_null(bench_sent(&b, 9, MSG_WELCOME));
	bench_close(&b);
}

static void an_admin_hears_of_his_checkpoint_when_it_is_durable(void **state)
{
	struct bench b;
	struct stamp s;

	(void)state;
	bench_open(&b, bench_config());
	s = bench_join(&b, 9, "");
	bench_admin(&b, 7, ADMIN_CHECKPOINT);
	bench_silent(&b);
	push(&b, s, 1);
	bench_admin(&b, 8, ADMIN_CHECKPOINT); /* the one under way does not hold push 1 */
	bench_silent(&b);
	bench_durable(&b);
	assert_int_equal(bench_sent(&b, 7, MSG_ADMIN)->admin.reply, 1);
	assert_int_equal(bench_sent(&b, 7, MSG_ADMIN)->admin.verb, ADMIN_CHECKPOINT);
	assert_int_equal(bench_sent(&b, 7, MSG_ADMIN)->admin.generation, 2);
	assert_null(bench_sent(&b, 8, MSG_ADMIN));
	bench_durable(&b);
	assert_int_equal(bench_sent(&b, 8, MSG_ADMIN)->admin.generation, 3);
	assert_null(bench_sent(&b, 7, MSG_ADMIN));
	assert_int_equal(bench_worker(&b, 1).durable_seq, 1);
	bench_close(&b);
}

static void too_many_admins_and_a_server_without_a_disk_say_so(void **state)
{
	struct core_config cfg = bench_config();
	struct bench b;

	(void)state;
	bench_open(&b, cfg);
	for (uint32_t i = 0; i < CORE_MAX_ADMINS; i++) {
		bench_admin(&b, 20 + i, ADMIN_CHECKPOINT);
		bench_silent(&b);
	}
	bench_admin(&b, 8, ADMIN_CHECKPOINT);
	bench_refused(&b, 8, PS_EAGAIN);
	bench_durable(&b);
	bench_durable(&b);
	bench_admin(&b, 8, ADMIN_CHECKPOINT);
	bench_durable(&b);
	assert_non_null(bench_sent(&b, 8, MSG_ADMIN));
	bench_close(&b);
	cfg.durable = 0;
	bench_open(&b, cfg);
	bench_admin(&b, 8, ADMIN_CHECKPOINT);
	bench_refused(&b, 8, PS_EUSAGE);
	bench_close(&b);
}

static void status_is_the_shells_to_answer(void **state)
{
	struct bench b;
	struct msg m = {.type = MSG_STATUS};

	(void)state;
	bench_open(&b, bench_config());
	bench_message(&b, 8, &m);
	assert_int_equal(bench_effect(&b, EFFECT_STATUS)->peer, 8);
	bench_close(&b);
}

/* ---- after a crash -------------------------------------------------------------------------- */

static void new_leases_wait_until_all_are_back_and_have_replayed(void **state)
{
	struct bench b;
	struct stamp s, t;
	struct msg m;

	(void)state;
	bench_open(&b, bench_training());
	s = bench_join(&b, 9, "");
	t = bench_join(&b, 10, "");
	bench_restart(&b);
	s = bench_come_back(&b, 9, s, 1);
	bench_lease(&b, 9, s, 1);
	bench_silent(&b);
	t = bench_come_back(&b, 10, t, 0);
	assert_null(bench_sent(&b, 9, MSG_GRANT)); /* push 1 of the first is still to come */
	m = bench_push_ones(s, 1);
	bench_work(&m, 0, 0, 1);
	bench_applied(&b, 9, &m);
	assert_non_null(bench_sent(&b, 9, MSG_GRANT));
	bench_close(&b);
}

static void new_leases_wait_no_longer_than_recovery_ms(void **state)
{
	struct bench b;
	struct stamp s;

	(void)state;
	bench_open(&b, bench_training());
	s = bench_join(&b, 9, "");
	bench_join(&b, 10, "");
	bench_restart(&b);
	b.now_ms += 5000; /* it took long to start: the clock runs from the first event */
	s = bench_come_back(&b, 9, s, 0);
	bench_lease(&b, 9, s, 1);
	bench_silent(&b);
	b.now_ms += b.cfg.sessions.recovery_ms - 1;
	bench_beat(&b, 19, s);
	assert_null(bench_sent(&b, 9, MSG_GRANT));
	b.now_ms += 1;
	bench_beat(&b, 19, s);
	assert_non_null(bench_sent(&b, 9, MSG_GRANT));
	bench_close(&b);
}

static void who_missed_one_recovery_does_not_hold_up_the_next(void **state)
{
	struct bench b;
	struct stamp s;

	(void)state;
	bench_open(&b, bench_training());
	s = bench_join(&b, 9, "");
	bench_join(&b, 10, "");
	bench_restart(&b);
	s = bench_come_back(&b, 9, s, 0);
	bench_tick(&b, b.cfg.sessions.recovery_ms); /* over: the second worker did not come */
	bench_restart(&b);
	s = bench_come_back(&b, 9, s, 0);
	bench_lease(&b, 9, s, 1);
	assert_non_null(bench_sent(&b, 9, MSG_GRANT));
	bench_close(&b);
}

static void who_came_back_late_is_waited_for_again(void **state)
{
	struct bench b;
	struct stamp s, t;

	(void)state;
	bench_open(&b, bench_training());
	s = bench_join(&b, 9, "");
	t = bench_join(&b, 10, "");
	bench_restart(&b);
	s = bench_come_back(&b, 9, s, 0);
	bench_tick(&b, b.cfg.sessions.recovery_ms); /* over: the second worker did not come */
	bench_come_back(&b, 10, t, 0);
	bench_restart(&b);
	s = bench_come_back(&b, 9, s, 0);
	bench_lease(&b, 9, s, 1);
	assert_null(bench_sent(&b, 9, MSG_GRANT));
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(snapshots_come_checkpoint_ms_apart_and_only_if_something_happened),
		cmocka_unit_test(a_failed_save_is_tried_again_but_no_sooner_than_checkpoint_ms),
		cmocka_unit_test(who_waits_for_a_failed_snapshot_waits_for_the_next),
		cmocka_unit_test(an_admin_hears_of_his_checkpoint_when_it_is_durable),
		cmocka_unit_test(too_many_admins_and_a_server_without_a_disk_say_so),
		cmocka_unit_test(status_is_the_shells_to_answer),
		cmocka_unit_test(new_leases_wait_until_all_are_back_and_have_replayed),
		cmocka_unit_test(new_leases_wait_no_longer_than_recovery_ms),
		cmocka_unit_test(who_missed_one_recovery_does_not_hold_up_the_next),
		cmocka_unit_test(who_came_back_late_is_waited_for_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
