/* arena.c - see path.h. */
#include "kernels/cuda/path.h"

void *arena_take(struct cuda_arena *a, size_t n, size_t size)
{
	const size_t align = 256;
	size_t bytes, at = (a->used + align - 1) / align * align;

	if (__builtin_mul_overflow(n, size, &bytes) ||
		__builtin_add_overflow(at, bytes, &a->used) || a->used > SIZE_MAX / 4) {
		a->overflow = 1;
		a->used = 0;
		return NULL;
	}
	return a->base ? a->base + at : NULL;
}
