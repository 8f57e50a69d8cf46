/* xxh3_sums.c - see xxh3_sums.h. The constants and steps are those of XXH3 with the default secret
 * and seed 0. */
#include "common/xxh3_sums.h"
#include <string.h>
#include "common/clones.h"
#include "common/xxh3_secret.h"

#define STRIPE    64u /* bytes */
#define STRIPES   (XXH3_BLOCK / STRIPE)
#define PRIME32_1 UINT64_C(0x9E3779B1)
#define PRIME32_2 UINT64_C(0x85EBCA77)
#define PRIME32_3 UINT64_C(0xC2B2AE3D)
#define PRIME64_1 UINT64_C(0x9E3779B185EBCA87)
#define PRIME64_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define PRIME64_3 UINT64_C(0x165667B19E3779F9)
#define PRIME64_4 UINT64_C(0x85EBCA77C2B2AE63)
#define PRIME64_5 UINT64_C(0x27D4EB2F165667C5)
#define AVALANCHE UINT64_C(0x165667919E3779F9)
#define LAST_KEY  121u /* offset in the secret of the key of the last 64 bytes */
#define MERGE_KEY 11u  /* offset of the key that merges the lanes */

static const uint64_t key[XXH3_SECRET_WORDS] = {XXH3_SECRET};

/* Adds the products of `n` stripes to the sums. Stripe i uses the secret from word i on. */
static inline void add_stripes(
	uint64_t *restrict lane, const unsigned char *data, const uint64_t *restrict word, size_t n)
{
	uint64_t product[XXH3_LANES] = {0}, plain[XXH3_LANES] = {0};

	for (size_t s = 0; s < n; s++)
		for (size_t i = 0; i < XXH3_LANES; i++) {
			uint64_t d, k;

			memcpy(&d, data + s * STRIPE + i * sizeof(d), sizeof(d));
			k = d ^ word[s + i];
			product[i] += (k & UINT32_MAX) * (k >> 32);
			plain[i] += d;
		}
	for (size_t i = 0; i < XXH3_LANES; i++)
		lane[i] += product[i] + plain[i ^ 1];
}

PS_CLONES
void xxh3_sum_blocks(struct xxh3_sum *sum, const void *data, size_t n)
{
	const unsigned char *at = data;

	for (size_t b = 0; b < n; b++) {
		memset(&sum[b], 0, sizeof(sum[b]));
		add_stripes(sum[b].lane, at + b * XXH3_BLOCK, key, STRIPES);
	}
}

void xxh3_mix_begin(struct xxh3_mix *m)
{
	*m = (struct xxh3_mix){{PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2,
		PRIME64_5, PRIME32_1}};
}

PS_CLONES
void xxh3_mix_blocks(struct xxh3_mix *m, const struct xxh3_sum *sum, size_t n)
{
	struct xxh3_mix mix = *m;

	for (size_t b = 0; b < n; b++)
		for (size_t i = 0; i < XXH3_LANES; i++) {
			uint64_t x = mix.lane[i] + sum[b].lane[i];

			x = (x ^ (x >> 47)) ^ key[STRIPES + i];
			/* x * PRIME32_1, without a slow product of 64 bits */
			mix.lane[i] = (x & UINT32_MAX) * PRIME32_1 + ((x >> 32) * PRIME32_1 << 32);
		}
	*m = mix;
}

static uint64_t secret_at(size_t byte)
{
	uint64_t k;

	memcpy(&k, (const unsigned char *)key + byte, sizeof(k));
	return k;
}

__extension__ typedef unsigned __int128 uint128;

static uint64_t fold(uint64_t a, uint64_t b)
{
	uint128 product = (uint128)a * b;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t xxh3_mix_end(const struct xxh3_mix *m, const void *end, size_t bytes)
{
	const size_t rest = bytes - xxh3_blocks(bytes) * XXH3_BLOCK;
	const unsigned char *at = (const unsigned char *)end - rest;
	uint64_t lane[XXH3_LANES], last[XXH3_LANES];
	uint64_t hash = bytes * PRIME64_1;

	memcpy(lane, m->lane, sizeof(lane));
	add_stripes(lane, at, key, (rest - 1) / STRIPE);
	for (size_t i = 0; i < XXH3_LANES; i++)
		last[i] = secret_at(LAST_KEY + i * sizeof(last[i]));
	add_stripes(lane, (const unsigned char *)end - STRIPE, last, 1);
	for (size_t i = 0; i < XXH3_LANES; i += 2)
		hash += fold(lane[i] ^ secret_at(MERGE_KEY + i * sizeof(hash)),
			lane[i + 1] ^ secret_at(MERGE_KEY + (i + 1) * sizeof(hash)));
	hash ^= hash >> 37;
	hash *= AVALANCHE;
	return hash ^ (hash >> 32);
}
