/*
 * device.h - what a device has to bring so that backend.c can offer it behind backend.h.
 *
 * A device is one row of the table in backend.c. backend.c checks every
 * argument before it calls one: batch sizes and indices are in range, a data set is there.
 *
 * Thread: as backend.h.
 */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H
#include "kernels/backend.h"

#define DEVICE_MAX_CLASSES 256
#define DEVICE_MAX_THREADS 1024

struct device {
	const char *name; /* what --device says; "cuda" also takes ":N" behind it */
	/* NULL: always there. PS_EDEVICE with the reason: not on this machine. */
	int (*present)(struct err *e);
	int precise; /* only fp32 */
	/* Allocate everything that any later call needs; o->max_batch is also the most images of
	 * a forward. On failure *self is NULL. */
	int (*open)(
		void **self, const struct model *m, const struct backend_options *o, struct err *e);
	void (*close)(void *self);
	/* What backend_name says; lives as long as self. */
	const char *(*describe)(const void *self);
	/* The kernels of layer number `layer`, which has weights, for batches of `batch` images: one
	 * word without blanks. */
	void (*kernel)(const void *self, size_t layer, size_t batch, char *text, size_t size);
	int (*use)(void *self, const struct kx_images *set, struct err *e);
	/* As backend_gradient; 1 <= batch <= max_batch. */
	int (*gradient)(void *self, const float *params, const uint32_t *index, size_t batch,
		uint64_t dropout_seed, float *grad, double *loss);
	/* Scores (n x classes) before the softmax of images [first, first + n); n <= max_batch. */
	int (*forward)(void *self, const float *params, size_t first, size_t n, float *scores);
	/* As backend_local_*, of burst number `slot` < LOCAL_BURSTS, called in order; *loss: the
	 * sum over its images. start NULL: backend.c does all with `gradient`. */
	int (*local_start)(void *self, int slot, const float *params);
	int (*local_steps)(void *self, int slot, const uint32_t *index, size_t batch, size_t steps,
		float rate, uint64_t dropout_seed);
	int (*local_finish)(void *self, int slot, float *params, float *sum);
	int (*local_wait)(void *self, int slot, double *loss);
	/* NULL: ordinary memory. */
	const struct backend_memory *memory;
	/* As backend_why; NULL: nothing to say. */
	const char *(*why)(const void *self);
};

extern const struct device device_cpu, device_cpu_ref, device_cuda;

void widen(double *to, const float *from, size_t n);
/* Softmax cross-entropy of one image: its loss, and probability[0..n) (NULL: not wanted; may be
 * score itself). */
double softmax_loss(const double *score, size_t n, size_t label, double *probability);
/* 1 if value i of dropout layer `layer` is dropped (see backend.h); `threshold` =
 * dropout_threshold(p). */
int dropout_drops(uint64_t seed, size_t layer, size_t i, uint32_t threshold);
uint32_t dropout_threshold(float p);

#endif
