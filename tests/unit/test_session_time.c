/*
 * Proves the states and the clock of worker/session.h: when HELLO is said again, when silence
 * resynchronises, when a session gives up, how requests are answered and how it ends.
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

static void hello_is_said_again_after_a_time_that_doubles_up_to_16(void **state)
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
		sbench_error(&b, PS_EEPOCH);
		assert_did(&b, "hello");
		for (int k = 0; k < 4; k++)
			wait_for_hello(&b);
		sbench_welcome(&b, 0, 0);
		sbench_error(&b, PS_EEPOCH);
		assert_in_range(wait_for_hello(&b), 75, 125);
		sbench_welcome(&b, 0, 0);
	}
	session_free(&b.s);
}

static void without_a_link_nothing_is_said(void **state)
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

static void total_silence_resynchronises_though_nothing_was_asked(void **state)
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

static void it_beats_every_beat_ms_while_the_trainer_lives(void **state)
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
	assert_int_equal(beats, 20);
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

static void no_welcome_in_first_ms_ends_it(void **state)
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
			sbench_effect(&b, TELL_END)->status, full ? PS_EFULL : PS_EUNREACHABLE);
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
	assert_int_equal(sbench_effect(b, TELL_END)->status, PS_EUNREACHABLE);
	return b->now_ms - from;
}

static void lost_contact_ends_it_after_patience_ms_or_forget_ms(void **state)
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

/* ---- requests ------------------------------------------------------------------------------- */

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
	assert_int_equal(sbench_effect(&b, TELL_PARAMS)->msg.params.version, 9);
	sbench_message(&b, &m);
	assert_did(&b, "");
	assert_int_equal(sbench_pull(&b), PS_OK);
	assert_int_equal(sbench_sent(&b, MSG_PULL)->pull.request, 2);
	sbench_error(&b, PS_EAGAIN); /* nothing is under evaluation */
	assert_did(&b, "NO-PARAMS");
	assert_int_equal(sbench_effect(&b, TELL_NO_PARAMS)->status, PS_EAGAIN);
	sbench_error(&b, PS_EAGAIN);
	assert_did(&b, "");
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
		assert_int_equal(sbench_effect(&b, TELL_GRANT)->msg.grant.work.first, 5);
		sbench_message(&b, &m);
		assert_did(&b, "");
	}
	session_free(&b.s);
}

static void errors_that_a_hello_cannot_mend_end_it(void **state)
{
	const int mend[] = {PS_EEPOCH, PS_EGAP, PS_ESTATE};
	const int end[] = {PS_EFENCED, PS_EWRONGRUN, PS_EWRONGDATA, PS_EPROTO, PS_EVERSION,
		PS_EROLLEDBACK, PS_ESHUTDOWN, PS_EDONE, PS_EDIVERGED};
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
		assert_int_equal(sbench_effect(&b, TELL_END)->status, end[i]);
		assert_int_equal(sbench_push(&b), end[i]);
		assert_int_equal(sbench_pull(&b), end[i]);
		assert_int_equal(sbench_lease(&b), end[i]);
		session_free(&b.s);
	}
}

/* ---- BYE ------------------------------------------------------------------------------------ */

static void bye_is_said_after_all_pushes_and_ends_it_when_answered(void **state)
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

static void bye_is_said_again_after_a_welcome_and_not_waited_for_longer_than_5_s(void **state)
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
		assert_int_equal(sbench_effect(&b, TELL_END)->status, why[i / 2]);
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
	sbench_error(&b, PS_EEPOCH);
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
		cmocka_unit_test(hello_is_said_again_after_a_time_that_doubles_up_to_16),
		cmocka_unit_test(each_loss_of_contact_begins_with_a_short_wait),
		cmocka_unit_test(without_a_link_nothing_is_said),
		cmocka_unit_test(a_request_without_an_answer_resynchronises_after_silence_ms),
		cmocka_unit_test(an_answer_to_one_request_is_patience_for_the_others),
		cmocka_unit_test(total_silence_resynchronises_though_nothing_was_asked),
		cmocka_unit_test(it_beats_every_beat_ms_while_the_trainer_lives),
		cmocka_unit_test(observers_do_not_beat_nor_go_on_with_a_session),
		cmocka_unit_test(no_welcome_in_first_ms_ends_it),
		cmocka_unit_test(lost_contact_ends_it_after_patience_ms_or_forget_ms),
		cmocka_unit_test(a_server_that_comes_back_in_time_is_welcome),
		cmocka_unit_test(one_pull_at_a_time_answered_by_its_number),
		cmocka_unit_test(one_lease_at_a_time_answered_by_its_number),
		cmocka_unit_test(errors_that_a_hello_cannot_mend_end_it),
		cmocka_unit_test(bye_is_said_after_all_pushes_and_ends_it_when_answered),
		cmocka_unit_test(
			bye_is_said_again_after_a_welcome_and_not_waited_for_longer_than_5_s),
		cmocka_unit_test(the_servers_bye_ends_it_with_its_reason),
		cmocka_unit_test(who_was_never_welcomed_leaves_at_once),
		cmocka_unit_test(after_the_end_there_is_nothing),
		cmocka_unit_test(a_window_of_nothing_or_too_much_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
