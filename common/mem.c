/*
 * mem.c - see mem.h.
 */
#include "common/mem.h"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/log.h"

#define ALIGNMENT ((size_t)64)
/* bytes of a huge page on x86-64, and on arm64 with pages of 4 KiB */
#define HUGE_PAGE  ((size_t)2 << 20)
#define LARGE      ((size_t)256 << 10)
#define KEEP_BLOCK (32 << 20) /* the largest value that glibc accepts for M_MMAP_THRESHOLD */
/* maximum number of freed bytes that glibc keeps at the end of each heap */
#define KEEP_FREE (256 << 20)

/* With the TLS model initial-exec, a program that links libcnnps.a needs no function of the dynamic
 * linker to access these variables. */
#define OF_THREAD static _Thread_local __attribute__((tls_model("initial-exec")))

/* the bytes that mem_limit still permits this thread, and whether it has refused a block */
OF_THREAD uint64_t limit_left = UINT64_MAX;
OF_THREAD int limit_refused;

/* Returns the first line of a file, or "" if there is none. */
static const char *first_line(const char *path, char line[256])
{
	FILE *f = fopen(path, "re");

	line[0] = '\0';
	if (f && !fgets(line, 256, f))
		line[0] = '\0';
	if (f)
		fclose(f);
	line[strcspn(line, "\n")] = '\0';
	return line;
}

/* Returns the lower of `limit` and the limit in the file `path`; "max" in the file means no
 * limit. */
static uint64_t lower(uint64_t limit, const char *path)
{
	char line[256], *end;
	uint64_t here = strtoull(first_line(path, line), &end, 10);

	return end > line && here && here < limit ? here : limit;
}

uint64_t mem_of_machine(void)
{
	uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	char line[256], path[300];

	/* in a container, the root of the file system is the group of the container; elsewhere, the
	 * line is "0::" and the path of the group */
	total = lower(total, "/sys/fs/cgroup/memory.max");
	total = lower(total, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
	if (strncmp(first_line("/proc/self/cgroup", line), "0::/", 4) == 0) {
		snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", line + 3);
		total = lower(total, path);
	}
	return total;
}

void mem_keep(void)
{
	(void)mallopt(M_MMAP_THRESHOLD, KEEP_BLOCK);
	(void)mallopt(M_TRIM_THRESHOLD, KEEP_FREE);
}

void mem_trim(void)
{
	(void)malloc_trim(0);
}

void mem_limit(uint64_t bytes)
{
	limit_left = bytes;
	limit_refused = 0;
}

int mem_unlimit(void)
{
	limit_left = UINT64_MAX;
	return limit_refused;
}

/* Counts a block towards the limit of mem_limit. Returns 0 if the block exceeds the limit. */
static int is_within_limit(size_t bytes)
{
	if (limit_left == UINT64_MAX)
		return 1;
	if (bytes > limit_left) {
		limit_refused = 1;
		return 0;
	}
	limit_left -= bytes;
	return 1;
}

/* Returns a zeroed block whose address and size are multiples of `alignment`, or NULL.
 * aligned_alloc needs a size that is such a multiple, so a block of 0 bytes takes `alignment`
 * bytes. */
static void *zeroed_block(size_t bytes, size_t alignment)
{
	if (bytes > PTRDIFF_MAX - alignment || !is_within_limit(bytes))
		return NULL;
	bytes = bytes ? (bytes + alignment - 1) / alignment * alignment : alignment;
	void *p = aligned_alloc(alignment, bytes);
	if (p && alignment == HUGE_PAGE)
		(void)madvise(p, bytes, MADV_HUGEPAGE); /* a failure only makes the code slower */
	return p ? memset(p, 0, bytes) : NULL;
}

void *mem_try(size_t n, size_t size)
{
	size_t bytes;

	return __builtin_mul_overflow(n, size, &bytes) ? NULL : zeroed_block(bytes, ALIGNMENT);
}

void *mem_huge(size_t n, size_t size)
{
	size_t bytes;

	return __builtin_mul_overflow(n, size, &bytes)
		       ? NULL
		       : zeroed_block(bytes, bytes >= LARGE ? HUGE_PAGE : ALIGNMENT);
}

void *mem_lazy(size_t bytes)
{
	void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

void mem_lazy_free(void *p, size_t bytes)
{
	if (p)
		(void)munmap(p, bytes ? bytes : 1);
}

void *mem_must(size_t n, size_t size, const char *owner)
{
	void *p = mem_try(n, size);

	if (!p) {
		log_error("mem", "out_of_memory", "owner=\"%s\" elements=%zu bytes_each=%zu", owner,
			n, size);
		exit(1);
	}
	return p;
}
