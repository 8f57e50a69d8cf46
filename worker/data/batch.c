/* batch.c - see batch.h. */
#include <stdlib.h>
#include "common/mem.h"
#include "common/rng.h"
#include "worker/data/batch.h"

void batches_init(struct batches *b, uint64_t seed, uint32_t n_images, uint32_t batch)
{
	*b = (struct batches){.seed = seed, .n_images = n_images, .batch = batch};
}

void batches_release(struct batches *b)
{
	free(b->order);
	b->order = NULL;
}

uint32_t batches_count(const struct batches *b)
{
	return b->n_images / b->batch + (b->n_images % b->batch != 0);
}

static int use_epoch(struct batches *b, uint32_t epoch)
{
	if (b->order && b->epoch == epoch)
		return PS_OK;
	if (!b->order)
		b->order = mem_try(b->n_images, sizeof(*b->order));
	if (!b->order)
		return PS_ENOMEM;
	rng_order(b->seed, epoch, b->order, b->n_images);
	b->epoch = epoch;
	return PS_OK;
}

int batches_get(
	struct batches *b, uint32_t epoch, uint32_t number, const uint32_t **index, uint32_t *n)
{
	uint32_t first;
	int rc;

	if (number >= batches_count(b))
		return PS_EPROTO;
	if ((rc = use_epoch(b, epoch)))
		return rc;
	first = number * b->batch; /* less than n_images, so the product cannot overflow */
	*index = b->order + first;
	*n = b->n_images - first < b->batch ? b->n_images - first : b->batch;
	return PS_OK;
}
