/* xxh3_sums.c - see xxh3_sums.h. */
#include "common/xxh3_sums.h"
#include <string.h>
#include "common/clones.h"
#include "common/xxh3_lane.h"

static const uint64_t key[XXH3_SECRET_WORDS] = {XXH3_SECRET};

/* Adds the products of `n` stripes to the sums. Stripe i uses the secret from word i on. */
static inline void add_stripes(
	uint64_t *restrict lane, const unsigned char *data, const uint64_t *restrict word, size_t n)
{
	uint64_t product[XXH3_LANES] = {0}, plain[XXH3_LANES] = {0};

	for (size_t s = 0; s < n; s++)
		for (size_t i = 0; i < XXH3_LANES; i++) {
			uint64_t d;

			memcpy(&d, data + s * XXH3_STRIPE + i * sizeof(d), sizeof(d));
			product[i] += xxh3_product(d, word[s + i]);
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
		add_stripes(sum[b].lane, at + b * XXH3_BLOCK, key, XXH3_STRIPES);
	}
}

void xxh3_mix_begin(struct xxh3_mix *m)
{
	*m = (struct xxh3_mix){{XXH3_START}};
}

PS_CLONES
void xxh3_mix_blocks(struct xxh3_mix *m, const struct xxh3_sum *sum, size_t n)
{
	struct xxh3_mix mix = *m;

	for (size_t b = 0; b < n; b++)
		for (size_t i = 0; i < XXH3_LANES; i++)
			mix.lane[i] = xxh3_mix_lane(
				mix.lane[i] + sum[b].lane[i], key[XXH3_STRIPES + i], 0);
	*m = mix;
}

uint64_t xxh3_mix_end(const struct xxh3_mix *m, const void *end, size_t bytes)
{
	const size_t rest = bytes - xxh3_blocks(bytes) * XXH3_BLOCK;
	const unsigned char *at = (const unsigned char *)end - rest;
	uint64_t lane[XXH3_LANES], last[XXH3_LANES];
	uint64_t folded = 0;

	memcpy(lane, m->lane, sizeof(lane));
	add_stripes(lane, at, key, (rest - 1) / XXH3_STRIPE);
	for (size_t i = 0; i < XXH3_LANES; i++)
		last[i] = xxh3_key_at(key, XXH3_LAST_KEY + i * sizeof(last[i]));
	add_stripes(lane, (const unsigned char *)end - XXH3_STRIPE, last, 1);
	for (size_t i = 0; i < XXH3_LANES; i += 2)
		folded += xxh3_fold(lane[i] ^ xxh3_key_at(key, XXH3_MERGE_KEY + i * sizeof(folded)),
			lane[i + 1] ^ xxh3_key_at(key, XXH3_MERGE_KEY + (i + 1) * sizeof(folded)));
	return xxh3_finish(folded, bytes);
}
