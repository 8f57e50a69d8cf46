/*
 * memory.c - memory.so, for LD_PRELOAD: it makes the Nth allocation of a program fail.
 *
 *   MEMORY_FAIL=N     the number of the allocation; 0 or unset: none
 *   MEMORY_COUNT=FILE at exit, the number of allocations is written to this file
 *
 * N counts the allocations of the program and its libraries, with two exceptions: allocations of
 * libzmq, and of libraries on behalf of libzmq, because libzmq aborts the process when an
 * allocation fails (alloc_assert); and GnuTLS and the libraries that it uses, which libmicrohttpd
 * loads but the program never calls. Threads: any.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_FRAMES 32

/* the names under which glibc's allocation functions can be called although this library replaces
 * malloc and free */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static uint64_t count; /* number of allocations so far; accessed atomically */

/* Returns the file name of the library that contains the instruction at `code`. */
static const char *library(const void *code)
{
	Dl_info from;

	if (!dladdr(code, &from) || !from.dli_fname)
		return "";
	const char *slash = strrchr(from.dli_fname, '/');
	return slash ? slash + 1 : from.dli_fname;
}

static int starts_with_one_of(const char *name, const char *const others[], size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strncmp(name, others[i], strlen(others[i])) == 0)
			return 1;
	return 0;
}

/* Returns 1 if the caller of this allocation is libzmq, directly or through another library. */
static int is_for_libzmq(void)
{
	static const char *const libzmq[] = {"libzmq"};
	void *frame[MAX_FRAMES];
	int n = backtrace(frame, MAX_FRAMES);

	for (int i = 0; i < n; i++)
		if (starts_with_one_of(library(frame[i]), libzmq, 1))
			return 1;
	return 0;
}

static int is_own_call(const void *caller)
{
	static const char *const others[] = {"libstdc++", "libgcc", "ld-linux", "memory.so",
		"libgnutls", "libtasn1", "libp11", "libnettle", "libhogweed", "libgmp", "libidn2",
		"libunistring"};
	const char *name = library(caller);

	if (!*name || starts_with_one_of(name, others, sizeof(others) / sizeof(others[0])))
		return 0;
	return !is_for_libzmq();
}

/* Call backtrace once at the start of the program: its first call allocates memory. */
__attribute__((constructor)) static void load_backtrace(void)
{
	void *frame[1];

	(void)backtrace(frame, 1);
}

/* Returns 1 if this allocation, which `caller` requests, must fail. */
static int is_victim(const void *caller)
{
	static uint64_t victim = UINT64_MAX;

	if (victim == UINT64_MAX) {
		const char *n = getenv("MEMORY_FAIL");

		victim = n ? strtoull(n, NULL, 10) : 0;
	}
	if (!is_own_call(caller))
		return 0;
	if (__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) != victim)
		return 0;
	errno = ENOMEM;
	return 1;
}

__attribute__((destructor)) static void write_count(void)
{
	const char *file = getenv("MEMORY_COUNT");
	char text[32];
	int fd = file ? open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
	int n = snprintf(text, sizeof(text), "%llu\n", (unsigned long long)count);

	if (fd >= 0 && write(fd, text, (size_t)n) != n)
		abort();
}

void *malloc(size_t size)
{
	return is_victim(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	return is_victim(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	return is_victim(__builtin_return_address(0)) ? NULL : __libc_realloc(p, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return is_victim(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
	void *p = is_victim(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size);

	if (!p)
		return ENOMEM;
	*out = p;
	return 0;
}
