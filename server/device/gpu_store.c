/* gpu_store.c - see gpu_store.h. */
#include "server/device/gpu_store.h"
#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/log.h"
#include "common/mem.h"
#include "server/device/module.h"

#define PATH_BYTES 4200

struct gpu_store {
	const struct store_module *module;
	void *library, *self;
	struct param_device device;
	/* buffers of the weights, see gpu_store_share */
	char *base;
	size_t pitch, n;
	unsigned char *is_pinned; /* n */
};

/* the module of the open store; a pool calls its functions without an argument */
static const struct store_module *open_module;

/* ---- the device of the core ------------------------------------------------------------------ */

/* Ends the process if `why` is an error. */
static void end_if_failed(const char *what, const char *why)
{
	if (!why)
		return;
	log_error("store", "failed",
		"during=%s reason=\"%s\" remedy=\"the next start continues the run from its "
		"checkpoints and log\"",
		what, why);
	_exit(err_exit_code(PS_EDEVICE));
}

static void gpu_store_load(
	void *self, const float *weights, float *const state[PARAM_DEVICE_VECTORS])
{
	struct gpu_store *g = self;

	end_if_failed("load", g->module->load(g->self, weights, state));
}

/* Pins the shared buffer `to` at its first use. A buffer that no update has used takes no
 * memory. */
static void pin_buffer(struct gpu_store *g, const float *to)
{
	const char *at = (const char *)to;

	if (!g->base || at < g->base || at >= g->base + g->n * g->pitch)
		return;
	size_t i = (size_t)(at - g->base) / g->pitch;
	if (!g->is_pinned[i])
		g->module->pin(g->self, g->base + i * g->pitch, g->pitch);
	g->is_pinned[i] = 1;
}

static void gpu_store_begin(void *self, float *to)
{
	struct gpu_store *g = self;

	pin_buffer(g, to);
	end_if_failed("update", g->module->begin(g->self, to));
}

static void gpu_store_step(void *self, const struct device_step *s)
{
	struct gpu_store *g = self;

	end_if_failed("update", g->module->step(g->self, s));
}

static void gpu_store_wait(void *self, size_t n)
{
	struct gpu_store *g = self;

	end_if_failed("copy", g->module->wait(g->self, n));
}

static void gpu_store_fetch(void *self, float *const state[PARAM_DEVICE_VECTORS])
{
	struct gpu_store *g = self;

	end_if_failed("checkpoint", g->module->fetch(g->self, state));
}

const struct param_device *gpu_store_device(const struct gpu_store *g)
{
	return &g->device;
}

/* ---- the module ------------------------------------------------------------------------------ */

/* Finds the module beside the program, or below a directory for libraries beside the program's
 * directory. */
static int find_module(char path[PATH_BYTES], struct err *e)
{
	static const char *const places[] = {"", "../lib/cnn-ps/",
		"../lib/x86_64-linux-gnu/cnn-ps/", "../lib/aarch64-linux-gnu/cnn-ps/"};
	char program[4096] = "";
	ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);

	if (n <= 0)
		return err_set(e, PS_EUSAGE, "--store: /proc does not name the program's file");
	const char *dir = dirname(program);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(path, PATH_BYTES, "%s/%s" GPU_STORE_FILE, dir, places[i]);
		if (access(path, F_OK) == 0)
			return PS_OK;
	}
	return err_set(e, PS_EUSAGE,
		"--store: " GPU_STORE_FILE " is neither in %.200s nor in ../lib/cnn-ps: this build "
		"has no CUDA (docs/store.md)",
		dir);
}

static int load_module(struct gpu_store *g, struct err *e)
{
	char path[PATH_BYTES];
	store_module_fn *entry;
	int rc = find_module(path, e);

	if (rc)
		return rc;
	g->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!g->library)
		return err_set(e, PS_EUSAGE, "--store: %.400s", dlerror());
	void *symbol = dlsym(g->library, STORE_MODULE_SYMBOL);
	_Static_assert(sizeof(entry) == sizeof(symbol), "POSIX: a symbol may be a function");
	memcpy(&entry, &symbol, sizeof(entry));
	g->module = symbol ? entry() : NULL;
	if (!g->module || g->module->abi != STORE_MODULE_ABI) {
		g->module = NULL; /* gpu_store_open calls no function of such a module */
		return err_set(
			e, PS_EUSAGE, "--store: %.200s belongs to another version of cnn-ps", path);
	}
	return PS_OK;
}

int gpu_store_open(struct gpu_store **out, int number, struct err *e)
{
	struct gpu_store *g = mem_try(1, sizeof(*g));
	char name[STORE_MODULE_NAME] = "";

	*out = g;
	if (!g)
		return err_set(e, PS_ENOMEM, "no memory for --store");
	int rc = load_module(g, e);
	const char *why = g->module ? g->module->open(&g->self, number, name) : NULL;
	if (why)
		rc = err_set(e, PS_EUSAGE, "--store: cuda:%d: %.300s", number, why);
	if (rc) {
		gpu_store_close(out);
		return rc;
	}
	g->device = (struct param_device){.self = g,
		.load = gpu_store_load,
		.step = gpu_store_step,
		.begin = gpu_store_begin,
		.wait = gpu_store_wait,
		.fetch = gpu_store_fetch};
	open_module = g->module;
	log_info("store", "open", "device=cuda:%d name=\"%s\"", number, name);
	return PS_OK;
}

void *gpu_store_allocate_host(size_t bytes)
{
	return open_module->allocate_host(bytes);
}

void gpu_store_release_host(void *memory)
{
	open_module->release_host(memory);
}

int gpu_store_allocate(struct gpu_store *g, size_t n, size_t vectors, struct err *e)
{
	const char *why = g->module->allocate(g->self, n, vectors);

	return why ? err_set(e, PS_ENOMEM,
			     "--store: the GPU has no memory for %zu vectors of %zu values: %.200s",
			     vectors + 2, n, why)
		   : PS_OK;
}

void gpu_store_share(struct gpu_store *g, void *base, size_t pitch, size_t n)
{
	gpu_store_forget(g);
	g->is_pinned = mem_try(n, 1);
	if (!g->is_pinned)
		return;
	g->base = base;
	g->pitch = pitch;
	g->n = n;
}

void gpu_store_forget(struct gpu_store *g)
{
	if (!g || !g->base)
		return;
	for (size_t i = 0; i < g->n; i++)
		if (g->is_pinned[i])
			g->module->unpin(g->self, g->base + i * g->pitch);
	free(g->is_pinned);
	g->base = NULL;
	g->is_pinned = NULL;
}

void gpu_store_close(struct gpu_store **out)
{
	struct gpu_store *g = *out;

	if (!g)
		return;
	gpu_store_forget(g);
	if (g->module && g->self)
		g->module->close(g->self);
	if (g->library)
		(void)dlclose(g->library);
	free(g);
	*out = NULL;
}
