/* choose.c - see choose.h. */
#include "kernels/cuda/choose.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "common/assert.h"
#include "common/log.h"
#include "kernels/cuda/base/kernels.h"

#define MAX_GPUS    64  /* the bits of gpus.tried */
#define LOCK_TRIES  600 /* maximum number of tries to find a GPU that no other process has locked */
#define LOCK_MS     50  /* pause between two tries, in ms */
#define UUID_DIGITS 36  /* length of a text xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */

/* ---- NVML: the memory in use on a GPU, without a context on it ------------------------------- */

struct nvml_memory {
	unsigned long long total, free, used;
};

struct nvml {
	void *library;
	int (*init)(void);
	int (*shutdown)(void);
	int (*by_uuid)(const char *uuid, void **device);
	int (*memory)(void *device, struct nvml_memory *memory);
};

static void *nvml_symbol(void *library, const char *name)
{
	return library ? dlsym(library, name) : NULL;
}

/* Loads NVML, which reports the memory in use on each GPU. Without NVML, the memory in use counts
 * as 0 on every GPU. */
static void nvml_open(struct nvml *n)
{
	*n = (struct nvml){.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
	*(void **)&n->init = nvml_symbol(n->library, "nvmlInit_v2");
	*(void **)&n->shutdown = nvml_symbol(n->library, "nvmlShutdown");
	*(void **)&n->by_uuid = nvml_symbol(n->library, "nvmlDeviceGetHandleByUUID");
	*(void **)&n->memory = nvml_symbol(n->library, "nvmlDeviceGetMemoryInfo");
	if (!n->init || !n->shutdown || !n->by_uuid || !n->memory || n->init())
		n->memory = NULL;
}

static void nvml_close(struct nvml *n)
{
	if (n->memory)
		n->shutdown();
	if (n->library)
		dlclose(n->library);
}

static unsigned long long nvml_used(const struct nvml *n, const char *uuid)
{
	static const char *const kinds[] = {"GPU", "MIG"};
	struct nvml_memory memory;
	char name[sizeof("GPU-") + UUID_DIGITS];
	void *device;

	for (size_t i = 0; n->memory && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		snprintf(name, sizeof(name), "%s-%s", kinds[i], uuid);
		if (!n->by_uuid(name, &device) && !n->memory(device, &memory))
			return memory.used;
	}
	return 0;
}

/* ---- one GPU --------------------------------------------------------------------------------- */

struct gpu {
	int number, lock;
	unsigned long long used; /* bytes of memory in use */
};

static void uuid_text(const struct cudaDeviceProp *p, char text[UUID_DIGITS + 1])
{
	const unsigned char *u = (const unsigned char *)p->uuid.bytes;

	snprintf(text, UUID_DIGITS + 1,
		"%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
		u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
		u[15]);
}

static void unlock_gpu(int lock)
{
	if (lock >= 0)
		close(lock);
}

/* Locks the GPU with this UUID. If `uuid` is "choice", takes the lock of a process that chooses a
 * GPU instead. Returns 0 if another process holds the lock. If the system cannot create the lock,
 * returns 1 with *lock = -1. */
static int lock_gpu(const char *uuid, int *lock)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	const size_t path = offsetof(struct sockaddr_un, sun_path);
	int error, n;

	n = snprintf(a.sun_path + 1, sizeof(a.sun_path) - 1, "cnn-worker GPU %s", uuid);
	*lock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (*lock < 0 ||
		bind(*lock, (const struct sockaddr *)&a, (socklen_t)(path + 1 + (size_t)n)) == 0)
		return 1;
	error = errno;
	close(*lock);
	*lock = -1;
	return error != EADDRINUSE;
}

/* Makes the GPU the current one. */
static int start_gpu(int number, struct err *e)
{
	struct cudaDeviceProp p;
	cudaError_t rc = cudaGetDeviceProperties(&p, number);

	if (!rc)
		rc = cudaSetDevice(number);
	if (rc) {
		cudaGetLastError();
		return err_set(e, PS_EDEVICE, "device cuda:%d: the GPU does not start: %s", number,
			cudaGetErrorString(rc));
	}
	if (!kx_runs_here())
		return err_set(e, PS_EDEVICE,
			"device cuda:%d: this program has no code for %s of compute capability "
			"%d.%d; it needs 8.0 or higher",
			number, p.name, p.major, p.minor);
	return PS_OK;
}

/* ---- choice ---------------------------------------------------------------------------------- */

/* The GPUs that a device name allows. */
struct gpus {
	int n;          /* number of visible GPUs, at most MAX_GPUS */
	int only;       /* number of the only GPU that is allowed; -1: all are */
	uint64_t tried; /* bit i: GPU number i has been tried */
};

static int by_use(const void *a, const void *b)
{
	const struct gpu *x = a, *y = b;

	if (x->used != y->used)
		return x->used < y->used ? -1 : 1;
	return x->number - y->number;
}

/* Lists all GPUs that have not been tried, and sorts them by the memory in use. A GPU whose
 * properties cannot be read is the last one. If `locks` is 1, locks the GPUs, and leaves out those
 * that another process has locked. Returns the number of GPUs in the list. */
static int list_gpus(struct gpu *gpu, const struct gpus *all, int locks)
{
	struct cudaDeviceProp p;
	struct nvml nvml;
	int n_free = 0;

	nvml_open(&nvml);
	for (int i = 0; i < all->n; i++) {
		char uuid[UUID_DIGITS + 1];
		struct gpu *g = &gpu[n_free];

		if (all->tried >> i & 1)
			continue;
		*g = (struct gpu){.number = i, .lock = -1, .used = ULLONG_MAX};
		if (!cudaGetDeviceProperties(&p, i)) {
			uuid_text(&p, uuid);
			if (locks && !lock_gpu(uuid, &g->lock))
				continue;
			g->used = nvml_used(&nvml, uuid);
		}
		n_free++;
	}
	nvml_close(&nvml);
	cudaGetLastError();
	qsort(gpu, (size_t)n_free, sizeof(*gpu), by_use);
	return n_free;
}

/* Returns the least used GPU of those that have not been tried; at least one must be left.
 *
 * Only one process at a time chooses. A second process would leave out the GPUs that the first
 * process examines, and could take a GPU in use although another one is free. Any local user can
 * hold the locks, so the process waits for them for a limited time, and then chooses without
 * them. */
static struct gpu least_used(const struct gpus *all)
{
	struct gpu gpu[MAX_GPUS];
	int n_free = 0, choice_lock = -1;

	for (int i = 0; i < LOCK_TRIES && !n_free; i++) {
		if (i)
			nanosleep(&(struct timespec){.tv_nsec = LOCK_MS * 1000000L}, NULL);
		if (!lock_gpu("choice", &choice_lock))
			continue;
		n_free = list_gpus(gpu, all, 1);
		if (!n_free)
			unlock_gpu(choice_lock);
	}
	if (!n_free) {
		log_warn("cuda", "gpus_locked",
			"waited_ms=%d reason=\"other processes keep the locks of the GPUs\" "
			"choice=\"the least memory in use\"",
			LOCK_TRIES * LOCK_MS);
		choice_lock = -1;
		n_free = list_gpus(gpu, all, 0);
	}
	PS_ASSERT(n_free > 0);
	for (int i = 1; i < n_free; i++)
		unlock_gpu(gpu[i].lock);
	unlock_gpu(choice_lock);
	return gpu[0];
}

/* Returns the value of `text` if it is a number without a sign, or -1 for any other text. */
static int gpu_number(const char *text)
{
	char *end;
	long n = strtol(text, &end, 10);

	return text[0] < '0' || text[0] > '9' || *end || n > INT_MAX ? -1 : (int)n;
}

static int find_gpus(struct gpus *all, const char *device, struct err *e)
{
	const char *colon = strchr(device, ':'), *local = getenv("SLURM_LOCALID");
	int n = 0, number = colon ? gpu_number(colon + 1) : local ? gpu_number(local) : -1;
	cudaError_t rc;

	if (colon && number < 0)
		return err_set(
			e, PS_EUSAGE, "device \"%s\": expected cuda or cuda:N, N from 0", device);
	if ((rc = cudaGetDeviceCount(&n))) {
		cudaGetLastError();
		return err_set(e, PS_EDEVICE, "no GPU answers: %s", cudaGetErrorString(rc));
	}
	if (!n)
		return err_set(e, PS_EDEVICE, "there is no GPU");
	if (colon && number >= n)
		return err_set(e, PS_EUSAGE, "device \"%s\": this machine has %d GPU%s", device, n,
			n == 1 ? "" : "s");
	*all = (struct gpus){.n = n < MAX_GPUS ? n : MAX_GPUS, .only = n == 1 ? 0 : -1};
	if (number >= 0)
		all->only = number % n;
	return PS_OK;
}

static int try_gpu(const struct gpu *gpu, gpu_opener *open, void *arg, struct err *e)
{
	int rc = start_gpu(gpu->number, e);

	if (!rc)
		rc = open(arg, gpu->number, e);
	if (rc)
		cudaGetLastError(); /* the check of the next launch would report the error again */
	return rc;
}

/* Returns 1 if `rc` is a reason to try another GPU, and one is left. */
static int skip_gpu(struct gpus *all, int number, int rc, struct err *e)
{
	if (all->only >= 0 || (rc != PS_ENOMEM && rc != PS_EDEVICE))
		return 0;
	log_warn("cuda", "gpu_skipped", "gpu=cuda:%d reason=\"%s\"", number, e->text);
	all->tried |= (uint64_t)1 << number;
	if (__builtin_popcountll(all->tried) == all->n)
		return 0;
	e->text[0] = '\0';
	return 1;
}

int gpu_open_usable(const char *device, gpu_opener *open, void *arg, struct err *e)
{
	struct gpus all = {0};
	struct gpu gpu;
	int rc = find_gpus(&all, device, e);

	if (rc)
		return rc;
	do {
		gpu = all.only < 0 ? least_used(&all)
				   : (struct gpu){.number = all.only, .lock = -1};
		rc = try_gpu(&gpu, open, arg, e);
		unlock_gpu(gpu.lock);
	} while (skip_gpu(&all, gpu.number, rc, e));
	return rc;
}
