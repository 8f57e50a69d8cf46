/* Proves the promises of common/tensor_list.h. */
#include "common/tensor_list.h"
#include "common/rng.h"
#include "tests/support/test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char sound[] = "conv.weight F32 2x3\nscale F32 scalar\nmean F32 2\n"
			    "count I64 scalar -9223372036854775808\nbits BOOL 3 1,0,1\n"
			    "tied.weight = conv.weight\nalso.count = count\n";

static const char *check_of_list(const char *list, uint64_t n_params, uint64_t n_trained)
{
	size_t line;

	return tensor_list_check(list, n_params, n_trained, &line);
}

TEST(a_line_has_a_name_a_type_a_shape_and_values)
{
	const char *at = sound;
	struct tensor_line l;

	assert_null(check_of_list(sound, 9, 7));
	assert_null(tensor_list_next(&at, &l));
	assert_memory_equal(l.name, "conv.weight", l.name_bytes);
	assert_true(!l.type && !l.other && l.n_dims == 2 && l.dim[0] == 2 && l.dim[1] == 3);
	assert_int_equal(l.count, 6);
	assert_null(tensor_list_next(&at, &l));
	assert_true(l.n_dims == 0 && l.count == 1);
	assert_null(tensor_list_next(&at, &l));
	assert_null(tensor_list_next(&at, &l));
	assert_string_equal(l.type->name, "I64");
	assert_true(tensor_list_value(&l.values) == INT64_MIN);
	assert_null(tensor_list_next(&at, &l));
	assert_true(tensor_list_value(&l.values) == 1 && tensor_list_value(&l.values) == 0 &&
		    tensor_list_value(&l.values) == 1);
	assert_null(tensor_list_next(&at, &l));
	assert_memory_equal(l.other, "conv.weight", l.other_bytes);
	assert_null(tensor_list_next(&at, &l));
	assert_int_equal(*at, '\0');
}

TEST(malformed_lists_are_refused)
{
	const struct {
		const char *list, *why;
		size_t line;
	} row[] = {
		{"a F32 3", "does not end", 1},
		{"a F32 3\n\n", "name is malformed", 2},
		{"a F32 3 \n", "does not end", 1},
		{" F32 3\n", "name is malformed", 1},
		{"a\"b F32 3\n", "name is malformed", 1},
		{"a\\b F32 3\n", "name is malformed", 1},
		{"\xc3\xa4 F32 3\n", "name is malformed", 1},
		{"a\tb F32 3\n", "name is malformed", 1},
		{"a", "name is malformed", 1},
		{"a F16 3\n", "type is not", 1},
		{"a F32 0\n", "shape is malformed", 1},
		{"a F32 03\n", "shape is malformed", 1},
		{"a F32 3x\n", "shape is malformed", 1},
		{"a F32 \n", "shape is malformed", 1},
		{"a F32 1x1x1x1x1x1x1x1x3\n", "shape is malformed", 1},
		{"a F32 65536x65536\n", "shape is malformed", 1},
		{"a F32 99999999999999999999\n", "shape is malformed", 1},
		{"a F32 3\na F32 3\n", "occurs twice", 2},
		{"a F32 3\nb = c\n", "no earlier line", 2},
		{"a F32 3\nb = b\n", "no earlier line", 2},
		{"a F32 3\nb = a\nc = b\n", "no earlier line", 3},
		{"a F32 3\nb = \n", "other name is malformed", 2},
		{"a F32 3\nb I64 1\n", "shape is malformed", 2},
		{"a F32 3\nb I64 2 1\n", "values do not fit", 2},
		{"a F32 3\nb I64 1 1,2\n", "does not end", 2},
		{"a F32 3\nb I64 scalar 9223372036854775808\n", "values do not fit", 2},
		{"a F32 3\nb I64 scalar -9223372036854775809\n", "values do not fit", 2},
		{"a F32 3\nb U8 scalar 256\n", "values do not fit", 2},
		{"a F32 3\nb U8 scalar -1\n", "values do not fit", 2},
		{"a F32 3\nb BOOL scalar 2\n", "values do not fit", 2},
		{"a F32 3\nb I8 scalar -0\n", "values do not fit", 2},
		{"a F32 3\nb I8 scalar 01\n", "values do not fit", 2},
		{"a F32 4\n", "another number of values", 0},
		{"", "another number of values", 0},
	};
	size_t line;

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		const char *why = tensor_list_check(row[i].list, 3, 3, &line);

		print_message("%s", row[i].list);
		assert_non_null(why);
		assert_non_null(strstr(why, row[i].why));
		assert_int_equal(line, row[i].line);
	}
}

TEST(a_tensor_is_trained_or_has_running_statistics)
{
	size_t line;

	assert_null(check_of_list("a F32 2\nb F32 1\n", 3, 2));
	assert_string_equal(tensor_list_check("a F32 1\nb F32 2\n", 3, 2, &line),
		"a part of it is trained, and the rest is running statistics");
	assert_int_equal(line, 2);
}

TEST(long_lists_are_refused)
{
	size_t room = TENSOR_LIST_BYTES + 2, n = 0;
	char *list = malloc(room);

	assert_non_null(list);
	memset(list, 'a', room);
	memcpy(list + TENSOR_LIST_NAME, " F32 1\n", 8);
	assert_null(check_of_list(list, 1, 1));
	list[TENSOR_LIST_NAME] = 'a';
	memcpy(list + TENSOR_LIST_NAME + 1, " F32 1\n", 8);
	assert_string_equal(check_of_list(list, 1, 1), "its name is malformed");
	for (unsigned i = 0; i < TENSOR_LIST_LINES; i++)
		n += (size_t)snprintf(list + n, room - n, "%x F32 1\n", i);
	assert_null(check_of_list(list, TENSOR_LIST_LINES, 1));
	snprintf(list + n, room - n, "x F32 1\n");
	assert_string_equal(check_of_list(list, TENSOR_LIST_LINES + 1, 1), "it has too many lines");
	memset(list, 'a', room - 1);
	list[room - 1] = '\0';
	assert_string_equal(check_of_list(list, 1, 1), "it is too long");
	free(list);
}

TEST(only_the_values_of_constants_may_differ)
{
	const char *a = "w F32 3\nn I64 scalar 5\nv = w\n";

	assert_int_equal(tensor_list_difference(a, a), 0);
	assert_int_equal(tensor_list_difference(a, "w F32 3\nn I64 scalar 61\nv = w\n"), 0);
	assert_int_equal(tensor_list_difference(a, "w F32 3x1\nn I64 scalar 5\nv = w\n"), 1);
	assert_int_equal(tensor_list_difference(a, "w F32 3\nn I32 scalar 5\nv = w\n"), 2);
	assert_int_equal(tensor_list_difference(a, "w F32 3\nn I64 scalar 5\nu = w\n"), 3);
	assert_int_equal(tensor_list_difference(a, "w F32 3\nn I64 scalar 5\n"), 3);
	assert_int_equal(tensor_list_difference("", a), 1);
}

TEST(no_mutation_of_a_list_does_harm)
{
	const uint64_t seed = 41;
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	unsigned refused = 0;

	print_message("seed %llu\n", (unsigned long long)seed);
	for (int i = 0; i < 20000; i++) {
		/* a block of exactly the size of the text, so that AddressSanitizer finds reads
		 * past its end */
		char *copy = strdup(sound);

		assert_non_null(copy);
		for (uint64_t k = rng_below(&r, 3) + 1; k > 0; k--)
			copy[rng_below(&r, sizeof(sound) - 1)] = "\n =x,0F3a-"[rng_below(&r, 11)];
		if (check_of_list(copy, 9, 7))
			refused++;
		else
			assert_int_equal(tensor_list_difference(copy, copy), 0);
		free(copy);
	}
	assert_in_range(refused, 10000, 19999);
}
