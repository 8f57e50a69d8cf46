/*
 * store_probe.cu - measures how many updates per second a server could make if its weights were in
 * the memory of a GPU, beside the same updates through memory of the host. No part of cnn-ps uses
 * this code. docs/lab/through-server.md has the results and the decision that they led to.
 *
 *   store_probe [BYTES [SECONDS]]
 *
 * For each way and each number of workers, the program starts worker processes and is their server.
 * Worker i uses GPU i + 1, or GPU 0 if the machine has only one. A pair is one push and the pull
 * after it: the worker writes a gradient with a kernel, waits for it, asks the server, and has the
 * new weights in its GPU before its next pair. The ways are:
 *
 *   engines  The server opens the workers' buffers (CUDA IPC). The copy engines of the GPUs bring
 *            the gradient to the server's GPU and the weights to the worker's GPU. One kernel
 *            computes the largest magnitude and the sum of squares of the gradient, the CPU accepts
 *            or rejects the gradient, and another kernel applies it (SGD).
 *   kernels  Like engines, but the kernel that checks the gradient reads it over NVLink and stores
 *            it, and the kernel that applies it writes the weights to both GPUs.
 *   host     Like the shared-memory lane: the worker copies its gradient to pinned memory that both
 *            processes map. The server copies, hashes and scans the gradient in one pass, and
 *            applies it in another pass that hashes the weights. The worker checks the hash of the
 *            weights and copies them to its GPU.
 *
 * In all ways, requests and answers are numbers in shared memory for which both sides spin, so the
 * figures have no cost of messages. The decision of the CPU is the comparison of two numbers, so
 * the ledger has no cost either. The program prints CSV: way, bytes, workers, pairs per second,
 * median and 99th percentile of a pair in microseconds.
 */
#include <algorithm>
#include <atomic>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <csignal>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY /* permits an XXH3_state_t on the stack */
#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h> /* proto/checksum.c includes this header, too */
#endif

namespace
{

constexpr int MAX_WORKERS = 8, BLOCKS = 128, THREADS = 512;
constexpr size_t MAX_SAMPLES = 1 << 20, HOST_BLOCK = 8192;
constexpr float RATE = 1e-3f, LARGEST = 1e15f;

enum way { ENGINES, KERNELS, HOST, WAYS };
const char *const names[WAYS] = {"engines", "kernels", "host"};

/* Each number for which a process spins has a cache line of its own. */
struct alignas(64) line {
	std::atomic<uint64_t> value;
};

struct shared {
	line requested[MAX_WORKERS], answered[MAX_WORKERS], ready[MAX_WORKERS];
	line opened, ends;
	cudaIpcMemHandle_t gradient[MAX_WORKERS], weights[MAX_WORKERS];
	/* way `host`: hash of a worker's gradient, and later of the weights in the answer */
	uint64_t hash[MAX_WORKERS];
	uint64_t pairs[MAX_WORKERS];
	float us[MAX_WORKERS][MAX_SAMPLES / MAX_WORKERS];
};

/* The result of the check, in memory of the host to which the GPU writes. */
struct verdict {
	unsigned peak;
	double squares;
};

void must(cudaError_t rc, const char *what)
{
	if (rc == cudaSuccess)
		return;
	fprintf(stderr, "store_probe: %s: %s\n", what, cudaGetErrorString(rc));
	exit(1);
}

template <typename T> T *map_shared(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED) {
		perror("store_probe: mmap");
		exit(1);
	}
	return static_cast<T *>(at);
}

double probe_now_us()
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

void spin()
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

/* ---- kernels --------------------------------------------------------------------------------- */

__global__ void fill_kernel(float *g, size_t n, float value)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		g[i] = value;
}

/* Sets *to to the largest magnitude and the sum of squares of `from`, and copies `from` to `copy`
 * unless that is NULL. The last block to finish adds the results of the blocks in their order. */
__global__ void check_and_copy(const float4 *from, float4 *copy, size_t n4, double *sums,
	unsigned *peaks, unsigned *finished, volatile verdict *to)
{
	__shared__ double sum[THREADS];
	__shared__ unsigned peak[THREADS];
	double s = 0;
	unsigned p = 0;

	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n4;
		i += gridDim.x * blockDim.x) {
		float4 v = from[i];

		if (copy)
			copy[i] = v;
		s += (double)(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
		p = max(max(max(p, __float_as_uint(v.x) & 0x7fffffffu),
				__float_as_uint(v.y) & 0x7fffffffu),
			max(__float_as_uint(v.z) & 0x7fffffffu,
				__float_as_uint(v.w) & 0x7fffffffu));
	}
	sum[threadIdx.x] = s;
	peak[threadIdx.x] = p;
	for (unsigned half = THREADS / 2; half > 0; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half) {
			sum[threadIdx.x] += sum[threadIdx.x + half];
			peak[threadIdx.x] = max(peak[threadIdx.x], peak[threadIdx.x + half]);
		}
	}
	if (threadIdx.x > 0)
		return;
	sums[blockIdx.x] = sum[0];
	peaks[blockIdx.x] = peak[0];
	__threadfence();
	if (atomicAdd(finished, 1) + 1 < gridDim.x)
		return;
	__threadfence();
	s = 0;
	p = 0;
	for (unsigned b = 0; b < gridDim.x; b++) {
		s += ((volatile double *)sums)[b];
		p = max(p, ((volatile unsigned *)peaks)[b]);
	}
	*finished = 0;
	to->squares = s;
	to->peak = p;
}

/* Makes a step of SGD in place. If `copy` is not NULL, also writes the new weights to `copy`. */
__global__ void apply_gradient_kernel(
	float4 *w, const float4 *g, float4 *copy, size_t n4, float rate)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n4;
		i += gridDim.x * blockDim.x) {
		float4 v = w[i], d = g[i];

		v.x -= rate * d.x;
		v.y -= rate * d.y;
		v.z -= rate * d.z;
		v.w -= rate * d.w;
		w[i] = v;
		if (copy)
			copy[i] = v;
	}
}

/* ---- worker ---------------------------------------------------------------------------------- */

struct probe {
	struct shared *shared;
	/* way `host`: slots: the gradients of all workers; buffer: the weights */
	char *slots, *buffer;
	enum way way;
	size_t n; /* number of weights, a multiple of 4 */
	int workers, gpus;
	double seconds;
};

uint64_t hash_of_values(const float *v, size_t n)
{
	return XXH3_64bits(v, n * sizeof(*v));
}

void spin_until(const std::atomic<uint64_t> &number, uint64_t min)
{
	while (number.load(std::memory_order_acquire) < min)
		spin();
}

void worker(const struct probe *p, int index)
{
	struct shared *s = p->shared;
	const size_t bytes = p->n * sizeof(float);
	float *slot = (float *)(p->slots + index * bytes), *weights_at = (float *)p->buffer;
	float *g, *w;
	cudaStream_t stream;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	must(cudaSetDevice(p->gpus > 1 ? 1 + index % (p->gpus - 1) : 0), "cudaSetDevice");
	must(cudaMalloc(&g, bytes), "cudaMalloc");
	must(cudaMalloc(&w, bytes), "cudaMalloc");
	must(cudaStreamCreate(&stream), "cudaStreamCreate");
	if (p->way == HOST) {
		must(cudaHostRegister(slot, bytes, 0), "cudaHostRegister");
		must(cudaHostRegister(weights_at, bytes, 0), "cudaHostRegister");
	} else {
		must(cudaIpcGetMemHandle(&s->gradient[index], g), "cudaIpcGetMemHandle");
		must(cudaIpcGetMemHandle(&s->weights[index], w), "cudaIpcGetMemHandle");
	}
	s->ready[index].value.store(1);
	spin_until(s->opened.value, 1);
	for (uint64_t pair = 1; !s->ends.value.load(); pair++) {
		double begin = probe_now_us();

		fill_kernel<<<BLOCKS, THREADS, 0, stream>>>(g, p->n, 1e-3f);
		if (p->way == HOST)
			must(cudaMemcpyAsync(slot, g, bytes, cudaMemcpyDeviceToHost, stream),
				"copy");
		must(cudaStreamSynchronize(stream), "gradient");
		if (p->way == HOST)
			s->hash[index] = hash_of_values(slot, p->n);
		s->requested[index].value.store(pair, std::memory_order_release);
		spin_until(s->answered[index].value, pair);
		if (s->answered[index].value.load() == UINT64_MAX)
			break; /* the measurement has ended, so this pair does not count */
		if (p->way == HOST) {
			uint64_t hash = hash_of_values(weights_at, p->n);

			/* with several workers, the server may already be changing the weights */
			if (p->workers == 1 && hash != s->hash[index]) {
				fprintf(stderr, "store_probe: wrong weights arrived\n");
				exit(1);
			}
			must(cudaMemcpyAsync(w, weights_at, bytes, cudaMemcpyHostToDevice, stream),
				"copy");
			must(cudaStreamSynchronize(stream), "weights");
		}
		s->us[index][pair % (MAX_SAMPLES / MAX_WORKERS)] = (float)(probe_now_us() - begin);
		s->pairs[index] = pair;
	}
	exit(0);
}

/* ---- server ---------------------------------------------------------------------------------- */

struct device {
	float *weights, *gradient; /* gradient: the server's private copy */
	float *peer_gradient[MAX_WORKERS], *peer_weights[MAX_WORKERS];
	double *sums;
	unsigned *peaks, *finished;
	verdict *result, *result_on_device;
	cudaStream_t stream;
};

void open_probe_device(const struct probe *p, struct device *d)
{
	const size_t bytes = p->n * sizeof(float);

	must(cudaSetDevice(0), "cudaSetDevice");
	must(cudaMalloc(&d->weights, bytes), "cudaMalloc");
	must(cudaMalloc(&d->gradient, bytes), "cudaMalloc");
	must(cudaMemset(d->weights, 0, bytes), "cudaMemset");
	must(cudaMalloc(&d->sums, BLOCKS * sizeof(double)), "cudaMalloc");
	must(cudaMalloc(&d->peaks, BLOCKS * sizeof(unsigned)), "cudaMalloc");
	must(cudaMalloc(&d->finished, sizeof(unsigned)), "cudaMalloc");
	must(cudaMemset(d->finished, 0, sizeof(unsigned)), "cudaMemset");
	must(cudaHostAlloc(&d->result, sizeof(verdict), cudaHostAllocMapped), "cudaHostAlloc");
	must(cudaHostGetDevicePointer(&d->result_on_device, d->result, 0), "cudaHostAlloc");
	must(cudaStreamCreate(&d->stream), "cudaStreamCreate");
	for (int i = 0; i < p->workers; i++) {
		spin_until(p->shared->ready[i].value, 1);
		must(cudaIpcOpenMemHandle((void **)&d->peer_gradient[i], p->shared->gradient[i],
			     cudaIpcMemLazyEnablePeerAccess),
			"cudaIpcOpenMemHandle");
		must(cudaIpcOpenMemHandle((void **)&d->peer_weights[i], p->shared->weights[i],
			     cudaIpcMemLazyEnablePeerAccess),
			"cudaIpcOpenMemHandle");
	}
}

/* The CPU's decision about a push of the GPU ways. */
void decide_on_gradient(const verdict *v)
{
	float limit = LARGEST;
	unsigned bits;

	memcpy(&bits, &limit, sizeof(bits));
	if (v->peak > bits || !(v->squares > 0)) {
		fprintf(stderr, "store_probe: a wrong gradient arrived\n");
		exit(1);
	}
}

void serve_on_device(const struct probe *p, struct device *d, int worker)
{
	const size_t bytes = p->n * sizeof(float), n4 = p->n / 4;
	const bool engines = p->way == ENGINES;
	float4 *w = (float4 *)d->weights, *g = (float4 *)d->gradient;

	d->result->squares = 0;
	if (engines)
		must(cudaMemcpyAsync(
			     g, d->peer_gradient[worker], bytes, cudaMemcpyDefault, d->stream),
			"copy of a gradient");
	check_and_copy<<<BLOCKS, THREADS, 0, d->stream>>>(
		engines ? g : (const float4 *)d->peer_gradient[worker], engines ? NULL : g, n4,
		d->sums, d->peaks, d->finished, d->result_on_device);
	must(cudaStreamSynchronize(d->stream), "check");
	decide_on_gradient(d->result);
	apply_gradient_kernel<<<BLOCKS, THREADS, 0, d->stream>>>(
		w, g, engines ? NULL : (float4 *)d->peer_weights[worker], n4, RATE);
	if (engines)
		must(cudaMemcpyAsync(
			     d->peer_weights[worker], w, bytes, cudaMemcpyDefault, d->stream),
			"copy of the weights");
	must(cudaStreamSynchronize(d->stream), "apply");
}

/* Copies, hashes and scans a gradient, and applies it, block by block. */
void serve_on_host(const struct probe *p, float *copy, int worker)
{
	const float *from = (const float *)(p->slots + worker * p->n * sizeof(float));
	float *w = (float *)p->buffer, limit = LARGEST;
	XXH3_state_t state;
	unsigned peak = 0, bits;

	memcpy(&bits, &limit, sizeof(bits));
	XXH3_64bits_reset(&state);
	for (size_t at = 0; at < p->n; at += HOST_BLOCK) {
		size_t n = std::min(HOST_BLOCK, p->n - at);

		memcpy(copy + at, from + at, n * sizeof(float));
		XXH3_64bits_update(&state, copy + at, n * sizeof(float));
		for (size_t i = at; i < at + n; i++) {
			unsigned magnitude;

			memcpy(&magnitude, &copy[i], sizeof(magnitude));
			peak = std::max(peak, magnitude & 0x7fffffffu);
		}
	}
	if (peak > bits || XXH3_64bits_digest(&state) != p->shared->hash[worker]) {
		fprintf(stderr, "store_probe: a wrong gradient arrived\n");
		exit(1);
	}
	XXH3_64bits_reset(&state);
	for (size_t at = 0; at < p->n; at += HOST_BLOCK) {
		size_t n = std::min(HOST_BLOCK, p->n - at);

		for (size_t i = at; i < at + n; i++)
			w[i] -= RATE * copy[i];
		XXH3_64bits_update(&state, w + at, n * sizeof(float));
	}
	p->shared->hash[worker] = XXH3_64bits_digest(&state);
}

/* ---- a measurement --------------------------------------------------------------------------- */

void serve_probe(const struct probe *p)
{
	struct shared *s = p->shared;
	uint64_t done[MAX_WORKERS] = {0};
	float *copy = (float *)malloc(p->n * sizeof(float));
	struct device d = {};

	if (p->way == HOST)
		memset(copy, 0, p->n * sizeof(float));
	else
		open_probe_device(p, &d);
	for (int i = 0; i < p->workers; i++)
		spin_until(s->ready[i].value, 1);
	s->opened.value.store(1);
	for (double end = probe_now_us() + 1e6 * p->seconds; probe_now_us() < end;)
		for (int i = 0; i < p->workers; i++) {
			if (s->requested[i].value.load(std::memory_order_acquire) <= done[i])
				continue;
			if (p->way == HOST)
				serve_on_host(p, copy, i);
			else
				serve_on_device(p, &d, i);
			s->answered[i].value.store(++done[i], std::memory_order_release);
		}
	s->ends.value.store(1);
	for (int i = 0; i < p->workers; i++)
		/* tells the worker that the measurement has ended */
		s->answered[i].value.store(UINT64_MAX);
	exit(0);
}

void report_probe(const struct probe *p)
{
	const struct shared *s = p->shared;
	uint64_t pairs = 0;
	size_t n = 0;
	float *us = (float *)malloc(sizeof(s->us));

	for (int i = 0; i < p->workers; i++) {
		size_t room = MAX_SAMPLES / MAX_WORKERS,
		       count = std::min<size_t>(s->pairs[i], room - 1);

		pairs += s->pairs[i];
		for (size_t k = 1; k <= count; k++)
			us[n++] = s->us[i][k];
	}
	std::sort(us, us + n);
	printf("%s,%zu,%d,%.0f,%.1f,%.1f\n", names[p->way], p->n * sizeof(float), p->workers,
		(double)pairs / p->seconds, n ? (double)us[n / 2] : 0.,
		n ? (double)us[n * 99 / 100] : 0.);
	fflush(stdout);
	free(us);
}

/* Runs one measurement in processes of its own, because a process that has used CUDA cannot fork a
 * process that uses CUDA. */
int measure_pairs(struct probe *p)
{
	const size_t bytes = p->n * sizeof(float);
	pid_t child[MAX_WORKERS + 1];
	int failed = 0;

	p->shared = map_shared<struct shared>(sizeof(*p->shared));
	p->slots = map_shared<char>(p->workers * bytes);
	p->buffer = map_shared<char>(bytes);
	for (int i = 0; i <= p->workers; i++) {
		child[i] = fork();
		if (child[i] == 0 && i < p->workers)
			worker(p, i);
		if (child[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			serve_probe(p);
		}
	}
	for (int i = p->workers; i >= 0; i--) {
		int status = 0;

		if (failed)
			kill(child[i], SIGKILL);
		waitpid(child[i], &status, 0);
		failed |= status != 0;
	}
	if (!failed)
		report_probe(p);
	munmap(p->shared, sizeof(*p->shared));
	munmap(p->slots, p->workers * bytes);
	munmap(p->buffer, bytes);
	return failed;
}

/* Returns the number of GPUs. A child process calls CUDA for this. */
int count_gpus()
{
	int *n = map_shared<int>(sizeof(*n));
	pid_t child = fork();

	if (child == 0) {
		must(cudaGetDeviceCount(n), "cudaGetDeviceCount");
		exit(0);
	}
	waitpid(child, NULL, 0);
	return *n;
}

} // namespace

int main(int argc, char **argv)
{
	size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 1740000;
	double seconds = argc > 2 ? strtod(argv[2], NULL) : 2;
	int gpus = count_gpus(), failed = 0;

	if (gpus < 1 || bytes < 16 || bytes > (1ul << 32) || !(seconds > 0)) {
		fprintf(stderr,
			"store_probe: needs a GPU, 16 to 2^32 bytes and a time above 0 s\n");
		return 2;
	}
	printf("way,bytes,workers,pairs_per_s,p50_us,p99_us\n");
	fflush(stdout);
	for (int workers = 1; workers <= MAX_WORKERS / 2; workers *= 2)
		for (int way = 0; way < WAYS; way++) {
			struct probe p = {};

			p.way = (enum way)way;
			p.n = bytes / 16 * 4;
			p.workers = workers;
			p.gpus = gpus;
			p.seconds = seconds;
			failed |= measure_pairs(&p);
		}
	return failed;
}
