/*
 * xxh3_lane.h - the steps of XXH3-64 (xxh3_sums.h) for one lane, for C and for CUDA. The constants
 * and steps are those of XXH3 with the default secret and seed 0.
 */
#ifndef COMMON_XXH3_LANE_H
#define COMMON_XXH3_LANE_H
#include <stddef.h>
#include <stdint.h>
#include "common/xxh3_secret.h"
#include "common/xxh3_sums.h"

#ifdef __CUDACC__
#define XXH3_FN static __device__ __forceinline__
#else
#define XXH3_FN static inline
__extension__ typedef unsigned __int128 xxh3_uint128;
#endif

#define XXH3_STRIPE    64u /* bytes of a stripe: one word for each lane */
#define XXH3_STRIPES   (XXH3_BLOCK / XXH3_STRIPE)
#define XXH3_LAST_KEY  121u /* byte offset in the secret of the key for the last 64 bytes */
#define XXH3_MERGE_KEY 11u  /* byte offset in the secret of the key that merges the lanes */

#define XXH3_PRIME32_1 UINT64_C(0x9E3779B1)
#define XXH3_PRIME32_2 UINT64_C(0x85EBCA77)
#define XXH3_PRIME32_3 UINT64_C(0xC2B2AE3D)
#define XXH3_PRIME64_1 UINT64_C(0x9E3779B185EBCA87)
#define XXH3_PRIME64_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define XXH3_PRIME64_3 UINT64_C(0x165667B19E3779F9)
#define XXH3_PRIME64_4 UINT64_C(0x85EBCA77C2B2AE63)
#define XXH3_PRIME64_5 UINT64_C(0x27D4EB2F165667C5)
#define XXH3_AVALANCHE UINT64_C(0x165667919E3779F9)

/* The values of the lanes before the first block. */
#define XXH3_START                                                                                 \
	XXH3_PRIME32_3, XXH3_PRIME64_1, XXH3_PRIME64_2, XXH3_PRIME64_3, XXH3_PRIME64_4,            \
		XXH3_PRIME32_2, XXH3_PRIME64_5, XXH3_PRIME32_1

/* Returns the 8 bytes of the secret `words` from `byte` on. */
XXH3_FN uint64_t xxh3_key_at(const uint64_t *words, size_t byte)
{
	const size_t shift = 8 * (byte % 8);
	const uint64_t *w = words + byte / 8;

	return shift ? w[0] >> shift | w[1] << (64 - shift) : w[0];
}

/* Returns the product of a word of the input with its key. */
XXH3_FN uint64_t xxh3_product(uint64_t word, uint64_t key)
{
	const uint64_t k = word ^ key;

	return (k & UINT32_MAX) * (k >> 32);
}

/* Mixes a lane after a block. x is the value of the lane plus its sum of this block. Returns the
 * mixed value plus `next`. The function does not multiply two 64-bit numbers, because this is
 * slow. */
XXH3_FN uint64_t xxh3_mix_lane(uint64_t x, uint64_t key, uint64_t next)
{
	x = (x ^ (x >> 47)) ^ key;
	return (x & UINT32_MAX) * XXH3_PRIME32_1 + (((x >> 32) * XXH3_PRIME32_1 << 32) + next);
}

/* Returns what two lanes, a and b, contribute to the checksum. */
XXH3_FN uint64_t xxh3_fold(uint64_t a, uint64_t b)
{
#ifdef __CUDACC__
	return a * b ^ __umul64hi(a, b);
#else
	const xxh3_uint128 product = (xxh3_uint128)a * b;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
#endif
}

/* Returns the checksum of `bytes` bytes, where `folded` is the sum of the results of xxh3_fold. */
XXH3_FN uint64_t xxh3_finish(uint64_t folded, uint64_t bytes)
{
	uint64_t hash = bytes * XXH3_PRIME64_1 + folded;

	hash ^= hash >> 37;
	hash *= XXH3_AVALANCHE;
	return hash ^ (hash >> 32);
}

#endif
