/*
 * writer.h - writes the IDX files of a data set for the readers of convert.h.
 *
 * A writer makes the two files of one part, training or test. writer_settle gives both files their
 * final names, or removes both. Thread: main.
 */
#ifndef WORKER_CTL_WRITER_H
#define WORKER_CTL_WRITER_H
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
	int wide; /* 1: the labels have 32 bits */
	uint32_t n;
	FILE *images, *labels;
};

/* Begins to write a part with images of `shape` and labels less than `classes`. PS_EUSAGE: a file
 * of the part exists already. PS_EIO. */
int writer_open(struct writer *w, const char *dir, enum convert_part part, struct shape shape,
	size_t classes, struct err *e) PS_MUST_CHECK;
/* Appends an image: shape_count(w->shape) bytes, channels, rows, columns. PS_EDATA: there are too
 * many images. PS_EIO. */
int writer_put(
	struct writer *w, const uint8_t *pixels, uint32_t label, struct err *e) PS_MUST_CHECK;
/* Completes the files, whose names still end in ".part". PS_EDATA: there is no image. PS_EIO. */
int writer_close(struct writer *w, struct err *e) PS_MUST_CHECK;
/* Gives the files their final names if `keep` is 1, else removes them. PS_EIO. */
int writer_settle(struct writer *w, int keep, struct err *e) PS_MUST_CHECK;

#endif
