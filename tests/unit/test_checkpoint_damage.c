/* Proves the promises of common/checkpoint.h about checkpoint files that have changed since they
 * were written. Covers attack A20 of docs/faults.md. */
#include "common/log.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/test.h"
#include <xxhash.h>

static void assert_damage_refused(const void *file, size_t size, const char *what, size_t where)
{
	struct checkpoint c;

	temp_dir_write(checkpoint_dir, "x", file, size);
	int rc = read_name("x", &c);
	if (rc != PS_ECHECKPOINT)
		fail_msg(
			"%s at byte %zu: %s", what, where, rc ? checkpoint_err.text : "undetected");
	assert_null(c.memory);
	assert_int_equal(c.generation, 0);
	assert_int_equal(c.n_sections, 0);
}

TEST_IN(promise_3_every_changed_byte_is_detected, checkpoint_set_up, checkpoint_tear_down)
{
	size_t size;

	assert_int_equal(write_generation(5), PS_OK);
	unsigned char *file = bytes_of(5, &size);
	for (size_t i = 0; i < size; i++) {
		unsigned char original = file[i];

		for (unsigned bit = 1; bit < 256; bit <<= 1) {
			file[i] = (unsigned char)(original ^ bit);
			assert_damage_refused(file, size, "bit flip", i);
		}
		file[i] = (unsigned char)~original;
		assert_damage_refused(file, size, "inverted byte", i);
		file[i] = original;
	}
	free(file);
}

TEST_IN(promise_3_every_missing_or_added_byte_is_detected, checkpoint_set_up, checkpoint_tear_down)
{
	size_t size;

	assert_int_equal(write_generation(5), PS_OK);
	unsigned char *file = bytes_of(5, &size), longer[1000] = {0};
	for (size_t n = 0; n < size; n++)
		assert_damage_refused(file, n, "truncated", n);
	for (size_t i = 0; i < size; i++) { /* `longer` is the file without byte i */
		memcpy(longer, file, i);
		memcpy(longer + i, file + i + 1, size - i - 1);
		assert_damage_refused(longer, size - 1, "byte lost", i);
	}
	memcpy(longer, file, size);
	assert_damage_refused(longer, size + 1, "byte added", size);
	assert_damage_refused(longer, sizeof(longer), "zeros added", size);
	free(file);
}

/* Recomputes the checksum over header and table, so that a file with false content has a correct
 * checksum. A faulty disk does not produce such a file, but a person can. */
static void sign_head(unsigned char *file, size_t sections)
{
	uint64_t sum = XXH3_64bits(file, 24 + 40 * sections);

	memcpy(file + 24 + 40 * sections, &sum, 8);
}

TEST_IN(a_table_that_lies_with_a_right_checksum_is_refused, checkpoint_set_up, checkpoint_tear_down)
{
	/* false values and their places in the file; the comment after a group of rows names the
	 * damaged field */
	const struct {
		size_t at, bytes;
		uint64_t value;
	} lie[] = {
		{8, 4, 0}, {8, 4, 2}, {8, 4, UINT32_MAX},                             /* format */
		{12, 4, 0}, {12, 4, 2}, {12, 4, 4}, {12, 4, 17}, {12, 4, UINT32_MAX}, /* sections */
		{16, 8, 0}, /* generation */
		{24, 1, 0}, {24 + 15, 1, 'x'},
		{64, 8, 0x6e7572}, /* section names: empty, too long, "run" a second time */
		{40, 8, 0}, {40, 8, 151}, {40, 8, 153}, {40, 8, UINT64_MAX}, /* first offset */
		{48, 8, 0}, {48, 8, 15}, {48, 8, 17}, {48, 8, 57}, {48, 8, UINT64_MAX},
		{48, 8, (uint64_t)INT64_MAX + 1},                           /* first size */
		{88, 8, 1}, {88, 8, UINT64_MAX}, {88, 8, UINT64_MAX - 167}, /* second size */
		{120, 8, 167}, {120, 8, UINT64_MAX}, {128, 8, 39},
		{128, 8, 41}, /* offset and size of the third section */
	};
	size_t size;

	assert_int_equal(write_generation(5), PS_OK);
	unsigned char *file = bytes_of(5, &size);
	for (size_t i = 0; i < sizeof(lie) / sizeof(lie[0]); i++) {
		unsigned char copy[208];

		assert_int_equal(size, sizeof(copy));
		memcpy(copy, file, size);
		memcpy(copy + lie[i].at, &lie[i].value, lie[i].bytes);
		size_t sections = copy[12] <= 4 ? copy[12] : 3;
		sign_head(copy, sections);
		assert_damage_refused(copy, size, "lie", i);
	}
	free(file);
}

TEST_IN(more_sections_than_the_limit_are_refused, checkpoint_set_up, checkpoint_tear_down)
{
	size_t size;
	unsigned char many[4096] = {0};

	assert_int_equal(write_generation(5), PS_OK);
	unsigned char *file = bytes_of(5, &size);
	memcpy(many, file, 24);
	free(file);
	for (size_t n = CHECKPOINT_MAX_SECTIONS + 1; n < 90; n++) {
		const size_t head = 24 + 40 * n + 8;

		many[12] = (unsigned char)n;
		/* make a file whose sections all exist and are empty, with correct checksums */
		for (size_t i = 0; i < n; i++) {
			unsigned char *row = many + 24 + 40 * i;
			const uint64_t rest[3] = {head, 0, XXH3_64bits("", 0)};

			memset(row, 0, 40);
			snprintf((char *)row, 16, "s%u", (unsigned)i);
			memcpy(row + 16, rest, sizeof(rest));
		}
		sign_head(many, n);
		assert_damage_refused(many, head, "sections", n);
	}
}

TEST_IN(swapped_sections_and_zeroed_pages_are_detected, checkpoint_set_up, checkpoint_tear_down)
{
	static unsigned char a[4096], b[4096], zero[4096], swapped[3 * 4096];
	size_t size;

	memset(a, 'a', sizeof(a));
	memset(b, 'b', sizeof(b));
	const struct checkpoint c = {.generation = 1,
		.n_sections = 2,
		.section = {{"a", a, sizeof(a)}, {"b", b, sizeof(b)}}};
	assert_int_equal(checkpoint_write(checkpoint_dir, &c, &checkpoint_err), PS_OK);
	unsigned char *file = bytes_of(1, &size);
	assert_true(size < sizeof(swapped));
	memcpy(swapped, file, size);
	memcpy(swapped + size - 8192, b, sizeof(b));
	memcpy(swapped + size - 4096, a, sizeof(a));
	assert_damage_refused(swapped, size, "swapped", 0);
	for (size_t at = 0; at < size; at += 4096) {
		memcpy(swapped, file, size);
		memcpy(swapped + at, zero, size - at < 4096 ? size - at : 4096);
		assert_damage_refused(swapped, size, "zeroed page", at);
	}
	free(file);
}

TEST_IN(promise_3_the_generation_before_is_taken_and_logged, checkpoint_set_up,
	checkpoint_tear_down)
{
	struct checkpoint c;
	uint64_t seen;
	size_t size;

	for (uint64_t g = 0x1e; g <= 0x20; g++)
		assert_int_equal(write_generation(g), PS_OK);
	unsigned char *file = bytes_of(0x20, &size);
	for (size_t i = 0; i < size; i++) {
		file[i] ^= 1;
		temp_dir_write(checkpoint_dir, name_of(0x20), file, size);
		file[i] ^= 1;
		assert_int_equal(read_newest(0, &c, &seen), PS_OK);
		assert_is_generation(&c, 0x1f);
		assert_int_equal(seen, 0x20);
		assert_non_null(strstr(checkpoint_log.text,
			"level=warn msg=\"checkpoint refused\" generation=32 reason="));
		assert_non_null(strstr(checkpoint_log.text,
			"level=warn msg=\"checkpoint fallback\" generation=31 refused=1\n"));
		checkpoint_release(&c);
	}
	temp_dir_write(checkpoint_dir, name_of(0x1f), "", 0);
	assert_int_equal(read_newest(0, &c, NULL), PS_OK);
	assert_is_generation(&c, 0x1e);
	assert_non_null(strstr(checkpoint_log.text, "fallback\" generation=30 refused=2\n"));
	checkpoint_release(&c);
	free(file);
}

TEST_IN(a_file_under_another_generations_name_is_refused, checkpoint_set_up, checkpoint_tear_down)
{
	struct checkpoint c;
	size_t size;

	assert_int_equal(write_generation(3), PS_OK);
	unsigned char *file = bytes_of(3, &size);
	temp_dir_write(checkpoint_dir, name_of(9), file, size);
	assert_int_equal(read_newest(0, &c, NULL), PS_OK);
	assert_is_generation(&c, 3);
	assert_non_null(strstr(checkpoint_log.text, "generation=9 reason="));
	checkpoint_release(&c);
	free(file);
}

TEST_IN(checkpoints_of_which_none_is_good_are_an_error_not_a_fresh_start, checkpoint_set_up,
	checkpoint_tear_down)
{
	struct checkpoint c;
	uint64_t seen;

	temp_dir_write(checkpoint_dir, name_of(1), "CNNPSCK1", 8);
	temp_dir_write(checkpoint_dir, name_of(2), "", 0);
	assert_int_equal(read_newest(1, &c, &seen), PS_ECHECKPOINT);
	assert_int_equal(c.generation, 0);
	assert_null(c.memory);
	assert_int_equal(seen, 2);
	assert_non_null(strstr(checkpoint_err.text, "none of its 2 checkpoints is good"));
}

TEST_IN(reading_goes_on_after_a_write_error_that_left_a_torn_temporary_file, checkpoint_set_up,
	checkpoint_tear_down)
{
	struct checkpoint c;
	size_t size;

	assert_int_equal(write_generation(1), PS_OK);
	assert_int_equal(write_generation(2), PS_OK);
	unsigned char *file = bytes_of(2, &size);
	/* the temporary file that a writer leaves if it is killed after n bytes */
	for (size_t n = 0; n <= size; n++) {
		temp_dir_write(checkpoint_dir, "ckpt-0000000000000003.tmp", file, n);
		assert_int_equal(read_newest(1, &c, NULL), PS_OK);
		assert_is_generation(&c, 2);
		assert_false(temp_dir_exists(checkpoint_dir, "ckpt-0000000000000003.tmp"));
		assert_string_equal(checkpoint_log.text, "");
		checkpoint_release(&c);
	}
	free(file);
}

TEST_GROUP(capture_info, NULL)
