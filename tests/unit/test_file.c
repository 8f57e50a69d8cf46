/* Proves the promises of common/file.h. This file replaces the system calls that file.c makes. The
 * replacing functions can fail or write less than requested, and they record each call. */
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <libgen.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "common/file.h"
#include "common/io.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test.h"

/* ---- replaced system calls ------------------------------------------------------------------ */

static struct {
	int watching;
	char diary[512];   /* the recorded calls, for example "write fsync rename fsync " */
	size_t max_write;  /* the maximum number of bytes of a write; 0: no maximum */
	int interrupts;    /* the number of writes that first fail with EINTR */
	int write_nothing; /* 1: write() returns 0 and sets no errno */
	/* the number of writes that succeed before a write fails with write_errno; < 0: all
	 * succeed */
	int writes_left;
	int write_errno, rename_errno;
	/* the number of fsyncs that succeed before an fsync fails with EIO; < 0: all succeed */
	int fsyncs_left;
} calls;

static void reset_calls(void)
{
	memset(&calls, 0, sizeof(calls));
	calls.writes_left = calls.fsyncs_left = -1;
	calls.watching = 1;
}

static void note_call(const char *call)
{
	size_t used = strlen(calls.diary);

	if (calls.watching)
		snprintf(calls.diary + used, sizeof(calls.diary) - used, "%s ", call);
}

static int fail_with(int number)
{
	errno = number;
	return -1;
}

ssize_t write(int fd, const void *data, size_t n)
{
	if (calls.watching && fd > 2) {
		note_call("write");
		if (calls.interrupts-- > 0)
			return fail_with(EINTR);
		if (calls.write_nothing)
			return 0;
		if (calls.writes_left == 0)
			return fail_with(calls.write_errno);
		calls.writes_left -= calls.writes_left > 0;
		if (calls.max_write && n > calls.max_write)
			n = calls.max_write;
	}
	return syscall(SYS_write, fd, data, n);
}

int fsync(int fd)
{
	note_call("fsync");
	if (calls.fsyncs_left == 0)
		return fail_with(EIO);
	calls.fsyncs_left -= calls.fsyncs_left > 0;
	return (int)syscall(SYS_fsync, fd);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	note_call("rename");
	if (calls.rename_errno)
		return fail_with(calls.rename_errno);
	return (int)syscall(SYS_renameat, from_dir, from, to_dir, to);
}

/* ---- tests ---------------------------------------------------------------------------------- */

static char dir[64];
static struct err e;

static int set_up_file(void **state)
{
	(void)state;
	temp_dir_make(dir);
	reset_calls();
	memset(&e, 0, sizeof(e));
	return 0;
}

static int tear_down_file(void **state)
{
	(void)state;
	calls.watching = 0;
	temp_dir_remove(dir);
	return 0;
}

static int replace(const char *name, const char *text)
{
	size_t half = strlen(text) / 2;
	const struct file_part part[] = {
		{text, half}, {NULL, 0}, {text + half, strlen(text) - half}};

	return file_replace(dir, name, part, 3, &e);
}

TEST_IN(a_replaced_file_is_its_parts_in_order, set_up_file, tear_down_file)
{
	assert_int_equal(replace("f", "first"), PS_OK);
	temp_dir_assert_holds(dir, "f", "first");
	assert_int_equal(replace("f", "the second, longer"), PS_OK);
	temp_dir_assert_holds(dir, "f", "the second, longer");
	assert_int_equal(replace("f", ""), PS_OK);
	temp_dir_assert_holds(dir, "f", "");
	assert_false(temp_dir_exists(dir, "f.tmp"));
}

TEST_IN(content_is_on_disk_before_the_name_and_the_name_before_success, set_up_file, tear_down_file)
{
	assert_int_equal(replace("f", "text"), PS_OK);
	assert_string_equal(calls.diary, "write write fsync rename fsync ");
}

TEST_IN(short_writes_are_continued, set_up_file, tear_down_file)
{
	calls.max_write = 3;
	assert_int_equal(replace("f", "0123456789abcdefghij"), PS_OK);
	temp_dir_assert_holds(dir, "f", "0123456789abcdefghij");
}

TEST_IN(an_interrupted_write_is_repeated, set_up_file, tear_down_file)
{
	calls.interrupts = 3;
	assert_int_equal(replace("f", "0123456789"), PS_OK);
	temp_dir_assert_holds(dir, "f", "0123456789");
}

TEST_IN(all_bytes_are_written_or_errno_says_why, set_up_file, tear_down_file)
{
	const char text[] = "0123456789abcdef";
	char back[sizeof(text)];
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	calls.max_write = 3;
	calls.interrupts = 2;
	assert_int_equal(io_write_all(ends[1], text, sizeof(text)), 0);
	assert_int_equal(read(ends[0], back, sizeof(back)), sizeof(text));
	assert_string_equal(back, text);
	assert_int_equal(io_write_all(ends[1], text, 0), 0);
	calls.write_nothing = 1;
	assert_int_equal(io_write_all(ends[1], text, sizeof(text)), -1);
	assert_int_equal(errno, EIO);
	calls.write_nothing = 0;
	calls.writes_left = 2;
	calls.write_errno = ENOSPC;
	assert_int_equal(io_write_all(ends[1], text, sizeof(text)), -1);
	assert_int_equal(errno, ENOSPC);
	close(ends[0]);
	close(ends[1]);
}

/* Checks that `rc` is the status of a disk error whose text contains errno `number`, that the old
 * file is unchanged, and that no temporary file is left. */
static void assert_file_untouched(int rc, int number)
{
	assert_int_equal(rc, PS_EIO);
	assert_int_equal(e.status, PS_EIO);
	assert_non_null(strstr(e.text, dir));
	assert_non_null(strstr(e.text, strerror(number)));
	calls.watching = 0;
	calls.fsyncs_left = -1;
	temp_dir_assert_holds(dir, "f", "old");
	assert_false(temp_dir_exists(dir, "f.tmp"));
}

TEST_IN(a_full_disk_leaves_the_old_file, set_up_file, tear_down_file)
{
	for (int writes = 0; writes < 4; writes++) {
		reset_calls();
		assert_int_equal(replace("f", "old"), PS_OK);
		calls.max_write = 3;
		calls.writes_left = writes;
		calls.write_errno = ENOSPC;
		assert_file_untouched(replace("f", "0123456789abcdefghij"), ENOSPC);
		assert_non_null(strstr(e.text, "f.tmp: write: "));
	}
}

TEST_IN(a_failed_fsync_is_never_repeated_and_leaves_the_old_file, set_up_file, tear_down_file)
{
	assert_int_equal(replace("f", "old"), PS_OK);
	reset_calls();
	calls.fsyncs_left = 0;
	int rc = replace("f", "new");
	assert_string_equal(calls.diary, "write write fsync ");
	assert_file_untouched(rc, EIO);
	assert_non_null(strstr(e.text, "f.tmp: fsync: "));
}

TEST_IN(a_failed_rename_leaves_the_old_file, set_up_file, tear_down_file)
{
	assert_int_equal(replace("f", "old"), PS_OK);
	calls.rename_errno = EACCES;
	assert_file_untouched(replace("f", "new"), EACCES);
}

TEST_IN(a_directory_that_cannot_be_synced_is_an_error, set_up_file, tear_down_file)
{
	calls.fsyncs_left = 1;
	assert_int_equal(replace("f", "new"), PS_EIO);
	assert_non_null(strstr(e.text, "fsync of the directory"));
	assert_false(temp_dir_exists(dir, "f.tmp"));
}

/* Runs in another thread: keeps all file descriptors in use for a tenth of a second. */
static void *hold_descriptors(void *arg)
{
	int *held = arg;

	usleep(100 * 1000);
	while (*held >= 0)
		close(*held++);
	return NULL;
}

TEST_IN(a_moment_without_descriptors_is_waited_for, set_up_file, tear_down_file)
{
	struct rlimit all, few;
	int held[64], n = 0;
	pthread_t thread;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
	few = all;
	few.rlim_cur = 32;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	while (n < 63 && (held[n] = dup(0)) >= 0)
		n++;
	held[n] = -1;
	assert_int_equal(pthread_create(&thread, NULL, hold_descriptors, held), 0);
	int rc = replace("f", "new");
	pthread_join(thread, NULL);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
	assert_int_equal(rc, PS_OK);
	temp_dir_assert_holds(dir, "f", "new");
}

TEST_IN(a_stale_temporary_file_is_overwritten, set_up_file, tear_down_file)
{
	temp_dir_write(dir, "f.tmp", "left by a crash, and longer", 27);
	assert_int_equal(replace("f", "new"), PS_OK);
	temp_dir_assert_holds(dir, "f", "new");
	assert_false(temp_dir_exists(dir, "f.tmp"));
}

/* Returns the mode of the file. */
static unsigned mode_of(const char *file)
{
	char path[320];
	struct stat st;

	assert_int_equal(stat(temp_dir_path(dir, file, path), &st), 0);
	return st.st_mode & 07777;
}

TEST_IN(only_the_owner_reads_a_private_file, set_up_file, tear_down_file)
{
	const struct file_part part = {"new", 3};
	mode_t before = umask(0);

	temp_dir_write(dir, "f", "old", 3);
	temp_dir_write(dir, "f.tmp", "left by a crash", 15);
	assert_int_equal(file_replace_private(dir, "f", &part, 1, &e), PS_OK);
	umask(before);
	temp_dir_assert_holds(dir, "f", "new");
	assert_int_equal(mode_of("f"), 0600);
}

TEST_IN(only_plain_names_and_regular_files_are_replaced, set_up_file, tear_down_file)
{
	char path[320], long_name[300];
	const char *refused[] = {"", "a/b", "../f", "/f"};

	for (size_t i = 0; i < 4; i++)
		assert_int_equal(replace(refused[i], "x"), PS_EIO);
	memset(long_name, 'n', sizeof(long_name));
	long_name[252] = '\0';
	assert_int_equal(replace(long_name, "x"), PS_EIO);
	long_name[251] = '\0';
	assert_int_equal(replace(long_name, "x"), PS_OK);
	assert_int_equal(symlink("/dev/null", temp_dir_path(dir, "link", path)), 0);
	assert_int_equal(replace("link", "x"), PS_EIO);
	assert_non_null(strstr(e.text, "not a regular file"));
	struct stat st;
	assert_int_equal(lstat(path, &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	assert_int_equal(file_replace("/nonexistent-directory", "f", NULL, 0, &e), PS_EIO);
}

TEST_IN(a_file_of_exactly_the_limit_is_read_and_one_more_byte_is_not, set_up_file, tear_down_file)
{
	char path[320];
	void *data;
	size_t size;

	temp_dir_write(dir, "f", "12345", 5);
	temp_dir_path(dir, "f", path);
	assert_int_equal(file_read(path, 5, &data, &size, &e), PS_OK);
	assert_int_equal(size, 5);
	assert_memory_equal(data, "12345", 5);
	free(data);
	assert_int_equal(file_read(path, 4, &data, &size, &e), PS_ETOOBIG);
	assert_null(data);
	assert_non_null(strstr(e.text, "5 bytes; at most 4"));
}

TEST_IN(what_is_not_a_regular_file_is_refused_at_once, set_up_file, tear_down_file)
{
	char path[320];
	void *data = &data;
	size_t size = 1;

	assert_int_equal(mkfifo(temp_dir_path(dir, "fifo", path), 0600), 0);
	assert_int_equal(file_read(path, 100, &data, &size, &e), PS_EIO);
	assert_null(data);
	assert_int_equal(size, 0);
	assert_non_null(strstr(e.text, "not a regular file"));
	assert_int_equal(file_read(dir, 100, &data, &size, &e), PS_EIO);
	assert_int_equal(file_read("/dev/zero", 100, &data, &size, &e), PS_EIO);
	assert_int_equal(
		file_read(temp_dir_path(dir, "absent", path), 1, &data, &size, &e), PS_EIO);
	assert_non_null(strstr(e.text, "No such file"));
}

TEST_IN(a_file_longer_than_its_stated_size_is_refused, set_up_file, tear_down_file)
{
	void *data;
	size_t size;

	/* like a file that grows, this file has a size of 0 bytes, but a read returns more */
	assert_int_equal(file_read("/proc/self/status", 100000, &data, &size, &e), PS_EIO);
	assert_non_null(strstr(e.text, "size changed"));
	assert_null(data);
}

TEST_IN(a_directory_is_made_if_absent_and_checked_if_there, set_up_file, tear_down_file)
{
	char path[320], deeper[340];

	temp_dir_path(dir, "made", path);
	assert_int_equal(file_make_dir(path, &e), PS_OK);
	assert_int_equal(file_make_dir(path, &e), PS_OK);
	snprintf(deeper, sizeof(deeper), "%s/no/deeper", path);
	assert_int_equal(file_make_dir(deeper, &e), PS_EUSAGE);
	assert_int_equal(file_make_dirs(deeper, &e), PS_OK);
	assert_int_equal(file_make_dirs(deeper, &e), PS_OK);
	assert_int_equal(rmdir(deeper), 0);
	assert_int_equal(rmdir(dirname(deeper)), 0);
	assert_int_equal(rmdir(path), 0);
	temp_dir_write(dir, "f", "x", 1);
	assert_int_equal(file_make_dirs(temp_dir_path(dir, "f/deeper", path), &e), PS_EUSAGE);
	assert_non_null(strstr(e.text, "f/deeper: cannot create the directory"));
	assert_int_equal(file_make_dir(temp_dir_path(dir, "f", path), &e), PS_EUSAGE);
	assert_non_null(strstr(e.text, "not a directory"));
	assert_int_equal(file_make_dir("", &e), PS_EUSAGE);
}

TEST_IN(a_directory_one_may_not_write_to_is_refused, set_up_file, tear_down_file)
{
	pid_t child = fork();

	if (child == 0) {
		/* root may write to any directory, so the child becomes another user */
		if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
			_exit(3);
		_exit(file_make_dir("/usr", &e) == PS_EUSAGE &&
					strstr(e.text, "cannot be written to")
				? 0
				: 1);
	}
	int status;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}
