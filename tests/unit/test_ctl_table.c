/* test_ctl_table.c - the table of cnn-ctl top shows each part of a worker's time in a column of its
 * own, and fits the terminal. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "worker/ctl/table.h"
#include "tests/support/test.h"

/* a worker whose values are as wide as possible in a terminal of 120 columns */
static const char widest[] =
	"[{\"worker\": 200, \"name\": \"gpu-node-17.cluster.example.org-3\", \"host\": "
	"\"gpu-node-17.cluster.example.org\", \"pid\": 4194304, \"address\": \"192.168.100.200\", "
	"\"device\": \"NVIDIA H200 SXM\", \"state\": \"quarantined\", \"images_per_s\": 12345678, "
	"\"time\": {\"compute\": 0.5, \"weights\": 0.2, \"push\": 0.15, \"lease\": 0.1, "
	"\"copy\": 0.05}, \"staleness\": 10.25, \"silent_ms\": 1500, \"images\": 123456789, "
	"\"last_seq\": 12345, \"durable_seq\": 12344, \"duplicates\": 3, \"rejected\": 2, "
	"\"refusals\": 1, \"wire\": \"fp32\"}]";

/* Removes the marks of screen.h from a text. */
static void unmark(char *text)
{
	char *to = text;

	for (; *text; text++)
		if (*text >= ' ' || *text == '\n')
			*to++ = *text;
	*to = '\0';
}

/* Prints the table of `workers` for a terminal of `columns` columns, without marks. The caller
 * frees the text. */
static char *print(const char *workers, size_t columns, struct table_view *v)
{
	json_t *list = json_loads(workers, 0, NULL);
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	assert_non_null(list);
	assert_non_null(f);
	(void)table_print(f, list, columns, 0, v);
	assert_int_equal(fclose(f), 0);
	json_decref(list);
	unmark(text);
	return text;
}

/* Checks that the first worker has the text `values` in the columns with these titles. */
static void check_values(const char *workers, const char *titles, const char *values)
{
	struct table_view v = {0};
	char *text = print(workers, 0, &v), *title = strstr(text, titles);

	assert_non_null(title);
	char *row = strchr(text, '\n') + 1 + (title - text);
	row[strlen(titles)] = '\0';
	assert_string_equal(row, values);
	free(text);
}

TEST(each_part_of_the_time_has_a_column)
{
	check_values(widest, "compute  pull  copy  ack  work", "    50%   20%    5%  15%   10%");
}

TEST(unknown_shares_are_dashes)
{
	check_values("[{\"worker\": 1, \"name\": \"w\", \"state\": \"live\", \"time\": null}]",
		"compute  pull  copy  ack  work", "      -     -     -    -     -");
}

TEST(the_rate_of_a_slow_worker_keeps_a_digit)
{
	check_values(
		"[{\"worker\": 1, \"name\": \"w\", \"state\": \"live\", \"images_per_s\": 0.04}]",
		"state  images/s", "live       0.04");
	check_values("[{\"worker\": 1, \"name\": \"w\", \"state\": \"live\", \"images_per_s\": 0}]",
		"state  images/s", "live          0");
}

TEST(wide_values_hide_no_important_column_at_120_columns)
{
	static const char *const important[] = {"name", "host", "device", "state", "images/s",
		"compute", "pull", "copy", "ack", "work", "stale", "silent", "again", "refused"};
	struct table_view v = {0};
	char *text = print(widest, 120, &v);

	assert_true(strcspn(text, "\n") <= 120);
	for (size_t i = 0; i < sizeof(important) / sizeof(important[0]); i++)
		assert_null(strstr(v.hidden, important[i]));
	free(text);
}

TEST(a_wider_terminal_hides_no_more_columns)
{
	size_t hidden = SIZE_MAX;

	for (size_t columns = 50; columns <= 250; columns++) {
		struct table_view v = {0};
		char *text = print(widest, columns, &v);

		assert_true(strcspn(text, "\n") <= columns);
		assert_true(v.n_hidden <= hidden);
		hidden = v.n_hidden;
		free(text);
	}
	assert_int_equal(hidden, 0);
}
