/* fake_gpus.c - see fake_gpus.h. */
#include "tests/gpu/fake_gpus.h"
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#ifdef KX_CUDA
#include <cuda_runtime_api.h>

struct fake_gpu fake_gpu[FAKE_GPUS];
int fake_n_gpus, fake_current_gpu;

struct nvml_memory {
	unsigned long long total, free, used;
};

cudaError_t __wrap_cudaGetDeviceCount(int *n);
cudaError_t __wrap_cudaGetDeviceProperties(struct cudaDeviceProp *p, int number);
cudaError_t __wrap_cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int number);
cudaError_t __wrap_cudaSetDevice(int number);
int __wrap_kx_runs_here(void);
void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
void *__real_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name);
int __real_dlclose(void *library);
int __wrap_dlclose(void *library);

/* ---- the CUDA runtime ------------------------------------------------------------------------ */

cudaError_t __wrap_cudaGetDeviceCount(int *n)
{
	*n = fake_n_gpus;
	return cudaSuccess;
}

/* The UUID has the process id, so that tests of two processes have different locks. */
cudaError_t __wrap_cudaGetDeviceProperties(struct cudaDeviceProp *p, int number)
{
	const int id[] = {getpid(), number};

	*p = (struct cudaDeviceProp){.name = "fake GPU"};
	memcpy(p->uuid.bytes, id, sizeof(id));
	return fake_gpu[number].unreadable ? cudaErrorUnknown : cudaSuccess;
}

/* the name of this function in CUDA 12 */
cudaError_t __wrap_cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int number)
{
	return __wrap_cudaGetDeviceProperties(p, number);
}

cudaError_t __wrap_cudaSetDevice(int number)
{
	fake_current_gpu = number;
	return fake_gpu[number].stopped ? cudaErrorDevicesUnavailable : cudaSuccess;
}

int __wrap_kx_runs_here(void)
{
	return !fake_gpu[fake_current_gpu].unknown;
}

/* ---- NVML ------------------------------------------------------------------------------------ */

static char nvml; /* its address is the handle of the library */

static int fake_init(void)
{
	return 0;
}

/* Reads the number of the GPU from the second four bytes of its UUID "GPU-pppppppp-nnnn-nnnn-...",
 * of which only the first is not 0. */
static int fake_by_uuid(const char *uuid, void **device)
{
	const long number = strncmp(uuid, "GPU-", 4) == 0 ? strtol(uuid + 13, NULL, 16) >> 8 : -1;

	*device = number < 0 ? NULL : &fake_gpu[number];
	return number < 0;
}

static int fake_memory(const struct fake_gpu *gpu, struct nvml_memory *memory)
{
	*memory = (struct nvml_memory){.used = gpu->used};
	return 0;
}

void *__wrap_dlopen(const char *name, int flags)
{
	return name && strcmp(name, "libnvidia-ml.so.1") == 0 ? &nvml : __real_dlopen(name, flags);
}

void *__wrap_dlsym(void *library, const char *name)
{
	static const struct {
		const char *name;
		void (*function)(void);
	} symbols[] = {
		{"nvmlInit_v2", (void (*)(void))fake_init},
		{"nvmlShutdown", (void (*)(void))fake_init},
		{"nvmlDeviceGetHandleByUUID", (void (*)(void))fake_by_uuid},
		{"nvmlDeviceGetMemoryInfo", (void (*)(void))fake_memory},
	};

	if (library != &nvml)
		return __real_dlsym(library, name);
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++)
		if (strcmp(symbols[i].name, name) == 0)
			return *(void *const *)&symbols[i].function;
	return NULL;
}

int __wrap_dlclose(void *library)
{
	return library == &nvml ? 0 : __real_dlclose(library);
}

/* ---- locks ----------------------------------------------------------------------------------- */

int fake_gpu_is_locked(int number)
{
	const unsigned pid = __builtin_bswap32((unsigned)getpid());
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	const int n = snprintf(a.sun_path + 1, sizeof(a.sun_path) - 1,
		"cnn-worker GPU %08x-%02x00-0000-0000-000000000000", pid, number);
	const int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	const int rc = bind(s, (const struct sockaddr *)&a,
		(socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n));

	close(s);
	return rc != 0;
}
#endif
