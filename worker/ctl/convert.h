/*
 * convert.h - cnn-ctl convert: writes images of other formats as the IDX files of a data set.
 *
 * A reader passes the images of each part, training and test, to the writer of this part. The files
 * get their final names when all of them are complete. Every value that is read from an input file
 * is checked before it is used. Thread: main.
 */
#ifndef WORKER_CTL_CONVERT_H
#define WORKER_CTL_CONVERT_H
#include "common/err.h"
#include "worker/ctl/writer.h"

/* A conversion: the place of the input, the directory of the output, and the writers. */
struct convert {
	const char *from, *to;
	struct writer writer[CONVERT_PARTS];
	size_t classes;
};

/* The readers. Each reader writes both parts. If `from` has no files of its format, a reader sets
 * *found to 0 and writes nothing, and the caller tries the next reader. */
int convert_cifar(struct convert *c, int *found, struct err *e) PS_MUST_CHECK;
int convert_npy(struct convert *c, int *found, struct err *e) PS_MUST_CHECK;
int convert_folders(struct convert *c, int *found, struct err *e) PS_MUST_CHECK;

#endif
