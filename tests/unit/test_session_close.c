/*
 * Proves that a session (worker/client/session.h) answers the requests of its program one by one,
 * and tests every way in which a session ends.
 */
#include "tests/support/session_driver.h"
#include "tests/support/test.h"

TEST(one_pull_at_a_time_answered_by_its_number)
{
	static struct session_driver d;
	struct msg m = {.type = MSG_PARAMS};

	driver_open(&d);
	assert_int_equal(session_pull(d.s, WEIGHTS_EVAL, d.now_ms), PS_OK);
	assert_int_equal(driver_sent(&d, MSG_PULL)->pull.which, WEIGHTS_EVAL);
	assert_int_equal(driver_pull(&d), PS_EAGAIN);
	driver_lost(&d);
	driver_up(&d);
	driver_welcome(&d, 0, 0);
	/* the open request is still the first pull, because the session refused the second one */
	assert_int_equal(driver_sent(&d, MSG_PULL)->pull.which, WEIGHTS_EVAL);
	m.params = (struct msg_params){.request = 2, .version = 9, .which = WEIGHTS_EVAL};
	driver_message(&d, &m);
	assert_did(&d, "");
	m.params.request = 1;
	driver_message(&d, &m);
	assert_did(&d, "PARAMS");
	assert_int_equal(driver_effect(&d, NOTIFY_PARAMS)->msg.params.version, 9);
	driver_message(&d, &m);
	assert_did(&d, "");
	assert_int_equal(session_pull(d.s, WEIGHTS_EVAL, d.now_ms), PS_OK);
	assert_int_equal(driver_sent(&d, MSG_PULL)->pull.request, 2);
	driver_error(&d, PS_EAGAIN); /* PS_EAGAIN: no evaluation is in progress */
	assert_did(&d, "NO-PARAMS");
	assert_int_equal(driver_effect(&d, NOTIFY_NO_PARAMS)->status, PS_EAGAIN);
	driver_error(&d, PS_EAGAIN);
	assert_did(&d, "");
	session_free(&d.s);
}

/* A server that waits for its disk sends notices repeatedly. A notice shows the worker that the
 * server is alive. The notice does not refuse a request. */
TEST(a_notice_keeps_the_session_and_its_requests)
{
	for (enum weights which = WEIGHTS_CURRENT; which <= WEIGHTS_EVAL; which++) {
		static struct session_driver d;
		struct msg m = {.type = MSG_PARAMS};

		driver_open(&d);
		assert_int_equal(session_pull(d.s, which, d.now_ms), PS_OK);
		for (int i = 0; i < 10; i++) {
			driver_tick(&d, 2000);
			driver_notice(&d);
			assert_did(&d, "");
			assert_int_equal(session_phase(d.s), PHASE_READY);
		}
		m.params = (struct msg_params){.request = 1, .version = 9, .which = which};
		driver_message(&d, &m);
		assert_did(&d, "PARAMS");
		session_free(&d.s);
	}
}

TEST(weights_of_before_a_crash_do_not_answer_a_pull_after_it)
{
	static struct session_driver d;
	struct msg m = {.type = MSG_PARAMS, .params = {.request = 1, .version = 9}};

	driver_open(&d);
	assert_int_equal(driver_pull(&d), PS_OK);
	driver_crash(&d);
	driver_error(&d, PS_ETERM);
	driver_welcome(&d, 0, 0);
	assert_did(&d, "READY pull");
	m.params.request = driver_sent(&d, MSG_PULL)->pull.request - 1;
	driver_message(&d, &m);
	assert_did(&d, "");
	m.params.request++;
	driver_message(&d, &m);
	assert_did(&d, "PARAMS");
	session_free(&d.s);
}

TEST(a_refused_command_ends_nothing)
{
	static struct session_driver d;

	driver_open(&d);
	driver_error(&d, PS_EUSAGE);
	assert_did(&d, "");
	assert_int_equal(session_phase(d.s), PHASE_READY);
	session_free(&d.s);
}

TEST(one_lease_at_a_time_answered_by_its_number)
{
	static struct session_driver d;
	struct msg m = {.type = MSG_GRANT};

	driver_open(&d);
	for (uint64_t i = 1; i <= 3; i++) {
		assert_int_equal(driver_lease(&d), PS_OK);
		assert_int_equal(driver_sent(&d, MSG_LEASE)->lease.request, i);
		assert_int_equal(driver_lease(&d), PS_EAGAIN);
		m.grant = (struct msg_grant){
			.request = i - 1, .kind = GRANT_TRAIN, .work = {0, 5, 1}};
		driver_message(&d, &m);
		assert_did(&d, "");
		m.grant.request = i;
		driver_message(&d, &m);
		assert_did(&d, "GRANT");
		assert_int_equal(driver_effect(&d, NOTIFY_GRANT)->msg.grant.work.first, 5);
		driver_message(&d, &m);
		assert_did(&d, "");
	}
	session_free(&d.s);
}

TEST(one_result_at_a_time_waits_behind_the_pushes)
{
	const struct msg_result first = {.eval_id = 1, .correct = 5}, second = {.eval_id = 2};
	static struct session_driver d;

	driver_open(&d);
	driver_push_ok(&d, 5);
	assert_int_equal(session_result(d.s, &first, d.now_ms), PS_OK);
	assert_did(&d, "");
	assert_int_equal(session_result(d.s, &second, d.now_ms), PS_EAGAIN);
	driver_ack(&d, 1, VERDICT_OK, 0);
	assert_did(&d, "ACK:1 push:5 result");
	assert_int_equal(driver_sent(&d, MSG_RESULT)->result.eval_id, 1);
	assert_int_equal(driver_sent(&d, MSG_RESULT)->result.correct, 5);
	assert_memory_equal(
		&driver_sent(&d, MSG_RESULT)->result.stamp, &d.welcome.stamp, sizeof(struct stamp));
	assert_int_equal(session_result(d.s, &second, d.now_ms), PS_OK);
	assert_did(&d, "result");
	session_free(&d.s);
}

TEST(errors_that_a_hello_cannot_mend_end_it)
{
	const int mend[] = {PS_ETERM, PS_EGAP, PS_ESTATE};
	const int end[] = {PS_EFENCED, PS_EWRONGRUN, PS_EWRONGDATA, PS_EPROTO, PS_EVERSION,
		PS_EROLLEDBACK, PS_ESHUTDOWN, PS_EDONE, PS_EQUARANTINE, PS_EDIVERGED};
	static struct session_driver d;

	driver_open(&d);
	for (size_t i = 0; i < 3; i++) {
		driver_tick(&d, 50);
		driver_error(&d, mend[i]);
		assert_did(&d, "hello");
		/* the answer to the first HELLO is still open, so a second error must not cause
		 * another HELLO */
		driver_error(&d, mend[i]);
		assert_did(&d, "");
		driver_welcome(&d, 0, 0);
	}
	session_free(&d.s);
	for (size_t i = 0; i < sizeof(end) / sizeof(end[0]); i++) {
		driver_open(&d);
		driver_error(&d, end[i]);
		assert_int_equal(driver_effect(&d, NOTIFY_END)->status, end[i]);
		assert_int_equal(driver_push(&d), end[i]);
		assert_int_equal(driver_pull(&d), end[i]);
		assert_int_equal(driver_lease(&d), end[i]);
		session_free(&d.s);
	}
}

/* ---- BYE ------------------------------------------------------------------------------------ */

TEST(bye_follows_all_pushes_and_its_answer_ends_the_session)
{
	static struct session_driver d;

	driver_open(&d);
	driver_push_ok(&d, 6);
	assert_int_equal(driver_lease(&d), PS_OK);
	driver_bye(&d);
	assert_did(&d, ""); /* no BYE yet, because pushes 5 and 6 wait for a place in the window */
	assert_int_equal(driver_push(&d), PS_EAGAIN);
	assert_int_equal(driver_lease(&d), PS_EAGAIN);
	driver_ack(&d, 1, VERDICT_OK, 0);
	driver_ack(&d, 2, VERDICT_OK, 0);
	/* BYE follows the last push, and the session discards the request for a lease */
	assert_did(&d, "ACK:2 push:6 bye");
	driver_bye(&d);
	assert_did(&d, "");
	for (uint64_t seq = 3; seq <= 6; seq++)
		driver_ack(&d, seq, VERDICT_OK, 0);
	driver_heartbeat(&d, 6, 6);
	assert_did(&d, "release:6");
	driver_bye_from_server(&d, PS_OK);
	assert_did(&d, "END:PS_OK");
	assert_int_equal(driver_push(&d), PS_ESTATE);
	session_free(&d.s);
}

TEST(bye_is_sent_again_after_a_welcome_and_times_out_after_5_s)
{
	static struct session_driver d;

	driver_open(&d);
	driver_bye(&d);
	assert_did(&d, "bye");
	driver_lost(&d);
	driver_up(&d);
	driver_welcome(&d, 0, 0);
	assert_did(&d, "READY bye");
	d.now_ms = 5000 + 4999;
	driver_tick(&d, 0);
	assert_int_not_equal(session_phase(d.s), PHASE_END);
	driver_tick(&d, 1);
	assert_did(&d, "END:PS_OK");
	session_free(&d.s);
}

TEST(leaving_without_an_answer_and_with_pushes_that_are_not_durable_is_a_failure)
{
	static struct session_driver d;

	driver_open(&d);
	assert_int_equal(driver_push(&d), PS_OK);
	driver_ack(&d, 1, VERDICT_OK, 0);
	driver_bye(&d);
	driver_tick(&d, 5000);
	assert_int_equal(driver_effect(&d, NOTIFY_END)->status, PS_EUNREACHABLE);
	session_free(&d.s);
}

TEST(the_servers_bye_ends_it_with_its_reason)
{
	const int why[] = {PS_EDONE, PS_ESHUTDOWN, PS_EDIVERGED};
	static struct session_driver d;

	for (size_t i = 0; i < 6; i++) {
		if (i % 2)
			driver_open(&d);
		else
			/* a session without WELCOME, because the server sends BYE instead */
			driver_new(&d, driver_config(), 8);
		/* the session has sent no BYE, so it ignores this answer to a BYE */
		driver_bye_from_server(&d, PS_OK);
		assert_did(&d, "");
		driver_bye_from_server(&d, why[i / 2]);
		assert_int_equal(driver_effect(&d, NOTIFY_END)->status, why[i / 2]);
		session_free(&d.s);
	}
}

TEST(bye_before_any_welcome_ends_at_once)
{
	static struct session_driver d;

	driver_new(&d, driver_config(), 8);
	driver_bye(&d);
	assert_did(&d, "END:PS_OK");
	session_free(&d.s);
}

TEST(after_the_end_there_is_nothing)
{
	static struct session_driver d;

	driver_open(&d);
	driver_push_ok(&d, 1);
	driver_error(&d, PS_EFENCED);
	assert_did(&d, "END:PS_EFENCED");
	/* the driver fails if the session has an effect after its end */
	driver_ack(&d, 1, VERDICT_OK, 1);
	driver_welcome(&d, 0, 0);
	driver_error(&d, PS_ETERM);
	driver_bye_from_server(&d, PS_EDONE);
	driver_lost(&d);
	driver_up(&d);
	driver_bye(&d);
	driver_tick(&d, 100000);
	assert_did(&d, "");
	session_free(&d.s);
	assert_null(d.s);
	session_free(&d.s);
}

TEST(a_window_of_nothing_or_too_much_is_refused)
{
	const struct session_config cfg = driver_config();
	const size_t bad[] = {0, WIRE_MAX_WINDOW + 1, SIZE_MAX};
	struct session *s;

	for (size_t i = 0; i < 3; i++) {
		s = (struct session *)(uintptr_t)1;
		assert_int_equal(session_new(&s, &cfg, bad[i]), PS_ENOMEM);
		assert_null(s);
	}
	assert_int_equal(session_new(&s, &cfg, WIRE_MAX_WINDOW), PS_OK);
	session_free(&s);
}
