/*
 * test_core_rights.c - a worker cannot deliver work that it was not granted, nor claim decisions
 * that the server did not make (server/core/rights.h).
 * Covers attacks A7 and A14 of docs/faults.md.
 */
#include <math.h>
#include "server/core/rights.h"
#include "server/core/run.h"
#include "common/siphash.h"
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

static struct core_config with_key(struct core_config cfg)
{
	cfg.proof_key[0] = 0x0706050403020100;
	cfg.proof_key[1] = 0x0f0e0d0c0b0a0908;
	return cfg;
}

/* Returns a push with all batches of the grant `g`, and with its code. */
static struct msg push_of_grant(struct stamp s, uint64_t seq, const struct msg_grant *g)
{
	struct msg m = fixture_batch(s, seq, g->work.epoch, g->work.first, g->work.count);

	m.push.grant_first = g->work.first;
	m.push.grant_count = g->work.count;
	m.push.grant_code = g->code;
	return m;
}

TEST(siphash_is_that_of_the_paper)
{
	/* the test vector for the bytes 0 to 7 in the reference implementation of SipHash */
	const uint64_t key[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908}, word = 0x0706050403020100;
	struct core_fixture f;

	assert_int_equal(siphash(key, &word, 1), 0x93f5f5799a932462);
	fixture_open(&f, with_key(fixture_training()));
	fixture_close(&f);
}

TEST(a_run_cannot_be_forged_by_pushes_without_leases)
{
	struct core_fixture f;
	struct stamp a, b;
	struct msg m;

	fixture_open(&f, with_key(fixture_training()));
	a = fixture_join(&f, 9, "a");
	b = fixture_join(&f, 10, "b");
	struct msg_grant own = fixture_train(&f, 10, b, 1);
	/* rejected, because the server has granted nothing to worker a */
	m = fixture_batch(a, 1, 0, 0, 1);
	fixture_rejected(&f, 9, &m, REJECT_WORK);
	m = push_of_grant(a, 2, &own); /* rejected, because this is the grant of another worker */
	fixture_rejected(&f, 9, &m, REJECT_WORK);
	m = fixture_batch(a, 3, 0, 0, 1);
	/* worker a claims a grant of four batches, with the code of another grant */
	m.push.grant_count = 4;
	m.push.grant_code = own.code;
	fixture_rejected(&f, 9, &m, REJECT_WORK);
	struct msg_grant mine = fixture_train(&f, 9, a, 1);
	/* rejected, because the push has one batch more than the grant */
	m = fixture_batch(a, 4, 0, mine.work.first, mine.work.count + 1);
	fixture_rejected(
		&f, 9, &m, mine.work.first + mine.work.count < 4 ? REJECT_WORK : REJECT_SHAPE);
	m = push_of_grant(a, 5, &mine);
	fixture_applied(&f, 9, &m);
	m = push_of_grant(b, 1, &own);
	fixture_applied(&f, 10, &m);
	fixture_close(&f);
}

/* A worker may deliver the work of a grant that has ended, even if the worker has a newer grant. */
TEST(late_results_of_an_ended_grant_count)
{
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	fixture_open(&f, with_key(fixture_training()));
	s = fixture_join(&f, 9, "");
	struct msg_grant first = fixture_train(&f, 9, s, 1);
	/* pretend that the newest grant has other batches */
	f.core->worker[0].lease.grant.work.first = 3;
	f.core->worker[0].lease.grant.work.count = 1;
	m = push_of_grant(s, 1, &first);
	fixture_applied(&f, 9, &m);
	fixture_close(&f);
}

/* In this test a crash has lost the server's grant and its decision. */
TEST(after_a_crash_the_server_knows_its_grants_and_decisions)
{
	struct core_config cfg = with_key(fixture_training());
	struct core_snapshot snapshot;
	struct core_fixture f;
	struct stamp s;
	struct msg one, two, forged;

	cfg.limits.max_staleness = 1;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	snapshot = fixture_save(&f);
	struct msg_grant g = fixture_train(&f, 9, s, 1);
	assert_int_not_equal(g.code, 0);
	one = push_of_grant(s, 1, &g);
	one.push.work.count = 1;
	one.push.images = 10;
	const struct msg_ack ack = fixture_acked(&f, 9, &one);
	assert_int_equal(ack.verdict, VERDICT_OK);
	two = push_of_grant(s, 2, &g);
	two.push.work = (struct work){0, g.work.first + 1, 1};
	two.push.images = 10;
	fixture_close(&f);

	fixture_load(&f, cfg, &snapshot);
	fixture_drop(&snapshot);
	assert_memory_equal(core_config(f.core)->proof_key, cfg.proof_key, sizeof(cfg.proof_key));
	s = fixture_come_back(&f, 9, s, 2);
	one.push.stamp = two.push.stamp = s;
	one.push.verdict = ack.verdict;
	one.push.code = ack.code;
	forged = one;
	forged.push.grant_code = 0;
	/* the forged push has a batch that the server has granted to another worker */
	forged.push.work.first += forged.push.work.first ? -1u : 1u;
	assert_int_equal(rights_of_replay(f.core, &f.core->worker[0], &one.push), 1);
	assert_int_equal(rights_of_replay(f.core, &f.core->worker[0], &forged.push), 0);
	one.push.grant_code = 0; /* the code of the decision alone proves the push */
	fixture_applied(&f, 9, &one);
	/* the worker has no ACK of this push, so the code of the grant proves it */
	fixture_applied(&f, 9, &two);
	fixture_close(&f);
}

/* Pushes the gradient 1, 1, ... of a granted batch, and starts the server again from an older
 * snapshot. Returns the push as the worker must replay it. Writes the value that the first weight
 * had after the push to *weight. */
static struct msg lose_accepted_push(struct core_fixture *f, struct core_config cfg, float *weight)
{
	struct core_snapshot snapshot;
	struct stamp s;

	fixture_open(f, cfg);
	s = fixture_join(f, 9, "");
	snapshot = fixture_save(f);
	struct msg_grant g = fixture_train(f, 9, s, 1);
	struct msg one = push_of_grant(s, 1, &g);
	const struct msg_ack ack = fixture_acked(f, 9, &one);
	assert_int_equal(ack.verdict, VERDICT_OK);
	*weight = core_weights(f->core)[0];
	fixture_close(f);

	fixture_load(f, cfg, &snapshot);
	fixture_drop(&snapshot);
	one.push.stamp = fixture_come_back(f, 9, s, 1);
	one.push.verdict = ack.verdict;
	one.push.code = ack.code;
	return one;
}

TEST(a_replay_moves_no_further_than_the_accepted_push)
{
	static const float size[] = {-1e12f, -3, 1.1f, 1};
	struct core_config cfg = with_key(fixture_training());

	cfg.limits.norm_ratio = 4;
	for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++) {
		struct core_fixture f;
		float accepted, g[FIXTURE_PARAMS];
		struct msg one = lose_accepted_push(&f, cfg, &accepted);
		float begin = core_weights(f.core)[0];

		for (size_t k = 0; k < FIXTURE_PARAMS; k++)
			g[k] = size[i];
		one.push.slices.n = 0; /* the replay may have other slices */
		fixture_slice(&one, 0, 3, g);
		fixture_slice(&one, 3, FIXTURE_PARAMS - 3, g + 3);
		fixture_applied(&f, 9, &one);
		float moved = fabsf(core_weights(f.core)[0] - begin);
		assert_true(moved <= 1.02f * fabsf(accepted - begin));
		assert_true(moved >= fabsf(accepted - begin));
		if (i == 3) /* gradient 3 is the accepted one */
			assert_true(core_weights(f.core)[0] == accepted);
		fixture_close(&f);
	}
}

/* The first bits of the code of an accepted push are the norm with which its gradient moved the
 * weights (rights.h). With another norm, the code is not valid. */
TEST(the_norm_in_a_code_is_authenticated)
{
	struct core_config cfg = with_key(fixture_training());
	struct core_fixture f;
	float accepted;

	cfg.limits.norm_ratio = 4;
	struct msg one = lose_accepted_push(&f, cfg, &accepted);
	assert_int_equal(rights_of_replay(f.core, &f.core->worker[0], &one.push), 1);
	for (unsigned bit = 48; bit < 64; bit++) {
		struct msg_push forged = one.push;

		forged.code ^= UINT64_C(1) << bit;
		assert_int_equal(rights_of_replay(f.core, &f.core->worker[0], &forged), 0);
	}
	fixture_close(&f);
}

/* A run of two workers begins, and the first worker delivers a batch. Then the server crashes and
 * starts from a snapshot that is older than the beginning of the run. Returns the replay of the
 * push; the first worker has not come back yet. */
static struct msg lose_beginning(struct core_fixture *f)
{
	struct core_config cfg = with_key(fixture_training());
	struct core_snapshot snapshot;
	struct stamp s;

	cfg.leases.min_workers = 2;
	cfg.leases.max_batches = 1;
	fixture_open(f, cfg);
	s = fixture_join(f, 9, "a");
	snapshot = fixture_save(f);
	(void)fixture_join(f, 10, "b");
	struct msg_grant g = fixture_train(f, 9, s, 1);
	struct msg one = push_of_grant(s, 1, &g);
	const struct msg_ack ack = fixture_acked(f, 9, &one);
	assert_int_equal(ack.verdict, VERDICT_OK);
	fixture_close(f);

	fixture_load(f, cfg, &snapshot);
	fixture_drop(&snapshot);
	one.push.verdict = ack.verdict;
	one.push.code = ack.code;
	return one;
}

/* The snapshot is from before the run began, and one of its two workers does not come back. The
 * replay of an accepted push proves that the run had begun. */
TEST(a_replay_begins_the_run_again)
{
	struct core_fixture f;
	struct msg one = lose_beginning(&f);
	struct stamp s = fixture_come_back(&f, 9, one.push.stamp, 1);

	one.push.stamp = s;
	assert_int_equal(run_has_begun(f.core), 0);
	fixture_applied(&f, 9, &one);
	assert_int_equal(run_has_begun(f.core), 1);
	assert_int_equal(fixture_train(&f, 9, s, 2).work.count, 1);
	fixture_close(&f);
}

/* After a crash, a worker comes back with another data set. The codes of its accepted push do not
 * hold for this data set, so its replay neither counts nor fixes the data set of the run. */
TEST(a_replay_proves_nothing_for_other_data)
{
	struct core_fixture f;
	struct msg one = lose_beginning(&f), hello = fixture_resume(one.push.stamp, 1, 0);

	hello.hello.data.xxh3++;
	fixture_message(&f, 9, &hello);
	one.push.stamp = fixture_sent(&f, 9, MSG_WELCOME)->welcome.stamp;
	/* until the recovery is over, the server does not decide a push without a valid code */
	fixture_tick(&f, f.cfg.sessions.recovery_ms);
	fixture_rejected(&f, 9, &one, REJECT_WORK);
	assert_int_equal(f.core->dataset.fixed, 0);
	assert_int_equal(run_has_begun(f.core), 0);
	fixture_close(&f);
}

/* Two workers have the right to deliver the same batch. The server has accepted the push of worker
 * a, and a crash has lost this decision. Worker b comes back first and pushes the batch. The server
 * does not decide the push of worker b until worker a has replayed the accepted push. */
TEST(a_new_push_does_not_take_the_place_of_an_accepted_one)
{
	struct core_config cfg = with_key(fixture_training());
	struct core_snapshot snapshot;
	struct core_fixture f;
	struct stamp a, b;
	struct msg stolen;

	fixture_open(&f, cfg);
	a = fixture_join(&f, 9, "a");
	b = fixture_join(&f, 10, "b");
	snapshot = fixture_save(&f);
	struct msg_grant g = fixture_train(&f, 9, a, 1);
	struct msg one = push_of_grant(a, 1, &g);
	const struct msg_ack ack = fixture_acked(&f, 9, &one);
	g.code = rights_of_grant(f.core, &f.core->worker[1], &g);
	stolen = push_of_grant(b, 1, &g);
	fixture_close(&f);

	fixture_load(&f, cfg, &snapshot);
	fixture_drop(&snapshot);
	stolen.push.stamp = fixture_come_back(&f, 10, b, 1);
	assert_int_equal(rights_to_push(f.core, &f.core->worker[1], &stolen.push), 1);
	fixture_message(&f, 10, &stolen);
	fixture_silent(&f);
	/* no answer: worker b must not leave before the server has decided this push */
	fixture_bye(&f, 10, stolen.push.stamp);
	fixture_silent(&f);
	one.push.stamp = fixture_come_back(&f, 9, a, 1);
	one.push.verdict = ack.verdict;
	one.push.code = ack.code;
	fixture_applied(&f, 9, &one);
	/* now the server requests the push of worker b again */
	assert_int_equal(fixture_sent(&f, 10, MSG_ERROR)->error.status, PS_EGAP);
	assert_null(fixture_sent(&f, 9, MSG_ERROR));
	fixture_rejected(&f, 10, &stolen, REJECT_WORK);
	fixture_close(&f);
}

/* If the worker of the accepted push does not come back, the other push counts when the recovery
 * ends. */
TEST(a_new_push_counts_after_the_recovery)
{
	struct core_config cfg = with_key(fixture_training());
	struct core_fixture f;
	struct stamp a;

	fixture_open(&f, cfg);
	a = fixture_join(&f, 9, "a");
	(void)fixture_join(&f, 10, "b");
	struct msg_grant g = fixture_train(&f, 9, a, 1);
	struct msg one = push_of_grant(a, 1, &g);
	fixture_restart(&f);
	one.push.stamp = fixture_come_back(&f, 9, a, 1);
	fixture_message(&f, 9, &one);
	fixture_silent(&f);
	fixture_tick(&f, f.cfg.sessions.recovery_ms);
	fixture_refused(&f, 9, PS_EGAP);
	fixture_applied(&f, 9, &one);
	fixture_close(&f);
}

/* Worker b has no codes, and its push waits for the end of the recovery. A LEASE that it sends
 * behind this push must not take the grant from it, because worker a would then get its batch. */
TEST(a_lease_does_not_overtake_a_push_that_waits)
{
	struct core_config cfg = with_key(fixture_training());
	struct core_fixture f;
	struct stamp a, b;

	fixture_open(&f, cfg);
	a = fixture_join(&f, 8, "a");
	b = fixture_join(&f, 9, "b");
	(void)fixture_join(&f, 10, "c");
	struct msg_grant g = fixture_train(&f, 9, b, 1);
	struct msg one = push_of_grant(b, 1, &g);
	one.push.grant_code = 0;
	fixture_restart(&f);
	a = fixture_come_back(&f, 8, a, 0);
	one.push.stamp = fixture_come_back(&f, 9, b, 1);
	fixture_message(&f, 9, &one);
	fixture_silent(&f);
	fixture_lease(&f, 9, one.push.stamp, 2);
	fixture_silent(&f);
	fixture_lease(&f, 8, a, 1);
	fixture_tick(&f, f.cfg.sessions.recovery_ms - 100);
	fixture_heartbeat(&f, 18, a);
	fixture_heartbeat(&f, 19, one.push.stamp);
	assert_int_equal(f.core->run.recovering, 1);
	fixture_tick(&f, 100);
	assert_int_equal(fixture_sent(&f, 9, MSG_ERROR)->error.status, PS_EGAP);
	fixture_heartbeat(&f, 18, a); /* in this step, worker a gets batches */
	assert_int_equal(f.core->worker[0].lease.grant.request, 1);
	fixture_applied(&f, 9, &one);
	fixture_lease(&f, 9, one.push.stamp, 2);
	assert_non_null(fixture_sent(&f, 9, MSG_GRANT));
	fixture_close(&f);
}

#define MEMBERS                                                                                    \
	3 /* number of workers of the next test; the last one sends gradients of norm 1000 */

/* Makes two steps of sync, with one push of each worker in each step. */
static void make_two_steps(
	struct core_fixture *f, struct stamp s[MEMBERS], struct msg push[2][MEMBERS], float end[2])
{
	for (uint32_t step = 0; step < 2; step++) {
		struct msg_grant g[MEMBERS];

		for (uint32_t i = 0; i < MEMBERS; i++)
			fixture_lease(f, 9 + i, s[i], 1 + step);
		for (uint32_t i = 0; i < MEMBERS; i++)
			g[i] = f->core->worker[i].lease.grant;
		for (uint32_t i = 0; i < MEMBERS; i++) {
			static float values[2][MEMBERS][FIXTURE_PARAMS];
			struct msg m = fixture_push(s[i], 1 + step);

			g[i].code = rights_of_grant(f->core, &f->core->worker[i], &g[i]);
			for (size_t k = 0; k < FIXTURE_PARAMS; k++)
				values[step][i][k] =
					(i == 2 ? -1000.0f : 1.0f) * (1 + 0.01f * (float)i);
			fixture_slice(&m, 0, FIXTURE_PARAMS, values[step][i]);
			m.push.work = g[i].work;
			m.push.images = 5;
			m.push.base_version = step;
			m.push.base_term = s[i].term;
			m.push.grant_first = g[i].work.first;
			m.push.grant_count = g[i].work.count;
			m.push.grant_code = g[i].code;
			const struct msg_ack ack = fixture_acked(f, 9 + i, &m);
			assert_int_equal(ack.reject, REJECT_NONE);
			m.push.verdict = ack.verdict;
			m.push.code = ack.code;
			push[step][i] = m;
		}
		assert_int_equal(core_stats(f->core)->version, step + 1);
		end[step] = core_weights(f->core)[0];
	}
}

/* In sync the gradients of a step are scaled when the step ends, after their ACKs. In this test a
 * crash has lost the first two steps, and a worker with huge gradients comes back first. */
TEST(replays_of_sync_move_no_further_than_the_accepted_pushes)
{
	struct core_config cfg = with_key(fixture_training());
	struct core_snapshot snapshot;
	struct core_fixture f;
	struct msg push[2][MEMBERS];
	struct stamp s[MEMBERS];
	float end[2];

	cfg.training.mode = MODE_SYNC;
	cfg.training.batch_size = 5;
	cfg.limits.norm_ratio = 4;
	cfg.leases.min_workers = MEMBERS;
	cfg.leases.max_batches = 1;
	fixture_open(&f, cfg);
	for (uint32_t i = 0; i < MEMBERS; i++)
		s[i] = fixture_join(&f, 9 + i, "");
	snapshot = fixture_save(&f);
	make_two_steps(&f, s, push, end);
	fixture_close(&f);

	fixture_load(&f, cfg, &snapshot);
	fixture_drop(&snapshot);
	float begin = core_weights(f.core)[0];
	s[2] = fixture_come_back(&f, 11, s[2], 2);
	for (uint32_t step = 0; step < 2; step++)
		push[step][2].push.stamp = s[2];
	assert_true(rights_norm(f.core, &f.core->worker[2], &push[1][2].push) <=
		    4.2 * sqrt(FIXTURE_PARAMS));
	fixture_applied(&f, 11, &push[0][2]);
	/* not decided yet, because this push would end the first step */
	fixture_message(&f, 11, &push[1][2]);
	fixture_silent(&f);
	assert_true(core_weights(f.core)[0] >= begin && core_weights(f.core)[0] <= begin);
	for (uint32_t i = 0; i < 2; i++) {
		push[0][i].push.stamp = push[1][i].push.stamp = s[i] =
			fixture_come_back(&f, 9 + i, s[i], 1);
		fixture_applied(&f, 9 + i, &push[0][i]);
	}
	assert_int_equal(core_stats(f.core)->version, 1);
	assert_true(fabsf(core_weights(f.core)[0] - end[0]) <= 0.02f * fabsf(end[0] - begin));
	/* now the first step has a yardstick, also for a worker that replays alone */
	s[2] = fixture_come_back(&f, 11, s[2], 2);
	push[1][2].push.stamp = s[2];
	fixture_applied(&f, 11, &push[1][2]);
	fixture_tick(&f, cfg.sessions.dead_ms);
	assert_int_equal(core_stats(f.core)->version, 2);
	assert_true(fabsf(core_weights(f.core)[0] - end[0]) <= 4.2f * cfg.rate.lr);
	fixture_close(&f);
}

#define FLEET   4  /* number of workers of the next test; the last one is hostile */
#define SAVED   2  /* number of steps that the checkpoint of the next test contains */
#define UNSAVED 20 /* number of later steps, which the server loses in a crash */

struct sync_fleet {
	struct core_fixture f;
	struct stamp s[FLEET];
	struct msg push[SAVED + UNSAVED][FLEET];
	float values[SAVED + UNSAVED][FLEET][FIXTURE_PARAMS];
};

static struct data_id many_images(void)
{
	struct data_id data = fixture_data;

	data.n_train = 1000;
	return data;
}

static void join_fleet(struct sync_fleet *t)
{
	for (uint32_t i = 0; i < FLEET; i++) {
		struct msg m = fixture_hello("");

		m.hello.data = many_images();
		fixture_message(&t->f, 9 + i, &m);
		t->s[i] = fixture_sent(&t->f, 9 + i, MSG_WELCOME)->welcome.stamp;
	}
}

static void come_back_to_fleet(struct sync_fleet *t, uint32_t i)
{
	struct msg m = fixture_resume(t->s[i], SAVED + UNSAVED, SAVED);

	m.hello.data = many_images();
	fixture_message(&t->f, 9 + i, &m);
	t->s[i] = fixture_sent(&t->f, 9 + i, MSG_WELCOME)->welcome.stamp;
}

/* Sets the gradient of a push to values of about `value`, which differ a little from those of all
 * other pushes, because the server rejects gradients that repeat. */
static void set_gradient(
	struct sync_fleet *t, uint32_t step, uint32_t i, struct msg *m, float value)
{
	float *g = t->values[step][i];

	for (size_t k = 0; k < FIXTURE_PARAMS; k++)
		g[k] = value * (1 + 1e-4f * (float)(step * FLEET + i));
	m->push.slices.n = 0;
	fixture_slice(m, 0, FIXTURE_PARAMS, g);
}

/* Lets all workers push a gradient of about 1 for step `step`, and ends the step. */
static void make_step_of_fleet(struct sync_fleet *t, uint32_t step)
{
	struct core *c = t->f.core;

	for (uint32_t i = 0; i < FLEET; i++)
		fixture_lease(&t->f, 9 + i, t->s[i], 1 + step);
	for (uint32_t i = 0; i < FLEET; i++) {
		const struct msg_grant g = c->worker[i].lease.grant;
		struct msg m = fixture_push(t->s[i], 1 + step);

		set_gradient(t, step, i, &m, 1);
		m.push.work = g.work;
		m.push.images = 1;
		m.push.base_version = step;
		m.push.base_term = t->s[i].term;
		m.push.grant_first = g.work.first;
		m.push.grant_count = g.work.count;
		m.push.grant_code = rights_of_grant(c, &c->worker[i], &g);
		const struct msg_ack ack = fixture_acked(&t->f, 9 + i, &m);
		assert_int_equal(ack.reject, REJECT_NONE);
		m.push.verdict = ack.verdict;
		m.push.code = ack.code;
		t->push[step][i] = m;
	}
	assert_int_equal(core_stats(c)->version, step + 1);
}

/* Worker `i` returns after the crash and replays its unsaved pushes, with gradients of about
 * `value`. */
static void replay_of_fleet(struct sync_fleet *t, uint32_t i, float value)
{
	come_back_to_fleet(t, i);
	for (uint32_t step = SAVED; step < SAVED + UNSAVED; step++) {
		struct msg *m = &t->push[step][i];

		m->push.stamp = t->s[i];
		set_gradient(t, step, i, m, value);
		fixture_applied(&t->f, 9 + i, m);
	}
}

/* An attack that the server does not prevent (docs/security.md, "Unsaved steps of sync"): the
 * worker that returns first after a crash replays its pushes with the opposite sign. Each of its
 * replays is a step of its own, so no rule of --aggregate compares it with others. */
TEST(the_first_worker_back_decides_the_unsaved_steps_of_sync)
{
	const enum aggregate_rule rules[] = {AGGREGATE_MEAN, AGGREGATE_MEDIAN, AGGREGATE_TRIMMED};
	static struct sync_fleet t;

	for (size_t r = 0; r < sizeof(rules) / sizeof(rules[0]); r++) {
		struct core_config cfg = with_key(fixture_training());
		struct core_snapshot snapshot;

		cfg.training.mode = MODE_SYNC;
		cfg.training.batch_size = 1;
		cfg.limits.norm_ratio = 4;
		cfg.leases.min_workers = FLEET;
		cfg.leases.max_batches = 1;
		cfg.push.aggregate = rules[r];
		cfg.push.bad_workers = 1;
		cfg.durable = 0;
		fixture_open(&t.f, cfg);
		join_fleet(&t);
		for (uint32_t step = 0; step < SAVED; step++)
			make_step_of_fleet(&t, step);
		snapshot = fixture_save(&t.f);
		float saved = core_weights(t.f.core)[0];
		for (uint32_t step = SAVED; step < SAVED + UNSAVED; step++)
			make_step_of_fleet(&t, step);
		float lost = core_weights(t.f.core)[0] - saved;
		assert_true(lost < 0);
		fixture_close(&t.f);

		fixture_load(&t.f, cfg, &snapshot);
		fixture_drop(&snapshot);
		assert_true(
			core_weights(t.f.core)[0] >= saved && core_weights(t.f.core)[0] <= saved);
		replay_of_fleet(&t, FLEET - 1, -1);
		float moved = core_weights(t.f.core)[0] - saved;
		/* the last replay still waits in its step */
		assert_int_equal(core_stats(t.f.core)->version, SAVED + UNSAVED - 1);
		assert_true(moved > -0.9f * lost);
		for (uint32_t i = 0; i < FLEET - 1; i++)
			replay_of_fleet(&t, i, 1);
		fixture_tick(&t.f, cfg.sessions.recovery_ms);
		float end = core_weights(t.f.core)[0] - saved;
		print_message("rule %d: lost steps %.1f, first worker %.1f, all workers %.1f\n",
			(int)rules[r], (double)lost, (double)moved, (double)end);
		/* the honest replays do not even bring back the weights of the checkpoint */
		assert_true(end > 0);
		fixture_close(&t.f);
	}
}

/* A worker of protocol version 6 sends no codes. After a crash that has lost grants and decisions,
 * its replays and its pushes count only within the newest grant that the server has. The server
 * rejects all other pushes of the worker, does not count them as bad, and grants their batches
 * again. */
TEST(a_worker_without_codes_counts_within_the_newest_grant)
{
	struct core_config cfg = with_key(fixture_training());
	struct core_snapshot snapshot;
	struct core_fixture f;
	struct msg_ack ack[2];
	struct msg push[3];
	struct stamp s;

	cfg.leases.max_batches = 2; /* a lease has two of the four batches of an epoch */
	cfg.training.epochs = 2;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	struct msg_grant g = fixture_train(&f, 9, s, 1);
	assert_work(&g, 0, 0, 2);
	snapshot = fixture_save(&f);
	push[0] = fixture_batch(s, 1, 0, 0, 2);
	ack[0] = fixture_acked(&f, 9, &push[0]);
	g = fixture_train(&f, 9, s, 2);
	assert_work(&g, 0, 2, 2);
	push[1] = fixture_batch(s, 2, 0, 2, 1);
	ack[1] = fixture_acked(&f, 9, &push[1]);
	push[2] = fixture_batch(s, 3, 0, 3, 1); /* the server dies before it receives this push */
	fixture_close(&f);

	fixture_load(&f, cfg, &snapshot);
	fixture_drop(&snapshot);
	s = fixture_come_back(&f, 9, s, 3);
	for (int i = 0; i < 3; i++) {
		push[i].push.stamp = s;
		push[i].push.verdict = i < 2 ? ack[i].verdict : VERDICT_NONE;
	}
	fixture_applied(&f, 9, &push[0]);
	for (int n = 1; n < 3; n++)
		fixture_rejected(&f, 9, &push[n], REJECT_WORK);
	assert_int_equal(f.core->worker[0].quarantine.bad, 0);
	assert_int_equal(core_stats(f.core)->images, 20);
	g = fixture_train(&f, 9, s, 3);
	assert_work(&g, 0, 2, 2);
	push[0] = fixture_batch(s, 4, 0, 2, 2);
	fixture_applied(&f, 9, &push[0]);
	assert_int_equal(core_epoch(f.core, 0)->images, fixture_data.n_train);
	fixture_close(&f);
}

/* A worker without codes pushes 100 batches of a lost grant in a row, and is not excluded. A push
 * of a batch that nobody granted to it does not count, whatever verdict the worker claims for
 * it. */
TEST(a_worker_without_codes_is_not_excluded_and_gets_no_right_by_a_claim)
{
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, with_key(fixture_training()));
	s = fixture_join(&f, 9, "");
	f.core->worker[0].ledger.replay_target = 100;
	for (uint64_t seq = 1; seq <= 100; seq++) {
		struct msg m = fixture_batch(s, seq, 0, (uint32_t)seq % 4, 1);

		m.push.verdict = seq % 2 ? VERDICT_OK : VERDICT_NONE;
		fixture_rejected(&f, 9, &m, REJECT_WORK);
	}
	assert_int_equal(core_stats(f.core)->excluded, 0);
	assert_int_equal(core_stats(f.core)->images, 0);
	fixture_close(&f);
}

/* A worker claims verdict OK for a push that it never sent before. All rules must still apply to
 * the push. */
TEST(a_claimed_verdict_is_not_believed)
{
	struct core_config cfg = with_key(fixture_config());
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	cfg.limits.max_staleness = 1;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	for (uint64_t seq = 1; seq <= 4; seq++) {
		m = fixture_push_ones(s, seq);
		m.push.base_version = seq - 1;
		fixture_applied(&f, 9, &m);
	}
	f.core->worker[0].ledger.replay_target = 100;
	m = fixture_push_ones(s, 5);
	m.push.verdict = VERDICT_OK;
	fixture_rejected(&f, 9, &m, REJECT_STALE);
	m = fixture_push_ones(s, 6);
	m.push.base_version = UINT64_MAX;
	fixture_rejected(&f, 9, &m, REJECT_STALE);
	m = fixture_push_ones(s, 7);
	m.push.base_version = 4;
	/* accepted like a new push: without a code, the claim of an old rejection has no effect */
	m.push.verdict = VERDICT_REJECTED;
	m.push.reject = REJECT_WORK;
	fixture_applied(&f, 9, &m);
	fixture_close(&f);
}

/* After a restart, a worker claims that its gradient is of an earlier term, and of a version that
 * no server has made yet. The gradient must become stale like a gradient of the weights with which
 * the present term began. */
TEST(a_claim_about_an_earlier_term_gets_stale)
{
	struct core_config cfg = with_key(fixture_config());
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	cfg.limits.max_staleness = 1;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	m = fixture_push_ones(s, 1);
	fixture_applied(&f, 9, &m);
	fixture_restart(&f);
	m = fixture_resume(s, 1, 0);
	fixture_message(&f, 9, &m);
	s = fixture_sent(&f, 9, MSG_WELCOME)->welcome.stamp;
	for (uint64_t seq = 2; seq <= 5; seq++) {
		m = fixture_push_ones(s, seq);
		m.push.base_version = UINT64_MAX;
		m.push.base_term = s.term - 1;
		if (seq <= 3)
			fixture_applied(&f, 9, &m);
		else
			fixture_rejected(&f, 9, &m, REJECT_STALE);
	}
	m = fixture_push_ones(s, 6);
	m.push.base_version = 3;
	m.push.base_term = s.term;
	fixture_applied(&f, 9, &m);
	fixture_close(&f);
}

/* If a push repeats a decided seq with other content, the server answers with the first decision
 * and its message authentication code (rights.h). This code is valid only for the content of the
 * push that the server decided first. */
TEST(a_duplicate_with_other_content_proves_nothing)
{
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	fixture_open(&f, with_key(fixture_config()));
	s = fixture_join(&f, 9, "");
	m = fixture_push_ones(s, 1);
	const struct msg_ack first = fixture_acked(&f, 9, &m);
	m.push.base_version = 17;
	const struct msg_ack again = fixture_acked(&f, 9, &m);
	assert_int_equal(again.duplicate, 1);
	assert_int_equal(again.code, first.code);
	f.core->worker[0].ledger.replay_target = 1;
	m.push.verdict = VERDICT_OK;
	m.push.code = again.code;
	assert_int_equal(rights_of_replay(f.core, &f.core->worker[0], &m.push), 0);
	fixture_close(&f);
}

/* Proves promise 1 of rights.h: a code is worthless for another worker, incarnation or seq. */
TEST(a_code_fits_one_push_of_one_incarnation)
{
	struct core_fixture f;
	struct msg_push p;
	struct msg m;

	fixture_open(&f, with_key(fixture_config()));
	struct worker *a = &f.core->worker[0], *b = &f.core->worker[1];
	m = fixture_push_ones(fixture_join(&f, 9, "a"), 1);
	(void)fixture_join(&f, 10, "b");
	p = m.push;
	p.code = fixture_acked(&f, 9, &m).code;
	p.verdict = VERDICT_OK;
	a->ledger.replay_target = b->ledger.replay_target = 100;
	assert_int_equal(rights_of_replay(f.core, a, &p), 1);
	assert_int_equal(rights_of_replay(f.core, b, &p), 0);
	p.seq = 2;
	assert_int_equal(rights_of_replay(f.core, a, &p), 0);
	p.seq = 1;
	a->session.incarnation++;
	assert_int_equal(rights_of_replay(f.core, a, &p), 0);
	a->session.incarnation--;
	p.images++;
	assert_int_equal(rights_of_replay(f.core, a, &p), 0);
	fixture_close(&f);
}

static struct msg result_of_grant(struct stamp s, const struct msg_grant *g, uint32_t correct)
{
	return (struct msg){.type = MSG_RESULT,
		.result = {.stamp = s,
			.eval_id = g->eval_id,
			.eval_first = g->eval_first,
			.eval_count = g->eval_count,
			.correct = correct,
			.code = g->code}};
}

TEST(results_without_a_grant_are_ignored)
{
	struct core_fixture f;
	struct stamp a, b;
	struct msg_grant g;
	struct msg m;

	fixture_open(&f, with_key(fixture_training()));
	a = fixture_join(&f, 9, "a");
	b = fixture_join(&f, 10, "b");
	for (uint64_t n = 1; !f.core->leases.evaluating; n++) {
		g = fixture_train(&f, 9, a, n);
		m = push_of_grant(a, n, &g);
		fixture_applied(&f, 9, &m);
	}
	g = fixture_grant(&f, 9, a, 100);
	assert_int_equal(g.kind, GRANT_EVAL);
	/* ignored, because the server has not granted this portion to worker b */
	m = result_of_grant(b, &g, g.eval_count);
	fixture_message(&f, 10, &m);
	assert_int_equal(f.core->leases.n_evaluated, 0);
	m.result.code = 0;
	fixture_message(&f, 10, &m);
	assert_int_equal(f.core->leases.n_evaluated, 0);
	m = result_of_grant(a, &g, 1);
	m.result.code = 0; /* a worker of protocol version 6 sends no code */
	fixture_message(&f, 9, &m);
	assert_int_equal(f.core->leases.n_evaluated, 1);
	fixture_close(&f);
}

TEST(leases_in_a_row_without_work_are_counted)
{
	struct core_fixture f;
	struct stamp s;
	struct msg m;
	uint64_t n = 0;

	fixture_open(&f, with_key(fixture_training()));
	s = fixture_join(&f, 9, "");
	while (n < MAX_EMPTY_LEASES)
		(void)fixture_train(&f, 9, s, ++n);
	assert_int_equal(core_stats(f.core)->ignored, 0);
	struct msg_grant g = fixture_train(&f, 9, s, ++n);
	fixture_lease(&f, 9, s, n); /* repeats the same request */
	assert_int_equal(core_stats(f.core)->ignored, 2);
	m = push_of_grant(s, 1, &g);
	fixture_applied(&f, 9, &m);
	for (uint32_t i = 0; i < MAX_EMPTY_LEASES; i++)
		fixture_lease(&f, 9, s, ++n);
	assert_int_equal(core_stats(f.core)->ignored, 2);
	fixture_close(&f);
}

/* Pushes of batches that are done, or of a grant that never was, deliver nothing. */
TEST(rejected_pushes_in_a_row_are_counted)
{
	struct core_config cfg = with_key(fixture_training());
	struct core_fixture f;
	struct stamp s;
	struct msg m;
	uint64_t seq = 0;

	cfg.durable = 0;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	struct msg_grant g = fixture_train(&f, 9, s, 1);
	m = push_of_grant(s, ++seq, &g);
	fixture_applied(&f, 9, &m);
	for (uint32_t i = 0; i < MAX_EMPTY_LEASES; i++) {
		m = i % 2 ? push_of_grant(s, ++seq, &g) : fixture_batch(s, ++seq, 0, 3, 1);
		fixture_rejected(&f, 9, &m, REJECT_WORK);
	}
	assert_int_equal(core_stats(f.core)->ignored, 0);
	m = push_of_grant(s, ++seq, &g);
	fixture_rejected(&f, 9, &m, REJECT_WORK);
	assert_int_equal(core_stats(f.core)->ignored, 1);
	assert_true(core_dropped(f.core));
	g = fixture_train(&f, 9, s, 2);
	assert_int_equal(core_stats(f.core)->ignored, 2);
	m = push_of_grant(s, ++seq, &g);
	fixture_applied(&f, 9, &m);
	m = push_of_grant(s, ++seq, &g);
	fixture_rejected(&f, 9, &m, REJECT_WORK);
	assert_int_equal(core_stats(f.core)->ignored, 2);
	fixture_close(&f);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static struct msg hello_of_key(const char *key)
{
	struct msg m = fixture_hello("");

	memcpy(m.hello.owner, key, strlen(key));
	return m;
}

/* A worker was away for so long that its slot has a worker of another key. */
TEST(a_worker_whose_slot_another_key_has_got_is_fenced)
{
	struct core_config cfg = with_key(fixture_config());
	struct msg m = hello_of_key("slow");
	struct core_fixture f;

	cfg.sessions.max_workers = 1;
	fixture_open(&f, cfg);
	fixture_message(&f, 9, &m);
	fixture_durable(&f);
	struct stamp s = fixture_sent(&f, 9, MSG_WELCOME)->welcome.stamp;
	fixture_tick(&f, cfg.sessions.dead_ms + 1);
	m = hello_of_key("other");
	fixture_message(&f, 10, &m);
	m = hello_of_key("slow");
	m.hello.resume = s;
	fixture_durable(&f);
	fixture_message(&f, 9, &m);
	fixture_refused(&f, 9, PS_EFENCED);
	fixture_close(&f);
}

/* A name belongs to the key that uses it: a worker with another key gets another slot, even if it
 * has the same name. */
TEST(a_name_takes_no_session_of_another_key)
{
	struct msg m = hello_of_key("victim");
	struct core_fixture f;

	fixture_open(&f, with_key(fixture_config()));
	m.hello.name[0] = 'a';
	fixture_message(&f, 9, &m);
	fixture_durable(&f);
	m = hello_of_key("thief");
	m.hello.name[0] = 'a';
	fixture_message(&f, 10, &m);
	fixture_durable(&f);
	assert_int_equal(fixture_sent(&f, 10, MSG_WELCOME)->welcome.stamp.worker, 2);
	assert_int_equal(fixture_worker(&f, 1).incarnation, 1);
	m = hello_of_key("victim");
	m.hello.name[0] = 'a';
	fixture_message(&f, 11, &m); /* a new process of the victim joins */
	fixture_durable(&f);
	assert_int_equal(fixture_sent(&f, 11, MSG_WELCOME)->welcome.stamp.worker, 1);
	fixture_close(&f);
}

/* An observer can see every field of a worker's stamp. After a restart, only the key distinguishes
 * the worker from an observer that claims its session. */
TEST(a_session_belongs_to_its_key_after_a_restart)
{
	struct core_fixture f;
	struct stamp s;
	struct msg m = hello_of_key("victim");

	fixture_open(&f, with_key(fixture_config()));
	fixture_message(&f, 9, &m);
	fixture_durable(&f);
	s = fixture_sent(&f, 9, MSG_WELCOME)->welcome.stamp;
	fixture_restart(&f);
	m = hello_of_key("thief");
	m.hello.resume = s;
	fixture_message(&f, 10, &m);
	fixture_refused(&f, 10, PS_EAUTH);
	m = hello_of_key("victim");
	m.hello.resume = s;
	fixture_message(&f, 9, &m);
	assert_non_null(fixture_sent(&f, 9, MSG_WELCOME));
	fixture_close(&f);
}
