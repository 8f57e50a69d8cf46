/* poison.c - breaks a CUDA context (poison.h). The build of this file needs no CUDA, because the
 * code opens libcuda.so.1 at run time. */
#include "tests/gpu/poison.h"
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static const char trap[] = ".version 7.0\n"
			   ".target sm_50\n"
			   ".address_size 64\n"
			   ".visible .entry poison()\n"
			   "{\n"
			   "trap;\n"
			   "}\n";

/* The functions of the CUDA driver that poison calls. The functions are declared as in cuda.h, but
 * with int for CUresult and void * for the handles. */
struct driver {
	int (*init)(unsigned flags);
	int (*retain)(void **context, int device);
	int (*set_current)(void *context);
	int (*load)(void **module, const void *image);
	int (*get)(void **function, void *module, const char *name);
	int (*launch)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
		unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments,
		void **extra);
	int (*synchronize)(void);
};

/* Look up the function `name` in `library`, and store the function's address in *to. The code uses
 * memcpy, because ISO C has no cast from void * to a function pointer. */
static int find_symbol(void *library, const char *name, void *to)
{
	void *symbol = dlsym(library, name);

	memcpy(to, &symbol, sizeof(symbol));
	return symbol != NULL;
}

static int poison_driver_open(struct driver *d)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	return library && find_symbol(library, "cuInit", &d->init) &&
	       find_symbol(library, "cuDevicePrimaryCtxRetain", &d->retain) &&
	       find_symbol(library, "cuCtxSetCurrent", &d->set_current) &&
	       find_symbol(library, "cuModuleLoadData", &d->load) &&
	       find_symbol(library, "cuModuleGetFunction", &d->get) &&
	       find_symbol(library, "cuLaunchKernel", &d->launch) &&
	       find_symbol(library, "cuCtxSynchronize", &d->synchronize);
}

int poison(void)
{
	struct driver d;
	void *context, *module, *kernel;

	if (!poison_driver_open(&d) || d.init(0) || d.retain(&context, 0) ||
		d.set_current(context) || d.load(&module, trap) ||
		d.get(&kernel, module, "poison") ||
		d.launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL))
		return -1;
	int rc = d.synchronize();
	return rc ? rc : -1;
}
