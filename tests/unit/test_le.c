/* test_le.c - proves the promises of common/le.h: numbers are little-endian, at any alignment. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/le.h"
#include "tests/support/test.h"

TEST(the_lowest_byte_comes_first)
{
	static const unsigned char four[] = {0x04, 0x03, 0x02, 0x81};
	static const unsigned char eight[] = {0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x81};
	unsigned char out[8];

	le32_put(out, 0x81020304u);
	assert_memory_equal(out, four, sizeof(four));
	assert_int_equal(le32_get(four), 0x81020304u);
	le64_put(out, 0x8102030405060708u);
	assert_memory_equal(out, eight, sizeof(eight));
	assert_true(le64_get(eight) == 0x8102030405060708u);
}

TEST(any_alignment_will_do)
{
	static const uint64_t values[] = {
		0, 1, 0xff, UINT32_MAX, 1ull << 32, 1ull << 63, UINT64_MAX};
	unsigned char bytes[24];

	for (size_t at = 1; at <= 8; at++)
		for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
			memset(bytes, 0xaa, sizeof(bytes));
			le64_put(bytes + at, values[i]);
			assert_true(le64_get(bytes + at) == values[i]);
			assert_int_equal(le32_get(bytes + at), (uint32_t)values[i]);
			assert_int_equal(bytes[at - 1], 0xaa);
			assert_int_equal(bytes[at + 8], 0xaa);
			le32_put(bytes + at, (uint32_t)~values[i]);
			assert_int_equal(le32_get(bytes + at), (uint32_t)~values[i]);
			assert_int_equal(le32_get(bytes + at + 4), (uint32_t)(values[i] >> 32));
		}
}
