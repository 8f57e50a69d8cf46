/*
 * operations.c - measures single operations of cuda_tensor: fprop, dgrad and wgrad of one
 * convolution or fc layer. The program prints CSV, one line for each layer:
 * layer,batch,precision,fprop_us,dgrad_us,wgrad_us. Each time is the mean over the 20 launches of a
 * CUDA graph.
 *
 *   operations BATCH PRECISION LAYER...
 *
 * LAYER is CHANNELS,SIDE,FILTERS,SIZE,PAD; an fc layer is INPUTS,1,OUTPUTS,1,0. A layer of fewer
 * than eight channels is measured as the first layer of a network: its fprop includes the copy of
 * the patches, and it has no dgrad. In all other layers, the numbers of channels and filters are
 * multiples of eight. fprop includes bias and ReLU. wgrad does not add up its split-K slices,
 * because the SGD step of the network adds them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef KX_CUDA
#include "kernels/cuda/tensor/tensor.h"
#include "kernels/cuda/tensor/winograd.h"

#define LAUNCHES 20
#define RUNS     5

struct operation {
	int channels, side, filters, size, pad, out, first;
	int images;
	enum kx_type type;
	void *x, *y, *dx, *weights, *workspace, *winograd, *pixels;
	struct kx_now *now;
	struct kx_windows fprop, dgrad;
	struct kx_patches patches;
};

static void operations_fail(const char *what)
{
	fprintf(stderr, "operations: %s: %s\n", what, cudaGetErrorString(cudaGetLastError()));
	exit(1);
}

#define CHECK(failed, what)                                                                        \
	do {                                                                                       \
		if (failed)                                                                        \
			operations_fail(what);                                                     \
	} while (0)

/* Allocate device memory and fill it with n random values. */
static void *values(const struct operation *o, size_t n)
{
	const size_t bytes = n * (o->type == KX_TYPE_BF16 ? 2 : 4);
	uint32_t *host = malloc(bytes), bits = 1;
	void *device;

	CHECK(!host, "no memory");
	/* random bits become values from 1/16 to 1/8, with either sign */
	for (size_t i = 0; i < bytes / 4; i++) {
		bits = bits * 1664525u + 1013904223u;
		host[i] = o->type == KX_TYPE_BF16 ? (bits & 0x807f807fu) | 0x3d803d80u
						  : (bits & 0x807fffffu) | 0x3d800000u;
	}
	CHECK(cudaMalloc(&device, bytes), "cudaMalloc");
	CHECK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
	free(host);
	return device;
}

static size_t out_pixels(const struct operation *o)
{
	return (size_t)o->images * (size_t)o->out * (size_t)o->out;
}

/* Returns the number of rows of the weights, without the row of the bias. */
static int depth(const struct operation *o)
{
	return o->fprop.size * o->fprop.size * o->fprop.c;
}

static struct kx_windows windows(int side, int c, int out, int size, int pad)
{
	return (struct kx_windows){.h = side,
		.w = side,
		.c = c,
		.rows = out,
		.columns = out,
		.stride = 1,
		.up = 1,
		.top = pad,
		.left = pad,
		.size = size};
}

/* Return 1 if cuda_tensor computes fprop, wgrad or dgrad with Winograd's tiles. */
static int uses_winograd_fprop(const struct operation *o)
{
	return o->type == KX_TYPE_FP32 &&
	       kx_winograd_faster(o->fprop, o->filters, (size_t)o->images);
}

static int uses_winograd_wgrad(const struct operation *o)
{
	return o->type == KX_TYPE_FP32 && kx_winograd_wgrad_faster(o->fprop, o->filters);
}

static int uses_winograd_dgrad(const struct operation *o)
{
	return o->type == KX_TYPE_FP32 &&
	       kx_winograd_faster(o->dgrad, o->channels, (size_t)o->images);
}

/* Returns the number of floats of the largest workspace of these products. */
static size_t workspace_of_winograd(const struct operation *o)
{
	const size_t images = (size_t)o->images;
	size_t floats = 0, more;

	if (uses_winograd_fprop(o))
		floats = kx_winograd_floats(o->fprop, o->filters, images);
	more = uses_winograd_dgrad(o) ? kx_winograd_floats(o->dgrad, o->channels, images) : 0;
	floats = more > floats ? more : floats;
	more = uses_winograd_wgrad(o) ? kx_winograd_wgrad_floats(o->fprop, o->filters, images) : 0;
	return more > floats ? more : floats;
}

static void prepare_operation(struct operation *o, const char *layer)
{
	int *numbers[] = {&o->channels, &o->side, &o->filters, &o->size, &o->pad};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		char *end;

		*numbers[i] = (int)strtol(layer, &end, 10);
		CHECK(end == layer || *end != (i < 4 ? ',' : '\0'),
			"LAYER is CHANNELS,SIDE,FILTERS,SIZE,PAD");
		layer = end + 1;
	}
	o->out = o->side + 2 * o->pad - o->size + 1;
	o->first = o->channels < KX_OCTET;
	o->fprop = windows(o->side, o->channels, o->out, o->size, o->pad);
	o->dgrad = windows(o->out, o->filters, o->side, o->size, o->size - 1 - o->pad);
	if (o->first) {
		const int taps = o->size * o->size;
		const int columns = (taps * o->channels + KX_OCTET) / KX_OCTET * KX_OCTET;

		o->patches = (struct kx_patches){.window = o->fprop,
			.channels = o->channels,
			.taps = taps,
			.columns = columns,
			.ones = 1,
			.whole = 1};
		o->fprop = windows(o->out, columns, o->out, 1, 0);
	}
	const size_t inputs = (size_t)o->images * (size_t)(o->fprop.h * o->fprop.w * o->fprop.c);
	o->x = values(o, inputs);
	o->dx = values(o, inputs);
	o->y = values(o, out_pixels(o) * (size_t)o->filters);
	o->weights = values(o, (size_t)(depth(o) + 8) * (size_t)o->filters);
	const int slices = kx_product_slices(
		o->fprop, depth(o) + !o->first, o->filters, (long long)out_pixels(o), o->type);
	CHECK(cudaMalloc(&o->workspace, (size_t)slices * KX_WGRAD_ROWS(depth(o)) *
						(size_t)o->filters * sizeof(float)),
		"cudaMalloc");
	CHECK(cudaMalloc(&o->winograd, 4 * workspace_of_winograd(o) + 4), "cudaMalloc");
	CHECK(cudaMalloc(&o->pixels, (size_t)(o->images * o->channels * o->side * o->side)),
		"cudaMalloc");
	CHECK(cudaMalloc((void **)&o->now, sizeof(*o->now)), "cudaMalloc");
	CHECK(cudaMemset(o->now, 0, sizeof(*o->now)), "cudaMemset");
}

static void release_operation(struct operation *o)
{
	void *all[] = {o->x, o->dx, o->y, o->weights, o->workspace, o->winograd, o->pixels, o->now};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		cudaFree(all[i]);
}

static int run_fprop(struct operation *o, cudaStream_t stream)
{
	struct kx_batch batch = {.pixels = o->pixels, .now = o->now, .images = o->images};
	int rc = o->first ? kx_patches(batch, o->patches, o->x, o->type, stream) : 0;

	if (uses_winograd_fprop(o))
		return kx_winograd((struct kx_winograd){.x = o->x,
					   .weights = o->weights,
					   .bias = (float *)o->workspace,
					   .y = o->y,
					   .workspace = o->winograd,
					   .window = o->fprop,
					   .n = o->filters,
					   .relu = 1,
					   .images = o->images},
			stream);
	return rc ? rc
		  : kx_product((struct kx_product){.a = o->x,
				       .b = o->weights,
				       .bias = (float *)o->workspace,
				       .d = o->y,
				       .window = o->fprop,
				       .by_image = kx_divisor(o->out * o->out),
				       .by_row = kx_divisor(o->out),
				       .rows = (long long)out_pixels(o),
				       .n = o->filters,
				       .b_rows = depth(o),
				       .pitch = o->filters,
				       .relu = 1,
				       .scale = 1},
			    o->type, stream);
}

static int run_dgrad(struct operation *o, cudaStream_t stream)
{
	if (uses_winograd_dgrad(o))
		return kx_winograd((struct kx_winograd){.x = o->y,
					   .weights = o->weights,
					   .mask = o->x,
					   .y = o->dx,
					   .workspace = o->winograd,
					   .window = o->dgrad,
					   .n = o->channels,
					   .dgrad = 1,
					   .images = o->images},
			stream);
	return kx_product((struct kx_product){.a = o->y,
				  .b = o->weights,
				  .mask = o->x,
				  .d = o->dx,
				  .window = o->dgrad,
				  .by_image = kx_divisor(o->side * o->side),
				  .by_row = kx_divisor(o->side),
				  .rows = (long long)o->images * o->side * o->side,
				  .n = o->channels,
				  .pitch = o->filters,
				  .dgrad = 1,
				  .scale = 1},
		o->type, stream);
}

static int run_wgrad(struct operation *o, cudaStream_t stream)
{
	const int m = depth(o) + !o->first;

	if (uses_winograd_wgrad(o))
		return kx_winograd_wgrad((struct kx_winograd_wgrad){.x = o->x,
						 .dy = o->y,
						 .gradients = o->workspace,
						 .workspace = o->winograd,
						 .window = o->fprop,
						 .n = o->filters,
						 .images = o->images},
			stream);
	return kx_product_wgrad((struct kx_product_wgrad){.a = o->x,
					.b = o->y,
					.workspace = o->workspace,
					.window = o->fprop,
					.by_image = kx_divisor(o->out * o->out),
					.by_row = kx_divisor(o->out),
					.pixels = (long long)out_pixels(o),
					.m = m,
					.n = o->filters,
					.ones = !o->first,
					.slices = kx_product_slices(o->fprop, m, o->filters,
						(long long)out_pixels(o), o->type),
					.stride_rows = KX_WGRAD_ROWS(depth(o)),
					.scale = 1},
		o->type, stream);
}

/* Measure an operation. Returns the microseconds of one launch. */
static double measure_operation(struct operation *o, int (*run)(struct operation *, cudaStream_t))
{
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	cudaEvent_t from, to;
	float ms, best = 1e9f;

	CHECK(cudaStreamCreate(&stream), "cudaStreamCreate");
	CHECK(cudaEventCreate(&from) || cudaEventCreate(&to), "cudaEventCreate");
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
	for (int i = 0; i < LAUNCHES; i++)
		CHECK(run(o, stream), "a launch");
	CHECK(cudaStreamEndCapture(stream, &graph), "capture");
	CHECK(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
	for (int i = 0; i <= RUNS; i++) { /* the first run is a warm-up */
		cudaEventRecord(from, stream);
		cudaGraphLaunch(exec, stream);
		cudaEventRecord(to, stream);
		CHECK(cudaStreamSynchronize(stream), "a kernel");
		cudaEventElapsedTime(&ms, from, to);
		best = i > 0 && ms < best ? ms : best;
	}
	cudaGraphExecDestroy(exec);
	cudaGraphDestroy(graph);
	cudaEventDestroy(from);
	cudaEventDestroy(to);
	cudaStreamDestroy(stream);
	return best * 1e3 / LAUNCHES;
}

int main(int argc, char **argv)
{
	static const char *const names[] = {
		[KX_TYPE_FP32] = "fp32", [KX_TYPE_TF32] = "tf32", [KX_TYPE_BF16] = "bf16"};
	struct operation o = {.images = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0};
	int type = 0;

	while (type < 3 && argc > 2 && strcmp(argv[2], names[type]) != 0)
		type++;
	if (argc < 4 || o.images < 1 || type == 3) {
		fprintf(stderr, "usage: operations BATCH fp32|tf32|bf16 LAYER...\n");
		return 2;
	}
	o.type = (enum kx_type)type;
	printf("layer,batch,precision,fprop_us,dgrad_us,wgrad_us\n");
	for (int i = 3; i < argc; i++) {
		prepare_operation(&o, argv[i]);
		double fprop = measure_operation(&o, run_fprop),
		       wgrad = measure_operation(&o, run_wgrad);
		double dgrad = o.first ? 0 : measure_operation(&o, run_dgrad);

		printf("\"%s\",%d,%s,%.2f,%.2f,%.2f\n", argv[i], o.images, names[type], fprop,
			dgrad, wgrad);
		release_operation(&o);
	}
	return 0;
}
#else
int main(void)
{
	fprintf(stderr, "operations: this build has no CUDA\n");
	return 3;
}
#endif
