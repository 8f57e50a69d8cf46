/*
 * Proves the invariants numbered in worker/session.h: a seq is given once, a push is kept until it
 * is durable, everything is said again after a WELCOME, the windows are kept. (When and how long:
 * test_session_time.c.)
 */
#include "tests/unit/session_bench.h"
#include "common/rng.h"

/* ---- HELLO and WELCOME ---------------------------------------------------------------------- */

static void hello_says_who_it_is_and_later_where_it_was(void **state)
{
	static struct sbench b;
	const struct session_config cfg = sbench_config();
	const struct msg_hello *h;
	const struct stamp none = {{0, 0}, 0, 0, 0};

	(void)state;
	sbench_new(&b, cfg, 64);
	h = &sbench_sent(&b, MSG_HELLO)->hello;
	assert_int_equal(h->protocol, WIRE_PROTOCOL);
	assert_int_equal(h->role, ROLE_WORKER);
	assert_string_equal(h->name, "anna");
	assert_string_equal(h->device, "cpu");
	assert_memory_equal(&h->data, &cfg.data, sizeof(h->data));
	assert_memory_equal(&h->resume, &none, sizeof(none));
	assert_int_equal(h->last_seq, 0);
	sbench_welcome(&b, 0, 0);
	sbench_push_ok(&b, 3);
	sbench_ack(&b, 1, VERDICT_OK, 1);
	sbench_error(&b, PS_EEPOCH);
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

static void nothing_may_be_asked_before_welcome(void **state)
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
	assert_int_equal(sbench_effect(&b, TELL_ACK)->msg.ack.reject, REJECT_NORM);
	assert_int_equal(sbench_effect(&b, TELL_ACK)->msg.ack.version, 102);
	session_free(&b.s);
}

static void at_most_replay_window_are_kept(void **state)
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
	assert_int_equal(session_effect(b.s, 0)->kind, TELL_READY);
	for (size_t i = 1; i <= 64; i++)
		assert_int_equal(session_effect(b.s, i)->seq, i + 1);
	assert_null(session_effect(b.s, 65));
	session_free(&b.s);
}

static void an_ack_is_told_once_and_a_missing_one_is_asked_for(void **state)
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

/* ---- everything again ----------------------------------------------------------------------- */

static void after_a_welcome_all_is_said_again_in_order(void **state)
{
	static struct sbench b;
	const struct msg_result r = {.eval_id = 5, .eval_first = 1, .eval_count = 2, .correct = 1};

	(void)state;
	sbench_open(&b);
	assert_int_equal(sbench_pull(&b), PS_OK);
	assert_did(&b, "pull");
	assert_int_equal(sbench_lease(&b), PS_OK);
	assert_did(&b, "lease");
	sbench_push_ok(&b, 6); /* 5 and 6 wait for the window */
	assert_int_equal(session_result(b.s, &r, b.now_ms), PS_OK);
	assert_did(&b, ""); /* behind the pushes */
	sbench_ack(&b, 1, VERDICT_OK, 0);
	assert_did(&b, "ACK:1 push:5");
	sbench_crash(&b);
	sbench_error(&b, PS_EEPOCH);
	assert_did(&b, "hello");
	sbench_welcome(&b, 0, 0);
	assert_did(&b, "READY push:1 push:2 push:3 push:4");
	assert_int_equal(
		sbench_sent(&b, MSG_PUSH)->push.verdict, VERDICT_OK); /* known from before */
	for (uint64_t seq = 1; seq <= 2; seq++)
		sbench_ack(&b, seq, VERDICT_OK, 0);
	assert_did(&b, "ACK:2 push:6 result lease pull");
	assert_int_equal(sbench_sent(&b, MSG_RESULT)->result.correct, 1);
	assert_int_equal(sbench_sent(&b, MSG_RESULT)->result.stamp.epoch, b.welcome.stamp.epoch);
	assert_int_equal(sbench_sent(&b, MSG_LEASE)->lease.request, 1); /* the same number */
	assert_int_equal(sbench_sent(&b, MSG_PULL)->pull.request, 2); /* asked of another server */
	sbench_lost(&b);
	sbench_up(&b);
	sbench_welcome(&b, 6, 0); /* RESULT has no answer: who loses it, the lease is given again */
	assert_did(&b, "READY push:3 push:4 push:5 push:6 lease pull");
	session_free(&b.s);
}

static void a_replay_says_the_verdict_that_was_told(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_push_ok(&b, 3);
	sbench_ack(&b, 1, VERDICT_OK, 0);
	sbench_ack(&b, 2, VERDICT_REJECTED, 0);
	sbench_crash(&b);
	sbench_lost(&b);
	sbench_up(&b);
	sbench_welcome(&b, 0, 0);
	assert_did(&b, "READY push:1 push:2 push:3");
	assert_int_equal(session_effect(b.s, 1)->msg.push.verdict, VERDICT_OK);
	assert_int_equal(session_effect(b.s, 1)->msg.push.reject, REJECT_NONE);
	assert_int_equal(session_effect(b.s, 2)->msg.push.verdict, VERDICT_REJECTED);
	assert_int_equal(session_effect(b.s, 2)->msg.push.reject, REJECT_NORM);
	assert_int_equal(session_effect(b.s, 3)->msg.push.verdict, VERDICT_NONE);
	for (uint64_t seq = 1; seq <= 2; seq++) {
		sbench_ack(&b, seq, VERDICT_OK, 0);
		assert_did(&b, ""); /* told before */
	}
	session_free(&b.s);
}

static void answers_of_before_a_crash_are_not_believed(void **state)
{
	static struct sbench b;
	struct msg late;

	(void)state;
	sbench_open(&b);
	sbench_push_ok(&b, 4);
	late = (struct msg){.type = MSG_ACK,
		.ack = {.seq = 1, .verdict = VERDICT_OK, .durable_seq = 1, .epoch = 3}};
	sbench_crash(&b);
	sbench_lost(&b);
	sbench_up(&b);
	sbench_welcome(&b, 0, 0);
	sbench_message(&b, &late);
	assert_did(&b, "");
	late = (struct msg){.type = MSG_BEAT,
		.beat = {.stamp = b.welcome.stamp, .last_seq = 4, .durable_seq = 4}};
	late.beat.stamp.epoch--;
	sbench_ack(&b, 1, VERDICT_OK, 0);
	sbench_message(&b, &late);
	assert_did(&b, "");
	late.beat.stamp.epoch++;
	late.beat.stamp.incarnation++; /* another's */
	sbench_message(&b, &late);
	assert_did(&b, "");
	session_free(&b.s);
}

static void an_answer_to_what_was_sent_before_the_newest_welcome_is_ignored(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	b.welcome.push_window = 1;
	sbench_push_ok(&b, 3);
	sbench_lost(&b);
	sbench_up(&b);
	sbench_welcome(&b, 0, 0);
	assert_did(&b, "READY push:1");
	sbench_ack(&b, 2, VERDICT_OK, 0); /* 2 is not on its way in this connection */
	assert_did(&b, "");
	sbench_ack(&b, 1, VERDICT_OK, 0);
	assert_did(&b, "ACK:1 push:2");
	session_free(&b.s);
}

static void a_beat_that_knows_less_than_was_acknowledged_resynchronises(void **state)
{
	static struct sbench b;

	(void)state;
	sbench_open(&b);
	sbench_push_ok(&b, 3);
	sbench_ack(&b, 1, VERDICT_OK, 0);
	sbench_ack(&b, 2, VERDICT_OK, 0);
	sbench_beat(&b, 2, 0);
	assert_did(&b, "");
	sbench_beat(&b, 1, 0);
	assert_did(&b, "hello");
	session_free(&b.s);
}

/* ---- a server, a bad network, any order ----------------------------------------------------- */

struct peer {
	struct rng r;
	uint64_t last, durable,
		applied[BENCH_SEQS]; /* version at which a seq was decided; 0: not */
	uint64_t version;
};

static void peer_push(struct peer *p, struct sbench *b, uint64_t seq)
{
	if (seq > p->last + 1) {
		if (rng_below(&p->r, 2))
			sbench_error(b, PS_EGAP);
		return;
	}
	if (seq == p->last + 1) {
		p->last = seq;
		p->applied[seq] = ++p->version;
	}
	if (rng_below(&p->r, 4) == 0)
		p->durable = p->last;
	if (rng_below(&p->r, 10)) /* else the ACK is lost */
		sbench_ack(b, seq, VERDICT_OK, p->durable);
}

/* Deliver what the last call sent, now and then only some of it. */
static void peer_hear(struct peer *p, struct sbench *b, int depth)
{
	struct {
		enum session_effect_kind kind;
		enum msg_type type;
		uint64_t seq;
	} todo[80];
	size_t n = 0;

	for (size_t i = 0; session_effect(b->s, i) && n < 80; i++, n++) {
		todo[n].kind = session_effect(b->s, i)->kind;
		todo[n].type = session_effect(b->s, i)->msg.type;
		todo[n].seq = session_effect(b->s, i)->seq;
	}
	for (size_t i = 0; i < n && depth < 200; i++) {
		if (todo[i].kind > DO_SEND_BEAT || rng_below(&p->r, 12) == 0)
			continue;
		if (todo[i].kind == DO_SEND_PUSH)
			peer_push(p, b, todo[i].seq);
		else if (todo[i].type == MSG_HELLO)
			sbench_welcome(b, p->last, p->durable);
		else if (todo[i].type == MSG_BEAT)
			sbench_beat(b, p->last, p->durable);
		else
			continue;
		peer_hear(p, b, depth + 1);
	}
}

/* The server dies and comes back from its disk. */
static void peer_crash(struct peer *p, struct sbench *b)
{
	for (uint64_t seq = p->durable + 1; seq <= p->last; seq++)
		p->applied[seq] = 0;
	p->last = p->durable;
	sbench_crash(b);
	sbench_lost(b);
	sbench_up(b);
}

static void whatever_is_lost_each_push_is_decided_once_in_order(void **state)
{
	static struct sbench b;

	(void)state;
	for (uint64_t seed = 1; seed <= 100; seed++) {
		struct peer p = {.r = rng_seed(seed, RNG_SIM, 0)};

		print_message("seed %llu\r", (unsigned long long)seed);
		sbench_open(&b);
		for (int i = 0; i < 100000 && session_durable_seq(b.s) < 300; i++) {
			uint64_t dice = rng_below(&p.r, 100);

			if (dice == 0)
				peer_crash(&p, &b);
			else if (dice < 40)
				sbench_tick(&b, rng_below(&p.r, 400));
			else if (session_last_seq(b.s) < 300)
				(void)!sbench_push(&b);
			else
				sbench_beat(&b, p.last, p.durable = p.last);
			peer_hear(&p, &b, 0);
		}
		assert_int_equal(session_phase(b.s), PHASE_READY);
		assert_int_equal(session_durable_seq(b.s), 300);
		assert_int_equal(p.last, 300);
		for (uint64_t seq = 2; seq <= 300; seq++)
			assert_true(p.applied[seq] > p.applied[seq - 1]);
		session_free(&b.s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hello_says_who_it_is_and_later_where_it_was),
		cmocka_unit_test(a_new_process_goes_on_after_its_predecessors_seq),
		cmocka_unit_test(nothing_may_be_asked_before_welcome),
		cmocka_unit_test(a_welcome_of_another_life_or_an_impossible_one_is_ignored),
		cmocka_unit_test(at_most_push_window_are_under_way),
		cmocka_unit_test(at_most_replay_window_are_kept),
		cmocka_unit_test(windows_are_bounded_by_what_the_program_has_room_for),
		cmocka_unit_test(an_ack_is_told_once_and_a_missing_one_is_asked_for),
		cmocka_unit_test(only_what_is_durable_and_decided_is_released),
		cmocka_unit_test(after_a_welcome_all_is_said_again_in_order),
		cmocka_unit_test(a_replay_says_the_verdict_that_was_told),
		cmocka_unit_test(answers_of_before_a_crash_are_not_believed),
		cmocka_unit_test(an_answer_to_what_was_sent_before_the_newest_welcome_is_ignored),
		cmocka_unit_test(a_beat_that_knows_less_than_was_acknowledged_resynchronises),
		cmocka_unit_test(whatever_is_lost_each_push_is_decided_once_in_order),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
