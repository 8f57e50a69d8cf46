/* test_keep_rule.c - proves which texts --keep accepts. */
#include "server/config/keep_rule.h"
#include "tests/support/test.h"
#include <stddef.h>

TEST(rules_are_read)
{
	struct keep_rule r;

	assert_true(keep_rule_parse("best", &r));
	assert_true(r.best && r.every == 0);
	assert_true(keep_rule_parse("every=10", &r));
	assert_true(!r.best && r.every == 10);
	assert_true(keep_rule_parse("best,every=1", &r));
	assert_true(r.best && r.every == 1);
	assert_true(keep_rule_parse("every=3,best", &r));
	assert_true(r.best && r.every == 3);
}

TEST(other_texts_are_refused)
{
	static const char *const bad[] = {"", ",", "best,", ",best", "best,best", "every",
		"every=", "every=0", "every=-1", "every=+1", "every= 1", "every=1x",
		"every=1,every=2", "every=99999999999", "Best", "last", "best every=2"};
	struct keep_rule r;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(keep_rule_parse(bad[i], &r));
}
