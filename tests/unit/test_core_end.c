/*
 * Proves how a run ends (core.c, WIRE.md "End of training"): by its epochs, its updates, a drain or
 * diverging; nobody is told before the last snapshot is durable, and nothing is acknowledged that
 * is not in it.
 */
#include "tests/unit/core_images.h"
#include <math.h>

static void push(struct bench *b, struct stamp s, uint64_t seq)
{
	struct msg m = bench_push_ones(s, seq);

	bench_applied(b, 9, &m);
}

static void drain(struct bench *b)
{
	bench_step(b, &(struct event){.kind = EVENT_DRAIN});
}

/* The last step ended the run with this status, and told worker 1 on connection 9. */
static void assert_finished(const struct bench *b, int status)
{
	assert_int_equal(bench_count(b, EFFECT_FINISH), 1);
	assert_int_equal(bench_effect(b, EFFECT_FINISH)->status, status);
	assert_non_null(bench_sent(b, 9, MSG_BYE));
	assert_int_equal(bench_sent(b, 9, MSG_BYE)->bye.status, status);
}

/* One epoch, trained and evaluated: the last RESULT has just come in. */
static struct stamp train_to_the_end(struct bench *b)
{
	struct core_config cfg = bench_training();
	struct stamp s;
	struct msg m;

	cfg.training.epochs = 1;
	cfg.leases.eval_images = 7;
	bench_open(b, cfg);
	s = bench_join(b, 9, "");
	m = bench_push_ones(s, 1);
	bench_work(&m, 0, 0, 4);
	bench_applied(b, 9, &m);
	assert_int_equal(b->saving, 0);
	m = (struct msg){.type = MSG_RESULT};
	m.result = (struct msg_result){.stamp = s, .eval_id = 1, .eval_count = 7, .correct = 6};
	bench_message(b, 9, &m);
	return s;
}

static void the_end_is_told_when_the_last_snapshot_is_durable(void **state)
{
	struct bench b;
	struct stamp s = train_to_the_end(&b);

	(void)state;
	bench_silent(&b);
	assert_int_not_equal(b.saving, 0);
	bench_lease(&b, 9, s, 1);
	bench_silent(&b);
	bench_tick(&b, 100);
	bench_silent(&b);
	bench_durable(&b);
	assert_finished(&b, PS_EDONE);
	bench_beat(&b, 19, s); /* it missed our BYE */
	assert_int_equal(bench_sent(&b, 19, MSG_BYE)->bye.status, PS_EDONE);
	bench_tick(&b, 1000000);
	assert_int_equal(bench_count(&b, EFFECT_FINISH), 0);
	assert_int_equal(bench_count(&b, EFFECT_SNAPSHOT), 0);
	bench_close(&b);
}

static void nothing_new_is_acknowledged_between_the_last_snapshot_and_the_end(void **state)
{
	struct bench b;
	struct stamp s = train_to_the_end(&b);
	struct msg m = bench_push_ones(s, 2), hello = bench_hello("");

	(void)state;
	bench_message(&b, 9, &m);
	bench_silent(&b);
	assert_int_equal(core_stats(b.core)->version, 1);
	assert_int_equal(bench_worker(&b, 1).last_seq, 1);
	m.push.seq = 1; /* a duplicate is in the snapshot already */
	assert_int_equal(bench_acked(&b, 9, &m).duplicate, 1);
	bench_message(&b, 12, &hello); /* nobody joins any more */
	bench_silent(&b);
	assert_int_equal(bench_worker(&b, 2).state, SESSION_FREE);
	bench_durable(&b);
	assert_finished(&b, PS_EDONE);
	bench_message(&b, 12, &hello);
	assert_int_equal(bench_sent(&b, 12, MSG_BYE)->bye.status, PS_EDONE);
	bench_close(&b);
}

static void the_end_waits_for_a_disk_that_fails(void **state)
{
	struct bench b;
	struct stamp s = train_to_the_end(&b);
	struct msg m = bench_push_ones(s, 2);

	(void)state;
	bench_saved(&b, EVENT_SAVE_FAILED);
	bench_silent(&b);
	bench_message(&b, 9, &m); /* a complete run takes nothing more */
	bench_silent(&b);
	b.now_ms += b.cfg.checkpoint.interval_ms;
	bench_beat(&b, 19, s);
	assert_int_not_equal(b.saving, 0);
	bench_durable(&b);
	assert_finished(&b, PS_EDONE);
	bench_close(&b);
}

static void an_admin_who_comes_after_the_last_snapshot_is_told(void **state)
{
	struct bench b;

	(void)state;
	train_to_the_end(&b);
	bench_admin(&b, 8, ADMIN_CHECKPOINT); /* there will be no other one */
	bench_refused(&b, 8, PS_EDONE);
	bench_durable(&b);
	assert_finished(&b, PS_EDONE);
	bench_close(&b);
}

static void a_run_ends_at_max_updates(void **state)
{
	struct core_config cfg = bench_config();
	struct bench b;
	struct stamp s;
	struct msg m;

	(void)state;
	cfg.training.max_updates = 2;
	bench_open(&b, cfg);
	s = bench_join(&b, 9, "");
	push(&b, s, 1);
	assert_int_equal(b.saving, 0);
	push(&b, s, 2);
	assert_int_not_equal(b.saving, 0);
	m = bench_push_ones(s, 3);
	bench_message(&b, 9, &m);
	bench_silent(&b);
	bench_durable(&b);
	assert_finished(&b, PS_EDONE);
	assert_true(core_weights(b.core)[0] == -2.0f);
	bench_close(&b);
	cfg.durable = 0; /* nothing to wait for */
	bench_open(&b, cfg);
	s = bench_join(&b, 9, "");
	push(&b, s, 1);
	push(&b, s, 2);
	assert_finished(&b, PS_EDONE);
	bench_close(&b);
}

static void training_that_diverged_ends(void **state)
{
	struct bench b;
	struct stamp s;
	struct msg bad;
	uint64_t seq = 0;

	(void)state;
	bench_open(&b, bench_config());
	s = bench_join(&b, 9, "");
	for (int i = 0; i < 39; i++) {
		if (i == 19)
			push(&b, s, ++seq); /* one good one: they count anew */
		bad = bench_push(s, ++seq);
		bad.push.loss = NAN;
		bench_rejected(&b, 9, &bad, REJECT_NONFINITE);
		if (b.saving && i < 38)
			bench_durable(&b);
		assert_int_equal(bench_count(&b, EFFECT_FINISH), 0);
	}
	for (int i = 0; i < 3 && bench_count(&b, EFFECT_FINISH) == 0; i++)
		bench_durable(&b);
	assert_finished(&b, PS_EDIVERGED);
	bench_close(&b);
}

/* ---- drain ---------------------------------------------------------------------------------- */

static void a_drain_takes_what_comes_before_its_snapshot_and_nothing_after(void **state)
{
	struct bench b;
	struct stamp s;
	struct msg m;

	(void)state;
	bench_open(&b, bench_config());
	s = bench_join(&b, 9, "");
	bench_admin(&b, 7, ADMIN_CHECKPOINT); /* a snapshot is under way */
	bench_admin(&b, 8, ADMIN_DRAIN);
	assert_int_equal(bench_sent(&b, 8, MSG_ADMIN)->admin.verb, ADMIN_DRAIN);
	assert_int_equal(bench_count(&b, EFFECT_SNAPSHOT), 0);
	push(&b, s, 1);
	bench_durable(&b); /* not the drain's */
	assert_non_null(bench_sent(&b, 7, MSG_ADMIN));
	assert_int_equal(bench_count(&b, EFFECT_FINISH), 0);
	assert_int_not_equal(b.saving, 0);
	m = bench_push_ones(s, 2);
	bench_message(&b, 9, &m);
	bench_silent(&b);
	drain(&b); /* said twice */
	bench_silent(&b);
	bench_durable(&b);
	assert_finished(&b, PS_ESHUTDOWN);
	assert_int_equal(bench_worker(&b, 1).durable_seq, 1);
	bench_close(&b);
}

static void a_drain_whose_save_failed_takes_again_what_comes(void **state)
{
	struct bench b;
	struct stamp s;

	(void)state;
	bench_open(&b, bench_config());
	s = bench_join(&b, 9, "");
	drain(&b);
	bench_saved(&b, EVENT_SAVE_FAILED);
	push(&b, s, 1);
	b.now_ms += b.cfg.checkpoint.interval_ms;
	bench_beat(&b, 19, s);
	bench_durable(&b);
	assert_finished(&b, PS_ESHUTDOWN);
	assert_int_equal(bench_worker(&b, 1).durable_seq, 1);
	bench_close(&b);
}

static void a_drain_gives_no_more_work(void **state)
{
	struct bench b;
	struct stamp s;

	(void)state;
	bench_open(&b, bench_training());
	s = bench_join(&b, 9, "");
	drain(&b);
	bench_lease(&b, 9, s, 1);
	bench_silent(&b);
	assert_int_equal(b.core->leases.n_free, 4);
	bench_durable(&b);
	assert_finished(&b, PS_ESHUTDOWN);
	bench_close(&b);
}

static void who_joins_while_it_ends_hears_both(void **state)
{
	struct bench b;
	struct msg m = bench_hello("");

	(void)state;
	bench_open(&b, bench_config());
	bench_message(&b, 9, &m);
	drain(&b);
	bench_durable(&b); /* of its HELLO */
	assert_non_null(bench_sent(&b, 9, MSG_WELCOME));
	bench_durable(&b);
	assert_finished(&b, PS_ESHUTDOWN);
	bench_close(&b);
}

/* A step with as many effects as can be: nobody is forgotten for want of room. */
static void the_last_step_tells_everybody_everything(void **state)
{
	enum { CROWD = 64 };
	struct core_config cfg = bench_config();
	struct bench b;
	struct stamp s[CROWD];

	(void)state;
	cfg.sessions.max_workers = CROWD;
	bench_open(&b, cfg);
	for (uint32_t i = 0; i < CROWD; i++)
		s[i] = bench_join(&b, 100 + i, "");
	for (uint32_t i = 0; i < CROWD; i++) {
		struct msg m = bench_push_ones(s[i], 1);

		bench_applied(&b, 100 + i, &m);
	}
	drain(&b); /* its snapshot is under way */
	bench_saved(&b, EVENT_SAVE_FAILED);
	for (uint32_t i = 0; i < CORE_MAX_ADMINS; i++)
		bench_admin(&b, 10 + i, ADMIN_CHECKPOINT);
	b.now_ms += cfg.checkpoint.interval_ms;
	bench_pull(&b, 99, (struct stamp){{0, 0}, 0, 0, 0}, WEIGHTS_CURRENT);
	bench_durable(&b);
	for (uint32_t i = 0; i < CROWD; i++) {
		assert_int_equal(bench_sent(&b, 100 + i, MSG_BEAT)->beat.durable_seq, 1);
		assert_non_null(bench_sent(&b, 100 + i, MSG_BYE));
	}
	for (uint32_t i = 0; i < CORE_MAX_ADMINS; i++)
		assert_non_null(bench_sent(&b, 10 + i, MSG_ADMIN));
	assert_int_equal(bench_count(&b, EFFECT_SEND), 2 * CROWD + CORE_MAX_ADMINS);
	assert_int_equal(bench_effect(&b, EFFECT_FINISH)->status, PS_ESHUTDOWN);
	bench_close(&b);
}

static void a_run_that_was_done_is_done_again_after_a_restart(void **state)
{
	struct bench b;
	struct stamp s = train_to_the_end(&b);
	struct msg m;

	(void)state;
	bench_restart(&b); /* killed before anybody was told */
	m = bench_resume(s, 1, 0);
	bench_message(&b, 9, &m);
	assert_int_not_equal(b.saving, 0);
	bench_durable(&b);
	assert_finished(&b, PS_EDONE);
	assert_int_equal(core_epoch(b.core, 0)->eval_correct, 6);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_end_is_told_when_the_last_snapshot_is_durable),
		cmocka_unit_test(nothing_new_is_acknowledged_between_the_last_snapshot_and_the_end),
		cmocka_unit_test(the_end_waits_for_a_disk_that_fails),
		cmocka_unit_test(an_admin_who_comes_after_the_last_snapshot_is_told),
		cmocka_unit_test(a_run_ends_at_max_updates),
		cmocka_unit_test(training_that_diverged_ends),
		cmocka_unit_test(a_drain_takes_what_comes_before_its_snapshot_and_nothing_after),
		cmocka_unit_test(a_drain_whose_save_failed_takes_again_what_comes),
		cmocka_unit_test(a_drain_gives_no_more_work),
		cmocka_unit_test(who_joins_while_it_ends_hears_both),
		cmocka_unit_test(the_last_step_tells_everybody_everything),
		cmocka_unit_test(a_run_that_was_done_is_done_again_after_a_restart),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
