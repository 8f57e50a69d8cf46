/* test_xxh3_sums.c - compares the checksum in two parts with that of the library (xxh3_sums.h). */
#include <stdlib.h>
#include "common/rng.h"
#include "common/xxh3_sums.h"
#include "proto/wire.h"
#include "tests/support/test.h"

#define MAX_BYTES 40000u

static uint64_t hash_in_parts(const unsigned char *data, size_t bytes, size_t part)
{
	struct xxh3_sum sum[MAX_BYTES / XXH3_BLOCK + 1];
	const size_t blocks = xxh3_blocks(bytes);
	struct xxh3_mix mix;

	/* from the last part to the first, because the order of the parts must not matter */
	for (size_t at = blocks; at > 0;) {
		size_t n = at < part ? at : part;

		at -= n;
		xxh3_sum_blocks(sum + at, data + at * XXH3_BLOCK, n);
	}
	xxh3_mix_begin(&mix);
	for (size_t at = 0; at < blocks; at += part)
		xxh3_mix_blocks(&mix, sum + at, blocks - at < part ? blocks - at : part);
	return xxh3_mix_end(&mix, data + bytes, bytes);
}

TEST(two_parts_make_the_checksum_of_the_library)
{
	unsigned char *data = malloc(MAX_BYTES + 1);
	struct rng r = rng_seed(1, RNG_DROPOUT, 0);

	assert_non_null(data);
	for (size_t i = 0; i <= MAX_BYTES; i++)
		data[i] = (unsigned char)rng_next(&r);
	for (size_t bytes = XXH3_TAIL; bytes <= MAX_BYTES; bytes += 1 + bytes % 13)
		assert_int_equal(hash_in_parts(data + bytes % 2, bytes, 1 + bytes % 5),
			wire_frame_checksum(data + bytes % 2, bytes));
	for (size_t i = 30; i <= 39; i++) { /* whole blocks, and one byte more or less */
		assert_int_equal(hash_in_parts(data, i * XXH3_BLOCK - 1, 3),
			wire_frame_checksum(data, i * XXH3_BLOCK - 1));
		assert_int_equal(hash_in_parts(data, i * XXH3_BLOCK, 3),
			wire_frame_checksum(data, i * XXH3_BLOCK));
		assert_int_equal(hash_in_parts(data, i * XXH3_BLOCK + 1, 3),
			wire_frame_checksum(data, i * XXH3_BLOCK + 1));
	}
	free(data);
}
