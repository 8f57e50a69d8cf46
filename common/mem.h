/*
 * mem.h - memory allocation. If an allocation at start-up fails, mem_must ends the program with a
 * line that says so. If a peer or a file determines the size of an allocation, the code calls
 * mem_try, which may fail.
 *
 * All blocks are zeroed. Free a block of mem_lazy with mem_lazy_free, and any other block with
 * free(). Any thread may call these functions.
 */
#ifndef COMMON_MEM_H
#define COMMON_MEM_H
#include <stddef.h>
#include <stdint.h>

/* Returns the memory of the machine in bytes, or the limit of this process's container or control
 * group (version 1 or 2) if this limit is lower. */
uint64_t mem_of_machine(void);
/* Makes glibc keep the memory of a freed message for the next message. Call mem_keep first in main.
 * By default glibc returns blocks of megabytes to the kernel, so that every message causes page
 * faults again. */
void mem_keep(void);
/* Returns the memory of freed blocks to the kernel. The call is slow. */
void mem_trim(void);

/* Allocates `n` elements of `size` bytes, aligned to 64 bytes. On failure or overflow the program
 * exits with one line that names `owner`, so call mem_must only at start-up. If n * size is 0, the
 * result is a valid pointer. */
void *mem_must(size_t n, size_t size, const char *owner);
/* Allocates memory as mem_must does, but returns NULL on failure or overflow. */
void *mem_try(size_t n, size_t size);
/* Like mem_try, but asks the kernel for huge pages if the block is large. With huge pages, a loop
 * over many places in the block causes fewer TLB misses. */
void *mem_huge(size_t n, size_t size);

/* From now on, all blocks of mem_try and mem_huge that this thread allocates may have `bytes` bytes
 * in total. Freed blocks still count. For a block that exceeds this limit, mem_try and mem_huge
 * return NULL. With the limit, a model text from a peer cannot use up the memory. */
void mem_limit(uint64_t bytes);
/* Ends the limit of this thread. Returns 1 if the limit has refused a block. */
int mem_unlimit(void);

/* Reserves `bytes` bytes of zeros, aligned to a page. The kernel provides a page at the first
 * access to this page, so a block of the largest possible size takes memory only for the pages in
 * use. Returns NULL on failure. Release the block with mem_lazy_free. */
void *mem_lazy(size_t bytes);
/* Frees a block of mem_lazy. `p` may be NULL; `bytes` is the size passed to mem_lazy. */
void mem_lazy_free(void *p, size_t bytes);

#endif
