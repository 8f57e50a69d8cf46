/*
 * loader.h - the images of batches as the device needs them: shifted and flipped as the model says,
 * or read from files that are larger than memory. A thread prepares batches ahead.
 *
 * A batch is what its epoch, its number and the model make it: every worker and every order of
 * calls gives the same bytes.
 *
 * Invariants:
 * (1) batches come out in the order in which they were asked for;
 * (2) memory is bounded: LOADER_AHEAD batches, allocated by loader_new;
 * (3) a file that shrinks or cannot be read ends in PS_EDATA, never in a signal.
 * Thread: one thread calls; the loader has one of its own, which only reads the data set.
 */
#ifndef WORKER_DATA_LOADER_H
#define WORKER_DATA_LOADER_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "kernels/backend.h"
#include "worker/data/dataset.h"

#define LOADER_AHEAD 3

struct loader; /* opaque */

/* The images of one batch. */
struct loader_batch {
	uint32_t epoch, number;
	const uint32_t *index; /* of `n` images */
	uint32_t n;
};

/* 1: batches of this part need a loader: the device cannot have the images once and for all. `p` as
 * below. */
int loader_is_needed(const struct data *d, enum data_part part, const struct preprocess *p);
/* Batches of at most `max` images of `d`, which must outlive the loader. `p`: NULL for none, else
 * the shift and flip of the training images. PS_ENOMEM. */
int loader_new(struct loader **out, const struct data *d, enum data_part part,
	const struct preprocess *p, uint64_t seed, uint32_t max, struct err *e) PS_MUST_CHECK;
/* Frees *l and sets it to NULL. *l may be NULL. */
void loader_free(struct loader **l);
/* 1: loader_ask can be called. */
int loader_has_room(const struct loader *l);
/* Prepare a batch after those that were asked for; copies the index. */
void loader_ask(struct loader *l, const struct loader_batch *b);
/* Forget all batches that were asked for. */
void loader_reset(struct loader *l);
/* Wait for the oldest batch that was asked for and not taken. Its images stay valid until the next
 * call of loader_take or loader_reset. PS_EDATA, with the reason in *e. */
int loader_take(struct loader *l, struct kx_images *images, struct err *e) PS_MUST_CHECK;

#endif
