/*
 * Proves how a run ends (core.c, WIRE.md "End of training"): after its epochs, after its updates,
 * by a drain, or because it diverged. No worker is notified before the last snapshot is durable,
 * and the snapshot contains every acknowledged push.
 */
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"
#include <math.h>

/* Check that the last event ended the run with this status, and notified worker 1 on connection
 * 9. */
static void assert_finished(const struct core_fixture *f, int status)
{
	assert_int_equal(fixture_count(f, EFFECT_FINISH), 1);
	assert_int_equal(fixture_effect(f, EFFECT_FINISH)->status, status);
	assert_non_null(fixture_sent(f, 9, MSG_BYE));
	assert_int_equal(fixture_sent(f, 9, MSG_BYE)->bye.status, status);
}

/* Train and evaluate the only epoch of a run, up to and including the last RESULT. Returns the
 * worker's stamp. */
static struct stamp train_to_the_end(struct core_fixture *f)
{
	struct core_config cfg = fixture_training();
	struct stamp s;
	struct msg m;

	cfg.training.epochs = 1;
	cfg.leases.eval_images = 7;
	fixture_open(f, cfg);
	s = fixture_join(f, 9, "");
	m = fixture_push_ones(s, 1);
	fixture_work(&m, 0, 0, 4);
	fixture_applied(f, 9, &m);
	assert_int_equal(f->saving, 0);
	m = (struct msg){.type = MSG_RESULT};
	m.result = (struct msg_result){.stamp = s, .eval_id = 1, .eval_count = 7, .correct = 6};
	fixture_message(f, 9, &m);
	return s;
}

TEST(workers_get_bye_when_the_last_snapshot_is_durable)
{
	struct core_fixture f;
	struct stamp s = train_to_the_end(&f);

	fixture_silent(&f);
	assert_int_not_equal(f.saving, 0);
	fixture_lease(&f, 9, s, 1);
	fixture_silent(&f);
	fixture_tick(&f, 100);
	fixture_silent(&f);
	fixture_durable(&f);
	assert_finished(&f, PS_EDONE);
	fixture_heartbeat(&f, 19, s); /* a heartbeat of a worker that has not received the BYE */
	assert_int_equal(fixture_sent(&f, 19, MSG_BYE)->bye.status, PS_EDONE);
	fixture_tick(&f, 1000000);
	assert_int_equal(fixture_count(&f, EFFECT_FINISH), 0);
	assert_int_equal(fixture_count(&f, EFFECT_SNAPSHOT), 0);
	fixture_close(&f);
}

TEST(nothing_new_is_acknowledged_between_the_last_snapshot_and_the_end)
{
	struct core_fixture f;
	struct stamp s = train_to_the_end(&f);
	struct msg m = fixture_push_ones(s, 2), hello = fixture_hello("");

	fixture_message(&f, 9, &m);
	fixture_silent(&f);
	assert_int_equal(core_stats(f.core)->version, 1);
	assert_int_equal(fixture_worker(&f, 1).last_seq, 1);
	/* push 1 again, which is a duplicate, because the last snapshot contains it */
	m.push.seq = 1;
	assert_int_equal(fixture_acked(&f, 9, &m).duplicate, 1);
	fixture_message(&f, 12, &hello); /* after the last snapshot has begun, no worker can join */
	fixture_silent(&f);
	assert_int_equal(fixture_worker(&f, 2).state, SESSION_FREE);
	fixture_durable(&f);
	assert_finished(&f, PS_EDONE);
	fixture_message(&f, 12, &hello);
	assert_int_equal(fixture_sent(&f, 12, MSG_BYE)->bye.status, PS_EDONE);
	fixture_close(&f);
}

TEST(the_end_waits_for_a_disk_that_fails)
{
	struct core_fixture f;
	struct stamp s = train_to_the_end(&f);
	struct msg m = fixture_push_ones(s, 2);

	fixture_saved(&f, EVENT_SAVE_FAILED);
	fixture_silent(&f);
	fixture_message(&f, 9, &m); /* no answer: a run whose epochs are complete accepts no push */
	fixture_silent(&f);
	f.now_ms += f.cfg.checkpoint.interval_ms;
	fixture_heartbeat(&f, 19, s);
	assert_int_not_equal(f.saving, 0);
	fixture_durable(&f);
	assert_finished(&f, PS_EDONE);
	fixture_close(&f);
}

TEST(a_checkpoint_request_after_the_last_snapshot_is_refused)
{
	struct core_fixture f;

	train_to_the_end(&f);
	/* refused, because the snapshot in progress is the last one of the run */
	fixture_admin(&f, 8, ADMIN_CHECKPOINT);
	fixture_refused(&f, 8, PS_EDONE);
	fixture_durable(&f);
	assert_finished(&f, PS_EDONE);
	fixture_close(&f);
}

TEST(a_run_ends_at_max_updates)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	cfg.training.max_updates = 2;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	fixture_apply_ones(&f, s, 1);
	assert_int_equal(f.saving, 0);
	fixture_apply_ones(&f, s, 2);
	assert_int_not_equal(f.saving, 0);
	m = fixture_push_ones(s, 3);
	fixture_message(&f, 9, &m);
	fixture_silent(&f);
	fixture_durable(&f);
	assert_finished(&f, PS_EDONE);
	assert_true(core_weights(f.core)[0] == -2.0f);
	fixture_close(&f);
	/* without a checkpoint directory, the end of the run waits for no snapshot */
	cfg.durable = 0;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	fixture_apply_ones(&f, s, 1);
	fixture_apply_ones(&f, s, 2);
	assert_finished(&f, PS_EDONE);
	fixture_close(&f);
}

TEST(training_that_diverged_ends)
{
	struct core_fixture f;
	struct stamp s;
	struct msg bad;
	uint64_t seq = 0;

	fixture_open(&f, fixture_config());
	s = fixture_join(&f, 9, "");
	for (int i = 0; i < 21; i++) {
		if (i == 19)
			/* a finite push, which makes up for one non-finite push */
			fixture_apply_ones(&f, s, ++seq);
		bad = fixture_push(s, ++seq);
		bad.push.loss = NAN;
		fixture_rejected(&f, 9, &bad, REJECT_NONFINITE);
		if (f.saving && i < 20)
			fixture_durable(&f);
		assert_int_equal(fixture_count(&f, EFFECT_FINISH), 0);
	}
	for (int i = 0; i < 3 && fixture_count(&f, EFFECT_FINISH) == 0; i++)
		fixture_durable(&f);
	assert_finished(&f, PS_EDIVERGED);
	fixture_close(&f);
}

/* ---- drain ---------------------------------------------------------------------------------- */

TEST(a_drain_accepts_pushes_until_its_snapshot)
{
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	fixture_open(&f, fixture_config());
	s = fixture_join(&f, 9, "");
	/* a snapshot is in progress when the drain begins */
	fixture_admin(&f, 7, ADMIN_CHECKPOINT);
	fixture_admin(&f, 8, ADMIN_DRAIN);
	assert_int_equal(fixture_sent(&f, 8, MSG_ADMIN)->admin.verb, ADMIN_DRAIN);
	assert_int_equal(fixture_count(&f, EFFECT_SNAPSHOT), 0);
	fixture_apply_ones(&f, s, 1);
	fixture_durable(&f); /* the snapshot that began before the drain is durable */
	assert_non_null(fixture_sent(&f, 7, MSG_ADMIN));
	assert_int_equal(fixture_count(&f, EFFECT_FINISH), 0);
	assert_int_not_equal(f.saving, 0);
	m = fixture_push_ones(s, 2);
	fixture_message(&f, 9, &m);
	fixture_silent(&f);
	fixture_drain(&f); /* a repeated drain must change nothing */
	fixture_silent(&f);
	fixture_durable(&f);
	assert_finished(&f, PS_ESHUTDOWN);
	assert_int_equal(fixture_worker(&f, 1).durable_seq, 1);
	fixture_close(&f);
}

TEST(a_drain_whose_save_failed_accepts_pushes_again)
{
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, fixture_config());
	s = fixture_join(&f, 9, "");
	fixture_drain(&f);
	fixture_saved(&f, EVENT_SAVE_FAILED);
	fixture_apply_ones(&f, s, 1);
	f.now_ms += f.cfg.checkpoint.interval_ms;
	fixture_heartbeat(&f, 19, s);
	fixture_durable(&f);
	assert_finished(&f, PS_ESHUTDOWN);
	assert_int_equal(fixture_worker(&f, 1).durable_seq, 1);
	fixture_close(&f);
}

TEST(a_drain_gives_no_more_work)
{
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	fixture_drain(&f);
	fixture_lease(&f, 9, s, 1);
	fixture_silent(&f);
	assert_int_equal(f.core->leases.n_free, 4);
	fixture_durable(&f);
	assert_finished(&f, PS_ESHUTDOWN);
	fixture_close(&f);
}

TEST(a_worker_that_joins_during_a_drain_gets_welcome_and_bye)
{
	struct core_fixture f;
	struct msg m = fixture_hello("");

	fixture_open(&f, fixture_config());
	fixture_message(&f, 9, &m);
	fixture_drain(&f);
	/* the snapshot with the incarnation of the joining worker is durable */
	fixture_durable(&f);
	assert_non_null(fixture_sent(&f, 9, MSG_WELCOME));
	fixture_durable(&f);
	assert_finished(&f, PS_ESHUTDOWN);
	fixture_close(&f);
}

/* After the end of the run, the server still answers for one second. A worker that repeats its
 * HELLO at ever longer intervals could miss this second, so it gets BYE during the drain. */
TEST(a_worker_that_comes_during_a_drain_gets_bye_at_once)
{
	struct core_fixture f;
	struct msg m = fixture_hello("");

	fixture_open(&f, fixture_config());
	(void)fixture_join(&f, 9, "");
	fixture_drain(&f); /* the snapshot of the drain is in progress */
	fixture_message(&f, 8, &m);
	assert_int_equal(fixture_sent(&f, 8, MSG_BYE)->bye.status, PS_ESHUTDOWN);
	fixture_durable(&f);
	assert_finished(&f, PS_ESHUTDOWN);
	fixture_close(&f);
}

/* This test makes one event with the largest number of effects: it notifies every worker and every
 * admin. */
TEST(the_last_step_notifies_every_worker_and_admin)
{
	enum { RANDOM_WORKERS = 64 };
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s[RANDOM_WORKERS];

	cfg.sessions.max_workers = RANDOM_WORKERS;
	fixture_open(&f, cfg);
	for (uint32_t i = 0; i < RANDOM_WORKERS; i++)
		s[i] = fixture_join(&f, 100 + i, "");
	for (uint32_t i = 0; i < RANDOM_WORKERS; i++) {
		struct msg m = fixture_push_ones(s[i], 1);

		fixture_applied(&f, 100 + i, &m);
	}
	fixture_drain(&f); /* the snapshot of the drain is in progress */
	fixture_saved(&f, EVENT_SAVE_FAILED);
	for (uint32_t i = 0; i < CORE_MAX_ADMINS; i++)
		fixture_admin(&f, 10 + i, ADMIN_CHECKPOINT);
	f.now_ms += cfg.checkpoint.interval_ms;
	fixture_pull(&f, 99, (struct stamp){{0, 0}, 0, 0, 0}, WEIGHTS_CURRENT);
	fixture_durable(&f);
	for (uint32_t i = 0; i < RANDOM_WORKERS; i++) {
		assert_int_equal(
			fixture_sent(&f, 100 + i, MSG_HEARTBEAT)->heartbeat.durable_seq, 1);
		assert_non_null(fixture_sent(&f, 100 + i, MSG_BYE));
	}
	for (uint32_t i = 0; i < CORE_MAX_ADMINS; i++)
		assert_non_null(fixture_sent(&f, 10 + i, MSG_ADMIN));
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 2 * RANDOM_WORKERS + CORE_MAX_ADMINS);
	assert_int_equal(fixture_effect(&f, EFFECT_FINISH)->status, PS_ESHUTDOWN);
	fixture_close(&f);
}

TEST(a_run_that_was_done_is_done_again_after_a_restart)
{
	struct core_fixture f;
	struct stamp s = train_to_the_end(&f);
	struct msg m;

	fixture_restart(&f); /* as if the server were killed before it has sent BYE to a worker */
	m = fixture_resume(s, 1, 0);
	fixture_message(&f, 9, &m);
	assert_int_not_equal(f.saving, 0);
	fixture_durable(&f);
	assert_finished(&f, PS_EDONE);
	assert_int_equal(core_epoch(f.core, 0)->eval_correct, 6);
	fixture_close(&f);
}

/* ---- stop rules ------------------------------------------------------------------------------ */

/* The run is drained, because a server without the rule can continue it. But a supervisor must not
 * start the workers again, so their BYE is the one of a run that is done. */
TEST(a_run_that_has_met_its_rule_is_drained_and_its_workers_are_done)
{
	struct core_fixture f;
	struct msg m = fixture_hello("");
	struct stamp s;

	fixture_open(&f, fixture_config());
	s = fixture_join(&f, 9, "");
	fixture_meet_rule(&f); /* the last snapshot is in progress */
	assert_int_equal(core_ending(f.core), PS_ESHUTDOWN);
	fixture_message(&f, 8, &m);
	assert_int_equal(fixture_sent(&f, 8, MSG_BYE)->bye.status, PS_EDONE);
	fixture_drain(&f); /* a signal during this end must change nothing */
	fixture_durable(&f);
	assert_int_equal(fixture_effect(&f, EFFECT_FINISH)->status, PS_ESHUTDOWN);
	assert_int_equal(fixture_sent(&f, 9, MSG_BYE)->bye.status, PS_EDONE);
	fixture_heartbeat(&f, 19, s); /* of a worker that has not received the BYE */
	assert_int_equal(fixture_sent(&f, 19, MSG_BYE)->bye.status, PS_EDONE);
	fixture_close(&f);
}

TEST(a_restart_forgets_that_the_rule_was_met)
{
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, fixture_config());
	s = fixture_join(&f, 9, "");
	fixture_meet_rule(&f);
	fixture_durable(&f);
	assert_int_equal(fixture_effect(&f, EFFECT_FINISH)->status, PS_ESHUTDOWN);
	fixture_restart(&f); /* without the rule */
	s = fixture_come_back(&f, 9, s, 0);
	fixture_apply_ones(&f, s, 1);
	fixture_drain(&f);
	fixture_durable(&f);
	assert_finished(&f, PS_ESHUTDOWN);
	fixture_close(&f);
}
