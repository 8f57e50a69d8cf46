/*
 * device.h - the interface that every device implements, and the functions that devices share.
 *
 * kernels/backend.c has the table of devices. Before it calls a device, backend.c checks every
 * argument: batch sizes and indices are in range, and a data set is selected.
 *
 * Thread: one thread at a time uses a device. A device may start threads of its own.
 */
#ifndef KERNELS_DEVICE_DEVICE_H
#define KERNELS_DEVICE_DEVICE_H
#include "common/err.h"
#include "common/model.h"
#include "kernels/device/types.h"

#define DEVICE_MAX_THREADS 1024

struct device {
	const char *name; /* the value of --device; "cuda" also accepts a suffix ":N" */
	int precise;      /* 1 if the device supports only fp32 */
	/* Allocates all memory that later calls need. o->max_batch is the maximum number of images
	 * in a call of `gradient` or of `forward`. With o->forward_only neither `gradient` nor
	 * local_* are called. On failure *self is NULL. PS_EDEVICE: this machine lacks the device,
	 * or it does not work. */
	int (*open)(
		void **self, const struct model *m, const struct backend_options *o, struct err *e);
	void (*close)(void *self);
	/* Returns the text of backend_name, which is valid until `close`. */
	const char *(*describe)(const void *self);
	/* Returns the value of --device that opens this device again. If the function pointer
	 * `option` is NULL, this value is `name`. */
	const char *(*option)(const void *self);
	/* Writes the names of the kernels of layer number `layer`, which has weights, for batches
	 * of `batch` images, as one word without blanks. */
	void (*kernel)(const void *self, size_t layer, size_t batch, char *text, size_t size);
	int (*use)(void *self, const struct kx_images *set, struct err *e);
	/* Does the work of backend_gradient; 1 <= batch <= max_batch. */
	int (*gradient)(void *self, const float *params, const uint32_t *index, size_t batch,
		uint64_t dropout_seed, float *grad, double *loss);
	/* Writes the logits before the softmax (n x classes) of images [first, first + n). n <=
	 * max_batch. */
	int (*forward)(void *self, const float *params, size_t first, size_t n, float *logits);
	/* The next four functions do the work of backend_local_*. `slot` is the number of the
	 * round's buffers: 0 <= slot < backend_options.rounds. backend.c sets `rounds` to 1 or
	 * LOCAL_ROUNDS, and ensures the order of the calls. *loss is the sum of the losses of the
	 * round's images. If local_start is NULL, backend.c runs the steps with `gradient`. */
	int (*local_start)(void *self, int slot, const float *params);
	int (*local_steps)(void *self, int slot, const uint32_t *index, size_t batch, size_t steps,
		float rate, uint64_t dropout_seed);
	int (*local_finish)(void *self, int slot, float *params, float *sum);
	int (*local_wait)(void *self, int slot, double *loss);
	/* Starts the round in slot `slot` with one gradient, as backend_gradient_start does.
	 * local_finish and local_wait end the round; *loss of local_wait is then the mean loss. If
	 * the pointer is NULL, backend.c calls `gradient`. */
	int (*gradient_start)(void *self, int slot, const float *params, const uint32_t *index,
		size_t batch, uint64_t dropout_seed);
	/* Each of these functions does the work of the function of backend.h with the same name
	 * after the prefix backend_. The pointers are NULL if the device computes no checksums. */
	int (*hashes)(const void *self); /* the work of backend_hashes */
	int (*start_hash)(void *self, uint64_t *xxh3);
	void (*sum_hash)(const void *self, uint64_t *xxh3);
	/* The allocator of backend_memory. If it is NULL, backend_memory allocates ordinary
	 * memory. */
	const struct backend_memory *memory;
	/* Does the work of backend_why. If the pointer `why` is NULL, backend_why returns "". */
	const char *(*why)(const void *self);
};

/* Copies from[0..n) to `to` as double. */
void widen(double *to, const float *from, size_t n);
/* Returns the softmax cross-entropy of one image with n logits and writes probability[0..n).
 * `probability` may be NULL (not needed) or `logit` itself. */
double softmax_loss(const double *logit, size_t n, size_t label, double *probability);
/* Returns 1 if dropout with probability p drops value i of a layer: if
 * rng_mix(seed ^ rng_mix(layer << 40 | i)) >> 40 is below p * 2^24. Dropout scales the values that
 * it keeps by 1 / (1 - p). `layer` is the number of the layer, and i = n * values per image + value
 * for image n of the batch. `threshold` is dropout_threshold(p). */
int dropout_drops(uint64_t seed, size_t layer, size_t i, uint32_t threshold);
uint32_t dropout_threshold(float p);

#endif
