/*
 * types.h - the types that the interface for programs (kernels/backend.h) and the interface of
 * devices (device.h) have in common.
 */
#ifndef KERNELS_DEVICE_TYPES_H
#define KERNELS_DEVICE_TYPES_H
#include <stddef.h>
#include <stdint.h>

/* A data set. The pixels of image n start at pixels + n * shape_count(model input), row-major.
 * labels[n] < classes. */
struct kx_images {
	const uint8_t *pixels;
	const uint16_t *labels;
	size_t n;
};

/* Precision of the products on cuda. Sums are always fp32. The CPU devices support only KX_FP32. */
enum kx_precision { KX_FP32, KX_TF32, KX_BF16, KX_TF32X3 };
#define KX_PRECISION_NAMES "fp32|tf32|bf16|tf32x3"

/* The kernels that cuda may use. AUTO: all kernels, also those of kernels/cuda/fused/, which run
 * only a few networks. GENERAL: only the kernels that run any model. */
enum kx_kernels { KX_KERNELS_AUTO, KX_KERNELS_GENERAL };
#define KX_KERNELS_NAMES "auto|general"

struct backend_options {
	const char *device; /* "auto", "cpu", "cpu-ref"; with CUDA also "cuda", "cuda:N" */
	int threads;        /* >= 1; only device cpu uses more than one */
	size_t max_batch;   /* maximum images per call of backend_gradient */
	int precision;      /* enum kx_precision */
	int kernels;        /* enum kx_kernels */
	int forward_only;   /* only evaluation and prediction: no memory for gradients */
	/* maximum number of rounds of local training in flight; 0 means LOCAL_ROUNDS */
	int rounds;
};

/* The largest number of rounds of local training that may be in flight. */
#define LOCAL_ROUNDS 2

/* An allocator for parameters and gradients; for a GPU it allocates pinned memory. The device
 * accepts any other memory, too, but copies it more slowly. `allocate` returns zeroed memory
 * aligned to 64 bytes, or NULL if there is not enough memory. Any thread may call both functions,
 * also after backend_free. */
struct backend_memory {
	int special; /* copying values into this memory saves more time than it costs */
	void *(*allocate)(size_t bytes);
	void (*release)(void *memory);
	/* Lets the device use other memory as fast as that of `allocate`, until `unpin`. Returns 0
	 * if it cannot. With `reads_only`, this process cannot write the memory. NULL: the device
	 * needs no call. */
	int (*pin)(void *memory, size_t bytes, int reads_only);
	void (*unpin)(void *memory);
	/* Allocates at least *bytes of zeroed memory of the device that another process of this
	 * host can use: sets *bytes, *memory, and its descriptor *fd, which the caller closes.
	 * Returns 0 if there is no such memory. NULL: the device has none. The memory is on the
	 * device that was opened last for gradients. */
	int (*share)(size_t *bytes, void **memory, int *fd);
	void (*unshare)(void *memory, size_t bytes);
	int (*is_shared)(const void *values); /* returns 1 if `values` are in such memory */
	/* Copies values from such memory to memory of the host. Returns 0 if it cannot. */
	int (*fetch)(void *to, const void *from, size_t bytes);
};

#endif
