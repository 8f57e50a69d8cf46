/* test_trainer.c - what a worker pushes in each mode, against a fake server and a serial reference
 * written straight from proto/WIRE.md, "Modes". Proves the invariants of worker/steps.h. */
#include "tests/unit/fake_server.h"
#include <math.h>
#include "common/log.h"
#include "common/rng.h"
#include "worker/batch.h"
#include "worker/trainer.h"

#define N       FAKE_PARAMS /* of fc:3 on one pixel */
#define IMAGES  33
#define BATCH   5 /* the fake server's */
#define BATCHES 7 /* the last one has 3 images */
#define SEED    4 /* the fake server's */

static struct fake fake;
static struct fake_how how; /* it behaves so once a worker runs */
static struct data data;
static struct model model;
static struct backend *backend; /* the reference's */
static struct batches batches;
static uint8_t pixels[IMAGES], labels[IMAGES];

/* ---- the reference's tools --------------------------------------------------------------------
 */

/* The server's side: weights, and the pushes that it should have seen. */
static struct {
	float sum[N];
	struct fake_push push[FAKE_PUSHES];
	int n, pulls;
} ref;

static void server_weights(float *w)
{
	for (int i = 0; i < N; i++)
		w[i] = how.start[i] - ref.sum[i];
}

static void gradient_of(const float *w, struct work batch, float *g, struct fake_push *of)
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
static void expect_push(struct fake_push *of, const float *g, uint64_t base_version)
{
	of->base_version = base_version;
	of->base_epoch = 1;
	of->pulls = ref.pulls;
	for (int i = 0; i < N; i++) {
		of->g[i] = g[i];
		ref.sum[i] += g[i];
	}
	ref.push[ref.n++] = *of;
	*of = (struct fake_push){.images = 0};
}

static void assert_near(float a, float b, const char *what, int push)
{
	if (!(fabsf(a - b) <= 2e-6f * fmaxf(1, fabsf(b))))
		fail_msg("push %d: %s is %.9g, the reference has %.9g", push, what, (double)a,
			(double)b);
}

/* At the end of training: what came is what the reference has. */
static void pushes_are_the_references(void)
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
		assert_int_equal(a->base_epoch, b->base_epoch);
		assert_int_equal(a->pulls, b->pulls);
	}
	assert_int_equal(seen.pulls, ref.pulls);
}

/* ---- set-up -----------------------------------------------------------------------------------
 */

static void make_data(void)
{
	struct idx *f = data.file;

	for (int i = 0; i < IMAGES; i++) {
		pixels[i] = (uint8_t)(i * 7);
		labels[i] = (uint8_t)(i * i % 3);
	}
	f[TRAIN_IMAGES] = (struct idx){.values = pixels, .dim = {IMAGES, 1, 1}};
	f[TRAIN_LABELS] = (struct idx){.values = labels, .dim = {IMAGES, 1, 1}};
	f[TEST_IMAGES] = (struct idx){.values = pixels, .dim = {3, 1, 1}};
	f[TEST_LABELS] = (struct idx){.values = labels, .dim = {3, 1, 1}};
	data.id = (struct data_id){.n_train = IMAGES, .n_test = 3, .rows = 1, .cols = 1};
}

static void use_model(const char *text)
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

static int set_up_all(void **state)
{
	(void)state;
	log_set_level(LOG_ERROR);
	make_data();
	use_model("fc:3");
	batches_init(&batches, SEED, IMAGES, BATCH);
	return 0;
}

static int tear_down_all(void **state)
{
	(void)state;
	backend_free(&backend);
	batches_release(&batches);
	return 0;
}

static void start(void)
{
	fake_start(&fake);
	memset(&ref, 0, sizeof ref);
	how = fake.how;
	how.model = model.text;
	for (int i = 0; i < N; i++)
		how.start[i] = 0.3f * (float)i - 0.7f;
}

static int set_up(void **state)
{
	(void)state;
	start();
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	fake_stop(&fake);
	return 0;
}

static int run_worker(int (*stop)(void *), void *arg)
{
	struct cnnps_options o = {.server = fake.url, .connect_ms = 10000};
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

static void train(const struct msg_grant *grants, uint32_t n)
{
	assert_true(n <= FAKE_GRANTS);
	memcpy(how.grants, grants, n * sizeof *grants);
	how.n_grants = n;
	assert_int_equal(run_worker(NULL, NULL), PS_EDONE);
}

/* ---- downpour ---------------------------------------------------------------------------------
 */

static void reference_downpour(const struct work *lease)
{
	float rate = (float)how.local_rate, p[N], g[N], sum[N] = {0}, ahead[N];
	struct fake_push of = {.images = 0};
	uint64_t version = 0, ahead_version = 0;
	int is_ahead = 0;

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

static void downpour(uint32_t n_push, uint32_t n_fetch, uint32_t bits)
{
	start();
	how.n_push = n_push;
	how.n_fetch = n_fetch;
	how.push_sum = bits & 1;
	how.prefetch = bits >> 1 & 1;
	how.local_rate = bits & 4 ? 0.25 : 0;
	train(all_in_two, 2);
	reference_downpour(&all_in_two[0].work);
	reference_downpour(&all_in_two[1].work);
	pushes_are_the_references();
	fake_stop(&fake);
}

static void one_batch_is_one_push_at_fresh_weights(void **state)
{
	struct fake_seen seen;

	(void)state;
	train(all_in_two, 2);
	reference_downpour(&all_in_two[0].work);
	reference_downpour(&all_in_two[1].work);
	pushes_are_the_references();
	seen = fake_look(&fake);
	for (int i = 0; i < BATCHES; i++) {
		assert_int_equal(seen.made[i].work.count, 1);
		assert_int_equal(seen.made[i].base_version, i);
		assert_int_equal(seen.made[i].pulls, i + 1);
	}
}

static void every_rhythm_of_pushes_and_pulls_is_the_references(void **state)
{
	static const uint32_t rhythm[][2] = {
		{1, 1}, {2, 1}, {1, 2}, {3, 2}, {2, 3}, {2, 2}, {3, 3}, {10, 10}};

	(void)state;
	for (size_t i = 0; i < sizeof rhythm / sizeof *rhythm; i++)
		for (uint32_t bits = 0; bits < 8; bits++)
			downpour(rhythm[i][0], rhythm[i][1], bits);
}

/* Also where the device takes the steps: one batch, one mask. */
static void every_batch_has_a_dropout_mask_of_its_own(void **state)
{
	(void)state;
	use_model("dropout:0.5 fc:3");
	for (uint32_t bits = 0; bits < 8; bits++) {
		downpour(1, 1, bits);
		downpour(2, 1, bits);
		downpour(3, 3, bits);
	}
	use_model("fc:3");
}

/* ---- exact grants -----------------------------------------------------------------------------
 */

static void reference_exact(const struct msg_grant *grant, int pulls)
{
	double sum[N] = {0};
	struct fake_push of = {.images = 0};
	float w[N], g[N];

	ref.pulls += pulls;
	server_weights(w);
	for (uint32_t i = 0; i < grant->work.count; i++) {
		uint32_t before = of.images;

		gradient_of(w, (struct work){grant->work.epoch, grant->work.first + i, 1}, g, &of);
		for (int j = 0; j < N; j++)
			sum[j] += (double)(of.images - before) * (double)g[j];
	}
	for (int j = 0; j < N; j++)
		g[j] = (float)(sum[j] / of.images);
	expect_push(&of, g, (uint64_t)ref.n);
}

static struct msg_grant exact(uint32_t first, uint32_t count, uint64_t version)
{
	return (struct msg_grant){
		.kind = GRANT_TRAIN, .work = {0, first, count}, .exact = 1, .version = version};
}

static void an_exact_lease_is_one_mean_over_its_images(void **state)
{
	const struct msg_grant grants[] = {exact(4, 3, 0), exact(0, 1, 1), exact(1, 3, 2)};

	(void)state;
	how.mode = MODE_SANDBLASTER;
	how.n_push = 2; /* of no meaning here */
	how.prefetch = 1;
	train(grants, 3);
	for (int i = 0; i < 3; i++)
		reference_exact(&grants[i], 1);
	pushes_are_the_references();
	assert_int_equal(fake_look(&fake).made[0].images, 13);
}

static void a_lease_of_a_finished_step_is_left_and_weights_in_hand_are_used(void **state)
{
	const struct msg_grant grants[] = {
		{.kind = GRANT_TRAIN, .work = {0, 0, 2}}, exact(2, 2, 0), exact(2, 2, 2)};

	(void)state;
	train(grants, 3);
	reference_downpour(&grants[0].work);
	ref.pulls++; /* sees version 2 and that the second lease is too late */
	reference_exact(&grants[2], 0);
	pushes_are_the_references();
	assert_int_equal(fake_look(&fake).leases, 4);
}

static int two_leases(const struct fake *f)
{
	return f->seen.leases >= 2;
}

static void *restart_at_the_second_lease(void *arg)
{
	(void)arg;
	fake_wait(&fake, two_leases, "a second lease");
	fake_set(&fake, &fake.how.mute_leases, 0);
	fake_hang_up(&fake, 1);
	return NULL;
}

/* Version 0 of another life of the server is not the version 0 in hand. */
static void weights_of_before_a_restart_are_not_exact_after_it(void **state)
{
	const struct msg_grant grants[] = {exact(0, 2, 99), exact(0, 2, 0)};
	pthread_t thread;
	struct fake_seen seen;

	(void)state;
	how.mode = MODE_SYNC;
	how.mute_leases_after = 1;
	assert_int_equal(pthread_create(&thread, NULL, restart_at_the_second_lease, NULL), 0);
	train(grants, 2);
	pthread_join(thread, NULL);
	seen = fake_look(&fake);
	assert_int_equal(seen.pulls, 2);
	assert_int_equal(seen.last_seq, 1);
	assert_int_equal(seen.made[0].base_epoch, 2);
	assert_int_equal(seen.made[0].base_version, 0);
}

/* ---- easgd ------------------------------------------------------------------------------------
 */

static void reference_easgd(const struct work *lease, float *x)
{
	float rate = (float)how.local_rate, part = (float)how.elastic, g[N], centre[N];
	struct fake_push of = {.images = 0};

	for (uint32_t i = 0; i < lease->count; i++) {
		gradient_of(x, (struct work){lease->epoch, lease->first + i, 1}, g, &of);
		for (int j = 0; j < N; j++)
			x[j] -= rate * g[j];
		if (of.work.count < how.n_push && i + 1 < lease->count)
			continue;
		server_weights(centre);
		ref.pulls++;
		for (int j = 0; j < N; j++) {
			float e = part * (x[j] - centre[j]);

			g[j] = -e;
			x[j] -= e;
		}
		expect_push(&of, g, (uint64_t)ref.n);
	}
}

static void easgd_ties_its_own_weights_to_the_centre(void **state)
{
	float x[N];

	(void)state;
	for (uint32_t prefetch = 0; prefetch < 2; prefetch++) {
		start();
		how.mode = MODE_EASGD;
		how.n_push = 2;
		how.local_rate = 0.5;
		how.elastic = 0.3;
		how.prefetch = prefetch;
		train(all_in_two, 2);
		server_weights(x);
		ref.pulls++;
		reference_easgd(&all_in_two[0].work, x);
		reference_easgd(&all_in_two[1].work, x);
		pushes_are_the_references();
		assert_int_equal(ref.n, 4); /* 2, 1; 2, 2 */
		fake_stop(&fake);
	}
}

/* ---- ends -------------------------------------------------------------------------------------
 */

static int at_the_fifth_batch(void *arg)
{
	return ++*(int *)arg == 5;
}

static void a_stopped_worker_pushes_nothing_by_halves(void **state)
{
	int asked = 0;

	(void)state;
	memcpy(how.grants, all_in_two, sizeof all_in_two);
	how.n_grants = 2;
	how.n_push = 2;
	assert_int_equal(run_worker(at_the_fifth_batch, &asked), PS_ESHUTDOWN);
	assert_int_equal(asked, 5);
	assert_int_equal(fake_look(&fake).last_seq, 2); /* 2, 1; 1 and the end */
	assert_int_equal(fake_look(&fake).made[1].work.count, 1);
}

static void a_lease_of_no_such_batch_is_refused(void **state)
{
	static const struct msg_grant grant = {.kind = GRANT_TRAIN, .work = {0, BATCHES, 1}};

	(void)state;
	how.grants[0] = grant;
	how.n_grants = 1;
	assert_int_equal(run_worker(NULL, NULL), PS_EPROTO);
	assert_int_equal(fake_look(&fake).pushes, 0);
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SERVER(one_batch_is_one_push_at_fresh_weights),
		cmocka_unit_test(every_rhythm_of_pushes_and_pulls_is_the_references),
		cmocka_unit_test(every_batch_has_a_dropout_mask_of_its_own),
		WITH_SERVER(an_exact_lease_is_one_mean_over_its_images),
		WITH_SERVER(a_lease_of_a_finished_step_is_left_and_weights_in_hand_are_used),
		WITH_SERVER(weights_of_before_a_restart_are_not_exact_after_it),
		cmocka_unit_test(easgd_ties_its_own_weights_to_the_centre),
		WITH_SERVER(a_stopped_worker_pushes_nothing_by_halves),
		WITH_SERVER(a_lease_of_no_such_batch_is_refused),
	};

	return cmocka_run_group_tests(tests, set_up_all, tear_down_all);
}
