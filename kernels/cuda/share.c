/* share.c - see share.h. The largest buffers are placed first. */
#include <stdint.h>
#include "kernels/cuda/share.h"

#define ALIGN 256

void cuda_buffer_use(struct cuda_buffer *b, int instant)
{
	b->first = instant < b->first ? instant : b->first;
	b->last = instant > b->last ? instant : b->last;
}

static size_t end_of(const struct cuda_buffer *b)
{
	return b->at + (b->bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static int same_time(const struct cuda_buffer *a, const struct cuda_buffer *b)
{
	return a->first <= b->last && b->first <= a->last;
}

/* Returns 1 if buffer a is placed before buffer b: it is larger, or as large and earlier in the
 * list. */
static int placed_before(const struct cuda_buffer *a, const struct cuda_buffer *b)
{
	return a->bytes > b->bytes || (a->bytes == b->bytes && a < b);
}

/* Places a buffer at the lowest offset at which it overlaps no buffer that was placed before and is
 * used at the same time. */
static void share_one(struct cuda_buffer *b, const struct cuda_buffer *all, int n)
{
	b->at = 0;
	for (int i = 0; i < n; i++) {
		const struct cuda_buffer *o = &all[i];

		if (!placed_before(o, b) || !same_time(o, b) || o->at >= end_of(b) ||
			b->at >= end_of(o))
			continue;
		b->at = end_of(o);
		i = -1; /* compare with all placed buffers again */
	}
}

/* Returns the next buffer to place after `last`: the largest of those that are left, or NULL if
 * none is left. */
static struct cuda_buffer *buffer_after(
	struct cuda_buffer *all, int n, const struct cuda_buffer *last)
{
	struct cuda_buffer *best = NULL;

	for (int i = 0; i < n; i++)
		if (all[i].bytes && (!last || placed_before(last, &all[i])) &&
			(!best || placed_before(&all[i], best)))
			best = &all[i];
	return best;
}

size_t cuda_share(struct cuda_buffer *all, int n)
{
	size_t sum = 0, used = 0;

	for (int i = 0; i < n; i++)
		if (__builtin_add_overflow(sum, all[i].bytes + ALIGN, &sum) || sum > SIZE_MAX / 4)
			return SIZE_MAX;
	for (struct cuda_buffer *b = buffer_after(all, n, NULL); b; b = buffer_after(all, n, b)) {
		share_one(b, all, n);
		used = end_of(b) > used ? end_of(b) : used;
	}
	return used;
}
