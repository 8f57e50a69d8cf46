/*
 * Proves the invariants of server/core/departure.h about pushes that a crash has lost: their
 * worker replays them before it leaves, or retains them for the server's next term.
 */
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

/* Returns the stamp of worker 1. The worker has 3 acknowledged pushes. A crash has lost these
 * pushes, and the worker has not returned yet. */
static struct stamp lose(struct core_fixture *f)
{
	struct core_config cfg = fixture_config();
	struct core_snapshot before;
	struct stamp s;

	fixture_open(f, cfg);
	s = fixture_join(f, 9, "");
	before = fixture_save(f);
	for (uint64_t seq = 1; seq <= 3; seq++) {
		struct msg m = fixture_push_ones(s, seq);

		fixture_applied(f, 9, &m);
	}
	fixture_close(f);
	fixture_load(f, cfg, &before);
	f->saving = 0;
	fixture_drop(&before);
	fixture_tick(f, 1);
	return s;
}

static struct stamp resume_after_three(struct core_fixture *f, struct stamp s)
{
	struct msg m = fixture_resume(s, 3, 0);

	fixture_message(f, 20, &m);
	assert_non_null(fixture_sent(f, 20, MSG_WELCOME));
	return fixture_sent(f, 20, MSG_WELCOME)->welcome.stamp;
}

static void replay_three_pushes(struct core_fixture *f, struct stamp s)
{
	for (uint64_t seq = 1; seq <= 3; seq++) {
		struct msg m = fixture_push_ones(s, seq);

		m.push.verdict = VERDICT_OK;
		fixture_applied(f, 20, &m);
	}
}

TEST(a_drain_lets_the_replays_of_a_crash_through)
{
	struct core_fixture f;
	struct stamp s = lose(&f);

	fixture_drain(&f);
	assert_int_equal(f.saving, 0);
	s = resume_after_three(&f, s);
	assert_int_equal(f.saving, 0);
	replay_three_pushes(&f, s);
	assert_int_not_equal(f.saving, 0);
	fixture_durable(&f);
	assert_int_equal(fixture_count(&f, EFFECT_FINISH), 1);
	assert_int_equal(fixture_sent(&f, 20, MSG_BYE)->bye.status, PS_ESHUTDOWN);
	assert_int_equal(fixture_worker(&f, 1).durable_seq, 3);
	fixture_close(&f);
}

TEST(a_drain_waits_for_no_longer_than_a_recovery)
{
	struct core_fixture f;

	lose(&f);
	fixture_drain(&f);
	fixture_tick(&f, f.cfg.sessions.recovery_ms - 1);
	assert_int_equal(f.saving, 0);
	fixture_tick(&f, 1);
	assert_int_not_equal(f.saving, 0);
	fixture_durable(&f);
	assert_int_equal(fixture_count(&f, EFFECT_FINISH), 1);
	fixture_close(&f);
}

/* A worker whose pushes were lost retains these pushes, so it gets no BYE. Instead, the worker
 * continues in the server's next term. */
TEST(a_worker_with_lost_pushes_gets_no_bye)
{
	struct core_fixture f;
	struct stamp s = lose(&f);
	struct msg late = fixture_resume(s, 3, 0), nothing_lost = fixture_resume(s, 0, 0);

	fixture_drain(&f);
	fixture_tick(&f, f.cfg.sessions.recovery_ms);
	fixture_durable(&f);
	assert_int_equal(fixture_count(&f, EFFECT_FINISH), 1);
	fixture_message(&f, 20, &late);
	fixture_silent(&f);
	fixture_message(&f, 21, &nothing_lost);
	assert_int_equal(fixture_sent(&f, 21, MSG_BYE)->bye.status, PS_ESHUTDOWN);
	fixture_close(&f);
}

TEST(a_worker_that_returns_too_late_to_replay_gets_no_bye)
{
	struct core_fixture f;
	struct stamp s = lose(&f);
	struct msg m;

	fixture_drain(&f);
	fixture_tick(&f, f.cfg.sessions.recovery_ms);
	assert_int_not_equal(f.saving, 0);
	s = resume_after_three(
		&f, s); /* the worker returns while the last snapshot is in progress */
	m = fixture_push_ones(s, 1);
	m.push.verdict = VERDICT_OK;
	fixture_message(&f, 20, &m);
	fixture_silent(&f);
	/* The server must not answer this BYE. After a refusal, the worker would repeat its replays
	 * and BYE forever. */
	fixture_bye(&f, 20, s);
	fixture_silent(&f);
	fixture_durable(&f);
	assert_int_equal(fixture_count(&f, EFFECT_FINISH), 1);
	assert_null(fixture_sent(&f, 20, MSG_BYE));
	fixture_heartbeat(&f, 29, s);
	fixture_silent(&f);
	fixture_close(&f);
}

TEST(a_worker_that_leaves_replays_first)
{
	struct core_fixture f;
	struct stamp s = lose(&f);

	s = resume_after_three(&f, s);
	fixture_bye(&f, 20, s); /* refused, because the BYE arrives before the replays */
	fixture_refused(&f, 20, PS_EGAP);
	assert_int_equal(fixture_sent(&f, 20, MSG_ERROR)->error.expected, 1);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_LIVE);
	replay_three_pushes(&f, s);
	fixture_bye(&f, 20, s);
	assert_null(fixture_sent(&f, 20, MSG_BYE));
	while (f.saving && !fixture_sent(&f, 20, MSG_BYE))
		fixture_durable(&f);
	assert_int_equal(fixture_sent(&f, 20, MSG_BYE)->bye.status, PS_OK);
	fixture_close(&f);
}

TEST(a_replaced_worker_is_fenced_after_the_end_too)
{
	struct core_fixture f;
	struct stamp first;
	struct msg m;

	fixture_open(&f, fixture_config());
	first = fixture_join(&f, 9, "anna");
	fixture_join(&f, 10, "anna");
	fixture_drain(&f);
	while (f.saving)
		fixture_durable(&f);
	assert_int_equal(fixture_sent(&f, 10, MSG_BYE)->bye.status, PS_ESHUTDOWN);
	m = fixture_resume(first, 1, 0);
	fixture_message(&f, 11, &m);
	fixture_refused(&f, 11, PS_EFENCED);
	fixture_close(&f);
}

/* ---- a server that has lost its newest state ------------------------------------------------- */

/* Let the server assign slot 1, lose the checkpoint that contains the assignment, and assign the
 * slot again. Returns the stamp of the first worker. */
static struct stamp assign_twice(struct core_fixture *f, int accept)
{
	struct core_config cfg = fixture_config();
	struct core_snapshot before;
	struct stamp first, second;

	cfg.sessions.accept_rollback = accept;
	fixture_open(f, cfg);
	before = fixture_save(f);
	first = fixture_join(f, 9, "");
	fixture_close(f);
	fixture_load(f, cfg, &before);
	f->saving = 0;
	fixture_drop(&before);
	second = fixture_join(f, 10, "");
	assert_int_equal(second.worker, first.worker);
	assert_int_equal(second.incarnation, first.incarnation);
	return first;
}

TEST(a_worker_with_a_reused_incarnation_is_refused)
{
	const int status[] = {PS_EROLLEDBACK, PS_EFENCED};

	for (int accept = 0; accept < 2; accept++) {
		struct core_fixture f;
		struct stamp s = assign_twice(&f, accept);
		struct msg m = fixture_resume(s, 0, 0);

		fixture_message(&f, 9, &m);
		fixture_refused(&f, 9, status[accept]);
		assert_int_equal(f.core->worker[0].session.peer, 10);
		/* after this restart, the server has the new owner of the slot from the
		 * snapshot */
		fixture_restart(&f);
		f.saving = 0;
		fixture_message(&f, 9, &m);
		fixture_refused(&f, 9, status[accept]);
		fixture_close(&f);
	}
}
