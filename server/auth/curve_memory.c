/* curve_memory.c - see curve_memory.h. */
#include "server/auth/curve_memory.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* This struct describes the memory of a buffer: first the buffer's size, then its bytes. */
struct buffer {
	_Alignas(max_align_t) size_t size;
	unsigned char bytes[];
};

static atomic_uint_fast64_t taken;

uint64_t curve_memory_taken(void)
{
	return atomic_load_explicit(&taken, memory_order_relaxed);
}

void *sodium_allocarray(size_t count, size_t size)
{
	struct buffer *b = NULL;

	if (size == 0 || count <= (SIZE_MAX - sizeof(*b)) / size)
		b = calloc(1, sizeof(*b) + count * size);
	if (!b) {
		errno = ENOMEM;
		return NULL;
	}
	b->size = count * size;
	atomic_fetch_add_explicit(&taken, 1, memory_order_relaxed);
	return b->bytes;
}

void *sodium_malloc(size_t size)
{
	return sodium_allocarray(1, size);
}

void sodium_free(void *p)
{
	struct buffer *b;

	if (!p)
		return;
	b = (struct buffer *)((unsigned char *)p - offsetof(struct buffer, bytes));
	explicit_bzero(b, sizeof(*b) + b->size);
	free(b);
}
