/*
 * mem.c - see mem.h.
 */
#include "common/mem.h"
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "common/log.h"

#define ALIGNMENT  ((size_t)64)
#define KEEP_BLOCK (32 << 20)  /* the largest threshold that glibc accepts */
#define KEEP_FREE  (256 << 20) /* freed bytes that glibc keeps at the end of each heap */

void mem_keep(void)
{
	(void)mallopt(M_MMAP_THRESHOLD, KEEP_BLOCK);
	(void)mallopt(M_TRIM_THRESHOLD, KEEP_FREE);
}

void mem_trim(void)
{
	(void)malloc_trim(0);
}

void *mem_try(size_t n, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes) || bytes > PTRDIFF_MAX - ALIGNMENT)
		return NULL;
	/* aligned_alloc needs a multiple of the alignment; an empty block gets one unit */
	bytes = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
	void *p = aligned_alloc(ALIGNMENT, bytes);
	return p ? memset(p, 0, bytes) : NULL;
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

void *mem_must(size_t n, size_t size, const char *who)
{
	void *p = mem_try(n, size);

	if (!p) {
		log_error("mem", "out-of-memory", "who=\"%s\" elements=%zu bytes_each=%zu", who, n,
			size);
		exit(1);
	}
	return p;
}
