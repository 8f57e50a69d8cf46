/*
 * small_gpu.c - makes the GPU look like one with less shared memory, such as an RTX 4090 (99 KB per
 * block), with another number of multiprocessors, or without free memory. The variable
 * CNN_TEST_SHARED gives the shared memory per block in bytes, and CNN_TEST_MULTIPROCESSORS gives
 * the number of multiprocessors. The GPUs whose number is less than CNN_TEST_FULL have no free
 * memory. The linker (--wrap) redirects calls of the CUDA runtime in the programs of tests/gpu to
 * these functions.
 */
#include <stdlib.h>
#ifdef KX_CUDA
#include <cuda_runtime_api.h>

cudaError_t __real_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t __real_cudaFuncSetAttribute(
	const void *kernel, enum cudaFuncAttribute attribute, int value);
cudaError_t __wrap_cudaFuncSetAttribute(
	const void *kernel, enum cudaFuncAttribute attribute, int value);
cudaError_t __real_cudaMalloc(void **memory, size_t bytes);
cudaError_t __wrap_cudaMalloc(void **memory, size_t bytes);

/* Returns the number in the variable `name`, or `otherwise` if this variable is not set. */
static int number_in(const char *name, int otherwise)
{
	const char *text = getenv(name);

	return text ? (int)strtol(text, NULL, 10) : otherwise;
}

static int limit(int otherwise)
{
	return number_in("CNN_TEST_SHARED", otherwise);
}

cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
	cudaError_t rc = __real_cudaDeviceGetAttribute(value, attribute, device);

	if (!rc && attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin)
		*value = limit(*value);
	if (!rc && attribute == cudaDevAttrMultiProcessorCount)
		*value = number_in("CNN_TEST_MULTIPROCESSORS", *value);
	return rc;
}

cudaError_t __wrap_cudaFuncSetAttribute(
	const void *kernel, enum cudaFuncAttribute attribute, int value)
{
	if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > limit(value))
		return cudaErrorInvalidValue;
	return __real_cudaFuncSetAttribute(kernel, attribute, value);
}

cudaError_t __wrap_cudaMalloc(void **memory, size_t bytes)
{
	int gpu = 0;
	cudaError_t rc = cudaGetDevice(&gpu);

	if (rc)
		return rc;
	return gpu < number_in("CNN_TEST_FULL", 0) ? cudaErrorMemoryAllocation
						   : __real_cudaMalloc(memory, bytes);
}
#endif
