/*
 * module.h - the interface between cnn-ps and a store module, a shared object that keeps the
 * weights and the optimizer's state in the memory of a GPU. cnn-ps itself links no CUDA: it loads
 * the module only with --store.
 *
 * Each function that can fail returns NULL, or a text that says what failed. The text of `kept` is
 * valid until the next call of `kept`, every other text until the next call of any other function.
 * After a failure of any function but `import`, the caller calls only `close`. The functions do
 * what the functions of struct param_device with the same names do.
 *
 * Only one thread at a time may use a module, except that `kept` may run on another thread at the
 * same time.
 */
#ifndef SERVER_DEVICE_MODULE_H
#define SERVER_DEVICE_MODULE_H
#include "common/param_device.h"

#define STORE_MODULE_ABI    4u
#define STORE_MODULE_SYMBOL "cnnps_store_module"
#define STORE_MODULE_NAME   128 /* size in bytes of the buffer for the name of a device */
#define STORE_COPIES        4u  /* number of private copies of gradients of other processes */
#define STORE_GIVES         5u  /* maximum number of copies of the weights at the same time */

/* This struct has the results of a pass over n values. */
struct store_pass {
	uint64_t xxh3; /* checksum as of wire_checksum; 0 if there are fewer than XXH3_TAIL bytes */
	/* the sum of all squares: the results of vec_squares for the blocks of ENGINE_BLOCK values,
	 * added in the order of the blocks */
	double squares;
	uint32_t peak; /* the largest magnitude, as the bits of a float32 */
};

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
	const char *(*weights)(void *self, float *to);
	/* The first call of `keep` after `allocate` allocates the memory for the copy. If the
	 * device has too little memory, `keep` sets *keeps to 0. Another thread may call `kept`
	 * while one thread calls the other functions, except `keep`, `allocate` and `close`. */
	const char *(*keep)(void *self, int *keeps);
	const char *(*kept)(void *self, void *weights, void *const state[PARAM_DEVICE_VECTORS]);
	/* Sets *values to a copy in memory of the host if the device has the n values. */
	const char *(*readable)(void *self, const float **values, size_t n);
	/*
	 * The next six functions use memory of other processes on any GPU of this host. `import`
	 * maps `bytes` bytes of the memory of descriptor `fd`, and sets *is_own to 1 if this memory
	 * is on the module's own GPU. If it cannot map the memory, it returns the reason. `drop`
	 * unmaps the memory.
	 *
	 * `take` begins to copy a gradient of n values to private copy number `at`, below
	 * STORE_COPIES. Only the first `trained` values count in the sum of squares. `taken` waits
	 * until the copy is complete, and sets *copy to it and *pass to its results. The module
	 * reads each value of `from` only once, so results and copy agree even if the other process
	 * changes the values. The copy is valid until the next `take` with the same `at`. An update
	 * that began with this copy before the next `take` still uses the values of this copy.
	 *
	 * `give` begins to copy the weights to `to`, as number `at` below STORE_GIVES. If `hashes`
	 * is 0, `give` computes no checksum. The results of `give` have no squares and no peak.
	 * Updates that begin later do not change the copy. `given` sets *done to 1 and *pass to the
	 * results if the copy is complete. If `waits` is 1, `given` first waits until the copy is
	 * complete.
	 */
	const char *(*import)(void *self, int fd, size_t bytes, void **memory, int *is_own);
	void (*drop)(void *self, void *memory, size_t bytes);
	const char *(*take)(void *self, size_t at, const void *from, size_t n, size_t trained);
	const char *(*taken)(void *self, size_t at, const float **copy, struct store_pass *pass);
	const char *(*give)(void *self, size_t at, void *to, int hashes);
	const char *(*given)(void *self, size_t at, int waits, int *done, struct store_pass *pass);
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
