/*
 * dataset.h - the data set: four consistent IDX files (files.h), and their fingerprint.
 *
 * The fingerprint is the XXH3-64 of the decompressed bytes (IDX headers included) of train-images,
 * train-labels, t10k-images and t10k-labels, one after the other, followed by the name of the split
 * for EMNIST. EMNIST's images are stored with rows and columns exchanged, and its letters have
 * labels from 1 to 26: data_load transposes the images and numbers the letters from 0. Images that
 * fit in memory are read only once, at the start. Larger plain files stay on the disk, and each
 * image is read when it is needed. Thread: any. After data_load and data_hold_back nothing changes
 * the struct, so several threads may read it.
 */
#ifndef WORKER_DATA_DATASET_H
#define WORKER_DATA_DATASET_H
#include "common/err.h"
#include "common/model.h"
#include "kernels/backend.h"
#include "proto/msg.h"
#include "worker/data/files.h"
#include "worker/data/idx.h"

enum data_part { TRAIN_PART, TEST_PART, DATA_PARTS };

struct data {
	struct data_files files;
	struct idx file[DATA_FILES];
	uint16_t *labels[DATA_PARTS]; /* the labels in the files; owned */
	uint16_t max_label;
	struct shape shape;
	/* the last n_held_back training images are the test part (data_hold_back) */
	uint32_t n_held_back;
	/* for each training image on the disk, its number in the file; NULL: image i has number
	 * i */
	uint32_t *order;
	/* classes: one more than the largest label; at least 10 for images of 1 x 28 x 28 */
	struct data_id id;
};

/*
 * Loads the data set that files_find finds at `place`. PS_EDATA: the error names file, field and
 * offset. On failure *d is zeroed.
 */
int data_load(struct data *d, const char *place, struct err *e) PS_MUST_CHECK;
/* Loads a data set like data_load, with at most `memory` bytes of images in memory. The limit of
 * data_load is half of the machine's memory. A gzipped file must fit in `memory`. */
int data_load_within(
	struct data *d, const char *place, uint64_t memory, struct err *e) PS_MUST_CHECK;
void data_release(struct data *d);
/*
 * Moves n of the training images from the training part to the test part, which then has only these
 * n images. rng_hold_back chooses the images. Images keep their order within each part. d->id does
 * not change. A second call with the same n changes nothing; n may be 0. PS_EWRONGDATA: n >=
 * d->id.n_train, or n differs from the n of an earlier call. PS_ENOMEM.
 */
int data_hold_back(struct data *d, uint32_t n, struct err *e) PS_MUST_CHECK;
/* Returns 1 if data_train or data_test returns the images of `part`, and 0 if only data_image
 * does. */
int data_in_memory(const struct data *d, enum data_part part);
/* Copies the pixels of an image to `to`. PS_EDATA: its file has become shorter or cannot be
 * read. */
int data_image(const struct data *d, enum data_part part, uint32_t image, uint8_t *to,
	struct err *e) PS_MUST_CHECK;
/* Return the images of a part in the backends' format, which borrows from *d. `pixels` in the
 * result is NULL if the images are not in memory. */
struct kx_images data_train(const struct data *d);
struct kx_images data_test(const struct data *d);

#endif
