/* Proves that the histograms of /metrics count each time correctly (server/monitor/timings.h). */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "server/monitor/timings.h"
#include "tests/support/test.h"

TEST(each_time_is_in_one_bucket_and_those_above)
{
	struct timings t = {0};
	char *text = NULL;
	size_t n;

	timings_add(&t, TIMING_PUSH, 0);
	timings_add(&t, TIMING_PUSH, 1e-6);
	timings_add(&t, TIMING_PUSH, 3e-6);
	timings_add(&t, TIMING_PUSH, 1000);
	FILE *f = open_memstream(&text, &n);
	assert_non_null(f);
	timings_print(&t, f);
	fclose(f);
	assert_non_null(strstr(text, "\ncnnps_push_seconds_bucket{le=\"1e-06\"} 2\n"));
	assert_non_null(strstr(text, "\ncnnps_push_seconds_bucket{le=\"4e-06\"} 3\n"));
	assert_non_null(strstr(text, "\ncnnps_push_seconds_bucket{le=\"4.194304\"} 3\n"));
	assert_non_null(strstr(text, "\ncnnps_push_seconds_bucket{le=\"+Inf\"} 4\n"));
	assert_non_null(strstr(text, "\ncnnps_push_seconds_sum 1000\n"));
	assert_non_null(strstr(text, "\ncnnps_push_seconds_count 4\n"));
	assert_non_null(strstr(text, "\ncnnps_pull_seconds_count 0\n"));
	free(text);
}
