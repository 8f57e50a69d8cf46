/*
 * mem.h - memory: start-up allocations die with the size and who asked; any size that a peer or a
 * file had a say in is tried and may be refused.
 *
 * All blocks are zeroed and, but for those of mem_lazy, are freed with free(). Thread: any.
 */
#ifndef COMMON_MEM_H
#define COMMON_MEM_H
#include <stddef.h>

/* Call first in main: freed memory is kept for the next message. By default glibc gives blocks of
 * megabytes back to the kernel and faults them in again, page by page, for every message. */
void mem_keep(void);
/* Give the kernel back what is free. Slow. */
void mem_trim(void);

/* `n` elements of `size` bytes, aligned to 64 bytes; exits with one line naming `who` on failure or
 * overflow. For start-up only. n * size == 0 gives a valid pointer. */
void *mem_must(size_t n, size_t size, const char *who);
/* The same, but NULL on failure or overflow. */
void *mem_try(size_t n, size_t size);

/* `bytes` of zeros, aligned to a page, of which the kernel provides each page when it is first
 * touched: for a block whose size is a worst case. NULL on failure. Released by mem_lazy_free. */
void *mem_lazy(size_t bytes);
/* `p` may be NULL; `bytes` as it was asked for. */
void mem_lazy_free(void *p, size_t bytes);

#endif
