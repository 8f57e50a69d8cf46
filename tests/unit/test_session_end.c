/*
 * Proves how a session of worker/client/session.h answers its program's requests one by one, and
 * every way in which it ends.
 */
#include "tests/unit/session_bench.h"

static void one_pull_at_a_time_answered_by_its_number(void **state)
{
	static struct sbench b;
	struct msg m = {.type = MSG_PARAMS};

	(void)state;
	sbench_open(&b);
	assert_int_equal(session_pull(b.s, WEIGHTS_EVAL, b.now_ms), PS_OK);
	assert_int_equal(sbench_sent(&b, MSG_PULL)->pull.which, WEIGHTS_EVAL);
	assert_int_equal(sbench_pull(&b), PS_EAGAIN);
	sbench_lost(&b);
	sbench_up(&b);
	sbench_welcome(&b, 0, 0);
	assert_int_equal(
		sbench_sent(&b, MSG_PULL)->pull.which, WEIGHTS_EVAL); /* not the refused one's */
	m.params = (struct msg_params){.request = 2, .version = 9, .which = WEIGHTS_EVAL};
	sbench_message(&b, &m);
	assert_did(&b, "");
	m.params.request = 1;
	sbench_message(&b, &m);
	assert_did(&b, "PARAMS");
	assert_int_equal(sbench_effect(&b, NOTIFY_PARAMS)->msg.params.version, 9);
	sbench_message(&b, &m);
	assert_did(&b, "");
	assert_int_equal(session_pull(b.s, WEIGHTS_EVAL, b.now_ms), PS_OK);
	assert_int_equal(sbench_sent(&b, MSG_PULL)->pull.request, 2);
	sbench_error(&b, PS_EAGAIN); /* nothing is under evaluation */
	assert_did(&b, "NO-PARAMS");
	assert_int_equal(sbench_effect(&b, NOTIFY_NO_PARAMS)->status, PS_EAGAIN);
	sbench_error(&b, PS_EAGAIN);
	assert_did(&b, "");
	session_free(&b.s);
}

/* A server that waits for its disk repeats a notice: the worker is neither alone nor refused. */
static void a_notice_keeps_the_session_and_its_requests(void **state)
{
	(void)state;
	for (enum weights which = WEIGHTS_CURRENT; which <= WEIGHTS_EVAL; which++) {
		static struct sbench b;
		struct msg m = {.type = MSG_PARAMS};

		sbench_open(&b);
		assert_int_equal(session_pull(b.s, which, b.now_ms), PS_OK);
		for (int i = 0; i < 10; i++) {
			sbench_tick(&b, 2000);
			sbench_notice(&b);
			assert_did(&b, "");
			assert_int_equal(session_phase(b.s), PHASE_READY);
		}
		m.params = (struct msg_params){.request = 1, .version = 9, .which = which};
		sbench_message(&b, &m);
		assert_did(&b, "PARAMS");
		session_free(&b.s);
	}
}

static void weights_of_before_a_crash_do_not_answer_a_pull_after_it(void **state)
{
	static struct sbench b;
	struct msg m = {.type = MSG_PARAMS, .params = {.request = 1, .version = 9}};

	(void)state;
	sbench_open(&b);
	assert_int_equal(sbench_pull(&b), PS_OK);
	sbench_crash(&b);
	sbench_error(&b, PS_ETERM);
	sbench_welcome(&b, 0, 0);
	assert_did(&b, "READY pull");
	m.params.request = sbench_sent(&b, MSG_PULL)->pull.request - 1;
	sbench_message(&b, &m);
	assert_did(&b, "");
	m.params.request++;
	sbench_message(&b, &m);
	assert_did(&b, "PARAMS");
	session_free(&b.s);
}

static void a_refused_command_ends_nothing(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_error(&b, PS_EUSAGE);
	assert_did(&b, "");
	assert_int_equal(session_phase(b.s), PHASE_READY);
	session_free(&b.s);
}

static void one_lease_at_a_time_answered_by_its_number(void **state)
{
	static struct sbench b;
	struct msg m = {.type = MSG_GRANT};

	(void)state;
	sbench_open(&b);
	for (uint64_t i = 1; i <= 3; i++) {
		assert_int_equal(sbench_lease(&b), PS_OK);
		assert_int_equal(sbench_sent(&b, MSG_LEASE)->lease.request, i);
		assert_int_equal(sbench_lease(&b), PS_EAGAIN);
		m.grant = (struct msg_grant){
			.request = i - 1, .kind = GRANT_TRAIN, .work = {0, 5, 1}};
		sbench_message(&b, &m);
		assert_did(&b, "");
		m.grant.request = i;
		sbench_message(&b, &m);
		assert_did(&b, "GRANT");
		assert_int_equal(sbench_effect(&b, NOTIFY_GRANT)->msg.grant.work.first, 5);
		sbench_message(&b, &m);
		assert_did(&b, "");
	}
	session_free(&b.s);
}

static void one_result_at_a_time_waits_behind_the_pushes(void **state)
{
	const struct msg_result first = {.eval_id = 1, .correct = 5}, second = {.eval_id = 2};
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_push_ok(&b, 5);
	assert_int_equal(session_result(b.s, &first, b.now_ms), PS_OK);
	assert_did(&b, "");
	assert_int_equal(session_result(b.s, &second, b.now_ms), PS_EAGAIN);
	sbench_ack(&b, 1, VERDICT_OK, 0);
	assert_did(&b, "ACK:1 push:5 result");
	assert_int_equal(sbench_sent(&b, MSG_RESULT)->result.eval_id, 1);
	assert_int_equal(sbench_sent(&b, MSG_RESULT)->result.correct, 5);
	assert_memory_equal(
		&sbench_sent(&b, MSG_RESULT)->result.stamp, &b.welcome.stamp, sizeof(struct stamp));
	assert_int_equal(session_result(b.s, &second, b.now_ms), PS_OK);
	assert_did(&b, "result");
	session_free(&b.s);
}

static void errors_that_a_hello_cannot_mend_end_it(void **state)
{
	const int mend[] = {PS_ETERM, PS_EGAP, PS_ESTATE};
	const int end[] = {PS_EFENCED, PS_EWRONGRUN, PS_EWRONGDATA, PS_EPROTO, PS_EVERSION,
		PS_EROLLEDBACK, PS_ESHUTDOWN, PS_EDONE, PS_EQUARANTINE, PS_EDIVERGED};
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	for (size_t i = 0; i < 3; i++) {
		sbench_error(&b, mend[i]);
		assert_did(&b, "hello");
		sbench_error(&b, mend[i]); /* one HELLO is under way */
		assert_did(&b, "");
		sbench_welcome(&b, 0, 0);
	}
	session_free(&b.s);
	for (size_t i = 0; i < sizeof(end) / sizeof(end[0]); i++) {
		sbench_open(&b);
		sbench_error(&b, end[i]);
		assert_int_equal(sbench_effect(&b, NOTIFY_END)->status, end[i]);
		assert_int_equal(sbench_push(&b), end[i]);
		assert_int_equal(sbench_pull(&b), end[i]);
		assert_int_equal(sbench_lease(&b), end[i]);
		session_free(&b.s);
	}
}

/* ---- BYE ------------------------------------------------------------------------------------ */

static void bye_follows_all_pushes_and_its_answer_ends_the_session(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_push_ok(&b, 6);
	assert_int_equal(sbench_lease(&b), PS_OK);
	sbench_bye(&b);
	assert_did(&b, ""); /* 5 and 6 wait for the window */
	assert_int_equal(sbench_push(&b), PS_EAGAIN);
	assert_int_equal(sbench_lease(&b), PS_EAGAIN);
	sbench_ack(&b, 1, VERDICT_OK, 0);
	sbench_ack(&b, 2, VERDICT_OK, 0);
	assert_did(&b, "ACK:2 push:6 bye"); /* and no lease before it */
	sbench_bye(&b);
	assert_did(&b, "");
	for (uint64_t seq = 3; seq <= 6; seq++)
		sbench_ack(&b, seq, VERDICT_OK, 0);
	sbench_beat(&b, 6, 6);
	assert_did(&b, "release:6");
	sbench_bye_from_server(&b, PS_OK);
	assert_did(&b, "END:PS_OK");
	assert_int_equal(sbench_push(&b), PS_ESTATE);
	session_free(&b.s);
}

static void bye_is_sent_again_after_a_welcome_and_times_out_after_5_s(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_bye(&b);
	assert_did(&b, "bye");
	sbench_lost(&b);
	sbench_up(&b);
	sbench_welcome(&b, 0, 0);
	assert_did(&b, "READY bye");
	b.now_ms = 5000 + 4999;
	sbench_tick(&b, 0);
	assert_int_not_equal(session_phase(b.s), PHASE_END);
	sbench_tick(&b, 1);
	assert_did(&b, "END:PS_OK");
	session_free(&b.s);
}

static void leaving_without_an_answer_and_with_pushes_that_are_not_durable_is_a_failure(
	void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	assert_int_equal(sbench_push(&b), PS_OK);
	sbench_ack(&b, 1, VERDICT_OK, 0);
	sbench_bye(&b);
	sbench_tick(&b, 5000);
	assert_int_equal(sbench_effect(&b, NOTIFY_END)->status, PS_EUNREACHABLE);
	session_free(&b.s);
}

static void the_servers_bye_ends_it_with_its_reason(void **state)
{
	const int why[] = {PS_EDONE, PS_ESHUTDOWN, PS_EDIVERGED};
	static struct sbench b;

	(void)state;
	for (size_t i = 0; i < 6; i++) {
		if (i % 2)
			sbench_open(&b);
		else
			sbench_new(&b, sbench_config(), 8); /* instead of a WELCOME */
		sbench_bye_from_server(&b, PS_OK); /* the answer to a BYE that we did not say */
		assert_did(&b, "");
		sbench_bye_from_server(&b, why[i / 2]);
		assert_int_equal(sbench_effect(&b, NOTIFY_END)->status, why[i / 2]);
		session_free(&b.s);
	}
}

static void who_was_never_welcomed_leaves_at_once(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_new(&b, sbench_config(), 8);
	sbench_bye(&b);
	assert_did(&b, "END:PS_OK");
	session_free(&b.s);
}

static void after_the_end_there_is_nothing(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_push_ok(&b, 1);
	sbench_error(&b, PS_EFENCED);
	assert_did(&b, "END:PS_EFENCED");
	sbench_ack(&b, 1, VERDICT_OK, 1); /* the bench refuses effects after the end */
	sbench_welcome(&b, 0, 0);
	sbench_error(&b, PS_ETERM);
	sbench_bye_from_server(&b, PS_EDONE);
	sbench_lost(&b);
	sbench_up(&b);
	sbench_bye(&b);
	sbench_tick(&b, 100000);
	assert_did(&b, "");
	session_free(&b.s);
	assert_null(b.s);
	session_free(&b.s);
}

static void a_window_of_nothing_or_too_much_is_refused(void **state)
{
	const struct session_config cfg = sbench_config();
	const size_t bad[] = {0, WIRE_MAX_WINDOW + 1, SIZE_MAX};
	struct session *s;

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		s = (struct session *)(uintptr_t)1;
		assert_int_equal(session_new(&s, &cfg, bad[i]), PS_ENOMEM);
		assert_null(s);
	}
	assert_int_equal(session_new(&s, &cfg, WIRE_MAX_WINDOW), PS_OK);
	session_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_pull_at_a_time_answered_by_its_number),
		cmocka_unit_test(a_notice_keeps_the_session_and_its_requests),
		cmocka_unit_test(weights_of_before_a_crash_do_not_answer_a_pull_after_it),
		cmocka_unit_test(a_refused_command_ends_nothing),
		cmocka_unit_test(one_lease_at_a_time_answered_by_its_number),
		cmocka_unit_test(one_result_at_a_time_waits_behind_the_pushes),
		cmocka_unit_test(errors_that_a_hello_cannot_mend_end_it),
		cmocka_unit_test(bye_follows_all_pushes_and_its_answer_ends_the_session),
		cmocka_unit_test(bye_is_sent_again_after_a_welcome_and_times_out_after_5_s),
		cmocka_unit_test(
			leaving_without_an_answer_and_with_pushes_that_are_not_durable_is_a_failure),
		cmocka_unit_test(the_servers_bye_ends_it_with_its_reason),
		cmocka_unit_test(who_was_never_welcomed_leaves_at_once),
		cmocka_unit_test(after_the_end_there_is_nothing),
		cmocka_unit_test(a_window_of_nothing_or_too_much_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
