/*
 * loader.h - prepares the images of batches for the device: shifts and flips them if the model
 * demands this, or reads them from files that are larger than memory. A thread prepares the batches
 * before the device needs them.
 *
 * The seed, the epoch, the number of the batch and the model determine the bytes of a batch: the
 * bytes are equal in every worker and for every order of calls.
 *
 * Invariants:
 * (1) batches come out in the order in which loader_ask requested them (asserted by loader_take;
 *     invariant_1_batches_come_in_order_with_the_specified_bytes);
 * (2) memory is bounded: LOADER_BATCHES batches, allocated by loader_new (asserted by loader_ask;
 *     a_batch_that_does_not_fit_memory_is_refused).
 *
 * Promises:
 * (1) a file that shrinks or cannot be read ends in PS_EDATA, never in a signal
 *     (promise_1_a_file_that_shrinks_is_bad_data).
 *
 * Thread: only one thread may call the functions. The loader starts another thread, which only
 * reads the data set.
 */
#ifndef WORKER_DATA_LOADER_H
#define WORKER_DATA_LOADER_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "kernels/backend.h"
#include "worker/data/dataset.h"

#define LOADER_BATCHES 3

struct loader; /* opaque, see loader.c */

/* The images of one batch. */
struct loader_batch {
	uint32_t epoch, number;
	const uint32_t *index; /* numbers of the `n` images */
	uint32_t n;
};

/* Returns 1 if batches of `part` need a loader, because the device cannot keep one fixed copy of
 * the images. `p` has the same meaning as for loader_new. */
int loader_is_needed(const struct data *d, enum data_part part, const struct preprocess *p);
/* Creates a loader for batches of at most `max` images of `d`, which must outlive the loader. `p`
 * is the shift and flip of the training images; NULL: none. PS_ENOMEM. */
int loader_new(struct loader **out, const struct data *d, enum data_part part,
	const struct preprocess *p, uint64_t seed, uint32_t max, struct err *e) PS_MUST_CHECK;
/* Frees *l and sets it to NULL. *l may be NULL. */
void loader_free(struct loader **l);
/* Returns 1 if the loader has room for another request by loader_ask. */
int loader_has_room(const struct loader *l);
/* Requests a batch, which the loader prepares after all earlier requested batches. The function
 * copies b->index. */
void loader_ask(struct loader *l, const struct loader_batch *b);
/* Drops all batches that were requested and have not been taken. */
void loader_reset(struct loader *l);
/* Waits for the oldest batch that was requested and not taken, and writes its images to *images.
 * The images stay valid until the next call of loader_take or loader_reset. PS_EDATA: a data file
 * cannot be read; *e has the reason. */
int loader_take(struct loader *l, struct kx_images *images, struct err *e) PS_MUST_CHECK;

#endif
