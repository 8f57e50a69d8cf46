/* calls.c - the redirected calls of calls.h. The option --wrap of the linker determines the names
 * of the functions: a call of open() becomes a call of __wrap_open(). */
#include "tests/sim/calls.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/log.h"
#include "tests/support/sanitizer.h"

/* file descriptors from this number on are simulated; smaller ones are those of the system */
#define FIRST_FD   (1 << 20)
#define IS_OURS(f) ((f) >= FIRST_FD)
#define MEMORY     ((size_t)1 << 30) /* the size of the mapping for blocks of memory */
#define LARGE      ((size_t)1 << 16) /* the smallest block that is not cleared */

/* This struct lies before each block of memory. The block has 2^list bytes. */
struct block {
	_Alignas(64) struct block *next; /* the next free block of this size */
	unsigned list;
};

/* The simulated machine. This variable is static, because a call of the C library has no argument
 * that could point to the machine. */
static struct {
	struct disk *disk;
	struct rng *chance;
	job_fn *give;
	void *arg;
	struct dirent entry;
	int listing; /* the descriptor of the directory that readdir reads */
	/* Blocks of memory are parts of the mapping at `memory`, which has `used` bytes in use.
	 * free[i]: the list of free blocks of 2^i bytes. */
	unsigned char *memory;
	size_t used;
	struct block *free[8 * sizeof(size_t)];
} machine;

void calls_use(struct disk *d, struct rng *chance, job_fn *give, void *arg)
{
	machine.disk = d;
	machine.chance = chance;
	machine.give = give;
	machine.arg = arg;
}

/* Returns the file name in `path`, without the directory, or NULL if `path` is the directory
 * itself. */
static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : NULL;
}

static int ours(int fd)
{
	return fd < 0 ? fd : fd + FIRST_FD;
}

/* ---- files ----------------------------------------------------------------------------------- */

int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
	const char *name = base_name(path);

	return ours(name ? disk_open_file(machine.disk, name, flags)
			 : disk_open_directory(machine.disk));
}

int __wrap_openat(int dir, const char *name, int flags, ...);
int __wrap_openat(int dir, const char *name, int flags, ...)
{
	(void)dir;
	return ours(disk_open_file(machine.disk, name, flags));
}

int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
	return IS_OURS(fd) ? disk_close(machine.disk, fd - FIRST_FD) : __real_close(fd);
}

ssize_t __wrap_read(int fd, void *bytes, size_t n);
ssize_t __wrap_read(int fd, void *bytes, size_t n)
{
	return disk_read(machine.disk, fd - FIRST_FD, bytes, n);
}

ssize_t __wrap_pread(int fd, void *bytes, size_t n, off_t from);
ssize_t __wrap_pread(int fd, void *bytes, size_t n, off_t from)
{
	if (disk_seek(machine.disk, fd - FIRST_FD, (size_t)from) != 0)
		return -1;
	return disk_read(machine.disk, fd - FIRST_FD, bytes, n);
}

ssize_t __real_write(int fd, const void *bytes, size_t n);
ssize_t __wrap_write(int fd, const void *bytes, size_t n);
ssize_t __wrap_write(int fd, const void *bytes, size_t n)
{
	if (!IS_OURS(fd))
		return __real_write(fd, bytes, n);
	return disk_write(machine.disk, fd - FIRST_FD, bytes, n);
}

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t n, off_t to);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t n, off_t to)
{
	if (disk_seek(machine.disk, fd - FIRST_FD, (size_t)to) != 0)
		return -1;
	return disk_write(machine.disk, fd - FIRST_FD, bytes, n);
}

int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	return disk_sync(machine.disk, fd - FIRST_FD);
}

int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd)
{
	return disk_sync(machine.disk, fd - FIRST_FD);
}

int __wrap_ftruncate(int fd, off_t size);
int __wrap_ftruncate(int fd, off_t size)
{
	return disk_truncate(machine.disk, fd - FIRST_FD, (size_t)size);
}

int __wrap_renameat(int from, const char *name, int into, const char *to);
int __wrap_renameat(int from, const char *name, int into, const char *to)
{
	(void)from;
	(void)into;
	return disk_rename(machine.disk, name, to);
}

int __wrap_unlinkat(int dir, const char *name, int flags);
int __wrap_unlinkat(int dir, const char *name, int flags)
{
	(void)dir;
	(void)flags;
	return disk_unlink(machine.disk, name);
}

int __wrap_flock(int fd, int how);
int __wrap_flock(int fd, int how)
{
	(void)how; /* a lock is always exclusive, and flock never waits */
	return disk_lock(machine.disk, fd - FIRST_FD);
}

/* ---- file attributes ------------------------------------------------------------------------- */

static int describe_file(struct stat *st, long size)
{
	if (size < 0)
		return -1;
	memset(st, 0, sizeof(*st));
	st->st_mode = S_IFREG | 0600;
	st->st_size = size;
	return 0;
}

int __wrap_fstat(int fd, struct stat *st);
int __wrap_fstat(int fd, struct stat *st)
{
	return describe_file(st, disk_size(machine.disk, fd - FIRST_FD));
}

int __wrap_fstatat(int dir, const char *name, struct stat *st, int flags);
int __wrap_fstatat(int dir, const char *name, struct stat *st, int flags)
{
	(void)dir;
	(void)flags;
	return describe_file(st, disk_size_of(machine.disk, name));
}

/* A caller of the functions below can also pass the path of the directory itself, which always
 * exists. */
int __wrap_stat(const char *path, struct stat *st);
int __wrap_stat(const char *path, struct stat *st)
{
	(void)path;
	memset(st, 0, sizeof(*st));
	st->st_mode = S_IFDIR | 0755;
	return 0;
}

int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode)
{
	(void)path;
	(void)mode;
	errno = EEXIST;
	return -1;
}

int __wrap_faccessat(int dir, const char *path, int mode, int flags);
int __wrap_faccessat(int dir, const char *path, int mode, int flags)
{
	(void)dir;
	(void)path;
	(void)mode;
	(void)flags;
	return 0;
}

int __wrap_access(const char *path, int mode);
int __wrap_access(const char *path, int mode)
{
	(void)mode;
	return disk_size_of(machine.disk, base_name(path)) < 0 ? -1 : 0;
}

DIR *__wrap_opendir(const char *path);
DIR *__wrap_opendir(const char *path)
{
	(void)path;
	machine.listing = disk_open_directory(machine.disk);
	if (machine.listing < 0)
		return NULL;
	disk_rewind(machine.disk);
	return (DIR *)(void *)&machine;
}

struct dirent *__wrap_readdir(DIR *d);
struct dirent *__wrap_readdir(DIR *d)
{
	const char *name = disk_next(machine.disk);

	(void)d;
	if (!name)
		return NULL;
	memcpy(machine.entry.d_name, name, strlen(name) + 1);
	return &machine.entry;
}

void __wrap_rewinddir(DIR *d);
void __wrap_rewinddir(DIR *d)
{
	(void)d;
	disk_rewind(machine.disk);
}

int __wrap_dirfd(DIR *d);
int __wrap_dirfd(DIR *d)
{
	(void)d;
	return ours(machine.listing);
}

int __wrap_closedir(DIR *d);
int __wrap_closedir(DIR *d)
{
	(void)d;
	return disk_close(machine.disk, machine.listing);
}

/* ---- thread pool, random numbers, process id, log -------------------------------------------- */

int __wrap_uv_queue_work(uv_loop_t *loop, uv_work_t *work, uv_work_cb run, uv_after_work_cb after);
int __wrap_uv_queue_work(uv_loop_t *loop, uv_work_t *work, uv_work_cb run, uv_after_work_cb after)
{
	const struct job job = {work, run, after};

	(void)loop;
	machine.give(machine.arg, &job);
	return 0;
}

ssize_t __wrap_getrandom(void *bytes, size_t n, unsigned int flags);
ssize_t __wrap_getrandom(void *bytes, size_t n, unsigned int flags)
{
	unsigned char *b = bytes;

	(void)flags;
	for (size_t i = 0; i < n; i++)
		b[i] = (unsigned char)rng_next(machine.chance);
	return (ssize_t)n;
}

/* The server writes its process id to the file LOCK. The id has a fixed length, so that the size of
 * the file LOCK, and with it the free space of the disk, does not depend on the real process id. */
pid_t __wrap_getpid(void);
pid_t __wrap_getpid(void)
{
	return 12345;
}

void __wrap_log_write(enum log_level level, const char *subsystem, const char *event,
	const char *fmt, ...) PS_PRINTF(4, 5);
void __wrap_log_write(
	enum log_level level, const char *subsystem, const char *event, const char *fmt, ...)
{
	(void)level;
	(void)subsystem;
	(void)event;
	(void)fmt;
}

/* ---- memory ---------------------------------------------------------------------------------- */

void *__real_mem_lazy(size_t bytes);

/* Returns a block that was freed, or a new one. Returns NULL if the mapping has no room for the
 * block. A build with AddressSanitizer always gets NULL: the caller then uses malloc, so that
 * AddressSanitizer knows each block. The blocks in use are few, so most of them stay in the
 * processor's cache. */
static void *take_block(size_t bytes)
{
	if (IS_ASAN || bytes > MEMORY / 2)
		return NULL;
	unsigned list = 64 - (unsigned)__builtin_clzll(bytes | 63);
	struct block *b = machine.free[list];

	if (b) {
		machine.free[list] = b->next;
	} else {
		if (!machine.memory)
			machine.memory = __real_mem_lazy(MEMORY);
		if (!machine.memory || MEMORY - machine.used < sizeof(*b) + ((size_t)1 << list))
			return NULL;
		b = (struct block *)(void *)(machine.memory + machine.used);
		b->list = list;
		machine.used += sizeof(*b) + ((size_t)1 << list);
	}
	/* Large blocks are not cleared, because this would be the slowest part of a run. The code
	 * initializes the parts of large blocks that it reads. */
	return bytes < LARGE ? memset(b + 1, 0, bytes) : b + 1;
}

/* Takes a block back. Returns 0 if `p` is no block of take_block. */
static int give_back(void *p)
{
	if ((uintptr_t)p - (uintptr_t)machine.memory >= machine.used)
		return 0;
	struct block *b = (struct block *)p - 1;
	b->next = machine.free[b->list];
	machine.free[b->list] = b;
	return 1;
}

void *__real_mem_must(size_t n, size_t size, const char *owner);
void *__wrap_mem_must(size_t n, size_t size, const char *owner);
void *__wrap_mem_must(size_t n, size_t size, const char *owner)
{
	void *p = take_block(n * size);

	return p ? p : __real_mem_must(n, size, owner);
}

void *__real_mem_try(size_t n, size_t size);
void *__wrap_mem_try(size_t n, size_t size);
void *__wrap_mem_try(size_t n, size_t size)
{
	size_t bytes;
	void *p = __builtin_mul_overflow(n, size, &bytes) ? NULL : take_block(bytes);

	return p ? p : __real_mem_try(n, size);
}

void __real_free(void *p);
void __wrap_free(void *p);
void __wrap_free(void *p)
{
	if (!give_back(p))
		__real_free(p);
}

void *__wrap_mem_lazy(size_t bytes);
void *__wrap_mem_lazy(size_t bytes)
{
	void *p = take_block(bytes);

	return p ? p : __real_mem_lazy(bytes);
}

void __real_mem_lazy_free(void *p, size_t bytes);
void __wrap_mem_lazy_free(void *p, size_t bytes);
void __wrap_mem_lazy_free(void *p, size_t bytes)
{
	if (!give_back(p))
		__real_mem_lazy_free(p, bytes);
}
