/*
 * Proves the invariants numbered in worker/client/session.h: a seq is assigned once, a push is
 * retained until it is durable, everything is sent again after a WELCOME, the windows hold.
 * (Timing: test_session_time.c.)
 */
#include "tests/unit/session_bench.h"
#include "common/rng.h"

/* ---- HELLO and WELCOME ---------------------------------------------------------------------- */

static void the_first_hello_has_the_identity_and_later_ones_resume(void **state)
{
	static struct sbench b;
	const struct session_config cfg = sbench_config();
	const struct msg_hello *h;
	const struct stamp none = {{0, 0}, 0, 0, 0};

	(void)state;
	sbench_new(&b, cfg, 64);
	h = &sbench_sent(&b, MSG_HELLO)->hello;
	assert_int_equal(h->role, ROLE_WORKER);
	assert_string_equal(h->name, "anna");
	assert_string_equal(h->device, "cpu");
	assert_memory_equal(&h->data, &cfg.data, sizeof(h->data));
	assert_memory_equal(&h->resume, &none, sizeof(none));
	assert_int_equal(h->last_seq, 0);
	sbench_welcome(&b, 0, 0);
	sbench_push_ok(&b, 3);
	sbench_ack(&b, 1, VERDICT_OK, 1);
	sbench_error(&b, PS_ETERM);
	assert_did(&b, "hello");
	h = &sbench_sent(&b, MSG_HELLO)->hello;
	assert_memory_equal(&h->resume, &b.welcome.stamp, sizeof(h->resume));
	assert_int_equal(h->last_seq, 3);
	assert_int_equal(h->durable_seq, 1);
	session_free(&b.s);
}

static void a_new_process_goes_on_after_its_predecessors_seq(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_new(&b, sbench_config(), 64);
	sbench_welcome(&b, 41, 17);
	assert_did(&b, "READY");
	assert_int_equal(session_last_seq(b.s), 41);
	sbench_push_ok(&b, 1);
	assert_did(&b, "push:42");
	session_free(&b.s);
}

static void no_request_is_possible_before_welcome(void **state)
{
	static struct sbench b;
	const struct msg_result r = {.eval_id = 1};

	(void)state;
	sbench_new(&b, sbench_config(), 64);
	assert_int_equal(session_can_push(b.s), 0);
	assert_int_equal(sbench_push(&b), PS_EAGAIN);
	assert_int_equal(sbench_pull(&b), PS_EAGAIN);
	assert_int_equal(sbench_lease(&b), PS_EAGAIN);
	assert_int_equal(session_result(b.s, &r, b.now_ms), PS_EAGAIN);
	assert_did(&b, "");
	session_free(&b.s);
}

static void a_welcome_of_another_life_or_an_impossible_one_is_ignored(void **state)
{
	static struct sbench b;
	struct stamp mine;

	(void)state;
	sbench_open(&b);
	mine = b.welcome.stamp;
	sbench_push_ok(&b, 3);
	sbench_ack(&b, 1, VERDICT_OK, 1);
	sbench_welcome(&b, 1, 1); /* the answer to a HELLO that was said twice */
	assert_did(&b, "");
	sbench_error(&b, PS_ESTATE);
	b.welcome.stamp.worker++;
	sbench_welcome(&b, 0, 0);
	assert_did(&b, "");
	b.welcome.stamp = mine;
	b.welcome.stamp.incarnation++;
	sbench_welcome(&b, 0, 0);
	assert_did(&b, "");
	b.welcome.stamp = mine;
	b.welcome.stamp.run.hi++;
	sbench_welcome(&b, 0, 0);
	assert_did(&b, "");
	b.welcome.stamp = mine;
	sbench_welcome(&b, 0, 0); /* older than what we have let go */
	assert_did(&b, "");
	sbench_welcome(&b, 4, 1); /* newer than what we ever gave */
	assert_did(&b, "");
	assert_int_equal(session_phase(b.s), PHASE_HELLO);
	sbench_welcome(&b, 1, 1);
	assert_did(&b, "READY push:2 push:3");
	session_free(&b.s);
}

/* ---- pushes --------------------------------------------------------------------------------- */

static void at_most_push_window_are_under_way(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	for (int i = 1; i <= 8; i++) {
		char expected[32];

		sbench_push_ok(&b, 1);
		snprintf(expected, sizeof(expected), "push:%d", i);
		assert_did(&b, i <= 4 ? expected : "");
	}
	sbench_ack(&b, 1, VERDICT_OK, 0);
	assert_did(&b, "ACK:1 push:5");
	sbench_ack(&b, 2, VERDICT_REJECTED, 0); /* a rejection frees a place as well */
	assert_did(&b, "ACK:2 push:6");
	assert_int_equal(sbench_effect(&b, NOTIFY_ACK)->msg.ack.reject, REJECT_NORM);
	assert_int_equal(sbench_effect(&b, NOTIFY_ACK)->msg.ack.version, 102);
	session_free(&b.s);
}

static void at_most_replay_window_pushes_are_retained(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_push_ok(&b, 8);
	assert_int_equal(session_can_push(b.s), 0);
	assert_int_equal(sbench_push(&b), PS_EAGAIN);
	sbench_ack(&b, 1, VERDICT_OK, 0); /* decided is not durable */
	assert_int_equal(sbench_push(&b), PS_EAGAIN);
	sbench_beat(&b, 4, 1);
	assert_did(&b, "release:1");
	assert_int_equal(session_can_push(b.s), 1);
	sbench_push_ok(&b, 1);
	assert_int_equal(sbench_push(&b), PS_EAGAIN);
	session_free(&b.s);
}

static void windows_are_bounded_by_what_the_program_has_room_for(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_new(&b, sbench_config(), 3);
	sbench_welcome(&b, 0, 0);
	sbench_push_ok(&b, 3);
	assert_int_equal(sbench_push(&b), PS_EAGAIN);
	session_free(&b.s);
	sbench_new(&b, sbench_config(), 1024);
	b.welcome.push_window = b.welcome.replay_window = 1024;
	sbench_welcome(&b, 0, 0);
	sbench_push_ok(&b, 100);
	assert_did(&b, ""); /* 64 are enough to be under way */
	sbench_ack(&b, 1, VERDICT_OK, 0);
	assert_did(&b, "ACK:1 push:65");
	sbench_error(&b, PS_EGAP);
	sbench_welcome(&b, 1, 0);
	assert_int_equal(session_effect(b.s, 0)->kind, NOTIFY_READY);
	for (size_t i = 1; i <= 64; i++)
		assert_int_equal(session_effect(b.s, i)->seq, i + 1);
	assert_null(session_effect(b.s, 65));
	session_free(&b.s);
}

static void an_ack_is_notified_once_and_a_missing_one_resynchronises(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_push_ok(&b, 4);
	sbench_ack(&b, 1, VERDICT_OK, 0);
	assert_did(&b, "ACK:1");
	sbench_ack(&b, 1, VERDICT_OK, 0);
	assert_did(&b, "");
	sbench_ack(&b, 3, VERDICT_OK, 0); /* the second one's verdict is lost */
	assert_did(&b, "hello");
	sbench_welcome(&b, 4, 0); /* all decided; sent again for their verdicts */
	assert_did(&b, "READY push:2 push:3 push:4");
	sbench_ack(&b, 2, VERDICT_REJECTED, 0);
	assert_did(&b, "ACK:2");
	sbench_ack(&b, 3, VERDICT_OK, 0);
	sbench_ack(&b, 1, VERDICT_OK, 0); /* a late one takes no place in the window */
	sbench_push_ok(&b, 2);
	assert_did(&b, "push:6");
	session_free(&b.s);
}

static void only_what_is_durable_and_decided_is_released(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_push_ok(&b, 4);
	sbench_ack(&b, 1, VERDICT_OK, 3); /* 2 and 3 are on disk, but what was decided? */
	assert_did(&b, "ACK:1 release:1");
	sbench_beat(&b, 4, 4);
	assert_did(&b, "");
	sbench_ack(&b, 2, VERDICT_OK, 4);
	assert_did(&b, "ACK:2 release:2");
	sbench_ack(&b, 3, VERDICT_OK, 2); /* an older promise takes nothing back */
	assert_did(&b, "ACK:3");
	assert_int_equal(session_durable_seq(b.s), 2);
	sbench_lost(&b);
	sbench_up(&b);
	sbench_welcome(&b, 4, 4);
	assert_did(&b, "release:3 READY push:4");
	session_free(&b.s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_hello_has_the_identity_and_later_ones_resume),
		cmocka_unit_test(a_new_process_goes_on_after_its_predecessors_seq),
		cmocka_unit_test(no_request_is_possible_before_welcome),
		cmocka_unit_test(a_welcome_of_another_life_or_an_impossible_one_is_ignored),
		cmocka_unit_test(at_most_push_window_are_under_way),
		cmocka_unit_test(at_most_replay_window_pushes_are_retained),
		cmocka_unit_test(windows_are_bounded_by_what_the_program_has_room_for),
		cmocka_unit_test(an_ack_is_notified_once_and_a_missing_one_resynchronises),
		cmocka_unit_test(only_what_is_durable_and_decided_is_released),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
