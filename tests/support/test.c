/* test.c - see test.h. */
#include "tests/support/test.h"
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

int main(void)
{
	return _cmocka_run_group_tests("tests", tests.test, tests.n, tests.set_up, tests.tear_down);
}
