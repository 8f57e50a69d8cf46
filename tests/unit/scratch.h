/*
 * scratch.h - what unit tests share: a directory to write in, and a look at what went to stderr or
 * stdout.
 */
#ifndef TESTS_UNIT_SCRATCH_H
#define TESTS_UNIT_SCRATCH_H
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

/* Make a fresh directory and write its path to `out`. */
static UNUSED void scratch_make(char out[64])
{
	snprintf(out, 64, "/tmp/cnnps-unit-XXXXXX");
	assert_non_null(mkdtemp(out));
}

/* Remove `dir` and the files in it (no directories). */
static UNUSED void scratch_remove(const char *dir)
{
	DIR *d = opendir(dir);
	assert_non_null(d);
	for (const struct dirent *entry; (entry = readdir(d));)
		if (entry->d_name[0] != '.')
			unlinkat(dirfd(d), entry->d_name, 0);
	closedir(d);
	assert_int_equal(rmdir(dir), 0);
}

static UNUSED const char *scratch_path(const char *dir, const char *name, char out[320])
{
	snprintf(out, 320, "%s/%s", dir, name);
	return out;
}

/* Write `size` bytes as the whole of a file. Without O_TRUNC: what was emptied and written anew
 * ext4 puts on the disk when it is closed. */
static UNUSED void scratch_put(const char *path, const void *data, size_t size)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, size), (long)size);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(close(fd), 0);
}

/* The same of dir/name. */
static UNUSED void scratch_write(const char *dir, const char *name, const void *data, size_t size)
{
	char path[320];

	scratch_put(scratch_path(dir, name, path), data, size);
}

/* The whole of dir/name is `text`. */
static UNUSED void scratch_assert_holds(const char *dir, const char *name, const char *text)
{
	char path[320], bytes[4096];
	int fd = open(scratch_path(dir, name, path), O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(read(fd, bytes, sizeof bytes), (long)strlen(text));
	assert_memory_equal(bytes, text, strlen(text));
	assert_int_equal(close(fd), 0);
}

static UNUSED int scratch_exists(const char *dir, const char *name)
{
	char path[320];
	return access(scratch_path(dir, name, path), F_OK) == 0;
}

/* Everything written to `fd` between begin and end. */
struct capture {
	int fd, saved, file;
	char text[1 << 17];
};

static UNUSED void capture_begin(struct capture *c, int fd)
{
	char path[] = "/tmp/cnnps-unit-XXXXXX";
	fflush(NULL);
	c->fd = fd;
	c->file = mkstemp(path);
	assert_true(c->file >= 0);
	unlink(path);
	c->saved = dup(fd);
	assert_true(c->saved >= 0 && dup2(c->file, fd) == fd);
}

static UNUSED const char *capture_end(struct capture *c)
{
	fflush(NULL);
	dup2(c->saved, c->fd);
	close(c->saved);
	ssize_t n = pread(c->file, c->text, sizeof c->text - 1, 0);
	close(c->file);
	c->text[n > 0 ? n : 0] = '\0';
	return c->text;
}

/* The same for log lines: what follows the timestamp on each, which all must have, but for a
 * sanitizer's own. */
static UNUSED const char *capture_log(struct capture *c)
{
	static const char shape[] = "ts=0000-00-00T00:00:00.000Z ";
	const size_t n = sizeof shape - 1;
	char *to = c->text;

	for (const char *line = capture_end(c); *line;) {
		const char *next = strchr(line, '\n');
		assert_non_null(next);
		if (!strncmp(line, "==", 2)) {
			line = next + 1;
			continue;
		}
		assert_true((size_t)(next - line) > n);
		for (size_t i = 0; i < n; i++)
			assert_true(shape[i] == '0' ? line[i] >= '0' && line[i] <= '9'
						    : line[i] == shape[i]);
		memmove(to, line + n, (size_t)(next + 1 - line) - n);
		to += (size_t)(next + 1 - line) - n;
		line = next + 1;
	}
	*to = '\0';
	return c->text;
}

static UNUSED size_t count_lines(const char *text)
{
	size_t lines = 0;
	for (; *text; text++)
		lines += *text == '\n';
	return lines;
}

#endif
