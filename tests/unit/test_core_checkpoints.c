/*
 * Proves when the core takes a snapshot (server/core/checkpoints.h) and when it repeats a failed
 * one, that it answers waiting peers when a snapshot is durable, and how training resumes after a
 * crash. (test_core_run_end.c tests the end of a run.)
 */
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

/* ---- snapshots ------------------------------------------------------------------------------ */

TEST(snapshots_come_checkpoint_ms_apart_and_only_if_something_happened)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s;

	cfg.checkpoint.interval_ms = 200;
	cfg.sessions.suspect_ms = cfg.sessions.dead_ms = cfg.sessions.ttl_ms = 1u << 30;
	fixture_open(&f, cfg);
	fixture_tick(&f, 1000);
	assert_int_equal(f.saving, 0); /* nothing has changed */
	s = fixture_join(&f, 9, "");
	fixture_apply_ones(&f, s, 1);
	assert_int_equal(f.saving, 0);
	fixture_tick(&f, 199);
	assert_int_equal(f.saving, 0);
	fixture_tick(&f, 1);
	assert_int_equal(f.saving, 2);
	fixture_apply_ones(&f, s, 2);
	fixture_tick(&f, 1000);
	/* no new snapshot, because only one snapshot may be in progress at a time */
	assert_int_equal(fixture_count(&f, EFFECT_SNAPSHOT), 0);
	fixture_durable(&f);
	/* a new snapshot has begun, because no snapshot contains push 2 yet */
	assert_int_equal(f.saving, 3);
	fixture_durable(&f);
	fixture_tick(&f, 1000);
	assert_int_equal(f.saving, 0);
	assert_int_equal(core_stats(f.core)->snapshots, 3);
	fixture_close(&f);
}

TEST(a_failed_save_is_tried_again_but_no_sooner_than_checkpoint_ms)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s;
	uint64_t generation;

	cfg.checkpoint.interval_ms = 200;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	fixture_apply_ones(&f, s, 1);
	fixture_tick(&f, 200);
	for (uint64_t i = 0; i < 3; i++) {
		generation = f.saving;
		f.now_ms += 50;
		fixture_saved(&f, EVENT_SAVE_FAILED);
		assert_int_equal(core_stats(f.core)->save_failures, i + 1);
		/* after a failure, even an urgent snapshot waits until checkpoint_ms have passed */
		fixture_admin(&f, 8, ADMIN_CHECKPOINT);
		f.now_ms += 149;
		fixture_heartbeat(&f, 19, s);
		assert_int_equal(f.saving, 0);
		assert_int_equal(fixture_worker(&f, 1).durable_seq, 0);
		f.now_ms++;
		fixture_heartbeat(&f, 19, s);
		/* the failed snapshot has used up its generation */
		assert_int_equal(f.saving, generation + 1);
	}
	fixture_durable(&f);
	assert_int_equal(fixture_sent(&f, 19, MSG_HEARTBEAT)->heartbeat.durable_seq, 1);
	assert_non_null(fixture_sent(&f, 8, MSG_ADMIN));
	fixture_apply_ones(&f, s, 2);
	fixture_admin(&f, 8, ADMIN_CHECKPOINT);
	assert_int_not_equal(
		f.saving, 0); /* the disk works again: an urgent snapshot begins at once */
	fixture_close(&f);
}

TEST(after_a_failed_snapshot_waiting_peers_wait_for_the_next)
{
	struct core_fixture f;
	struct msg m = fixture_hello("");

	fixture_open(&f, fixture_config());
	fixture_message(&f, 9, &m);
	fixture_saved(&f, EVENT_SAVE_FAILED);
	/* the joining worker gets an ERROR that says why it has to wait */
	fixture_refused(&f, 9, PS_EAGAIN);
	f.now_ms += f.cfg.checkpoint.interval_ms;
	/* the core begins the next snapshot when it handles this second HELLO */
	fixture_message(&f, 9, &m);
	fixture_silent(&f);
	fixture_durable(&f);
	assert_non_null(fixture_sent(&f, 9, MSG_WELCOME));
	fixture_close(&f);
}

TEST(an_admin_is_answered_when_the_checkpoint_is_durable)
{
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, fixture_config());
	s = fixture_join(&f, 9, "");
	fixture_admin(&f, 7, ADMIN_CHECKPOINT);
	fixture_silent(&f);
	fixture_apply_ones(&f, s, 1);
	/* the admin's answer must wait for another snapshot, because the one in progress does not
	 * contain push 1 */
	fixture_admin(&f, 8, ADMIN_CHECKPOINT);
	fixture_silent(&f);
	fixture_durable(&f);
	assert_int_equal(fixture_sent(&f, 7, MSG_ADMIN)->admin.reply, 1);
	assert_int_equal(fixture_sent(&f, 7, MSG_ADMIN)->admin.verb, ADMIN_CHECKPOINT);
	assert_int_equal(fixture_sent(&f, 7, MSG_ADMIN)->admin.generation, 2);
	assert_null(fixture_sent(&f, 8, MSG_ADMIN));
	fixture_durable(&f);
	assert_int_equal(fixture_sent(&f, 8, MSG_ADMIN)->admin.generation, 3);
	assert_null(fixture_sent(&f, 7, MSG_ADMIN));
	assert_int_equal(fixture_worker(&f, 1).durable_seq, 1);
	fixture_close(&f);
}

TEST(too_many_admins_and_a_server_without_a_disk_say_so)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;

	fixture_open(&f, cfg);
	for (uint32_t i = 0; i < CORE_MAX_ADMINS; i++) {
		fixture_admin(&f, 20 + i, ADMIN_CHECKPOINT);
		fixture_silent(&f);
	}
	fixture_admin(&f, 8, ADMIN_CHECKPOINT);
	fixture_refused(&f, 8, PS_EAGAIN);
	fixture_durable(&f);
	fixture_durable(&f);
	fixture_admin(&f, 8, ADMIN_CHECKPOINT);
	fixture_durable(&f);
	assert_non_null(fixture_sent(&f, 8, MSG_ADMIN));
	fixture_close(&f);
	cfg.durable = 0;
	fixture_open(&f, cfg);
	fixture_admin(&f, 8, ADMIN_CHECKPOINT);
	fixture_refused(&f, 8, PS_EUSAGE);
	fixture_close(&f);
}

TEST(status_is_the_shells_to_answer)
{
	struct core_fixture f;
	struct msg m = {.type = MSG_STATUS};

	fixture_open(&f, fixture_config());
	fixture_message(&f, 8, &m);
	assert_int_equal(fixture_effect(&f, EFFECT_STATUS)->peer, 8);
	fixture_close(&f);
}

/* ---- after a crash -------------------------------------------------------------------------- */

TEST(new_leases_wait_until_all_are_back_and_have_replayed)
{
	struct core_fixture f;
	struct stamp s, t;
	struct msg m;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	t = fixture_join(&f, 10, "");
	fixture_restart(&f);
	s = fixture_come_back(&f, 9, s, 1);
	fixture_lease(&f, 9, s, 1);
	fixture_silent(&f);
	(void)fixture_come_back(&f, 10, t, 0);
	/* the server grants nothing yet, because the first worker has not replayed push 1 */
	assert_null(fixture_sent(&f, 9, MSG_GRANT));
	m = fixture_push_ones(s, 1);
	fixture_work(&m, 0, 0, 1);
	m.push.verdict = VERDICT_OK;
	fixture_applied(&f, 9, &m);
	assert_non_null(fixture_sent(&f, 9, MSG_GRANT));
	fixture_close(&f);
}

TEST(new_leases_wait_no_longer_than_recovery_ms)
{
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	fixture_join(&f, 10, "");
	fixture_restart(&f);
	/* as if the start had taken long; recovery_ms counts only from the first event */
	f.now_ms += 5000;
	s = fixture_come_back(&f, 9, s, 0);
	fixture_lease(&f, 9, s, 1);
	fixture_silent(&f);
	f.now_ms += f.cfg.sessions.recovery_ms - 1;
	fixture_heartbeat(&f, 19, s);
	assert_null(fixture_sent(&f, 9, MSG_GRANT));
	f.now_ms += 1;
	fixture_heartbeat(&f, 19, s);
	assert_non_null(fixture_sent(&f, 9, MSG_GRANT));
	fixture_close(&f);
}

TEST(a_worker_that_missed_a_recovery_does_not_hold_up_the_next)
{
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	fixture_join(&f, 10, "");
	fixture_restart(&f);
	s = fixture_come_back(&f, 9, s, 0);
	/* ends the recovery, although the second worker has not returned */
	fixture_tick(&f, f.cfg.sessions.recovery_ms);
	fixture_restart(&f);
	s = fixture_come_back(&f, 9, s, 0);
	fixture_lease(&f, 9, s, 1);
	assert_non_null(fixture_sent(&f, 9, MSG_GRANT));
	fixture_close(&f);
}

TEST(a_worker_that_returned_late_is_expected_again)
{
	struct core_fixture f;
	struct stamp s, t;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	t = fixture_join(&f, 10, "");
	fixture_restart(&f);
	s = fixture_come_back(&f, 9, s, 0);
	/* ends the recovery, although the second worker has not returned */
	fixture_tick(&f, f.cfg.sessions.recovery_ms);
	fixture_come_back(&f, 10, t, 0);
	fixture_restart(&f);
	s = fixture_come_back(&f, 9, s, 0);
	fixture_lease(&f, 9, s, 1);
	assert_null(fixture_sent(&f, 9, MSG_GRANT));
	fixture_close(&f);
}
