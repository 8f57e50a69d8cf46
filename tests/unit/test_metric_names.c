/* test_metric_names.c - proves that names of metrics are read and refused correctly, and are
 * written in one canonical form. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/metric_names.h"
#include "tests/support/test.h"

TEST(names_have_one_canonical_text)
{
	static const char *const same[][2] = {{"", ""}, {"accuracy", ""}, {" accuracy ,", ""},
		{"none", "none"}, {"bits", "bits"}, {"bits,accuracy", "accuracy bits"},
		{"accuracy, top_5  f1", "accuracy top_5 f1"},
		{"a,b,c,d,accuracy", "accuracy a b c d"}};

	for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
		struct metric_names names;
		char text[METRICS_TEXT];

		assert_true(metric_names_parse(&names, same[i][0]));
		metric_names_text(&names, text);
		assert_string_equal(text, same[i][1]);
		assert_true(metric_names_parse(&names, text));
	}
}

TEST(the_longest_names_fit_the_text)
{
	struct metric_names names;
	char text[METRICS_TEXT];

	assert_true(metric_names_parse(&names, "accuracy,aaaaaaaaaaaaaaaaaaaaaaaa,"
					       "bbbbbbbbbbbbbbbbbbbbbbbb,cccccccccccccccccccccccc,"
					       "dddddddddddddddddddddddd"));
	metric_names_text(&names, text);
	assert_int_equal(strlen(text), strlen("accuracy") + MAX_METRICS * (MAX_METRIC_NAME + 1));
}

TEST(wrong_names_are_refused)
{
	static const char *const wrong[] = {"Bits", "a-b", "a,a", "accuracy,accuracy", "none,a",
		"a,none", "a,b,c,d,e", "aaaaaaaaaaaaaaaaaaaaaaaaa", "a\nb", "\xc3\xa4"};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct metric_names names;

		assert_false(metric_names_parse(&names, wrong[i]));
	}
}
