/*
 * Proves invariant 3 of worker/client/session.h: after WELCOME, the session sends every retained
 * push and every open request again. This file also proves all invariants together, with a network
 * that loses, repeats and reorders messages.
 */
#include "tests/support/session_driver.h"
#include "common/rng.h"
#include "tests/support/test.h"

/* ---- WELCOME -------------------------------------------------------------------------------- */

TEST(after_a_welcome_all_is_sent_again_in_order)
{
	static struct session_driver d;
	const struct msg_result r = {.eval_id = 5, .eval_first = 1, .eval_count = 2, .correct = 1};

	driver_open(&d);
	assert_int_equal(driver_pull(&d), PS_OK);
	assert_did(&d, "pull");
	assert_int_equal(driver_lease(&d), PS_OK);
	assert_did(&d, "lease");
	driver_push_ok(&d, 6); /* pushes 5 and 6 wait for a place in the window */
	assert_int_equal(session_result(d.s, &r, d.now_ms), PS_OK);
	assert_did(&d, ""); /* LEASE and RESULT wait until the pushes are sent */
	driver_ack(&d, 1, VERDICT_OK, 0);
	assert_did(&d, "ACK:1 push:5");
	driver_crash(&d);
	driver_error(&d, PS_ETERM);
	assert_did(&d, "hello");
	driver_welcome(&d, 0, 0);
	assert_did(&d, "READY push:1 push:2 push:3 push:4");
	assert_int_equal(driver_sent(&d, MSG_PUSH)->push.verdict,
		/* the first PUSH is push 1, whose verdict the session already has */
		VERDICT_OK);
	for (uint64_t seq = 1; seq <= 2; seq++)
		driver_ack(&d, seq, VERDICT_OK, 0);
	assert_did(&d, "ACK:2 push:6 result lease pull");
	assert_int_equal(driver_sent(&d, MSG_RESULT)->result.correct, 1);
	assert_int_equal(driver_sent(&d, MSG_RESULT)->result.stamp.term, d.welcome.stamp.term);
	/* LEASE is sent again with the same request number */
	assert_int_equal(driver_sent(&d, MSG_LEASE)->lease.request, 1);
	/* PULL has a new number, because the server is in another term */
	assert_int_equal(driver_sent(&d, MSG_PULL)->pull.request, 2);
	driver_lost(&d);
	driver_up(&d);
	/* RESULT has no answer, so the session does not send it again. If a RESULT is lost, the
	 * core grants the work again. */
	driver_welcome(&d, 6, 0);
	assert_did(&d, "READY push:3 push:4 push:5 push:6 lease pull");
	session_free(&d.s);
}

TEST(a_push_carries_a_pull_once_and_a_replay_never)
{
	static struct session_driver d;
	struct msg params = {.type = MSG_PARAMS, .params = {.request = 1}};

	driver_open(&d);
	driver_push_ok(&d, 4); /* the window is full */
	assert_int_equal(driver_push_pull(&d), PS_OK);
	assert_did(&d, "");
	assert_int_equal(driver_pull(&d), PS_EAGAIN); /* only one pull may be open at a time */
	assert_int_equal(driver_push_pull(&d), PS_EAGAIN);
	driver_ack(&d, 1, VERDICT_OK, 0);
	assert_did(&d, "ACK:1 push:5");
	assert_int_equal(driver_sent(&d, MSG_PUSH)->push.pull, 1);
	driver_lost(&d);
	driver_up(&d);
	driver_welcome(&d, 3, 0);
	assert_did(&d, "READY push:2 push:3 push:4 push:5 pull");
	for (size_t i = 0; session_effect(d.s, i); i++)
		if (session_effect(d.s, i)->kind == DO_SEND_PUSH)
			assert_int_equal(session_effect(d.s, i)->msg.push.pull, 0);
	driver_message(&d, &params);
	assert_did(&d, "PARAMS");
	session_free(&d.s);
}

TEST(a_replay_carries_the_verdict_of_its_first_ack)
{
	static struct session_driver d;

	driver_open(&d);
	driver_push_ok(&d, 3);
	driver_ack(&d, 1, VERDICT_OK, 0);
	driver_ack(&d, 2, VERDICT_REJECTED, 0);
	driver_crash(&d);
	driver_lost(&d);
	driver_up(&d);
	driver_welcome(&d, 0, 0);
	assert_did(&d, "READY push:1 push:2 push:3");
	assert_int_equal(session_effect(d.s, 1)->msg.push.verdict, VERDICT_OK);
	assert_int_equal(session_effect(d.s, 1)->msg.push.reject, REJECT_NONE);
	assert_int_equal(session_effect(d.s, 2)->msg.push.verdict, VERDICT_REJECTED);
	assert_int_equal(session_effect(d.s, 2)->msg.push.reject, REJECT_NORM);
	assert_int_equal(session_effect(d.s, 3)->msg.push.verdict, VERDICT_NONE);
	for (uint64_t seq = 1; seq <= 2; seq++) {
		driver_ack(&d, seq, VERDICT_OK, 0);
		/* no effect, because the session has already notified the program of this
		 * verdict */
		assert_did(&d, "");
	}
	session_free(&d.s);
}

TEST(answers_from_before_a_crash_are_ignored)
{
	static struct session_driver d;
	struct msg late;

	driver_open(&d);
	driver_push_ok(&d, 4);
	late = (struct msg){.type = MSG_ACK,
		.ack = {.seq = 1, .verdict = VERDICT_OK, .durable_seq = 1, .term = 3}};
	driver_crash(&d);
	driver_lost(&d);
	driver_up(&d);
	driver_welcome(&d, 0, 0);
	driver_message(&d, &late);
	assert_did(&d, "");
	late = (struct msg){.type = MSG_HEARTBEAT,
		.heartbeat = {.stamp = d.welcome.stamp, .last_seq = 4, .durable_seq = 4}};
	late.heartbeat.stamp.term--;
	driver_ack(&d, 1, VERDICT_OK, 0);
	driver_message(&d, &late);
	assert_did(&d, "");
	late.heartbeat.stamp.term++;
	/* ignored, because this stamp belongs to another process */
	late.heartbeat.stamp.incarnation++;
	driver_message(&d, &late);
	assert_did(&d, "");
	session_free(&d.s);
}

TEST(an_answer_to_what_was_sent_before_the_newest_welcome_is_ignored)
{
	static struct session_driver d;

	driver_open(&d);
	d.welcome.push_window = 1;
	driver_push_ok(&d, 3);
	driver_lost(&d);
	driver_up(&d);
	driver_welcome(&d, 0, 0);
	assert_did(&d, "READY push:1");
	/* must be ignored, because the session has not sent push 2 on this connection */
	driver_ack(&d, 2, VERDICT_OK, 0);
	assert_did(&d, "");
	driver_ack(&d, 1, VERDICT_OK, 0);
	assert_did(&d, "ACK:1 push:2");
	session_free(&d.s);
}

TEST(a_heartbeat_that_acks_have_overtaken_changes_nothing)
{
	static struct session_driver d;

	driver_open(&d);
	driver_push_ok(&d, 3);
	driver_ack(&d, 1, VERDICT_OK, 0);
	driver_ack(&d, 2, VERDICT_OK, 0);
	driver_heartbeat(&d, 2, 0);
	assert_did(&d, "");
	driver_heartbeat(&d, 1, 0); /* an old HEARTBEAT, as if a newer message had overtaken it */
	assert_did(&d, "");
	session_free(&d.s);
}

/* ---- a simulated server behind a network that loses messages -------------------------------- */

struct peer {
	struct rng r;
	uint64_t last, durable,
		/* the version at which each seq was decided; 0: it was not decided */
		applied[DRIVER_SEQS];
	uint64_t version;
};

static void peer_push(struct peer *p, struct session_driver *d, uint64_t seq)
{
	if (seq > p->last + 1) {
		if (rng_below(&p->r, 2))
			driver_error(d, PS_EGAP);
		return;
	}
	if (seq == p->last + 1) {
		p->last = seq;
		p->applied[seq] = ++p->version;
	}
	if (rng_below(&p->r, 4) == 0)
		p->durable = p->last;
	if (rng_below(&p->r, 10)) /* the network loses one ACK in ten */
		driver_ack(d, seq, VERDICT_OK, p->durable);
}

/* Deliver the messages of the last call to the server, and let the server answer. The network loses
 * one message in twelve. */
static void peer_receive(struct peer *p, struct session_driver *d, int depth)
{
	struct {
		enum session_effect_kind kind;
		enum msg_type type;
		uint64_t seq;
	} todo[80];
	size_t n = 0;

	for (size_t i = 0; session_effect(d->s, i) && n < 80; i++, n++) {
		todo[n].kind = session_effect(d->s, i)->kind;
		todo[n].type = session_effect(d->s, i)->msg.type;
		todo[n].seq = session_effect(d->s, i)->seq;
	}
	for (size_t i = 0; i < n && depth < 200; i++) {
		if (todo[i].kind > DO_SEND_HEARTBEAT || rng_below(&p->r, 12) == 0)
			continue;
		if (todo[i].kind == DO_SEND_PUSH)
			peer_push(p, d, todo[i].seq);
		else if (todo[i].type == MSG_HELLO)
			driver_welcome(d, p->last, p->durable);
		else if (todo[i].type == MSG_HEARTBEAT)
			driver_heartbeat(d, p->last, p->durable);
		else
			continue;
		peer_receive(p, d, depth + 1);
	}
}

/* Kill the server, and restart it with only its durable pushes. */
static void peer_crash(struct peer *p, struct session_driver *d)
{
	for (uint64_t seq = p->durable + 1; seq <= p->last; seq++)
		p->applied[seq] = 0;
	p->last = p->durable;
	driver_crash(d);
	driver_lost(d);
	driver_up(d);
}

TEST(whatever_is_lost_each_push_is_decided_once_in_order)
{
	static struct session_driver d;

	for (uint64_t seed = 1; seed <= 100; seed++) {
		struct peer p = {.r = rng_seed(seed, RNG_SIM, 0)};

		print_message("seed %llu\r", (unsigned long long)seed);
		driver_open(&d);
		for (int i = 0; i < 100000 && session_durable_seq(d.s) < 300; i++) {
			uint64_t dice = rng_below(&p.r, 100);

			if (dice == 0)
				peer_crash(&p, &d);
			else if (dice < 40)
				driver_tick(&d, rng_below(&p.r, 400));
			else if (session_last_seq(d.s) < 300)
				(void)!driver_push(&d);
			else
				driver_heartbeat(&d, p.last, p.durable = p.last);
			peer_receive(&p, &d, 0);
		}
		assert_int_equal(session_phase(d.s), PHASE_READY);
		assert_int_equal(session_durable_seq(d.s), 300);
		assert_int_equal(p.last, 300);
		for (uint64_t seq = 2; seq <= 300; seq++)
			assert_true(p.applied[seq] > p.applied[seq - 1]);
		session_free(&d.s);
	}
}
