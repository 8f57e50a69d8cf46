/*
 * Proves the exclusion of workers and the end of a diverged run (server/core/departure.h). Each bad
 * push of a worker raises its count by one, and each accepted push lowers the count by one. The
 * server excludes a worker whose count reaches 20, and the other workers go on. If at that time
 * most of the workers that are live, suspect or expected back have a count of at least FEW_BAD, the
 * run ends as diverged instead. After three exclusions a worker is in quarantine
 * (server/core/quarantine.h).
 * Covers attacks A12 and A13 of docs/faults.md.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

#define PATIENCE 20 /* the number of non-finite pushes in a row that excludes a worker */
/* SHAPES pushes of a wrong shape exclude a worker if fewer than FORGIVEN pushes of the worker are
 * accepted between the first and the last of them */
#define SHAPES   3
#define FORGIVEN 100

static struct msg nan_push(struct stamp s, uint64_t seq)
{
	struct msg m = fixture_push_ones(s, seq);

	m.push.loss = NAN;
	return m;
}

/* Sends non-finite pushes with seq [from, from + n). The server must reject each of these
 * pushes. */
static void push_nan(struct core_fixture *f, uint32_t peer, struct stamp s, uint64_t from, int n)
{
	for (int i = 0; i < n; i++) {
		struct msg m = nan_push(s, from + (uint64_t)i);

		fixture_rejected(f, peer, &m, REJECT_NONFINITE);
	}
}

static void push_well(struct core_fixture *f, uint32_t peer, struct stamp s, uint64_t seq)
{
	struct msg m = fixture_push_ones(s, seq);

	m.push.base_version = f->core->store.version;
	fixture_applied(f, peer, &m);
}

static void assert_excluded(const struct core_fixture *f, uint32_t peer)
{
	const struct msg *m = fixture_sent(f, peer, MSG_ERROR);

	assert_non_null(m);
	assert_int_equal(m->error.status, PS_EQUARANTINE);
	/* the text lists all reasons for which the server calls a push bad */
	assert_non_null(strstr(m->error.text, "not finite"));
	assert_non_null(strstr(m->error.text, "wrong shape"));
	assert_non_null(strstr(m->error.text, "another size"));
	assert_non_null(strstr(m->error.text, "outvoted"));
}

static struct core_config without_disk(void)
{
	struct core_config cfg = fixture_config();

	cfg.durable = 0;
	return cfg;
}

TEST(a_new_process_continues_the_bad_pushes_of_the_earlier_one)
{
	for (int key = 0; key < 2; key++) {
		struct core_fixture f;
		struct core_config cfg = without_disk();

		cfg.sessions.max_workers = 8;
		fixture_open(&f, cfg);
		struct stamp good = fixture_join(&f, 8, "good");
		push_well(&f, 8, good, 1);
		for (uint32_t peer = 10; peer < 14; peer++) {
			struct msg m = fixture_hello(key ? "" : "bad");

			m.hello.owner[0] = key ? 'k' : 0;
			fixture_message(&f, peer, &m);
			const struct msg *w = fixture_sent(&f, peer, MSG_WELCOME);
			uint64_t seq = w->welcome.last_seq;
			struct stamp s = w->welcome.stamp;
			push_nan(&f, peer, s, seq + 1, PATIENCE / 4);
			/* dead, so that the worker does not count when the core decides whether
			 * the run has diverged */
			if (peer < 13)
				f.core->worker[s.worker - 1].session.state = SESSION_DEAD;
			if (peer == 11)
				fixture_restart(&f);
		}
		assert_excluded(&f, 13);
		fixture_close(&f);
	}
}

TEST(one_of_two_is_excluded_and_the_other_goes_on)
{
	struct core_fixture f;
	struct msg m;

	fixture_open(&f, without_disk());
	struct stamp bad = fixture_join(&f, 9, "bad"), good = fixture_join(&f, 8, "good");
	push_well(&f, 8, good, 1);
	push_nan(&f, 9, bad, 1, PATIENCE - 1);
	assert_null(fixture_sent(&f, 9, MSG_ERROR));
	push_nan(&f, 9, bad, PATIENCE, 1);
	assert_excluded(&f, 9);
	assert_int_equal(fixture_count(&f, EFFECT_FINISH), 0);
	assert_int_equal(core_live_workers(f.core), 1);
	push_well(&f, 8, good, 2);
	m = nan_push(bad, PATIENCE + 1); /* refused like every message of an excluded worker */
	fixture_message(&f, 9, &m);
	fixture_refused(&f, 9, PS_EQUARANTINE);
	fixture_heartbeat(&f, 9, bad);
	fixture_refused(&f, 9, PS_EQUARANTINE);
	fixture_lease(&f, 9, bad, 1);
	fixture_refused(&f, 9, PS_EQUARANTINE);
	fixture_pull(&f, 9, bad, WEIGHTS_CURRENT);
	fixture_refused(&f, 9, PS_EQUARANTINE);
	m = fixture_resume(bad, PATIENCE, 0);
	fixture_message(&f, 19, &m);
	fixture_refused(&f, 19, PS_EQUARANTINE);
	assert_int_equal(fixture_worker(&f, bad.worker).last_seq, PATIENCE);
	fixture_close(&f);
}

TEST(a_new_process_may_join_and_is_excluded_again)
{
	struct core_fixture f;

	fixture_open(&f, without_disk());
	struct stamp bad = fixture_join(&f, 9, "bad"), good = fixture_join(&f, 8, "good");
	uint64_t seq = 1;
	for (int life = 0; life < 2; life++) {
		push_nan(&f, 9, bad, seq, PATIENCE);
		assert_excluded(&f, 9);
		seq += PATIENCE;
		bad = fixture_join(&f, 9, "bad");
		assert_int_equal(bad.incarnation, life + 2);
	}
	push_well(&f, 9, bad, seq);
	push_well(&f, 8, good, 1);
	assert_int_equal(core_stats(f.core)->accepted, 2);
	fixture_close(&f);
}

/* Sends `n_bad` non-finite pushes, then `n_good` finite ones, and so on, until the worker is
 * excluded or has sent `max` pushes. Returns the number of pushes. */
static int push_mixed(struct core_fixture *f, struct stamp s, int n_bad, int n_good, int max)
{
	int n = 0;

	while (n < max && !fixture_worker(f, s.worker).excluded) {
		if (n % (n_bad + n_good) < n_bad)
			push_nan(f, 9, s, (uint64_t)n + 1, 1);
		else
			push_well(f, 9, s, (uint64_t)n + 1);
		n++;
	}
	return n;
}

/* An accepted push between bad ones does not save a worker with more bad pushes than accepted ones:
 * it makes up for one bad push only. */
TEST(a_good_push_makes_up_for_one_bad_push)
{
	struct core_fixture f;

	for (int n_bad = 2; n_bad < PATIENCE; n_bad++) {
		fixture_open(&f, without_disk());
		struct stamp good = fixture_join(&f, 8, "good"), bad = fixture_join(&f, 9, "bad");
		push_well(&f, 8, good, 1);
		int n = push_mixed(&f, bad, n_bad, 1, 1000), n_good = n / (n_bad + 1);
		assert_excluded(&f, 9);
		assert_int_equal(n - n_good, n_good + PATIENCE);
		assert_int_equal(fixture_count(&f, EFFECT_FINISH), 0);
		push_well(&f, 8, good, 2);
		fixture_close(&f);
	}
}

/* The gradients of an honest worker overflow now and then. However long it trains, the server does
 * not exclude it, and does not end its run as diverged. */
TEST(rare_bad_pushes_exclude_nobody)
{
	const int n_good[] = {1, 10, 999};
	struct core_fixture f;

	for (size_t i = 0; i < sizeof(n_good) / sizeof(n_good[0]); i++) {
		fixture_open(&f, without_disk());
		struct stamp s = fixture_join(&f, 9, "");
		assert_int_equal(push_mixed(&f, s, 1, n_good[i], 30000), 30000);
		assert_int_equal(fixture_count(&f, EFFECT_FINISH), 0);
		assert_int_equal(core_live_workers(f.core), 1);
		fixture_close(&f);
	}
}

/* In a run that diverges, a part of the gradients of all workers is not finite. The first worker
 * with too many of them is not excluded, but ends the run. */
TEST(a_run_whose_workers_are_bad_more_often_than_good_diverges)
{
	struct core_fixture f;

	fixture_open(&f, without_disk());
	struct stamp s[3];
	for (uint32_t i = 0; i < 3; i++)
		s[i] = fixture_join(&f, 9 + i, "");
	for (uint64_t seq = 1; fixture_count(&f, EFFECT_FINISH) == 0; seq++)
		for (uint32_t i = 0; i < 3 && fixture_count(&f, EFFECT_FINISH) == 0; i++) {
			assert_true(seq < 100);
			if ((seq + i) % 3 == 0)
				push_well(&f, 9 + i, s[i], seq);
			else
				push_nan(&f, 9 + i, s[i], seq, 1);
		}
	assert_int_equal(f.core->run.end_status, PS_EDIVERGED);
	assert_int_equal(core_stats(f.core)->excluded, 0);
	fixture_close(&f);
}

static void push_wrong_shape(struct core_fixture *f, struct stamp s, uint64_t seq)
{
	struct msg m = fixture_push_ones(s, seq);

	fixture_work(&m, 0, 0, 1); /* rejected, because the run has no batches */
	fixture_rejected(f, 9, &m, REJECT_SHAPE);
}

static struct core_config with_rights(void)
{
	struct core_config cfg = without_disk();

	cfg.proof_key[0] = 1;
	assert_true(cfg.limits.norm_ratio <= 0);
	return cfg;
}

/* Pushes of a wrong shape count as bad pushes whether or not the server compares norms, and even in
 * a run without a data set. No honest worker sends one, so few of them exclude their worker. */
TEST(a_worker_whose_pushes_have_a_wrong_shape_is_excluded)
{
	struct core_fixture f;

	fixture_open(&f, with_rights());
	struct stamp bad = fixture_join(&f, 9, "bad"), good = fixture_join(&f, 8, "good");
	push_well(&f, 8, good, 1);
	for (uint64_t seq = 1; seq <= SHAPES; seq++) {
		assert_false(fixture_worker(&f, bad.worker).excluded);
		push_wrong_shape(&f, bad, seq);
	}
	assert_excluded(&f, 9);
	push_well(&f, 8, good, 2);
	fixture_close(&f);
}

/* The only worker of a run sends pushes of a wrong shape: the run has not diverged. */
TEST(wrong_shapes_do_not_end_the_run_as_diverged)
{
	struct core_fixture f;

	fixture_open(&f, with_rights());
	struct stamp s = fixture_join(&f, 9, "");
	push_well(&f, 9, s, 1);
	for (uint64_t seq = 2; seq < 2 + SHAPES; seq++)
		push_wrong_shape(&f, s, seq);
	assert_excluded(&f, 9);
	assert_int_equal(fixture_count(&f, EFFECT_FINISH), 0);
	fixture_close(&f);
}

/* A worker sends a push of a wrong shape, then half of `n_good` good pushes, another push of a
 * wrong shape in a new process, the other half after a restart of the server, and one more push of
 * a wrong shape. Returns 1 if the server excludes the worker. */
static int three_wrong_shapes_among(int n_good)
{
	struct core_fixture f;
	struct core_config cfg = with_rights();
	uint64_t seq = 1;

	fixture_open(&f, cfg);
	struct stamp s = fixture_join(&f, 9, "bad");
	push_wrong_shape(&f, s, seq++);
	for (int i = 0; i < n_good / 2; i++)
		push_well(&f, 9, s, seq++);
	s = fixture_join(&f, 9, "bad");
	push_wrong_shape(&f, s, seq++);
	fixture_restart(&f);
	s = fixture_come_back(&f, 9, s, seq - 1);
	for (int i = n_good / 2; i < n_good; i++)
		push_well(&f, 9, s, seq++);
	push_wrong_shape(&f, s, seq++);
	int excluded = fixture_worker(&f, s.worker).excluded;
	fixture_close(&f);
	return excluded;
}

TEST(good_pushes_do_not_hide_three_wrong_shapes)
{
	assert_true(three_wrong_shapes_among(2));
	assert_true(three_wrong_shapes_among(FORGIVEN - 1));
	assert_false(three_wrong_shapes_among(FORGIVEN));
}

TEST(bad_pushes_of_the_only_worker_end_the_run)
{
	struct core_fixture f;

	fixture_open(&f, without_disk());
	struct stamp s = fixture_join(&f, 9, "");
	push_well(&f, 9, s, 1);
	push_nan(&f, 9, s, 2, PATIENCE);
	assert_int_equal(fixture_effect(&f, EFFECT_FINISH)->status, PS_EDIVERGED);
	assert_int_equal(fixture_sent(&f, 9, MSG_BYE)->bye.status, PS_EDIVERGED);
	fixture_close(&f);
}

/* Two of three workers send non-finite pushes. When the first worker reaches the limit of such
 * pushes, the run ends, if the second worker has sent FEW_BAD of them. */
TEST(most_of_the_live_workers_decide)
{
	struct core_fixture f;

	fixture_open(&f, without_disk());
	struct stamp one = fixture_join(&f, 9, ""), two = fixture_join(&f, 8, "");
	fixture_join(&f, 7, "");
	push_nan(&f, 8, two, 1, FEW_BAD);
	push_nan(&f, 9, one, 1, PATIENCE);
	assert_int_equal(fixture_effect(&f, EFFECT_FINISH)->status, PS_EDIVERGED);
	fixture_close(&f);
	/* second part: two broken workers of four are not a majority */
	fixture_open(&f, without_disk());
	one = fixture_join(&f, 9, "");
	two = fixture_join(&f, 8, "");
	fixture_join(&f, 7, "");
	fixture_join(&f, 6, "");
	push_nan(&f, 8, two, 1, FEW_BAD);
	push_nan(&f, 9, one, 1, PATIENCE);
	assert_int_equal(fixture_count(&f, EFFECT_FINISH), 0);
	assert_excluded(&f, 9);
	fixture_close(&f);
}

/* One of three workers sends bad pushes on purpose. It sends the push that excludes it only after
 * another worker has sent some bad pushes by accident: the run must not end as diverged. */
TEST(a_worker_cannot_use_single_bad_pushes_of_others)
{
	struct core_fixture f;

	fixture_open(&f, without_disk());
	struct stamp hostile = fixture_join(&f, 9, ""), one = fixture_join(&f, 8, "");
	fixture_join(&f, 7, "");
	push_well(&f, 8, one, 1);
	push_nan(&f, 9, hostile, 1, PATIENCE - 1);
	push_nan(&f, 8, one, 2, FEW_BAD - 1);
	push_nan(&f, 9, hostile, PATIENCE, 1);
	assert_int_equal(fixture_count(&f, EFFECT_FINISH), 0);
	assert_excluded(&f, 9);
	push_well(&f, 8, one, 1 + FEW_BAD);
	fixture_close(&f);
}

/* The first worker of this run is broken from the start. The run cannot have diverged, because no
 * worker has trained yet. */
TEST(a_broken_first_worker_is_excluded_before_others_join)
{
	struct core_fixture f;

	fixture_open(&f, without_disk());
	struct stamp bad = fixture_join(&f, 9, "bad");
	push_nan(&f, 9, bad, 1, PATIENCE);
	assert_excluded(&f, 9);
	assert_int_equal(fixture_count(&f, EFFECT_FINISH), 0);
	struct stamp one = fixture_join(&f, 8, "one");
	push_nan(&f, 8, one, 1, FEW_BAD); /* now neither worker has sent a finite push */
	bad = fixture_join(&f, 9, "bad");
	push_nan(&f, 9, bad, PATIENCE + 1, PATIENCE);
	assert_int_equal(fixture_effect(&f, EFFECT_FINISH)->status, PS_EDIVERGED);
	fixture_close(&f);
}

/* Before another worker joins, a supervisor restarts a broken worker again and again. */
TEST(a_broken_worker_that_returns_does_not_end_the_run)
{
	struct core_fixture f;

	fixture_open(&f, without_disk());
	uint64_t seq = 1;
	for (int life = 0; life < 4; life++, seq += PATIENCE) {
		struct stamp bad = fixture_join(&f, 9, "");

		push_nan(&f, 9, bad, seq, PATIENCE);
		assert_excluded(&f, 9);
		assert_int_equal(fixture_count(&f, EFFECT_FINISH), 0);
		if (life == 1)
			fixture_restart(&f);
	}
	struct stamp good = fixture_join(&f, 8, "");
	push_well(&f, 8, good, seq);
	fixture_close(&f);
}

/* In this run neither worker has ever sent a finite push, so the initial weights are the cause. */
TEST(two_broken_workers_end_a_run_without_accepted_pushes)
{
	struct core_fixture f;

	fixture_open(&f, without_disk());
	struct stamp one = fixture_join(&f, 9, ""), two = fixture_join(&f, 8, "");
	push_nan(&f, 9, one, 1, FEW_BAD);
	push_nan(&f, 8, two, 1, PATIENCE);
	assert_int_equal(fixture_effect(&f, EFFECT_FINISH)->status, PS_EDIVERGED);
	fixture_close(&f);
}

/* Other workers have trained and then left the run. The only worker left sends non-finite pushes.
 * If the server has never accepted a push of this worker, the worker is broken, no matter how often
 * it joins. If the server has accepted a push of this worker, the run has diverged. */
TEST(an_only_worker_counts_with_its_own_pushes_only)
{
	struct core_fixture f;

	fixture_open(&f, without_disk());
	struct stamp good = fixture_join(&f, 8, "good");
	push_well(&f, 8, good, 1);
	f.now_ms += f.cfg.sessions.ttl_ms + 1;
	fixture_tick(&f, 1);
	assert_int_equal(fixture_worker(&f, good.worker).state, SESSION_DEAD);
	uint64_t seq = 1;
	for (int life = 0; life < 3; life++, seq += PATIENCE) {
		struct stamp bad = fixture_join(&f, 9, "bad");

		push_nan(&f, 9, bad, seq, PATIENCE);
		assert_excluded(&f, 9);
		assert_int_equal(fixture_count(&f, EFFECT_FINISH), 0);
	}
	struct stamp again =
		/* for a new process, the pushes of the old process do not count */
		fixture_join(&f, 8, "good");
	push_nan(&f, 8, again, 2, PATIENCE);
	assert_excluded(&f, 8);
	again = fixture_join(&f, 8, "good");
	push_well(&f, 8, again, 2 + PATIENCE);
	fixture_restart(&f);
	again = fixture_come_back(&f, 8, again, 2 + PATIENCE);
	push_nan(&f, 8, again, 3 + PATIENCE, PATIENCE);
	assert_int_equal(fixture_effect(&f, EFFECT_FINISH)->status, PS_EDIVERGED);
	fixture_close(&f);
}

/* --min-workers is 3, and fewer workers have joined, so the server expects more workers. */
TEST(no_run_diverges_before_min_workers_have_joined)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;

	cfg.durable = 0;
	cfg.leases.min_workers = 3;
	fixture_open(&f, cfg);
	/* the run does not end, even if all connected workers are broken */
	for (uint32_t peer = 9; peer > 7; peer--) {
		struct stamp s = fixture_join(&f, peer, peer == 9 ? "one" : "two");
		struct msg m = nan_push(s, 0);

		fixture_work(&m, 0, 0, 1);
		for (m.push.seq = 1; m.push.seq <= PATIENCE; m.push.seq++)
			fixture_rejected(&f, peer, &m, REJECT_NONFINITE);
		assert_excluded(&f, peer);
		assert_int_equal(fixture_count(&f, EFFECT_FINISH), 0);
	}
	assert_false(f.core->run.begun);
	fixture_close(&f);
}

/* When the core decides whether the run has diverged, a worker that is suspect or away counts with
 * its newest push. In this test the newest push of the suspect worker was finite. */
TEST(a_suspect_worker_counts)
{
	struct core_fixture f;

	fixture_open(&f, without_disk());
	struct stamp good = fixture_join(&f, 8, "good"), bad = fixture_join(&f, 9, "bad");
	push_well(&f, 8, good, 1);
	fixture_tick(&f, f.cfg.sessions.suspect_ms - 1);
	fixture_heartbeat(&f, 9, bad);
	fixture_tick(&f, 2);
	assert_int_equal(fixture_worker(&f, good.worker).state, SESSION_SUSPECT);
	push_nan(&f, 9, bad, 1, PATIENCE);
	assert_excluded(&f, 9);
	push_well(&f, 8, good, 2);
	fixture_close(&f);
}

/* After a restart the server expects two workers. One of the two workers returns and sends
 * non-finite pushes. The returned worker counts as one of two workers, not as the only worker. */
TEST(a_worker_that_is_expected_back_counts)
{
	struct core_fixture f;

	fixture_open(&f, without_disk());
	struct stamp good = fixture_join(&f, 8, "good"), bad = fixture_join(&f, 9, "bad");
	push_well(&f, 8, good, 1);
	fixture_restart(&f);
	bad = fixture_come_back(&f, 9, bad, 0);
	push_nan(&f, 9, bad, 1, PATIENCE);
	assert_excluded(&f, 9);
	assert_int_equal(fixture_count(&f, EFFECT_FINISH), 0);
	fixture_close(&f);
	/* second part: after the recovery time, the server no longer expects the second worker */
	fixture_open(&f, without_disk());
	good = fixture_join(&f, 8, "good");
	bad = fixture_join(&f, 9, "bad");
	push_well(&f, 8, good, 1);
	push_well(&f, 9, bad, 1);
	fixture_restart(&f);
	bad = fixture_come_back(&f, 9, bad, 1);
	fixture_tick(&f, 1);
	f.now_ms += f.cfg.sessions.recovery_ms;
	fixture_heartbeat(&f, 9, bad);
	fixture_tick(&f, 1);
	assert_false(f.core->run.recovering);
	push_nan(&f, 9, bad, 2, PATIENCE);
	assert_int_equal(fixture_effect(&f, EFFECT_FINISH)->status, PS_EDIVERGED);
	fixture_close(&f);
}

/* Non-finite pushes count as bad pushes even if their weights are stale, or if another worker has
 * delivered their batches. */
TEST(stale_and_superseded_bad_pushes_count)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;

	cfg.durable = 0;
	cfg.limits.max_staleness = 1;
	fixture_open(&f, cfg);
	struct stamp bad = fixture_join(&f, 9, "bad"), good = fixture_join(&f, 8, "good");
	for (uint32_t i = 0; i < 3; i++) {
		struct msg m = fixture_batch(good, i + 1, 0, i, 1);

		m.push.base_version = i;
		fixture_applied(&f, 8, &m);
	}
	struct msg m = fixture_batch(bad, 1, 0, 3, 1);
	fixture_rejected(&f, 9, &m, REJECT_STALE);
	float wild[FIXTURE_PARAMS] = {1, 1, 1, NAN, 1, 1, 1, 1};
	for (uint64_t seq = 2; seq < 2 + PATIENCE; seq++) {
		uint32_t counted = seq % 2;

		m = seq % 4 < 2 ? nan_push(bad, seq) : fixture_push(bad, seq);
		if (seq % 4 >= 2)
			fixture_slice(&m, 0, FIXTURE_PARAMS, wild);
		m.push.base_version = counted ? 3 : 0;
		fixture_work(&m, 0, counted ? 0 : 3, 1);
		fixture_rejected(&f, 9, &m, REJECT_NONFINITE);
	}
	assert_excluded(&f, 9);
	assert_int_equal(core_stats(f.core)->superseded, 0);
	fixture_close(&f);
}

TEST(an_excluded_worker_is_notified_when_its_pushes_are_durable)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;

	fixture_open(&f, cfg);
	struct stamp bad = fixture_join(&f, 9, "bad");
	fixture_join(&f, 8, "good");
	push_well(&f, 9, bad, 1);
	push_nan(&f, 9, bad, 2, PATIENCE);
	assert_null(fixture_sent(&f, 9, MSG_ERROR));
	fixture_heartbeat(&f, 9, bad);
	fixture_silent(&f);
	assert_int_equal(core_live_workers(f.core), 1);
	if (!f.saving)
		fixture_tick(&f, 0);
	fixture_durable(&f);
	for (int i = 0; i < 2 && !fixture_sent(&f, 9, MSG_ERROR); i++)
		fixture_durable(&f);
	assert_excluded(&f, 9);
	fixture_close(&f);
}

TEST(a_restart_keeps_the_exclusion_and_does_not_wait)
{
	struct core_config cfg = without_disk();
	struct core_fixture f;

	cfg.sessions.recovery_ms = 100000;
	fixture_open(&f, cfg);
	struct stamp bad = fixture_join(&f, 9, "bad"), good = fixture_join(&f, 8, "good");
	push_nan(&f, 9, bad, 1, PATIENCE);
	fixture_restart(&f);
	struct msg m = fixture_resume(bad, PATIENCE, 0);
	fixture_message(&f, 9, &m);
	fixture_refused(&f, 9, PS_EQUARANTINE);
	fixture_come_back(&f, 8, good, 0);
	assert_false(f.core->run.recovering);
	fixture_join(&f, 9, "bad");
	fixture_close(&f);
}

TEST(other_workers_get_the_work_of_an_excluded_worker)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;

	cfg.durable = 0;
	cfg.leases.max_batches = 4;
	fixture_open(&f, cfg);
	struct stamp bad = fixture_join(&f, 9, "bad"), good = fixture_join(&f, 8, "good");
	struct msg_grant g = fixture_train(&f, 9, bad, 1);
	struct msg m = nan_push(bad, 0);
	fixture_work(&m, g.work.epoch, g.work.first, 1);
	for (m.push.seq = 1; m.push.seq <= PATIENCE; m.push.seq++)
		fixture_rejected(&f, 9, &m, REJECT_NONFINITE);
	assert_excluded(&f, 9);
	uint64_t seq = 0;
	for (uint64_t request = 1; f.core->leases.epoch == 0; request++) {
		g = fixture_train(&f, 8, good, request);
		for (uint32_t i = 0; i < g.work.count; i++) {
			m = fixture_batch(good, ++seq, 0, g.work.first + i, 1);
			fixture_applied(&f, 8, &m);
		}
		assert_true(request < 10);
	}
	assert_int_equal(seq, 4);
	fixture_close(&f);
}

TEST(a_sync_step_does_not_wait_for_an_excluded_worker)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;

	cfg.durable = 0;
	cfg.training.mode = MODE_SYNC;
	cfg.leases.min_workers = 2; /* the first step needs both workers */
	fixture_open(&f, cfg);
	struct stamp bad = fixture_join(&f, 9, "bad"), good = fixture_join(&f, 8, "good");
	fixture_lease(&f, 9, bad, 1);
	struct msg_grant theirs = *fixture_granted(&f, 9), ours = fixture_train(&f, 8, good, 1);
	struct msg m = fixture_batch(good, 1, 0, ours.work.first, ours.work.count);
	m.push.base_term = f.cfg.term;
	fixture_applied(&f, 8, &m);
	assert_int_equal(core_stats(f.core)->updates, 0);
	uint64_t request = 1;
	for (uint64_t seq = 1; seq <= PATIENCE; seq++) {
		m = fixture_batch(bad, seq, 0, theirs.work.first, theirs.work.count);
		m.push.base_version = theirs.version;
		m.push.base_term = f.cfg.term;
		m.push.loss = NAN;
		fixture_rejected(&f, 9, &m, REJECT_NONFINITE);
		if (seq == PATIENCE)
			break;
		theirs = fixture_train(&f, 9, bad, ++request);
	}
	assert_excluded(&f, 9);
	assert_true(core_stats(f.core)->updates >= 1);
	fixture_close(&f);
}

/* A result with a non-finite loss counts against its worker like a non-finite push. The server
 * grants the portion to another worker. */
TEST(results_that_are_not_finite_count)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;

	cfg.durable = 0;
	cfg.leases.max_batches = 4;
	cfg.leases.eval_images = 7;
	fixture_open(&f, cfg);
	struct stamp bad = fixture_join(&f, 9, "bad"), good = fixture_join(&f, 8, "good");
	for (uint32_t i = 0; i < 4; i++) {
		struct msg m = fixture_batch(good, i + 1, 0, i, 1);

		fixture_applied(&f, 8, &m);
	}
	struct msg m = {.type = MSG_RESULT};
	for (uint64_t request = 1; request <= PATIENCE; request++) {
		struct msg_grant g = fixture_grant(&f, 9, bad, request);

		assert_int_equal(g.kind, GRANT_EVAL);
		m.result = (struct msg_result){.stamp = bad,
			.eval_id = g.eval_id,
			.eval_first = g.eval_first,
			.eval_count = g.eval_count,
			.loss_sum = NAN};
		fixture_message(&f, 9, &m);
	}
	assert_excluded(&f, 9);
	struct msg_grant g = fixture_grant(&f, 8, good, 1);
	assert_int_equal(g.kind, GRANT_EVAL);
	m.result.stamp = good;
	m.result.loss_sum = 3;
	fixture_message(&f, 8, &m);
	assert_int_equal(core_epoch(f.core, 0)->eval_done, 7);
	fixture_close(&f);
}

/* ---- quarantine ------------------------------------------------------------------------------ */

static struct msg hello_of(const char *name, const char *key)
{
	struct msg m = fixture_hello(name);

	memcpy(m.hello.owner, key, strlen(key));
	return m;
}

/* Lets a worker with the key `key` join on connection `peer`. */
static struct stamp join_under_key(
	struct core_fixture *f, uint32_t peer, const char *name, const char *key)
{
	struct msg m = hello_of(name, key);

	fixture_message(f, peer, &m);
	assert_non_null(fixture_sent(f, peer, MSG_WELCOME));
	return fixture_sent(f, peer, MSG_WELCOME)->welcome.stamp;
}

static void assert_quarantined(struct core_fixture *f, const char *name, const char *key)
{
	struct msg m = hello_of(name, key);

	fixture_message(f, 17, &m);
	fixture_refused(f, 17, PS_EQUARANTINE);
	assert_non_null(strstr(fixture_sent(f, 17, MSG_ERROR)->error.text, "cnn-ctl release"));
}

/* A process joins on connection 9 and sends bad pushes until it is excluded. */
static void exclude_with_nan(struct core_fixture *f, const char *name, const char *key)
{
	struct stamp s = join_under_key(f, 9, name, key);

	push_nan(f, 9, s, fixture_worker(f, s.worker).last_seq + 1, PATIENCE);
	assert_excluded(f, 9);
}

static uint32_t count_quarantined(const struct core_fixture *f)
{
	struct quarantine_view v;
	uint32_t n = 0;

	while (core_quarantine(f->core, n, &v))
		n++;
	return n;
}

static void send_release(struct core_fixture *f, const char *worker)
{
	struct msg m = {.type = MSG_ADMIN, .admin = {.verb = ADMIN_RELEASE}};

	memcpy(m.admin.worker, worker, strlen(worker));
	fixture_message(f, 20, &m);
}

static void open_with_good(struct core_fixture *f)
{
	fixture_open(f, without_disk());
	struct stamp good = fixture_join(f, 8, "good");
	push_well(f, 8, good, 1);
}

TEST(after_three_exclusions_a_worker_is_refused_until_it_is_released)
{
	struct quarantine_view v;
	struct core_fixture f;

	open_with_good(&f);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(count_quarantined(&f), 0);
		exclude_with_nan(&f, "bad", "");
		assert_int_equal(fixture_effect(&f, EFFECT_WORKER)->change,
			i < 2 ? WORKER_EXCLUDED : WORKER_QUARANTINED);
	}
	assert_true(core_quarantine(f.core, 0, &v));
	assert_string_equal(v.name, "bad");
	assert_string_equal(v.owner, "");
	assert_int_equal(v.exclusions, 3);
	assert_true(fixture_worker(&f, 2).quarantined);
	assert_quarantined(&f, "bad", "");
	/* a worker with another name joins, and a worker without a name */
	fixture_join(&f, 7, "other");
	fixture_join(&f, 6, "");
	send_release(&f, "other");
	fixture_refused(&f, 20, PS_EUSAGE);
	assert_int_equal(fixture_count(&f, EFFECT_RELEASED), 0);
	assert_quarantined(&f, "bad", "");
	send_release(&f, "bad");
	assert_string_equal(fixture_effect(&f, EFFECT_RELEASED)->msg.admin.worker, "bad");
	assert_int_equal(fixture_sent(&f, 20, MSG_ADMIN)->admin.verb, ADMIN_RELEASE);
	assert_int_equal(fixture_sent(&f, 20, MSG_ADMIN)->admin.reply, 1);
	assert_int_equal(count_quarantined(&f), 0);
	exclude_with_nan(&f, "bad", ""); /* the exclusions of "bad" count from 0 again */
	fixture_join(&f, 9, "bad");
	fixture_close(&f);
}

#define KEY_BAD  "aaaaaaaabbbbbbbbccccccccddddddddeeeeeeee"
#define KEY_GOOD "aaaaaaaxbbbbbbbbccccccccddddddddeeeeeeee"

/* If the server has keys, the key of the excluded workers is in quarantine, no matter which names
 * the workers have. Sessions of this key that were open before the quarantine continue. */
TEST(a_key_in_quarantine_cannot_join_with_another_name)
{
	struct core_fixture f;

	open_with_good(&f);
	struct stamp live = join_under_key(&f, 7, "d", KEY_BAD);
	exclude_with_nan(&f, "a", KEY_BAD);
	exclude_with_nan(&f, "b", KEY_BAD);
	exclude_with_nan(&f, "", KEY_BAD);
	assert_int_equal(count_quarantined(&f), 1);
	assert_quarantined(&f, "a", KEY_BAD);
	assert_quarantined(&f, "e", KEY_BAD);
	assert_quarantined(&f, "", KEY_BAD);
	join_under_key(&f, 6, "e", KEY_GOOD);
	push_well(&f, 7, live, 1);
	struct msg m = fixture_resume(live, 1, 0);
	memcpy(m.hello.owner, KEY_BAD, sizeof(KEY_BAD));
	fixture_message(&f, 27, &m);
	assert_non_null(fixture_sent(&f, 27, MSG_WELCOME));
	send_release(&f, "aaaaaaa"); /* refused, because seven characters of a key are too few */
	fixture_refused(&f, 20, PS_EUSAGE);
	send_release(&f, "aaaaaaaa");
	join_under_key(&f, 9, "a", KEY_BAD);
	fixture_close(&f);
}

/* One key has more than half of the workers, and all of them send bad gradients. */
TEST(one_of_three_keys_cannot_end_the_run_as_diverged)
{
	struct core_config cfg = without_disk();
	struct core_fixture f;
	struct stamp s[5];

	cfg.sessions.max_workers = 5;
	fixture_open(&f, cfg);
	for (uint32_t i = 0; i < 5; i++)
		s[i] = join_under_key(&f, 7 + i, "", (const char[2]){"aaabc"[i]});
	for (uint32_t i = 3; i < 5; i++)
		push_well(&f, 7 + i, s[i], 1);
	for (uint32_t i = 0; i < 3; i++)
		push_nan(&f, 7 + i, s[i], 1, FEW_BAD);
	for (uint32_t i = 0; i < 3; i++) {
		push_nan(&f, 7 + i, s[i], 1 + FEW_BAD, PATIENCE - FEW_BAD);
		assert_int_equal(f.core->run.end_status, 0);
		assert_true(fixture_worker(&f, 1 + i).excluded);
	}
	fixture_close(&f);
}

/* A worker can resume a session that has ended, but not while its key is in quarantine. */
TEST(an_ended_session_does_not_evade_quarantine)
{
	struct core_fixture f;

	open_with_good(&f);
	struct stamp ended = join_under_key(&f, 7, "d", KEY_BAD);
	fixture_bye(&f, 7, ended);
	/* the HELLO claims a push that the server does not have: without this claim, the server
	 * would only answer BYE again */
	struct msg m = fixture_resume(ended, 1, 0), one = fixture_push_ones(ended, 1);
	memcpy(m.hello.owner, KEY_BAD, sizeof(KEY_BAD));
	m.hello.name[0] = 'd';
	fixture_message(&f, 27, &m);
	assert_non_null(fixture_sent(&f, 27, MSG_WELCOME));
	fixture_applied(&f, 27, &one);
	fixture_bye(&f, 27, ended);
	m.hello.last_seq = 2;
	exclude_with_nan(&f, "a", KEY_BAD);
	exclude_with_nan(&f, "a", KEY_BAD);
	exclude_with_nan(&f, "a", KEY_BAD);
	fixture_message(&f, 27, &m);
	fixture_refused(&f, 27, PS_EQUARANTINE);
	fixture_close(&f);
}

/* With --accept-rollback a worker may claim a session that the server has lost. */
TEST(a_claim_of_lost_state_does_not_evade_quarantine)
{
	struct core_config cfg = without_disk();
	struct core_fixture f;

	cfg.sessions.accept_rollback = 1;
	cfg.term = 5;
	fixture_open(&f, cfg);
	struct stamp good = fixture_join(&f, 8, "good");
	push_well(&f, 8, good, 1);
	for (int i = 0; i < 3; i++)
		exclude_with_nan(&f, "bad", "");
	struct stamp claim = {.run = cfg.run, .term = 4, .worker = 3, .incarnation = 1};
	struct msg m = fixture_resume(claim, 1, 1);
	memcpy(m.hello.name, "bad", 4);
	fixture_message(&f, 17, &m);
	fixture_refused(&f, 17, PS_EQUARANTINE);
	memcpy(m.hello.name, "new", 4);
	fixture_message(&f, 17, &m);
	assert_non_null(fixture_sent(&f, 17, MSG_WELCOME));
	fixture_close(&f);
}

TEST(a_restart_keeps_the_quarantine_and_its_end)
{
	struct core_fixture f;

	open_with_good(&f);
	assert_int_equal(snapshot_size(f.core, SNAPSHOT_QUARANTINE), 0);
	exclude_with_nan(&f, "bad", KEY_BAD);
	fixture_restart(&f);
	exclude_with_nan(&f, "bad", KEY_BAD);
	exclude_with_nan(&f, "bad", KEY_BAD);
	fixture_restart(&f);
	assert_quarantined(&f, "bad", KEY_BAD);
	send_release(&f, KEY_BAD);
	assert_non_null(fixture_sent(&f, 20, MSG_ADMIN));
	fixture_restart(&f);
	join_under_key(&f, 9, "bad", KEY_BAD);
	assert_int_equal(snapshot_size(f.core, SNAPSHOT_QUARANTINE), 0);
	fixture_close(&f);
}

/* An admin that ends a quarantine gets the answer at once. The snapshot that contains the end of
 * the quarantine begins at once, too. */
TEST(a_release_is_saved_at_once)
{
	struct core_fixture f;

	open_with_good(&f);
	for (int i = 0; i < 3; i++)
		exclude_with_nan(&f, "bad", "");
	struct core_snapshot snapshot = fixture_save(&f);
	fixture_close(&f);
	fixture_load(&f, fixture_config(), &snapshot);
	fixture_tick(&f, 1);
	while (f.saving)
		fixture_durable(&f);
	send_release(&f, "bad");
	assert_non_null(fixture_sent(&f, 20, MSG_ADMIN));
	assert_int_equal(fixture_count(&f, EFFECT_COMMIT), 1);
	assert_int_equal(fixture_count(&f, EFFECT_SNAPSHOT), 1);
	fixture_close(&f);
	fixture_drop(&snapshot);
}

TEST(a_snapshot_with_an_impossible_quarantine_is_refused)
{
	struct core_config cfg = without_disk();
	struct core_fixture f;
	const char *why;

	open_with_good(&f);
	exclude_with_nan(&f, "bad", "");
	struct core_snapshot snapshot = fixture_save(&f);
	unsigned char *section = snapshot.data[SNAPSHOT_QUARANTINE];
	size_t size = snapshot.size[SNAPSHOT_QUARANTINE];
	const size_t bad[] = {0, 8 + sizeof(((struct quarantine_entry *)0)->owner), size - 8};
	const unsigned char to[] = {MAX_QUARANTINE + 1, 0, 0};

	fixture_close(&f);
	assert_true(size > 8);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		unsigned char old = section[bad[i]];

		/* bad values: too many entries, an entry without a name, an entry without an
		 * exclusion */
		section[bad[i]] = to[i];
		assert_int_equal(fixture_read(&f, cfg, &snapshot, &why), PS_ECHECKPOINT);
		fixture_close(&f);
		section[bad[i]] = old;
	}
	snapshot.size[SNAPSHOT_QUARANTINE]--;
	assert_int_equal(fixture_read(&f, cfg, &snapshot, &why), PS_ECHECKPOINT);
	fixture_close(&f);
	/* a checkpoint of an older release lacks the section */
	snapshot.size[SNAPSHOT_QUARANTINE] = 0;
	assert_int_equal(fixture_read(&f, cfg, &snapshot, &why), PS_OK);
	assert_int_equal(f.core->quarantine.n, 0);
	fixture_close(&f);
	fixture_drop(&snapshot);
}

TEST(a_snapshot_with_two_entries_for_one_worker_is_refused)
{
	struct core_config cfg = without_disk();
	struct core_fixture f;
	const char *why;

	open_with_good(&f);
	exclude_with_nan(&f, "bad", "");
	f.core->quarantine.entry[1] = f.core->quarantine.entry[0];
	f.core->quarantine.n = 2;
	struct core_snapshot snapshot = fixture_save(&f);
	fixture_close(&f);
	assert_int_equal(fixture_read(&f, cfg, &snapshot, &why), PS_ECHECKPOINT);
	fixture_close(&f);
	fixture_drop(&snapshot);
}

TEST(a_worker_has_one_entry)
{
	struct quarantine q = {0};

	assert_int_equal(quarantine_count(&q, "", ""), 0);
	assert_int_equal(q.n, 0);
	assert_int_equal(quarantine_count(&q, "", "a"), 1);
	/* counts from 1, because this worker has another key */
	assert_int_equal(quarantine_count(&q, "k", "a"), 1);
	assert_int_equal(quarantine_count(&q, "k", "b"), 2);
	assert_int_equal(q.n, 2);
	assert_int_equal(quarantine_count(&q, "k", "a"), 3);
	assert_true(quarantine_has(&q, "k", ""));
	assert_false(quarantine_has(&q, "", "a"));
	assert_false(quarantine_has(&q, "", ""));
	assert_int_equal(quarantine_release(&q, ""), 0);
	assert_int_equal(quarantine_release(&q, "a"), 1);
	assert_int_equal(q.n, 1);
	assert_string_equal(q.entry[0].owner, "");
}

/* If the server has no keys, a worker that invents names does not end the quarantine of others. */
TEST(a_full_list_drops_the_fewest_exclusions)
{
	struct quarantine q = {0};
	char name[16];

	for (int i = 0; i < 3; i++)
		quarantine_count(&q, "", "bad");
	quarantine_count(&q, "", "twice");
	quarantine_count(&q, "", "twice");
	for (int i = 0; i < 1000; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		quarantine_count(&q, "", name);
		assert_true(q.n <= MAX_QUARANTINE);
	}
	assert_int_equal(q.n, MAX_QUARANTINE);
	assert_true(quarantine_has(&q, "", "bad"));
	assert_int_equal(quarantine_count(&q, "", "twice"), 3);
	assert_string_equal(q.entry[MAX_QUARANTINE - 1].name, "n999");
}
