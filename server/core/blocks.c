/* blocks.c - see blocks.h. */
#include "server/core/blocks.h"
#include "server/core/vec.h"

struct job {
	blocks_fn *fn;
	const void *arg;
	size_t n, size; /* n: number of values in the vector; size: number of values in a block */
	double *result;
};

static void run_block(void *arg, size_t block)
{
	const struct job *j = arg;
	size_t from = block * j->size, left = j->n - from;

	j->result[block] = j->fn(j->arg, from, left < j->size ? left : j->size);
}

void blocks_each(const struct blocks *b, size_t n, blocks_fn *fn, const void *arg)
{
	struct job j = {fn, arg, n, engine_block_values(b->engine), b->result};
	const struct engine_job job = {run_block, &j, engine_blocks(b->engine, n)};

	engine_run(b->engine, &job);
}

double blocks_sum(const struct blocks *b, size_t n, blocks_fn *fn, const void *arg)
{
	double sum = 0;

	blocks_each(b, n, fn, arg);
	for (size_t i = 0; i < engine_blocks(b->engine, n); i++)
		sum += b->result[i];
	return sum;
}

double blocks_max(const struct blocks *b, size_t n, blocks_fn *fn, const void *arg)
{
	double max = 0;

	blocks_each(b, n, fn, arg);
	for (size_t i = 0; i < engine_blocks(b->engine, n); i++)
		max = vec_larger(max, b->result[i]);
	return max;
}

/* ---- the functions of vec.h ------------------------------------------------------------------ */

struct operands {
	float *to;
	const float *x, *y;
	double by;
};

static double dot_block(const void *arg, size_t from, size_t n)
{
	const struct operands *o = arg;

	return vec_dot(o->x + from, o->y + from, n);
}

double blocks_dot(const struct blocks *b, const float *x, const float *y, size_t n)
{
	return blocks_sum(b, n, dot_block, &(struct operands){.x = x, .y = y});
}

static double squares_block(const void *arg, size_t from, size_t n)
{
	const struct operands *o = arg;

	return vec_squares(o->x + from, n);
}

double blocks_squares(const struct blocks *b, const float *v, size_t n)
{
	return blocks_sum(b, n, squares_block, &(struct operands){.x = v});
}

static double copy_block(const void *arg, size_t from, size_t n)
{
	const struct operands *o = arg;

	vec_copy(o->to + from, o->x + from, n);
	return 0;
}

void blocks_copy(const struct blocks *b, float *to, const float *from, size_t n)
{
	blocks_each(b, n, copy_block, &(struct operands){.to = to, .x = from});
}

static double scale_block(const void *arg, size_t from, size_t n)
{
	const struct operands *o = arg;

	vec_scale(o->to + from, o->by, n);
	return 0;
}

void blocks_scale(const struct blocks *b, float *v, double by, size_t n)
{
	blocks_each(b, n, scale_block, &(struct operands){.to = v, .by = by});
}

static double axpy_block(const void *arg, size_t from, size_t n)
{
	const struct operands *o = arg;

	vec_axpy(o->to + from, o->by, o->x + from, n);
	return 0;
}

void blocks_axpy(const struct blocks *b, float *y, double a, const float *x, size_t n)
{
	blocks_each(b, n, axpy_block, &(struct operands){.to = y, .x = x, .by = a});
}

static double add_vectors(const void *arg, size_t from, size_t n)
{
	const struct operands *o = arg;

	vec_sum(o->to + from, o->x + from, o->by, o->y + from, n);
	return 0;
}

void blocks_add(
	const struct blocks *b, float *to, const float *x, double a, const float *d, size_t n)
{
	blocks_each(b, n, add_vectors, &(struct operands){.to = to, .x = x, .y = d, .by = a});
}

static double wild_block(const void *arg, size_t from, size_t n)
{
	const struct operands *o = arg;

	return !vec_finite(o->x + from, n);
}

int blocks_finite(const struct blocks *b, const float *v, size_t n)
{
	return blocks_max(b, n, wild_block, &(struct operands){.x = v}) <= 0;
}
