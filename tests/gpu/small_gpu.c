/*
 * small_gpu.c - makes the GPU look like one with less shared memory, such as an RTX 4090 (99 KB per
 * block). CNN_TEST_SHARED is the limit in bytes. The linker (--wrap) redirects calls of the CUDA
 * runtime in the programs of tests/gpu to these functions.
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

/* Returns CNN_TEST_SHARED in bytes, or `otherwise` if this variable is not set. */
static int limit(int otherwise)
{
	const char *text = getenv("CNN_TEST_SHARED");

	return text ? (int)strtol(text, NULL, 10) : otherwise;
}

cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
	cudaError_t rc = __real_cudaDeviceGetAttribute(value, attribute, device);

	if (!rc && attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin)
		*value = limit(*value);
	return rc;
}

cudaError_t __wrap_cudaFuncSetAttribute(
	const void *kernel, enum cudaFuncAttribute attribute, int value)
{
	if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > limit(value))
		return cudaErrorInvalidValue;
	return __real_cudaFuncSetAttribute(kernel, attribute, value);
}
#endif
