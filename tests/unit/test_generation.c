/* test_generation.c - proves the promises of generation.h about file names. */
#include <stddef.h>
#include <stdint.h>
#include "common/generation.h"
#include "tests/support/test.h"

TEST(a_name_is_parsed_as_what_it_was_made_of)
{
	const uint64_t some[] = {1, 9, 10, 0xabcdef, UINT64_MAX};
	char name[GENERATION_NAME];

	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		generation_name("ckpt", some[i], name);
		assert_true(generation_parse(name, "ckpt", "") == some[i]);
	}
	assert_true(generation_parse("ckpt-00000000000000ff.tmp", "ckpt", ".tmp") == 255);
}

TEST(other_names_are_not_ours)
{
	const char *const others[] = {"", "ckpt", "ckpt-", "ckpt-1", "ckpt-000000000000001",
		"ckpt-00000000000000001", "ckpt-000000000000000A", "ckpt-000000000000000g",
		"ckpt_0000000000000001", "Ckpt-0000000000000001", "ckpt-0000000000000001.tmp",
		"ckpt-0000000000000001 ", "log-0000000000000001", "ckpt-0x00000000000001"};

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_true(generation_parse(others[i], "ckpt", "") == 0);
	assert_true(generation_parse("ckpt-0000000000000001", "ckpt", ".tmp") == 0);
}
