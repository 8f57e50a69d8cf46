/*
 * disk.c - disk.so, for LD_PRELOAD. The library logs every change of one directory and of the files
 * in it, with the bytes that are written. The library can also make fsync hang, make writes fail,
 * or slow writes down.
 *
 *   DISK_ROOT=DIR   the directory whose changes are logged (a real path)
 *   DISK_LOG=FILE   the log. A record is a line `op fd name other offset bytes`, with tabs between
 *                   the words, and then `bytes` bytes of data
 *   DISK_HANG=FILE  while this file exists, fsync and fdatasync wait
 *   DISK_WRITE=FILE while this file exists, its text selects a fault for each write to a file of
 *                   DIR. "short": the write stores half of the bytes. "lie": the write stores
 *                   nothing and reports success. A number: the write fails with this errno
 *   DISK_SLOW=MS    each pwrite first waits for MS milliseconds
 *
 * Names are relative to DIR, and "." is DIR itself. The library writes the record of a call after
 * the call has succeeded. One lock covers the call and the record, so the records have the order of
 * the calls. Threads: any.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* memcpy instead of a cast: ISO C has no cast from void * to a function pointer. */
#define REAL(name)                                                                                 \
	static __typeof__(&name) real;                                                             \
	if (!real) {                                                                               \
		void *symbol = dlsym(RTLD_NEXT, #name);                                            \
		memcpy(&real, &symbol, sizeof(real));                                              \
	}

static const char *setting(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

/* Returns the name of `path` relative to DISK_ROOT, or NULL if the path is not in DISK_ROOT. */
static const char *path_inside_root(const char *path)
{
	const char *root = setting("DISK_ROOT");
	size_t n = root ? strlen(root) : 0;

	if (!root || strncmp(path, root, n) != 0)
		return NULL;
	return path[n] == '/' ? path + n + 1 : path[n] ? NULL : ".";
}

/* Write the name of an open file, relative to DISK_ROOT, to buf. */
static const char *name_of_fd(int fd, char buf[PATH_MAX])
{
	char link[64];

	if (!setting("DISK_ROOT"))
		return NULL;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, buf, PATH_MAX - 1);
	if (n < 0)
		return NULL;
	buf[n] = '\0';
	return path_inside_root(buf);
}

static const char *name_at(int dir, const char *path, char buf[PATH_MAX])
{
	char base[PATH_MAX];

	if (path[0] == '/' || dir == AT_FDCWD)
		return path_inside_root(path);
	const char *at = name_of_fd(dir, base);
	if (!at)
		return NULL;
	snprintf(buf, PATH_MAX, "%s%s%s", strcmp(at, ".") ? at : "", strcmp(at, ".") ? "/" : "",
		path);
	return buf;
}

static void log_disk_call(const char *op, int fd, const char *name, const char *other, off_t offset,
	const void *data, size_t bytes)
{
	static int out = -1;
	char line[2 * PATH_MAX];

	if (out < 0 && setting("DISK_LOG")) {
		REAL(open)
		out = real(setting("DISK_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	}
	if (out < 0)
		return;
	int n = snprintf(line, sizeof(line), "%s\t%d\t%s\t%s\t%jd\t%zu\n", op, fd, name, other,
		(intmax_t)offset, bytes);
	const struct iovec part[2] = {{line, (size_t)n}, {(void *)(uintptr_t)data, bytes}};
	if (writev(out, part, bytes ? 2 : 1) != (ssize_t)((size_t)n + bytes))
		abort(); /* a log with a missing record would be useless */
}

static int opened(int fd, int flags)
{
	char buf[PATH_MAX];
	const char *name = fd >= 0 ? name_of_fd(fd, buf) : NULL;

	if (name)
		log_disk_call(flags & O_TRUNC ? "open-empty" : "open", fd, name, "-", 0, NULL, 0);
	return fd;
}

#define WITH_MODE(flags, mode)                                                                     \
	mode_t mode = 0;                                                                           \
	if (flags & O_CREAT) {                                                                     \
		va_list ap;                                                                        \
		va_start(ap, flags);                                                               \
		mode = va_arg(ap, mode_t);                                                         \
		va_end(ap);                                                                        \
	}

int open(const char *path, int flags, ...)
{
	WITH_MODE(flags, mode)
	REAL(open)
	pthread_mutex_lock(&lock);
	int fd = opened(real(path, flags, mode), flags);
	pthread_mutex_unlock(&lock);
	return fd;
}

int openat(int dir, const char *path, int flags, ...)
{
	WITH_MODE(flags, mode)
	REAL(openat)
	pthread_mutex_lock(&lock);
	int fd = opened(real(dir, path, flags, mode), flags);
	pthread_mutex_unlock(&lock);
	return fd;
}

static void written(int fd, const void *data, ssize_t n, off_t at)
{
	char buf[PATH_MAX];
	const char *name = n > 0 ? name_of_fd(fd, buf) : NULL;

	if (name)
		log_disk_call("write", fd, name, "-", at, data, (size_t)n);
}

/* Carry out a write with the fault that DISK_WRITE selects. */
static ssize_t broken_write(
	__typeof__(&write) real, const char *how, int fd, const void *data, size_t n)
{
	if (strcmp(how, "short") == 0)
		return real(fd, data, (n + 1) / 2);
	if (strcmp(how, "lie") == 0)
		return (ssize_t)n;
	errno = (int)strtol(how, NULL, 10);
	return -1;
}

static ssize_t write_now(__typeof__(&write) real, int fd, const void *data, size_t n)
{
	const char *file = setting("DISK_WRITE");
	char how[16] = "";
	FILE *f = file ? fopen(file, "re") : NULL;

	if (!f)
		return real(fd, data, n);
	int known = fgets(how, sizeof(how), f) != NULL;
	fclose(f);
	return known ? broken_write(real, how, fd, data, n) : real(fd, data, n);
}

/* A write to a file outside DISK_ROOT must not take the lock: libuv's signal handler writes to a
 * pipe, and this handler may run in a thread that holds the lock. */
ssize_t write(int fd, const void *data, size_t n)
{
	char buf[PATH_MAX];

	REAL(write)
	if (!name_of_fd(fd, buf))
		return real(fd, data, n);
	pthread_mutex_lock(&lock);
	ssize_t done = write_now(real, fd, data, n);
	written(fd, data, done, done > 0 ? lseek(fd, 0, SEEK_CUR) - done : 0);
	pthread_mutex_unlock(&lock);
	return done;
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
	REAL(pwrite)
	if (setting("DISK_SLOW"))
		usleep(1000 * (useconds_t)strtoul(setting("DISK_SLOW"), NULL, 10));
	pthread_mutex_lock(&lock);
	ssize_t done = real(fd, data, n, at);
	written(fd, data, done, at);
	pthread_mutex_unlock(&lock);
	return done;
}

int ftruncate(int fd, off_t size)
{
	char buf[PATH_MAX];

	REAL(ftruncate)
	pthread_mutex_lock(&lock);
	int rc = real(fd, size);
	const char *name = rc == 0 ? name_of_fd(fd, buf) : NULL;
	if (name)
		log_disk_call("truncate", fd, name, "-", size, NULL, 0);
	pthread_mutex_unlock(&lock);
	return rc;
}

static void hang_while_asked(void)
{
	const char *file = setting("DISK_HANG");

	while (file && access(file, F_OK) == 0)
		usleep(10000);
}

static int synced(int fd, int rc)
{
	char buf[PATH_MAX];
	const char *name = rc == 0 ? name_of_fd(fd, buf) : NULL;

	if (name)
		log_disk_call("sync", fd, name, "-", 0, NULL, 0);
	return rc;
}

int fsync(int fd)
{
	REAL(fsync)
	hang_while_asked();
	pthread_mutex_lock(&lock);
	int rc = synced(fd, real(fd));
	pthread_mutex_unlock(&lock);
	return rc;
}

int fdatasync(int fd)
{
	REAL(fdatasync)
	hang_while_asked();
	pthread_mutex_lock(&lock);
	int rc = synced(fd, real(fd));
	pthread_mutex_unlock(&lock);
	return rc;
}

static int renamed(int from_dir, const char *from, int to_dir, const char *to, int rc)
{
	char a[PATH_MAX], b[PATH_MAX];
	const char *old = rc == 0 ? name_at(from_dir, from, a) : NULL;
	const char *new = rc == 0 ? name_at(to_dir, to, b) : NULL;

	if (old && new)
		log_disk_call("rename", -1, old, new, 0, NULL, 0);
	return rc;
}

int rename(const char *from, const char *to)
{
	REAL(rename)
	pthread_mutex_lock(&lock);
	int rc = renamed(AT_FDCWD, from, AT_FDCWD, to, real(from, to));
	pthread_mutex_unlock(&lock);
	return rc;
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	REAL(renameat)
	pthread_mutex_lock(&lock);
	int rc = renamed(from_dir, from, to_dir, to, real(from_dir, from, to_dir, to));
	pthread_mutex_unlock(&lock);
	return rc;
}

static int removed(int dir, const char *path, int rc)
{
	char buf[PATH_MAX];
	const char *name = rc == 0 ? name_at(dir, path, buf) : NULL;

	if (name)
		log_disk_call("unlink", -1, name, "-", 0, NULL, 0);
	return rc;
}

int unlink(const char *path)
{
	REAL(unlink)
	pthread_mutex_lock(&lock);
	int rc = removed(AT_FDCWD, path, real(path));
	pthread_mutex_unlock(&lock);
	return rc;
}

int unlinkat(int dir, const char *path, int flags)
{
	REAL(unlinkat)
	pthread_mutex_lock(&lock);
	int rc = removed(dir, path, real(dir, path, flags));
	pthread_mutex_unlock(&lock);
	return rc;
}
