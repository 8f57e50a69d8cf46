/* Proves the promises of common/checkpoint.h about writing, retaining and finding checkpoints. */
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/test.h"
#include <errno.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <xxhash.h>

/* If this is not 0, the rename that gives a new generation its name fails with this errno. */
static int rename_errno;
int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	if (rename_errno) {
		errno = rename_errno;
		return -1;
	}
	return (int)syscall(SYS_renameat, from_dir, from, to_dir, to);
}

/* If this is not 0, the fsync of a directory fails with this errno. A write of a checkpoint calls
 * fsync for the directory after the rename of the new generation. */
static int directory_errno;
int fsync(int fd)
{
	struct stat st;

	if (directory_errno && fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
		errno = directory_errno;
		return -1;
	}
	return (int)syscall(SYS_fsync, fd);
}

TEST_IN(what_is_read_is_what_was_written, checkpoint_set_up, checkpoint_tear_down)
{
	struct checkpoint c;
	uint64_t seen;

	assert_int_equal(write_generation(1), PS_OK);
	assert_int_equal(read_name(name_of(1), &c), PS_OK);
	assert_is_generation(&c, 1);
	checkpoint_release(&c);
	assert_null(c.memory);
	assert_int_equal(read_newest(1, &c, &seen), PS_OK);
	assert_is_generation(&c, 1);
	assert_int_equal(seen, 1);
	assert_string_equal(checkpoint_log.text, "");
	checkpoint_release(&c);
}

TEST_IN(the_file_is_laid_out_as_the_header_says, checkpoint_set_up, checkpoint_tear_down)
{
	size_t size;

	assert_int_equal(write_generation(0x0102), PS_OK);
	unsigned char *file = bytes_of(0x0102, &size);
	const unsigned char start[] = {'C', 'N', 'N', 'P', 'S', 'C', 'K', '1', 1, 0, 0, 0, 3, 0, 0,
		0, 2, 1, 0, 0, 0, 0, 0, 0, 'r', 'u', 'n', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		152, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0};
	assert_int_equal(size, 24 + 3 * 40 + 8 + 16 + 40);
	assert_memory_equal(file, start, sizeof(start));
	uint64_t sum = XXH3_64bits(file, 144), run_sum = XXH3_64bits(file + 152, 16);
	assert_memory_equal(file + 144, &sum, 8);
	assert_memory_equal(file + 56, &run_sum, 8);
	free(file);
}

TEST_IN(an_empty_directory_has_generation_0, checkpoint_set_up, checkpoint_tear_down)
{
	struct checkpoint c;
	uint64_t seen = 9;

	assert_int_equal(read_newest(1, &c, &seen), PS_OK);
	assert_int_equal(c.generation, 0);
	assert_int_equal(seen, 0);
	assert_int_equal(
		checkpoint_read_newest("/nonexistent-directory", 1, &c, NULL, &checkpoint_err),
		PS_EIO);
	checkpoint_release(&c);
}

TEST_IN(as_many_sections_as_the_limit_are_kept, checkpoint_set_up, checkpoint_tear_down)
{
	struct checkpoint c = {.generation = UINT64_MAX, .n_sections = CHECKPOINT_MAX_SECTIONS};
	unsigned char data[CHECKPOINT_MAX_SECTIONS];

	for (size_t i = 0; i < CHECKPOINT_MAX_SECTIONS; i++) {
		data[i] = (unsigned char)i;
		snprintf(c.section[i].name, sizeof(c.section[i].name), "section-%zu", i);
		c.section[i].data = &data[i];
		c.section[i].size = 1;
	}
	assert_int_equal(checkpoint_write(checkpoint_dir, &c, &checkpoint_err), PS_OK);
	assert_int_equal(read_newest(0, &c, NULL), PS_OK);
	assert_int_equal(c.generation, UINT64_MAX);
	assert_int_equal(c.n_sections, CHECKPOINT_MAX_SECTIONS);
	assert_int_equal(*(const unsigned char *)checkpoint_find(&c, "section-15")->data, 15);
	checkpoint_release(&c);
	c = (struct checkpoint){.generation = 1, .n_sections = 0};
	assert_int_equal(checkpoint_write(checkpoint_dir, &c, &checkpoint_err), PS_OK);
	assert_int_equal(read_name(name_of(1), &c), PS_OK);
	assert_int_equal(c.n_sections, 0);
	checkpoint_release(&c);
}

TEST_IN(more_bytes_than_the_limit_are_not_written, checkpoint_set_up, checkpoint_tear_down)
{
	struct checkpoint c = {.generation = 1,
		.n_sections = 2,
		.section = {{"a", checkpoint_dir, 1}, {"b", checkpoint_dir, SIZE_MAX}}};

	assert_int_equal(checkpoint_write(checkpoint_dir, &c, &checkpoint_err), PS_EIO);
	c.section[1].size = CHECKPOINT_MAX_BYTES;
	assert_int_equal(checkpoint_write(checkpoint_dir, &c, &checkpoint_err), PS_EIO);
	assert_false(temp_dir_exists(checkpoint_dir, name_of(1)));
}

TEST_IN(promise_1_a_generation_that_failed_to_appear_leaves_the_ones_before, checkpoint_set_up,
	checkpoint_tear_down)
{
	struct checkpoint c;

	assert_int_equal(write_generation(1), PS_OK);
	rename_errno = EIO;
	assert_int_equal(write_generation(2), PS_EIO);
	rename_errno = 0;
	assert_false(temp_dir_exists(checkpoint_dir, name_of(2)));
	assert_int_equal(read_newest(0, &c, NULL), PS_OK);
	assert_is_generation(&c, 1);
	checkpoint_release(&c);
}

TEST_IN(promise_1_a_generation_whose_name_may_be_lost_is_removed, checkpoint_set_up,
	checkpoint_tear_down)
{
	struct checkpoint c;
	const char *temporary = "ckpt-0000000000000007.tmp";

	for (uint64_t g = 1; g <= 4; g++)
		assert_int_equal(write_generation(g), PS_OK);
	temp_dir_write(checkpoint_dir, temporary, "x", 1);
	directory_errno = EIO;
	for (uint64_t g = 5; g <= 40; g++) {
		assert_int_equal(write_generation(g), PS_EIO);
		assert_false(temp_dir_exists(checkpoint_dir, name_of(g)));
	}
	directory_errno = 0;
	assert_false(temp_dir_exists(
		checkpoint_dir, temporary)); /* failed writes leave no temporary file */
	for (uint64_t g = 2; g <= 4; g++)
		assert_true(temp_dir_exists(checkpoint_dir, name_of(g)));
	assert_int_equal(read_newest(0, &c, NULL), PS_OK);
	assert_is_generation(&c, 4);
	checkpoint_release(&c);
}

TEST_IN(promise_2_three_generations_are_kept, checkpoint_set_up, checkpoint_tear_down)
{
	for (uint64_t g = 1; g <= 20; g++) {
		assert_int_equal(write_generation(g), PS_OK);
		for (uint64_t old = 1; old <= 21; old++)
			assert_int_equal(temp_dir_exists(checkpoint_dir, name_of(old)),
				old <= g && old + CHECKPOINT_KEEP > g);
	}
	/* generation numbers may have gaps: the three highest generations stay */
	assert_int_equal(write_generation(1000), PS_OK);
	assert_true(temp_dir_exists(checkpoint_dir, name_of(19)) &&
		    temp_dir_exists(checkpoint_dir, name_of(20)));
	assert_false(temp_dir_exists(checkpoint_dir, name_of(18)));
}

TEST_IN(promise_2_temporary_files_are_removed_and_nothing_else_is, checkpoint_set_up,
	checkpoint_tear_down)
{
	struct checkpoint c;
	const char *others[] = {"LOCK", "export.safetensors.tmp", "ckpt-1", "ckpt-000000000000000g",
		"ckpt-0000000000000001.bak", "ckpt-0000000000000000", "ckpt-00000000000000001",
		"CKPT-0000000000000001", "ckpt-000000000000000A"};
	const size_t n = sizeof(others) / sizeof(others[0]);
	const char *temporary = "ckpt-0000000000000007.tmp";

	for (size_t i = 0; i < n; i++)
		temp_dir_write(checkpoint_dir, others[i], "x", 1);
	temp_dir_write(checkpoint_dir, temporary, "x", 1);
	assert_int_equal(read_newest(0, &c, NULL), PS_OK);
	/* 0: no checkpoint was found, because files with these names do not count as checkpoints */
	assert_int_equal(c.generation, 0);
	assert_true(temp_dir_exists(checkpoint_dir, temporary));
	assert_int_equal(read_newest(1, &c, NULL), PS_OK);
	assert_false(temp_dir_exists(checkpoint_dir, temporary));
	temp_dir_write(checkpoint_dir, temporary, "x", 1);
	for (uint64_t g = 8; g < 13; g++)
		assert_int_equal(write_generation(g), PS_OK);
	assert_false(temp_dir_exists(checkpoint_dir, temporary));
	for (size_t i = 0; i < n; i++)
		assert_true(temp_dir_exists(checkpoint_dir, others[i]));
	checkpoint_release(&c);
}

/* If the disk is full, checkpoint_write_beside deletes all generations but the one that its caller
 * calls sound. Generations that are newer than the sound one are deleted, too: they are damaged,
 * because otherwise the caller would have called the newest of them sound. */
TEST_IN(the_sound_one_is_never_dropped_to_make_space, checkpoint_set_up, checkpoint_tear_down)
{
	for (uint64_t sound = 1; sound <= 3; sound++) {
		const struct checkpoint c = {
			.generation = 4, .n_sections = 1, .section = {{"a", checkpoint_dir, 1}}};
		uint64_t dropped = 0;

		for (uint64_t g = 1; g <= 3; g++)
			assert_int_equal(write_generation(g), PS_OK);
		rename_errno = ENOSPC;
		assert_int_equal(checkpoint_write_beside(
					 checkpoint_dir, &c, sound, &dropped, &checkpoint_err),
			PS_EIO);
		rename_errno = 0;
		for (uint64_t g = 1; g <= 4; g++)
			assert_int_equal(temp_dir_exists(checkpoint_dir, name_of(g)), g == sound);
		assert_int_equal(dropped, sound == 3 ? 2 : 3);
	}
}

TEST_IN(what_a_write_that_was_cut_short_left_can_be_removed, checkpoint_set_up,
	checkpoint_tear_down)
{
	const char *temporary = "ckpt-0000000000000007.tmp";

	assert_int_equal(write_generation(1), PS_OK);
	temp_dir_write(checkpoint_dir, temporary, "x", 1);
	checkpoint_clean(checkpoint_dir);
	assert_false(temp_dir_exists(checkpoint_dir, temporary));
	assert_true(temp_dir_exists(checkpoint_dir, name_of(1)));
}
