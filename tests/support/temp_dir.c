/* temp_dir.c - see temp_dir.h. */
#include "tests/support/temp_dir.h"

void temp_dir_make(char out[64])
{
	snprintf(out, 64, "/tmp/cnnps-unit-XXXXXX");
	assert_non_null(mkdtemp(out));
}

void temp_dir_remove(const char *dir)
{
	DIR *d = opendir(dir);

	assert_non_null(d);
	for (const struct dirent *entry; (entry = readdir(d));)
		if (entry->d_name[0] != '.')
			unlinkat(dirfd(d), entry->d_name, 0);
	closedir(d);
	assert_int_equal(rmdir(dir), 0);
}

const char *temp_dir_path(const char *dir, const char *name, char out[320])
{
	snprintf(out, 320, "%s/%s", dir, name);
	return out;
}

/* The function opens the file without O_TRUNC. If a program truncates a file, rewrites it and
 * closes it, ext4 flushes the file at once, which is slow. */
void temp_file_put(const char *path, const void *data, size_t size)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, size), (long)size);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(close(fd), 0);
}

void temp_dir_write(const char *dir, const char *name, const void *data, size_t size)
{
	char path[320];

	temp_file_put(temp_dir_path(dir, name, path), data, size);
}

void temp_dir_assert_holds(const char *dir, const char *name, const char *text)
{
	char path[320], bytes[4096];
	int fd = open(temp_dir_path(dir, name, path), O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(read(fd, bytes, sizeof(bytes)), (long)strlen(text));
	assert_memory_equal(bytes, text, strlen(text));
	assert_int_equal(close(fd), 0);
}

int temp_dir_exists(const char *dir, const char *name)
{
	char path[320];

	return access(temp_dir_path(dir, name, path), F_OK) == 0;
}

char temp_dir[64];

int temp_dir_set_up(void **state)
{
	(void)state;
	temp_dir_make(temp_dir);
	return 0;
}

int temp_dir_tear_down(void **state)
{
	(void)state;
	temp_dir_remove(temp_dir);
	return 0;
}
