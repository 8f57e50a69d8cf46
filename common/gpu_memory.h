/*
 * gpu_memory.h - memory of an NVIDIA GPU that two processes of one host use together.
 *
 * The process that has made the memory sends a descriptor of the memory over a Unix socket. The
 * other process maps the memory for its own GPU. Unlike a handle of cudaIpcGetMemHandle, the
 * descriptor needs no common namespace, and gives access to no other memory. The driver frees the
 * memory when the last process has unmapped it. Therefore a copy from or to the memory does not
 * fail if the process that made the memory unmaps it or dies.
 *
 * The functions return CUDA_SUCCESS, or an error that leaves the caller's context intact. They
 * find the functions of the driver at run time, so a program links only CUDA's runtime.
 *
 * Any thread may call these functions. Call gpu_memory_load once, before all other functions.
 */
#ifndef COMMON_GPU_MEMORY_H
#define COMMON_GPU_MEMORY_H
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <string.h>

/* The functions of CUDA's driver that this header calls. */
struct gpu_memory_driver {
	CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
		unsigned long long);
	CUresult (*release)(CUmemGenericAllocationHandle);
	CUresult (*granularity)(
		size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags);
	CUresult (*send)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
		unsigned long long);
	CUresult (*receive)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
	CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
	CUresult (*forget)(CUdeviceptr, size_t);
	CUresult (*map)(
		CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
	CUresult (*unmap)(CUdeviceptr, size_t);
	CUresult (*permit)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
};

/* Sets *d to the functions of the driver. Returns 0 if the driver lacks one of them. */
static inline int gpu_memory_load(struct gpu_memory_driver *d)
{
	const struct {
		const char *name;
		void *to;
	} row[] = {{"cuMemCreate", &d->create}, {"cuMemRelease", &d->release},
		{"cuMemGetAllocationGranularity", &d->granularity},
		{"cuMemExportToShareableHandle", &d->send},
		{"cuMemImportFromShareableHandle", &d->receive},
		{"cuMemAddressReserve", &d->reserve}, {"cuMemAddressFree", &d->forget},
		{"cuMemMap", &d->map}, {"cuMemUnmap", &d->unmap}, {"cuMemSetAccess", &d->permit}};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		enum cudaDriverEntryPointQueryResult found;
		void *function = NULL;

		if (cudaGetDriverEntryPointByVersion(row[i].name, &function, 12000,
			    cudaEnableDefault, &found) != cudaSuccess ||
			!function) {
			(void)cudaGetLastError();
			return 0;
		}
		memcpy(row[i].to, &function, sizeof(function));
	}
	return 1;
}

static inline CUmemAllocationProp gpu_memory_prop(int gpu)
{
	CUmemAllocationProp p;

	memset(&p, 0, sizeof(p));
	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.location.id = gpu;
	return p;
}

/* Returns `number` as a pointer. The driver's functions take device addresses as numbers and
 * descriptors as pointers. */
static inline void *gpu_memory_pointer(uint64_t number)
{
	void *pointer;

	memcpy(&pointer, &number, sizeof(pointer));
	return pointer;
}

/* Maps the memory for GPU `gpu`. The mapping keeps the memory, so the caller may release `handle`
 * in any case. */
static inline CUresult gpu_memory_map(const struct gpu_memory_driver *d,
	CUmemGenericAllocationHandle handle, int gpu, size_t bytes, void **memory)
{
	CUmemAccessDesc access;
	CUdeviceptr at = 0;
	CUresult rc = d->reserve(&at, bytes, 0, 0, 0);

	memset(&access, 0, sizeof(access));
	access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.location.id = gpu;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	*memory = NULL;
	if (rc != CUDA_SUCCESS)
		return rc;
	rc = d->map(at, bytes, 0, handle, 0);
	if (rc == CUDA_SUCCESS) {
		rc = d->permit(at, bytes, &access, 1);
		if (rc != CUDA_SUCCESS)
			(void)d->unmap(at, bytes);
	}
	if (rc != CUDA_SUCCESS)
		(void)d->forget(at, bytes);
	else
		*memory = gpu_memory_pointer(at);
	return rc;
}

static inline void gpu_memory_unmap(const struct gpu_memory_driver *d, void *memory, size_t bytes)
{
	(void)d->unmap((CUdeviceptr)(uintptr_t)memory, bytes);
	(void)d->forget((CUdeviceptr)(uintptr_t)memory, bytes);
}

/* Makes memory of at least *bytes bytes on GPU `gpu`, and maps it. Sets *bytes to the size of the
 * memory, and *fd to its descriptor, which the caller closes. */
static inline CUresult gpu_memory_make(
	const struct gpu_memory_driver *d, int gpu, size_t *bytes, void **memory, int *fd)
{
	const CUmemAllocationProp prop = gpu_memory_prop(gpu);
	CUmemGenericAllocationHandle handle;
	size_t grain = 0;
	CUresult rc = d->granularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

	*memory = NULL;
	*fd = -1;
	if (rc != CUDA_SUCCESS)
		return rc;
	*bytes = (*bytes + grain - 1) / grain * grain;
	rc = d->create(&handle, *bytes, &prop, 0);
	if (rc != CUDA_SUCCESS)
		return rc;
	rc = gpu_memory_map(d, handle, gpu, *bytes, memory);
	if (rc == CUDA_SUCCESS) {
		rc = d->send(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
		if (rc != CUDA_SUCCESS) {
			gpu_memory_unmap(d, *memory, *bytes);
			*memory = NULL;
			*fd = -1;
		}
	}
	(void)d->release(handle);
	return rc;
}

/* Maps memory of another process, `bytes` long, for GPU `gpu`. */
static inline CUresult gpu_memory_take(
	const struct gpu_memory_driver *d, int fd, int gpu, size_t bytes, void **memory)
{
	const CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	CUmemGenericAllocationHandle handle;
	CUresult rc = d->receive(&handle, gpu_memory_pointer((uint64_t)fd), type);

	*memory = NULL;
	if (rc != CUDA_SUCCESS)
		return rc;
	rc = gpu_memory_map(d, handle, gpu, bytes, memory);
	(void)d->release(handle);
	return rc;
}

#endif
