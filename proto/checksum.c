#include "proto/checksum.h"
#include "proto/wire.h"
#include "common/xxh3_sums.h"
#include <string.h>
#include "common/clones.h"
#define XXH_STATIC_LINKING_ONLY /* permits an XXH3_state_t on the stack */
#include "common/xxh3.h"

/* a block and its copy fit the L2 cache of every common CPU */
#define BLOCK_BYTES ((size_t)64 << 10)
#define PEAK_BYTES  ((size_t)16 << 10) /* a block of this size fits the L1 cache */

uint64_t wire_hash(const void *data, size_t size)
{
	return XXH3_64bits(data, size);
}

uint64_t wire_frame_checksum(const void *bytes, size_t size)
{
	return wire_hash(bytes, size);
}

uint64_t wire_checksum(const float *data, size_t count)
{
	return wire_hash(data, count * sizeof(*data));
}

PS_CLONES static uint32_t peak_of_block(const float *data, size_t count)
{
	uint32_t peak = 0;

	for (size_t i = 0; i < count; i++) {
		uint32_t bits;

		memcpy(&bits, &data[i], sizeof(bits));
		bits &= 0x7fffffffu;
		peak = bits > peak ? bits : peak;
	}
	return peak;
}

/* maximum number of blocks of ENGINE_BLOCK values in one job; the job's results are on the stack */
#define WAVE ((size_t)64)
/* number of blocks of XXH3 in ENGINE_BLOCK values */
#define SUMS (ENGINE_BLOCK * sizeof(float) / XXH3_BLOCK)

/* This struct has the results for one block of ENGINE_BLOCK values. */
struct part {
	_Alignas(64) struct xxh3_sum sum[SUMS];
	double squares;
	uint32_t peak;
};

/* This struct describes one pass over a tensor. The engine copies or computes each block, finds the
 * largest magnitude in the block and computes the sums of the block. The caller combines the
 * results in the order of the blocks. */
struct pass {
	engine_block_fn *fill; /* function that computes a block; NULL: the values exist already */
	void *arg;
	float *to; /* destination of a copy of the values; NULL: the pass makes no copy */
	const float *from;
	/* count: number of values; first: number of the first block of this job */
	size_t count, first;
	int needs_peak;
	wire_squares_fn *squares; /* sums the squares of a block; NULL: the sum is not needed */
	/* number of values, from the first on, whose squares are summed */
	size_t squared;
	struct part *part; /* the results of the blocks of one job, at most WAVE */
};

/* Returns the number of XXH3 blocks in block `block` of the engine: at most SUMS, and without the
 * last XXH3 block of the tensor, which has no sums. */
static size_t count_sums(const struct pass *p, size_t block)
{
	size_t n = xxh3_blocks(p->count * sizeof(*p->from)), before = block * SUMS;

	return n <= before ? 0 : n - before < SUMS ? n - before : SUMS;
}

/* Returns how many of the `n` values from value `at` on belong to the first `squared` values, whose
 * squares are summed. */
static size_t count_squares(size_t squared, size_t at, size_t n)
{
	size_t left = squared > at ? squared - at : 0;

	return left < n ? left : n;
}

static void pass_block(void *arg, size_t number)
{
	struct pass *p = arg;
	struct part *part = &p->part[number];
	const size_t block = p->first + number, at = block * ENGINE_BLOCK, left = p->count - at;
	size_t n = left < ENGINE_BLOCK ? left : ENGINE_BLOCK;
	const float *values = p->from + at;

	if (p->fill)
		p->fill(p->arg, block);
	if (p->to)
		values = memcpy(p->to + at, values, n * sizeof(*values));
	if (p->needs_peak)
		part->peak = peak_of_block(values, n);
	if (p->squares)
		part->squares = p->squares(values, count_squares(p->squared, at, n));
	xxh3_sum_blocks(part->sum, values, count_sums(p, block));
}

/* Adds the results of block `block` of the engine to *chunk. */
static void add_part(const struct pass *p, size_t block, struct xxh3_mix *mix, struct chunk *chunk)
{
	const struct part *part = &p->part[block - p->first];

	xxh3_mix_blocks(mix, part->sum, count_sums(p, block));
	if (p->needs_peak && part->peak > chunk->peak)
		chunk->peak = part->peak;
	if (p->squares && block * ENGINE_BLOCK < p->squared)
		chunk->squares += part->squares;
}

/* Makes the pass on the threads of an engine. */
static void pass_with(const struct engine *engine, struct pass *p, struct chunk *chunk)
{
	const size_t blocks = (p->count + ENGINE_BLOCK - 1) / ENGINE_BLOCK;
	PS_UNINITIALIZED struct part part[WAVE];
	struct xxh3_mix mix;

	p->part = part;
	xxh3_mix_begin(&mix);
	for (p->first = 0; p->first < blocks; p->first += WAVE) {
		size_t left = blocks - p->first;
		struct engine_job job = {pass_block, p, left < WAVE ? left : WAVE};

		engine_begin(engine, &job);
		for (size_t i = 0; i < job.n; i++) {
			engine_wait(engine, &job, i);
			add_part(p, p->first + i, &mix, chunk);
		}
	}
	chunk->xxh3 = xxh3_mix_end(
		&mix, (p->to ? p->to : p->from) + p->count, p->count * sizeof(*p->from));
	p->part = NULL;
}

/* Copies and hashes values in blocks that fit the L1 cache, and finds their largest magnitude. */
static void pass_small(
	float *to, const float *from, size_t count, XXH3_state_t *state, struct chunk *chunk)
{
	const size_t block = PEAK_BYTES / sizeof(*from);

	for (size_t at = 0; at < count; at += block) {
		size_t n = count - at < block ? count - at : block;
		const float *values = from + at;

		if (to)
			values = memcpy(to + at, values, n * sizeof(*values));
		(void)XXH3_64bits_update(state, values, n * sizeof(*values));
		uint32_t here = peak_of_block(values, n);
		chunk->peak = here > chunk->peak ? here : chunk->peak;
	}
}

/* Makes the pass on the caller's thread alone. */
static void pass_alone(
	float *to, const float *from, size_t count, struct chunk *chunk, wire_squares_fn *squares)
{
	XXH3_state_t state;

	if (XXH3_64bits_reset(&state) == XXH_ERROR)
		return;
	for (size_t at = 0; at < count; at += ENGINE_BLOCK) {
		size_t n = count - at < ENGINE_BLOCK ? count - at : ENGINE_BLOCK;

		pass_small(to ? to + at : NULL, from + at, n, &state, chunk);
		if (squares && at < chunk->squared)
			chunk->squares += squares(
				(to ? to : from) + at, count_squares(chunk->squared, at, n));
	}
	chunk->xxh3 = XXH3_64bits_digest(&state);
}

/* Returns 1 if a tensor has several blocks, so that an engine can share the work. */
static int is_long(const struct engine *engine, size_t count)
{
	return engine && count > ENGINE_BLOCK;
}

static void make_pass(float *to, const float *from, size_t count, struct chunk *chunk,
	const struct wire_pass *how)
{
	struct pass p;

	*chunk = (struct chunk){.xxh3 = 0};
	if (how && how->squares)
		chunk->squared = count < how->trained ? count : how->trained;
	if (!how || !is_long(how->engine, count)) {
		pass_alone(to, from, count, chunk, how ? how->squares : NULL);
		return;
	}
	p.fill = NULL;
	p.to = to;
	p.from = from;
	p.count = count;
	p.needs_peak = 1;
	p.squares = how->squares;
	p.squared = chunk->squared;
	pass_with(how->engine, &p, chunk);
}

uint64_t wire_checksum_filled(const float *data, size_t count, engine_block_fn *fill, void *arg,
	const struct engine *engine)
{
	struct chunk chunk;
	struct pass p;

	if (!is_long(engine, count)) {
		for (size_t at = 0; fill && at < count; at += ENGINE_BLOCK)
			fill(arg, at / ENGINE_BLOCK);
		return wire_checksum(data, count);
	}
	p.fill = fill;
	p.arg = arg;
	p.to = NULL;
	p.from = data;
	p.count = count;
	p.needs_peak = 0;
	p.squares = NULL;
	pass_with(engine, &p, &chunk);
	return chunk.xxh3;
}

uint64_t wire_checksum_with(const float *data, size_t count, const struct engine *engine)
{
	return wire_checksum_filled(data, count, NULL, NULL, engine);
}

void wire_pass_over(
	const float *data, size_t count, struct chunk *chunk, const struct wire_pass *pass)
{
	make_pass(NULL, data, count, chunk, pass);
}

void wire_copy_chunk(float *to, const void *from, size_t count, struct chunk *chunk,
	const struct wire_pass *pass)
{
	make_pass(to, from, count, chunk, pass);
}

uint64_t wire_copy_hash(void *restrict to, const void *restrict from, size_t size)
{
	XXH3_state_t state;

	if (XXH3_64bits_reset(&state) == XXH_ERROR)
		return 0;
	for (size_t done = 0; done < size; done += BLOCK_BYTES) {
		size_t n = size - done < BLOCK_BYTES ? size - done : BLOCK_BYTES;

		memcpy((char *)to + done, (const char *)from + done, n);
		(void)XXH3_64bits_update(&state, (const char *)to + done, n);
	}
	return XXH3_64bits_digest(&state);
}

uint64_t wire_checksum_blocks(wire_block_fn *next, void *arg)
{
	const float *values;
	XXH3_state_t state;
	size_t n;

	if (XXH3_64bits_reset(&state) == XXH_ERROR)
		return 0;
	while ((n = next(arg, &values)) > 0)
		(void)XXH3_64bits_update(&state, values, n * sizeof(*values));
	return XXH3_64bits_digest(&state);
}
