/*
 * Proves that the optimizers compute what PyTorch computes (tests/fixtures/optim.h), on any CPU,
 * called directly and through pushes to the core.
 */
#include "tests/support/core_fixture.h"
#include "tests/fixtures/optim.h"
#include "tests/support/test.h"
#include <math.h>

#define N     67u /* number of weights; not a multiple of any SIMD width */
#define KINDS ((size_t)OPTIM_LBFGS)

static const char *const kind_names[] = {
	"sgd", "adagrad", "momentum", "nesterov", "rmsprop", "adam"};

/* ---- PyTorch -------------------------------------------------------------------------------- */

/* Returns the largest difference between a weight of `ours` and the same weight of `theirs`,
 * relative to the largest weight. */
static double relative_distance(const float *ours, const float *theirs)
{
	double max = 0, largest = 0;

	for (size_t i = 0; i < TORCH_VALUES; i++) {
		max = fmax(max, fabs((double)ours[i] - (double)theirs[i]));
		largest = fmax(largest, fabs((double)theirs[i]));
	}
	return max / largest;
}

static double square_sum(const float *g)
{
	double sum = 0;

	for (size_t i = 0; i < TORCH_VALUES; i++)
		sum += (double)g[i] * (double)g[i];
	return sum;
}

static double distance_from(const struct torch_case *f)
{
	float w[TORCH_VALUES], first[TORCH_VALUES], second[TORCH_VALUES];
	float *const vectors[OPTIM_VECTORS] = {first, second};
	double max = 0;

	memcpy(w, torch_start, sizeof(w));
	for (size_t i = 0; i < TORCH_VALUES; i++) {
		first[i] = optim_first(&f->optim, 0);
		second[i] = optim_first(&f->optim, 1);
	}
	for (uint64_t t = 0; t < TORCH_STEPS; t++) {
		const float *g = torch_gradient[t];
		struct optim_step step = {t + 1,
			f->rate * schedule_factor(&f->schedule, t, f->images, TORCH_EPOCHS),
			optim_clip(&f->optim, square_sum(g))};

		optim_apply(&f->optim, &step, w, w, g, vectors, TORCH_VALUES);
		if ((t + 1) % TORCH_EVERY == 0)
			max = fmax(max, relative_distance(w, f->weights[t / TORCH_EVERY]));
	}
	return max;
}

TEST(every_optimizer_and_schedule_is_pytorchs_within_1e_6)
{
	int wrong = 0;

	for (size_t i = 0; i < TORCH_CASES; i++) {
		double d = distance_from(&torch_case[i]);

		print_message("%-40s %.1e\n", torch_case[i].name, d);
		wrong += !(d <= 1e-6);
	}
	assert_int_equal(wrong, 0);
}

/* The results of PyTorch in the test cases must differ from each other. If two cases were equal, a
 * wrong optimizer could pass the test. */
TEST(no_two_cases_are_the_same)
{
	const size_t last = TORCH_STEPS / TORCH_EVERY - 1;

	for (size_t i = 0; i < TORCH_CASES; i++)
		for (size_t k = 0; k < i; k++)
			assert_true(relative_distance(torch_case[i].weights[last],
					    torch_case[k].weights[last]) > 1e-4);
}

/* Make the steps of a case through pushes of two or three slices. The core counts the steps, and
 * clips by the norm over all slices. */
static void through_the_core(const struct torch_case *torch, struct rng *r)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct stamp s;

	cfg.n_params = TORCH_VALUES;
	cfg.optim = torch->optim;
	cfg.rate.lr = torch->rate;
	cfg.sessions.replay_window = 1000;
	fixture_open(&f, cfg);
	memcpy(f.core->store.weights, torch_start, sizeof(torch_start));
	s = fixture_join(&f, 9, "");
	for (uint64_t t = 0; t < TORCH_STEPS; t++) {
		const float *g = torch_gradient[t];
		uint64_t cut = 1 + rng_below(r, 5), end = cut + 1 + rng_below(r, 6 - cut);
		struct msg m = fixture_push(s, t + 1);

		fixture_slice(&m, 0, cut, g);
		fixture_slice(&m, cut, end - cut, g + cut);
		if (end < TORCH_VALUES)
			fixture_slice(&m, end, TORCH_VALUES - end, g + end);
		m.push.base_version = t;
		fixture_applied(&f, 9, &m);
		if ((t + 1) % TORCH_EVERY == 0)
			assert_true(relative_distance(core_weights(f.core),
					    torch->weights[t / TORCH_EVERY]) <= 1e-6);
	}
	fixture_close(&f);
}

TEST(pushes_in_slices_are_pytorchs_steps_too)
{
	const uint64_t seed = 41;
	struct rng r = rng_seed(seed, RNG_SIM, 0);

	print_message("seed %llu\n", (unsigned long long)seed);
	for (size_t i = 0; i < TORCH_CASES; i++)
		if (torch_case[i].schedule.kind == SCHEDULE_CONSTANT)
			through_the_core(&torch_case[i], &r);
}

/* ---- bits ----------------------------------------------------------------------------------- */

struct vectors {
	float w[N], state[OPTIM_VECTORS][N];
};

/* Returns x, or 0 with the sign of x if x is subnormal. */
static float flushed(float x)
{
	return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x;
}

/* Compute one step by the formulas of optim.h, with a rounding after each operation. `volatile`
 * prevents the compiler from combining operations. */
static void plain_step(
	const struct optim *o, const struct optim_step *s, struct vectors *v, float g, size_t i)
{
	volatile float scaled = flushed((float)s->scale * flushed(g));
	volatile float decayed = flushed((float)o->weight_decay * v->w[i]);
	volatile float d = flushed(scaled + decayed), rate = (float)s->rate, eps = (float)o->eps;
	int adam = o->kind == OPTIM_ADAM;
	double beta1 = adam ? o->beta1 : o->momentum, beta2 = adam ? o->beta2 : o->rmsprop_alpha;
	volatile float keep = (float)beta1, part = (float)(1 - beta1);
	volatile float square = flushed(d * d), t, u;
	volatile float x = flushed(v->state[0][i]), y = flushed(v->state[1][i]);

	if (o->kind == OPTIM_MOMENTUM || o->kind == OPTIM_NESTEROV) {
		t = flushed(keep * x);
		x = flushed(t + d);
		t = flushed(keep * x);
		d = o->kind == OPTIM_MOMENTUM ? x : flushed(d + t);
	} else if (o->kind == OPTIM_ADAGRAD) {
		x = x + square;
	} else if (o->kind == OPTIM_RMSPROP) {
		t = flushed((float)(1 - beta2) * square);
		u = flushed((float)beta2 * x);
		x = flushed(u + t);
	} else if (o->kind == OPTIM_ADAM) {
		double root = sqrt(1 - optim_power(beta2, s->step));

		t = flushed(keep * x);
		u = flushed(part * d);
		x = flushed(t + u);
		t = flushed((float)beta2 * y);
		u = flushed((float)(1 - beta2) * square);
		y = flushed(t + u);
		d = x;
		rate = (float)(s->rate * root / (1 - optim_power(beta1, s->step)));
		eps = (float)(o->eps * root);
	}
	t = flushed(rate * d);
	u = sqrtf(o->kind == OPTIM_ADAM ? y : x) + eps;
	v->w[i] -= optim_is_square(o->kind, 0) || o->kind == OPTIM_ADAM ? flushed(t / u) : t;
	if (optim_vectors(o->kind) > 0)
		v->state[0][i] = x;
	if (optim_vectors(o->kind) > 1)
		v->state[1][i] = y;
}

static void random_values_from(struct rng *r, float *v, size_t n, float from)
{
	for (size_t i = 0; i < n; i++)
		v[i] = from + (1 - from) * (float)rng_unit(r);
}

/* Compare one step on n values with plain_step, at a random offset in an array of 67 values. The
 * step runs once in place and once with a separate array for the result. */
static void bits_of_a_slice(struct rng *r, const struct optim *o, size_t n)
{
	size_t at = rng_below(r, N - n + 1);
	const struct optim_step step = {1 + rng_below(r, 1000), rng_unit(r), rng_unit(r)};
	struct vectors plain, apart, place;
	float g[N], to[N];

	random_values_from(r, g, N, -1);
	random_values_from(r, plain.w, N, -1);
	random_values_from(r, plain.state[0], N, 0);
	random_values_from(r, plain.state[1], N, 0);
	for (size_t i = 0; i < N;
		/* every fifth value: gradients near the smallest normal float32 or its square
		 * root */
		i += 5) {
		g[i] *= i % 2 ? 3e-38f : 3e-19f;
		plain.w[i] = 0;
		plain.state[0][i] *= 3e-38f;
		plain.state[1][i] *= 3e-38f;
	}
	apart = place = plain;
	for (size_t i = at; i < at + n; i++)
		plain_step(o, &step, &plain, g[i], i);
	float *const in_apart[] = {apart.state[0] + at, apart.state[1] + at};
	float *const in_place[] = {place.state[0] + at, place.state[1] + at};
	optim_apply(o, &step, to + at, apart.w + at, g + at, in_apart, n);
	optim_apply(o, &step, place.w + at, place.w + at, g + at, in_place, n);
	assert_memory_equal(to + at, plain.w + at, n * sizeof(float));
	assert_memory_equal(place.w, plain.w, sizeof(plain.w));
	for (size_t i = 0; i < optim_vectors(o->kind); i++) {
		assert_memory_equal(apart.state[i], plain.state[i], sizeof(plain.state[i]));
		assert_memory_equal(place.state[i], plain.state[i], sizeof(plain.state[i]));
	}
}

/* The bits of the result must not depend on the instructions of the CPU, or on the place where a
 * slice begins. */
TEST(optimizers_give_the_bits_of_the_plain_formula)
{
	const uint64_t seed = 31;
	struct rng r = rng_seed(seed, RNG_SIM, 0);

	print_message("seed %llu\n", (unsigned long long)seed);
	for (size_t k = 0; k < KINDS; k++)
		for (size_t n = 1; n <= N; n++) {
			struct optim o = {.kind = (enum optim_kind)k,
				.eps = 1e-8,
				.momentum = 0.9,
				.beta1 = 0.9,
				.beta2 = 0.99,
				.rmsprop_alpha = 0.99,
				.weight_decay = n % 2 ? 0 : 0.01};

			bits_of_a_slice(&r, &o, n);
		}
}

/* ---- edges ---------------------------------------------------------------------------------- */

TEST(clipping_leaves_small_gradients_as_they_are)
{
	const struct optim none = {.clip_norm = 0}, two = {.clip_norm = 2};

	assert_true(optim_clip(&none, 1e30) == 1);
	assert_true(optim_clip(&two, 0) == 1);
	assert_true(optim_clip(&two, 3.99) == 1);
	assert_true(fabs(optim_clip(&two, 16) - 0.5) < 1e-6);
	assert_true(optim_clip(&two, 1e40) > 0);
}

/* When a gradient stays 0, the averages of the state shrink until they are below the smallest
 * normal float32. The CPU computes with such values many times more slowly, and rounding would keep
 * some of them above 0 for ever. */
TEST(averages_of_zeros_become_zero_and_are_never_subnormal)
{
	for (size_t k = 0; k < KINDS; k++) {
		const struct optim o = {.kind = (enum optim_kind)k,
			.eps = 1e-8,
			.momentum = 0.9,
			.beta1 = 0.9,
			.beta2 = 0.99,
			.rmsprop_alpha = 0.9};
		float w[N] = {0}, g[N], first[N] = {0}, second[N] = {0};
		float *const averages[] = {first, second};

		for (size_t i = 0; i < N; i++)
			g[i] = i % 2 ? 1 : -1;
		for (uint64_t step = 1; step <= 20000; step++) {
			const struct optim_step s = {step, 1e-3, 1};

			optim_apply(&o, &s, w, w, g, averages, N);
			memset(g, 0, sizeof(g));
			for (size_t v = 0; v < optim_vectors(o.kind); v++)
				for (size_t i = 0; i < N; i++)
					assert_true(
						averages[v][i] == 0 || isnormal(averages[v][i]));
		}
		if (k != OPTIM_ADAGRAD) /* not Adagrad, whose state is a sum that never shrinks */
			for (size_t v = 0; v < optim_vectors(o.kind); v++)
				assert_true(averages[v][0] == 0 && averages[v][1] == 0);
	}
}

TEST(powers_are_those_of_repeated_products)
{
	double p = 1;

	for (uint64_t n = 0; n <= 1000; n++, p *= 0.999)
		assert_true(fabs(optim_power(0.999, n) / p - 1) < 1e-12);
	assert_true(optim_power(0, 0) == 1 && optim_power(0, 5) == 0);
	assert_true(optim_power(0.999, UINT64_MAX) == 0 && optim_power(1, UINT64_MAX) == 1);
}

/* The test applies the largest gradients that the core accepts, then small gradients, then zeros.
 * Weights and optimizer state must stay finite. */
TEST(the_largest_gradients_leave_everything_finite)
{
	const float g[] = {1e15f, -1e15f, 1e-38f, 0, 1e15f, 0, 0, 0};

	for (size_t k = 0; k < KINDS; k++) {
		struct core_config cfg = fixture_config();
		struct core_fixture f;
		struct stamp s;

		print_message("%s\n", kind_names[k]);
		cfg.optim.kind = (enum optim_kind)k;
		cfg.optim.weight_decay = 1e-6;
		cfg.rate.lr = 1e6;
		fixture_open(&f, cfg);
		s = fixture_join(&f, 9, "");
		for (uint64_t t = 0; t < 300; t++) {
			struct msg m = fixture_push(s, t + 1);

			for (uint32_t i = 0; i < FIXTURE_PARAMS; i++)
				fixture_slice(&m, i, 1, &g[(t + i) % 8]);
			m.push.base_version = t;
			fixture_applied(&f, 9, &m);
			if (f.saving)
				fixture_durable(&f);
		}
		for (size_t i = 0; i < FIXTURE_PARAMS; i++) {
			assert_true(isfinite(core_weights(f.core)[i]));
			for (size_t v = 0; v < optim_vectors(cfg.optim.kind); v++)
				assert_true(isfinite(f.core->store.state[v][i]));
		}
		fixture_close(&f);
	}
}
