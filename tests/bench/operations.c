/*
 * operations.c - measures single operations of cuda_tensor: fprop, dgrad and wgrad of one layer.
 * The program prints CSV, one line for each layer: layer,batch,precision,fprop_us,dgrad_us,
 * wgrad_us. Each time is the mean over the 20 launches of a CUDA graph; 0: there is no such
 * operation.
 *
 *   operations BATCH PRECISION LAYER...
 *
 * LAYER is a convolution CHANNELS,SIDE,FILTERS,SIZE,PAD[,STRIDE[,GROUPS]], an fc layer
 * INPUTS,1,OUTPUTS,1,0, or a layer without weights, KIND,CHANNELS,SIDE[,SIZE,STRIDE]. The table
 * `kinds` has the names of KIND.
 *
 * A convolution of up to four channels is measured as the first layer of a network: its fprop
 * includes the copy of the patches, and it has no dgrad. In all other layers, the numbers of
 * channels and of filters are padded to multiples of eight, as in a network, and the kernels
 * compute the padding, too. Each group of a convolution is one matrix product; its numbers of
 * channels and of filters must be multiples of eight. fprop includes bias and ReLU. wgrad does not
 * add up its split-K slices, because the SGD step of the network adds them.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef KX_CUDA
#include "kernels/cuda/tensor/tensor.h"
#include "kernels/cuda/tensor/winograd.h"

#define LAUNCHES       20
#define RUNS           5
#define IMAGE_CHANNELS 4 /* maximum number of channels of an image */

struct kind;

struct operation {
	int channels, side, filters, size, pad, stride, groups, out, first;
	int images;
	enum kx_type type;
	/* the table entry of a layer without weights; NULL: the layer has weights */
	const struct kind *kind;
	void *x, *y, *dx, *dy, *weights, *workspace, *winograd, *pixels;
	struct kx_now *now;
	struct kx_windows fprop, dgrad; /* windows of a group */
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

static int group_filters(const struct operation *o)
{
	return o->filters / o->groups;
}

/* Returns the number of rows of the weights of a group, without the row of the bias. */
static int depth(const struct operation *o)
{
	return o->fprop.size * o->fprop.size * o->fprop.c;
}

static struct kx_windows windows(
	int side, int c, int pitch, int out, int size, int pad, int stride, int up)
{
	return (struct kx_windows){.h = side,
		.w = side,
		.c = c,
		.pitch = pitch,
		.rows = out,
		.columns = out,
		.stride = stride,
		.up = up,
		.top = pad,
		.left = pad,
		.size = size};
}

/* The functions uses_winograd_* return 1 if cuda_tensor computes the product in their name with
 * Winograd's tiles. */
static int uses_winograd_fprop(const struct operation *o)
{
	return o->type == KX_TYPE_FP32 &&
	       kx_winograd_faster(o->fprop, group_filters(o), (size_t)o->images);
}

static int uses_winograd_wgrad(const struct operation *o)
{
	return o->type == KX_TYPE_FP32 && kx_winograd_wgrad_faster(o->fprop, group_filters(o));
}

static int uses_winograd_dgrad(const struct operation *o)
{
	return o->type == KX_TYPE_FP32 &&
	       kx_winograd_faster(o->dgrad, o->fprop.c, (size_t)o->images);
}

/* Returns the number of floats of the largest workspace that one of Winograd's products needs. */
static size_t workspace_of_winograd(const struct operation *o)
{
	const size_t images = (size_t)o->images;
	const int c = o->fprop.c, f = group_filters(o);
	size_t floats = kx_product_fp32_ordered(o->dgrad, c), more;

	more = uses_winograd_fprop(o) ? kx_winograd_floats(o->fprop, f, images) : 0;
	floats = more > floats ? more : floats;
	more = uses_winograd_dgrad(o) ? kx_winograd_floats(o->dgrad, c, images) : 0;
	floats = more > floats ? more : floats;
	more = uses_winograd_wgrad(o) ? kx_winograd_wgrad_floats(o->fprop, f, images) : 0;
	return more > floats ? more : floats;
}

/* Reads at most n numbers that are separated by commas. Returns the number of numbers in `text`. */
static int read_sizes(const char *text, int **numbers, int n)
{
	for (int i = 0;; i++) {
		char *end;

		CHECK(i == n, "too many numbers in LAYER");
		*numbers[i] = (int)strtol(text, &end, 10);
		CHECK(end == text || (*end != ',' && *end != '\0'), "LAYER has numbers and commas");
		if (*end == '\0')
			return i + 1;
		text = end + 1;
	}
}

/* Rounds the numbers of channels and filters up to those that a network stores. */
static void pad_channels(struct operation *o)
{
	const int step = KX_OCTET * o->groups;

	CHECK(o->groups > 1 && (o->channels % step || o->filters % step),
		"the channels and filters of a group are not multiples of eight");
	o->filters = (o->filters + step - 1) / step * step;
	if (!o->first)
		o->channels = (o->channels + step - 1) / step * step;
}

static void prepare_product(struct operation *o, const char *layer)
{
	int *numbers[] = {
		&o->channels, &o->side, &o->filters, &o->size, &o->pad, &o->stride, &o->groups};

	o->stride = o->groups = 1;
	CHECK(read_sizes(layer, numbers, 7) < 5, "LAYER is CHANNELS,SIDE,FILTERS,SIZE,PAD");
	o->out = (o->side + 2 * o->pad - o->size) / o->stride + 1;
	o->first = o->channels <= IMAGE_CHANNELS;
	pad_channels(o);
	o->fprop = windows(o->side, o->channels / o->groups, o->channels, o->out, o->size, o->pad,
		o->stride, 1);
	o->dgrad = windows(o->out, group_filters(o), o->filters, o->side, o->size,
		o->size - 1 - o->pad, 1, o->stride);
	if (o->first) {
		const int taps = o->size * o->size;
		const int columns = (taps * o->channels + KX_OCTET) / KX_OCTET * KX_OCTET;

		o->patches = (struct kx_patches){.window = o->fprop,
			.channels = o->channels,
			.taps = taps,
			.columns = columns,
			.ones = 1,
			.whole = 1};
		o->fprop = windows(o->out, columns, columns, o->out, 1, 0, 1, 1);
	}
	const size_t inputs =
		(size_t)o->images * (size_t)(o->fprop.h * o->fprop.w * o->fprop.pitch);
	o->x = values(o, inputs);
	o->dx = values(o, inputs);
	o->y = values(o, out_pixels(o) * (size_t)o->filters);
	o->weights = values(o, (size_t)(depth(o) + 8) * (size_t)o->filters);
	const int slices = kx_product_slices(o->fprop, depth(o) + !o->first, group_filters(o),
		(long long)out_pixels(o), o->type);
	CHECK(cudaMalloc(&o->workspace, (size_t)slices * KX_WGRAD_ROWS(depth(o)) *
						(size_t)o->filters * sizeof(float)),
		"cudaMalloc");
	CHECK(cudaMalloc(&o->winograd, 4 * workspace_of_winograd(o) + 4), "cudaMalloc");
	CHECK(cudaMalloc(&o->pixels, (size_t)(o->images * o->channels * o->side * o->side)),
		"cudaMalloc");
}

static void release_operation(struct operation *o)
{
	void *all[] = {
		o->x, o->dx, o->y, o->dy, o->weights, o->workspace, o->winograd, o->pixels, o->now};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		cudaFree(all[i]);
	*o = (struct operation){.images = o->images, .type = o->type};
}

/* Returns the address of the first value of channel `channel` in the tensor at `value`. */
static void *channel_of(const struct operation *o, void *value, int channel)
{
	return (char *)value + (size_t)channel * (o->type == KX_TYPE_BF16 ? 2 : 4);
}

/* Returns the weights of a group. */
static void *weights_of_group(const struct operation *o, int group)
{
	return channel_of(o, o->weights, group * (depth(o) + 8) * group_filters(o));
}

static int group_fprop(struct operation *o, int group, cudaStream_t stream)
{
	const int f = group_filters(o);
	void *x = channel_of(o, o->x, group * o->fprop.c), *y = channel_of(o, o->y, group * f);

	if (uses_winograd_fprop(o))
		return kx_winograd((struct kx_winograd){.x = x,
					   .weights = weights_of_group(o, group),
					   .bias = (float *)o->workspace,
					   .y = y,
					   .workspace = o->winograd,
					   .window = o->fprop,
					   .n = f,
					   .y_pitch = o->filters,
					   .relu = 1,
					   .images = o->images},
			stream);
	return kx_product((struct kx_product){.a = x,
				  .b = weights_of_group(o, group),
				  .bias = (float *)o->workspace,
				  .d = y,
				  .window = o->fprop,
				  .by_image = kx_divisor(o->out * o->out),
				  .by_row = kx_divisor(o->out),
				  .rows = (long long)out_pixels(o),
				  .n = f,
				  .b_rows = depth(o),
				  .pitch = f,
				  .d_pitch = o->filters,
				  .relu = 1,
				  .scale = 1},
		o->type, stream);
}

static int run_fprop(struct operation *o, cudaStream_t stream)
{
	struct kx_batch batch = {.pixels = o->pixels, .now = o->now, .images = o->images};
	int rc = o->first ? kx_patches(batch, o->patches, o->x, o->type, stream) : 0;

	for (int group = 0; group < o->groups && !rc; group++)
		rc = group_fprop(o, group, stream);
	return rc;
}

static int group_dgrad(struct operation *o, int group, cudaStream_t stream)
{
	const int c = o->fprop.c, f = group_filters(o);
	void *x = channel_of(o, o->x, group * c), *dx = channel_of(o, o->dx, group * c);
	void *dy = channel_of(o, o->y, group * f);

	if (uses_winograd_dgrad(o))
		return kx_winograd((struct kx_winograd){.x = dy,
					   .weights = weights_of_group(o, group),
					   .mask = x,
					   .y = dx,
					   .workspace = o->winograd,
					   .window = o->dgrad,
					   .n = c,
					   .y_pitch = o->channels,
					   .dgrad = 1,
					   .images = o->images},
			stream);
	return kx_product((struct kx_product){.a = dy,
				  .b = weights_of_group(o, group),
				  .mask = x,
				  .d = dx,
				  .window = o->dgrad,
				  .by_image = kx_divisor(o->side * o->side),
				  .by_row = kx_divisor(o->side),
				  .rows = (long long)o->images * o->side * o->side,
				  .n = c,
				  .pitch = f,
				  .d_pitch = o->channels,
				  .dgrad = 1,
				  .ordered = o->winograd,
				  .scale = 1},
		o->type, stream);
}

static int run_dgrad(struct operation *o, cudaStream_t stream)
{
	int rc = 0;

	for (int group = 0; group < o->groups && !rc; group++)
		rc = group_dgrad(o, group, stream);
	return rc;
}

static int group_wgrad(struct operation *o, int group, cudaStream_t stream)
{
	const int m = depth(o) + !o->first, f = group_filters(o);
	void *x = channel_of(o, o->x, group * o->fprop.c), *dy = channel_of(o, o->y, group * f);

	if (uses_winograd_wgrad(o))
		return kx_winograd_wgrad((struct kx_winograd_wgrad){.x = x,
						 .dy = dy,
						 .gradients = o->workspace,
						 .workspace = o->winograd,
						 .window = o->fprop,
						 .n = f,
						 .dy_pitch = o->filters,
						 .images = o->images},
			stream);
	return kx_product_wgrad((struct kx_product_wgrad){.a = x,
					.b = dy,
					.workspace = o->workspace,
					.window = o->fprop,
					.by_image = kx_divisor(o->out * o->out),
					.by_row = kx_divisor(o->out),
					.pixels = (long long)out_pixels(o),
					.m = m,
					.n = f,
					.b_pitch = o->filters,
					.ones = !o->first,
					.slices = kx_product_slices(
						o->fprop, m, f, (long long)out_pixels(o), o->type),
					.stride_rows = KX_WGRAD_ROWS(depth(o)),
					.scale = 1},
		o->type, stream);
}

static int run_wgrad(struct operation *o, cudaStream_t stream)
{
	int rc = 0;

	for (int group = 0; group < o->groups && !rc; group++)
		rc = group_wgrad(o, group, stream);
	return rc;
}

/* ---- layers without weights, and the end of a batch ---------------------------------------- */

typedef int run_operation(struct operation *o, cudaStream_t stream);

static int in_bf16(const struct operation *o)
{
	return o->type == KX_TYPE_BF16;
}

static struct kx_dense dense_operand(const struct operation *o, int side, void *value)
{
	return (struct kx_dense){.value = value, .h = side, .w = side, .c = o->channels};
}

static struct kx_tensor tensor(const struct operation *o, int side, void *value)
{
	const int row = side * o->channels;

	return (struct kx_tensor){.value = value,
		.h = side,
		.w = side,
		.c = o->channels,
		.row = row,
		.image = (size_t)row * (size_t)side};
}

static struct kx_batch training(const struct operation *o)
{
	return (struct kx_batch){
		.labels = o->pixels, .now = o->now, .images = o->images, .training = 1};
}

static struct kx_pooling pooling(const struct operation *o)
{
	return (struct kx_pooling){.rows = o->size, .columns = o->size, .stride = o->stride};
}

static int run_max_pool(struct operation *o, cudaStream_t stream)
{
	return kx_max_pool(tensor(o, o->side, o->x), tensor(o, o->out, o->y), pooling(o), o->pixels,
		o->images, in_bf16(o), stream);
}

static int run_max_pool_dgrad(struct operation *o, cudaStream_t stream)
{
	return kx_max_pool_dgrad(tensor(o, o->side, o->x), tensor(o, o->side, o->dx),
		tensor(o, o->out, o->dy), pooling(o), o->pixels, NULL, o->images, in_bf16(o),
		stream);
}

static int run_unpool(struct operation *o, cudaStream_t stream)
{
	return kx_unpool(dense_operand(o, o->out, o->dy), o->pixels,
		dense_operand(o, o->side, o->dx), o->images, o->type, stream);
}

static int run_mean_pool(struct operation *o, cudaStream_t stream)
{
	return kx_mean_pool(tensor(o, o->side, o->x), tensor(o, o->out, o->y), pooling(o),
		o->images, in_bf16(o), stream);
}

static int run_mean_pool_dgrad(struct operation *o, cudaStream_t stream)
{
	return kx_mean_pool_dgrad(tensor(o, o->side, o->dx), tensor(o, o->out, o->dy), pooling(o),
		NULL, o->images, in_bf16(o), stream);
}

static struct kx_lrn lrn_operand(const struct operation *o)
{
	return (struct kx_lrn){
		.size = 5, .channels = o->channels, .alpha = 1e-4f, .beta = 0.75f, .k = 1};
}

static int run_lrn(struct operation *o, cudaStream_t stream)
{
	return kx_lrn(tensor(o, o->side, o->x), tensor(o, o->side, o->y), lrn_operand(o), o->images,
		in_bf16(o), stream);
}

static int run_lrn_dgrad(struct operation *o, cudaStream_t stream)
{
	return kx_lrn_dgrad(tensor(o, o->side, o->x), tensor(o, o->side, o->dx),
		tensor(o, o->side, o->dy), lrn_operand(o), NULL, o->images, in_bf16(o), stream);
}

/* The rows of the batchnorm's vectors follow each other in `weights`. */
static struct kx_batchnorm batchnorm(const struct operation *o)
{
	float *row = o->weights;
	const int c = o->channels;

	return (struct kx_batchnorm){.weight = row,
		.running = row + 2 * c,
		.grad = row + 4 * c,
		.statistics = row + 6 * c,
		.mean = row + 8 * c,
		.scale = row + 9 * c,
		.chunks = o->workspace,
		.eps = 1e-5};
}

static int run_batchnorm(struct operation *o, cudaStream_t stream)
{
	return kx_batchnorm(batchnorm(o), tensor(o, o->side, o->x), tensor(o, o->side, o->y),
		o->images, 1, in_bf16(o), stream);
}

static int run_batchnorm_dgrad(struct operation *o, cudaStream_t stream)
{
	return kx_batchnorm_backward(batchnorm(o), tensor(o, o->side, o->x),
		tensor(o, o->side, o->dx), tensor(o, o->side, o->dy), NULL, o->images, in_bf16(o),
		stream);
}

static int run_tanh(struct operation *o, cudaStream_t stream)
{
	return kx_curve(tensor(o, o->side, o->x), tensor(o, o->side, o->y),
		(struct kx_curve){.channels = o->channels}, o->images, in_bf16(o), stream);
}

static int run_tanh_dgrad(struct operation *o, cudaStream_t stream)
{
	return kx_curve_dgrad(tensor(o, o->side, o->y), tensor(o, o->side, o->dx),
		tensor(o, o->side, o->dy), (struct kx_curve){.channels = o->channels}, NULL,
		o->images, in_bf16(o), stream);
}

static int run_relu(struct operation *o, cudaStream_t stream)
{
	return kx_relu(
		tensor(o, o->side, o->x), tensor(o, o->side, o->y), o->images, in_bf16(o), stream);
}

static int run_relu_dgrad(struct operation *o, cudaStream_t stream)
{
	return kx_relu_dgrad(tensor(o, o->side, o->x), tensor(o, o->side, o->dx),
		tensor(o, o->side, o->dy), NULL, o->images, in_bf16(o), stream);
}

static struct kx_drop drop_of(const struct operation *o)
{
	return (struct kx_drop){
		.layer = 1, .channels = o->channels, .threshold = 1u << 23, .scale = 2};
}

static int run_dropout(struct operation *o, cudaStream_t stream)
{
	return kx_dropout(tensor(o, o->side, o->x), tensor(o, o->side, o->y), drop_of(o), NULL,
		training(o), in_bf16(o), stream);
}

static int run_dropout_dgrad(struct operation *o, cudaStream_t stream)
{
	return kx_dropout(tensor(o, o->side, o->dy), tensor(o, o->side, o->dx), drop_of(o), NULL,
		training(o), in_bf16(o), stream);
}

static int run_add(struct operation *o, cudaStream_t stream)
{
	return kx_add(tensor(o, o->side, o->x), tensor(o, o->side, o->dy), tensor(o, o->side, o->y),
		1, 0, o->images, in_bf16(o), stream);
}

/* Computes the gradients of the two inputs of an `add`. */
static int run_add_dgrad(struct operation *o, cudaStream_t stream)
{
	return kx_add_dgrad(tensor(o, o->side, o->dx), tensor(o, o->side, o->dy),
		tensor(o, o->side, o->y), 1, NULL, o->images, in_bf16(o), stream);
}

/* Computes the loss of a batch and the gradient of the logits. CHANNELS is the number of
 * classes. */
static int run_loss(struct operation *o, cudaStream_t stream)
{
	return kx_dense_loss(o->weights, o->dx, o->workspace, o->channels, o->channels, training(o),
		o->type, stream);
}

/* Makes a step of SGD for the weights of an fc layer of CHANNELS x SIDE, with SIZE split-K
 * slices. */
static int run_sgd(struct operation *o, cudaStream_t stream)
{
	const struct kx_layers all = {.n = 1,
		.layer = {{.w = {.f = o->side,
				   .c = o->channels,
				   .taps = 1,
				   .f_pad = o->side,
				   .c_pad = o->channels,
				   .groups = 1},
			.value = o->weights,
			.sum = o->winograd,
			.workspace = o->workspace,
			.slices = o->size,
			.bf16 = in_bf16(o) ? o->pixels : NULL}}};

	return kx_product_sgd(all, (struct kx_losses){.loss = NULL}, o->now, stream);
}

static const struct kind {
	const char *name;
	run_operation *fprop, *dgrad;
} kinds[] = {
	{"max_pool", run_max_pool, run_max_pool_dgrad},
	{"pool", run_max_pool, run_max_pool_dgrad},
	/* the dgrad of a pool whose fprop is computed by the kernel of the convolution before it */
	{"unpool", NULL, run_unpool},
	{"mean_pool", run_mean_pool, run_mean_pool_dgrad},
	{"lrn", run_lrn, run_lrn_dgrad},
	{"batchnorm", run_batchnorm, run_batchnorm_dgrad},
	{"tanh", run_tanh, run_tanh_dgrad},
	{"relu", run_relu, run_relu_dgrad},
	{"dropout", run_dropout, run_dropout_dgrad},
	{"add", run_add, run_add_dgrad},
	{"loss", run_loss, NULL},
	{"sgd", run_sgd, NULL},
};
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* Allocates n bytes of zeros: labels, argmax, or a copy of weights in bf16. */
static void *zeros(size_t n)
{
	void *device;

	CHECK(cudaMalloc(&device, n) || cudaMemset(device, 0, n), "cudaMalloc");
	return device;
}

static void prepare_sgd(struct operation *o)
{
	const size_t values_of_layer = KX_WGRAD_ROWS(o->channels) * (size_t)o->side;
	const enum kx_type type = o->type;

	o->type = KX_TYPE_FP32; /* weights and slices are fp32 in every precision */
	o->weights = values(o, values_of_layer);
	o->winograd = values(o, values_of_layer);
	o->workspace = values(o, values_of_layer * (size_t)o->size);
	o->pixels = zeros(2 * values_of_layer);
	o->type = type;
}

static void prepare_plain(struct operation *o, const char *layer)
{
	int *numbers[] = {&o->channels, &o->side, &o->size, &o->stride};
	const size_t name = strcspn(layer, ",");
	size_t k = 0;

	while (k < N_KINDS &&
		(strlen(kinds[k].name) != name || strncmp(kinds[k].name, layer, name) != 0))
		k++;
	CHECK(k == N_KINDS || layer[name] == '\0', "LAYER is KIND,CHANNELS,SIDE[,SIZE,STRIDE]");
	o->kind = &kinds[k];
	o->size = o->stride = 1;
	read_sizes(layer + name + 1, numbers, 4);
	if (o->kind->fprop == run_sgd) {
		prepare_sgd(o);
		return;
	}
	o->out = (o->side - o->size) / o->stride + 1;
	const size_t in = (size_t)(o->images * o->channels) * (size_t)(o->side * o->side);
	o->x = values(o, in);
	o->dx = values(o, in);
	o->y = values(o, in);
	o->dy = values(o, in);
	o->pixels = zeros(in + 2 * (size_t)o->images);
	CHECK(cudaMalloc(&o->workspace,
		      (size_t)KX_BATCHNORM_CHUNKS * 2 * (size_t)o->channels * sizeof(double) +
			      (size_t)o->images * sizeof(float)),
		"cudaMalloc");
	o->weights = zeros((10 + (size_t)o->images) * (size_t)o->channels * sizeof(float));
}

static void prepare_operation(struct operation *o, const char *layer)
{
	o->now = zeros(sizeof(*o->now));
	if (isalpha((unsigned char)layer[0]))
		prepare_plain(o, layer);
	else
		prepare_product(o, layer);
}

/* Measure an operation. Returns the microseconds of one launch, or 0 if `run` is NULL. */
static double measure_operation(struct operation *o, run_operation *run)
{
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	cudaEvent_t from, to;
	float ms, best = 1e9f;

	if (!run)
		return 0;
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
		const struct kind *kind = o.kind;
		double fprop = measure_operation(&o, kind ? kind->fprop : run_fprop),
		       wgrad = measure_operation(&o, kind ? NULL : run_wgrad);
		double dgrad = measure_operation(&o, kind      ? kind->dgrad
						     : o.first ? NULL
							       : run_dgrad);

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
