/* store_double.c - see store_double.h. */
#include "tests/device/store_double.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/engine.h"
#include "common/xxh3_sums.h"
#include "server/core/vec.h"
#include "server/device/step.h"

struct store_double {
	int number;
	uint64_t updates;
	size_t n, vectors;
	float *weights, *state[PARAM_DEVICE_VECTORS];
	/* the copies that `keep` made: first the weights, then the state vectors */
	float *shadow[1 + PARAM_DEVICE_VECTORS];
	float *to;  /* the new weights of the update under way; NULL: no update */
	int defers; /* 1: the update writes no memory of the caller */
	/* the end (exclusive) of the newest part of the update under way */
	size_t end;
	size_t written; /* number of valid values in `to` */
	/* private copies of gradients in the memory of other processes */
	float *copy[STORE_COPIES];
	/* a copy that has begun: the caller may read it after `taken` */
	struct taking {
		const float *from; /* the gradient of the other process; NULL: no copy has begun */
		size_t n, trained;
	} taking[STORE_COPIES];
	struct giving {
		int begun, polls;
		struct store_pass pass;
	} giving[STORE_GIVES];
};

static const char *double_open(void **self, int number, char name[STORE_MODULE_NAME])
{
	struct store_double *d;

	*self = NULL;
	if (number > MAX_STORE_DOUBLE)
		return "no such GPU";
	d = calloc(1, sizeof(*d));
	if (!d)
		return "out of memory";
	d->number = number;
	snprintf(name, STORE_MODULE_NAME, "test double");
	*self = d;
	return NULL;
}

static void release_double(struct store_double *d)
{
	free(d->weights);
	for (size_t i = 0; i < STORE_COPIES; i++) {
		free(d->copy[i]);
		d->copy[i] = NULL;
	}
	for (size_t i = 0; i < PARAM_DEVICE_VECTORS; i++) {
		free(d->state[i]);
		d->state[i] = NULL;
	}
	for (size_t i = 0; i <= PARAM_DEVICE_VECTORS; i++) {
		free(d->shadow[i]);
		d->shadow[i] = NULL;
	}
	d->weights = NULL;
}

static const char *double_allocate(void *self, size_t n, size_t vectors)
{
	struct store_double *d = self;

	release_double(d);
	if (d->number == STORE_DOUBLE_FULL)
		return "out of memory";
	d->n = n;
	d->vectors = vectors;
	d->weights = malloc(n * sizeof(float));
	for (size_t i = 0; i < STORE_COPIES; i++)
		d->copy[i] = malloc(n * sizeof(float));
	for (size_t i = 0; i < vectors; i++)
		d->state[i] = malloc(n * sizeof(float));
	return NULL;
}

static const char *store_double_load(
	void *self, const float *weights, float *const state[PARAM_DEVICE_VECTORS])
{
	struct store_double *d = self;

	memcpy(d->weights, weights, d->n * sizeof(float));
	for (size_t i = 0; i < d->vectors; i++)
		memcpy(d->state[i], state[i], d->n * sizeof(float));
	return NULL;
}

static const char *store_double_begin(void *self, float *to)
{
	struct store_double *d = self;

	if (d->to)
		return "the caller has not waited for the last update";
	d->updates++;
	d->to = to ? to : d->weights;
	d->defers = !to;
	d->written = d->end = 0;
	return NULL;
}

static const char *store_double_step(void *self, const struct device_step *s)
{
	struct store_double *d = self;
	const struct step_coeff coeff = step_constants(s->coeff);
	float none = 0, unused = 0;

	if (d->number == STORE_DOUBLE_FAILS && d->updates > STORE_DOUBLE_UPDATES)
		return "an illegal memory access was encountered";
	if (!d->to || s->offset < d->end || s->count > d->n - s->offset)
		return "a part that is not in ascending order";
	d->end = s->offset + s->count;
	for (size_t j = 0; j < s->count; j++) {
		const size_t i = s->offset + j;
		float *first = d->vectors > 0 ? &d->state[0][i] : &none;
		float *second = d->vectors > 1 ? &d->state[1][i] : &unused;

		d->weights[i] = i >= s->trained
					? step_running(s->running, d->weights[i], s->gradient[j])
					: step_value(s->rule, coeff, d->weights[i], s->gradient[j],
						  first, second);
	}
	return NULL;
}

/* Writes the new values only now, and only those for which the caller waits. So a test notices a
 * caller that reads values without waiting for them, because they are old. */
static const char *store_double_wait(void *self, size_t n)
{
	struct store_double *d = self;

	if (!d->to || n > d->n || n < d->written)
		return "a wait without an update";
	if (!d->defers)
		memcpy(d->to + d->written, d->weights + d->written,
			(n - d->written) * sizeof(float));
	d->written = n;
	if (n == d->n)
		d->to = NULL;
	return NULL;
}

static const char *store_double_fetch(void *self, float *const state[PARAM_DEVICE_VECTORS])
{
	struct store_double *d = self;

	for (size_t i = 0; i < d->vectors; i++)
		memcpy(state[i], d->state[i], d->n * sizeof(float));
	return NULL;
}

static const char *store_double_weights(void *self, float *to)
{
	const struct store_double *d = self;

	memcpy(to, d->weights, d->n * sizeof(float));
	return NULL;
}

static const float *kept_source(const struct store_double *d, size_t i)
{
	return i == 0 ? d->weights : d->state[i - 1];
}

static const char *store_double_keep(void *self, int *keeps)
{
	struct store_double *d = self;

	*keeps = d->number != STORE_DOUBLE_NARROW;
	if (d->to)
		return "the caller has not waited for the last update";
	for (size_t i = 0; *keeps && i <= d->vectors; i++) {
		if (!d->shadow[i])
			d->shadow[i] = malloc(d->n * sizeof(float));
		memcpy(d->shadow[i], kept_source(d, i), d->n * sizeof(float));
	}
	return NULL;
}

static atomic_int kept_waits;

void store_double_hold(int holds)
{
	atomic_store(&kept_waits, holds);
}

static const char *store_double_kept(
	void *self, void *weights, void *const state[PARAM_DEVICE_VECTORS])
{
	const struct store_double *d = self;

	if (!d->shadow[0])
		return "nothing is kept";
	if (d->number == STORE_DOUBLE_LOSES)
		return "an illegal memory access was encountered";
	if (d->number == STORE_DOUBLE_SLOW)
		usleep(STORE_DOUBLE_KEPT_MS * 1000);
	while (atomic_load(&kept_waits))
		usleep(1000);
	for (size_t i = 0; i <= d->vectors; i++)
		memcpy(i == 0 ? weights : state[i - 1], d->shadow[i], d->n * sizeof(float));
	return NULL;
}

/* All memory of the double is memory of the host. */
static const char *store_double_readable(void *self, const float **values, size_t n)
{
	(void)self;
	(void)values;
	(void)n;
	return NULL;
}

static const char *store_double_import(void *self, int fd, size_t bytes, void **memory, int *is_own)
{
	const struct store_double *d = self;
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	*is_own = d->number == STORE_DOUBLE_OWN;
	*memory = at == MAP_FAILED ? NULL : at;
	return *memory ? NULL : "the memory of the worker's GPU cannot be mapped";
}

static void store_double_drop(void *self, void *memory, size_t bytes)
{
	(void)self;
	(void)munmap(memory, bytes);
}

/* Returns the checksum of n values, or 0 if they take fewer than XXH3_TAIL bytes. */
static uint64_t hash_values(const float *v, size_t n)
{
	const size_t bytes = n * sizeof(float);
	struct xxh3_sum sum;
	struct xxh3_mix mix;

	if (bytes < XXH3_TAIL)
		return 0;
	xxh3_mix_begin(&mix);
	for (size_t i = 0; i < xxh3_blocks(bytes); i++) {
		xxh3_sum_blocks(&sum, (const char *)v + i * XXH3_BLOCK, 1);
		xxh3_mix_blocks(&mix, &sum, 1);
	}
	return xxh3_mix_end(&mix, (const char *)v + bytes, bytes);
}

/* Returns the results of a pass over n values. The sum of squares contains only the first `trained`
 * values. */
static struct store_pass measure_pass(const float *v, size_t n, size_t trained)
{
	struct store_pass p = {.xxh3 = hash_values(v, n)};

	for (size_t i = 0; i < trained; i += ENGINE_BLOCK)
		p.squares +=
			vec_squares(v + i, trained - i < ENGINE_BLOCK ? trained - i : ENGINE_BLOCK);
	for (size_t i = 0; i < n; i++) {
		uint32_t bits;

		memcpy(&bits, &v[i], sizeof(bits));
		bits &= 0x7fffffffu;
		p.peak = bits > p.peak ? bits : p.peak;
	}
	return p;
}

/* The copy gets its values only when the caller waits for it, as late as a GPU may write them. */
static const char *store_double_take(
	void *self, size_t at, const void *from, size_t n, size_t trained)
{
	struct store_double *d = self;

	d->taking[at] = (struct taking){from, n, trained < n ? trained : n};
	return NULL;
}

static const char *store_double_taken(
	void *self, size_t at, const float **copy, struct store_pass *pass)
{
	struct store_double *d = self;
	const struct taking *t = &d->taking[at];

	if (!t->from)
		return "no copy has begun";
	memcpy(d->copy[at], t->from, t->n * sizeof(float));
	*pass = measure_pass(d->copy[at], t->n, t->trained);
	*copy = d->copy[at];
	d->taking[at].from = NULL;
	return NULL;
}

static const char *store_double_give(void *self, size_t at, void *to, int hashes)
{
	struct store_double *d = self;

	memcpy(to, d->weights, d->n * sizeof(float));
	d->giving[at] = (struct giving){.begun = 1, .polls = 2};
	if (hashes)
		d->giving[at].pass = measure_pass(d->weights, d->n, 0);
	return NULL;
}

/* Reports the copy as complete only at the third call, unless the caller waits. */
static const char *store_double_given(
	void *self, size_t at, int waits, int *done, struct store_pass *pass)
{
	struct store_double *d = self;
	struct giving *g = &d->giving[at];

	if (!g->begun)
		return "no copy has begun";
	*done = waits || g->polls-- == 0;
	if (*done) {
		*pass = g->pass;
		g->polls = 0;
	}
	return NULL;
}

static void double_pin(void *self, void *memory, size_t bytes)
{
	(void)self;
	(void)memory;
	(void)bytes;
}

static void double_unpin(void *self, void *memory)
{
	(void)self;
	(void)memory;
}

static void *double_allocate_host(size_t bytes)
{
	size_t whole = (bytes + 63) / 64 * 64;
	void *memory = aligned_alloc(64, whole);

	return memory ? memset(memory, 0, whole) : NULL;
}

static void double_close(void *self)
{
	release_double(self);
	free(self);
}

const struct store_module *cnnps_store_module(void)
{
	static const struct store_module module = {.abi = STORE_MODULE_ABI,
		.open = double_open,
		.allocate = double_allocate,
		.load = store_double_load,
		.step = store_double_step,
		.begin = store_double_begin,
		.wait = store_double_wait,
		.fetch = store_double_fetch,
		.weights = store_double_weights,
		.keep = store_double_keep,
		.kept = store_double_kept,
		.readable = store_double_readable,
		.import = store_double_import,
		.drop = store_double_drop,
		.take = store_double_take,
		.taken = store_double_taken,
		.give = store_double_give,
		.given = store_double_given,
		.pin = double_pin,
		.unpin = double_unpin,
		.allocate_host = double_allocate_host,
		.release_host = free,
		.close = double_close};

	return &module;
}
