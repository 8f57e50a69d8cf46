/*
 * convert.h - cnn-ctl convert: other formats of images to the IDX files of a data set.
 *
 * A reader hands images to a writer for each part, training and test. The files get their names when
 * all of them are complete. No file of a format is trusted. Thread: main.
 */
#ifndef WORKER_CTL_CONVERT_H
#define WORKER_CTL_CONVERT_H
#include <stdint.h>
#include <stdio.h>
#include "common/err.h"
#include "common/model.h"

enum convert_part { CONVERT_TRAIN, CONVERT_TEST, CONVERT_PARTS };

/* The files of one part, under names that end in ".part". */
struct writer {
	const char *dir;
	enum convert_part part;
	struct shape shape;
	int wide; /* labels of 32 bits */
	uint32_t n;
	FILE *images, *labels;
};

/* Begin a part with images of `shape` and labels below `classes`. PS_EIO, PS_EDATA. */
int writer_open(struct writer *w, const char *dir, enum convert_part part, struct shape shape,
	size_t classes, struct err *e) PS_MUST_CHECK;
/* Append an image: shape_count(w->shape) bytes, channels, rows, columns. */
int writer_put(
	struct writer *w, const uint8_t *pixels, uint32_t label, struct err *e) PS_MUST_CHECK;
/* Complete the files; they keep their ".part". */
int writer_close(struct writer *w, struct err *e) PS_MUST_CHECK;

/* A place to convert from and the directory to write to. */
struct convert {
	const char *from, *to;
	struct writer writer[CONVERT_PARTS];
	size_t classes;
};

/* Readers. Each writes both parts; *found becomes 0, and nothing is written, if `from` has no such
 * files. */
int convert_cifar(struct convert *c, int *found, struct err *e) PS_MUST_CHECK;
int convert_npy(struct convert *c, int *found, struct err *e) PS_MUST_CHECK;
int convert_folders(struct convert *c, int *found, struct err *e) PS_MUST_CHECK;

#endif
