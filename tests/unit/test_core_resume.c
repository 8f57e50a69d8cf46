/*
 * Proves how a session resumes: on a new connection, after silence, after a crash of the server,
 * and after a rollback (the invariants of server/core/sessions.c).
 * Covers attack A14 of docs/faults.md.
 */
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

static struct stamp resume_session(
	struct core_fixture *f, uint32_t peer, struct stamp s, uint64_t last, uint64_t durable)
{
	struct msg m = fixture_resume(s, last, durable);

	fixture_message(f, peer, &m);
	assert_non_null(fixture_sent(f, peer, MSG_WELCOME));
	return fixture_sent(f, peer, MSG_WELCOME)->welcome.stamp;
}

/* ---- the same server ------------------------------------------------------------------------ */

TEST(a_live_worker_goes_on_at_once_over_a_new_connection)
{
	struct core_fixture f;
	struct stamp s = fixture_open_with_pushes(&f, fixture_training(), 0), again;

	again = resume_session(&f, 20, s, 0, 0);
	assert_memory_equal(&again, &s, sizeof(s));
	assert_int_equal(fixture_count(&f, EFFECT_SNAPSHOT), 0);
	fixture_tick(&f, f.cfg.sessions.suspect_ms + 1);
	resume_session(&f, 21, s, 0, 0);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_LIVE);
	fixture_lease(&f, 21, s, 1);
	assert_non_null(fixture_sent(&f, 21, MSG_GRANT));
	fixture_close(&f);
}

TEST(a_lease_asked_for_before_is_granted_on_the_new_connection)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s;

	cfg.leases.min_workers = 2;
	s = fixture_open_with_pushes(&f, cfg, 0);
	fixture_lease(&f, 9, s, 1);
	fixture_gone(&f, 9);
	resume_session(&f, 20, s, 0, 0);
	fixture_join(&f, 10, "");
	assert_null(fixture_sent(&f, 9, MSG_GRANT));
	assert_non_null(fixture_sent(&f, 20, MSG_GRANT));
	fixture_close(&f);
}

TEST(a_dead_worker_goes_on_when_that_is_on_disk)
{
	struct core_fixture f;
	struct stamp s = fixture_open_with_pushes(&f, fixture_config(), 3), again;
	struct msg m = fixture_resume(s, 3, 0);

	fixture_tick(&f, f.cfg.sessions.dead_ms + 1);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_DEAD);
	fixture_message(&f, 20, &m);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	fixture_message(&f, 20, &m); /* a repeated HELLO does not make the incarnation durable */
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	/* the disk is slow: the snapshot takes longer than dead_ms */
	fixture_tick(&f, f.cfg.sessions.dead_ms);
	fixture_durable(&f);
	assert_non_null(fixture_sent(&f, 20, MSG_WELCOME));
	again = fixture_sent(&f, 20, MSG_WELCOME)->welcome.stamp;
	assert_memory_equal(&again, &s, sizeof(s));
	assert_int_equal(fixture_sent(&f, 20, MSG_WELCOME)->welcome.last_seq, 3);
	fixture_close(&f);
}

TEST(a_worker_that_returns_too_late_is_fenced)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	cfg.sessions.max_workers = 1;
	s = fixture_open_with_pushes(&f, cfg, 1);
	fixture_tick(&f, cfg.sessions.dead_ms + 1);
	fixture_join(&f, 10, "");
	m = fixture_resume(s, 1, 0);
	fixture_message(&f, 9, &m);
	fixture_refused(&f, 9, PS_EFENCED);
	assert_true(fixture_effect(&f, EFFECT_SEND)->fenced);
	m.hello.resume.run.hi++;
	fixture_message(&f, 9, &m);
	assert_false(fixture_effect(&f, EFFECT_SEND)->fenced);
	fixture_refused(&f, 9, PS_EWRONGRUN);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_LIVE);
	fixture_close(&f);
}

TEST(a_delayed_hello_is_ignored)
{
	struct core_fixture f;
	struct stamp s = fixture_open_with_pushes(&f, fixture_config(), 3);
	struct msg m = fixture_resume(s, 2, 0); /* an old HELLO: the worker sent push 3 after it */

	fixture_message(&f, 20, &m);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	m = fixture_push_ones(s, 4);
	fixture_applied(&f, 9, &m);
	fixture_close(&f);
}

/* ---- a server that has lost its newest state ------------------------------------------------ */

/* Restart a server from a snapshot with `kept` pushes of worker 1. Worker 1 is away and has not
 * returned. If a test needs pushes that the crash has lost, it lets worker 1 return with more
 * pushes than `kept`. */
static struct stamp crash_after_checkpoint(
	struct core_fixture *f, struct core_config cfg, uint64_t kept)
{
	struct stamp s = fixture_open_with_pushes(f, cfg, kept);

	fixture_restart(f);
	assert_int_equal(fixture_worker(f, 1).state, SESSION_AWAY);
	assert_int_equal(fixture_worker(f, 1).durable_seq, kept);
	return s;
}

TEST(after_a_crash_a_worker_continues_in_the_new_term)
{
	struct core_fixture f;
	struct stamp s = crash_after_checkpoint(&f, fixture_config(), 2), again;
	struct msg m = fixture_push_ones(s, 3);

	fixture_message(&f, 9, &m);
	fixture_refused(&f, 9, PS_ETERM);
	again = resume_session(&f, 9, s, 4, 1);
	assert_int_equal(again.worker, s.worker);
	assert_int_equal(again.incarnation, s.incarnation);
	assert_int_equal(again.term, s.term + 1);
	assert_int_equal(fixture_sent(&f, 9, MSG_WELCOME)->welcome.last_seq, 2);
	assert_int_equal(fixture_sent(&f, 9, MSG_WELCOME)->welcome.durable_seq, 2);
	for (uint64_t seq = 3; seq <= 4; seq++) {
		m = fixture_push_ones(again, seq);
		m.push.verdict = VERDICT_OK;
		fixture_applied(&f, 9, &m);
	}
	assert_true(core_weights(f.core)[0] == -4.0f);
	assert_int_equal(core_stats(f.core)->recoveries, 1);
	fixture_close(&f);
}

TEST(a_worker_whose_durable_pushes_were_lost_is_refused)
{
	struct core_fixture f;
	struct stamp s = crash_after_checkpoint(&f, fixture_config(), 2);
	/* the worker has released pushes 1 to 5, which the server does not have */
	struct msg m = fixture_resume(s, 7, 5);

	fixture_message(&f, 9, &m);
	fixture_refused(&f, 9, PS_EROLLEDBACK);
	m = fixture_resume(s, 2, 2);
	/* refused: after its rollback, the server has not assigned incarnation 2 */
	m.hello.resume.incarnation = 2;
	fixture_message(&f, 9, &m);
	fixture_refused(&f, 9, PS_EROLLEDBACK);
	m.hello.resume.incarnation = 1;
	m.hello.resume.worker = 3; /* slot 3 has never had a worker */
	fixture_message(&f, 9, &m);
	fixture_refused(&f, 9, PS_EROLLEDBACK);
	assert_int_equal(fixture_worker(&f, 1).last_seq, 2);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_AWAY);
	fixture_close(&f);
}

TEST(an_incarnation_that_was_never_assigned_cannot_be_resumed)
{
	struct core_fixture f;
	struct stamp s = fixture_open_with_pushes(&f, fixture_config(), 0);
	struct msg m = fixture_resume(s, 0, 0);

	/* refused, although the incarnation of this free slot is 0, too */
	m.hello.resume.worker = 2;
	m.hello.resume.incarnation = 0;
	fixture_message(&f, 20, &m);
	fixture_refused(&f, 20, PS_EROLLEDBACK);
	assert_int_equal(fixture_worker(&f, 2).state, SESSION_FREE);
	fixture_close(&f);
}

TEST(with_accept_rollback_a_worker_continues_after_the_lost_pushes)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s, again;
	struct msg m;
	struct msg_ack a;

	cfg.sessions.accept_rollback = 1;
	cfg.sessions.replay_window = 4;
	s = crash_after_checkpoint(&f, cfg, 2);
	s.incarnation = 3;
	again = resume_session(&f, 9, s, 7, 5);
	assert_int_equal(again.incarnation, 3);
	assert_int_equal(fixture_sent(&f, 9, MSG_WELCOME)->welcome.last_seq, 5);
	/* the core decides pushes 3 to 5 again, because the crash has lost the decisions */
	for (uint64_t seq = 3; seq <= 5; seq++) {
		m = fixture_push_ones(again, seq);
		a = fixture_acked(&f, 9, &m);
		assert_int_equal(a.verdict, VERDICT_REJECTED);
		assert_int_equal(a.reject, REJECT_UNKNOWN);
	}
	m = fixture_push_ones(again, 6);
	fixture_applied(&f, 9, &m);
	assert_true(core_weights(f.core)[0] == -3.0f);
	m = fixture_resume(s, 7, 5);
	m.hello.resume.worker = 5; /* this server has fewer than 5 slots */
	fixture_message(&f, 10, &m);
	fixture_refused(&f, 10, PS_EROLLEDBACK);
	fixture_close(&f);
}

/* With --accept-rollback the server accepts a worker whose newer state a rollback can explain, but
 * only once for each slot. The server accepts no other worker whose state is newer than the
 * server's. */
TEST(a_rollback_is_accepted_within_bounds)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s, far;
	struct msg m;

	cfg.sessions.accept_rollback = 1;
	s = crash_after_checkpoint(&f, cfg, 2);
	far = s;
	far.incarnation = UINT32_MAX;
	m = fixture_resume(far, 7, 5);
	fixture_message(&f, 10, &m);
	fixture_refused(&f, 10, PS_EROLLEDBACK);
	m = fixture_resume(s, WIRE_MAX_SEQ, WIRE_MAX_SEQ);
	fixture_message(&f, 10, &m);
	fixture_refused(&f, 10, PS_EROLLEDBACK);
	far = s;
	/* the stamp has the present term, in which the server has lost no push */
	far.term = core_config(f.core)->term;
	far.incarnation++;
	m = fixture_resume(far, 7, 5);
	fixture_message(&f, 10, &m);
	fixture_refused(&f, 10, PS_EROLLEDBACK);
	s = resume_session(&f, 9, s, 7, 5);
	s.term--;
	s.incarnation++;
	m = fixture_resume(s, 9, 9); /* refused, because a live worker now uses the slot */
	fixture_message(&f, 10, &m);
	fixture_refused(&f, 10, PS_EROLLEDBACK);
	assert_int_equal(fixture_worker(&f, 1).incarnation, 1);
	fixture_close(&f);
}

TEST(an_absent_workers_slot_is_kept_for_the_session_ttl_but_not_its_leases)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s;
	struct msg m = fixture_hello("");

	cfg.sessions.max_workers = 1;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	struct msg first = fixture_push_ones(s, 1);
	fixture_work(&first, 0, 3, 1);
	fixture_applied(&f, 9, &first); /* the push fixes the data set */
	fixture_lease(&f, 9, s, 1);
	fixture_restart(&f);
	fixture_tick(&f, 0);
	assert_int_equal(f.core->leases.n_free, 1);
	fixture_tick(&f, cfg.sessions.dead_ms + 1);
	assert_int_equal(f.core->leases.n_free, 3);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_AWAY);
	fixture_tick(&f, cfg.sessions.ttl_ms - cfg.sessions.dead_ms - 1);
	fixture_message(&f, 10, &m);
	fixture_refused(&f, 10, PS_EFULL);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_AWAY);
	fixture_tick(&f, 1);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_DEAD);
	assert_int_equal(fixture_join(&f, 10, "").incarnation, 2);
	fixture_close(&f);
}

/* Returns 1 if the last event reported `change` of worker 1, and no other change. */
static int reports(const struct core_fixture *f, enum worker_change change)
{
	return fixture_count(f, EFFECT_WORKER) == 1 &&
	       fixture_effect(f, EFFECT_WORKER)->worker == 1 &&
	       fixture_effect(f, EFFECT_WORKER)->change == change;
}

TEST(an_absent_worker_is_lost_once_and_can_still_resume)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s = crash_after_checkpoint(&f, cfg, 2);

	fixture_tick(&f, 0);
	fixture_tick(&f, cfg.sessions.dead_ms);
	assert_int_equal(fixture_count(&f, EFFECT_WORKER), 0);
	fixture_tick(&f, 1);
	assert_true(reports(&f, WORKER_GONE));
	assert_int_equal(core_stats(f.core)->deaths, 1);
	fixture_restart(&f); /* the next server must not count this death again */
	fixture_tick(&f, 0);
	fixture_tick(&f, cfg.sessions.dead_ms + 1);
	assert_int_equal(fixture_count(&f, EFFECT_WORKER), 0);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_AWAY);
	resume_session(&f, 9, s, 2, 2);
	assert_true(reports(&f, WORKER_BACK));
	assert_int_equal(core_stats(f.core)->deaths, 1);
	fixture_restart(&f);
	fixture_tick(&f, 0);
	fixture_tick(&f, cfg.sessions.dead_ms + 1);
	assert_true(reports(&f, WORKER_GONE)); /* the worker has died for the second time */
	fixture_tick(&f, cfg.sessions.ttl_ms - cfg.sessions.dead_ms);
	assert_int_equal(fixture_count(&f, EFFECT_WORKER), 0);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_DEAD);
	assert_int_equal(core_stats(f.core)->deaths, 2);
	fixture_close(&f);
}

/* Sends the HELLO with which the process of "anna" returns to session `s` after its death. */
static void anna_returns(struct core_fixture *f, uint32_t peer, struct stamp s)
{
	struct msg m = fixture_resume(s, 0, 0);

	memcpy(m.hello.name, "anna", strlen("anna"));
	fixture_message(f, peer, &m);
	fixture_durable(f);
}

TEST(a_worker_that_was_declared_dead_joins_again_and_others_are_back)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "anna");
	assert_true(reports(&f, WORKER_JOINED));
	fixture_tick(&f, cfg.sessions.suspect_ms + 1);
	assert_true(reports(&f, WORKER_SILENT));
	fixture_lease(&f, 9, s, 1);
	assert_true(reports(&f, WORKER_BACK));
	assert_int_equal(core_stats(f.core)->rejoins, 0); /* without HELLO */
	fixture_tick(&f, cfg.sessions.suspect_ms + 1);
	resume_session(&f, 20, s, 0, 0);
	assert_true(reports(&f, WORKER_BACK));
	assert_int_equal(core_stats(f.core)->rejoins, 1);
	fixture_tick(&f, cfg.sessions.dead_ms + 1);
	assert_true(reports(&f, WORKER_GONE));
	anna_returns(&f, 21, s);
	assert_true(reports(&f, WORKER_JOINED));
	assert_int_equal(core_stats(f.core)->rejoins, 2);
	s = fixture_join(&f, 22, "anna");
	assert_true(reports(&f, WORKER_RESTARTED));
	fixture_tick(&f, cfg.sessions.dead_ms + 1);
	anna_returns(&f, 23, s);
	assert_true(reports(&f, WORKER_RESTARTED));
	assert_int_equal(core_stats(f.core)->rejoins, 4);
	fixture_close(&f);
}

TEST(a_worker_that_owes_replays_keeps_its_slot)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s, again;
	struct msg m = fixture_hello("");

	cfg.sessions.max_workers = 1;
	s = crash_after_checkpoint(&f, cfg, 2);
	again = resume_session(&f, 9, s, 4, 0); /* the worker must replay pushes 3 and 4 */
	fixture_tick(&f, cfg.sessions.dead_ms + 1);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_AWAY);
	fixture_message(&f, 10, &m);
	fixture_refused(&f, 10, PS_EFULL);
	resume_session(&f, 9, again, 4, 0);
	for (uint64_t seq = 3; seq <= 4; seq++) {
		m = fixture_push_ones(again, seq);
		fixture_applied(&f, 9, &m);
	}
	/* dead and no longer away, because the worker has replayed all pushes */
	fixture_tick(&f, cfg.sessions.dead_ms + 1);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_DEAD);
	fixture_close(&f);
}

/* ---- texts ---------------------------------------------------------------------------------- */

static void expect_text(
	const struct core_fixture *f, uint32_t peer, int status, const char *const *words)
{
	const struct msg *m = fixture_sent(f, peer, MSG_ERROR);

	fixture_refused(f, peer, status);
	assert_true(strlen(m->error.text) < 256); /* a worker logs at most 255 characters */
	for (; *words; words++)
		if (!strstr(m->error.text, *words))
			fail_msg("no \"%s\" in: %s", *words, m->error.text);
}

TEST(a_refusal_has_the_values_of_both_sides_and_a_remedy)
{
	static const char *const run[] = {"(0000000000000001ffffffffffffffff",
		"yours was 00000000000000ab0123456789abcdef", "start this worker again",
		"--checkpoint-dir", NULL};
	static const char *const rollback[] = {
		"has 3 pushes of worker 1", "but 12345 were", "--accept-rollback", NULL};
	static const char *const full[] = {"all 1 worker slots", "--max-workers", NULL};
	struct core_config cfg = fixture_config();
	struct core_fixture f;

	cfg.sessions.max_workers = 1;
	cfg.run = (struct run_id){1, UINT64_MAX};
	struct stamp s = fixture_open_with_pushes(&f, cfg, 3);
	struct msg m = fixture_resume(s, 3, 12345);
	fixture_message(&f, 9, &m);
	expect_text(&f, 9, PS_EROLLEDBACK, rollback);
	m.hello.resume.run = (struct run_id){0xab, 0x0123456789abcdef};
	fixture_message(&f, 9, &m);
	expect_text(&f, 9, PS_EWRONGRUN, run);
	m.hello.resume = (struct stamp){0};
	fixture_message(&f, 10, &m);
	expect_text(&f, 10, PS_EFULL, full);
	fixture_close(&f);
}

/* In this test the worker returns after the server has withdrawn its grant, and repeats its
 * request. */
TEST(a_grant_lost_in_a_crash_is_repeated)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;

	cfg.leases.max_batches = 1;
	fixture_open(&f, cfg);
	struct stamp s = fixture_join(&f, 9, "");
	fixture_lease(&f, 9, s, 1);
	assert_int_equal(fixture_sent(&f, 9, MSG_GRANT)->grant.work.first, 0);
	fixture_restart(&f);
	for (int i = 0; i < 15; i++)
		fixture_tick(&f, 100); /* all ticks together are longer than dead_ms (1000) */
	assert_int_equal(f.core->leases.n_free, 4);
	s = fixture_come_back(&f, 9, s, 0);
	fixture_lease(&f, 9, s, 1);
	assert_non_null(fixture_sent(&f, 9, MSG_GRANT));
	assert_int_equal(fixture_sent(&f, 9, MSG_GRANT)->grant.work.first, 0);
	fixture_close(&f);
}
