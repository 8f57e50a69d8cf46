/*
 * Proves server/core/quarantine.c: a worker whose pushes are not finite, one after another, is
 * excluded, and the others go on; when most of the live workers send such pushes, the run ends as
 * diverged.
 */
#include <math.h>
#include "tests/unit/core_images.h"
#include "tests/unit/core_work.h"

#define PATIENCE 20 /* non-finite pushes in a row */

static struct msg nan_push(struct stamp s, uint64_t seq)
{
	struct msg m = bench_push_ones(s, seq);

	m.push.loss = NAN;
	return m;
}

/* Pushes [from, from + n): a rejection each. */
static void push_nan(struct bench *b, uint32_t peer, struct stamp s, uint64_t from, int n)
{
	for (int i = 0; i < n; i++) {
		struct msg m = nan_push(s, from + (uint64_t)i);

		bench_rejected(b, peer, &m, REJECT_NONFINITE);
	}
}

static void push_well(struct bench *b, uint32_t peer, struct stamp s, uint64_t seq)
{
	struct msg m = bench_push_ones(s, seq);

	bench_applied(b, peer, &m);
}

static void assert_excluded(const struct bench *b, uint32_t peer)
{
	const struct msg *m = bench_sent(b, peer, MSG_ERROR);

	assert_non_null(m);
	assert_int_equal(m->error.status, PS_EQUARANTINE);
	assert_non_null(m->error.text);
}

static struct core_config without_disk(void)
{
	struct core_config cfg = bench_config();

	cfg.durable = 0;
	return cfg;
}

static void one_of_two_is_excluded_and_the_other_goes_on(void **state)
{
	struct bench b;
	struct msg m;

	(void)state;
	bench_open(&b, without_disk());
	struct stamp bad = bench_join(&b, 9, "bad"), good = bench_join(&b, 8, "good");
	push_well(&b, 8, good, 1);
	push_nan(&b, 9, bad, 1, PATIENCE - 1);
	assert_null(bench_sent(&b, 9, MSG_ERROR));
	push_nan(&b, 9, bad, PATIENCE, 1);
	assert_excluded(&b, 9);
	assert_int_equal(bench_count(&b, EFFECT_FINISH), 0);
	assert_int_equal(core_live_workers(b.core), 1);
	push_well(&b, 8, good, 2);
	m = nan_push(bad, PATIENCE + 1); /* nothing of it counts any more */
	bench_message(&b, 9, &m);
	bench_refused(&b, 9, PS_EQUARANTINE);
	bench_beat(&b, 9, bad);
	bench_refused(&b, 9, PS_EQUARANTINE);
	bench_lease(&b, 9, bad, 1);
	bench_refused(&b, 9, PS_EQUARANTINE);
	bench_pull(&b, 9, bad, WEIGHTS_CURRENT);
	bench_refused(&b, 9, PS_EQUARANTINE);
	m = bench_resume(bad, PATIENCE, 0);
	bench_message(&b, 19, &m);
	bench_refused(&b, 19, PS_EQUARANTINE);
	assert_int_equal(bench_worker(&b, bad.worker).last_seq, PATIENCE);
	bench_close(&b);
}

static void a_new_process_may_come_and_is_excluded_again(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b, without_disk());
	struct stamp bad = bench_join(&b, 9, "bad"), good = bench_join(&b, 8, "good");
	uint64_t seq = 1;
	for (int life = 0; life < 3; life++) {
		push_nan(&b, 9, bad, seq, PATIENCE);
		assert_excluded(&b, 9);
		seq += PATIENCE;
		bad = bench_join(&b, 9, "bad");
		assert_int_equal(bad.incarnation, life + 2);
	}
	push_well(&b, 9, bad, seq);
	push_well(&b, 8, good, 1);
	assert_int_equal(core_stats(b.core)->accepted, 2);
	bench_close(&b);
}

static void a_good_push_ends_the_streak(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b, without_disk());
	struct stamp s = bench_join(&b, 9, "");
	uint64_t seq = 0;
	for (int i = 0; i < 10; i++) {
		push_nan(&b, 9, s, seq + 1, PATIENCE - 1);
		seq += PATIENCE;
		push_well(&b, 9, s, seq);
	}
	assert_int_equal(bench_count(&b, EFFECT_FINISH), 0);
	assert_int_equal(core_live_workers(b.core), 1);
	bench_close(&b);
}

static void alone_it_is_the_run_that_has_diverged(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b, without_disk());
	struct stamp s = bench_join(&b, 9, "");
	push_well(&b, 9, s, 1);
	push_nan(&b, 9, s, 2, PATIENCE);
	assert_int_equal(bench_effect(&b, EFFECT_FINISH)->status, PS_EDIVERGED);
	assert_int_equal(bench_sent(&b, 9, MSG_BYE)->bye.status, PS_EDIVERGED);
	bench_close(&b);
}

/* Two of three: the first to reach the limit ends the run, whatever the other's count. */
static void most_of_the_live_workers_decide(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b, without_disk());
	struct stamp one = bench_join(&b, 9, ""), two = bench_join(&b, 8, "");
	bench_join(&b, 7, "");
	push_nan(&b, 8, two, 1, 1);
	push_nan(&b, 9, one, 1, PATIENCE);
	assert_int_equal(bench_effect(&b, EFFECT_FINISH)->status, PS_EDIVERGED);
	bench_close(&b);
	bench_open(&b, without_disk()); /* two of four are not most of them */
	one = bench_join(&b, 9, "");
	two = bench_join(&b, 8, "");
	bench_join(&b, 7, "");
	bench_join(&b, 6, "");
	push_nan(&b, 8, two, 1, 1);
	push_nan(&b, 9, one, 1, PATIENCE);
	assert_int_equal(bench_count(&b, EFFECT_FINISH), 0);
	assert_excluded(&b, 9);
	bench_close(&b);
}

/* Broken from the start and first of all: nothing has trained yet that could have diverged. */
static void the_first_one_is_excluded_before_others_come(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b, without_disk());
	struct stamp bad = bench_join(&b, 9, "bad");
	push_nan(&b, 9, bad, 1, PATIENCE);
	assert_excluded(&b, 9);
	assert_int_equal(bench_count(&b, EFFECT_FINISH), 0);
	struct stamp one = bench_join(&b, 8, "one");
	push_nan(&b, 8, one, 1, 1); /* now two of two never sent a number */
	bad = bench_join(&b, 9, "bad");
	push_nan(&b, 9, bad, PATIENCE + 1, PATIENCE);
	assert_int_equal(bench_effect(&b, EFFECT_FINISH)->status, PS_EDIVERGED);
	bench_close(&b);
}

/* A supervisor starts it again and again before any other worker comes. */
static void one_that_returns_does_not_end_the_run(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b, without_disk());
	uint64_t seq = 1;
	for (int life = 0; life < 4; life++, seq += PATIENCE) {
		struct stamp bad = bench_join(&b, 9, "");
		push_nan(&b, 9, bad, seq, PATIENCE);
		assert_excluded(&b, 9);
		assert_int_equal(bench_count(&b, EFFECT_FINISH), 0);
		if (life == 1)
			bench_restart(&b);
	}
	struct stamp good = bench_join(&b, 8, "");
	push_well(&b, 8, good, seq);
	bench_close(&b);
}

/* None of them ever sound: the weights they began with are the cause. */
static void two_at_once_end_a_run_that_never_accepted_a_push(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b, without_disk());
	struct stamp one = bench_join(&b, 9, ""), two = bench_join(&b, 8, "");
	push_nan(&b, 9, one, 1, 1);
	push_nan(&b, 8, two, 1, PATIENCE);
	assert_int_equal(bench_effect(&b, EFFECT_FINISH)->status, PS_EDIVERGED);
	bench_close(&b);
}

/* Others have trained, and are gone: one that never had a push accepted is broken, however often it
 * comes. Once it had one it is the run. */
static void alone_it_answers_only_for_its_own_pushes(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b, without_disk());
	struct stamp good = bench_join(&b, 8, "good");
	push_well(&b, 8, good, 1);
	b.now_ms += b.cfg.sessions.ttl_ms + 1;
	bench_tick(&b, 1);
	assert_int_equal(bench_worker(&b, good.worker).state, SESSION_DEAD);
	uint64_t seq = 1;
	for (int life = 0; life < 3; life++, seq += PATIENCE) {
		struct stamp bad = bench_join(&b, 9, "bad");
		push_nan(&b, 9, bad, seq, PATIENCE);
		assert_excluded(&b, 9);
		assert_int_equal(bench_count(&b, EFFECT_FINISH), 0);
	}
	struct stamp again = bench_join(&b, 8, "good"); /* its former life is not its own */
	push_nan(&b, 8, again, 2, PATIENCE);
	assert_excluded(&b, 8);
	again = bench_join(&b, 8, "good");
	push_well(&b, 8, again, 2 + PATIENCE);
	bench_restart(&b);
	again = bench_come_back(&b, 8, again, 2 + PATIENCE);
	push_nan(&b, 8, again, 3 + PATIENCE, PATIENCE);
	assert_int_equal(bench_effect(&b, EFFECT_FINISH)->status, PS_EDIVERGED);
	bench_close(&b);
}

/* Others are expected: of three that must be there one has come. */
static void before_training_begins_nothing_can_diverge(void **state)
{
	struct core_config cfg = bench_training();
	struct bench b;

	(void)state;
	cfg.durable = 0;
	cfg.leases.min_workers = 3;
	bench_open(&b, cfg);
	for (uint32_t peer = 9; peer > 7; peer--) { /* even if all that are here are broken */
		struct stamp s = bench_join(&b, peer, peer == 9 ? "one" : "two");
		struct msg m = nan_push(s, 0);

		bench_work(&m, 0, 0, 1);
		for (m.push.seq = 1; m.push.seq <= PATIENCE; m.push.seq++)
			bench_rejected(&b, peer, &m, REJECT_NONFINITE);
		assert_excluded(&b, peer);
		assert_int_equal(bench_count(&b, EFFECT_FINISH), 0);
	}
	assert_false(b.core->started);
	bench_close(&b);
}

/* Whoever is silent for a moment, or is expected back, was sound when it was last heard. */
static void one_that_is_suspected_counts(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b, without_disk());
	struct stamp good = bench_join(&b, 8, "good"), bad = bench_join(&b, 9, "bad");
	push_well(&b, 8, good, 1);
	bench_tick(&b, b.cfg.sessions.suspect_ms - 1);
	bench_beat(&b, 9, bad);
	bench_tick(&b, 2);
	assert_int_equal(bench_worker(&b, good.worker).state, SESSION_SUSPECT);
	push_nan(&b, 9, bad, 1, PATIENCE);
	assert_excluded(&b, 9);
	push_well(&b, 8, good, 2);
	bench_close(&b);
}

/* Two are expected back after a restart, one of them comes: it is one of two, not all. */
static void one_that_is_expected_back_counts(void **state)
{
	struct bench b;

	(void)state;
	bench_open(&b, without_disk());
	struct stamp good = bench_join(&b, 8, "good"), bad = bench_join(&b, 9, "bad");
	push_well(&b, 8, good, 1);
	bench_restart(&b);
	bad = bench_come_back(&b, 9, bad, 0);
	push_nan(&b, 9, bad, 1, PATIENCE);
	assert_excluded(&b, 9);
	assert_int_equal(bench_count(&b, EFFECT_FINISH), 0);
	bench_close(&b);
	bench_open(&b, without_disk()); /* once it is overdue it is not expected any more */
	good = bench_join(&b, 8, "good");
	bad = bench_join(&b, 9, "bad");
	push_well(&b, 8, good, 1);
	push_well(&b, 9, bad, 1);
	bench_restart(&b);
	bad = bench_come_back(&b, 9, bad, 1);
	bench_tick(&b, 1);
	b.now_ms += b.cfg.sessions.recovery_ms;
	bench_beat(&b, 9, bad);
	bench_tick(&b, 1);
	assert_false(b.core->recovering);
	push_nan(&b, 9, bad, 2, PATIENCE);
	assert_int_equal(bench_effect(&b, EFFECT_FINISH)->status, PS_EDIVERGED);
	bench_close(&b);
}

/* Of weights that are too old, and of batches that another one has delivered. */
static void those_that_would_not_count_anyway_do(void **state)
{
	struct core_config cfg = bench_training();
	struct bench b;

	(void)state;
	cfg.durable = 0;
	cfg.limits.max_staleness = 1;
	bench_open(&b, cfg);
	struct stamp bad = bench_join(&b, 9, "bad"), good = bench_join(&b, 8, "good");
	for (uint32_t i = 0; i < 3; i++) {
		struct msg m = batch(good, i + 1, 0, i, 1);
		m.push.base_version = i;
		bench_applied(&b, 8, &m);
	}
	struct msg m = batch(bad, 1, 0, 3, 1);
	bench_rejected(&b, 9, &m, REJECT_STALE);
	float wild[BENCH_PARAMS] = {1, 1, 1, NAN, 1, 1, 1, 1};
	for (uint64_t seq = 2; seq < 2 + PATIENCE; seq++) {
		uint32_t counted = seq % 2;

		m = seq % 4 < 2 ? nan_push(bad, seq) : bench_push(bad, seq);
		if (seq % 4 >= 2)
			bench_slice(&m, 0, BENCH_PARAMS, wild);
		m.push.base_version = counted ? 3 : 0;
		bench_work(&m, 0, counted ? 0 : 3, 1);
		bench_rejected(&b, 9, &m, REJECT_NONFINITE);
	}
	assert_excluded(&b, 9);
	assert_int_equal(core_stats(b.core)->superseded, 0);
	bench_close(&b);
}

static void it_is_told_when_what_it_pushed_is_durable(void **state)
{
	struct core_config cfg = bench_config();
	struct bench b;

	(void)state;
	bench_open(&b, cfg);
	struct stamp bad = bench_join(&b, 9, "bad");
	bench_join(&b, 8, "good");
	push_well(&b, 9, bad, 1);
	push_nan(&b, 9, bad, 2, PATIENCE);
	assert_null(bench_sent(&b, 9, MSG_ERROR));
	bench_beat(&b, 9, bad);
	bench_silent(&b);
	assert_int_equal(core_live_workers(b.core), 1);
	if (!b.saving)
		bench_tick(&b, 0);
	bench_durable(&b);
	for (int i = 0; i < 2 && !bench_sent(&b, 9, MSG_ERROR); i++)
		bench_durable(&b);
	assert_excluded(&b, 9);
	bench_close(&b);
}

static void a_restart_keeps_it_out_and_does_not_wait_for_it(void **state)
{
	struct core_config cfg = without_disk();
	struct bench b;

	(void)state;
	cfg.sessions.recovery_ms = 100000;
	bench_open(&b, cfg);
	struct stamp bad = bench_join(&b, 9, "bad"), good = bench_join(&b, 8, "good");
	push_nan(&b, 9, bad, 1, PATIENCE);
	bench_restart(&b);
	struct msg m = bench_resume(bad, PATIENCE, 0);
	bench_message(&b, 9, &m);
	bench_refused(&b, 9, PS_EQUARANTINE);
	bench_come_back(&b, 8, good, 0);
	assert_false(b.core->recovering);
	bench_join(&b, 9, "bad");
	bench_close(&b);
}

static void the_others_get_its_work(void **state)
{
	struct core_config cfg = bench_training();
	struct bench b;

	(void)state;
	cfg.durable = 0;
	cfg.leases.max_batches = 4;
	bench_open(&b, cfg);
	struct stamp bad = bench_join(&b, 9, "bad"), good = bench_join(&b, 8, "good");
	struct msg_grant g = lease(&b, 9, bad, 1);
	struct msg m = nan_push(bad, 0);
	bench_work(&m, g.work.epoch, g.work.first, 1);
	for (m.push.seq = 1; m.push.seq <= PATIENCE; m.push.seq++)
		bench_rejected(&b, 9, &m, REJECT_NONFINITE);
	assert_excluded(&b, 9);
	uint64_t seq = 0;
	for (uint64_t request = 1; b.core->leases.epoch == 0; request++) {
		g = lease(&b, 8, good, request);
		for (uint32_t i = 0; i < g.work.count; i++) {
			m = batch(good, ++seq, 0, g.work.first + i, 1);
			bench_applied(&b, 8, &m);
		}
		assert_true(request < 10);
	}
	assert_int_equal(seq, 4);
	bench_close(&b);
}

static void a_step_of_sync_does_not_wait_for_it(void **state)
{
	struct core_config cfg = bench_training();
	struct bench b;

	(void)state;
	cfg.durable = 0;
	cfg.training.mode = MODE_SYNC;
	cfg.leases.min_workers = 2; /* the first step begins with both */
	bench_open(&b, cfg);
	struct stamp bad = bench_join(&b, 9, "bad"), good = bench_join(&b, 8, "good");
	bench_lease(&b, 9, bad, 1);
	struct msg_grant theirs = *granted(&b, 9), ours = lease(&b, 8, good, 1);
	struct msg m = batch(good, 1, 0, ours.work.first, ours.work.count);
	m.push.base_term = b.cfg.term;
	bench_applied(&b, 8, &m);
	assert_int_equal(core_stats(b.core)->updates, 0);
	uint64_t request = 1;
	for (uint64_t seq = 1; seq <= PATIENCE; seq++) {
		m = batch(bad, seq, 0, theirs.work.first, theirs.work.count);
		m.push.base_version = theirs.version;
		m.push.base_term = b.cfg.term;
		m.push.loss = NAN;
		bench_rejected(&b, 9, &m, REJECT_NONFINITE);
		if (seq == PATIENCE)
			break;
		theirs = lease(&b, 9, bad, ++request);
	}
	assert_excluded(&b, 9);
	assert_true(core_stats(b.core)->updates >= 1);
	bench_close(&b);
}

/* An evaluation whose loss is no number counts as such a push, and is done again by another. */
static void results_that_are_not_finite_count(void **state)
{
	struct core_config cfg = bench_training();
	struct bench b;

	(void)state;
	cfg.durable = 0;
	cfg.leases.max_batches = 4;
	cfg.leases.eval_images = 7;
	bench_open(&b, cfg);
	struct stamp bad = bench_join(&b, 9, "bad"), good = bench_join(&b, 8, "good");
	for (uint32_t i = 0; i < 4; i++) {
		struct msg m = batch(good, i + 1, 0, i, 1);
		bench_applied(&b, 8, &m);
	}
	struct msg m = {.type = MSG_RESULT};
	for (uint64_t request = 1; request <= PATIENCE; request++) {
		struct msg_grant g = grant(&b, 9, bad, request);
		assert_int_equal(g.kind, GRANT_EVAL);
		m.result = (struct msg_result){.stamp = bad,
			.eval_id = g.eval_id,
			.eval_first = g.eval_first,
			.eval_count = g.eval_count,
			.loss_sum = NAN};
		bench_message(&b, 9, &m);
	}
	assert_excluded(&b, 9);
	struct msg_grant g = grant(&b, 8, good, 1);
	assert_int_equal(g.kind, GRANT_EVAL);
	m.result.stamp = good;
	m.result.loss_sum = 3;
	bench_message(&b, 8, &m);
	assert_int_equal(core_epoch(b.core, 0)->eval_done, 7);
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_of_two_is_excluded_and_the_other_goes_on),
		cmocka_unit_test(a_new_process_may_come_and_is_excluded_again),
		cmocka_unit_test(a_good_push_ends_the_streak),
		cmocka_unit_test(alone_it_is_the_run_that_has_diverged),
		cmocka_unit_test(most_of_the_live_workers_decide),
		cmocka_unit_test(the_first_one_is_excluded_before_others_come),
		cmocka_unit_test(one_that_returns_does_not_end_the_run),
		cmocka_unit_test(two_at_once_end_a_run_that_never_accepted_a_push),
		cmocka_unit_test(alone_it_answers_only_for_its_own_pushes),
		cmocka_unit_test(before_training_begins_nothing_can_diverge),
		cmocka_unit_test(one_that_is_suspected_counts),
		cmocka_unit_test(one_that_is_expected_back_counts),
		cmocka_unit_test(those_that_would_not_count_anyway_do),
		cmocka_unit_test(it_is_told_when_what_it_pushed_is_durable),
		cmocka_unit_test(a_restart_keeps_it_out_and_does_not_wait_for_it),
		cmocka_unit_test(the_others_get_its_work),
		cmocka_unit_test(a_step_of_sync_does_not_wait_for_it),
		cmocka_unit_test(results_that_are_not_finite_count),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
