/*
 * batch.h - determines the images of batch b of epoch e.
 *
 * The order of an epoch is rng_order(seed, e). Batch b has the positions [b * batch, (b + 1) *
 * batch) of this order; the last batch has the rest. The module stores the order of one epoch, so
 * calls that alternate between two epochs are slow but correct. Only one thread at a time may use a
 * struct batches.
 */
#ifndef WORKER_DATA_BATCH_H
#define WORKER_DATA_BATCH_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

struct batches {
	uint64_t seed;
	/* numbers of images of the data set and of a batch; both at least 1 */
	uint32_t n_images, batch;
	uint32_t epoch;  /* the epoch of `order` */
	uint32_t *order; /* NULL until the first batches_get; owned */
};

void batches_init(struct batches *b, uint64_t seed, uint32_t n_images, uint32_t batch);
void batches_release(struct batches *b);
/* Returns the number of batches in an epoch. */
uint32_t batches_count(const struct batches *b);
/* Gets the image numbers of batch `number` in `epoch`; *index is valid until the next call.
 * PS_EPROTO: the epoch has no such batch. The function checks this because the number comes from
 * the server. PS_ENOMEM. */
int batches_get(struct batches *b, uint32_t epoch, uint32_t number, const uint32_t **index,
	uint32_t *n) PS_MUST_CHECK;

#endif
