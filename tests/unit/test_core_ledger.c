/*
 * Proves the invariants numbered in server/core/ledger.c: each seq is decided once and in order, a
 * duplicate gets the first decision, and a rejected push uses up its seq and changes nothing else.
 */
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"
#include <math.h>

/* ---- seq ------------------------------------------------------------------------------------ */

TEST(a_duplicate_gets_the_first_verdict_and_version_and_is_applied_once)
{
	struct core_fixture f;
	struct stamp s;
	struct msg m, bad;
	struct msg_ack a;

	fixture_open(&f, fixture_config());
	s = fixture_join(&f, 9, "");
	m = fixture_push_ones(s, 1);
	a = fixture_acked(&f, 9, &m);
	assert_int_equal(a.version, 1);
	assert_int_equal(a.term, f.cfg.term);
	bad = fixture_push_ones(s, 2);
	bad.push.loss = NAN;
	fixture_rejected(&f, 9, &bad, REJECT_NONFINITE);
	m.push.seq = 3;
	fixture_applied(&f, 9, &m);
	for (int i = 0; i < 3; i++) {
		m.push.seq = 1;
		a = fixture_acked(&f, 9, &m);
		assert_int_equal(a.verdict, VERDICT_OK);
		assert_int_equal(a.duplicate, 1);
		/* the version after this push, although the current version is 2 */
		assert_int_equal(a.version, 1);
		m.push.seq = 2; /* a valid gradient with a seq that was rejected */
		a = fixture_acked(&f, 9, &m);
		assert_int_equal(a.verdict, VERDICT_REJECTED);
		assert_int_equal(a.reject, REJECT_NONFINITE);
		assert_int_equal(a.duplicate, 1);
		assert_int_equal(a.version, 1);
	}
	assert_true(core_weights(f.core)[0] == -2.0f);
	assert_int_equal(core_stats(f.core)->version, 2);
	assert_int_equal(core_stats(f.core)->pushes, 3);
	assert_int_equal(core_stats(f.core)->duplicates, 6);
	assert_int_equal(fixture_worker(&f, 1).last_seq, 3);
	fixture_close(&f);
}

TEST(a_gap_is_refused_with_the_seq_that_is_missing)
{
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	fixture_open(&f, fixture_config());
	s = fixture_join(&f, 9, "");
	m = fixture_push_ones(s, 2);
	fixture_message(&f, 9, &m);
	fixture_refused(&f, 9, PS_EGAP);
	assert_int_equal(fixture_sent(&f, 9, MSG_ERROR)->error.expected, 1);
	m.push.seq = 1;
	fixture_applied(&f, 9, &m);
	for (uint64_t seq = 3; seq; seq = seq == 3 ? UINT64_MAX : 0) {
		m.push.seq = seq;
		fixture_message(&f, 9, &m);
		fixture_refused(&f, 9, PS_EGAP);
		assert_int_equal(fixture_sent(&f, 9, MSG_ERROR)->error.expected, 2);
	}
	assert_int_equal(core_stats(f.core)->gaps, 3);
	assert_int_equal(core_stats(f.core)->version, 1);
	assert_int_equal(fixture_worker(&f, 1).last_seq, 1);
	fixture_close(&f);
}

TEST(seq_zero_is_no_seq)
{
	struct core_fixture f;
	struct msg m;

	fixture_open(&f, fixture_config());
	m = fixture_push_ones(fixture_join(&f, 9, ""), 0);
	fixture_message(&f, 9, &m);
	fixture_refused(&f, 9, PS_EPROTO);
	assert_int_equal(core_stats(f.core)->version, 0);
	fixture_close(&f);
}

TEST(a_duplicate_older_than_the_window_is_unknown_and_not_applied)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s;
	struct msg_ack a;

	cfg.sessions.replay_window = 4;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	for (uint64_t seq = 1; seq <= 10; seq++) {
		struct msg m = fixture_push_ones(s, seq);

		fixture_applied(&f, 9, &m);
		if (f.saving)
			fixture_durable(&f);
	}
	for (uint64_t seq = 1; seq <= 10; seq++) {
		struct msg m = fixture_push_ones(s, seq);

		a = fixture_acked(&f, 9, &m);
		assert_int_equal(a.duplicate, 1);
		assert_int_equal(a.verdict, seq <= 6 ? VERDICT_REJECTED : VERDICT_OK);
		assert_int_equal(a.reject, seq <= 6 ? REJECT_UNKNOWN : REJECT_NONE);
		assert_int_equal(a.version, seq <= 6 ? 0 : seq);
	}
	assert_int_equal(core_stats(f.core)->version, 10);
	fixture_close(&f);
}

/* The snapshot of a server with a small replay window contains fewer decisions than the window of
 * the next server can hold. */
TEST(after_the_window_grows_what_was_forgotten_stays_unknown)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s;
	struct msg m;
	struct msg_ack a;

	cfg.sessions.replay_window = 4;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	for (uint64_t seq = 1; seq <= 10; seq++) {
		m = fixture_push_ones(s, seq);
		fixture_applied(&f, 9, &m);
		if (f.saving)
			fixture_durable(&f);
	}
	f.cfg.sessions.replay_window = 64;
	fixture_restart(&f);
	s = fixture_come_back(&f, 9, s, 10);
	for (uint64_t seq = 5; seq <= 8; seq++) {
		m = fixture_push_ones(s, seq);
		a = fixture_acked(&f, 9, &m);
		assert_int_equal(a.verdict, seq <= 6 ? VERDICT_REJECTED : VERDICT_OK);
		assert_int_equal(a.reject, seq <= 6 ? REJECT_UNKNOWN : REJECT_NONE);
	}
	fixture_close(&f);
}

/* Three workers push over a network that repeats and drops messages. The test counts how many
 * pushes the core must have applied. */
TEST(any_order_of_arrival_applies_each_push_once)
{
	const uint64_t seed = 41;
	struct core_config cfg = fixture_config();
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	struct core_fixture f;
	struct stamp s[3];
	uint64_t last[3] = {0}, version_of[3][200] = {{0}}, version = 0;

	print_message("seed %llu\n", (unsigned long long)seed);
	cfg.n_params = 600;
	cfg.sessions.replay_window = 256;
	fixture_open(&f, cfg);
	for (uint32_t w = 0; w < 3; w++)
		s[w] = fixture_join(&f, 9 + w, "");
	for (int i = 0; i < 100000 && last[0] + last[1] + last[2] < 3 * 199; i++) {
		uint32_t w = (uint32_t)rng_below(&r, 3), peer = 9 + w;
		uint64_t seq = 1 + rng_below(&r, last[w] + 3 < 199 ? last[w] + 3 : 199);
		struct msg m = fixture_push(s[w], seq);

		fixture_slice(&m, w * 200 + seq, 1, fixture_ones);
		fixture_message(&f, peer, &m);
		if (seq > last[w] + 1) {
			assert_int_equal(
				fixture_sent(&f, peer, MSG_ERROR)->error.expected, last[w] + 1);
		} else {
			const struct msg_ack *a = &fixture_sent(&f, peer, MSG_ACK)->ack;

			assert_int_equal(a->duplicate, seq <= last[w]);
			if (seq == last[w] + 1) {
				version_of[w][seq] = ++version;
				last[w] = seq;
			}
			assert_int_equal(a->version, version_of[w][seq]);
		}
		if (f.saving)
			fixture_durable(&f);
	}
	for (uint32_t i = 0; i < 600; i++)
		assert_true(core_weights(f.core)[i] == (i % 200 == 0 ? 0.0f : -1.0f));
	fixture_close(&f);
}

/* ---- staleness ------------------------------------------------------------------------------ */

TEST(a_push_older_than_max_staleness_is_rejected)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct worker_view v;
	struct stamp s;
	struct msg m;

	cfg.limits.max_staleness = 3;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	for (uint64_t seq = 1; seq <= 4; seq++) {
		m = fixture_push(s, seq);
		m.push.base_version = seq - 1;
		fixture_applied(&f, 9, &m);
	}
	m = fixture_push(s, 5);
	/* stale: the version is 4, and the base version 0 */
	fixture_rejected(&f, 9, &m, REJECT_STALE);
	m = fixture_push(s, 6);
	m.push.base_version = 1;
	fixture_applied(&f, 9, &m);
	/* rejected as stale: no server can have sent version 1000 */
	m = fixture_push(s, 7);
	m.push.base_version = 1000;
	fixture_rejected(&f, 9, &m, REJECT_STALE);
	m = fixture_push(s, 8);
	m.push.base_version = UINT64_MAX;
	/* the worker has joined in this term, so it cannot have weights of an older term */
	m.push.base_term = f.cfg.term - 1;
	fixture_rejected(&f, 9, &m, REJECT_STALE);
	/* The push is allowed if the worker joined before a crash: perhaps the server has not
	 * reached this version again. */
	f.core->worker[0].session.born_term = f.cfg.term - 1;
	f.core->store.first_version = f.core->store.version;
	m = fixture_push(s, 9);
	m.push.base_version = 1000;
	m.push.base_term = f.cfg.term - 1;
	fixture_applied(&f, 9, &m);
	assert_int_equal(core_stats(f.core)->staleness_sum, 3);
	assert_int_equal(core_stats(f.core)->staleness[0], 5);
	/* this counter is for a staleness of 2 or 3 */
	assert_int_equal(core_stats(f.core)->staleness[2], 1);
	fixture_message(&f, 9, &m); /* the same push again */
	core_worker(f.core, 0, &v);
	assert_int_equal(v.counts.pushes, 9);
	assert_int_equal(v.counts.rejected, 3);
	assert_int_equal(v.counts.duplicates, 1);
	assert_int_equal(v.counts.async_pushes, 6);
	assert_int_equal(v.counts.staleness_sum, 3);
	assert_int_equal(v.counts.refused, 0);
	m.push.seq = 0;
	fixture_message(&f, 9, &m);
	core_worker(f.core, 0, &v);
	assert_int_equal(v.counts.refused, 1);
	fixture_close(&f);
}

TEST(by_default_staleness_is_32_for_each_live_worker)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s = {0};

	cfg.limits.max_staleness = 0;
	fixture_open(&f, cfg);
	for (uint64_t live = 1, seq = 0; live <= 3; live++) {
		uint64_t bound = 32 * live;
		struct msg m;

		if (live == 1)
			s = fixture_join(&f, 9, "");
		else
			fixture_join(&f, 9 + (uint32_t)live, "");
		for (int i = 0; i < 100; i++) {
			m = fixture_push(s, ++seq);
			m.push.base_version = core_stats(f.core)->version;
			fixture_applied(&f, 9, &m);
			if (f.saving)
				fixture_durable(&f);
		}
		m = fixture_push(s, ++seq);
		m.push.base_version = core_stats(f.core)->version - bound - 1;
		fixture_rejected(&f, 9, &m, REJECT_STALE);
		m = fixture_push(s, ++seq);
		m.push.base_version = core_stats(f.core)->version - bound;
		fixture_applied(&f, 9, &m);
	}
	fixture_close(&f);
}

/* ---- replays -------------------------------------------------------------------------------- */

TEST(a_replay_is_decided_as_it_was_before_the_crash)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	cfg.limits.max_staleness = 1;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	for (uint64_t seq = 1; seq <= 4; seq++) {
		m = fixture_push(s, seq);
		m.push.base_version = seq - 1;
		fixture_applied(&f, 9, &m);
	}
	f.core->worker[0].ledger.replay_target =
		8; /* as after HELLO of a resumed session with this last_seq */
	/* the push was accepted before the crash, so it is not stale now */
	m = fixture_push_ones(s, 5);
	m.push.verdict = VERDICT_OK;
	fixture_applied(&f, 9, &m);
	/* the worker has no ACK of this push, so the core decides it like a new push */
	m = fixture_push_ones(s, 6);
	fixture_rejected(&f, 9, &m, REJECT_STALE);
	/* the push was rejected before the crash, so it is rejected now, although it is valid */
	m = fixture_push_ones(s, 7);
	m.push.base_version = 5;
	m.push.verdict = VERDICT_REJECTED;
	m.push.reject = REJECT_NORM;
	fixture_rejected(&f, 9, &m, REJECT_NORM);
	/* rejected although it was accepted before the crash, because NaN is never accepted */
	m = fixture_push(s, 8);
	m.push.verdict = VERDICT_OK;
	m.push.loss = NAN;
	fixture_rejected(&f, 9, &m, REJECT_NONFINITE);
	assert_true(core_weights(f.core)[0] == -1.0f);
	fixture_close(&f);
}

#define REPLAYED 12 /* number of pushes of each of the two workers */

static struct msg one_of_two(struct stamp s, uint64_t seq, uint64_t base, uint64_t term)
{
	struct msg m = fixture_push_ones(s, seq);

	m.push.base_version = base;
	m.push.base_term = term;
	return m;
}

/* Two workers push in turns, and each gradient is one version old. After that, a crash loses all
 * pushes. The first worker sends all of its pushes again before the second does. Each push must
 * change the weights as much as before the crash. */
static void replays_count_as_before(enum staleness_scaling staleness, enum lr_scaling scaling)
{
	struct core_config cfg = fixture_config();
	struct core_snapshot image;
	struct core_fixture f;
	struct stamp s[2];
	float before;

	cfg.rate.staleness_scaling = staleness;
	cfg.rate.scaling = scaling;
	fixture_open(&f, cfg);
	for (uint32_t i = 0; i < 2; i++)
		s[i] = fixture_join(&f, 9 + i, "");
	image = fixture_save(&f);
	for (uint64_t n = 0; n < (uint64_t)2 * REPLAYED; n++) {
		struct msg m = one_of_two(s[n % 2], 1 + n / 2, n > 0 ? n - 1 : 0, s[0].term);

		fixture_applied(&f, 9 + n % 2, &m);
	}
	before = core_weights(f.core)[0];
	fixture_close(&f);
	fixture_load(&f, cfg, &image);
	fixture_drop(&image);
	for (uint64_t n = 0; n < (uint64_t)2 * REPLAYED; n++) {
		uint32_t i = n >= REPLAYED;
		uint64_t seq = 1 + n % REPLAYED, push = 2 * (seq - 1) + i;

		if (seq == 1)
			s[i] = fixture_come_back(&f, 9 + i, s[i], REPLAYED);
		struct msg m = one_of_two(s[i], seq, push ? push - 1 : 0, s[i].term - 1);
		m.push.verdict = VERDICT_OK;
		fixture_applied(&f, 9 + i, &m);
	}
	assert_true(fabsf(core_weights(f.core)[0] - before) < 0.05f * fabsf(before));
	fixture_close(&f);
}

TEST(replays_of_several_workers_count_as_before_the_crash)
{
	replays_count_as_before(STALE_CONSTANT, LR_SCALING_NONE);
	replays_count_as_before(STALE_INVERSE, LR_SCALING_NONE);
	replays_count_as_before(STALE_RELATIVE, LR_SCALING_NONE);
	replays_count_as_before(STALE_RELATIVE, LR_SCALING_SQRT);
}

/* ---- durability ----------------------------------------------------------------------------- */

TEST(ack_says_durable_only_what_a_finished_snapshot_holds)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	/* the core begins a snapshot at push 3, which is before the replay window of 6 pushes is
	 * full */
	cfg.sessions.replay_window = 6;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	for (uint64_t seq = 1; seq <= 5; seq++) {
		m = fixture_push(s, seq);
		assert_int_equal(fixture_acked(&f, 9, &m).durable_seq, 0);
		/* the snapshot begins at push 3 */
		assert_int_equal(f.saving != 0, seq >= 3);
	}
	fixture_durable(&f);
	/* 3, because pushes 4 and 5 arrived after the snapshot had begun */
	assert_int_equal(fixture_worker(&f, 1).durable_seq, 3);
	m = fixture_push(s, 6);
	assert_int_equal(fixture_acked(&f, 9, &m).durable_seq, 3);
	fixture_close(&f);
}

TEST(without_a_disk_all_is_durable_at_once)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct msg m;

	cfg.durable = 0;
	fixture_open(&f, cfg);
	m = fixture_push(fixture_join(&f, 9, ""), 1);
	assert_int_equal(fixture_acked(&f, 9, &m).durable_seq, 1);
	assert_int_equal(fixture_count(&f, EFFECT_SNAPSHOT), 0);
	fixture_close(&f);
}

/* ---- a push that also pulls ----------------------------------------------------------------- */

static const struct msg_params *weights_for(const struct core_fixture *f, uint64_t request)
{
	const struct msg *m = fixture_sent(f, 9, MSG_PARAMS);

	assert_non_null(m);
	assert_int_equal(m->params.request, request);
	assert_int_equal(m->params.which, WEIGHTS_CURRENT);
	assert_ptr_equal(m->params.slices.slice[0].data, core_weights(f->core));
	return &m->params;
}

TEST(a_push_that_asks_gets_the_weights_after_its_decision_whatever_that_is)
{
	struct core_fixture f;
	struct msg m, bad;

	fixture_open(&f, fixture_config());
	m = fixture_push_ones(fixture_join(&f, 9, ""), 1);
	m.push.pull = 70;
	fixture_applied(&f, 9, &m);
	assert_int_equal(weights_for(&f, 70)->version, 1);
	assert_true(core_weights(f.core)[0] == -1.0f);
	/* the core must not apply a repeated push again */
	assert_int_equal(fixture_acked(&f, 9, &m).duplicate, 1);
	/* the worker still gets an answer with weights */
	assert_int_equal(weights_for(&f, 70)->version, 1);
	bad = m;
	bad.push.seq = 2;
	bad.push.pull = 71;
	bad.push.loss = NAN;
	fixture_rejected(&f, 9, &bad, REJECT_NONFINITE);
	assert_int_equal(weights_for(&f, 71)->version, 1);
	m.push.seq = 5;
	fixture_message(&f, 9, &m);
	fixture_refused(&f, 9, PS_EGAP); /* no PARAMS: the worker must send the push again */
	m.push.seq = 3;
	m.push.pull = 0;
	fixture_applied(&f, 9, &m);
	assert_null(fixture_sent(&f, 9, MSG_PARAMS));
	assert_int_equal(core_stats(f.core)->pulls, 3);
	fixture_close(&f);
}
