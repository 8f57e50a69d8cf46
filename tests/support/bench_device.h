/*
 * bench_device.h - the set-up of programs that measure the speed of a device: a network with
 * weights, the training images in a shuffled order, the device, and host memory that the device
 * copies fast.
 */
#ifndef TESTS_SUPPORT_BENCH_DEVICE_H
#define TESTS_SUPPORT_BENCH_DEVICE_H
#include <stdio.h>
#include <stdlib.h>
#include "common/clock.h"
#include "common/mem.h"
#include "common/rng.h"
#include "worker/data/dataset.h"

struct bench {
	const char *net;
	struct backend_options options;
	struct model model;
	struct data data;
	struct backend *backend;
	const struct backend_memory *memory;
	float *params, *grad;
	uint32_t *order;
};

/* Returns argv[i], or `otherwise` if there are fewer arguments. */
const char *bench_argument(int argc, char **argv, int i, const char *otherwise);
/* Load the images, and parse the network of b->net. */
int bench_load(struct bench *b, struct err *e);
/* Open the device of b->options with the images and new weights. */
int bench_open(struct bench *b, struct err *e);
/* Release everything. If `rc` is an error, print it. Returns the exit status of the program. */
int bench_end(struct bench *b, const char *program, int rc, const struct err *e);
double bench_median(double *value, size_t n);

#endif
