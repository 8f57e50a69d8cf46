/*
 * xxh3_sums.h - computes XXH3-64 in two parts, so that several threads or a GPU can do the first.
 *
 * XXH3 reads a long input in blocks of 1024 bytes. For each block it adds 16 products to each of
 * eight numbers, and mixes these numbers after the block. The sums of a block do not depend on the
 * blocks before it; only the mixing does. The first part computes the sums of each block, in any
 * order. The second part mixes them in order: it reads 64 bytes per block instead of 1024.
 *
 * The last block, which may be shorter, belongs to the second part. The functions are pure, and any
 * thread may call them.
 */
#ifndef COMMON_XXH3_SUMS_H
#define COMMON_XXH3_SUMS_H
#include <stddef.h>
#include <stdint.h>

#define XXH3_BLOCK 1024u /* bytes of a block */
#define XXH3_LANES 8u
/* bytes at the end of the input that the second part needs */
#define XXH3_TAIL (XXH3_BLOCK + 64)

struct xxh3_sum {
	uint64_t lane[XXH3_LANES];
};

/* Returns the number of blocks whose sums the first part computes. */
static inline size_t xxh3_blocks(size_t bytes)
{
	return bytes > 0 ? (bytes - 1) / XXH3_BLOCK : 0;
}

/* The first part: computes the sums of `n` blocks. */
void xxh3_sum_blocks(struct xxh3_sum *sum, const void *data, size_t n);

struct xxh3_mix {
	uint64_t lane[XXH3_LANES];
};

/* The second part: begins, takes the sums of the blocks in order, and ends. `end` points to the end
 * of the input, which has at least XXH3_TAIL bytes before `end`. */
void xxh3_mix_begin(struct xxh3_mix *m);
void xxh3_mix_blocks(struct xxh3_mix *m, const struct xxh3_sum *sum, size_t n);
uint64_t xxh3_mix_end(const struct xxh3_mix *m, const void *end, size_t bytes);

#endif
