#include "proto/checksum.h"
#include "proto/wire.h"
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

/* One pass over a tensor. The engine copies each block and finds its largest magnitude, and the
 * caller hashes the blocks in their order. */
struct pass {
	float *to; /* NULL: no copy */
	const float *from;
	size_t count, block;
	atomic_uint peak;
};

static void pass_block(void *arg, size_t block)
{
	struct pass *p = arg;
	size_t at = block * p->block, left = p->count - at;
	size_t n = left < p->block ? left : p->block;
	const float *values = p->from + at;

	if (p->to)
		values = memcpy(p->to + at, values, n * sizeof(*values));
	uint32_t here = peak_of_block(values, n);
	uint32_t peak = atomic_load_explicit(&p->peak, memory_order_relaxed);
	while (here > peak && !atomic_compare_exchange_weak(&p->peak, &peak, here))
		;
}

/* Hashes blocks that fit the L1 cache, and finds their largest magnitude. */
static void pass_alone(struct pass *p, XXH3_state_t *state)
{
	const size_t block = PEAK_BYTES / sizeof(*p->from);
	uint32_t peak = 0;

	for (size_t at = 0; at < p->count; at += block) {
		size_t n = p->count - at < block ? p->count - at : block;
		const float *values = p->from + at;

		if (p->to)
			values = memcpy(p->to + at, values, n * sizeof(*values));
		(void)XXH3_64bits_update(state, values, n * sizeof(*values));
		uint32_t here = peak_of_block(values, n);
		peak = here > peak ? here : peak;
	}
	atomic_store(&p->peak, peak);
}

static void pass_with(const struct engine *engine, struct pass *p, XXH3_state_t *state)
{
	struct engine_job job = {pass_block, p, engine_blocks(engine, p->count)};
	const float *values = p->to ? p->to : p->from;

	p->block = engine->block;
	engine_begin(engine, &job);
	for (size_t i = 0; i < job.n; i++) {
		size_t at = i * p->block, left = p->count - at;

		engine_wait(engine, &job, i);
		(void)XXH3_64bits_update(
			state, values + at, (left < p->block ? left : p->block) * sizeof(*values));
	}
}

static uint64_t hash_pass(
	float *to, const float *from, size_t count, uint32_t *peak, const struct engine *engine)
{
	struct pass p = {.to = to, .from = from, .count = count};
	XXH3_state_t state;

	*peak = 0;
	if (XXH3_64bits_reset(&state) == XXH_ERROR)
		return 0;
	if (engine && count > engine->block)
		pass_with(engine, &p, &state);
	else
		pass_alone(&p, &state);
	*peak = atomic_load(&p.peak);
	return XXH3_64bits_digest(&state);
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
