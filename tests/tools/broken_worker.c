/*
 * broken_worker.c - cnn-worker with a device `cpu` that fails as a GPU may fail. The first
 * BREAKS_AT - 1 gradients are those of cpu-ref. Each later call for a gradient writes a wrong value
 * to the first coordinate, leaves the other coordinates unset, and returns PS_EDEVICE. If the
 * environment has the variable BROKEN_HANGS, such a later call does not return.
 *
 * The program has the function main of cnn-worker. The linker uses the device_cpu of this file
 * instead of the real one, because this file precedes the archive that contains the real one.
 */
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>
#include "kernels/cpu/cpu.h"

#define BREAKS_AT 8

static size_t gradients; /* number of gradients that this process has computed */

static int broken_open(
	void **self, const struct model *m, const struct backend_options *o, struct err *e)
{
	return device_cpu_ref.open(self, m, o, e);
}

static void broken_close(void *self)
{
	device_cpu_ref.close(self);
}

static const char *broken_describe(const void *self)
{
	(void)self;
	return "broken";
}

static void broken_kernel(const void *self, size_t layer, size_t batch, char *text, size_t size)
{
	device_cpu_ref.kernel(self, layer, batch, text, size);
}

static int broken_use(void *self, const struct kx_images *set, struct err *e)
{
	return device_cpu_ref.use(self, set, e);
}

static int broken_gradient(void *self, const float *params, const uint32_t *index, size_t batch,
	uint64_t dropout_seed, float *grad, double *loss)
{
	if (++gradients < BREAKS_AT)
		return device_cpu_ref.gradient(
			self, params, index, batch, dropout_seed, grad, loss);
	while (getenv("BROKEN_HANGS"))
		pause();
	grad[0] = 1e6f;
	*loss = 0;
	return PS_EDEVICE;
}

static int broken_forward(void *self, const float *params, size_t first, size_t n, float *logits)
{
	return device_cpu_ref.forward(self, params, first, n, logits);
}

const struct device device_cpu = {
	.name = "cpu",
	.precise = 1,
	.open = broken_open,
	.close = broken_close,
	.describe = broken_describe,
	.kernel = broken_kernel,
	.use = broken_use,
	.gradient = broken_gradient,
	.forward = broken_forward,
};
