/*
 * memory.c - memory.so, for LD_PRELOAD: the Nth allocation of a program fails, once.
 *
 *   MEMORY_FAIL=N     which one; 0 or unset: none
 *   MEMORY_COUNT=FILE at exit, how many there were
 *
 * Counted are those that the program and its libraries ask for, but for libzmq and the C++ library
 * under it: libzmq ends the process when it gets no memory (alloc_assert), whatever we do.
 * Thread: any.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* glibc's own, under the names that it keeps for this. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static uint64_t count; /* atomic */

static int counts(const void *caller)
{
	static const char *const others[] = {
		"libzmq", "libstdc++", "libgcc", "ld-linux", "memory.so"};
	Dl_info from;
	if (!dladdr(caller, &from) || !from.dli_fname)
		return 0;
	const char *slash = strrchr(from.dli_fname, '/');
	const char *name = slash ? slash + 1 : from.dli_fname;
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
		if (strncmp(name, others[i], strlen(others[i])) == 0)
			return 0;
	return 1;
}

/* 1: this allocation, which `caller` wants, must fail. */
static int fails(const void *caller)
{
	static uint64_t victim = UINT64_MAX;
	if (victim == UINT64_MAX) {
		const char *n = getenv("MEMORY_FAIL");
		victim = n ? strtoull(n, NULL, 10) : 0;
	}
	if (!counts(caller))
		return 0;
	if (__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) != victim)
		return 0;
	errno = ENOMEM;
	return 1;
}

__attribute__((destructor)) static void tell(void)
{
	const char *file = getenv("MEMORY_COUNT");
	char text[32];
	int fd = file ? open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
	int n = snprintf(text, sizeof text, "%llu\n", (unsigned long long)count);
	if (fd >= 0 && write(fd, text, (size_t)n) != n)
		abort();
}

void *malloc(size_t size)
{
	return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(p, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
	void *p = fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size);
	if (!p)
		return ENOMEM;
	*out = p;
	return 0;
}
