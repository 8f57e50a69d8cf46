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
	const char *device; /* name: "auto", "cpu", "cpu-ref"; with CUDA also "cuda", "cuda:N" */
	/* name of the device to open instead if `device` does not work or has not enough memory for
	 * the model; NULL: none */
	const char *otherwise;
	int threads;      /* number of threads, >= 1; only device cpu uses more than one */
	size_t max_batch; /* maximum number of images per call of backend_gradient */
	int precision;    /* a value of enum kx_precision */
	int kernels;      /* a value of enum kx_kernels */
	int forward_only; /* 1: only evaluation and prediction: no memory for gradients */
	/* number of rounds of local training that may be in flight at the same time (backend.h); 0
	 * means LOCAL_ROUNDS */
	int rounds;
};

/* The number of rounds of local training that a backend may have in flight at the same time, unless
 * backend_options.rounds is a smaller number. A larger number is not allowed. */
#define LOCAL_ROUNDS 2

/* An allocator for parameters and gradients; for a GPU it allocates pinned memory. The device
 * accepts any other memory, too, but copies it more slowly. `allocate` returns zeroed memory
 * aligned to 64 bytes, or NULL if there is not enough memory. Any thread may call both functions,
 * also after backend_free. */
struct backend_memory {
	/* 1: values in other memory should first be copied into this memory, which saves more time
	 * than the copy takes */
	int special;
	void *(*allocate)(size_t bytes);
	void (*release)(void *memory);
	/* Prepares memory that does not come from `allocate`, so that the device uses it as fast as
	 * memory of `allocate`, until `unpin`. Returns 0 if the device cannot do so. `reads_only`:
	 * 1 if this process may not write to the memory. If the pointer `pin` is NULL, the device
	 * needs no call. */
	int (*pin)(void *memory, size_t bytes, int reads_only);
	void (*unpin)(void *memory);
	/* Allocates at least *bytes bytes of zeroed memory of the device. Another process of this
	 * host can use this memory, too. Sets *bytes and *memory, and sets *fd to the descriptor of
	 * the memory, which the caller closes. Returns 0 if it cannot allocate the memory. If the
	 * pointer `share` is NULL, the device has no such memory. The memory is on the device that
	 * was opened last for gradients. */
	int (*share)(size_t *bytes, void **memory, int *fd);
	void (*unshare)(void *memory, size_t bytes);
	int (*is_shared)(const void *values); /* returns 1 if `values` are in memory of `share` */
	/* Copies values from memory of `share` to memory of the host. Returns 0 if the copy
	 * fails. */
	int (*fetch)(void *to, const void *from, size_t bytes);
};

#endif
