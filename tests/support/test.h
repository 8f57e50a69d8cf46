/*
 * test.h - macros for test programs with cmocka. A test that is defined with these macros registers
 * itself. The main function (test.c) runs the tests in the order in which the file defines them.
 *
 *   TEST(name)                        {...}   a test
 *   TEST_IN(name, set_up, tear_down)  {...}   a test with set-up and tear-down, either may be NULL
 *   TEST_AGAIN(name, set_up, tear_down)       the same test with two other functions
 *   TEST_GROUP(set_up, tear_down)             functions that run before and after all tests
 *
 * The body of a test may use the parameter `void **state`, in which a set-up function can pass
 * data.
 */
#ifndef TESTS_SUPPORT_TEST_H
#define TESTS_SUPPORT_TEST_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* the headers above must come first, because cmocka.h needs them */
#include <cmocka.h>

void test_add(const char *name, CMUnitTestFunction run, CMFixtureFunction set_up,
	CMFixtureFunction tear_down);
void test_group(CMFixtureFunction set_up, CMFixtureFunction tear_down);

#define TEST(name) TEST_IN(name, NULL, NULL)
#define TEST_IN(name, set_up, tear_down)                                                           \
	static void name(void **state);                                                            \
	__attribute__((constructor)) static void add_##name(void)                                  \
	{                                                                                          \
		test_add(#name, name, set_up, tear_down);                                          \
	}                                                                                          \
	static void name(__attribute__((unused)) void **state)
#define TEST_AGAIN(name, set_up, tear_down)                                                        \
	__attribute__((constructor)) static void add_again_##name(void)                            \
	{                                                                                          \
		test_add(#name, name, set_up, tear_down);                                          \
	}
#define TEST_GROUP(set_up, tear_down)                                                              \
	__attribute__((constructor)) static void add_group(void)                                   \
	{                                                                                          \
		test_group(set_up, tear_down);                                                     \
	}

#endif
