/*
 * Proves the promises of server/core/downpour.c about a buffer of gradients (Nguyen 2022, FedBuff).
 * For any accepted combination of options, a run with a buffer equals a serial run that this test
 * computes with its own formulas.
 */
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

static struct core_config buffer_config(enum mode mode, uint32_t buffer)
{
	struct core_config cfg = fixture_training();

	cfg.training.mode = mode;
	cfg.push.buffer_size = buffer;
	cfg.durable = 0;
	cfg.ssp.bound = 3;
	cfg.leases.max_batches = 1;
	cfg.rate.lr = 0.25;
	return cfg;
}

static void assert_updates(const struct cluster *k, uint64_t n)
{
	assert_int_equal(core_stats(k->f.core)->version, n);
	assert_int_equal(core_stats(k->f.core)->updates, n);
}

static void ask_and_push(struct cluster *k, uint32_t i)
{
	assert_int_equal(cluster_request(k, i), 1);
	assert_int_equal(cluster_push(k, i), REJECT_NONE);
}

/* ---- one update ------------------------------------------------------------------------------ */

TEST(an_update_is_made_of_k_gradients_of_any_workers)
{
	const enum mode modes[] = {MODE_DOWNPOUR, MODE_SSP};

	for (size_t m = 0; m < 2; m++) {
		struct cluster k;

		cluster_open(&k, buffer_config(modes[m], 3), 2, 400, cluster_ones);
		ask_and_push(&k, 0);
		ask_and_push(&k, 0);
		assert_updates(&k, 0);
		assert_true(core_weights(k.f.core)[3] == 0);
		/* the gradients of these images are in the buffer, not in the weights */
		assert_int_equal(core_stats(k.f.core)->images, 0);
		ask_and_push(&k, 1);
		assert_updates(&k, 1);
		/* the update is the mean of the gradients, not their sum */
		assert_true(core_weights(k.f.core)[3] == -0.25f);
		assert_int_equal(core_stats(k.f.core)->images, 30);
		assert_int_equal(core_epoch(k.f.core, 0)->updates, 1);
		cluster_close(&k);
	}
}

/* An update uses two fresh gradients and a gradient that is two versions old. The learning rate of
 * this update is (1 + 1 + 1/2) / 3 of the rate of three fresh gradients. */
TEST(a_stale_gradient_weighs_less)
{
	struct core_config cfg = buffer_config(MODE_DOWNPOUR, 3);
	struct cluster k;

	cfg.rate.staleness_scaling = STALE_INVERSE;
	cluster_open(&k, cfg, 2, 400, cluster_ones);
	cluster_request(&k, 1);
	for (int i = 0; i < 6; i++)
		ask_and_push(&k, 0);
	assert_updates(&k, 2);
	float before = core_weights(k.f.core)[0];
	ask_and_push(&k, 0);
	ask_and_push(&k, 0);
	assert_int_equal(cluster_push(&k, 1), REJECT_NONE);
	assert_updates(&k, 3);
	assert_float_equal(before - core_weights(k.f.core)[0], (float)(0.25 * 2.5 / 3), 1e-7);
	assert_int_equal(core_stats(k.f.core)->staleness_sum, 2);
	for (uint32_t i = 0; i < 2; i++) {
		struct worker_view v;

		core_worker(k.f.core, i, &v);
		assert_int_equal(v.counts.pushes, i ? 1 : 8);
		assert_int_equal(v.counts.async_pushes, i ? 1 : 8);
		assert_int_equal(v.counts.staleness_sum, i ? 2 : 0);
	}
	cluster_close(&k);
}

TEST(an_epoch_ends_with_what_is_in_the_buffer)
{
	struct cluster k;

	cluster_open(&k, buffer_config(MODE_DOWNPOUR, 3), 1, 65, cluster_ones); /* 7 batches */
	for (int i = 0; i < 6; i++)
		ask_and_push(&k, 0);
	assert_updates(&k, 2);
	assert_int_equal(core_training_epoch(k.f.core), 0);
	ask_and_push(&k, 0);
	assert_updates(&k, 3);
	assert_int_equal(core_training_epoch(k.f.core), 1);
	assert_int_equal(core_epoch(k.f.core, 0)->images, 65);
	/* at the end of the epoch, the rest of the buffer makes an update */
	assert_true(core_weights(k.f.core)[0] == -0.75f);
	cluster_close(&k);
}

/* Returns a weight after an epoch in which one worker trains 7 batches. Every gradient is 1 at each
 * coordinate. */
static double epoch_of(enum lr_scaling how, uint32_t buffer, int push_sum)
{
	struct core_config cfg = buffer_config(MODE_DOWNPOUR, buffer);
	struct cluster k;

	cfg.rate.scaling = how;
	cfg.push.sum = (enum push_kind)push_sum;
	cluster_open(&k, cfg, 1, 65, cluster_ones);
	for (int i = 0; i < 7; i++)
		ask_and_push(&k, 0);
	double w = (double)core_weights(k.f.core)[0];
	cluster_close(&k);
	return w;
}

static double scaled_epoch(enum lr_scaling how, uint32_t buffer)
{
	return epoch_of(how, buffer, 0);
}

/* The sum of n gradients is already n times as large as their mean, so the learning rate must not
 * grow with n as well. */
TEST(the_rate_of_a_sum_grows_with_its_gradients_once)
{
	for (int how = LR_SCALING_NONE; how <= LR_SCALING_LINEAR; how++) {
		assert_true(epoch_of((enum lr_scaling)how, 3, 1) == -0.25 * 7);
		assert_true(epoch_of((enum lr_scaling)how, 7, 1) == -0.25 * 7);
	}
}

/* The learning rate grows with the number of gradients in an update, and does not depend on the
 * size of the buffer. */
TEST(the_rate_grows_with_the_gradients_of_an_update)
{
	assert_true(scaled_epoch(LR_SCALING_LINEAR, 3) == -0.25 * (3 + 3 + 1));
	assert_true(scaled_epoch(LR_SCALING_LINEAR, 7) == -0.25 * 7);
	assert_true(scaled_epoch(LR_SCALING_LINEAR, 1000) == -0.25 * 7);
	assert_true(scaled_epoch(LR_SCALING_SQRT, 4) == (double)(-0.5f - (float)(0.25 * sqrt(3))));
	assert_true(scaled_epoch(LR_SCALING_SQRT, 7) == (double)-(float)(0.25 * sqrt(7)));
	assert_true(scaled_epoch(LR_SCALING_SQRT, 1000) == (double)-(float)(0.25 * sqrt(7)));
}

/* A run with a buffer of one gradient needs the same memory, and computes the same bytes, as a run
 * without a buffer. */
TEST(a_buffer_of_one_is_none)
{
	float end[2][FIXTURE_PARAMS];

	for (uint32_t buffer = 0; buffer < 2; buffer++) {
		struct core_config cfg = buffer_config(MODE_DOWNPOUR, buffer);
		struct rng r = rng_seed(5, RNG_SIM, 0);
		struct cluster k;

		cfg.optim.kind = OPTIM_ADAM;
		cfg.rate.staleness_scaling = STALE_INVERSE;
		cfg.rate.lr = 0.05;
		cluster_open(&k, cfg, 4, 735, cluster_bowl);
		cluster_run(&k, 4, &r);
		assert_null(k.f.core->accumulator.sum);
		assert_updates(&k, 148);
		memcpy(end[buffer], core_weights(k.f.core), sizeof(end[0]));
		cluster_close(&k);
	}
	assert_memory_equal(end[0], end[1], sizeof(end[0]));
}

/* ---- a restart ------------------------------------------------------------------------------- */

TEST(what_is_in_the_buffer_outlives_the_server)
{
	struct core_config cfg = buffer_config(MODE_DOWNPOUR, 3);
	float g[CLUSTER_PARAMS];
	struct cluster k;

	cluster_open(&k, cfg, 2, 400, cluster_bowl);
	ask_and_push(&k, 0);
	assert_int_equal(cluster_request(&k, 1), 1);
	struct msg again = cluster_gradient(&k, 1, g);
	assert_int_equal(cluster_push(&k, 1), REJECT_NONE);
	double sum = k.f.core->accumulator.sum[5];
	cluster_restart(&k, 2);
	assert_int_equal(k.f.core->accumulator.pushes, 2);
	assert_true(k.f.core->accumulator.sum[5] == sum);
	again.push.stamp = k.worker[1].s;
	assert_int_equal(fixture_acked(&k.f, k.worker[1].peer, &again).duplicate, 1);
	/* the sum contains the replayed gradient only once */
	assert_true(k.f.core->accumulator.sum[5] == sum);
	ask_and_push(&k, 0);
	assert_updates(&k, 1);
	assert_int_equal(core_stats(k.f.core)->images, 30);
	cluster_close(&k);
}

static int resumes(const struct core_snapshot *img, struct core_config cfg, uint32_t buffer)
{
	const char *why = NULL;
	struct core_fixture f;

	cfg.push.buffer_size = buffer;
	cfg.term++;
	int rc = fixture_read(&f, cfg, img, &why);
	if (rc)
		assert_string_equal(why, "it was begun with another --buffer-size");
	else
		fixture_tick(&f, cfg.sessions.recovery_ms);
	if (!rc)
		assert_int_equal(core_stats(f.core)->updates, buffer <= 2);
	fixture_close(&f);
	return !rc;
}

/* A run may be resumed with a buffer of another size. But a run that began without a buffer cannot
 * be resumed with a buffer. */
TEST(a_resumed_run_may_have_a_buffer_of_another_size)
{
	struct core_snapshot img;
	struct cluster k;

	cluster_open(&k, buffer_config(MODE_DOWNPOUR, 4), 1, 400, cluster_ones);
	ask_and_push(&k, 0);
	ask_and_push(&k, 0);
	img = fixture_save(&k.f);
	assert_true(resumes(&img, k.f.cfg, 4));
	assert_true(resumes(&img, k.f.cfg, 2));
	assert_true(resumes(&img, k.f.cfg, 9));
	assert_false(resumes(&img, k.f.cfg, 1));
	fixture_drop(&img);
	cluster_close(&k);
}

/* ---- the serial reference -------------------------------------------------------------------- */

struct twin {
	double w[FIXTURE_PARAMS], v[FIXTURE_PARAMS], s[FIXTURE_PARAMS], square[FIXTURE_PARAMS];
	double sum[FIXTURE_PARAMS], weight;
	uint32_t n, t;
};

static double twin_scaled(const struct core_config *cfg, double ratio)
{
	return cfg->rate.scaling == LR_SCALING_LINEAR ? ratio
	       : cfg->rate.scaling == LR_SCALING_SQRT ? sqrt(ratio)
						      : 1;
}

/* Returns the weight of a gradient with staleness `tau`. */
static double twin_weight(const struct core_config *cfg, double tau, double live)
{
	double age = cfg->rate.staleness_scaling == STALE_RELATIVE ? tau / live : tau;

	return twin_scaled(cfg, 1 / (1 + tau)) /
	       (cfg->rate.staleness_scaling == STALE_CONSTANT || age < 1 ? 1 : age);
}

/* Returns the number by which the learning rate is multiplied because an update uses a->n gradients
 * at once. During the first `scaling_warmup` updates, this number rises from 1. */
static double twin_gain(const struct core_config *cfg, const struct twin *a)
{
	double scale = twin_scaled(cfg, cfg->push.sum ? 1 : a->n);

	return a->t < cfg->rate.scaling_warmup ? 1 + (scale - 1) * a->t / cfg->rate.scaling_warmup
					       : scale;
}

static void twin_update(const struct core_config *cfg, struct twin *a)
{
	double rate = cfg->rate.lr * twin_gain(cfg, a) * a->weight / a->n;
	double norm = 0, clip, g[FIXTURE_PARAMS];

	a->t++;
	for (size_t j = 0; j < FIXTURE_PARAMS; j++) {
		g[j] = a->sum[j] / a->weight * (cfg->push.sum ? a->n : 1);
		norm += g[j] * g[j];
	}
	norm = sqrt(norm);
	clip = cfg->optim.clip_norm > 0 && norm > cfg->optim.clip_norm ? cfg->optim.clip_norm / norm
								       : 1;
	for (size_t j = 0; j < FIXTURE_PARAMS; j++) {
		double d = clip * g[j], q = cfg->optim.beta2;
		double m = cfg->optim.kind == OPTIM_ADAM ? cfg->optim.beta1 : cfg->optim.momentum;

		a->v[j] =
			cfg->optim.kind == OPTIM_ADAM ? m * a->v[j] + (1 - m) * d : m * a->v[j] + d;
		a->s[j] = q * a->s[j] + (1 - q) * d * d;
		if (cfg->optim.kind == OPTIM_SGD)
			a->w[j] -= rate * d;
		else if (cfg->optim.kind == OPTIM_MOMENTUM)
			a->w[j] -= rate * a->v[j];
		else
			a->w[j] -= rate * a->v[j] / (1 - pow(m, a->t)) /
				   (sqrt(a->s[j] / (1 - pow(q, a->t))) + cfg->optim.eps);
	}
	memset(a->sum, 0, sizeof(a->sum));
	a->weight = 0;
	a->n = 0;
}

static void twin_take(const struct core_config *cfg, struct twin *a, const float *g,
	const float *then, double tau, double live)
{
	double weight = twin_weight(cfg, tau, live);

	for (size_t j = 0; j < FIXTURE_PARAMS; j++) {
		double x = (double)g[j], lambda = cfg->dc.lambda;

		if (cfg->dc.kind && cfg->dc.kind == DC_ADAPTIVE) {
			a->square[j] = 0.95 * a->square[j] + 0.05 * x * x;
			lambda /= sqrt(a->square[j] + 1e-7);
		}
		if (cfg->dc.kind && tau > 0)
			x += lambda * x * x * (a->w[j] - (double)then[j]);
		a->sum[j] += weight * x;
	}
	a->weight += weight;
	a->n++;
}

/* Give the push of worker i to the core and to the serial reference. */
static void push_both(struct cluster *k, struct twin *a, uint32_t i)
{
	const struct core *c = k->f.core;
	uint32_t epoch = core_training_epoch(c), live = core_live_workers(c);
	double tau = (double)(core_stats(c)->version - k->worker[i].version);
	float g[CLUSTER_PARAMS], then[CLUSTER_PARAMS];

	(void)cluster_gradient(k, i, g);
	memcpy(then, k->worker[i].w, sizeof(then));
	if (cluster_push(k, i) != REJECT_NONE)
		return;
	twin_take(&k->f.cfg, a, g, then, tau, live);
	if (a->n == k->f.cfg.push.buffer_size || core_training_epoch(c) != epoch)
		twin_update(&k->f.cfg, a);
	assert_int_equal(core_stats(c)->version, a->t);
}

/* Every worker pulls the weights for its next gradient, so that the core keeps a copy of these
 * weights for delay compensation. */
static void pull_all(struct cluster *k, uint64_t pulled[CLUSTER_WORKERS])
{
	for (uint32_t i = 0; i < k->n; i++) {
		const struct cluster_worker *h = &k->worker[i];

		if (h->grant.kind != GRANT_TRAIN || !h->grant.work.count ||
			pulled[i] == h->grant.request)
			continue;
		pulled[i] = h->grant.request;
		fixture_pull(&k->f, h->peer, h->s, WEIGHTS_CURRENT);
	}
}

static void act_and_compare(struct cluster *k, struct twin *a, uint32_t i)
{
	const struct msg_grant *g = &k->worker[i].grant;

	if (g->kind == GRANT_TRAIN && g->work.count)
		push_both(k, a, i);
	else
		cluster_act(k, i);
}

static double distance_to_serial_run(struct core_config cfg, uint64_t seed)
{
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	struct twin a = {.n = 0};
	uint64_t pulled[CLUSTER_WORKERS] = {0};
	struct cluster k;
	double max = 0;

	cluster_open(&k, cfg, 4, 735, cluster_bowl);
	for (int n = 0; n < 100000 && k.f.core->run.ending == END_NOT; n++) {
		act_and_compare(&k, &a, (uint32_t)rng_below(&r, 4));
		pull_all(&k, pulled);
	}
	assert_int_equal(k.f.core->run.ending, END_OVER);
	for (uint32_t e = 0; e < 2; e++)
		assert_int_equal(core_epoch(k.f.core, e)->images, 735);
	assert_int_equal(core_stats(k.f.core)->uncompensated, 0);
	assert_true(core_stats(k.f.core)->staleness_sum > 0);
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		max = fmax(max, fabs(a.w[j] - (double)core_weights(k.f.core)[j]));
	cluster_close(&k);
	return max;
}

/* Returns a configuration with a random value of each option. */
static struct core_config any_config(struct rng *r)
{
	const enum optim_kind kinds[] = {OPTIM_SGD, OPTIM_MOMENTUM, OPTIM_ADAM};
	struct core_config cfg = buffer_config(
		rng_below(r, 2) ? MODE_DOWNPOUR : MODE_SSP, 2 + (uint32_t)rng_below(r, 5));

	cfg.optim.kind = kinds[rng_below(r, 3)];
	cfg.optim.clip_norm = rng_below(r, 2) ? 2 : 0;
	cfg.rate.lr = cfg.optim.kind == OPTIM_ADAM ? 0.02 : 0.004;
	cfg.rate.staleness_scaling = (enum staleness_scaling)rng_below(r, 3);
	cfg.rate.scaling = (enum lr_scaling)rng_below(r, 3);
	cfg.rate.scaling_warmup = 10 * (uint32_t)rng_below(r, 2);
	cfg.push.sum = (enum push_kind)rng_below(r, 2);
	cfg.dc.lambda = 0.05;
	cfg.dc.kind = rng_below(r, 2) ? DC_CONSTANT : DC_NONE;
	cfg.dc.kind += rng_below(r, 2) && cfg.dc.kind;
	return cfg;
}

TEST(a_buffered_run_equals_a_serial_one)
{
	struct rng r = rng_seed(11, RNG_SIM, 0);
	double worst = 0;

	for (uint64_t seed = 1; seed <= 300; seed++) {
		struct core_config cfg = any_config(&r);
		double max = distance_to_serial_run(cfg, seed);

		if (max >= 1e-5)
			print_message("seed %llu: mode %d optimizer %d K %u differs by %.1e\n",
				(unsigned long long)seed, (int)cfg.training.mode,
				(int)cfg.optim.kind, cfg.push.buffer_size, max);
		worst = fmax(worst, max);
	}
	print_message("at most %.1e\n", worst);
	assert_true(worst < 1e-5);
}
