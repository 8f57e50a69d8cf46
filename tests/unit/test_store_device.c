/*
 * test_store_device.c - the formulas of a store module (server/device/step.h) give the bits of
 * optim_apply, also for values around the smallest normal float32. test_engine.c compares whole
 * runs.
 */
#include <math.h>
#include <string.h>
#include "common/rng.h"
#include "server/core/optim.h"
#include "tests/device/store_double.h"
#include "tests/support/store_values.h"
#include "tests/support/test.h"

#define N 4099u /* number of weights; odd, so that the last vector of a SIMD loop is not full */

static float w[N], g[N], to[N], first[N], second[N];

/* Takes five steps of the optimizer with optim_apply and with the module, on the same values. */
static void compare_updates(const struct optim *o, const struct optim_step *steps, struct rng *r)
{
	const struct store_module *m = cnnps_store_module();
	const size_t trained = N - 10;
	float *const state[OPTIM_VECTORS] = {first, second};
	float got[OPTIM_VECTORS][N], *const got_state[OPTIM_VECTORS] = {got[0], got[1]};
	char name[STORE_MODULE_NAME];
	void *self;

	assert_null(m->open(&self, 0, name));
	assert_null(m->allocate(self, N, optim_vectors(o->kind)));
	store_values(r, w, N);
	store_state(r, o, state, N);
	assert_null(m->load(self, w, state));
	for (size_t i = 0; i < 5; i++) {
		struct device_step s = {.rule = optim_device_rule(o->kind),
			.coeff = optim_coeff(o, &steps[i]),
			.running = 0.1,
			.trained = trained,
			.count = N,
			.gradient = g};

		store_values(r, g, N);
		assert_null(m->begin(self, to));
		assert_null(m->step(self, &s));
		assert_null(m->wait(self, N));
		optim_apply(o, &steps[i], w, w, g, state, trained);
		for (size_t j = trained; j < N; j++)
			w[j] = (float)(0.9 * (double)w[j] + 0.1 * (double)g[j]);
		assert_memory_equal(to, w, sizeof(w));
	}
	assert_null(m->fetch(self, got_state));
	for (size_t v = 0; v < optim_vectors(o->kind); v++)
		assert_memory_equal(got[v], state[v], trained * sizeof(float));
	m->close(self);
}

TEST(every_optimizer_gives_the_same_bits_on_a_device)
{
	static const double scales[] = {1, 0.37, 1e-20, 1e-39};
	struct rng r = rng_seed(18, RNG_SIM, 3);

	for (int kind = 0; kind < OPTIM_LBFGS; kind++)
		for (uint32_t i = 0; i < 32; i++) {
			const struct optim o = {.kind = (enum optim_kind)kind,
				.weight_decay = i & 1 ? 1e-4 : 0,
				.eps = i & 2 ? 1e-8 : 1e-30,
				.momentum = 0.9,
				.beta1 = 0.9,
				.beta2 = 0.999,
				.rmsprop_alpha = 0.99,
				.adagrad_init = 0.1};
			struct optim_step steps[5];

			for (uint64_t k = 0; k < 5; k++)
				steps[k] = (struct optim_step){
					1 + k + i, i & 4 ? 0.01 : 1, scales[i / 8]};
			compare_updates(&o, steps, &r);
		}
}

/* The products lie on both sides of the limit below which a result becomes 0. One of them is
 * 2^-126 times 1 - 0.75 * 2^-24. As a float32 with subnormal numbers, this product rounds up to
 * 2^-126, a normal number. Rounded to 24 bits, it stays below 2^-126, so the CPU makes it 0. */
TEST(a_product_that_rounds_up_to_the_smallest_normal_number_stays)
{
	const struct optim o = {.kind = OPTIM_SGD};
	uint32_t stays = 0;

	for (size_t i = 0; i < N; i++) {
		g[i] = -(1 - (float)(3548 - 32 + i % 64) * 0x1p-24f);
		w[i] = 0;
	}
	const float factor = (1 + 1774 * 0x1p-23f) * 0x1p-126f;
	const struct optim_step step = {1, (double)factor, 1};
	struct device_step s = {.rule = DEVICE_SGD,
		.coeff = optim_coeff(&o, &step),
		.trained = N,
		.count = N,
		.gradient = g};
	const struct store_module *m = cnnps_store_module();
	float *const none[OPTIM_VECTORS] = {NULL, NULL};
	char name[STORE_MODULE_NAME];
	void *self;

	assert_null(m->open(&self, 0, name));
	assert_null(m->allocate(self, N, 0));
	assert_null(m->load(self, w, none));
	assert_null(m->begin(self, to));
	assert_null(m->step(self, &s));
	assert_null(m->wait(self, N));
	optim_apply(&o, &step, w, w, g, none, N);
	assert_memory_equal(to, w, sizeof(w));
	for (size_t i = 0; i < 64; i++)
		stays += w[i] > 0;
	assert_in_range(stays, 1, 63);
	m->close(self);
}
