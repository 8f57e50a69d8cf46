/* test_share.c - tests cuda_share: buffers that are in use at the same instant have separate
 * memory, and all other buffers may share memory. The tests need no GPU. */
#include "tests/support/test.h"
#ifdef KX_CUDA
#include <limits.h>
#include "common/rng.h"
#include "kernels/cuda/share.h"

#define BUFFERS 60

static int apart(const struct cuda_buffer *a, const struct cuda_buffer *b)
{
	return a->last < b->first || b->last < a->first || a->at + a->bytes <= b->at ||
	       b->at + b->bytes <= a->at;
}

/* Check that each buffer is aligned and inside the memory, and that buffers in use at the same time
 * do not overlap. Returns the largest number of bytes in use at one instant. */
static size_t check_places(const struct cuda_buffer *all, int n, size_t total)
{
	size_t max_used = 0;

	for (int i = 0; i < n; i++) {
		size_t used = 0;

		assert_int_equal(all[i].at % 256, 0);
		assert_true(all[i].at + all[i].bytes <= total);
		for (int j = 0; j < n; j++) {
			assert_true(i == j || !all[i].bytes || !all[j].bytes ||
				    apart(&all[i], &all[j]));
			if (all[j].first <= all[i].first && all[i].first <= all[j].last)
				used += all[j].bytes;
		}
		max_used = used > max_used ? used : max_used;
	}
	return max_used;
}
#endif

TEST(buffers_in_use_at_the_same_time_are_apart)
{
#ifdef KX_CUDA
	struct rng r = rng_seed(17, RNG_SIM, 0);

	for (int round = 0; round < 200; round++) {
		struct cuda_buffer all[BUFFERS];
		const int n = 1 + (int)rng_below(&r, BUFFERS);

		for (int i = 0; i < n; i++) {
			all[i] = (struct cuda_buffer){.bytes = rng_below(&r, 5000) * (i % 7 > 0),
				.first = INT_MAX,
				.last = -1};
			for (int k = 0; k < 3; k++)
				cuda_buffer_use(&all[i], (int)rng_below(&r, 40));
		}
		const size_t total = cuda_share(all, n);

		assert_true(check_places(all, n, total) <= total);
	}
#else
	skip();
#endif
}

TEST(a_chain_needs_the_memory_of_two_neighbours)
{
#ifdef KX_CUDA
	struct cuda_buffer all[20];

	for (int i = 0; i < 20; i++)
		all[i] = (struct cuda_buffer){.bytes = 1024, .first = i, .last = i + 1};
	assert_int_equal(cuda_share(all, 20), 2048);
	check_places(all, 20, 2048);
	all[7].bytes = SIZE_MAX / 3;
	assert_true(cuda_share(all, 20) == SIZE_MAX);
	assert_int_equal(cuda_share(all, 0), 0);
#else
	skip();
#endif
}
