/* Proves the promises of common/safetensors.h. */
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include "common/file.h"
#include "common/model.h"
#include "common/rng.h"
#include "common/safetensors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test.h"

static char path[320];
static struct err e;
static struct model m;
static float weights[20000], again[20000];

static int set_up_safetensors(void **state)
{
	(void)state;
	temp_dir_make(temp_dir);
	temp_dir_path(temp_dir, "w.safetensors", path);
	memset(&e, 0, sizeof(e));
	return 0;
}

static void make_model(const char *text)
{
	assert_int_equal(model_parse(&m, text, (struct shape){1, 28, 28}, &e), PS_OK);
	assert_true(m.n_params <= sizeof(weights) / sizeof(weights[0]));
	model_init(&m, 7, weights);
}

static unsigned char *read_weights_file(size_t *size)
{
	void *data;

	assert_int_equal(file_read(path, 1 << 20, &data, size, &e), PS_OK);
	return data;
}

TEST_IN(weights_come_back_bit_for_bit, set_up_safetensors, temp_dir_tear_down)
{
	const char *models[] = {"conv:4:5 relu pool:2 fc:10", "fc:5 relu fc:2", "vector:17"};

	for (size_t i = 0; i < 3; i++) {
		make_model(models[i]);
		weights[0] = -0.0f;
		weights[1] = 1e-45f; /* the smallest denormal number */
		weights[2] = 3.4028235e38f;
		memset(again, 0xff, sizeof(again));
		assert_int_equal(safetensors_write(path, &m, weights, &e), PS_OK);
		assert_int_equal(safetensors_read(path, &m, again, &e), PS_OK);
		assert_memory_equal(again, weights, m.n_params * sizeof(float));
		assert_true(isnan(again[m.n_params])); /* the read does not write past the values */
	}
}

TEST_IN(the_bytes_are_those_that_the_format_prescribes, set_up_safetensors, temp_dir_tear_down)
{
	size_t size;

	const char *header =
		"{\"__metadata__\":{\"format\":\"pt\",\"model\":\"conv:2:28 relu fc:3\"},"
		"\"conv1.weight\":{\"dtype\":\"F32\",\"shape\":[2,1,28,28],\"data_offsets\":[0,"
		"6272]},"
		"\"conv1.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[6272,6280]},"
		"\"fc1.weight\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[6280,6304]},"
		"\"fc1.bias\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[6304,6316]}}";
	make_model("conv:2:28 relu fc:3");
	assert_int_equal(safetensors_write(path, &m, weights, &e), PS_OK);
	unsigned char *file = read_weights_file(&size);
	size_t used = strlen(header), padded = (used + 7) / 8 * 8;
	uint64_t length;
	memcpy(&length, file, 8);
	assert_int_equal(length, padded);
	assert_memory_equal(file + 8, header, used);
	for (size_t i = used; i < padded; i++)
		assert_int_equal(file[8 + i], ' ');
	assert_int_equal(size, 8 + padded + 6316);
	assert_memory_equal(file + 8 + padded, weights, 6316);
	free(file);
}

TEST_IN(every_header_is_padded_to_8_bytes, set_up_safetensors, temp_dir_tear_down)
{
	const char *models[] = {"vector:3", "vector:30", "vector:300", "vector:3000", "fc:2",
		"fc:10", "fc:2 relu fc:2", "relu fc:10", "dropout:0.5 fc:10", "dropout:0.25 fc:10"};

	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		size_t size;
		uint64_t length;

		make_model(models[i]);
		assert_int_equal(safetensors_write(path, &m, weights, &e), PS_OK);
		unsigned char *file = read_weights_file(&size);
		memcpy(&length, file, 8);
		assert_int_equal(length % 8, 0);
		assert_int_equal(file[8], '{');
		assert_int_equal(size, 8 + length + 4 * m.n_params);
		free(file);
	}
}

TEST_IN(equal_weights_give_equal_files, set_up_safetensors, temp_dir_tear_down)
{
	size_t one_size, two_size;

	make_model("conv:4:5 relu pool:2 fc:10");
	assert_int_equal(safetensors_write(path, &m, weights, &e), PS_OK);
	unsigned char *one = read_weights_file(&one_size);
	temp_dir_path(temp_dir, "other-name.safetensors", path);
	assert_int_equal(safetensors_write(path, &m, weights, &e), PS_OK);
	unsigned char *two = read_weights_file(&two_size);
	assert_int_equal(one_size, two_size);
	assert_memory_equal(one, two, one_size);
	free(one);
	free(two);
}

TEST_IN(a_bare_file_name_is_written_where_one_stands, set_up_safetensors, temp_dir_tear_down)
{
	char before[4096];

	make_model("vector:3");
	assert_non_null(getcwd(before, sizeof(before)));
	assert_int_equal(chdir(temp_dir), 0);
	int rc = safetensors_write("bare.safetensors", &m, weights, &e);
	assert_int_equal(chdir(before), 0);
	assert_int_equal(rc, PS_OK);
	assert_true(temp_dir_exists(temp_dir, "bare.safetensors"));
	assert_int_equal(safetensors_write("/nonexistent-directory/w", &m, weights, &e), PS_EIO);
	/* fails, because the path is a directory */
	assert_int_equal(safetensors_write(temp_dir, &m, weights, &e), PS_EIO);
}

/* ---- hostile files ------------------------------------------------------------------------ */

/* In these tests the reader has the model fc:2 with 2 inputs: fc1.weight [2,2] and fc1.bias [2], 24
 * bytes. */
#define WEIGHT(dtype, shape, from, to)                                                             \
	"\"fc1.weight\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":[" from "," to   \
	"]}"
#define BIAS(shape, from, to)                                                                      \
	"\"fc1.bias\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"
#define GOOD_WEIGHT WEIGHT("\"F32\"", "[2,2]", "0", "16")
#define GOOD_BIAS   BIAS("[2]", "16", "24")

static void use_small_model(void)
{
	assert_int_equal(model_parse(&m, "fc:2", (struct shape){2, 1, 1}, &e), PS_OK);
	assert_int_equal(m.n_params, 6);
}

/* Writes a file with this header, this header length and `data_bytes` bytes of data, and reads the
 * file. Returns the status of the read. */
static int read_made(const char *header, uint64_t length, const void *data, size_t data_bytes)
{
	static unsigned char file[1 << 20];
	size_t n = strlen(header);

	memcpy(file, &length, 8);
	memcpy(file + 8, header, n);
	memcpy(file + 8 + n, data, data_bytes);
	temp_dir_write(temp_dir, "w.safetensors", file, 8 + n + data_bytes);
	return safetensors_read(path, &m, again, &e);
}

static const float six[] = {1, 2, 3, 4, 5, 6, 7, 8};

TEST_IN(another_order_of_tensors_is_read_by_name, set_up_safetensors, temp_dir_tear_down)
{
	const char *header =
		"{" BIAS("[2]", "0", "8") "," WEIGHT("\"F32\"", "[2,2]", "8", "24") "}  ";
	const float expected[] = {3, 4, 5, 6, 1, 2};
	use_small_model();
	assert_int_equal(read_made(header, strlen(header), six, 24), PS_OK);
	assert_memory_equal(again, expected, sizeof(expected));
	header = "{\"__metadata__\":{\"by\":\"somebody else\"}," GOOD_WEIGHT "," GOOD_BIAS "}";
	assert_int_equal(read_made(header, strlen(header), six, 24), PS_OK);
	assert_memory_equal(again, six, 24);
}

TEST_IN(a_file_of_another_model_is_refused_by_the_first_difference, set_up_safetensors,
	temp_dir_tear_down)
{
	static const struct {
		const char *header, *says;
	} row[] = {
		{"{" GOOD_WEIGHT "}", "\"fc1.bias\" is missing"},
		{"{" GOOD_BIAS "}", "\"fc1.weight\" is missing"},
		{"{}", "\"fc1.weight\" is missing"},
		{"{" GOOD_WEIGHT "," GOOD_BIAS ",\"fc2.bias\":{}}", "\"fc2.bias\" does not belong"},
		{"{" GOOD_WEIGHT "," GOOD_BIAS ",\"a\\nb\":{}}", "\"a?b\" does not belong"},
		{"{" GOOD_WEIGHT "," GOOD_BIAS "," GOOD_BIAS "}", "duplicate"},
		{"{" WEIGHT("\"F16\"", "[2,2]", "0", "16") "," GOOD_BIAS "}",
			"dtype F16; expected F32"},
		{"{" WEIGHT("1", "[2,2]", "0", "16") "," GOOD_BIAS "}", "dtype none; expected F32"},
		{"{" WEIGHT("\"F32\"", "[4]", "0", "16") "," GOOD_BIAS "}", "expected [2, 2]"},
		{"{" WEIGHT("\"F32\"", "[2,2,1]", "0", "16") "," GOOD_BIAS "}", "expected [2, 2]"},
		{"{" WEIGHT("\"F32\"", "[1,4]", "0", "16") "," GOOD_BIAS "}", "another shape"},
		{"{" WEIGHT("\"F32\"", "[2.0,2]", "0", "16") "," GOOD_BIAS "}", "another shape"},
		{"{" WEIGHT("\"F32\"", "4", "0", "16") "," GOOD_BIAS "}", "another shape"},
		{"{" WEIGHT("\"F32\"", "[-2,-2]", "0", "16") "," GOOD_BIAS "}", "another shape"},
		{"{" WEIGHT("\"F32\"", "[2,2]", "0", "12") "," GOOD_BIAS "}", "data_offsets"},
		{"{" WEIGHT("\"F32\"", "[2,2]", "16", "0") "," GOOD_BIAS "}", "data_offsets"},
		{"{" WEIGHT("\"F32\"", "[2,2]", "-16", "0") "," GOOD_BIAS "}", "data_offsets"},
		{"{" WEIGHT("\"F32\"", "[2,2]", "12", "28") "," GOOD_BIAS "}", "data_offsets"},
		{"{" WEIGHT("\"F32\"", "[2,2]", "9223372036854775791",
			 "9223372036854775807") "," GOOD_BIAS "}",
			"data_offsets"},
		{"{" WEIGHT("\"F32\"", "[2,2]", "-9223372036854775808",
			 "9223372036854775807") "," GOOD_BIAS "}",
			"data_offsets"},
		{"{" WEIGHT("\"F32\"", "[2,2]", "0.0", "16") "," GOOD_BIAS "}", "data_offsets"},
		{"{" WEIGHT("\"F32\"", "[2,2]", "0,16", "16") "," GOOD_BIAS "}", "data_offsets"},
		{"{" GOOD_WEIGHT "," BIAS("[2]", "8", "16") "}",
			"\"fc1.weight\" and \"fc1.bias\" overlap"},
		{"{\"fc1.weight\":[]," GOOD_BIAS "}", "\"fc1.weight\" has dtype none"},
		{"[]", "not a JSON object"},
		{"1", "not a JSON object"},
		{"", "not a JSON object"},
		{"{" GOOD_WEIGHT ",", "not a JSON object"},
		{"{" GOOD_WEIGHT "," GOOD_BIAS "} x", "not a JSON object"},
		{"{\"\xff\":1}", "not a JSON object"},
	};

	use_small_model();
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		int rc = read_made(row[i].header, strlen(row[i].header), six, 24);

		if (rc != PS_EDATA || !strstr(e.text, row[i].says) || !strstr(e.text, path))
			fail_msg("%s -> %d: %s", row[i].header, rc, e.text);
	}
}

static int model_of(const char *header, char *text)
{
	(void)read_made(header, strlen(header), six, 24);
	memset(&e, 0, sizeof(e));
	return safetensors_model(path, text, &e);
}

TEST_IN(the_metadata_name_the_model, set_up_safetensors, temp_dir_tear_down)
{
	char text[MODEL_MAX_TEXT], large[MODEL_MAX_TEXT + 100];

	make_model("seed:2");
	assert_int_equal(safetensors_write(path, &m, weights, &e), PS_OK);
	assert_int_equal(safetensors_model(path, text, &e), PS_OK);
	assert_string_equal(text, m.text);
	use_small_model();
	assert_int_equal(model_of("{\"__metadata__\":{\"model\":\"fc:2\"}}", text), PS_OK);
	assert_string_equal(text, "fc:2");
	assert_int_equal(model_of("{\"__metadata__\":{\"model\":7}}", text), PS_OK);
	assert_string_equal(text, "");
	assert_int_equal(model_of("{\"__metadata__\":[]}", text), PS_OK);
	assert_string_equal(text, "");
	assert_int_equal(model_of("{}", text), PS_OK);
	assert_string_equal(text, "");
	assert_int_equal(model_of("[]", text), PS_EDATA);
	assert_non_null(strstr(e.text, path));
	snprintf(
		large, sizeof(large), "{\"__metadata__\":{\"model\":\"%0*d\"}}", MODEL_MAX_TEXT, 1);
	assert_int_equal(model_of(large, text), PS_EDATA);
	assert_non_null(strstr(e.text, "512 bytes; expected at most 511"));
}

TEST_IN(lengths_that_lie_are_refused_before_they_are_used, set_up_safetensors, temp_dir_tear_down)
{
	const char *header = "{" GOOD_WEIGHT "," GOOD_BIAS "}";
	const size_t n = strlen(header);
	const uint64_t lengths[] = {0, 1, n - 1, n + 1, n + 24, n + 25, 1 << 18, (1 << 18) + 1,
		UINT32_MAX, (uint64_t)1 << 63, UINT64_MAX - 7, UINT64_MAX};

	use_small_model();
	assert_int_equal(read_made(header, n, six, 24), PS_OK);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		assert_int_equal(read_made(header, lengths[i], six, 24), PS_EDATA);
		if (lengths[i] > n + 24)
			assert_non_null(strstr(e.text, ": header length "));
	}
	/* the file has enough bytes, but the header is longer than the limit */
	static char blanks[(1 << 19) + 2];
	memset(blanks, ' ', (1 << 19) + 1);
	assert_int_equal(read_made(blanks, (1 << 19) + 1, "", 0), PS_EDATA);
	assert_non_null(strstr(e.text, ": header length 524289; expected at most 524288"));
	assert_int_equal(read_made(header, n, six, 23), PS_EDATA);
	assert_int_equal(read_made(header, n, six, 25), PS_EDATA);
	assert_int_equal(read_made(header, n, six, 28), PS_EDATA);
	assert_non_null(strstr(e.text, "28 bytes of data; the model \"input:2x1x1 fc:2\" has 24"));
}

TEST_IN(every_truncation_and_many_mutations_are_refused_or_harmless, set_up_safetensors,
	temp_dir_tear_down)
{
	const uint64_t seed = 31;
	size_t size, refused = 0;

	print_message("seed %llu\n", (unsigned long long)seed);
	use_small_model();
	assert_int_equal(safetensors_write(path, &m, six, &e), PS_OK);
	unsigned char *file = read_weights_file(&size);
	for (size_t n = 0; n < size; n++) {
		temp_dir_write(temp_dir, "w.safetensors", file, n);
		assert_int_equal(safetensors_read(path, &m, again, &e), PS_EDATA);
	}
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	for (int i = 0; i < 5000; i++) {
		unsigned char copy[1024];

		assert_true(size <= sizeof(copy));
		memcpy(copy, file, size);
		for (uint64_t k = rng_below(&r, 3) + 1; k > 0; k--)
			copy[rng_below(&r, size)] = (unsigned char)rng_below(&r, 256);
		temp_dir_write(temp_dir, "w.safetensors", copy, size);
		int rc = safetensors_read(path, &m, again, &e);
		assert_true(rc == PS_OK || rc == PS_EDATA);
		refused += rc != PS_OK;
	}
	assert_true(refused > 2500);
	free(file);
}

TEST_IN(deep_nesting_and_oversized_files_are_refused, set_up_safetensors, temp_dir_tear_down)
{
	static char nested[50001];

	use_small_model();
	memset(nested, '[', 50000);
	assert_int_equal(read_made(nested, 50000, six, 24), PS_EDATA);
	/* makes the file 8 GiB long, as a sparse file */
	assert_int_equal(truncate(path, (off_t)8 << 30), 0);
	assert_int_equal(safetensors_read(path, &m, again, &e), PS_EDATA);
	assert_non_null(strstr(e.text, "larger than a file of the model"));
	assert_int_equal(safetensors_read("/nonexistent", &m, again, &e), PS_EIO);
}

TEST_IN(weights_that_are_not_finite_are_refused, set_up_safetensors, temp_dir_tear_down)
{
	const char *header = "{" GOOD_WEIGHT "," GOOD_BIAS "}";
	const float bad[] = {NAN, INFINITY, -INFINITY};

	use_small_model();
	for (size_t i = 0; i < 3; i++) {
		float data[6] = {1, 2, 3, 4, 5, bad[i]};

		assert_int_equal(read_made(header, strlen(header), data, 24), PS_EDATA);
		assert_non_null(strstr(e.text, "value 1 of tensor \"fc1.bias\" is not finite"));
	}
}

/* ---- vector:N with names --------------------------------------------------------------------- */

#define NAMED(first, last, type, more)                                                             \
	"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" first "," last "]},"          \
	"\"b\":{\"dtype\":\"" type "\",\"shape\":[],\"data_offsets\":[8,12]}" more "}"

static int read_named(const char *header, char **list)
{
	static const float w[3] = {1, 2, 3};
	unsigned char length[8] = {0};
	size_t n = strlen(header);

	length[0] = (unsigned char)n;
	length[1] = (unsigned char)(n >> 8);
	const struct file_part parts[] = {{length, 8}, {header, n}, {w, sizeof(w)}};
	assert_int_equal(file_replace(temp_dir, "w.safetensors", parts, 3, &e), PS_OK);
	return safetensors_read_vector(path, &m, again, list, &e);
}

TEST_IN(the_list_of_a_file_without_one_is_its_header, set_up_safetensors, temp_dir_tear_down)
{
	char *list;

	make_model("vector:3");
	assert_int_equal(read_named(NAMED("0", "8", "F32", ""), &list), PS_OK);
	assert_string_equal(list, "a F32 2\nb F32 scalar\n");
	assert_true(again[0] == 1 && again[1] == 2 && again[2] == 3);
	free(list);
}

TEST_IN(a_list_and_its_weights_come_back, set_up_safetensors, temp_dir_tear_down)
{
	static const char list[] = "b F32 2x1\nbits BOOL 3 1,0,1\nalias = b\n"
				   "n I64 scalar -2\ntwin = n\nc F32 scalar\nk I16 1 258\n";
	static const float w[3] = {4, 5, 6};
	unsigned char *first, *second;
	size_t size, size_again, data;
	char *found;

	make_model("vector:3");
	assert_int_equal(safetensors_write_list(path, &m, list, w, &e), PS_OK);
	first = read_weights_file(&size);
	data = 8 + first[0] + 256u * first[1];
	/* the order of the data: constants of 8 bytes, float32 values with those of the alias,
	 * small constants */
	assert_int_equal(data % 8, 0);
	assert_int_equal(size - data, 16 + 20 + 2 + 3);
	assert_memory_equal(first + data, "\xfe\xff\xff\xff\xff\xff\xff\xff", 8);
	assert_memory_equal(first + data, first + data + 8, 8);
	assert_memory_equal(first + data + 16, w, 8);
	assert_memory_equal(first + data + 24, w, 12);
	assert_memory_equal(first + size - 5, "\x02\x01\x01\x00\x01", 5);
	assert_int_equal(safetensors_read_vector(path, &m, again, &found, &e), PS_OK);
	assert_string_equal(found, list);
	assert_memory_equal(again, w, sizeof(w));
	assert_int_equal(safetensors_write_list(path, &m, found, again, &e), PS_OK);
	second = read_weights_file(&size_again);
	assert_int_equal(size_again, size);
	assert_memory_equal(first, second, size);
	free(first);
	free(second);
	free(found);
}

TEST_IN(a_list_of_another_vector_is_not_written, set_up_safetensors, temp_dir_tear_down)
{
	make_model("vector:3");
	assert_int_equal(safetensors_write_list(path, &m, "a F32 2\n", weights, &e), PS_EDATA);
	assert_non_null(strstr(e.text, "another number of values"));
	assert_int_equal(safetensors_write_list(path, &m, "a F32 3", weights, &e), PS_EDATA);
	assert_non_null(strstr(e.text, "line 1: it does not end"));
}

TEST_IN(tensors_that_do_not_make_up_the_vector_are_refused, set_up_safetensors, temp_dir_tear_down)
{
	const char *bad[] = {NAMED("0", "8", "F16", ""), NAMED("0", "4", "F32", ""),
		NAMED("8", "16", "F32", ""), NAMED("-8", "8", "F32", ""),
		NAMED("8", "0", "F32", ""), NAMED("0", "1000", "F32", ""),
		NAMED("0", "8", "F32", ",\"c\":3"), NAMED("0", "8", "F32", ",\"b c\":{}"),
		NAMED("0", "8", "F32", ",\"c F32 1\\nd\":{\"shape\":[1]}"),
		NAMED("0", "8", "F32", ",\"__metadata__\":{\"tensor_list\":\"a F32 2\\n\"}"),
		NAMED("0", "8", "F32", ",\"__metadata__\":{\"tensor_list\":\"a F32 3\\n\"}"),
		NAMED("0", "8", "F32", ",\"__metadata__\":{\"tensor_list\":\"d F32 3\\n\"}")};
	char *list;

	make_model("vector:3");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(read_named(bad[i], &list), PS_EDATA);
		assert_null(list);
	}
	make_model("vector:30");
	assert_int_equal(read_named(NAMED("0", "8", "F32", ""), &list), PS_EDATA);
}

TEST_IN(a_vector_without_names_has_no_list, set_up_safetensors, temp_dir_tear_down)
{
	char *list;

	make_model("vector:17");
	assert_int_equal(safetensors_write(path, &m, weights, &e), PS_OK);
	assert_int_equal(safetensors_read_vector(path, &m, again, &list, &e), PS_OK);
	assert_null(list);
	assert_memory_equal(again, weights, 17 * sizeof(float));
}
