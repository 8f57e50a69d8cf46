/*
 * Proves the states and the timeouts of worker/client/session.h: when the session repeats HELLO,
 * when silence makes it send a new HELLO, and when it ends. (test_session_close.c tests other
 * ends.)
 * Covers attack A22 of docs/faults.md.
 */
#include "tests/support/session_driver.h"
#include "tests/support/test.h"

/* ---- repeated HELLOs ------------------------------------------------------------------------ */

/* Lets time pass until the session sends HELLO. Returns this time in milliseconds. */
static uint64_t wait_for_hello(struct session_driver *d)
{
	uint64_t from = d->now_ms;

	do
		driver_tick(d, 1);
	while (!driver_sent(d, MSG_HELLO) && d->now_ms - from < 10000);
	return d->now_ms - from;
}

TEST(hello_is_sent_again_after_a_time_that_doubles_up_to_16)
{
	struct session_config cfg = driver_config();
	static struct session_driver d;
	uint64_t min = UINT64_MAX, max = 0;

	for (cfg.seed = 1; cfg.seed <= 200; cfg.seed++) {
		driver_new(&d, cfg, 8);
		for (uint64_t k = 0, times = 1; k < 8; k++, times = times < 16 ? 2 * times : 16) {
			uint64_t ms = wait_for_hello(&d);

			assert_in_range(ms, 75 * times, 125 * times);
			if (times == 16) {
				min = ms < min ? ms : min;
				max = ms > max ? ms : max;
			}
		}
		session_free(&d.s);
	}
	/* the jitter spreads the times over nearly the whole range */
	assert_true(min < 1300 && max > 1900);
}

TEST(each_loss_of_contact_begins_with_a_short_wait)
{
	static struct session_driver d;

	driver_open(&d);
	for (int i = 0; i < 3; i++) {
		driver_tick(&d, 50);
		driver_error(&d, PS_ETERM);
		assert_did(&d, "hello");
		for (int k = 0; k < 4; k++)
			wait_for_hello(&d);
		driver_welcome(&d, 0, 0);
		driver_tick(&d, 50);
		driver_error(&d, PS_ETERM);
		assert_in_range(wait_for_hello(&d), 75, 125);
		driver_welcome(&d, 0, 0);
	}
	session_free(&d.s);
}

TEST(nothing_is_sent_without_a_link)
{
	static struct session_driver d;

	driver_open(&d);
	driver_push_ok(&d, 1);
	driver_lost(&d);
	assert_did(&d, "");
	assert_int_equal(session_phase(d.s), PHASE_HELLO);
	assert_int_equal(driver_push(&d), PS_EAGAIN);
	for (int i = 0; i < 100; i++) {
		driver_tick(&d, 100);
		assert_did(&d, "");
	}
	driver_up(&d);
	assert_did(&d, "hello");
	driver_welcome(&d, 1, 0);
	assert_did(&d, "READY push:1");
	/* the session is notified of a new link, although it was not notified that the old link is
	 * lost */
	driver_up(&d);
	assert_did(&d, "hello");
	session_free(&d.s);
}

/* ---- silence -------------------------------------------------------------------------------- */

TEST(a_request_without_an_answer_resynchronises_after_silence_ms)
{
	static struct session_driver d;

	for (int request = 0; request < 3; request++) {
		driver_open(&d);
		driver_tick(&d, 2000);
		assert_int_equal(request == 0   ? driver_push(&d)
				 : request == 1 ? driver_pull(&d)
						: driver_lease(&d),
			PS_OK);
		/* a HEARTBEAT of the server does not count as the answer to an open request */
		for (uint64_t ms = 0; ms < 2900; ms += 100) {
			driver_tick(&d, 100);
			driver_heartbeat(&d, request == 0, 0);
			assert_null(driver_sent(&d, MSG_HELLO));
		}
		driver_tick(&d, 99);
		assert_null(driver_sent(&d, MSG_HELLO));
		driver_tick(&d, 1);
		assert_non_null(driver_sent(&d, MSG_HELLO));
		driver_welcome(&d, 0, 0);
		assert_did(&d, request == 0   ? "READY push:1"
			       : request == 1 ? "READY pull"
					      : "READY lease");
		session_free(&d.s);
	}
}

/* Attack A22 of docs/faults.md: a server answers each message with an error that requires a
 * HELLO. */
TEST(a_server_that_always_asks_for_hello_gets_few)
{
	static struct session_driver d;
	int hellos = 0;

	driver_open(&d);
	driver_push_ok(&d, 3);
	for (int ms = 0; ms < 1000; ms++) {
		driver_tick(&d, 1);
		if (!driver_sent(&d, MSG_HELLO))
			driver_error(&d, PS_ESTATE);
		if (!driver_sent(&d, MSG_HELLO))
			continue;
		hellos++;
		driver_welcome(&d, 0, 0);
	}
	assert_in_range(hellos, 10, 20);
	session_free(&d.s);
}

/* Returns the number of pushes that the last call sent. */
static int count_pushes(const struct session_driver *d)
{
	const struct session_effect *e;
	int n = 0;

	for (size_t i = 0; (e = session_effect(d->s, i)); i++)
		n += e->kind == DO_SEND_PUSH;
	return n;
}

/* Attack A22 of docs/faults.md: a server acknowledges each push, but then has the worker send HELLO
 * and says in its WELCOME that it has lost all pushes. The worker retains the pushes, so it would
 * send them again without computing anything. */
TEST(a_server_that_always_asks_for_the_same_pushes_gets_few)
{
	static struct session_driver d;
	int pushes = 0;

	driver_new(&d, driver_config(), WIRE_MAX_WINDOW);
	d.welcome.push_window = d.welcome.replay_window = WIRE_MAX_WINDOW;
	driver_welcome(&d, 0, 0);
	for (uint64_t seq = 1; seq <= WIRE_MAX_WINDOW; seq++) {
		driver_push_ok(&d, 1);
		driver_ack(&d, seq, VERDICT_OK, 0);
	}
	for (int ms = 0; ms < 10000; ms++) {
		driver_tick(&d, 1);
		if (!driver_sent(&d, MSG_HELLO))
			driver_error(&d, PS_ESTATE);
		if (!driver_sent(&d, MSG_HELLO))
			continue;
		driver_welcome(&d, 0, 0);
		pushes += count_pushes(&d);
		for (uint64_t seq = 1; seq <= WIRE_MAX_WINDOW; seq++) {
			driver_ack(&d, seq, VERDICT_OK, 0);
			pushes += count_pushes(&d);
		}
	}
	assert_in_range(pushes, 1, 10 * 1000 + 2 * WIRE_MAX_WINDOW);
	session_free(&d.s);
}

TEST(an_answer_to_one_request_is_patience_for_the_others)
{
	static struct session_driver d;

	driver_open(&d);
	assert_int_equal(driver_lease(&d), PS_OK);
	for (uint64_t i = 1; i <= 5; i++) {
		driver_push_ok(&d, 1);
		driver_tick(&d, 2900);
		assert_null(driver_sent(&d, MSG_HELLO));
		driver_ack(&d, i, VERDICT_OK, i);
	}
	session_free(&d.s);
}

/* At 1 Mbit/s a push of 1.7 MB takes 14 s. The session must not give up as long as bytes of a
 * message move. */
TEST(a_message_that_moves_is_waited_for)
{
	static struct session_driver d;

	driver_open(&d);
	driver_push_ok(&d, 1);
	for (int i = 0; i < 140; i++) {
		session_progress(d.s, d.now_ms);
		driver_tick(&d, 100);
		assert_null(driver_sent(&d, MSG_HELLO));
		driver_heartbeat(&d, 0, 0);
	}
	for (int i = 0; i < 28; i++) {
		driver_tick(&d, 100);
		assert_null(driver_sent(&d, MSG_HELLO));
		driver_heartbeat(&d, 0, 0);
	}
	driver_tick(&d, 100); /* silence_ms have passed since the last byte */
	assert_non_null(driver_sent(&d, MSG_HELLO));
	session_free(&d.s);
}

TEST(silence_counts_from_the_oldest_request)
{
	static struct session_driver d;

	driver_open(&d);
	driver_push_ok(&d, 1);
	for (int i = 0; i < 29; i++) {
		driver_tick(&d, 100);
		driver_heartbeat(&d, 0, 0);
		/* further requests of the program must not restart the timeout of the first
		 * request */
		if (i % 10 == 5)
			driver_push_ok(&d, 1);
	}
	assert_int_equal(driver_pull(&d), PS_OK);
	driver_tick(&d, 99);
	assert_null(driver_sent(&d, MSG_HELLO));
	driver_tick(&d, 1);
	assert_non_null(driver_sent(&d, MSG_HELLO));
	session_free(&d.s);
}

TEST(total_silence_resynchronises_without_a_request)
{
	static struct session_driver d;

	driver_open(&d);
	for (int i = 0; i < 50;
		i++) { /* an idle session whose heartbeats are answered has no timeout */
		driver_tick(&d, 1000);
		assert_null(driver_sent(&d, MSG_HELLO));
		driver_heartbeat(&d, 0, 0);
	}
	driver_tick(&d, 2999);
	assert_null(driver_sent(&d, MSG_HELLO));
	driver_tick(&d, 1);
	assert_non_null(driver_sent(&d, MSG_HELLO));
	session_free(&d.s);
}

/* ---- heartbeats ----------------------------------------------------------------------------- */

TEST(it_heartbeats_twice_in_heartbeat_ms_while_the_trainer_lives)
{
	static struct session_driver d;
	size_t heartbeats = 0;

	driver_open(&d);
	driver_push_ok(&d, 3);
	driver_ack(&d, 1, VERDICT_OK, 1);
	for (int i = 0; i < 100; i++) {
		driver_tick(&d, 100);
		if (driver_effect(&d, DO_SEND_HEARTBEAT)) {
			const struct msg_heartbeat *m =
				&driver_effect(&d, DO_SEND_HEARTBEAT)->msg.heartbeat;

			assert_int_equal(m->last_seq, 3);
			assert_int_equal(m->durable_seq, 1);
			assert_memory_equal(&m->stamp, &d.welcome.stamp, sizeof(m->stamp));
			heartbeats++;
		}
		driver_ack(&d, 1, VERDICT_OK, 1);
	}
	/* the session sends a heartbeat at the first tick at or after 250 ms */
	assert_int_equal(heartbeats, 34);
	/* A session sends no heartbeats if its program does not call it: a worker whose trainer
	 * hangs must fall silent. */
	for (int i = 0; i < 20; i++) {
		d.now_ms += 100;
		session_tick(d.s, 0, d.now_ms);
		assert_did(&d, "");
	}
	driver_error(&d, PS_ESTATE);
	driver_tick(&d, 600);
	/* the session sends no heartbeat before WELCOME */
	assert_null(driver_effect(&d, DO_SEND_HEARTBEAT));
	session_free(&d.s);
}

TEST(observers_do_not_heartbeat_nor_go_on_with_a_session)
{
	struct session_config cfg = driver_config();
	static struct session_driver d;

	cfg.role = ROLE_OBSERVER;
	driver_new(&d, cfg, 1);
	d.welcome.stamp.worker = d.welcome.stamp.incarnation = 0;
	driver_welcome(&d, 0, 0);
	assert_did(&d, "READY");
	driver_tick(&d, 1000);
	assert_did(&d, "");
	assert_int_equal(driver_pull(&d), PS_OK);
	assert_did(&d, "pull");
	driver_tick(&d, 3000);
	assert_did(&d, "hello");
	assert_int_equal(driver_sent(&d, MSG_HELLO)->hello.resume.run.hi, 0);
	assert_int_equal(driver_sent(&d, MSG_HELLO)->hello.role, ROLE_OBSERVER);
	d.welcome.stamp.run.hi++; /* an observer also accepts the next run of the server */
	driver_welcome(&d, 0, 0);
	assert_did(&d, "READY pull");
	driver_bye(&d);
	assert_did(&d, "END:PS_OK");
	session_free(&d.s);
}

/* ---- giving up ------------------------------------------------------------------------------ */

TEST(no_welcome_in_connect_timeout_ms_ends_it)
{
	static struct session_driver d;

	for (int full = 0; full < 2; full++) {
		driver_new(&d, driver_config(), 8);
		if (full) {
			/* the session must not end, because a slot may become free later */
			driver_error(&d, PS_EFULL);
			assert_did(&d, "");
		}
		d.now_ms = 5000 + 29999;
		driver_tick(&d, 0);
		assert_int_equal(session_phase(d.s), PHASE_HELLO);
		driver_tick(&d, 1);
		assert_int_equal(
			driver_effect(&d, NOTIFY_END)->status, full ? PS_EFULL : PS_EUNREACHABLE);
		assert_int_equal(session_phase(d.s), PHASE_END);
		session_free(&d.s);
	}
}

/* Simulate a server from which no more messages arrive. Returns the time in milliseconds until the
 * session ends. */
static uint64_t ends_after(struct session_driver *d)
{
	uint64_t from = d->now_ms;

	driver_lost(d);
	while (!d->ended && d->now_ms - from < 200000)
		driver_tick(d, 100);
	assert_int_equal(driver_effect(d, NOTIFY_END)->status, PS_EUNREACHABLE);
	return d->now_ms - from;
}

TEST(lost_contact_ends_it_after_disconnect_timeout_ms_or_session_ttl_ms)
{
	struct session_config cfg = driver_config();
	static struct session_driver d;

	driver_open(&d);
	driver_tick(&d, 50);
	driver_heartbeat(&d, 0, 0);
	assert_int_equal(ends_after(&d), 20000);
	session_free(&d.s);
	/* a worker must give up after session_ttl_ms, because the server may then have given its
	 * slot to another worker */
	driver_new(&d, cfg, 8);
	d.welcome.session_ttl_ms = 7000;
	driver_welcome(&d, 0, 0);
	assert_int_equal(ends_after(&d), 7000);
	session_free(&d.s);
	cfg.role = ROLE_OBSERVER; /* an observer ignores session_ttl_ms, because it has no slot */
	driver_new(&d, cfg, 8);
	d.welcome.session_ttl_ms = 7000;
	driver_welcome(&d, 0, 0);
	assert_int_equal(ends_after(&d), 20000);
	session_free(&d.s);
}

TEST(a_server_that_comes_back_in_time_is_welcome)
{
	static struct session_driver d;

	driver_open(&d);
	driver_push_ok(&d, 2);
	for (int i = 0; i < 10; i++) {
		driver_lost(&d);
		for (int k = 0; k < 199; k++)
			driver_tick(&d, 100);
		driver_up(&d);
		driver_crash(&d);
		driver_welcome(&d, 0, 0);
		assert_did(&d, "READY push:1 push:2");
	}
	session_free(&d.s);
}
