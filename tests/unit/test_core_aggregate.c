/*
 * Compares the robust rules (server/core/aggregate.h) with plain implementations of their
 * definitions, and proves how a step of sync and a buffer use the rules.
 * Covers attack A14 of docs/faults.md.
 */
#include <float.h>
#include <math.h>
#include "server/core/aggregate.h"
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

#define MAX_N  40u
#define VALUES 9001u /* number of weights: more than two blocks, with a partial last block */

static float gradient[MAX_N][VALUES], out[VALUES];
static const float *of[MAX_N];
static double result[2]; /* the result of each block */
static const struct blocks serial = {.result = result};

static void draw_gradients(uint64_t seed, uint32_t n)
{
	struct rng r = rng_seed(seed, RNG_SIM, n);

	for (uint32_t i = 0; i < n; i++) {
		of[i] = gradient[i];
		for (size_t k = 0; k < VALUES; k++)
			gradient[i][k] =
				(float)(rng_unit(&r) - 0.3) * (rng_below(&r, 50) ? 1.f : 100.f);
	}
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* Returns the mean of the sorted values [cut, n - cut) of coordinate k. */
static double trimmed_mean_of(uint32_t n, uint32_t cut, size_t k)
{
	float v[MAX_N];
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		v[i] = gradient[i][k];
	qsort(v, n, sizeof(*v), by_value);
	for (uint32_t i = cut; i < n - cut; i++)
		sum += (double)v[i];
	return sum / (n - 2 * cut);
}

static void assert_close(double a, double b)
{
	assert_true(fabs(a - b) <= 1e-6 * (1 + fabs(a)));
}

TEST(median_and_trimmed_mean_are_those_of_the_definition)
{
	for (uint32_t n = 1; n <= MAX_N; n++) {
		draw_gradients(n, n);
		aggregate(&serial, AGGREGATE_MEDIAN, 1, of, n, VALUES, out);
		for (size_t k = 0; k < VALUES; k++)
			assert_close(out[k], trimmed_mean_of(n, (n - 1) / 2, k));
		for (uint32_t bad = 0; bad <= 3; bad++) {
			uint32_t cut = n > 2 * bad ? bad : (n - 1) / 2;

			aggregate(&serial, AGGREGATE_TRIMMED, bad, of, n, VALUES, out);
			for (size_t k = 0; k < VALUES; k += 7)
				assert_close(out[k], trimmed_mean_of(n, cut, k));
		}
	}
}

/* Returns the score of gradient i in the rule krum: the sum of its n - bad - 2 smallest squared
 * distances from other gradients. */
static double score(uint32_t n, uint32_t bad, uint32_t i)
{
	double d[MAX_N], sum = 0;
	uint32_t m = 0;

	for (uint32_t j = 0; j < n; j++) {
		double squares = 0;

		for (size_t k = 0; j != i && k < VALUES; k++) {
			double x = (double)gradient[i][k] - (double)gradient[j][k];

			squares += x * x;
		}
		uint32_t at = m;
		for (; j != i && at > 0 && d[at - 1] > squares; at--)
			d[at] = d[at - 1];
		if (j != i) {
			d[at] = squares;
			m++;
		}
	}
	for (uint32_t j = 0; j < n - bad - 2; j++)
		sum += d[j];
	return sum;
}

TEST(krum_chooses_the_gradient_with_the_nearest_neighbours)
{
	for (uint32_t n = 5; n <= 13; n += 2)
		for (uint32_t bad = 1; 2 * bad + 3 <= n; bad++) {
			uint32_t best = 0;

			draw_gradients(100 + n, n);
			for (uint32_t i = 1; i < n; i++)
				if (score(n, bad, i) < score(n, bad, best))
					best = i;
			aggregate(&serial, AGGREGATE_KRUM, bad, of, n, VALUES, out);
			assert_memory_equal(out, gradient[best], sizeof(out));
		}
	/* 4 gradients are too few for krum, so the rule falls back to the median */
	draw_gradients(1, 4);
	aggregate(&serial, AGGREGATE_KRUM, 1, of, 4, VALUES, out);
	assert_close(out[5], trimmed_mean_of(4, 1, 5));
}

TEST(bad_gradients_do_not_move_the_result_out_of_the_range_of_good_ones)
{
	static const enum aggregate_rule rules[] = {
		AGGREGATE_MEDIAN, AGGREGATE_TRIMMED, AGGREGATE_KRUM};

	for (size_t r = 0; r < 3; r++) {
		draw_gradients(7, 7);
		for (size_t k = 0; k < VALUES; k++) {
			gradient[2][k] = FLT_MAX / 1e10f;
			gradient[5][k] = k % 2 ? -1e15f : 0;
		}
		aggregate(&serial, rules[r], 2, of, 7, VALUES, out);
		for (size_t k = 0; k < VALUES; k++) {
			float low = FLT_MAX, high = -FLT_MAX;

			for (uint32_t i = 0; i < 7; i++) {
				if (i == 2 || i == 5)
					continue;
				low = gradient[i][k] < low ? gradient[i][k] : low;
				high = gradient[i][k] > high ? gradient[i][k] : high;
			}
			assert_true(out[k] >= low && out[k] <= high);
		}
	}
}

/* ---- in the core ----------------------------------------------------------------------------- */

static struct core_config with_rule(enum aggregate_rule rule)
{
	struct core_config cfg = fixture_config();

	cfg.durable = 0;
	cfg.push.aggregate = rule;
	cfg.push.bad_workers = 1;
	return cfg;
}

static void push_value(struct core_fixture *f, uint32_t peer, struct stamp s, uint64_t seq, float v)
{
	struct msg m = fixture_push(s, seq);
	float g[FIXTURE_PARAMS];

	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		g[i] = v;
	fixture_slice(&m, 0, FIXTURE_PARAMS, g);
	fixture_applied(f, peer, &m);
}

/* A worker that pushes ten times as often as the others counts once, with the mean of its pushes. A
 * restart between the pushes changes nothing. */
TEST(a_worker_counts_once_in_a_buffer)
{
	struct core_config cfg = with_rule(AGGREGATE_MEDIAN);
	struct core_fixture f;

	cfg.push.buffer_size = 3;
	fixture_open(&f, cfg);
	struct stamp a = fixture_join(&f, 9, "a"), b = fixture_join(&f, 8, "b"),
		     c = fixture_join(&f, 7, "c");
	for (uint64_t seq = 1; seq <= 10; seq++)
		push_value(&f, 9, a, seq, -100);
	push_value(&f, 8, b, 1, 1);
	assert_int_equal(core_stats(f.core)->updates, 0);
	fixture_restart(&f);
	(void)fixture_come_back(&f, 9, a, 10);
	b = fixture_come_back(&f, 8, b, 1);
	c = fixture_come_back(&f, 7, c, 0);
	push_value(&f, 8, b, 2, 3);
	push_value(&f, 7, c, 1, 4);
	assert_int_equal(core_stats(f.core)->updates, 1);
	/* the means of the three workers' values are -100, 2 and 4, so the median is 2 */
	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		assert_true(core_weights(f.core)[i] == -2);
	fixture_close(&f);
}

/* If the run has fewer workers than --buffer-size, one gradient of each worker makes an update. */
TEST(a_buffer_does_not_wait_for_workers_that_are_not_there)
{
	struct core_config cfg = with_rule(AGGREGATE_TRIMMED);
	struct core_fixture f;

	cfg.push.buffer_size = 4;
	fixture_open(&f, cfg);
	struct stamp a = fixture_join(&f, 9, "a"), b = fixture_join(&f, 8, "b");
	push_value(&f, 9, a, 1, 2);
	assert_int_equal(core_stats(f.core)->updates, 0);
	push_value(&f, 8, b, 1, 4);
	assert_int_equal(core_stats(f.core)->updates, 1);
	fixture_close(&f);
}

/* Worker c pushes nothing. The buffer waits for c until both other workers have pushed 20 times.
 * From then on c counts as stalled, and the buffer waits for c again only after a push of c. */
TEST(a_buffer_does_not_wait_for_ever_for_a_worker_that_pushes_nothing)
{
	struct core_config cfg = with_rule(AGGREGATE_MEDIAN);
	struct core_fixture f;

	cfg.push.buffer_size = 3;
	fixture_open(&f, cfg);
	struct stamp a = fixture_join(&f, 9, "a"), b = fixture_join(&f, 8, "b"),
		     c = fixture_join(&f, 7, "c");
	/* no update, because one worker of three is no majority */
	for (uint64_t seq = 1; seq <= 100; seq++)
		push_value(&f, 9, a, seq, 1);
	for (uint64_t seq = 1; seq <= 19; seq++)
		push_value(&f, 8, b, seq, 1);
	assert_int_equal(core_stats(f.core)->updates, 0);
	assert_false(fixture_worker(&f, 3).stalled);
	push_value(&f, 8, b, 20, 1);
	assert_int_equal(core_stats(f.core)->updates, 1);
	assert_true(fixture_worker(&f, 3).stalled);
	push_value(&f, 9, a, 101, 1);
	push_value(&f, 8, b, 21, 1);
	assert_int_equal(core_stats(f.core)->updates, 2);
	push_value(&f, 7, c, 1, 1);
	assert_false(fixture_worker(&f, 3).stalled);
	push_value(&f, 9, a, 102, 1);
	assert_int_equal(core_stats(f.core)->updates, 2);
	push_value(&f, 8, b, 22, 1);
	assert_int_equal(core_stats(f.core)->updates, 3);
	fixture_close(&f);
}

/* One of the three members of a step sends a large gradient with the wrong sign. */
TEST(a_step_of_sync_takes_the_median)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	static const float value[] = {2, -50, 3};

	cfg.durable = 0;
	cfg.training.mode = MODE_SYNC;
	cfg.leases.min_workers = 3;
	cfg.push.aggregate = AGGREGATE_MEDIAN;
	fixture_open(&f, cfg);
	struct stamp s[3];
	for (uint32_t i = 0; i < 3; i++)
		s[i] = fixture_join(&f, 7 + i, "");
	for (uint32_t i = 0; i < 3; i++) {
		struct msg_grant g = fixture_train(&f, 7 + i, s[i], 1);
		struct msg m = fixture_batch(s[i], 1, 0, g.work.first, 1);
		float v[FIXTURE_PARAMS];

		for (size_t k = 0; k < FIXTURE_PARAMS; k++)
			v[k] = value[i];
		m.push.slices.n = 0;
		fixture_slice(&m, 0, FIXTURE_PARAMS, v);
		m.push.base_term = f.cfg.term;
		fixture_applied(&f, 7 + i, &m);
	}
	assert_int_equal(core_stats(f.core)->updates, 1);
	assert_true(core_weights(f.core)[3] == -2);
	fixture_close(&f);
}

static struct stamp join_as_key(struct core_fixture *f, uint32_t peer, const char *key)
{
	struct msg m = fixture_hello("");

	memcpy(m.hello.owner, key, strlen(key));
	fixture_message(f, peer, &m);
	return fixture_sent(f, peer, MSG_WELCOME)->welcome.stamp;
}

static struct stamp come_back_as_key(
	struct core_fixture *f, uint32_t peer, struct stamp s, uint64_t last_seq, const char *key)
{
	struct msg m = fixture_resume(s, last_seq, 0);

	memcpy(m.hello.owner, key, strlen(key));
	fixture_message(f, peer, &m);
	assert_non_null(fixture_sent(f, peer, MSG_WELCOME));
	return fixture_sent(f, peer, MSG_WELCOME)->welcome.stamp;
}

/* Five workers of one key push before the workers of two other keys. The buffer waits for the other
 * keys, and the median is that of the three keys. A restart between the pushes changes nothing. */
TEST(a_key_counts_once_in_a_buffer)
{
	static const char *const key[] = {"bad", "bad", "bad", "bad", "bad", "one", "two"};
	static const float value[] = {-100, -100, -50, -50, -50, 1, 2};
	struct core_config cfg = with_rule(AGGREGATE_MEDIAN);
	struct core_fixture f;
	struct stamp s[7];

	cfg.push.buffer_size = 3;
	cfg.sessions.max_workers = 7;
	fixture_open(&f, cfg);
	for (uint32_t i = 0; i < 7; i++)
		s[i] = join_as_key(&f, 9 + i, key[i]);
	for (uint32_t i = 0; i < 5; i++)
		push_value(&f, 9 + i, s[i], 1, value[i]);
	assert_int_equal(core_stats(f.core)->updates, 0);
	fixture_restart(&f);
	for (uint32_t i = 0; i < 7; i++)
		s[i] = come_back_as_key(&f, 9 + i, s[i], i < 5, key[i]);
	push_value(&f, 14, s[5], 1, value[5]);
	assert_int_equal(core_stats(f.core)->updates, 0);
	push_value(&f, 15, s[6], 1, value[6]);
	assert_int_equal(core_stats(f.core)->updates, 1);
	/* the means of the three keys' values are -70, 1 and 2, so the median is 1 */
	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		assert_true(core_weights(f.core)[i] == -1);
	fixture_close(&f);
}

/* Makes a step of sync in which worker i pushes a gradient with the value value[i] everywhere.
 * Worker i is on connection 7 + i. */
static void push_step(struct core_fixture *f, const struct stamp *s, const float *value, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct msg_grant g = fixture_train(f, 7 + i, s[i], 1);
		struct msg m = fixture_batch(s[i], 1, 0, g.work.first, 1);
		float v[FIXTURE_PARAMS];

		for (size_t k = 0; k < FIXTURE_PARAMS; k++)
			v[k] = value[i];
		m.push.slices.n = 0;
		fixture_slice(&m, 0, FIXTURE_PARAMS, v);
		m.push.base_term = f->cfg.term;
		fixture_applied(f, 7 + i, &m);
	}
}

/* Two of four workers have the same key, and send large gradients with the wrong sign. */
TEST(a_key_counts_once_in_a_step_of_sync)
{
	static const char *const key[] = {"bad", "bad", "one", "two"};
	static const float value[] = {-50, -50, 2, 3};
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s[4];

	cfg.durable = 0;
	cfg.training.mode = MODE_SYNC;
	cfg.leases.min_workers = 4;
	cfg.push.aggregate = AGGREGATE_MEDIAN;
	fixture_open(&f, cfg);
	for (uint32_t i = 0; i < 4; i++)
		s[i] = join_as_key(&f, 7 + i, key[i]);
	push_step(&f, s, value, 4);
	assert_int_equal(core_stats(f.core)->updates, 1);
	assert_true(core_weights(f.core)[3] == -2);
	fixture_close(&f);
}

/* With --sync-workers 3, a step has only three batches. Three workers of one key request work
 * first. Together these three get only one batch until each of the other two keys has a batch. */
TEST(a_key_does_not_take_all_batches_of_a_step)
{
	static const char *const key[] = {"bad", "one", "two", "bad", "bad"};
	static const float value[] = {-50, 2, 3};
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s[5];

	cfg.durable = 0;
	cfg.training.mode = MODE_SYNC;
	cfg.sync.workers = 3;
	cfg.leases.min_workers = 5;
	cfg.sessions.max_workers = 5;
	cfg.push.aggregate = AGGREGATE_MEDIAN;
	fixture_open(&f, cfg);
	for (uint32_t i = 0; i < 5; i++)
		s[i] = join_as_key(&f, 7 + i, key[i]);
	(void)fixture_train(&f, 7, s[0], 1);
	for (uint32_t i = 3; i < 5; i++) {
		fixture_lease(&f, 7 + i, s[i], 1);
		assert_null(fixture_sent(&f, 7 + i, MSG_GRANT));
	}
	push_step(&f, s, value, 3);
	assert_int_equal(core_stats(f.core)->updates, 1);
	assert_true(core_weights(f.core)[3] == -2);
	fixture_close(&f);
}

/* The workers of the other keys leave, so the workers of one key get all batches of the step. */
TEST(a_key_gets_the_batches_of_keys_that_have_left)
{
	static const char *const key[] = {"bad", "bad", "bad", "one", "two"};
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s[5];

	cfg.durable = 0;
	cfg.training.mode = MODE_SYNC;
	cfg.sync.workers = 3;
	cfg.leases.min_workers = 5;
	cfg.sessions.max_workers = 5;
	cfg.push.aggregate = AGGREGATE_MEDIAN;
	fixture_open(&f, cfg);
	for (uint32_t i = 0; i < 5; i++)
		s[i] = join_as_key(&f, 7 + i, key[i]);
	for (uint32_t i = 0; i < 3; i++)
		fixture_lease(&f, 7 + i, s[i], 1);
	for (uint32_t i = 3; i < 5; i++) {
		const struct msg bye = {.type = MSG_BYE, .bye = {.stamp = s[i]}};

		fixture_message(&f, 7 + i, &bye);
	}
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(f.core->worker[i].lease.grant.work.count, 1);
	fixture_close(&f);
}
