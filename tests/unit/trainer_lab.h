/*
 * trainer_lab.h - a trainer against a fake server, and the tools of a serial reference that is
 * written straight from proto/WIRE.md, "Modes".
 *
 * A header with bodies, for one test program is one file. Thread: the test's.
 */
#ifndef TESTS_UNIT_TRAINER_LAB_H
#define TESTS_UNIT_TRAINER_LAB_H
#include "tests/unit/fake_server.h"
#include <math.h>
#include "common/log.h"
#include "common/rng.h"
#include "worker/data/batch.h"
#include "worker/trainer.h"

#define N       FAKE_PARAMS /* of fc:3 on one pixel */
#define IMAGES  33
#define BATCH   5  /* the fake server's */
#define BATCHES 7  /* the last one has 3 images */
#define MOST    58 /* images: 12 batches, the last one has 3 */
#define SEED    4  /* the fake server's */

static struct fake fake;
static struct fake_how how; /* it behaves so once a worker runs */
static struct data data;
static struct model model;
static struct backend *backend; /* the reference's */
static struct batches batches;
static uint8_t pixels[MOST], labels[MOST];

/* ---- the reference's tools ------------------------------------------------------------------- */

/* The server's side: weights, and the pushes that it should have seen. */
static struct {
	float sum[N];
	struct fake_push push[FAKE_PUSHES];
	int n, pulls;
} ref;

static inline void server_weights(float *w)
{
	for (int i = 0; i < N; i++)
		w[i] = how.start[i] - ref.sum[i];
}

static inline void gradient_of(const float *w, struct work batch, float *g, struct fake_push *of)
{
	uint64_t sub = (uint64_t)batch.epoch << 32 | batch.first;
	const uint32_t *index;
	uint32_t n;
	double loss;

	assert_int_equal(batches_get(&batches, batch.epoch, batch.first, &index, &n), 0);
	assert_int_equal(backend_gradient(backend, w, index, n,
				 rng_seed(SEED, RNG_DROPOUT, sub).state, g, &loss),
		0);
	of->work.epoch = batch.epoch;
	of->work.first = of->work.count ? of->work.first : batch.first;
	of->work.count++;
	of->loss =
		(of->loss * (float)of->images + (float)loss * (float)n) / (float)(of->images + n);
	of->images += n;
}

/* The push is made; what gathered in `of` begins anew. */
static inline void expect_push(struct fake_push *of, const float *g, uint64_t base_version)
{
	of->base_version = base_version;
	of->base_term = 1;
	of->pulls = ref.pulls;
	for (int i = 0; i < N; i++) {
		of->g[i] = g[i];
		ref.sum[i] += g[i];
	}
	ref.push[ref.n++] = *of;
	*of = (struct fake_push){.images = 0};
}

static inline void assert_near(float a, float b, const char *what, int push)
{
	if (!(fabsf(a - b) <= 2e-6f * fmaxf(1, fabsf(b))))
		fail_msg("push %d: %s is %.9g, the reference has %.9g", push, what, (double)a,
			(double)b);
}

/* At the end of training: what came is what the reference has. */
static inline void pushes_are_the_references(void)
{
	struct fake_seen seen = fake_look(&fake);

	assert_int_equal(seen.last_seq, ref.n);
	for (int i = 0; i < ref.n; i++) {
		const struct fake_push *a = &seen.made[i], *b = &ref.push[i];

		for (int j = 0; j < N; j++)
			assert_near(a->g[j], b->g[j], "the gradient", i);
		assert_near(a->loss, b->loss, "the loss", i);
		assert_int_equal(a->images, b->images);
		assert_memory_equal(&a->work, &b->work, sizeof a->work);
		assert_int_equal(a->base_version, b->base_version);
		assert_int_equal(a->base_term, b->base_term);
		assert_int_equal(a->pulls, b->pulls);
	}
	assert_int_equal(seen.pulls, ref.pulls);
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static inline void make_data(uint32_t n)
{
	struct idx *f = data.file;

	for (uint32_t i = 0; i < n; i++) {
		pixels[i] = (uint8_t)(i * 7);
		labels[i] = (uint8_t)(i * i % 3);
	}
	f[TRAIN_IMAGES] = (struct idx){.values = pixels, .dim = {n, 1, 1}};
	f[TRAIN_LABELS] = (struct idx){.values = labels, .dim = {n, 1, 1}};
	f[TEST_IMAGES] = (struct idx){.values = pixels, .dim = {3, 1, 1}};
	f[TEST_LABELS] = (struct idx){.values = labels, .dim = {3, 1, 1}};
	data.id = (struct data_id){.n_train = n, .n_test = 3, .rows = 1, .cols = 1};
}

static inline void use_model(const char *text)
{
	static struct kx_images train;
	struct backend_options o = {.device = "cpu-ref", .threads = 1, .max_batch = BATCH};
	struct err e;

	train = data_train(&data);
	backend_free(&backend);
	assert_int_equal(model_parse(&model, text, (struct shape){1, 1, 1}, &e), 0);
	assert_int_equal(model.n_params, N);
	assert_int_equal(backend_new(&backend, &model, &o, &e), 0);
	assert_int_equal(backend_use(backend, &train, &e), 0);
}

static inline void use_images(uint32_t n)
{
	make_data(n);
	use_model("fc:3");
	batches_release(&batches);
	batches_init(&batches, SEED, n, BATCH);
}

static inline int set_up_all(void **state)
{
	(void)state;
	log_set_level(LOG_ERROR);
	use_images(IMAGES);
	return 0;
}

static inline int tear_down_all(void **state)
{
	(void)state;
	backend_free(&backend);
	batches_release(&batches);
	return 0;
}

static inline void start(void)
{
	fake_start(&fake);
	memset(&ref, 0, sizeof ref);
	how = fake.how;
	how.model = model.text;
	for (int i = 0; i < N; i++)
		how.start[i] = 0.3f * (float)i - 0.7f;
}

static inline int set_up(void **state)
{
	(void)state;
	start();
	return 0;
}

static inline int tear_down(void **state)
{
	(void)state;
	fake_stop(&fake);
	return 0;
}

static inline int run_worker(int (*stop)(void *), void *arg)
{
	struct cnnps_options o = {.server = fake.url, .connect_timeout_ms = 10000};
	struct trainer_config t = {
		.data = &data, .device = "cpu-ref", .threads = 1, .stop = stop, .stop_arg = arg};
	struct trainer_work work = {0};
	struct cnnps *c;
	struct err e;
	int status;

	fake_behave(&fake, how);
	status = cnnps_connect(&c, &o);

	if (status)
		fail_msg("%s", o.why);
	status = trainer_run(c, &t, &work, &e);
	cnnps_close(&c);
	return status;
}

static inline void train(const struct msg_grant *grants, uint32_t n)
{
	assert_true(n <= FAKE_GRANTS);
	memcpy(how.grants, grants, n * sizeof *grants);
	how.n_grants = n;
	assert_int_equal(run_worker(NULL, NULL), PS_EDONE);
}

/* ---- downpour's reference -------------------------------------------------------------------- */

struct snapshot {
	float w[N];
	uint64_t version;
};

static inline void take_snapshot(struct snapshot *s)
{
	server_weights(s->w);
	s->version = (uint64_t)ref.n;
}

/* Bursts, pulled ahead: the pull for burst k + 3 is said before the push of burst k, the first
 * three before any. */
static inline void reference_bursts(const struct work *lease)
{
	float rate = (float)how.local_rate, p[N], g[N], sum[N];
	struct fake_push of = {.images = 0};
	struct snapshot weights[3], later; /* of this burst and the next two; of the one after */
	int last_pull = ref.pulls + (int)((lease->count + how.n_push - 1) / how.n_push);

	for (int k = 0; k < 3; k++) {
		take_snapshot(&weights[k]);
		ref.pulls += ref.pulls < last_pull;
	}
	for (uint32_t i = 0; i < lease->count;) {
		memcpy(p, weights[0].w, sizeof p);
		memset(sum, 0, sizeof sum);
		for (uint32_t k = 0; k < how.n_push && i < lease->count; k++, i++) {
			gradient_of(p, (struct work){lease->epoch, lease->first + i, 1}, g, &of);
			for (int j = 0; j < N; j++) {
				sum[j] += g[j];
				p[j] -= rate * g[j];
			}
		}
		for (int j = 0; j < N; j++)
			g[j] = how.push_sum ? sum[j] : sum[j] / (float)of.work.count;
		ref.pulls += ref.pulls < last_pull;
		take_snapshot(&later);
		expect_push(&of, g, weights[0].version);
		weights[0] = weights[1];
		weights[1] = weights[2];
		weights[2] = later;
	}
}

static inline void reference_downpour(const struct work *lease)
{
	float rate = (float)how.local_rate, p[N], g[N], sum[N] = {0}, ahead[N];
	struct fake_push of = {.images = 0};
	uint64_t version = 0, ahead_version = 0;
	int is_ahead = 0;

	if (how.prefetch && how.n_push > 1 && how.n_push == how.n_fetch) {
		reference_bursts(lease);
		return;
	}

	for (uint32_t i = 0; i < lease->count; i++) {
		int last = i + 1 == lease->count;

		if (i % how.n_fetch == 0) {
			server_weights(p);
			version = (uint64_t)ref.n;
			if (is_ahead) {
				memcpy(p, ahead, sizeof p);
				version = ahead_version;
			} else {
				ref.pulls++;
			}
			for (int j = 0; j < N; j++)
				p[j] -= rate * sum[j];
		}
		is_ahead = how.prefetch && !last && (i + 1) % how.n_fetch == 0;
		if (is_ahead) {
			server_weights(ahead);
			ahead_version = (uint64_t)ref.n;
			ref.pulls++;
		}
		gradient_of(p, (struct work){lease->epoch, lease->first + i, 1}, g, &of);
		for (int j = 0; j < N; j++) {
			sum[j] += g[j];
			p[j] -= rate * g[j];
		}
		if (of.work.count < how.n_push && !last)
			continue;
		for (int j = 0; j < N; j++)
			g[j] = how.push_sum ? sum[j] : sum[j] / (float)of.work.count;
		expect_push(&of, g, version);
		memset(sum, 0, sizeof sum);
	}
}

static const struct msg_grant all_in_two[] = {
	{.kind = GRANT_TRAIN, .work = {0, 0, 3}}, {.kind = GRANT_TRAIN, .work = {0, 3, 4}}};

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

#endif
