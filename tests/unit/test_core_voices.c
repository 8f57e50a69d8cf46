/*
 * Proves the promises of server/core/voices.h: a buffer with a robust rule gets the gradients of
 * all workers that can deliver one, however fast one of them is, and every run ends. Time is
 * virtual.
 * Covers attack A14 of docs/faults.md.
 */
#include "server/core/voices.h"
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

#define ROUND_MS 10u

enum { BAD = -100, GOOD = 1 };

static uint32_t pusher; /* number of the worker whose gradient one_is_bad computes */

/* Computes the gradient of worker `pusher`. The gradient of worker 0 is large and has the wrong
 * sign. */
static double one_is_bad(uint32_t i, const float *w, double *g)
{
	(void)i;
	(void)w;
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		g[j] = pusher ? GOOD : BAD;
	return 0.5;
}

static struct core_config voices_config(uint32_t buffer)
{
	struct core_config cfg = fixture_training();

	cfg.durable = 0;
	cfg.push.aggregate = AGGREGATE_MEDIAN;
	cfg.push.buffer_size = buffer;
	cfg.leases.max_batches = 10;
	cfg.limits.max_staleness = 1000000;
	cfg.rate.lr = 0.01;
	cfg.proof_key[0] = 1;
	return cfg;
}

/* Pushes the first batch of the worker's grant. */
static void push_one(struct cluster *k, uint32_t i)
{
	struct cluster_worker *h = &k->worker[i];
	struct msg_grant rest = h->grant;

	pusher = i;
	h->grant.work.count = 1;
	(void)cluster_push(k, i);
	if (h->grant.work.count)
		return;
	h->grant = rest;
	h->grant.work.first++;
	h->grant.work.count--;
	h->version = core_stats(k->f.core)->version;
}

/* Sends the next message of worker `i`. Returns 0 if worker `i` cannot send a message, because it
 * waits for a grant. */
static int act(struct cluster *k, uint32_t i)
{
	struct cluster_worker *h = &k->worker[i];
	int answered = h->request && h->grant.request == h->request;

	if (h->request && !answered)
		return 0;
	if (answered && h->grant.kind == GRANT_EVAL)
		cluster_evaluate(k, i);
	else if (answered && h->grant.work.count)
		push_one(k, i);
	else
		(void)cluster_request(k, i);
	return 1;
}

static int voices_end(const struct cluster *k)
{
	return k->f.core->run.ending == END_OVER;
}

static void all_heartbeats(struct cluster *k)
{
	for (uint32_t i = 0; i < k->n && !voices_end(k); i++)
		fixture_heartbeat(&k->f, k->worker[i].peer + 1, k->worker[i].s);
	fixture_tick(&k->f, ROUND_MS);
	cluster_receive(k);
}

/* Lets the workers send messages until the run ends. In each round worker 0 sends up to `fast`
 * messages. Each other worker sends one message in `slow` rounds, except for the last `hang`
 * workers, which send only heartbeats. Checks that no update moves the weights in the direction of
 * worker 0's gradient. Returns the number of rounds in which worker 0 waited for a grant. */
static uint32_t run_fleet(struct cluster *k, uint32_t fast, uint32_t slow, uint32_t hang)
{
	uint32_t waited = 0;

	for (uint32_t round = 0; !voices_end(k); round++) {
		float before = core_weights(k->f.core)[0];

		assert_true(round < 100000);
		for (uint32_t n = 0; n < fast && !voices_end(k); n++) {
			if (act(k, 0))
				continue;
			waited++;
			break;
		}
		for (uint32_t i = 1; i < k->n - hang && !voices_end(k); i++)
			if ((round + i) % slow == 0)
				(void)act(k, i);
		if (!voices_end(k))
			all_heartbeats(k);
		assert_true(core_weights(k->f.core)[0] <= before);
	}
	return waited;
}

static const enum mode modes[] = {MODE_DOWNPOUR, MODE_SSP};

TEST(a_worker_that_answers_at_once_does_not_fill_the_buffers_alone)
{
	for (size_t m = 0; m < 2; m++)
		for (uint32_t n_train = 30; n_train <= 630; n_train += 60) {
			struct core_config cfg = voices_config(3);
			struct cluster k;

			cfg.training.mode = modes[m];
			cfg.ssp.bound = 1000;
			cluster_open(&k, cfg, 3, n_train, one_is_bad);
			(void)run_fleet(&k, 1000, 10, 0);
			assert_int_equal(core_epoch(k.f.core, 1)->images, n_train);
			/* a buffer has VOICE_PUSHES gradients of each worker at most */
			assert_true(core_stats(k.f.core)->updates >=
				    2 * (n_train / 10 / (VOICE_PUSHES + 20 + 2)));
			cluster_close(&k);
		}
}

/* Returns the first weight after the first update, to which worker 0 adds `n` gradients and each of
 * the other two workers adds one. The median of the three workers' gradients is 1. */
static float weight_after_update(struct core_config cfg, uint32_t n)
{
	struct cluster k;

	cluster_open(&k, cfg, 3, 600, one_is_bad);
	for (uint32_t i = 0; i < k.n; i++)
		assert_true(cluster_request(&k, i));
	while (n--)
		push_one(&k, 0);
	push_one(&k, 1);
	push_one(&k, 2);
	assert_int_equal(core_stats(k.f.core)->updates, 1);
	float weight = core_weights(k.f.core)[0];
	cluster_close(&k);
	return weight;
}

/* The factor of --lr-scaling and the sum of --push sum count each voice once. */
TEST(a_worker_that_pushes_often_does_not_raise_the_rate)
{
	struct core_config cfg = voices_config(3);
	const float step = -3 * (float)cfg.rate.lr;

	cfg.optim.kind = OPTIM_SGD;
	cfg.rate.scaling = LR_SCALING_LINEAR;
	assert_float_equal(weight_after_update(cfg, 1), step, 1e-6);
	assert_float_equal(weight_after_update(cfg, 9), step, 1e-6);
	cfg.push.sum = 1;
	assert_float_equal(weight_after_update(cfg, 1), step, 1e-6);
	assert_float_equal(weight_after_update(cfg, 9), step, 1e-6);
}

/* A fast worker can add more gradients to a buffer than the buffer has voices. All values stay
 * within the core's bounds (invariant 3 of store.c, which the fixture checks after each step). */
TEST(the_bounds_hold_for_a_buffer_with_more_gradients_than_voices)
{
	struct core_config cfg = voices_config(3);
	struct cluster k;

	cfg.optim.kind = OPTIM_ADAGRAD;
	cfg.rate.scaling = LR_SCALING_LINEAR;
	cluster_open(&k, cfg, 3, 300, one_is_bad);
	(void)run_fleet(&k, 1000, 10, 0);
	assert_true(core_stats(k.f.core)->accepted > 5 * core_stats(k.f.core)->updates);
	cluster_close(&k);
}

/* Worker 0 is 20 times as fast as the others. Worker 0 waits for the other workers only at the last
 * batches of an epoch. */
TEST(a_worker_that_is_20_times_as_fast_does_not_wait)
{
	struct core_config cfg = voices_config(3);
	struct cluster k;

	cfg.leases.max_batches = 1;
	cluster_open(&k, cfg, 3, 10000, one_is_bad);
	assert_true(run_fleet(&k, 1, 20, 0) <= 2 * 4 * 20);
	cluster_close(&k);
}

TEST(a_lone_worker_does_not_wait_for_voices)
{
	struct cluster k;

	cluster_open(&k, voices_config(3), 1, 1000, cluster_ones);
	for (int i = 0; i < 10000 && !voices_end(&k); i++)
		assert_true(act(&k, 0));
	assert_true(voices_end(&k));
	/* 200 updates: each gradient makes an update, because the buffer already has all voices */
	assert_int_equal(core_stats(k.f.core)->updates, 200);
	cluster_close(&k);
}

TEST(the_others_wait_for_a_voice_that_hangs_until_it_is_stalled)
{
	struct cluster k;
	uint64_t begin;

	cluster_open(&k, voices_config(3), 3, 100, cluster_ones);
	begin = k.f.now_ms;
	(void)run_fleet(&k, 1, 1, 1);
	assert_true(k.f.core->worker[2].pace.stalled);
	assert_true(k.f.now_ms - begin < 10000);
	cluster_close(&k);
}

/* Worker 2 is held back by the warm start, so the buffer does not wait for it. */
TEST(a_buffer_does_not_wait_for_a_worker_that_the_warm_start_holds_back)
{
	struct core_config cfg = voices_config(3);
	struct cluster k;

	cfg.leases.warm_start_updates = 5;
	cluster_open(&k, cfg, 2, 1000, cluster_ones);
	assert_true(act(&k, 0));
	assert_true(act(&k, 1));
	assert_true(act(&k, 0));
	assert_int_equal(core_stats(k.f.core)->updates, 1);
	cluster_close(&k);
}

/* Lets worker `i` push batch `first` with the code of grant `g`, which has ended. */
static enum reject push_of_older(
	struct cluster *k, uint32_t i, const struct msg_grant *g, uint32_t first)
{
	struct cluster_worker *h = &k->worker[i];
	struct msg_grant now = h->grant;
	float values[CLUSTER_PARAMS];

	pusher = i;
	h->grant.work = (struct work){g->work.epoch, first, 1};
	h->version = core_stats(k->f.core)->version;
	struct msg m = cluster_gradient(k, i, values);
	m.push.grant_first = g->work.first;
	m.push.grant_count = g->work.count;
	m.push.grant_code = g->code;
	h->seq++;
	h->grant = now;
	return fixture_acked(&k->f, h->peer, &m).reject;
}

/* Worker 0 requests leases without a push, until it has had a lease of each batch. */
TEST(a_worker_that_hoards_leases_does_not_fill_a_buffer_alone)
{
	struct core_config cfg = voices_config(3);
	struct msg_grant of[40] = {{0}};
	uint32_t accepted = 0, of_others = 0;
	struct cluster k;

	cfg.leases.max_batches = 2;
	cluster_open(&k, cfg, 3, 400, one_is_bad);
	for (int n = 0; n < 200; n++) {
		assert_true(cluster_request(&k, 0));
		const struct msg_grant *g = &k.worker[0].grant;
		for (uint32_t b = g->work.first; b < g->work.first + g->work.count; b++)
			of[b] = *g;
	}
	assert_true(cluster_request(&k, 1));
	assert_true(cluster_request(&k, 2));
	for (uint32_t b = 0; b < 40; b++) {
		int theirs = batch_ledger_holds(k.f.core, &k.f.core->worker[1], 0, b) ||
			     batch_ledger_holds(k.f.core, &k.f.core->worker[2], 0, b);
		enum reject r = of[b].code ? push_of_older(&k, 0, &of[b], b) : REJECT_WORK;

		accepted += r == REJECT_NONE;
		of_others += r == REJECT_NONE && theirs;
	}
	assert_int_equal(of_others, 0);
	assert_true(accepted >= 1 && accepted <= VOICE_PUSHES + 2);
	assert_int_equal(core_stats(k.f.core)->updates, 0);
	push_one(&k, 1);
	push_one(&k, 2);
	assert_int_equal(core_stats(k.f.core)->updates, 1);
	assert_true(core_weights(k.f.core)[0] < 0);
	cluster_close(&k);
}
