/*
 * files.h - finds the four files of a data set and names them.
 *
 * The files have either MNIST's names or EMNIST's names. Fashion-MNIST and cnn-ctl convert also use
 * MNIST's names; in the name of a file of images, idx4 may replace idx3. EMNIST's names are
 * emnist-SPLIT-train-images-idx3-ubyte and so on. If a directory holds several splits of EMNIST,
 * --data names one: DIR/emnist-letters. Each file may be gzipped and end in .gz; if both forms
 * exist, the plain file is used. Thread: any.
 */
#ifndef WORKER_DATA_FILES_H
#define WORKER_DATA_FILES_H
#include <stddef.h>
#include "common/err.h"

enum data_file { TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS, DATA_FILES };

#define FILES_MAX_PATH 4096

struct data_files {
	char dir[FILES_MAX_PATH];
	char split[16]; /* name of the split of EMNIST; "": the files have MNIST's names */
};

/* Finds the data set at `place`, which is a directory or DIR/emnist-SPLIT. If `place` is NULL, uses
 * data/mnist or, if there are no training images in it, Debian's Fashion-MNIST. PS_EDATA: there is
 * no data set, or more than one. */
int files_find(struct data_files *f, const char *place, struct err *e) PS_MUST_CHECK;
/* Writes the path of file `file` to `path`. PS_EDATA: the file does not exist. */
int files_path(const struct data_files *f, enum data_file file, char path[FILES_MAX_PATH + 64],
	struct err *e) PS_MUST_CHECK;
/* Returns the usual name of a file, for messages. */
const char *files_name(const struct data_files *f, enum data_file file, char name[64]);

#endif
