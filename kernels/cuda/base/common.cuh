/*
 * common.cuh - kernel launches, asynchronous copies and helpers. Every .cu file of kernels/cuda/
 * includes this header.
 */
#ifndef KERNELS_CUDA_BASE_COMMON_CUH
#define KERNELS_CUDA_BASE_COMMON_CUH
#include "kernels/cuda/base/kernels.h"

/* Returns the status of the preceding launch. A build with KX_SYNC=1 waits for the kernel, so that
 * an error is reported for its own launch. */
#ifdef KX_SYNC
#define KX_LAUNCHED() (cudaDeviceSynchronize() == cudaSuccess ? PS_OK : PS_EDEVICE)
#else
#define KX_LAUNCHED() (cudaGetLastError() == cudaSuccess ? PS_OK : PS_EDEVICE)
#endif

/* Returns the compute capability that the code of a kernel for the current device was compiled for:
 * 80 on an A100 and for code from PTX, 90 on Hopper. Returns 0 if there is no such code. */
template <class... P> static int kx_code(void (*kernel)(P...))
{
	struct cudaFuncAttributes a;

	if (cudaFuncGetAttributes(&a, reinterpret_cast<const void *>(kernel)) == cudaSuccess)
		return a.ptxVersion;
	cudaGetLastError();
	return 0;
}

/* Returns the maximum bytes of shared memory of a block on the current device; 0 after an error. */
static inline size_t kx_shared_limit(void)
{
	int device, bytes;

	if (cudaGetDevice(&device) ||
		cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device))
		return 0;
	return (size_t)bytes;
}

/* Rules that divide sums among blocks, or choose among tiles that add up in different orders, count
 * the multiprocessors of an H200 on every GPU. So the bits of a result depend only on the sizes of
 * the network and of the batch (docs/gpu.md). */
#define SUM_MULTIPROCESSORS 132

/* Returns the number of multiprocessors of the current device, for rules that do not change the
 * order of a sum. Returns SUM_MULTIPROCESSORS if a CUDA call fails. */
static inline size_t kx_multiprocessors(void)
{
	int device, n;

	if (cudaGetDevice(&device) ||
		cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device))
		return SUM_MULTIPROCESSORS;
	return (size_t)n;
}

/*
 * Launches a kernel, on Hopper and later with programmatic dependent launch: the kernel may start
 * while its predecessor in the stream still runs. Before await_previous the kernel must not write,
 * and it may read only data that the predecessor does not write. Kernels before the predecessor are
 * complete when this kernel starts, because the predecessor has waited for them in its own
 * await_previous before it allowed this kernel to start. After await_previous all results of the
 * predecessor are visible.
 */
template <class... P, class... A>
static int kx_launch_clusters(void (*kernel)(P...), dim3 grid, unsigned cluster, unsigned threads,
	size_t shared, cudaStream_t stream, A... args)
{
	cudaLaunchAttribute attribute[2] = {};

	attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute[0].val.programmaticStreamSerializationAllowed = 1;
	attribute[1].id = cudaLaunchAttributeClusterDimension;
	attribute[1].val.clusterDim = {cluster, 1, 1};
	cudaLaunchConfig_t config = {};
	config.gridDim = grid;
	config.blockDim = dim3(threads);
	config.dynamicSmemBytes = shared;
	config.stream = stream;
	config.attrs = attribute;
	config.numAttrs = kx_code(kernel) < 90 ? 0 : cluster > 1 ? 2 : 1;
	if (cudaLaunchKernelEx(&config, kernel, P(args)...))
		return PS_EDEVICE;
	return KX_LAUNCHED();
}

template <class... P, class... A>
static int kx_launch(void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared,
	cudaStream_t stream, A... args)
{
	return kx_launch_clusters(kernel, grid, 1, threads, shared, stream, args...);
}

/* Does the same as kx_launch unless `joins` is set. `joins` means that the stream also waits for
 * kernels of another stream. A dependent launch would wait only for the predecessor in its own
 * stream. The kernel therefore has an ordinary launch, and starts when those kernels and all
 * earlier kernels of its own stream are complete. */
template <class... P, class... A>
static int kx_launch_joined(void (*kernel)(P...), int joins, dim3 grid, unsigned threads,
	size_t shared, cudaStream_t stream, A... args)
{
	cudaLaunchConfig_t config = {};

	if (!joins)
		return kx_launch(kernel, grid, threads, shared, stream, args...);
	config.gridDim = grid;
	config.blockDim = dim3(threads);
	config.dynamicSmemBytes = shared;
	config.stream = stream;
	if (cudaLaunchKernelEx(&config, kernel, P(args)...))
		return PS_EDEVICE;
	return KX_LAUNCHED();
}

static inline unsigned blocks_for(size_t n, unsigned threads)
{
	size_t blocks = (n + threads - 1) / threads;
	/* more blocks are not needed, because the kernels loop over the values (FOR_EACH) */
	size_t max_blocks = 64 * kx_multiprocessors();

	return (unsigned)(blocks < max_blocks ? blocks : max_blocks);
}

#define FOR_EACH(i, n)                                                                             \
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < (n);                    \
		i += (size_t)gridDim.x * blockDim.x)

#ifdef __CUDACC__
/* Waits until all earlier kernels in the stream are complete, then allows the next kernel to start.
 * On a GPU before Hopper this function does nothing, because a kernel starts only when the earlier
 * kernels are complete. */
__device__ static inline void await_previous()
{
#if __CUDA_ARCH__ >= 900
	cudaGridDependencySynchronize();
	cudaTriggerProgrammaticLaunchCompletion();
#endif
}

__device__ static inline uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* Copies 16 bytes to shared memory asynchronously. If `valid` is false, writes zeros instead. */
__device__ static inline void copy_async(void *to, const void *from, bool valid)
{
	uint32_t at = shared_address(to);
	int bytes = valid ? 16 : 0;

	asm volatile(
		"cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
		: "memory");
}

__device__ static inline void copies_commit()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> __device__ static inline void copies_wait()
{
	asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ static inline float4 operator+(float4 a, float4 b)
{
	return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

/* Returns sum + value(first) + value(first + every) + ... for arguments below `n`, in this order.
 * BATCH loads are in flight at a time, also at the end. An unrolled loop would issue the last loads
 * one after the other. */
template <int BATCH, class T, class F>
__device__ static inline T sum_fetched(T sum, int first, int n, int every, F value)
{
	for (int i = first; i < n; i += BATCH * every) {
		T v[BATCH];
#pragma unroll
		for (int j = 0; j < BATCH; j++)
			v[j] = i + j * every < n ? value(i + j * every) : T{};
#pragma unroll
		for (int j = 0; j < BATCH; j++)
			sum = sum + v[j];
	}
	return sum;
}

__device__ static inline size_t image_number(const struct kx_batch *b, int n)
{
	return b->index ? b->index[(size_t)b->now->step * b->images + n] : b->now->first + n;
}
#endif

#endif
