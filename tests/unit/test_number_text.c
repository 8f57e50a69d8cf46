/* test_number_text.c - the texts of losses, rates and times (common/number_text.h). */
#include <math.h>
#include "common/number_text.h"
#include "tests/support/test.h"

static const struct {
	double value;
	const char *text;
} losses[] = {{0, "0.0000"}, {0.693147, "0.6931"}, {0.001, "0.0010"}, {0.00099, "9.9e-04"},
	{1.23e-11, "1.2e-11"}, {-2.5, "-2.5000"}, {-1.23e-5, "-1.2e-05"}, {123456.7, "123456.7000"},
	{1e300, "1.0e+300"}, {-1e300, "-1.0e+300"}, {(double)INFINITY, "inf"}},
  rates[] = {{0, "0"}, {0.3, "0.3"}, {0.0421, "0.04"}, {0.0004, "0.0004"}, {1.2e-5, "1e-05"},
	  {0.96, "1"}, {1, "1"}, {1.4, "1"}, {9.6, "10"}, {12345678, "12345678"},
	  {1e300, "1e+300"}},
  times[] = {{0, "0 s"}, {7.2, "8 s"}, {89.5, "90 s"}, {90, "2 min"}, {1676, "28 min"},
	  {5399, "90 min"}, {5400, "1.5 h"}, {12345, "3.4 h"}, {1e6, "277.8 h"}};

TEST(a_small_loss_keeps_its_digits)
{
	char text[NUMBER_TEXT];

	for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++)
		assert_string_equal(number_text_loss(losses[i].value, text), losses[i].text);
	assert_string_equal(number_text_loss((double)NAN, text), "nan");
}

TEST(a_slow_rate_keeps_a_digit)
{
	char text[NUMBER_TEXT];

	for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
		assert_string_equal(number_text_rate(rates[i].value, text), rates[i].text);
}

TEST(a_time_has_the_unit_that_fits)
{
	char text[NUMBER_TEXT];

	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
		assert_string_equal(number_text_time(times[i].value, text), times[i].text);
}
