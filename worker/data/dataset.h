/*
 * dataset.h - the data set: four consistent IDX files of one directory, and their fingerprint.
 *
 * Fingerprint: XXH3-64 of the decompressed bytes (IDX headers included) of train-images,
 * train-labels, t10k-images and t10k-labels, one after the other.
 * Thread: any; plain data after data_load.
 */
#ifndef WORKER_DATA_DATASET_H
#define WORKER_DATA_DATASET_H
#include "common/err.h"
#include "kernels/backend.h"
#include "proto/msg.h"
#include "worker/data/idx.h"

#define DATA_CLASSES 10

enum data_part { TRAIN_PART, TEST_PART, DATA_PARTS };
enum data_file { TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS, DATA_FILES };

struct data {
	char dir[4096]; /* the directory of the files */
	struct idx file[DATA_FILES];
	uint16_t *labels[DATA_PARTS]; /* those of the files; owned */
	struct data_id id;
};

/*
 * Load from `dir`; NULL: from data/mnist, else from Debian's Fashion-MNIST. A plain file has
 * priority over one with .gz. PS_EDATA names file, field and offset. On failure *d is zeroed.
 */
int data_load(struct data *d, const char *dir, struct err *e) PS_MUST_CHECK;
void data_release(struct data *d);
/* The images in the backends' format; they borrow from *d. */
struct kx_images data_train(const struct data *d);
struct kx_images data_test(const struct data *d);

#endif
