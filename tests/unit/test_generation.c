/* test_generation.c - proves what generation.h promises about file names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "common/generation.h"

static void a_name_is_parsed_as_what_it_was_made_of(void **state)
{
	const uint64_t some[] = {1, 9, 10, 0xabcdef, UINT64_MAX};
	char name[GENERATION_NAME];

	(void)state;
	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		generation_name("ckpt", some[i], name);
		assert_true(generation_parse(name, "ckpt", "") == some[i]);
	}
	assert_true(generation_parse("ckpt-00000000000000ff.tmp", "ckpt", ".tmp") == 255);
}

static void other_names_are_not_ours(void **state)
{
	const char *const others[] = {"", "ckpt", "ckpt-", "ckpt-1", "ckpt-000000000000001",
		"ckpt-00000000000000001", "ckpt-000000000000000A", "ckpt-000000000000000g",
		"ckpt_0000000000000001", "Ckpt-0000000000000001", "ckpt-0000000000000001.tmp",
		"ckpt-0000000000000001 ", "log-0000000000000001", "ckpt-0x00000000000001"};

	(void)state;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_true(generation_parse(others[i], "ckpt", "") == 0);
	assert_true(generation_parse("ckpt-0000000000000001", "ckpt", ".tmp") == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_name_is_parsed_as_what_it_was_made_of),
		cmocka_unit_test(other_names_are_not_ours),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
