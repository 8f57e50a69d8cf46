/* store_double.c - see store_double.h. */
#include "tests/device/store_double.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "common/engine.h"
#include "server/core/vec.h"
#include "server/device/step.h"

struct store_double {
	int number;
	uint64_t updates;
	size_t n, vectors;
	float *weights, *state[PARAM_DEVICE_VECTORS];
	float *to;      /* the new weights of the update under way; NULL: no update */
	int defers;     /* 1: the update writes no memory of the caller */
	size_t end;     /* end of the newest part of this update */
	size_t written; /* number of valid values in `to` */
	float *copy;    /* of a gradient of another process */
	struct xxh3_sum *sums;
	char tail[XXH3_TAIL];
	double *squares;
	uint32_t *peak;
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
	free(d->copy);
	free(d->sums);
	free(d->squares);
	free(d->peak);
	d->copy = NULL;
	d->sums = NULL;
	d->squares = NULL;
	d->peak = NULL;
	for (size_t i = 0; i < PARAM_DEVICE_VECTORS; i++) {
		free(d->state[i]);
		d->state[i] = NULL;
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
	d->copy = malloc(n * sizeof(float));
	d->sums = malloc((xxh3_blocks(n * sizeof(float)) + 1) * sizeof(*d->sums));
	d->squares = calloc(engine_blocks(NULL, n), sizeof(*d->squares));
	d->peak = calloc(engine_blocks(NULL, n), sizeof(*d->peak));
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
	d->to = to ? to : d->copy;
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

/* Writes only what the caller waits for, so that a caller that does not wait reads old values. */
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

/* All memory of the double is memory of the host. */
static const char *store_double_readable(void *self, const float **values, size_t n)
{
	(void)self;
	(void)values;
	(void)n;
	return NULL;
}

static const char *store_double_import(void *self, int fd, size_t bytes, void **memory)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	(void)self;
	*memory = at == MAP_FAILED ? NULL : at;
	return *memory ? NULL : "the memory of the worker's GPU cannot be mapped";
}

static void store_double_drop(void *self, void *memory, size_t bytes)
{
	(void)self;
	(void)munmap(memory, bytes);
}

/* Sets the results of a pass over n values. The first `trained` ones count for the squares. */
static void measure_pass(
	struct store_double *d, const float *v, size_t n, size_t trained, struct store_pass *pass)
{
	const size_t bytes = n * sizeof(float);

	*pass = (struct store_pass){d->sums, d->tail + XXH3_TAIL, d->squares, d->peak};
	if (bytes >= XXH3_TAIL) {
		xxh3_sum_blocks(d->sums, v, xxh3_blocks(bytes));
		memcpy(d->tail, (const char *)v + bytes - XXH3_TAIL, XXH3_TAIL);
	}
	for (size_t b = 0, i = 0; i < n; b++, i += ENGINE_BLOCK) {
		size_t end = n - i < ENGINE_BLOCK ? n : i + ENGINE_BLOCK;

		d->peak[b] = 0;
		d->squares[b] =
			i < trained ? vec_squares(v + i, (end < trained ? end : trained) - i) : 0;
		for (size_t j = i; j < end; j++) {
			uint32_t bits;

			memcpy(&bits, &v[j], sizeof(bits));
			bits &= 0x7fffffffu;
			d->peak[b] = bits > d->peak[b] ? bits : d->peak[b];
		}
	}
}

static const char *store_double_take(void *self, const void *from, size_t n, size_t trained,
	const float **copy, struct store_pass *pass)
{
	struct store_double *d = self;

	memcpy(d->copy, from, n * sizeof(float));
	measure_pass(d, d->copy, n, trained, pass);
	*copy = d->copy;
	return NULL;
}

static const char *store_double_give(void *self, void *to, struct store_pass *pass)
{
	struct store_double *d = self;

	memcpy(to, d->weights, d->n * sizeof(float));
	if (pass)
		measure_pass(d, d->weights, d->n, 0, pass);
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
		.readable = store_double_readable,
		.import = store_double_import,
		.drop = store_double_drop,
		.take = store_double_take,
		.give = store_double_give,
		.pin = double_pin,
		.unpin = double_unpin,
		.allocate_host = double_allocate_host,
		.release_host = free,
		.close = double_close};

	return &module;
}
