/*
 * Proves the invariants numbered in worker/client/session.h: each seq is assigned once, a push is
 * retained until it is durable, the session sends all retained pushes again after WELCOME, and the
 * windows are never exceeded. (test_session_timeouts.c tests the timeouts.)
 */
#include "tests/support/session_driver.h"
#include "common/rng.h"
#include "tests/support/test.h"

/* ---- HELLO and WELCOME ---------------------------------------------------------------------- */

TEST(the_first_hello_has_the_identity_and_later_ones_resume)
{
	static struct session_driver d;
	const struct session_config cfg = driver_config();
	const struct msg_hello *h;
	const struct stamp none = {{0, 0}, 0, 0, 0};

	driver_new(&d, cfg, 64);
	h = &driver_sent(&d, MSG_HELLO)->hello;
	assert_int_equal(h->role, ROLE_WORKER);
	assert_string_equal(h->name, "anna");
	assert_string_equal(h->device, "cpu");
	assert_memory_equal(&h->data, &cfg.data, sizeof(h->data));
	assert_memory_equal(&h->resume, &none, sizeof(none));
	assert_int_equal(h->last_seq, 0);
	driver_welcome(&d, 0, 0);
	driver_push_ok(&d, 3);
	driver_ack(&d, 1, VERDICT_OK, 1);
	driver_error(&d, PS_ETERM);
	assert_did(&d, "hello");
	h = &driver_sent(&d, MSG_HELLO)->hello;
	assert_memory_equal(&h->resume, &d.welcome.stamp, sizeof(h->resume));
	assert_int_equal(h->last_seq, 3);
	assert_int_equal(h->durable_seq, 1);
	session_free(&d.s);
}

TEST(a_new_process_goes_on_after_its_predecessors_seq)
{
	static struct session_driver d;

	driver_new(&d, driver_config(), 64);
	driver_welcome(&d, 41, 17);
	assert_did(&d, "READY");
	assert_int_equal(session_last_seq(d.s), 41);
	driver_push_ok(&d, 1);
	assert_did(&d, "push:42");
	session_free(&d.s);
}

TEST(no_request_is_possible_before_welcome)
{
	static struct session_driver d;
	const struct msg_result r = {.eval_id = 1};

	driver_new(&d, driver_config(), 64);
	assert_int_equal(session_can_push(d.s), 0);
	assert_int_equal(driver_push(&d), PS_EAGAIN);
	assert_int_equal(driver_pull(&d), PS_EAGAIN);
	assert_int_equal(driver_lease(&d), PS_EAGAIN);
	assert_int_equal(session_result(d.s, &r, d.now_ms), PS_EAGAIN);
	assert_did(&d, "");
	session_free(&d.s);
}

TEST(a_welcome_of_another_term_or_an_impossible_one_is_ignored)
{
	static struct session_driver d;
	struct stamp mine;

	driver_open(&d);
	mine = d.welcome.stamp;
	driver_push_ok(&d, 3);
	driver_ack(&d, 1, VERDICT_OK, 1);
	driver_welcome(&d, 1, 1); /* this WELCOME answers a repeated HELLO */
	assert_did(&d, "");
	driver_error(&d, PS_ESTATE);
	d.welcome.stamp.worker++;
	driver_welcome(&d, 0, 0);
	assert_did(&d, "");
	d.welcome.stamp = mine;
	d.welcome.stamp.incarnation++;
	driver_welcome(&d, 0, 0);
	assert_did(&d, "");
	d.welcome.stamp = mine;
	d.welcome.stamp.run.hi++;
	driver_welcome(&d, 0, 0);
	assert_did(&d, "");
	d.welcome.stamp = mine;
	/* ignored, because its last_seq is smaller than the seq of a released push */
	driver_welcome(&d, 0, 0);
	assert_did(&d, "");
	/* the last_seq of this WELCOME is newer than any push of this worker */
	driver_welcome(&d, 4, 1);
	assert_did(&d, "");
	assert_int_equal(session_phase(d.s), PHASE_HELLO);
	driver_welcome(&d, 1, 1);
	assert_did(&d, "READY push:2 push:3");
	session_free(&d.s);
}

/* A restarted server may report pushes as durable that it has lost. The session must ignore
 * this, because a server cannot have a push on its disk that it has not decided. */
TEST(pushes_that_the_server_has_lost_are_not_durable)
{
	static struct session_driver d;

	driver_new(&d, driver_config(), 64);
	driver_welcome(&d, 0, 3);
	assert_did(&d, "");
	driver_welcome(&d, 0, 0);
	driver_push_ok(&d, 3);
	for (uint64_t seq = 1; seq <= 3; seq++)
		driver_ack(&d, seq, VERDICT_OK, 0);
	driver_crash(&d);
	driver_error(&d, PS_ETERM);
	driver_welcome(&d, 1, 3);
	assert_did(&d, "");
	d.welcome.push_window = 1;
	driver_welcome(&d, 1, 1);
	assert_did(&d, "release:1 READY push:2");
	driver_heartbeat(&d, 1, 3); /* push 2 is under way, and push 3 waits for its ACK */
	assert_int_equal(session_durable_seq(d.s), 1);
	driver_ack(&d, 2, VERDICT_OK, 3);
	assert_did(&d, "release:2 push:3");
	driver_ack(&d, 3, VERDICT_OK, 3);
	assert_int_equal(session_durable_seq(d.s), 3);
	session_free(&d.s);
}

/* ---- pushes --------------------------------------------------------------------------------- */

TEST(at_most_push_window_are_under_way)
{
	static struct session_driver d;

	driver_open(&d);
	for (int i = 1; i <= 8; i++) {
		char expected[32];

		driver_push_ok(&d, 1);
		snprintf(expected, sizeof(expected), "push:%d", i);
		assert_did(&d, i <= 4 ? expected : "");
	}
	driver_ack(&d, 1, VERDICT_OK, 0);
	assert_did(&d, "ACK:1 push:5");
	/* a rejected push frees a place in the window, too */
	driver_ack(&d, 2, VERDICT_REJECTED, 0);
	assert_did(&d, "ACK:2 push:6");
	assert_int_equal(driver_effect(&d, NOTIFY_ACK)->msg.ack.reject, REJECT_NORM);
	assert_int_equal(driver_effect(&d, NOTIFY_ACK)->msg.ack.version, 102);
	session_free(&d.s);
}

TEST(at_most_replay_window_pushes_are_retained)
{
	static struct session_driver d;

	driver_open(&d);
	driver_push_ok(&d, 8);
	assert_int_equal(session_can_push(d.s), 0);
	assert_int_equal(driver_push(&d), PS_EAGAIN);
	/* makes no room for another push, because push 1 is decided, but not durable */
	driver_ack(&d, 1, VERDICT_OK, 0);
	assert_int_equal(driver_push(&d), PS_EAGAIN);
	driver_heartbeat(&d, 4, 1);
	assert_did(&d, "release:1");
	assert_int_equal(session_can_push(d.s), 1);
	driver_push_ok(&d, 1);
	assert_int_equal(driver_push(&d), PS_EAGAIN);
	session_free(&d.s);
}

TEST(windows_are_bounded_by_what_the_program_has_room_for)
{
	static struct session_driver d;

	driver_new(&d, driver_config(), 3);
	driver_welcome(&d, 0, 0);
	driver_push_ok(&d, 3);
	assert_int_equal(driver_push(&d), PS_EAGAIN);
	session_free(&d.s);
	driver_new(&d, driver_config(), 1024);
	d.welcome.push_window = d.welcome.replay_window = 1024;
	driver_welcome(&d, 0, 0);
	driver_push_ok(&d, 100);
	assert_did(&d, ""); /* nothing is sent, because at most 64 pushes may be in flight */
	driver_ack(&d, 1, VERDICT_OK, 0);
	assert_did(&d, "ACK:1 push:65");
	driver_error(&d, PS_EGAP);
	driver_welcome(&d, 1, 0);
	assert_int_equal(session_effect(d.s, 0)->kind, NOTIFY_READY);
	for (size_t i = 1; i <= 64; i++)
		assert_int_equal(session_effect(d.s, i)->seq, i + 1);
	assert_null(session_effect(d.s, 65));
	session_free(&d.s);
}

TEST(an_ack_is_notified_once_and_a_missing_one_resynchronises)
{
	static struct session_driver d;

	driver_open(&d);
	driver_push_ok(&d, 4);
	driver_ack(&d, 1, VERDICT_OK, 0);
	assert_did(&d, "ACK:1");
	driver_ack(&d, 1, VERDICT_OK, 0);
	assert_did(&d, "");
	/* the session notices that the ACK of push 2 is missing, and sends HELLO */
	driver_ack(&d, 3, VERDICT_OK, 0);
	assert_did(&d, "hello");
	/* The server has decided all pushes. The session sends pushes 2 to 4 again to get their
	 * verdicts. */
	driver_welcome(&d, 4, 0);
	assert_did(&d, "READY push:2 push:3 push:4");
	driver_ack(&d, 2, VERDICT_REJECTED, 0);
	assert_did(&d, "ACK:2");
	driver_ack(&d, 3, VERDICT_OK, 0);
	driver_ack(&d, 1, VERDICT_OK, 0); /* a repeated ACK frees no place in the window */
	driver_push_ok(&d, 2);
	assert_did(&d, "push:6");
	session_free(&d.s);
}

TEST(only_what_is_durable_and_decided_is_released)
{
	static struct session_driver d;

	driver_open(&d);
	driver_push_ok(&d, 4);
	/* only push 1 is released: pushes 2 and 3 are durable, but their verdicts are unknown */
	driver_ack(&d, 1, VERDICT_OK, 3);
	assert_did(&d, "ACK:1 release:1");
	driver_heartbeat(&d, 4, 4);
	assert_did(&d, "");
	driver_ack(&d, 2, VERDICT_OK, 4);
	assert_did(&d, "ACK:2 release:2");
	driver_ack(&d, 3, VERDICT_OK, 2); /* a smaller durable seq changes nothing */
	assert_did(&d, "ACK:3");
	assert_int_equal(session_durable_seq(d.s), 2);
	driver_lost(&d);
	driver_up(&d);
	driver_welcome(&d, 4, 4);
	assert_did(&d, "release:3 READY push:4");
	session_free(&d.s);
}
