#include "proto/checksum.h"
#include "proto/wire.h"
#include "common/xxh3_sums.h"
#include <stdatomic.h>
#include <string.h>
#include "common/clones.h"
#define XXH_STATIC_LINKING_ONLY /* permits an XXH3_state_t on the stack */
#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
/* makes XXH3_64bits and XXH3_64bits_update choose the best version for the CPU */
#include <xxh_x86dispatch.h>
#endif

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

/* maximum number of blocks of the engine in one job, whose sums are on the stack */
#define WAVE ((size_t)64)
/* blocks of XXH3 in a block of the engine */
#define SUMS (ENGINE_BLOCK * sizeof(float) / XXH3_BLOCK)

/* One pass over a tensor. The engine copies each block, finds its largest magnitude and computes
 * its sums, and the caller mixes the sums in the order of the blocks. */
struct pass {
	float *to; /* NULL: no copy */
	const float *from;
	size_t count, first; /* first: the block of the engine that is number 0 of this job */
	int needs_peak;
	atomic_uint peak;
	struct xxh3_sum sum[WAVE * SUMS];
};

static void raise_peak(struct pass *p, uint32_t here)
{
	uint32_t peak = atomic_load_explicit(&p->peak, memory_order_relaxed);

	while (here > peak && !atomic_compare_exchange_weak(&p->peak, &peak, here))
		;
}

/* Returns the number of blocks of XXH3 from block `block` of the engine on, at most SUMS. The last
 * block of XXH3 has no sums. */
static size_t count_sums(const struct pass *p, size_t block)
{
	size_t n = xxh3_blocks(p->count * sizeof(*p->from)), before = block * SUMS;

	return n <= before ? 0 : n - before < SUMS ? n - before : SUMS;
}

static void pass_block(void *arg, size_t number)
{
	struct pass *p = arg;
	const size_t block = p->first + number, at = block * ENGINE_BLOCK, left = p->count - at;
	size_t n = left < ENGINE_BLOCK ? left : ENGINE_BLOCK;
	const float *values = p->from + at;

	if (p->to)
		values = memcpy(p->to + at, values, n * sizeof(*values));
	if (p->needs_peak)
		raise_peak(p, peak_of_block(values, n));
	xxh3_sum_blocks(&p->sum[number * SUMS], values, count_sums(p, block));
}

/* Hashes blocks that fit the L1 cache, and finds their largest magnitude. */
static uint64_t pass_alone(float *to, const float *from, size_t count, uint32_t *peak)
{
	const size_t block = PEAK_BYTES / sizeof(*from);
	XXH3_state_t state;

	if (XXH3_64bits_reset(&state) == XXH_ERROR)
		return 0;
	for (size_t at = 0; at < count; at += block) {
		size_t n = count - at < block ? count - at : block;
		const float *values = from + at;

		if (to)
			values = memcpy(to + at, values, n * sizeof(*values));
		(void)XXH3_64bits_update(&state, values, n * sizeof(*values));
		uint32_t here = peak_of_block(values, n);
		*peak = here > *peak ? here : *peak;
	}
	return XXH3_64bits_digest(&state);
}

static uint64_t pass_with(const struct engine *engine, struct pass *p)
{
	const size_t blocks = (p->count + ENGINE_BLOCK - 1) / ENGINE_BLOCK;
	struct xxh3_mix mix;

	xxh3_mix_begin(&mix);
	for (p->first = 0; p->first < blocks; p->first += WAVE) {
		size_t left = blocks - p->first;
		struct engine_job job = {pass_block, p, left < WAVE ? left : WAVE};

		engine_begin(engine, &job);
		for (size_t i = 0; i < job.n; i++) {
			engine_wait(engine, &job, i);
			xxh3_mix_blocks(&mix, &p->sum[i * SUMS], count_sums(p, p->first + i));
		}
	}
	return xxh3_mix_end(
		&mix, (p->to ? p->to : p->from) + p->count, p->count * sizeof(*p->from));
}

/* Returns 1 if a tensor has several blocks, so that an engine can share the work. */
static int is_long(const struct engine *engine, size_t count)
{
	return engine && count > ENGINE_BLOCK;
}

static uint64_t hash_pass(
	float *to, const float *from, size_t count, uint32_t *peak, const struct engine *engine)
{
	struct pass p;

	*peak = 0;
	if (!is_long(engine, count))
		return pass_alone(to, from, count, peak);
	p.to = to;
	p.from = from;
	p.count = count;
	p.needs_peak = 1;
	atomic_init(&p.peak, 0);
	uint64_t hash = pass_with(engine, &p);
	*peak = atomic_load(&p.peak);
	return hash;
}

uint64_t wire_checksum_with(const float *data, size_t count, const struct engine *engine)
{
	struct pass p;

	if (!is_long(engine, count))
		return wire_checksum(data, count);
	p.to = NULL;
	p.from = data;
	p.count = count;
	p.needs_peak = 0;
	atomic_init(&p.peak, 0);
	return pass_with(engine, &p);
}

uint64_t wire_hash_peak(
	const float *data, size_t count, uint32_t *peak, const struct engine *engine)
{
	return hash_pass(NULL, data, count, peak, engine);
}

void wire_copy_chunk(
	float *to, const void *from, size_t count, struct chunk *chunk, const struct engine *engine)
{
	chunk->xxh3 = hash_pass(to, from, count, &chunk->peak, engine);
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
