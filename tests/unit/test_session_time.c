/*
 * Proves the states and the clock of worker/client/session.h: when HELLO is sent again, when
 * silence resynchronises, when a session gives up. (How else it ends: test_session_end.c.)
 */
#include "tests/unit/session_bench.h"

/* ---- HELLO again ---------------------------------------------------------------------------- */

/* Milliseconds until the next HELLO. */
static uint64_t wait_for_hello(struct sbench *b)
{
	uint64_t from = b->now_ms;

	do
		sbench_tick(b, 1);
	while (!sbench_sent(b, MSG_HELLO) && b->now_ms - from < 10000);
	return b->now_ms - from;
}

static void hello_is_sent_again_after_a_time_that_doubles_up_to_16(void **state)
{
	struct session_config cfg = sbench_config();
	static struct sbench b;
	uint64_t least = UINT64_MAX, most = 0;

	(void)state;
	for (cfg.seed = 1; cfg.seed <= 200; cfg.seed++) {
		sbench_new(&b, cfg, 8);
		for (uint64_t k = 0, times = 1; k < 8; k++, times = times < 16 ? 2 * times : 16) {
			uint64_t ms = wait_for_hello(&b);

			assert_in_range(ms, 75 * times, 125 * times);
			if (times == 16) {
				least = ms < least ? ms : least;
				most = ms > most ? ms : most;
			}
		}
		session_free(&b.s);
	}
	assert_true(least < 1300 && most > 1900); /* the jitter is there, and uses its room */
}

static void each_loss_of_contact_begins_with_a_short_wait(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	for (int i = 0; i < 3; i++) {
		sbench_error(&b, PS_ETERM);
		assert_did(&b, "hello");
		for (int k = 0; k < 4; k++)
			wait_for_hello(&b);
		sbench_welcome(&b, 0, 0);
		sbench_error(&b, PS_ETERM);
		assert_in_range(wait_for_hello(&b), 75, 125);
		sbench_welcome(&b, 0, 0);
	}
	session_free(&b.s);
}

static void nothing_is_sent_without_a_link(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_push_ok(&b, 1);
	sbench_lost(&b);
	assert_did(&b, "");
	assert_int_equal(session_phase(b.s), PHASE_HELLO);
	assert_int_equal(sbench_push(&b), PS_EAGAIN);
	for (int i = 0; i < 100; i++) {
		sbench_tick(&b, 100);
		assert_did(&b, "");
	}
	sbench_up(&b);
	assert_did(&b, "hello");
	sbench_welcome(&b, 1, 0);
	assert_did(&b, "READY push:1");
	sbench_up(&b); /* a new link though the old one was not reported lost */
	assert_did(&b, "hello");
	session_free(&b.s);
}

/* ---- silence -------------------------------------------------------------------------------- */

static void a_request_without_an_answer_resynchronises_after_silence_ms(void **state)
{
	static struct sbench b;

	(void)state;
	for (int request = 0; request < 3; request++) {
		sbench_open(&b);
		sbench_tick(&b, 2000);
		assert_int_equal(request == 0   ? sbench_push(&b)
				 : request == 1 ? sbench_pull(&b)
						: sbench_lease(&b),
			PS_OK);
		for (uint64_t ms = 0; ms < 2900; ms += 100) { /* beats are no answer */
			sbench_tick(&b, 100);
			sbench_beat(&b, request == 0, 0);
			assert_null(sbench_sent(&b, MSG_HELLO));
		}
		sbench_tick(&b, 99);
		assert_null(sbench_sent(&b, MSG_HELLO));
		sbench_tick(&b, 1);
		assert_non_null(sbench_sent(&b, MSG_HELLO));
		sbench_welcome(&b, 0, 0);
		assert_did(&b, request == 0   ? "READY push:1"
			       : request == 1 ? "READY pull"
					      : "READY lease");
		session_free(&b.s);
	}
}

static void an_answer_to_one_request_is_patience_for_the_others(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	assert_int_equal(sbench_lease(&b), PS_OK);
	for (uint64_t i = 1; i <= 5; i++) {
		sbench_push_ok(&b, 1);
		sbench_tick(&b, 2900);
		assert_null(sbench_sent(&b, MSG_HELLO));
		sbench_ack(&b, i, VERDICT_OK, i);
	}
	session_free(&b.s);
}

/* A push of 1.7 MB takes 14 s at 1 Mbit/s. */
static void a_message_that_moves_is_waited_for(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_push_ok(&b, 1);
	for (int i = 0; i < 140; i++) {
		session_progress(b.s, b.now_ms);
		sbench_tick(&b, 100);
		assert_null(sbench_sent(&b, MSG_HELLO));
		sbench_beat(&b, 0, 0);
	}
	for (int i = 0; i < 28; i++) {
		sbench_tick(&b, 100);
		assert_null(sbench_sent(&b, MSG_HELLO));
		sbench_beat(&b, 0, 0);
	}
	sbench_tick(&b, 100); /* silence_ms after the last byte */
	assert_non_null(sbench_sent(&b, MSG_HELLO));
	session_free(&b.s);
}

static void silence_counts_from_the_oldest_request(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_push_ok(&b, 1);
	for (int i = 0; i < 29; i++) {
		sbench_tick(&b, 100);
		sbench_beat(&b, 0, 0);
		if (i % 10 == 5) /* asking more is no answer */
			sbench_push_ok(&b, 1);
	}
	assert_int_equal(sbench_pull(&b), PS_OK);
	sbench_tick(&b, 99);
	assert_null(sbench_sent(&b, MSG_HELLO));
	sbench_tick(&b, 1);
	assert_non_null(sbench_sent(&b, MSG_HELLO));
	session_free(&b.s);
}

static void total_silence_resynchronises_without_a_request(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	for (int i = 0; i < 50; i++) { /* an idle worker whose beats are answered is content */
		sbench_tick(&b, 1000);
		assert_null(sbench_sent(&b, MSG_HELLO));
		sbench_beat(&b, 0, 0);
	}
	sbench_tick(&b, 2999);
	assert_null(sbench_sent(&b, MSG_HELLO));
	sbench_tick(&b, 1);
	assert_non_null(sbench_sent(&b, MSG_HELLO));
	session_free(&b.s);
}

/* ---- beats ---------------------------------------------------------------------------------- */

static void it_beats_twice_in_beat_ms_while_the_trainer_lives(void **state)
{
	static struct sbench b;
	size_t beats = 0;

	(void)state;
	sbench_open(&b);
	sbench_push_ok(&b, 3);
	sbench_ack(&b, 1, VERDICT_OK, 1);
	for (int i = 0; i < 100; i++) {
		sbench_tick(&b, 100);
		if (sbench_effect(&b, DO_SEND_BEAT)) {
			const struct msg_beat *m = &sbench_effect(&b, DO_SEND_BEAT)->msg.beat;

			assert_int_equal(m->last_seq, 3);
			assert_int_equal(m->durable_seq, 1);
			assert_memory_equal(&m->stamp, &b.welcome.stamp, sizeof(m->stamp));
			beats++;
		}
		sbench_ack(&b, 1, VERDICT_OK, 1);
	}
	assert_int_equal(beats, 34);   /* the first tick at or after 250 ms */
	for (int i = 0; i < 20; i++) { /* a hung trainer is to be seen */
		b.now_ms += 100;
		session_tick(b.s, 0, b.now_ms);
		assert_did(&b, "");
	}
	sbench_error(&b, PS_ESTATE);
	sbench_tick(&b, 600);
	assert_null(sbench_effect(&b, DO_SEND_BEAT)); /* not before WELCOME */
	session_free(&b.s);
}

static void observers_do_not_beat_nor_go_on_with_a_session(void **state)
{
	struct session_config cfg = sbench_config();
	static struct sbench b;

	(void)state;
	cfg.role = ROLE_OBSERVER;
	sbench_new(&b, cfg, 1);
	b.welcome.stamp.worker = b.welcome.stamp.incarnation = 0;
	sbench_welcome(&b, 0, 0);
	assert_did(&b, "READY");
	sbench_tick(&b, 1000);
	assert_did(&b, "");
	assert_int_equal(sbench_pull(&b), PS_OK);
	assert_did(&b, "pull");
	sbench_tick(&b, 3000);
	assert_did(&b, "hello");
	assert_int_equal(sbench_sent(&b, MSG_HELLO)->hello.resume.run.hi, 0);
	assert_int_equal(sbench_sent(&b, MSG_HELLO)->hello.role, ROLE_OBSERVER);
	b.welcome.stamp.run.hi++; /* the server's next run is as good */
	sbench_welcome(&b, 0, 0);
	assert_did(&b, "READY pull");
	sbench_bye(&b);
	assert_did(&b, "END:PS_OK");
	session_free(&b.s);
}

/* ---- giving up ------------------------------------------------------------------------------ */

static void no_welcome_in_connect_timeout_ms_ends_it(void **state)
{
	static struct sbench b;

	(void)state;
	for (int full = 0; full < 2; full++) {
		sbench_new(&b, sbench_config(), 8);
		if (full) {
			sbench_error(&b, PS_EFULL); /* there may be a slot later */
			assert_did(&b, "");
		}
		b.now_ms = 5000 + 29999;
		sbench_tick(&b, 0);
		assert_int_equal(session_phase(b.s), PHASE_HELLO);
		sbench_tick(&b, 1);
		assert_int_equal(
			sbench_effect(&b, NOTIFY_END)->status, full ? PS_EFULL : PS_EUNREACHABLE);
		assert_int_equal(session_phase(b.s), PHASE_END);
		session_free(&b.s);
	}
}

/* Lost contact: the last word was heard at now_ms. Returns how long it took to end. */
static uint64_t ends_after(struct sbench *b)
{
	uint64_t from = b->now_ms;

	sbench_lost(b);
	while (!b->ended && b->now_ms - from < 200000)
		sbench_tick(b, 100);
	assert_int_equal(sbench_effect(b, NOTIFY_END)->status, PS_EUNREACHABLE);
	return b->now_ms - from;
}

static void lost_contact_ends_it_after_disconnect_timeout_ms_or_forget_ms(void **state)
{
	struct session_config cfg = sbench_config();
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_tick(&b, 50);
	sbench_beat(&b, 0, 0);
	assert_int_equal(ends_after(&b), 20000);
	session_free(&b.s);
	sbench_new(&b, cfg, 8); /* after forget_ms the slot may be another's: no use to go on */
	b.welcome.forget_ms = 7000;
	sbench_welcome(&b, 0, 0);
	assert_int_equal(ends_after(&b), 7000);
	session_free(&b.s);
	cfg.role = ROLE_OBSERVER; /* nobody's slot */
	sbench_new(&b, cfg, 8);
	b.welcome.forget_ms = 7000;
	sbench_welcome(&b, 0, 0);
	assert_int_equal(ends_after(&b), 20000);
	session_free(&b.s);
}

static void a_server_that_comes_back_in_time_is_welcome(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_push_ok(&b, 2);
	for (int i = 0; i < 10; i++) {
		sbench_lost(&b);
		for (int k = 0; k < 199; k++)
			sbench_tick(&b, 100);
		sbench_up(&b);
		sbench_crash(&b);
		sbench_welcome(&b, 0, 0);
		assert_did(&b, "READY push:1 push:2");
	}
	session_free(&b.s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hello_is_sent_again_after_a_time_that_doubles_up_to_16),
		cmocka_unit_test(each_loss_of_contact_begins_with_a_short_wait),
		cmocka_unit_test(nothing_is_sent_without_a_link),
		cmocka_unit_test(a_request_without_an_answer_resynchronises_after_silence_ms),
		cmocka_unit_test(an_answer_to_one_request_is_patience_for_the_others),
		cmocka_unit_test(a_message_that_moves_is_waited_for),
		cmocka_unit_test(silence_counts_from_the_oldest_request),
		cmocka_unit_test(total_silence_resynchronises_without_a_request),
		cmocka_unit_test(it_beats_twice_in_beat_ms_while_the_trainer_lives),
		cmocka_unit_test(observers_do_not_beat_nor_go_on_with_a_session),
		cmocka_unit_test(no_welcome_in_connect_timeout_ms_ends_it),
		cmocka_unit_test(lost_contact_ends_it_after_disconnect_timeout_ms_or_forget_ms),
		cmocka_unit_test(a_server_that_comes_back_in_time_is_welcome),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
