/* test.c - see test.h. */
#include "tests/support/test.h"
#include <stdio.h>
#include <string.h>
#include "common/assert.h"

#define MAX_TESTS 64

static struct {
	struct CMUnitTest test[MAX_TESTS];
	size_t n;
	CMFixtureFunction set_up, tear_down;
} tests;

void test_add(const char *name, CMUnitTestFunction run, CMFixtureFunction set_up,
	CMFixtureFunction tear_down)
{
	PS_ASSERT(tests.n < MAX_TESTS);
	tests.test[tests.n++] = (struct CMUnitTest){name, run, set_up, tear_down, NULL};
}

void test_group(CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
	tests.set_up = set_up;
	tests.tear_down = tear_down;
}

/* Returns 1 if the program has a test of this name. */
static int has_test(const char *name)
{
	for (size_t i = 0; i < tests.n; i++)
		if (!strcmp(tests.test[i].name, name))
			return 1;
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 2 || (argc == 2 && !has_test(argv[1]))) {
		fprintf(stderr, "usage: %s [NAME]; NAME is one of its tests\n", argv[0]);
		return 2;
	}
	if (argc == 2)
		cmocka_set_test_filter(argv[1]);
	return _cmocka_run_group_tests("tests", tests.test, tests.n, tests.set_up, tests.tear_down);
}
