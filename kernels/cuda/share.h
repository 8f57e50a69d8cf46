/*
 * share.h - memory that several buffers use, one after the other.
 */
#ifndef KERNELS_CUDA_SHARE_H
#define KERNELS_CUDA_SHARE_H
#include <stddef.h>

/* A buffer holds its content from instant `first` to instant `last`. A buffer of 0 bytes is not
 * used. */
struct cuda_buffer {
	size_t bytes;
	int first, last;
	size_t at; /* set by cuda_share: the offset of the buffer, a multiple of 256 */
};

/* Extends the time of a buffer whose struct began as {.first = INT_MAX, .last = -1}, so that it
 * includes `instant`. */
void cuda_buffer_use(struct cuda_buffer *b, int instant);
/* Places the buffers so that no two of them share a byte at the same instant. Returns the number of
 * bytes of the memory for all buffers, or SIZE_MAX if the number overflows. */
size_t cuda_share(struct cuda_buffer *all, int n);

#endif
