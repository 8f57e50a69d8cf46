/* Proves the invariants numbered in common/wal_file.h. */
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include "common/wal_file.h"
#include "common/rng.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test.h"

#define GENERATION 7
#define MAX_BYTES  ((size_t)1 << 20)

/* disk_left: the number of bytes that can be written before the disk is full; -1: no limit.
 * sync_errno: 0: fsync succeeds; otherwise fsync fails with this errno. */
static long disk_left = -1;
static int sync_errno;

ssize_t write(int fd, const void *bytes, size_t n)
{
	if (disk_left >= 0 && (long)n > disk_left) {
		n = (size_t)disk_left;
		disk_left = 0;
		if (n == 0) {
			errno = ENOSPC;
			return -1;
		}
	} else if (disk_left >= 0) {
		disk_left -= (long)n;
	}
	return syscall(SYS_write, fd, bytes, n);
}

int fdatasync(int fd)
{
	if (sync_errno) {
		errno = sync_errno;
		return -1;
	}
	return (int)syscall(SYS_fdatasync, fd);
}

static char dir[64];
static struct err e;

static int set_up_wal_file(void **state)
{
	(void)state;
	temp_dir_make(dir);
	memset(&e, 0, sizeof(e));
	return 0;
}

static int tear_down_wal_file(void **state)
{
	(void)state;
	disk_left = -1;
	sync_errno = 0;
	temp_dir_remove(dir);
	return 0;
}

/* ---- writing -------------------------------------------------------------------------------- */

static struct wal_file *create(uint64_t generation, uint64_t oldest)
{
	const struct wal_head head = {1, 2, 3, generation, 100};
	struct wal_file *j;

	assert_int_equal(wal_file_create(&j, dir, &head, oldest, &e), PS_OK);
	return j;
}

/* Writes the payload of record `i` to `out`. The size and every byte of a payload depend only on i.
 * Returns the size. */
static size_t payload(uint64_t i, unsigned char *out)
{
	size_t n = (size_t)(i * 37 % 101);

	for (size_t k = 0; k < n; k++)
		out[k] = (unsigned char)(i * 31 + k);
	return n;
}

static int append_payload(struct wal_file *j, uint64_t i)
{
	unsigned char bytes[128];
	size_t n = payload(i, bytes), half = n / 2;
	const struct file_part parts[] = {{bytes, half}, {bytes + half, n - half}};

	return wal_file_append(j, parts, 2, &e);
}

/* Writes groups of 1, 2, 3, ... records until the file has `n` records. */
static void write_small(uint64_t n)
{
	struct wal_file *j = create(GENERATION, 0);

	for (uint64_t i = 0, group = 1, left = 1; i < n; i++) {
		assert_int_equal(append_payload(j, i), PS_OK);
		if (--left > 0 && i + 1 < n)
			continue;
		assert_int_equal(wal_file_sync(j, &e), PS_OK);
		left = ++group;
	}
	wal_file_close(&j);
	assert_null(j);
}

/* ---- reading -------------------------------------------------------------------------------- */

struct read {
	/* the number of records that were read; read_whole_log checks the content of each record */
	uint64_t n;
	int broken;
};

static struct read read_whole_log(uint64_t generation)
{
	struct wal_reader r;
	struct read out = {0};
	const unsigned char *data;
	unsigned char expected[128];
	size_t size;
	int rc;

	assert_int_equal(wal_reader_open(&r, dir, generation, MAX_BYTES, &e), PS_OK);
	while ((rc = wal_reader_next(&r, &data, &size, &e)) == 1) {
		assert_int_equal(size, payload(out.n, expected));
		assert_memory_equal(data, expected, size);
		out.n++;
	}
	assert_int_equal(rc, 0);
	assert_int_equal(wal_reader_next(&r, &data, &size, &e), 0);
	out.broken = wal_reader_has_gap(&r, &e);
	wal_reader_release(&r);
	return out;
}

static void assert_reads(uint64_t n, int broken)
{
	struct read r = read_whole_log(GENERATION);

	assert_int_equal(r.n, n);
	assert_int_equal(r.broken, broken);
}

static const char *const name = "journal-0000000000000007";

/* Returns the content of the file. The caller frees it. */
static unsigned char *read_log_file(size_t *size)
{
	char path[320];
	void *data;

	assert_int_equal(
		file_read(temp_dir_path(dir, name, path), MAX_BYTES, &data, size, &e), PS_OK);
	return data;
}

/* ---- tests ---------------------------------------------------------------------------------- */

TEST_IN(what_is_read_is_what_was_appended, set_up_wal_file, tear_down_wal_file)
{
	for (uint64_t n = 0; n <= 40; n += 1 + n / 4) {
		write_small(n);
		assert_reads(n, 0);
		temp_dir_remove(dir);
		temp_dir_make(dir);
	}
	assert_int_equal(read_whole_log(GENERATION).n, 0); /* no file exists */
}

TEST_IN(a_record_of_megabytes_and_one_of_nothing_come_back, set_up_wal_file, tear_down_wal_file)
{
	size_t n = 3 * MAX_BYTES / 4 + 5, size;
	unsigned char *big = malloc(n);
	const unsigned char *data;
	struct wal_reader r;

	memset(big, 0x5a, n);
	struct wal_file *j = create(GENERATION, 0);
	assert_int_equal(wal_file_append(j, &(struct file_part){big, n}, 1, &e), PS_OK);
	assert_int_equal(wal_file_append(j, NULL, 0, &e), PS_OK);
	assert_int_equal(wal_file_sync(j, &e), PS_OK);
	assert_int_equal(wal_file_bytes(j), 64 + 48 + (n + 7) / 8 * 8 + 48);
	wal_file_close(&j);
	assert_int_equal(wal_reader_open(&r, dir, GENERATION, MAX_BYTES, &e), PS_OK);
	assert_int_equal(r.head.first, 100);
	assert_int_equal(r.head.term, 3);
	assert_int_equal(wal_reader_next(&r, &data, &size, &e), 1);
	assert_int_equal(size, n);
	assert_memory_equal(data, big, n);
	assert_int_equal(wal_reader_next(&r, &data, &size, &e), 1);
	assert_int_equal(size, 0);
	assert_int_equal(wal_reader_next(&r, &data, &size, &e), 0);
	wal_reader_release(&r);
	/* the limit is smaller than the record, so the reader finds no record */
	assert_int_equal(wal_reader_open(&r, dir, GENERATION, n - 1, &e), PS_OK);
	assert_int_equal(wal_reader_next(&r, &data, &size, &e), 0);
	wal_reader_release(&r);
	free(big);
}

#define SMALL 12 /* the number of records; they are in groups of 1, 2, 3, 4 and 2 */

/* Returns the position at which record i begins. */
static size_t begins(uint64_t i)
{
	unsigned char bytes[128];
	size_t at = 64;

	for (uint64_t k = 0; k < i; k++)
		at += 48 + (payload(k, bytes) + 7) / 8 * 8;
	return at;
}

/* Returns the number of the record that contains byte `at`, or SMALL if no record contains it. */
static uint64_t record_of(size_t at)
{
	uint64_t i = 0;

	while (i < SMALL && begins(i + 1) <= at)
		i++;
	return i;
}

TEST_IN(every_length_of_a_file_reads_as_a_prefix, set_up_wal_file, tear_down_wal_file)
{
	size_t n;

	write_small(SMALL);
	unsigned char *whole = read_log_file(&n);
	assert_int_equal(n, begins(SMALL));
	for (size_t cut = 0; cut < n; cut++) {
		temp_dir_write(dir, name, whole, cut);
		uint64_t whole_records = cut < 64 ? 0 : record_of(cut);
		unsigned char pad[128];
		/* if only padding is cut off, the record is still complete */
		if (cut >= 64 && whole_records < SMALL &&
			cut >= begins(whole_records) + 48 + payload(whole_records, pad))
			whole_records++;
		assert_reads(whole_records, 0);
	}
	free(whole);
}

/* The reader detects every loss before the last group of records. The reader cannot distinguish a
 * loss in the last group from a write that a crash interrupted. */
TEST_IN(every_flipped_byte_ends_the_log_and_a_loss_before_the_last_group_is_said, set_up_wal_file,
	tear_down_wal_file)
{
	size_t n;
	uint32_t said = 0;
	unsigned char pad[128];

	write_small(SMALL);
	unsigned char *whole = read_log_file(&n);
	for (size_t at = 0; at < n; at++) {
		uint64_t i = at < 64 ? 0 : record_of(at);

		whole[at] ^= 0x10;
		temp_dir_write(dir, name, whole, n);
		whole[at] ^= 0x10;
		int padding = at >= 64 && at >= begins(i) + 48 + payload(i, pad);
		struct read r = read_whole_log(GENERATION);
		assert_int_equal(r.n, padding ? SMALL : i);
		assert_int_equal(r.broken, !padding && i < 10);
		said += (uint32_t)r.broken;
	}
	print_message("%u of %zu flips are said aloud\n", said, n);
	free(whole);
}

/* Until a group is synced, its pages can reach the disk in any order. */
TEST_IN(a_gap_in_the_last_group_is_a_torn_end, set_up_wal_file, tear_down_wal_file)
{
	size_t n;

	write_small(10); /* the last group has records 6 to 9 */
	unsigned char *whole = read_log_file(&n);
	for (uint64_t gap = 6; gap < 10; gap++) {
		unsigned char *copy = malloc(n);

		memcpy(copy, whole, n);
		memset(copy + begins(gap), 0, begins(gap + 1) - begins(gap));
		temp_dir_write(dir, name, copy, n);
		assert_reads(gap, 0);
		free(copy);
	}
	/* now also remove record 5, which is in the group before the last group */
	memset(whole + begins(5), 0, begins(6) - begins(5));
	temp_dir_write(dir, name, whole, n);
	assert_reads(5, 1);
	free(whole);
}

TEST_IN(random_damage_yields_a_prefix, set_up_wal_file, tear_down_wal_file)
{
	const uint64_t seed = 11;
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	size_t n;

	print_message("seed %llu\n", (unsigned long long)seed);
	write_small(SMALL);
	unsigned char *whole = read_log_file(&n), *copy = malloc(n);
	for (int i = 0; i < 3000; i++) {
		memcpy(copy, whole, n);
		for (uint64_t k = 1 + rng_below(&r, 6); k; k--) {
			size_t from = rng_below(&r, n), to = rng_below(&r, n),
			       m = rng_below(&r, 90);

			m = m < n - from ? m : n - from;
			m = m < n - to ? m : n - to;
			/* the copied bytes include sizes and numbers of other records */
			memmove(copy + to, copy + from, m);
		}
		temp_dir_write(dir, name, copy, n - rng_below(&r, 2) * rng_below(&r, n));
		/* read_back() checks the content of each record that it reads */
		(void)read_whole_log(GENERATION);
	}
	free(copy);
	free(whole);
}

/* ---- files ---------------------------------------------------------------------------------- */

TEST_IN(a_reused_file_yields_no_old_record, set_up_wal_file, tear_down_wal_file)
{
	write_small(30);
	struct wal_file *j = create(GENERATION + 3, 0);
	wal_file_close(&j);
	j = create(GENERATION + 5, GENERATION + 3);
	assert_false(temp_dir_exists(dir, name));
	/* if a crash happens here, the file has the new name and the old header */
	assert_int_equal(read_whole_log(GENERATION + 5).n, 0);
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(append_payload(j, i), PS_OK);
	assert_int_equal(wal_file_sync(j, &e), PS_OK);
	wal_file_close(&j);
	struct read r = read_whole_log(GENERATION + 5);
	assert_int_equal(r.n, 3);
	/* the valid records of an older generation that follow are not a gap */
	assert_int_equal(r.broken, 0);
}

static unsigned mode_of_log(uint64_t generation)
{
	char file[64], path[320];
	struct stat st;

	snprintf(file, sizeof(file), "journal-%016llx", (unsigned long long)generation);
	assert_int_equal(stat(temp_dir_path(dir, file, path), &st), 0);
	return st.st_mode & 07777;
}

/* Release 0.2.0 made files that other users could read. The log can still be read from such a file,
 * but the file is never reused. */
TEST_IN(only_the_owner_reads_a_log_file, set_up_wal_file, tear_down_wal_file)
{
	char path[320];
	mode_t before = umask(0);

	write_small(30);
	assert_int_equal(mode_of_log(GENERATION), 0600);
	assert_int_equal(chmod(temp_dir_path(dir, name, path), 0644), 0);
	for (uint64_t g = GENERATION + 1; g <= GENERATION + 3; g++) {
		if (temp_dir_exists(dir, name))
			assert_int_equal(read_whole_log(GENERATION).n, 30);
		struct wal_file *j = create(g, g - 1);

		wal_file_close(&j);
		assert_int_equal(mode_of_log(g), 0600);
	}
	umask(before);
	assert_false(temp_dir_exists(dir, name));
}

TEST_IN(files_that_no_checkpoint_needs_go_away, set_up_wal_file, tear_down_wal_file)
{
	struct wal_file *j;

	for (uint64_t g = 1; g <= 5; g++) {
		j = create(g, 0);
		assert_int_equal(wal_file_sync(j, &e), PS_OK);
		wal_file_close(&j);
	}
	assert_int_equal(wal_file_newest(dir, UINT64_MAX), 5);
	assert_int_equal(wal_file_newest(dir, 3), 3);
	j = create(6, 4); /* reuses file 1, 2 or 3 as file 6, and deletes the other two */
	wal_file_close(&j);
	for (uint64_t g = 1; g <= 6; g++) {
		char path[64];

		snprintf(path, sizeof(path), "journal-%016llx", (unsigned long long)g);
		assert_int_equal(temp_dir_exists(dir, path), g >= 4);
	}
	wal_file_remove(dir, 5, 5);
	assert_int_equal(temp_dir_exists(dir, "journal-0000000000000005"), 0);
	assert_int_equal(wal_file_newest(dir, UINT64_MAX), 6);
	wal_file_remove(dir, 1, 5);
	assert_int_equal(wal_file_newest(dir, 5), 0);
	assert_int_equal(wal_file_newest(dir, UINT64_MAX), 6);
}

/* The oldest checkpoint, generation 4, has no log file of its own. The events after checkpoint 4
 * are in the log file of generation 2. */
TEST_IN(the_log_file_with_the_events_of_the_oldest_checkpoint_is_kept, set_up_wal_file,
	tear_down_wal_file)
{
	const uint64_t before[] = {1, 2, 5};

	for (int i = 0; i < 3; i++) {
		struct wal_file *j = create(before[i], 0);

		assert_int_equal(wal_file_sync(j, &e), PS_OK);
		wal_file_close(&j);
	}
	struct wal_file *j = create(6, 4);
	wal_file_close(&j);
	assert_int_equal(wal_file_newest(dir, 1), 0);
	assert_int_equal(wal_file_newest(dir, 4), 2);
	assert_int_equal(wal_file_newest(dir, 5), 5);
}

TEST_IN(a_full_disk_and_a_failed_sync_are_reported, set_up_wal_file, tear_down_wal_file)
{
	for (int how = 0; how < 2; how++) {
		struct wal_file *j = create(GENERATION, 0);

		for (uint64_t i = 0; i < 5; i++)
			assert_int_equal(append_payload(j, i), PS_OK);
		assert_int_equal(wal_file_sync(j, &e), PS_OK);
		assert_int_equal(append_payload(j, 5), PS_OK);
		if (how == 0)
			disk_left = 50;
		else
			sync_errno = EIO;
		assert_int_equal(wal_file_sync(j, &e), PS_EIO);
		assert_non_null(strstr(e.text, name));
		disk_left = -1;
		sync_errno = 0;
		wal_file_close(&j);
		struct read r = read_whole_log(GENERATION);
		assert_true(r.n == 5 || (how == 1 && r.n == 6));
		temp_dir_remove(dir);
		temp_dir_make(dir);
	}
}

TEST_IN(a_directory_that_is_none_is_refused, set_up_wal_file, tear_down_wal_file)
{
	const struct wal_head head = {.generation = 1, .first = 1};
	struct wal_reader r;
	struct wal_file *j;

	assert_int_equal(wal_file_create(&j, "/nowhere", &head, 0, &e), PS_EIO);
	assert_null(j);
	assert_int_equal(wal_file_newest("/nowhere", UINT64_MAX), 0);
	wal_file_remove("/nowhere", 1, 9);
	char path[320];
	assert_int_equal(mkfifo(temp_dir_path(dir, name, path), 0600), 0);
	assert_int_equal(wal_reader_open(&r, dir, GENERATION, MAX_BYTES, &e), PS_EIO);
	wal_reader_release(&r);
}
