/* gpu_store.c - see gpu_store.h. */
#include "server/device/gpu_store.h"
#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/assert.h"
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
	unsigned char *is_pinned; /* array of `n` flags: 1 if the buffer is pinned */
	/* for each private copy, the number of values that count in its sum of squares */
	uint64_t squared[STORE_COPIES];
	int has_weights; /* 1: the GPU has the current weights */
	int cannot_keep; /* 1: the GPU has no memory for gpu_store_keep */
	int is_hashed;   /* 1: xxh3 is the checksum of the current weights */
	uint64_t xxh3;
	uint64_t updates; /* number of updates of the weights since the start */
	/* the copies of weights. `hashes` is 1: the module computes the checksum of the copy; 0:
	 * `xxh3` is the checksum */
	struct given {
		int hashes;
		uint64_t updates, xxh3;
	} given[STORE_GIVES];
};

/* the module of the open store; a pool calls its functions without an argument */
static const struct store_module *open_module;

/* ---- the device of the core ------------------------------------------------------------------ */

/* If `why` is not NULL, logs this error and ends the process. */
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
	g->has_weights = 1;
	g->is_hashed = 0;
	g->updates++;
}

/* Pins the shared buffer `to` at its first use, and not earlier: a buffer takes no memory before
 * its first use, and pinning it would make the system provide the memory. */
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
	g->is_hashed = 0;
	g->updates++;
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

static void gpu_store_weights(void *self, float *to)
{
	struct gpu_store *g = self;

	end_if_failed("copy of weights", g->module->weights(g->self, to));
}

static int gpu_store_keep(void *self)
{
	struct gpu_store *g = self;
	int keeps = 0;

	if (g->cannot_keep)
		return 0;
	end_if_failed("checkpoint", g->module->keep(g->self, &keeps));
	if (!keeps)
		log_warn("store", "no_second_copy",
			"reason=\"the GPU has no memory for a second copy of the weights and of "
			"the optimizer's state: updates wait while a checkpoint copies them\"");
	g->cannot_keep = !keeps;
	return keeps;
}

static void gpu_store_kept(void *self, void *weights, void *const state[PARAM_DEVICE_VECTORS])
{
	struct gpu_store *g = self;

	end_if_failed("checkpoint", g->module->kept(g->self, weights, state));
}

static const float *gpu_store_readable(void *self, const float *values, size_t n)
{
	struct gpu_store *g = self;

	end_if_failed("copy of a gradient", g->module->readable(g->self, &values, n));
	return values;
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
		g->module = NULL; /* so that gpu_store_open calls no function of this module */
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
		.fetch = gpu_store_fetch,
		.weights = gpu_store_weights,
		.keep = gpu_store_keep,
		.kept = gpu_store_kept,
		.readable = gpu_store_readable};
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

	g->has_weights = 0;
	g->cannot_keep = 0;
	g->device.defers = 0;
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

/* ---- memory of other processes --------------------------------------------------------------- */

int gpu_store_import(
	struct gpu_store *g, int fd, size_t bytes, char **memory, int *is_own, struct err *e)
{
	void *at = NULL;
	const char *why = g->module->import(g->self, fd, bytes, &at, is_own);

	*memory = at;
	return why ? err_set(e, PS_EDEVICE, "%.150s", why) : PS_OK;
}

void gpu_store_drop(struct gpu_store *g, char *memory, size_t bytes)
{
	g->module->drop(g->self, memory, bytes);
}

_Static_assert(GPU_STORE_COPIES == STORE_COPIES && GPU_STORE_GIVES == STORE_GIVES,
	"the module has these copies");

void gpu_store_take(struct gpu_store *g, size_t at, const char *from, size_t n, size_t trained)
{
	PS_ASSERT(at < STORE_COPIES);
	g->squared[at] = trained < n ? trained : n;
	end_if_failed("copy of a gradient", g->module->take(g->self, at, from, n, trained));
}

void gpu_store_taken(struct gpu_store *g, size_t at, const float **copy, struct chunk *chunk)
{
	struct store_pass p;

	PS_ASSERT(at < STORE_COPIES);
	end_if_failed("copy of a gradient", g->module->taken(g->self, at, copy, &p));
	*chunk = (struct chunk){
		.xxh3 = p.xxh3, .peak = p.peak, .squared = g->squared[at], .squares = p.squares};
}

int gpu_store_give(struct gpu_store *g, size_t at, char *to)
{
	const int hashes = !g->is_hashed;

	PS_ASSERT(at < STORE_GIVES);
	if (!g->has_weights)
		return 0;
	g->given[at] = (struct given){.hashes = hashes, .updates = g->updates, .xxh3 = g->xxh3};
	end_if_failed("copy of weights", g->module->give(g->self, at, to, hashes));
	return 1;
}

int gpu_store_given(struct gpu_store *g, size_t at, int waits, uint64_t *xxh3)
{
	const struct given *given = &g->given[at];
	struct store_pass p;
	int done;

	PS_ASSERT(at < STORE_GIVES);
	end_if_failed("copy of weights", g->module->given(g->self, at, waits, &done, &p));
	if (!done)
		return 0;
	*xxh3 = given->hashes ? p.xxh3 : given->xxh3;
	if (given->updates == g->updates) {
		g->is_hashed = 1;
		g->xxh3 = *xxh3;
	}
	return 1;
}

void gpu_store_defer(struct gpu_store *g, int defers)
{
	g->device.defers = defers;
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
