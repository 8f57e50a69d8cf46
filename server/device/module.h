/*
 * module.h - the interface between cnn-ps and a store module, a shared object that keeps the
 * weights and the optimizer's state in the memory of a GPU. cnn-ps itself links no CUDA: it loads
 * the module only with --store.
 *
 * Each function that can fail returns NULL, or a text that says what failed. The text is valid
 * until the next call. After a failure, the caller calls no function but `close`. The functions do
 * what the functions of struct param_device with the same names do.
 *
 * Thread: one thread at a time uses a module.
 */
#ifndef SERVER_DEVICE_MODULE_H
#define SERVER_DEVICE_MODULE_H
#include "common/param_device.h"

#define STORE_MODULE_ABI    1u
#define STORE_MODULE_SYMBOL "cnnps_store_module"
#define STORE_MODULE_NAME   128 /* bytes of the name of a device */

struct store_module {
	uint32_t abi; /* STORE_MODULE_ABI; a module with another number may have other members */
	/* Opens device `number`, and writes its name to `name`. Loads all code that the other
	 * functions need, so that they open no files. */
	const char *(*open)(void **self, int number, char name[STORE_MODULE_NAME]);
	/* Releases the memory of an earlier call, and allocates memory for n values with `vectors`
	 * state vectors. */
	const char *(*allocate)(void *self, size_t n, size_t vectors);
	const char *(*load)(
		void *self, const float *weights, float *const state[PARAM_DEVICE_VECTORS]);
	const char *(*begin)(void *self, float *to);
	const char *(*step)(void *self, const struct device_step *step);
	const char *(*wait)(void *self, size_t n);
	const char *(*fetch)(void *self, float *const state[PARAM_DEVICE_VECTORS]);
	/* Lets the device read and write this memory of the host directly, if it can; without this
	 * call it copies the memory in pieces. The memory stays mapped until `unpin`. */
	void (*pin)(void *self, void *memory, size_t bytes);
	void (*unpin)(void *self, void *memory);
	/* Allocate and free memory of the host that the device reads directly. The memory is zeroed
	 * and aligned to 64 bytes. `allocate_host` returns NULL if there is no memory. */
	void *(*allocate_host)(size_t bytes);
	void (*release_host)(void *memory);
	void (*close)(void *self);
};

/* The type of the function STORE_MODULE_SYMBOL, which is the only name that a module exports. */
typedef const struct store_module *store_module_fn(void);

#endif
