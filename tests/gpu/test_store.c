/*
 * test_store.c - the store module for GPUs (server/device/cuda/store.cu) computes the same bits as
 * optim_apply. The tests cover every optimizer, vectors of odd sizes, ordinary and page-locked
 * memory, and pushes that have only some of the values. The pass over a gradient of another process
 * gives the checksum, the norm and the largest magnitude that the CPU computes.
 *
 * Without a GPU, every test is skipped, or fails if KX_REQUIRE_GPU=1. CNN_TEST_STORE names another
 * module, such as build/release/tests/device/cnnps-store-cuda.so, to try out the tests themselves.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/engine.h"
#include "proto/wire.h"
#include "server/core/optim.h"
#include "server/core/vec.h"
#include "server/device/module.h"
#include "tests/support/store_values.h"
#include "tests/support/test.h"

#define RUNNING 0.1
#define STEPS   3

static const struct store_module *module;

/* Returns the path of the module. The module is in the build directory, and this program is in its
 * subdirectory tests/gpu. */
static const char *path_of_module(void)
{
	static char path[4200];
	const char *other = getenv("CNN_TEST_STORE");
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 100);

	if (other && *other)
		return other;
	assert_true(n > 0);
	path[n] = '\0';
	for (int up = 0; up < 3; up++)
		*strrchr(path, '/') = '\0';
	memcpy(path + strlen(path), "/cnnps-store-cuda.so", sizeof("/cnnps-store-cuda.so"));
	return path;
}

static int load_store_module(void **state)
{
	void *library = dlopen(path_of_module(), RTLD_NOW | RTLD_LOCAL);
	void *symbol = library ? dlsym(library, STORE_MODULE_SYMBOL) : NULL;
	store_module_fn *entry;

	(void)state;
	memcpy(&entry, &symbol, sizeof(entry));
	module = symbol ? entry() : NULL;
	if (library && !symbol)
		return 1;
	return 0;
}

TEST_GROUP(load_store_module, NULL)

/* Opens GPU 0. Without a module or a GPU, skips the test or fails it. */
static void *open_gpu(void)
{
	char name[STORE_MODULE_NAME] = "";
	void *self = NULL;
	const char *why = module ? module->open(&self, 0, name) : "this build has no module";

	if (!why)
		return self;
	if (getenv("KX_REQUIRE_GPU"))
		fail_msg("%s", why);
	skip();
	return NULL;
}

static void ok(const char *why)
{
	if (why)
		fail_msg("%s", why);
}

/* A part of the vector of weights; count 0: the part is empty. */
struct part {
	size_t offset, count;
};

struct subject {
	size_t n, trained;
	struct part part[2];
	float *w, *g, *to, *state[OPTIM_VECTORS], *got;
};

static void *ordinary(size_t bytes)
{
	return calloc(1, bytes);
}

static void store_subject_open(struct subject *s, size_t n, void *(*allocate)(size_t bytes))
{
	*s = (struct subject){.n = n, .trained = n - n / 7};
	s->part[0].count = n;
	s->w = malloc(n * sizeof(float));
	s->got = malloc(n * sizeof(float));
	s->g = allocate(n * sizeof(float));
	s->to = allocate(n * sizeof(float));
	for (size_t i = 0; i < OPTIM_VECTORS; i++)
		s->state[i] = calloc(n, sizeof(float));
	assert_true(s->w && s->got && s->g && s->to && s->state[0] && s->state[1]);
}

static void subject_close(struct subject *s, void (*release)(void *memory))
{
	release(s->g);
	release(s->to);
	free(s->w);
	free(s->got);
	for (size_t i = 0; i < OPTIM_VECTORS; i++)
		free(s->state[i]);
}

/* Takes the step on the CPU that the GPU takes, and changes s->w and s->state. */
static void step_on_cpu(const struct subject *s, const struct optim *o,
	const struct optim_step *step, const struct part *p)
{
	const size_t end = p->offset + p->count;
	const size_t limit = s->trained > p->offset ? s->trained : p->offset;
	const size_t trained = end < limit ? end : limit;
	float *state[OPTIM_VECTORS];

	for (size_t i = 0; i < OPTIM_VECTORS; i++)
		state[i] = s->state[i] + p->offset;
	optim_apply(o, step, s->w + p->offset, s->w + p->offset, s->g + p->offset, state,
		trained - p->offset);
	for (size_t i = trained; i < end; i++)
		s->w[i] = (float)((1 - RUNNING) * (double)s->w[i] + RUNNING * (double)s->g[i]);
}

static void step_on_both(const struct subject *s, void *gpu, const struct optim *o, uint64_t number)
{
	const struct optim_step step = {number, number % 2 ? 0.01 : 1, number % 3 ? 1 : 1e-20};

	ok(module->begin(gpu, s->to));
	for (size_t i = 0; i < 2; i++) {
		const struct part *p = &s->part[i];
		const struct device_step d = {.rule = optim_device_rule(o->kind),
			.coeff = optim_coeff(o, &step),
			.running = RUNNING,
			.trained = s->trained,
			.offset = p->offset,
			.count = p->count,
			.gradient = s->g + p->offset};

		if (p->count == 0)
			continue;
		ok(module->step(gpu, &d));
		step_on_cpu(s, o, &step, p);
	}
	for (size_t n = 8192; n < s->n; n += 8192)
		ok(module->wait(gpu, n));
	ok(module->wait(gpu, s->n));
}

static struct optim usual_optimizer(enum optim_kind kind)
{
	return (struct optim){.kind = kind,
		.weight_decay = 1e-4,
		.eps = 1e-8,
		.momentum = 0.9,
		.beta1 = 0.9,
		.beta2 = 0.999,
		.rmsprop_alpha = 0.99};
}

static void compare_store(const struct subject *s, void *gpu, enum optim_kind kind, struct rng *r)
{
	const struct optim o = usual_optimizer(kind);
	float *got[OPTIM_VECTORS] = {s->got, s->got};

	ok(module->allocate(gpu, s->n, optim_vectors(kind)));
	store_values(r, s->w, s->n);
	store_state(r, &o, s->state, s->n);
	ok(module->load(gpu, s->w, s->state));
	for (uint64_t i = 1; i <= STEPS; i++) {
		store_values(r, s->g, s->n);
		step_on_both(s, gpu, &o, i);
		assert_memory_equal(s->to, s->w, s->n * sizeof(float));
	}
	got[0] = optim_vectors(kind) > 0 ? calloc(s->n, sizeof(float)) : NULL;
	ok(module->fetch(gpu, got));
	if (got[0])
		assert_memory_equal(got[0], s->state[0], s->n * sizeof(float));
	if (optim_vectors(kind) > 1)
		assert_memory_equal(got[1], s->state[1], s->n * sizeof(float));
	free(got[0]);
}

static void compare_optimizers(void *gpu, const struct subject *s)
{
	struct rng r = rng_seed(s->n, RNG_SIM, 3);

	for (int kind = 0; kind < OPTIM_LBFGS; kind++)
		compare_store(s, gpu, (enum optim_kind)kind, &r);
}

static const size_t sizes[] = {1, 7, 4099, 131072, 131073, 435001, 1000003};

static void compare_sizes(void *(*allocate)(size_t bytes), void (*release)(void *memory))
{
	void *gpu = open_gpu();

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct subject s;

		store_subject_open(&s, sizes[i], allocate);
		compare_optimizers(gpu, &s);
		subject_close(&s, release);
	}
	module->close(gpu);
}

TEST(every_optimizer_gives_the_bits_of_the_cpu_from_ordinary_memory)
{
	compare_sizes(ordinary, free);
}

TEST(every_optimizer_gives_the_bits_of_the_cpu_from_page_locked_memory)
{
	void *gpu = open_gpu(); /* allocate_host may be called only after a GPU was opened */

	module->close(gpu);
	compare_sizes(module->allocate_host, module->release_host);
}

TEST(values_without_a_gradient_stay)
{
	void *gpu = open_gpu();
	struct subject s;

	store_subject_open(&s, 300007, ordinary);
	s.part[0] = (struct part){3, 140001};
	s.part[1] = (struct part){150007, 140001};
	compare_optimizers(gpu, &s);
	subject_close(&s, free);
	module->close(gpu);
}

TEST(memory_that_is_page_locked_later_works)
{
	void *gpu = open_gpu();
	struct subject s;

	store_subject_open(&s, 435001, ordinary);
	module->pin(gpu, s.to, s.n * sizeof(float));
	compare_optimizers(gpu, &s);
	module->unpin(gpu, s.to);
	compare_optimizers(gpu, &s);
	subject_close(&s, free);
	module->close(gpu);
}

TEST(a_gpu_that_does_not_exist_is_refused)
{
	char name[STORE_MODULE_NAME];
	void *gpu = open_gpu(), *other;
	const char *why = module->open(&other, 63, name);

	assert_non_null(why);
	assert_non_null(strstr(why, "no such GPU"));
	assert_null(other);
	module->close(gpu);
}

TEST(too_little_memory_is_an_error)
{
	void *gpu = open_gpu();

	if (getenv("CNN_TEST_STORE"))
		skip();
	assert_non_null(module->allocate(gpu, (size_t)1 << 40, 2));
	/* succeeds: the failed allocation does not affect later calls */
	ok(module->allocate(gpu, 100, 1));
	module->close(gpu);
}

/* ---- gradients and weights of other processes ------------------------------------------------ */

static uint32_t peak_of(const float *v, size_t n)
{
	uint32_t peak = 0, bits;

	for (size_t i = 0; i < n; i++) {
		memcpy(&bits, &v[i], sizeof(bits));
		peak = (bits & 0x7fffffffu) > peak ? bits & 0x7fffffffu : peak;
	}
	return peak;
}

static void compare_pass(const float *v, size_t n, size_t trained, const struct store_pass *p)
{
	double squares = 0;

	for (size_t i = 0; i < trained; i += ENGINE_BLOCK)
		squares +=
			vec_squares(v + i, trained - i < ENGINE_BLOCK ? trained - i : ENGINE_BLOCK);
	assert_true(p->xxh3 == wire_checksum(v, n));
	assert_memory_equal(&p->squares, &squares, sizeof(squares));
	assert_int_equal(p->peak, peak_of(v, n));
}

/* Fills a gradient whose squares are finite, with subnormal values and zeros. */
static void fill_mild_gradient(struct rng *r, float *v, size_t n)
{
	store_values(r, v, n);
	for (size_t i = 0; i < n; i++)
		if (!(v[i] < 1e15f && v[i] > -1e15f))
			v[i] = 1e15f;
}

static const size_t pass_sizes[] = {
	272, 273, 511, 8191, 8192, 8193, 16384 + 257, 131073, 435001, 1000003};

TEST(a_gradient_of_another_process_is_copied_and_measured_in_one_pass)
{
	void *gpu = open_gpu();
	struct rng r = rng_seed(18, RNG_SIM, 3);

	for (size_t i = 0; i < sizeof(pass_sizes) / sizeof(pass_sizes[0]); i++) {
		const size_t n = pass_sizes[i], trained[] = {n, n - n / 7, 1};
		float *from = module->allocate_host((n + 64) * sizeof(float));

		assert_non_null(from);
		ok(module->allocate(gpu, n, 0));
		for (size_t t = 0; t < 3; t++) {
			struct store_pass p;
			const float *copy, *readable;

			fill_mild_gradient(&r, from, n);
			ok(module->take(gpu, t, from, n, trained[t]));
			ok(module->taken(gpu, t, &copy, &p));
			compare_pass(from, n, trained[t], &p);
			readable = copy;
			ok(module->readable(gpu, &readable, n));
			assert_memory_equal(readable, from, n * sizeof(float));
		}
		module->release_host(from);
	}
	module->close(gpu);
}

/* Copies the weights to `to` in the way in which another process gets them. */
static struct store_pass give_weights(void *gpu, size_t at, float *to, int hashes)
{
	struct store_pass p;
	int done = 0;

	ok(module->give(gpu, at, to, hashes));
	ok(module->given(gpu, at, 0, &done, &p)); /* does not wait, so `done` may be 0 or 1 */
	ok(module->given(gpu, at, 1, &done, &p));
	assert_int_equal(done, 1);
	return p;
}

/* Copy two gradients to the GPU while it applies two earlier gradients to the weights. */
TEST(gradients_are_copied_during_updates)
{
	const struct optim o = usual_optimizer(OPTIM_MOMENTUM);
	const struct part all = {0, 435001};
	struct rng r = rng_seed(18, RNG_SIM, 5);
	float *from[STORE_COPIES];
	struct subject s;
	void *gpu = open_gpu();

	store_subject_open(&s, all.count, module->allocate_host);
	ok(module->allocate(gpu, s.n, 1));
	store_values(&r, s.w, s.n);
	ok(module->load(gpu, s.w, s.state));
	for (size_t i = 0; i < STORE_COPIES; i++)
		from[i] = module->allocate_host((s.n + 64) * sizeof(float));
	for (uint64_t step = 0; step < 40; step++) {
		const struct optim_step now = {step + 1, 0.01, 1};
		const size_t at = step % STORE_COPIES;
		struct device_step d = {.rule = optim_device_rule(o.kind),
			.coeff = optim_coeff(&o, &now),
			.running = RUNNING,
			.trained = s.trained,
			.count = s.n};
		struct store_pass p;

		for (size_t i = step ? STORE_COPIES - 1 : 0; i < STORE_COPIES; i++) {
			const size_t next = (step + i) % STORE_COPIES;

			fill_mild_gradient(&r, from[next], s.n);
			ok(module->take(gpu, next, from[next], s.n, s.trained));
		}
		ok(module->taken(gpu, at, &d.gradient, &p));
		compare_pass(from[at], s.n, s.trained, &p);
		ok(module->begin(gpu, NULL));
		ok(module->step(gpu, &d));
		ok(module->wait(gpu, s.n));
		memcpy(s.g, from[at], s.n * sizeof(float));
		step_on_cpu(&s, &o, &now, &all);
		if (step % 3)
			continue;
		p = give_weights(gpu, step % STORE_GIVES, s.to, 1);
		assert_memory_equal(s.to, s.w, s.n * sizeof(float));
		assert_true(p.xxh3 == wire_checksum(s.w, s.n));
		(void)give_weights(gpu, 0, s.to, 0);
		assert_memory_equal(s.to, s.w, s.n * sizeof(float));
	}
	for (size_t i = 0; i < STORE_COPIES; i++)
		module->release_host(from[i]);
	subject_close(&s, module->release_host);
	module->close(gpu);
}

TEST(a_wild_gradient_is_measured_as_wild)
{
	void *gpu = open_gpu();
	const uint32_t nan = 0x7fc00001u;
	const size_t n = 20000;
	float *from = module->allocate_host(n * sizeof(float));
	struct store_pass p;
	const float *copy;

	ok(module->allocate(gpu, n, 0));
	ok(module->take(gpu, 0, from, n, n));
	ok(module->taken(gpu, 0, &copy, &p));
	assert_int_equal(p.peak, 0);
	memcpy(&from[n - 1], &nan, sizeof(nan));
	ok(module->take(gpu, 0, from, n, n));
	ok(module->taken(gpu, 0, &copy, &p));
	assert_int_equal(p.peak, nan);
	module->release_host(from);
	module->close(gpu);
}

/* Takes steps that the module may defer, on private copies of the gradients. Compares the weights
 * that another process gets, and the weights that the host gets, with those of the CPU. */
static void compare_deferred(void *gpu, struct subject *s, enum optim_kind kind, struct rng *r)
{
	const struct optim o = usual_optimizer(kind);
	const struct part all = {0, s->n};

	ok(module->allocate(gpu, s->n, optim_vectors(kind)));
	store_values(r, s->w, s->n);
	store_state(r, &o, s->state, s->n);
	ok(module->load(gpu, s->w, s->state));
	for (uint64_t i = 1; i <= STEPS; i++) {
		const struct optim_step step = {i, 0.01, 1};
		struct device_step d = {.rule = optim_device_rule(kind),
			.coeff = optim_coeff(&o, &step),
			.running = RUNNING,
			.trained = s->trained,
			.count = s->n};
		struct store_pass p;

		store_values(r, s->g, s->n);
		ok(module->take(gpu, i % 2, s->g, s->n, s->trained));
		ok(module->taken(gpu, i % 2, &d.gradient, &p));
		ok(module->begin(gpu, NULL));
		ok(module->step(gpu, &d));
		ok(module->wait(gpu, s->n));
		step_on_cpu(s, &o, &step, &all);
		p = give_weights(gpu, i, s->to, 1);
		assert_memory_equal(s->to, s->w, s->n * sizeof(float));
		assert_true(p.xxh3 == wire_checksum(s->w, s->n));
		ok(module->weights(gpu, s->got));
		assert_memory_equal(s->got, s->w, s->n * sizeof(float));
	}
	/* a gradient in memory of the host, and an update that is not deferred */
	s->part[0] = all;
	store_values(r, s->g, s->n);
	step_on_both(s, gpu, &o, 4);
	assert_memory_equal(s->to, s->w, s->n * sizeof(float));
}

/* This struct describes a thread that reads the copies that the device keeps of weights and state,
 * while the test makes further updates. */
struct kept_reader {
	void *gpu;
	size_t n;
	char *got; /* receives the weights and two state vectors, at an odd address */
	const char *why;
};

static void *get_kept(void *arg)
{
	struct kept_reader *k = arg;
	const size_t bytes = k->n * sizeof(float);
	void *const state[OPTIM_VECTORS] = {k->got + bytes, k->got + 2 * bytes};

	k->why = module->kept(k->gpu, k->got, state);
	return NULL;
}

static void compare_kept(const struct kept_reader *k, const struct subject *then, size_t vectors)
{
	const size_t bytes = k->n * sizeof(float);

	ok(k->why);
	assert_memory_equal(k->got, then->w, bytes);
	for (size_t i = 0; i < vectors; i++)
		assert_memory_equal(k->got + (1 + i) * bytes, then->state[i], bytes);
}

/* Keeps copies of weights and state, and makes further updates while another thread reads the
 * copies. Compares the copies with weights and state of the CPU at the instant of the copies. */
static void compare_keeps(void *gpu, const struct subject *s, struct subject *then,
	enum optim_kind kind, struct rng *r)
{
	const struct optim o = usual_optimizer(kind);
	const size_t bytes = s->n * sizeof(float);
	char *memory = malloc(3 * bytes + 1);
	struct kept_reader k = {.gpu = gpu, .n = s->n, .got = memory + 1};
	pthread_t thread;
	int keeps;

	assert_non_null(memory);
	ok(module->allocate(gpu, s->n, optim_vectors(kind)));
	store_values(r, s->w, s->n);
	store_state(r, &o, s->state, s->n);
	ok(module->load(gpu, s->w, s->state));
	store_values(r, s->g, s->n);
	for (uint64_t i = 1; i <= 3; i++) {
		step_on_both(s, gpu, &o, 2 * i - 1);
		memcpy(then->w, s->w, bytes);
		for (size_t v = 0; v < OPTIM_VECTORS; v++)
			memcpy(then->state[v], s->state[v], bytes);
		ok(module->keep(gpu, &keeps));
		assert_int_equal(keeps, 1);
		assert_int_equal(pthread_create(&thread, NULL, get_kept, &k), 0);
		step_on_both(s, gpu, &o, 2 * i);
		assert_memory_equal(s->to, s->w, bytes);
		assert_int_equal(pthread_join(thread, NULL), 0);
		compare_kept(&k, then, optim_vectors(kind));
	}
	free(memory);
}

TEST(what_the_gpu_keeps_does_not_change_with_later_updates)
{
	/* numbers of values; the module copies them in one, two or three pieces */
	static const size_t kept_sizes[] = {1, 4099, 435001, 6000011};
	static const enum optim_kind kinds[] = {OPTIM_SGD, OPTIM_MOMENTUM, OPTIM_ADAM};
	void *gpu = open_gpu();
	struct rng r = rng_seed(18, RNG_SIM, 5);

	for (size_t i = 0; i < sizeof(kept_sizes) / sizeof(kept_sizes[0]); i++)
		for (size_t j = 0; j < sizeof(kinds) / sizeof(kinds[0]); j++) {
			struct subject s, then;

			store_subject_open(&s, kept_sizes[i], ordinary);
			store_subject_open(&then, kept_sizes[i], ordinary);
			compare_keeps(gpu, &s, &then, kinds[j], &r);
			subject_close(&s, free);
			subject_close(&then, free);
		}
	module->close(gpu);
}

TEST(deferred_updates_give_the_bits_of_the_cpu)
{
	void *gpu = open_gpu();
	struct rng r = rng_seed(18, RNG_SIM, 4);

	module->close(gpu); /* a GPU must have been open before the first call of allocate_host */
	gpu = open_gpu();
	for (size_t i = 2; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (int kind = 0; kind < OPTIM_LBFGS; kind++) {
			struct subject s;

			store_subject_open(&s, sizes[i], module->allocate_host);
			compare_deferred(gpu, &s, (enum optim_kind)kind, &r);
			subject_close(&s, module->release_host);
		}
	module->close(gpu);
}
