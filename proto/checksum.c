#include "proto/checksum.h"
#include "proto/wire.h"
#include "common/xxh3_sums.h"
#include <string.h>
#include "common/clones.h"
#define XXH_STATIC_LINKING_ONLY /* permits an XXH3_state_t on the stack */
#include "common/xxh3.h"
#include "proto/bf16.h"

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

/* This struct describes one pass over a tensor. The engine copies, converts or computes each block,
 * finds the largest magnitude in the block and computes the sums of the block. The caller combines
 * the results in the order of the blocks. */
struct pass {
	engine_block_fn *fill; /* function that computes a block; NULL: the values exist already */
	void *arg;
	/* destination of the values that the pass copies or converts; NULL: there is none */
	float *to;
	const void *from; /* float32 values or, if is_bf16 is 1, bfloat16 values */
	int is_bf16;
	/* count: number of values; first: number of the first block of this job */
	size_t count, first;
	int needs_peak, needs_hash;
	wire_squares_fn *squares; /* sums the squares of a block; NULL: the sum is not needed */
	/* number of values, from the first on, whose squares are summed */
	size_t squared;
	struct part *part; /* the results of the blocks of one job, at most WAVE */
};

static size_t bytes_of_value(const struct pass *p)
{
	return p->is_bf16 ? BF16_BYTES : sizeof(float);
}

/* Returns the number of XXH3 blocks in block `block` of the engine: at most SUMS, and without the
 * last XXH3 block of the tensor, which has no sums. */
static size_t count_sums(const struct pass *p, size_t block)
{
	const size_t size = bytes_of_value(p), sums = ENGINE_BLOCK * size / XXH3_BLOCK;
	size_t n = xxh3_blocks(p->count * size), before = block * sums;

	return n <= before || !p->needs_hash ? 0 : n - before < sums ? n - before : sums;
}

/* Returns how many of the `n` values from value `at` on belong to the first `squared` values, whose
 * squares are summed. */
static size_t count_squares(size_t squared, size_t at, size_t n)
{
	size_t left = squared > at ? squared - at : 0;

	return left < n ? left : n;
}

/* Copies or converts the `n` values from value `at` on to their destination, if they have one.
 * Returns the values, and sets *bytes to the bytes whose checksum is computed. */
static const float *fetch_values(
	const struct pass *p, size_t at, size_t n, const void **bytes, uint32_t *peak)
{
	*bytes = (const char *)p->from + at * bytes_of_value(p);
	if (p->is_bf16) {
		*peak = bf16_unpack(p->to + at, *bytes, n);
		return p->to + at;
	}
	if (p->to)
		*bytes = memcpy(p->to + at, *bytes, n * sizeof(*p->to));
	const float *values = *bytes;

	if (p->needs_peak)
		*peak = peak_of_block(values, n);
	return values;
}

static void pass_block(void *arg, size_t number)
{
	struct pass *p = arg;
	struct part *part = &p->part[number];
	const size_t block = p->first + number, at = block * ENGINE_BLOCK, left = p->count - at;
	size_t n = left < ENGINE_BLOCK ? left : ENGINE_BLOCK;
	const void *bytes;

	if (p->fill)
		p->fill(p->arg, block);
	const float *values = fetch_values(p, at, n, &bytes, &part->peak);
	if (p->squares)
		part->squares = p->squares(values, count_squares(p->squared, at, n));
	xxh3_sum_blocks(part->sum, bytes, count_sums(p, block));
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
	p->part = NULL;
	if (!p->needs_hash)
		return;
	const size_t bytes = p->count * bytes_of_value(p);
	const char *start = p->to && !p->is_bf16 ? (const char *)p->to : p->from;
	chunk->xxh3 = xxh3_mix_end(&mix, start + bytes, bytes);
}

/* Makes the pass over the `count` values from value `at` on, without their squares, in blocks that
 * fit the L1 cache. */
static void pass_small(
	const struct pass *p, size_t at, size_t count, XXH3_state_t *state, struct chunk *chunk)
{
	const size_t block = PEAK_BYTES / sizeof(*p->to), end = at + count;

	for (; at < end; at += block) {
		size_t n = end - at < block ? end - at : block;
		const void *bytes;
		uint32_t peak = 0;

		(void)fetch_values(p, at, n, &bytes, &peak);
		if (p->needs_hash)
			(void)XXH3_64bits_update(state, bytes, n * bytes_of_value(p));
		chunk->peak = peak > chunk->peak ? peak : chunk->peak;
	}
}

/* Makes the pass on the caller's thread alone. */
static void pass_alone(const struct pass *p, struct chunk *chunk)
{
	const float *values = p->to ? p->to : p->from;
	XXH3_state_t state;

	if (XXH3_64bits_reset(&state) == XXH_ERROR)
		return;
	for (size_t at = 0; at < p->count; at += ENGINE_BLOCK) {
		size_t n = p->count - at < ENGINE_BLOCK ? p->count - at : ENGINE_BLOCK;

		pass_small(p, at, n, &state, chunk);
		if (p->squares && at < p->squared)
			chunk->squares += p->squares(values + at, count_squares(p->squared, at, n));
	}
	if (p->needs_hash)
		chunk->xxh3 = XXH3_64bits_digest(&state);
}

/* Returns 1 if a tensor has several blocks, so that an engine can share the work. */
static int is_long(const struct engine *engine, size_t count)
{
	return engine && count > ENGINE_BLOCK;
}

static void make_pass(struct pass *p, struct chunk *chunk, const struct wire_pass *how)
{
	*chunk = (struct chunk){.xxh3 = 0};
	p->needs_peak = 1;
	if (how && how->squares) {
		p->squares = how->squares;
		p->squared = chunk->squared = p->count < how->trained ? p->count : how->trained;
	}
	if (how && is_long(how->engine, p->count))
		pass_with(how->engine, p, chunk);
	else
		pass_alone(p, chunk);
}

uint64_t wire_checksum_filled(const float *data, size_t count, engine_block_fn *fill, void *arg,
	const struct engine *engine)
{
	struct chunk chunk = {.xxh3 = 0};

	if (!is_long(engine, count)) {
		for (size_t at = 0; fill && at < count; at += ENGINE_BLOCK)
			fill(arg, at / ENGINE_BLOCK);
		return wire_checksum(data, count);
	}
	struct pass p = {.fill = fill, .arg = arg, .from = data, .count = count, .needs_hash = 1};
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
	struct pass p = {.from = data, .count = count, .needs_hash = 1};

	make_pass(&p, chunk, pass);
}

void wire_copy_chunk(float *to, const void *from, size_t count, struct chunk *chunk,
	const struct wire_pass *pass)
{
	struct pass p = {.to = to, .from = from, .count = count, .needs_hash = 1};

	make_pass(&p, chunk, pass);
}

void wire_unpack_bf16(float *to, const void *from, size_t count, int needs_hash,
	struct chunk *chunk, const struct wire_pass *pass)
{
	struct pass p = {
		.to = to, .from = from, .is_bf16 = 1, .count = count, .needs_hash = needs_hash};

	make_pass(&p, chunk, pass);
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
