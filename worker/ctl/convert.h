/*
 * convert.h - cnn-ctl convert: writes images of other formats as the IDX files of a data set.
 *
 * A reader hands images to a writer for each part, training and test. The files get their final
 * names when all of them are complete. No input file is trusted. Thread: main.
 */
#ifndef WORKER_CTL_CONVERT_H
#define WORKER_CTL_CONVERT_H
#include "common/err.h"
#include "worker/ctl/writer.h"

/* A place to convert from and the directory to write to. */
struct convert {
	const char *from, *to;
	struct writer writer[CONVERT_PARTS];
	size_t classes;
};

/* Readers. Each writes both parts; *found becomes 0, and nothing is written, if `from` has no files
 * of the reader's format. */
int convert_cifar(struct convert *c, int *found, struct err *e) PS_MUST_CHECK;
int convert_npy(struct convert *c, int *found, struct err *e) PS_MUST_CHECK;
int convert_folders(struct convert *c, int *found, struct err *e) PS_MUST_CHECK;

#endif
