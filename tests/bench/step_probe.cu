/*
 * step_probe.cu - measures whether single training steps are faster in a kernel that stays on the
 * GPU and waits for the next step, than with one launch per step. No part of cnn-ps uses this code.
 * docs/lab/through-server.md has the results and the decision that they led to.
 *
 *   step_probe [BYTES [STEP_US [SECONDS]]]
 *
 * A step reads the weights (BYTES), computes for STEP_US microseconds and writes a gradient of
 * BYTES. As at n_push 1, the host starts a step only after it has the gradient of the step before.
 * The kernel has a block for each multiprocessor, and its blocks meet twice per step, as those of
 * the seed networks do. The ways are:
 *
 *   graph     One launch of a CUDA graph per step: copy of the weights to the GPU, the kernel, copy
 *             of the gradient to the host. The worker of cnn-ps does this.
 *   stream    The kernel stays on the GPU. The copies are in a stream, which also tells the kernel
 *             to start (cuStreamWriteValue32) and waits for its end (cuStreamWaitValue32).
 *   mapped    One launch of the kernel per step, which itself reads the weights from memory of the
 *             host and writes the gradient and then a number to such memory. The host spins for
 *             this number.
 *   resident  Like `mapped`, but the kernel stays on the GPU and spins for a number that the host
 *             writes.
 *
 * So the differences between `graph` and `stream`, and between `mapped` and `resident`, are what
 * the launches cost. The program prints CSV: way, bytes, microseconds of computing per step, steps
 * per second, median and 99th percentile of a step in microseconds. All blocks of a kernel that
 * stays on the GPU leave it after they have waited for 2 s.
 */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <cuda.h>
#include <cuda_runtime.h>
#include <vector>

namespace
{

constexpr int THREADS = 512;
constexpr uint32_t LAST = UINT32_MAX;        /* tells the kernel to leave the GPU */
constexpr long long GIVE_UP_NS = 2000000000; /* a kernel waits no longer than this */

enum way { GRAPH, STREAM, MAPPED, RESIDENT, WAYS };
const char *const names[WAYS] = {"graph", "stream", "mapped", "resident"};

/* What a step works on. Pointers to the GPU's memory, or to the host's for `mapped` and
 * `resident`. */
struct step {
	const float4 *weights;
	float4 *gradient;
	volatile uint32_t *requested; /* number of the step that shall be computed */
	volatile uint32_t *finished;  /* number of the last step that has been computed */
	uint32_t *here;               /* on the GPU: number of blocks that have arrived */
	volatile uint32_t *start;     /* on the GPU: block 0's copy of *requested */
	size_t n4;
	long long step_ns;
};

void check_call(cudaError_t rc, const char *what)
{
	if (rc == cudaSuccess)
		return;
	fprintf(stderr, "step_probe: %s: %s\n", what, cudaGetErrorString(rc));
	exit(1);
}

double step_now_us()
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

__device__ long long device_ns()
{
	long long t;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	return t;
}

/* Waits until *at is at least `min`. Returns its value, or LAST after GIVE_UP_NS. */
__device__ uint32_t device_wait(volatile uint32_t *at, uint32_t min)
{
	long long begin = device_ns();
	uint32_t value;

	while ((value = *at) < min)
		if (device_ns() - begin > GIVE_UP_NS)
			return LAST;
	__threadfence_system();
	return value;
}

/* All blocks wait here for each other. `meetings` is how often they have met before. */
__device__ void meet(const struct step *s, uint32_t meetings)
{
	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence();
		atomicAdd(s->here, 1);
		device_wait(s->here, (meetings + 1) * gridDim.x);
	}
	__syncthreads();
}

/* One step, whose blocks meet twice. */
__device__ void compute_step(const struct step *s, uint32_t meetings)
{
	float4 sum = {0, 0, 0, 0};

	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < s->n4;
		i += gridDim.x * blockDim.x) {
		float4 v = __ldcv(&s->weights[i]);

		sum.x += v.x + v.y + v.z + v.w;
	}
	meet(s, meetings);
	for (long long begin = device_ns(); device_ns() - begin < s->step_ns;)
		;
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < s->n4;
		i += gridDim.x * blockDim.x)
		s->gradient[i] = sum;
	__threadfence_system();
	meet(s, meetings + 1);
}

/* Computes the one step `number`. `here` counts on from one launch to the next. */
__global__ void single_step_kernel(struct step s, uint32_t *number)
{
	uint32_t n = *(volatile uint32_t *)number;

	compute_step(&s, 2 * n);
	if (blockIdx.x == 0 && threadIdx.x == 0) {
		*number = n + 1;
		*s.finished = n + 1;
	}
}

/* Computes steps until *s.requested is LAST. */
__global__ void resident_kernel(struct step s)
{
	__shared__ uint32_t now;

	for (uint32_t n = 0;; n++) {
		if (threadIdx.x == 0) {
			if (blockIdx.x == 0)
				*s.start = device_wait(s.requested, n + 1);
			now = device_wait(s.start, n + 1);
		}
		__syncthreads();
		if (now == LAST)
			return;
		compute_step(&s, 2 * n);
		if (blockIdx.x == 0 && threadIdx.x == 0) {
			__threadfence_system();
			*s.finished = n + 1;
		}
	}
}

/* The memory and the streams of one measurement. */
struct bench {
	struct step s;
	float4 *weights, *gradient;              /* in pinned memory of the host */
	volatile uint32_t *requested, *finished; /* the same */
	uint32_t *number;                        /* on the GPU, see single_step_kernel */
	cudaStream_t copies, kernels;
	cudaGraphExec_t graph;
	int blocks;
	size_t bytes;
};

template <typename T> T *on_host(size_t n)
{
	void *at;

	check_call(cudaHostAlloc(&at, n * sizeof(T), cudaHostAllocMapped), "cudaHostAlloc");
	memset(at, 0, n * sizeof(T));
	return static_cast<T *>(at);
}

template <typename T> T *on_gpu(size_t n)
{
	void *at;

	check_call(cudaMalloc(&at, n * sizeof(T)), "cudaMalloc");
	check_call(cudaMemset(at, 0, n * sizeof(T)), "cudaMemset");
	return static_cast<T *>(at);
}

void open_bench(struct bench *b, enum way way)
{
	const bool copies = way == GRAPH || way == STREAM;
	const size_t n4 = b->bytes / sizeof(float4);

	b->weights = on_host<float4>(n4);
	b->gradient = on_host<float4>(n4);
	b->requested = on_host<uint32_t>(64);
	b->finished = on_host<uint32_t>(64);
	b->number = on_gpu<uint32_t>(1);
	b->s.n4 = n4;
	b->s.weights = copies ? on_gpu<float4>(n4) : b->weights;
	b->s.gradient = copies ? on_gpu<float4>(n4) : b->gradient;
	b->s.requested = way == STREAM ? on_gpu<uint32_t>(64) : b->requested;
	b->s.finished = copies ? on_gpu<uint32_t>(64) : b->finished;
	b->s.here = on_gpu<uint32_t>(1);
	b->s.start = on_gpu<uint32_t>(64);
	check_call(
		cudaStreamCreateWithFlags(&b->copies, cudaStreamNonBlocking), "cudaStreamCreate");
	check_call(
		cudaStreamCreateWithFlags(&b->kernels, cudaStreamNonBlocking), "cudaStreamCreate");
	check_call(cudaDeviceSynchronize(), "memory");
}

void copy_weights(const struct bench *b)
{
	check_call(cudaMemcpyAsync((void *)b->s.weights, b->weights, b->bytes,
			   cudaMemcpyHostToDevice, b->copies),
		"copy of the weights");
}

void copy_gradient(const struct bench *b)
{
	check_call(cudaMemcpyAsync(
			   b->gradient, b->s.gradient, b->bytes, cudaMemcpyDeviceToHost, b->copies),
		"copy of the gradient");
}

void launch_blocks(const struct bench *b, const void *kernel, void **arguments, cudaStream_t stream)
{
	check_call(cudaLaunchCooperativeKernel(kernel, b->blocks, THREADS, arguments, 0, stream),
		"launch");
}

void single_step(struct bench *b)
{
	void *arguments[] = {&b->s, &b->number};

	launch_blocks(b, (const void *)single_step_kernel, arguments, b->copies);
}

void capture_step(struct bench *b)
{
	cudaGraph_t graph;

	check_call(cudaStreamBeginCapture(b->copies, cudaStreamCaptureModeThreadLocal), "capture");
	copy_weights(b);
	single_step(b);
	copy_gradient(b);
	check_call(cudaStreamEndCapture(b->copies, &graph), "capture");
	check_call(cudaGraphInstantiate(&b->graph, graph, 0), "cudaGraphInstantiate");
}

void begin_bench(struct bench *b, enum way way)
{
	void *arguments[] = {&b->s};

	if (way == GRAPH)
		capture_step(b);
	if (way == STREAM || way == RESIDENT)
		launch_blocks(b, (const void *)resident_kernel, arguments, b->kernels);
}

void spin_for(volatile uint32_t *number, uint32_t min)
{
	double begin = step_now_us();

	while (*number < min)
		if (step_now_us() - begin > 4e6) {
			fprintf(stderr, "step_probe: the GPU does not answer\n");
			exit(1);
		}
}

using write_value = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

write_value stream_operation(const char *name)
{
	void *function = NULL;
	cudaDriverEntryPointQueryResult found;

	check_call(
		cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found),
		name);
	return (write_value)function;
}

/* Computes step n, which counts from 1. */
void one_step(struct bench *b, enum way way, uint32_t n)
{
	static const write_value write = stream_operation("cuStreamWriteValue32"),
				 wait = stream_operation("cuStreamWaitValue32");

	switch (way) {
	case GRAPH:
		check_call(cudaGraphLaunch(b->graph, b->copies), "cudaGraphLaunch");
		check_call(cudaStreamSynchronize(b->copies), "step");
		break;
	case STREAM:
		copy_weights(b);
		write(b->copies, (CUdeviceptr)b->s.requested, n, 0);
		wait(b->copies, (CUdeviceptr)b->s.finished, n, CU_STREAM_WAIT_VALUE_GEQ);
		copy_gradient(b);
		check_call(cudaStreamSynchronize(b->copies), "step");
		break;
	case MAPPED:
		single_step(b);
		spin_for(b->finished, n);
		break;
	default:
		__atomic_store_n(b->requested, n, __ATOMIC_RELEASE);
		spin_for(b->finished, n);
	}
}

void end_bench(struct bench *b, enum way way)
{
	const uint32_t last = LAST;

	if (way == STREAM)
		check_call(cudaMemcpyAsync((void *)b->s.requested, &last, sizeof(last),
				   cudaMemcpyHostToDevice, b->copies),
			"end");
	*b->requested = LAST;
	check_call(cudaDeviceSynchronize(), "end");
}

void measure_steps(struct bench *b, enum way way, double seconds)
{
	std::vector<double> us;
	uint32_t n = 0;

	open_bench(b, way);
	begin_bench(b, way);
	while (n < 100)
		one_step(b, way, ++n);
	double begin = step_now_us();
	while (step_now_us() - begin < 1e6 * seconds) {
		double from = step_now_us();

		one_step(b, way, ++n);
		us.push_back(step_now_us() - from);
	}
	double rate = (double)us.size() / (1e-6 * (step_now_us() - begin));
	end_bench(b, way);
	std::sort(us.begin(), us.end());
	printf("%s,%zu,%.1f,%.0f,%.1f,%.1f\n", names[way], b->bytes, 1e-3 * (double)b->s.step_ns,
		rate, us[us.size() / 2], us[us.size() * 99 / 100]);
	fflush(stdout);
}

} // namespace

int main(int argc, char **argv)
{
	size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 1740000;
	double step_us = argc > 2 ? strtod(argv[2], NULL) : 10;
	double seconds = argc > 3 ? strtod(argv[3], NULL) : 2;
	int blocks = 0;

	if (bytes < 16 || bytes > (1ul << 32) || !(step_us >= 0) || step_us > 1e6 ||
		!(seconds > 0)) {
		fprintf(stderr, "step_probe: needs 16 to 2^32 bytes, 0 to 10^6 us and a time above "
				"0 s\n");
		return 2;
	}
	check_call(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0), "a GPU");
	printf("way,bytes,step_us,steps_per_s,p50_us,p99_us\n");
	fflush(stdout);
	for (int way = 0; way < WAYS; way++) {
		struct bench b = {};

		b.bytes = bytes / 16 * 16;
		b.blocks = blocks;
		b.s.step_ns = (long long)(1e3 * step_us);
		measure_steps(&b, (enum way)way, seconds);
	}
	return 0;
}
