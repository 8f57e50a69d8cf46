/* test_batch.c - proves that the batches of an epoch are consecutive pieces of the epoch's order of
 * images, and contain each image once. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "common/rng.h"
#include "worker/data/batch.h"
#include "tests/support/test.h"

TEST(batches_of_an_epoch_hold_each_image_once_in_the_orders_order)
{
	struct batches b;
	uint32_t order[1003], seen = 0;

	batches_init(&b, 7, 1003, 100);
	assert_int_equal(batches_count(&b), 11);
	rng_order(7, 2, order, 1003);
	for (uint32_t k = 0; k < 11; k++) {
		const uint32_t *index;
		uint32_t n;

		assert_int_equal(batches_get(&b, 2, k, &index, &n), PS_OK);
		assert_int_equal(n, k < 10 ? 100 : 3);
		assert_memory_equal(index, order + seen, n * sizeof(*index));
		seen += n;
	}
	assert_int_equal(seen, 1003);
	batches_release(&b);
}

TEST(epochs_differ_and_can_be_taken_in_any_order)
{
	struct batches b;
	uint32_t first[10], n;
	const uint32_t *index;

	batches_init(&b, 7, 1000, 10);
	assert_int_equal(batches_get(&b, 0, 5, &index, &n), PS_OK);
	memcpy(first, index, sizeof(first));
	assert_int_equal(batches_get(&b, 1, 5, &index, &n), PS_OK);
	assert_memory_not_equal(index, first, sizeof(first));
	assert_int_equal(batches_get(&b, 0, 5, &index, &n), PS_OK);
	assert_memory_equal(index, first, sizeof(first));
	batches_release(&b);
}

TEST(a_batch_that_does_not_exist_is_refused)
{
	struct batches b;
	const uint32_t *index;
	uint32_t n;

	batches_init(&b, 7, 1000, 10);
	assert_int_equal(batches_get(&b, 0, 100, &index, &n), PS_EPROTO);
	assert_int_equal(batches_get(&b, 0, UINT32_MAX, &index, &n), PS_EPROTO);
	assert_null(b.order);
	/* the batch size is above the number of images: one batch has all images */
	batches_init(&b, 7, 1000, UINT32_MAX);
	assert_int_equal(batches_count(&b), 1);
	assert_int_equal(batches_get(&b, 0, 0, &index, &n), PS_OK);
	assert_int_equal(n, 1000);
	batches_release(&b);
}
