/* Proves what the server's heartbeats report, and when the server answers BYE (invariant 2 of
 * server/core/departure.h). */
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

/* ---- heartbeats ----------------------------------------------------------------------------- */

TEST(a_heartbeat_is_answered_with_what_is_decided_and_durable)
{
	struct core_fixture f;
	struct stamp s = fixture_open_with_pushes(&f, fixture_config(), 3);
	const struct msg *m;

	fixture_heartbeat(&f, 19, s);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 1);
	m = fixture_sent(&f, 19, MSG_HEARTBEAT);
	assert_non_null(m);
	assert_int_equal(m->heartbeat.last_seq, 3);
	assert_int_equal(m->heartbeat.durable_seq, 0);
	assert_memory_equal(&m->heartbeat.stamp, &s, sizeof(s));
	fixture_close(&f);
}

/* Lets checkpoint_ms pass, so that the core takes a snapshot, which becomes durable. */
static void save(struct core_fixture *f, struct stamp s)
{
	f->now_ms += f->cfg.checkpoint.interval_ms;
	fixture_heartbeat(f, 19, s);
	fixture_durable(f);
}

TEST(a_new_durable_seq_is_sent_on_the_heartbeat_connection)
{
	struct core_fixture f;
	struct stamp s = fixture_open_with_pushes(&f, fixture_config(), 3);
	struct msg m;

	save(&f, s);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 1);
	assert_int_equal(fixture_sent(&f, 19, MSG_HEARTBEAT)->heartbeat.durable_seq, 3);
	m = fixture_push_ones(s, 4);
	fixture_applied(&f, 9, &m);
	f.now_ms += f.cfg.checkpoint.interval_ms;
	fixture_heartbeat(&f, 19, s);
	fixture_gone(&f, 19);
	fixture_durable(&f);
	/* the heartbeat connection is gone, so the core uses the connection for bulk data */
	assert_int_equal(fixture_sent(&f, 9, MSG_HEARTBEAT)->heartbeat.durable_seq, 4);
	m = fixture_push_ones(s, 5);
	fixture_applied(&f, 9, &m);
	f.now_ms += f.cfg.checkpoint.interval_ms;
	fixture_heartbeat(&f, 19, s);
	fixture_gone(&f, 9);
	fixture_gone(&f, 19);
	fixture_durable(&f);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	assert_int_equal(fixture_worker(&f, 1).durable_seq, 5);
	fixture_close(&f);
}

/* ---- BYE ------------------------------------------------------------------------------------ */

TEST(bye_is_answered_when_all_pushes_are_durable)
{
	struct core_fixture f;
	struct stamp s = fixture_open_with_pushes(&f, fixture_config(), 2);
	struct msg m;

	fixture_bye(&f, 9, s);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_DEAD);
	/* the core has begun a snapshot at once, and answers BYE when it is durable */
	assert_int_not_equal(f.saving, 0);
	fixture_durable(&f);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 1);
	assert_int_equal(fixture_sent(&f, 9, MSG_BYE)->bye.status, PS_OK);
	m = fixture_push_ones(s, 3);
	fixture_message(&f, 9, &m);
	fixture_refused(&f, 9, PS_ESTATE);
	fixture_close(&f);
}

/* A worker that waits for the answer to its BYE sends heartbeats, and may repeat its BYE. The core
 * must not close the session a second time because of one of these messages. */
TEST(a_worker_that_waits_for_the_answer_to_bye_is_alive)
{
	struct core_fixture f;
	struct stamp s = fixture_open_with_pushes(&f, fixture_config(), 2);
	struct msg heartbeat = {.type = MSG_HEARTBEAT, .heartbeat = {.stamp = s, .last_seq = 2}};

	fixture_bye(&f, 9, s);
	fixture_message(&f, 10, &heartbeat);
	assert_int_equal(fixture_sent(&f, 10, MSG_HEARTBEAT)->heartbeat.last_seq, 2);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_DEAD);
	fixture_bye(&f, 9, s);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	fixture_durable(&f);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 1);
	assert_int_equal(fixture_sent(&f, 9, MSG_BYE)->bye.status, PS_OK);
	fixture_message(&f, 10, &heartbeat);
	fixture_refused(&f, 10, PS_ESTATE);
	fixture_close(&f);
}

TEST(bye_with_nothing_to_save_is_answered_at_once)
{
	struct core_fixture f;
	struct stamp s = fixture_open_with_pushes(&f, fixture_config(), 1);

	save(&f, s);
	fixture_bye(&f, 9, s);
	assert_non_null(fixture_sent(&f, 9, MSG_BYE));
	assert_int_equal(fixture_count(&f, EFFECT_SNAPSHOT), 0);
	fixture_close(&f);
}

TEST(a_worker_that_vanished_after_bye_is_not_answered)
{
	struct core_fixture f;
	struct stamp s = fixture_open_with_pushes(&f, fixture_config(), 1);

	fixture_bye(&f, 9, s);
	fixture_gone(&f, 9);
	fixture_durable(&f);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	fixture_close(&f);
}

TEST(a_worker_gets_no_lease_after_bye)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	cfg.leases.min_workers = 2;
	s = fixture_open_with_pushes(&f, cfg, 0);
	fixture_lease(&f, 9, s, 1);
	fixture_bye(&f, 9, s);
	m = fixture_resume(s, 1, 0);
	fixture_message(&f, 9, &m);
	fixture_durable(&f);
	m = fixture_push_ones(s, 1);
	fixture_message(&f, 9, &m);
	assert_non_null(fixture_sent(&f, 9, MSG_ACK));
	fixture_join(&f, 10, "");
	assert_int_equal(core_live_workers(f.core), 2);
	assert_null(fixture_sent(&f, 9, MSG_GRANT));
	fixture_close(&f);
}

TEST(answers_go_where_the_question_came_from)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	fixture_lease(&f, 20, s, 1);
	assert_non_null(fixture_sent(&f, 20, MSG_GRANT));
	m = fixture_push_ones(s, 1);
	fixture_work(&m, 0, 0, 1);
	fixture_applied(&f, 21, &m);
	fixture_pull(&f, 22, s, WEIGHTS_CURRENT);
	assert_non_null(fixture_sent(&f, 22, MSG_PARAMS));
	fixture_heartbeat(&f, 23, s);
	assert_non_null(fixture_sent(&f, 23, MSG_HEARTBEAT));
	fixture_bye(&f, 24, s);
	fixture_durable(&f);
	assert_non_null(fixture_sent(&f, 24, MSG_BYE));
	fixture_close(&f);
}

/* When its HEARTBEAT arrives on the other connection after its BYE, a worker gets PS_ESTATE and
 * sends HELLO. This HELLO must not make the worker, whose process ends with the answer to its BYE,
 * live again. */
TEST(a_hello_does_not_undo_bye)
{
	struct core_fixture f;
	struct stamp s = fixture_open_with_pushes(&f, fixture_config(), 1);
	const struct msg resume = fixture_resume(s, 1, 0);

	fixture_bye(&f, 9, s);
	fixture_message(&f, 20, &resume); /* on a new connection, which gets the answer */
	fixture_silent(&f);
	fixture_durable(&f);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 1);
	assert_int_equal(fixture_sent(&f, 20, MSG_BYE)->bye.status, PS_OK);
	fixture_heartbeat(&f, 19, s);
	fixture_refused(&f, 19, PS_ESTATE);
	fixture_message(&f, 20, &resume);
	assert_int_equal(fixture_sent(&f, 20, MSG_BYE)->bye.status, PS_OK);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_DEAD);
	fixture_join(&f, 9, "other"); /* a new process gets the slot */
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_LIVE);
	fixture_close(&f);
}

TEST(a_worker_that_returns_with_more_pushes_after_bye_is_welcome)
{
	struct core_fixture f;
	struct stamp s = fixture_open_with_pushes(&f, fixture_config(), 1);
	struct msg m = fixture_resume(s, 2, 0);

	fixture_bye(&f, 9, s);
	fixture_message(&f, 9, &m); /* the worker resumes its session before BYE is answered */
	fixture_durable(&f);
	assert_null(fixture_sent(&f, 9, MSG_BYE));
	fixture_durable(&f);
	assert_non_null(fixture_sent(&f, 9, MSG_WELCOME));
	assert_null(fixture_sent(&f, 9, MSG_BYE));
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_LIVE);
	fixture_close(&f);
}
