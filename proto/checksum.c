#include "proto/checksum.h"
#include "proto/wire.h"
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

uint64_t wire_hash_peak(const float *data, size_t count, uint32_t *peak)
{
	const size_t block = PEAK_BYTES / sizeof(*data);
	XXH3_state_t state;

	*peak = 0;
	if (XXH3_64bits_reset(&state) == XXH_ERROR)
		return 0;
	for (size_t done = 0; done < count; done += block) {
		size_t n = count - done < block ? count - done : block;

		(void)XXH3_64bits_update(&state, data + done, n * sizeof(*data));
		uint32_t here = peak_of_block(data + done, n);
		*peak = here > *peak ? here : *peak;
	}
	return XXH3_64bits_digest(&state);
}

void wire_copy_chunk(float *to, const void *from, size_t count, struct chunk *chunk)
{
	const size_t block = PEAK_BYTES / sizeof(*to);
	XXH3_state_t state;

	*chunk = (struct chunk){0};
	if (XXH3_64bits_reset(&state) == XXH_ERROR)
		return;
	for (size_t done = 0; done < count; done += block) {
		size_t n = count - done < block ? count - done : block;

		memcpy(to + done, (const float *)from + done, n * sizeof(*to));
		(void)XXH3_64bits_update(&state, to + done, n * sizeof(*to));
		uint32_t here = peak_of_block(to + done, n);
		chunk->peak = here > chunk->peak ? here : chunk->peak;
	}
	chunk->xxh3 = XXH3_64bits_digest(&state);
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
