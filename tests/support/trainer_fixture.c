/* trainer_fixture.c - see trainer_fixture.h. */
#include "tests/support/trainer_fixture.h"

#define BATCH 5 /* the batch size in the fake server's WELCOME */
#define SEED  4 /* the seed in the fake server's WELCOME */

struct fake trainer_server;
struct fake_how trainer_server_how;
int trainer_overlaps;
const char *trainer_device = "cpu-ref", *trainer_otherwise;
static struct data trainer_data;
static struct model trainer_model;
/* the backend with which the reference computes gradients */
static struct backend *trainer_backend;
static struct batches trainer_batches;

static uint8_t trainer_pixels[MAX_IMAGES];
static uint16_t trainer_labels[MAX_IMAGES];

/* ---- the reference: gradients and pushes ---------------------------------------------------- */

struct trainer_reference trainer_ref;

void reference_weights(float *w)
{
	for (int i = 0; i < TRAINER_PARAMS; i++)
		w[i] = trainer_server_how.start[i] - trainer_ref.sum[i];
}

void reference_gradient(const float *w, struct work batch, float *g, struct fake_push *of)
{
	uint64_t sub = (uint64_t)batch.epoch << 32 | batch.first;
	const uint32_t *index;
	uint32_t n;
	double loss;

	assert_int_equal(batches_get(&trainer_batches, batch.epoch, batch.first, &index, &n), 0);
	assert_int_equal(backend_gradient(trainer_backend, w, index, n,
				 rng_seed(SEED, RNG_DROPOUT, sub).state, g, &loss),
		0);
	of->work.epoch = batch.epoch;
	of->work.first = of->work.count ? of->work.first : batch.first;
	of->work.count++;
	of->loss =
		(of->loss * (float)of->images + (float)loss * (float)n) / (float)(of->images + n);
	of->images += n;
}

void reference_push(struct fake_push *of, const float *g, uint64_t base_version)
{
	of->base_version = base_version;
	of->base_term = 1;
	of->pulls = trainer_ref.pulls;
	for (int i = 0; i < TRAINER_PARAMS; i++) {
		of->g[i] = g[i];
		trainer_ref.sum[i] += g[i];
	}
	trainer_ref.push[trainer_ref.n++] = *of;
	*of = (struct fake_push){.images = 0};
}

static void trainer_assert_near(float a, float b, const char *what, int push)
{
	if (!(fabsf(a - b) <= 2e-6f * fmaxf(1, fabsf(b))))
		fail_msg("push %d: %s is %.9g, the reference has %.9g", push, what, (double)a,
			(double)b);
}

void trainer_expect_reference(void)
{
	struct fake_seen seen = fake_read_seen(&trainer_server);

	assert_int_equal(seen.last_seq, trainer_ref.n);
	for (int i = 0; i < trainer_ref.n; i++) {
		const struct fake_push *a = &seen.made[i], *b = &trainer_ref.push[i];

		for (int j = 0; j < TRAINER_PARAMS; j++)
			trainer_assert_near(a->g[j], b->g[j], "the gradient", i);
		trainer_assert_near(a->loss, b->loss, "the loss", i);
		assert_int_equal(a->images, b->images);
		assert_memory_equal(&a->work, &b->work, sizeof(a->work));
		assert_int_equal(a->base_version, b->base_version);
		assert_int_equal(a->base_term, b->base_term);
		assert_int_equal(a->pulls, b->pulls);
	}
	assert_int_equal(seen.pulls, trainer_ref.pulls);
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static void trainer_make_data(uint32_t n)
{
	struct idx *f = trainer_data.file;

	for (uint32_t i = 0; i < n; i++) {
		trainer_pixels[i] = (uint8_t)(i * 7);
		trainer_labels[i] = (uint16_t)(i * i % 3);
	}
	f[TRAIN_IMAGES] = (struct idx){.values = trainer_pixels, .n = n};
	f[TEST_IMAGES] = (struct idx){.values = trainer_pixels, .n = 3};
	trainer_data.labels[TRAIN_PART] = trainer_data.labels[TEST_PART] = trainer_labels;
	trainer_data.shape = (struct shape){1, 1, 1};
	trainer_data.id = (struct data_id){.n_train = n, .n_test = 3, .rows = 1, .cols = 1};
}

void trainer_use_model(const char *text)
{
	static struct kx_images trainer_train;
	struct backend_options o = {.device = "cpu-ref", .threads = 1, .max_batch = BATCH};
	struct err e;

	trainer_train = data_train(&trainer_data);
	backend_free(&trainer_backend);
	assert_int_equal(model_parse(&trainer_model, text, (struct shape){1, 1, 1}, &e), 0);
	assert_int_equal(trainer_model.n_params, TRAINER_PARAMS);
	assert_int_equal(backend_new(&trainer_backend, &trainer_model, &o, &e), 0);
	assert_int_equal(backend_use(trainer_backend, &trainer_train, &e), 0);
}

void trainer_use_images(uint32_t n)
{
	trainer_make_data(n);
	trainer_use_model("fc:3");
	batches_release(&trainer_batches);
	batches_init(&trainer_batches, SEED, n, BATCH);
}

int trainer_set_up_all(void **state)
{
	(void)state;
	log_set_level(LOG_ERROR);
	trainer_use_images(IMAGES);
	return 0;
}

int trainer_tear_down_all(void **state)
{
	(void)state;
	backend_free(&trainer_backend);
	batches_release(&trainer_batches);
	return 0;
}

void trainer_start(void)
{
	fake_start(&trainer_server);
	memset(&trainer_ref, 0, sizeof(trainer_ref));
	trainer_server_how = trainer_server.how;
	trainer_server_how.model = trainer_model.text;
	for (int i = 0; i < TRAINER_PARAMS; i++)
		trainer_server_how.start[i] = 0.3f * (float)i - 0.7f;
}

int trainer_set_up(void **state)
{
	(void)state;
	trainer_start();
	return 0;
}

int trainer_tear_down(void **state)
{
	(void)state;
	fake_stop(&trainer_server);
	return 0;
}

int trainer_run_worker(int (*stop)(void *), void *arg)
{
	struct cnnps_options o = {
		.size = sizeof(o), .server = trainer_server.url, .connect_timeout_ms = 10000};
	struct trainer_config t = {.data = &trainer_data,
		.device = trainer_device,
		.otherwise = trainer_otherwise,
		.threads = 1,
		.stop = stop,
		.stop_arg = arg,
		.overlaps = trainer_overlaps};
	struct trainer_work work = {0};
	struct cnnps *c;
	struct err e;
	int rc;

	fake_behave(&trainer_server, trainer_server_how);
	rc = cnnps_connect(&c, &o);

	if (rc)
		fail_msg("%s", cnnps_error(c));
	rc = trainer_run(c, &t, &work, &e);
	cnnps_close(&c);
	return rc;
}

void trainer_train(const struct msg_grant *grants, uint32_t n)
{
	assert_true(n <= FAKE_GRANTS);
	memcpy(trainer_server_how.grants, grants, n * sizeof(*grants));
	trainer_server_how.n_grants = n;
	assert_int_equal(trainer_run_worker(NULL, NULL), PS_EDONE);
}

/* ---- the reference for mode downpour -------------------------------------------------------- */

struct snapshot {
	float w[TRAINER_PARAMS];
	uint64_t version;
};

static void reference_snapshot(struct snapshot *s)
{
	reference_weights(s->w);
	s->version = (uint64_t)trainer_ref.n;
}

/* Add the pushes of one lease to the reference, for rounds of pipelined steps with prefetch. The
 * worker sends the first three pulls before any push. After the first three pulls, the worker sends
 * the pull for round k + 3 just before the push of round k. */
static void reference_rounds(const struct work *lease)
{
	float rate = (float)trainer_server_how.local_rate, p[TRAINER_PARAMS], g[TRAINER_PARAMS],
	      sum[TRAINER_PARAMS];
	struct fake_push of = {.images = 0};
	/* weights: the weights of rounds k, k + 1 and k + 2; later: those of round k + 3 */
	struct snapshot weights[3], later;
	int last_pull = trainer_ref.pulls + (int)((lease->count + trainer_server_how.n_push - 1) /
						    trainer_server_how.n_push);

	for (int k = 0; k < 3; k++) {
		reference_snapshot(&weights[k]);
		trainer_ref.pulls += trainer_ref.pulls < last_pull;
	}
	for (uint32_t i = 0; i < lease->count;) {
		memcpy(p, weights[0].w, sizeof(p));
		memset(sum, 0, sizeof(sum));
		for (uint32_t k = 0; k < trainer_server_how.n_push && i < lease->count; k++, i++) {
			reference_gradient(
				p, (struct work){lease->epoch, lease->first + i, 1}, g, &of);
			for (int j = 0; j < TRAINER_PARAMS; j++) {
				sum[j] += g[j];
				p[j] -= rate * g[j];
			}
		}
		for (int j = 0; j < TRAINER_PARAMS; j++)
			g[j] = trainer_server_how.push_sum ? sum[j] : sum[j] / (float)of.work.count;
		trainer_ref.pulls += trainer_ref.pulls < last_pull;
		reference_snapshot(&later);
		reference_push(&of, g, weights[0].version);
		weights[0] = weights[1];
		weights[1] = weights[2];
		weights[2] = later;
	}
}

void reference_downpour(const struct work *lease)
{
	float rate = (float)trainer_server_how.local_rate, p[TRAINER_PARAMS], g[TRAINER_PARAMS],
	      sum[TRAINER_PARAMS] = {0}, ahead[TRAINER_PARAMS];
	struct fake_push of = {.images = 0};
	uint64_t version = 0, ahead_version = 0;
	int is_ahead = 0;

	if (trainer_server_how.prefetch && (trainer_overlaps || trainer_server_how.n_push > 1) &&
		trainer_server_how.n_push == trainer_server_how.n_fetch) {
		reference_rounds(lease);
		return;
	}

	for (uint32_t i = 0; i < lease->count; i++) {
		int last = i + 1 == lease->count;

		if (i % trainer_server_how.n_fetch == 0) {
			reference_weights(p);
			version = (uint64_t)trainer_ref.n;
			if (is_ahead) {
				memcpy(p, ahead, sizeof(p));
				version = ahead_version;
			} else {
				trainer_ref.pulls++;
			}
			for (int j = 0; j < TRAINER_PARAMS; j++)
				p[j] -= rate * sum[j];
		}
		is_ahead = trainer_server_how.prefetch && !last &&
			   (i + 1) % trainer_server_how.n_fetch == 0;
		if (is_ahead) {
			reference_weights(ahead);
			ahead_version = (uint64_t)trainer_ref.n;
			trainer_ref.pulls++;
		}
		reference_gradient(p, (struct work){lease->epoch, lease->first + i, 1}, g, &of);
		for (int j = 0; j < TRAINER_PARAMS; j++) {
			sum[j] += g[j];
			p[j] -= rate * g[j];
		}
		if (of.work.count < trainer_server_how.n_push && !last)
			continue;
		for (int j = 0; j < TRAINER_PARAMS; j++)
			g[j] = trainer_server_how.push_sum ? sum[j] : sum[j] / (float)of.work.count;
		reference_push(&of, g, version);
		memset(sum, 0, sizeof(sum));
	}
}

const struct msg_grant trainer_two_grants[2] = {
	{.kind = GRANT_TRAIN, .work = {0, 0, 3}}, {.kind = GRANT_TRAIN, .work = {0, 3, 4}}};
