/*
 * gpu_store.h - --store cuda:N: keeps the weights and the optimizer's state in the memory of a GPU
 * (common/param_device.h). The code for the GPU is in a module (module.h) that this file loads.
 *
 * If the GPU fails, the process logs the reason and ends at once with the exit status of
 * PS_EDEVICE, as if it had been killed, because only the GPU had the current state of the
 * optimizer. The next start computes this state again from the newest checkpoint and the log.
 *
 * Only the main thread may call these functions. At most one store may be open.
 */
#ifndef SERVER_DEVICE_GPU_STORE_H
#define SERVER_DEVICE_GPU_STORE_H
#include <stddef.h>
#include "common/err.h"
#include "common/param_device.h"
#include "proto/wire.h"

#define GPU_STORE_FILE "cnnps-store-cuda.so"

struct gpu_store; /* opaque, see gpu_store.c */

/* Loads the module and opens GPU `number`. The module lies beside the program, or in a directory
 * for libraries, such as lib/cnn-ps, beside the directory of the program. Call this function before
 * sandbox_enter, because the driver of the GPU opens files and starts threads. Returns PS_EUSAGE if
 * the module or the GPU is missing, or PS_ENOMEM. */
int gpu_store_open(struct gpu_store **out, int number, struct err *e) PS_MUST_CHECK;
/* Allocates memory for n values with `vectors` state vectors, and releases the memory of an earlier
 * call. Returns PS_ENOMEM if the GPU or the host has too little memory. */
int gpu_store_allocate(struct gpu_store *g, size_t n, size_t vectors, struct err *e) PS_MUST_CHECK;
/* Returns the device for the core. */
const struct param_device *gpu_store_device(const struct gpu_store *g);
/* Notifies the store that the weights go to `n` buffers, which begin at `base` and have `pitch`
 * bytes each. If the system permits it, the GPU writes directly to each buffer from the first use
 * of the buffer on. gpu_store_forget must be called before the buffers are unmapped. */
void gpu_store_share(struct gpu_store *g, void *base, size_t pitch, size_t n);
void gpu_store_forget(struct gpu_store *g); /* `g` may be NULL */
/* Allocate and free memory of the host that the GPU reads directly, for pool_new_in. A store must
 * be open. */
void *gpu_store_allocate_host(size_t bytes);
void gpu_store_release_host(void *memory);

/* The following functions use memory of other processes on any GPU of this host. gpu_store_import
 * maps the memory with descriptor `fd`, and sets *is_own to 1 if it is on the store's GPU. If the
 * function returns PS_EDEVICE, this memory cannot be used. */
int gpu_store_import(struct gpu_store *g, int fd, size_t bytes, char **memory, int *is_own,
	struct err *e) PS_MUST_CHECK;
void gpu_store_drop(struct gpu_store *g, char *memory, size_t bytes);
#define GPU_STORE_COPIES 4u /* number of private copies of gradients */
/* Begins to copy a gradient of n values to copy number `at`, below GPU_STORE_COPIES, in memory of
 * the GPU. Only the first `trained` values count in the sum of squares. */
void gpu_store_take(struct gpu_store *g, size_t at, const char *from, size_t n, size_t trained);
/* Waits until copy number `at` is complete. Sets *copy to the copy, which only the GPU can read,
 * and *chunk to its checksum, sum of squares and largest magnitude. The copy is valid until the
 * next gpu_store_take with the same `at`. */
void gpu_store_taken(struct gpu_store *g, size_t at, const float **copy, struct chunk *chunk);
#define GPU_STORE_GIVES 5u /* maximum number of copies of the weights at the same time */
/* Begins to copy the current weights to `to`, as number `at`, below GPU_STORE_GIVES. Returns 0 if
 * the GPU does not have the weights yet. */
int gpu_store_give(struct gpu_store *g, size_t at, char *to) PS_MUST_CHECK;
/* Returns 1 and sets *xxh3 to the checksum of the copied weights if copy number `at` is complete.
 * If `waits` is 1, first waits until the copy is complete. */
int gpu_store_given(struct gpu_store *g, size_t at, int waits, uint64_t *xxh3) PS_MUST_CHECK;
/* If `defers` is 1, updates write the new weights to memory of the host only when the core needs
 * them there. */
void gpu_store_defer(struct gpu_store *g, int defers);

/* Releases *g and sets it to NULL; *g may be NULL. */
void gpu_store_close(struct gpu_store **g);

#endif
