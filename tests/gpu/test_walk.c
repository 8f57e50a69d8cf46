/*
 * test_walk.c - runs every kernel of the CUDA device once, on little data: a gradient, an
 * evaluation and local training of some odd models and of the networks for MNIST, in each
 * precision. This program does not check the results; other tests do. This program runs under
 * compute-sanitizer (test_sanitizer.py), where a launch takes milliseconds and a large launch
 * seconds.
 *
 *   test_walk [NUMBER]   runs only model NUMBER, counted from 0. The number after the last model
 *                        stands for the kernels that need large batches of a model. The program
 *                        calls them directly. With a greater number, the exit status is 3
 */
#include "tests/support/gpu_fixture.h"
#ifdef KX_CUDA
#include "kernels/cuda/tensor/tensor.h"
#endif

static const struct odd_model nets[] = {
	/* a small batch needs one launch in fp32; in a low precision, one launch makes all steps */
	{{1, 28, 28}, "seed:8"},
	/* three kernel launches in fp32, and two launches of other kernels in the low precisions */
	{{1, 28, 28}, "seed:40"},
	{{1, 28, 28}, "seed:64"}, /* in bf16, two passes per step */
	{{1, 28, 28}, "lenet5"},
	{{1, 28, 28}, "cnn99"},
	{{3, 11, 7}, "conv:5:3:stride=2 relu conv:7:2 relu fc:4"},
	{{1, 9, 13}, "conv:17:5:pad=same relu pool:3:pad=auto fc:3"},
	{{2, 6, 5}, "conv:18:3:pad=same relu conv:35:3:pad=1 relu pool:5:pad=auto fc:3"},
	{{1, 7, 7}, "conv:6:2 dropout:0.3 relu pool:2 dropout:0.5 fc:7 relu dropout:0.25 fc:3"},
	{{1, 12, 12}, "relu fc:97 relu fc:5"},
	{{1, 9, 9}, "conv:16:3:pad=1 relu lrn pool:3:stride=2 conv:8:3:pad=1:groups=2 sigmoid "
		    "avgpool:2:stride=1 fc:7 tanh fc:3"},
	{{2, 7, 6}, "conv:5:2 skip conv:9:3:stride=3:pad=auto relu add avgpool:global fc:3"},
	{{2, 6, 7}, "conv:9:3:pad=1 batchnorm relu conv:33:2 batchnorm pool:2:pad=auto fc:5 "
		    "batchnorm fc:3"},
	/* grouped convolutions; a ReLU that is fused with a batchnorm, and one that is fused with
	 * an add */
	{{2, 7, 8},
		"conv:64:1 conv:64:3:pad=1:groups=2 pool:2:pad=auto batchnorm relu skip "
		"dropout:0.5 conv:64:3:pad=1:groups=4 add relu conv:64:2:stride=2:groups=2 fc:3"},
	/* a model whose fp32 kernels use Winograd's tiles */
	{{1, 12, 12},
		"conv:64:3 conv:72:3 pool:2 conv:64:5:pad=3 relu pool:2 conv:72:5:pad=4 fc:3"},
};

static size_t walk_images(const struct odd_model *o)
{
	return strcmp(o->text, "seed:40") == 0 ? 247 : strcmp(o->text, "seed:64") == 0 ? 106 : 6;
}

static void walk_model(const struct odd_model *o, const struct precision *p)
{
	struct subject s;
	size_t correct;
	double loss;

	subject_random(&s, o, walk_images(o));
	gpu_open(&s, p);
	subject_step(&s);
	assert_true(isfinite(s.loss));
	for (size_t i = 0; i < s.model.n_params; i++)
		if (!isfinite(s.grad[i]))
			fail_msg("%s in %s: parameter %zu has the gradient %g", o->text, p->name, i,
				s.grad[i]);
	assert_int_equal(backend_evaluate(s.backend, s.params, 1, 5, &correct, &loss), PS_OK);
	assert_true(isfinite(loss));
	s.batch = 3;
	assert_int_equal(backend_local_start(s.backend, s.params), PS_OK);
	assert_int_equal(backend_local_steps(s.backend, s.index, 3, 2, 0.01f, 1), PS_OK);
	assert_int_equal(backend_local_finish(s.backend, s.params, s.grad), PS_OK);
	assert_int_equal(backend_local_wait(s.backend, &loss), PS_OK);
	assert_true(isfinite(loss));
	subject_release(&s);
}

#define N_NETS (sizeof(nets) / sizeof(nets[0]))
static size_t first, end = N_NETS + 1;

#ifdef KX_CUDA
/* Returns device memory with the n values at `host`. */
static float *on_device(const float *host, size_t n)
{
	float *device = NULL;

	assert_int_equal(cudaMalloc((void **)&device, n * sizeof(float)), cudaSuccess);
	assert_int_equal(
		cudaMemcpy(device, host, n * sizeof(float), cudaMemcpyHostToDevice), cudaSuccess);
	return device;
}

/* Returns device memory with n times the value `x`. */
static float *filled(size_t n, float x)
{
	float *host = mem_must(n, sizeof(float), "test");

	for (size_t i = 0; i < n; i++)
		host[i] = x;
	float *device = on_device(host, n);
	free(host);
	return device;
}

/* Returns n small integers. */
static float *integers(size_t n, uint64_t seed)
{
	float *host = mem_must(n, sizeof(float), "test");
	struct rng r = rng_seed(seed, RNG_SIM, 0);

	for (size_t i = 0; i < n; i++)
		host[i] = (float)rng_below(&r, 7) - 3;
	return host;
}

/* Returns value (m, n) of the dgrad `g`: the sum over the taps and filters. */
static float dgrad_value(const struct kx_product *g, const float *a, const float *b, int m, int n)
{
	const struct kx_windows *w = &g->window;
	const int area = w->rows * w->columns, image = m / area, y = m % area / w->columns;
	float sum = 0;

	for (int tap = 0; tap < w->size * w->size; tap++) {
		const int r = y - w->top + tap / w->size;
		const int s = m % w->columns - w->left + tap % w->size;
		const int opposite = w->size * w->size - 1 - tap;

		if (r < 0 || r >= w->h || s < 0 || s >= w->w)
			continue;
		for (int k = 0; k < w->c; k++)
			sum += a[((image * w->h + r) * w->w + s) * w->c + k] *
			       b[(opposite * g->n + n) * g->pitch + k];
	}
	return sum;
}

/* A dgrad in fp32 with many rows, for which product_fp32.cu chooses tiles with 8 x 8 sums for each
 * thread. All values are integers, so the sums are exact. */
static void walk_dgrad(int images, int side, int filters, int columns, int size)
{
	const size_t pixels = (size_t)images * (size_t)side * (size_t)side;
	const size_t in = pixels * (size_t)filters, out = pixels * (size_t)columns;
	const size_t weights = (size_t)size * (size_t)size * (size_t)columns * (size_t)filters;
	float *a = integers(in, 1), *b = integers(weights, 2), *d = mem_must(out, 4, "test");
	struct kx_product g = {.a = on_device(a, in),
		.b = on_device(b, weights),
		.d = filled(out, NAN),
		.window = {.h = side,
			.w = side,
			.c = filters,
			.pitch = filters,
			.rows = side,
			.columns = side,
			.stride = 1,
			.up = 1,
			.top = size / 2,
			.left = size / 2,
			.size = size},
		.by_image = kx_divisor(side * side),
		.by_row = kx_divisor(side),
		.rows = (long long)images * side * side,
		.n = columns,
		.pitch = filters,
		.d_pitch = columns,
		.dgrad = 1,
		.scale = 1};

	g.ordered = filled(kx_product_fp32_ordered(g.window, columns), NAN);
	assert_int_equal(kx_product_fp32(g, NULL), PS_OK);
	assert_int_equal(
		cudaMemcpy(d, g.d, out * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
	for (size_t i = 0; i < out; i++) {
		const int m = (int)i / columns, n = (int)i % columns;

		if (d[i] != dgrad_value(&g, a, b, m, n))
			fail_msg("dgrad of %d columns, pixel %d, column %d: %g instead of %g",
				columns, m, n, (double)d[i], (double)dgrad_value(&g, a, b, m, n));
	}
	cudaFree((void *)(uintptr_t)g.a);
	cudaFree((void *)(uintptr_t)g.b);
	cudaFree(g.d);
	cudaFree(g.ordered);
	free(a);
	free(b);
	free(d);
}

/* Runs product_taps.cu on three images of 9 x 14 with two split-K slices. All factors are 1, so
 * each result is the number of pixels over which its tap of the filter passes. */
static void walk_taps(int channels)
{
	const int h = 9, w = 14, n = 64, images = 3, m = 9 * channels + 1, slices = 2;
	const size_t pixels = (size_t)images * (size_t)h * (size_t)w, rows = KX_WGRAD_ROWS(m - 1);
	float *x = filled(pixels * (size_t)channels, 0.5f), *dy = filled(pixels * (size_t)n, 2);
	float *sums = filled((size_t)slices * rows * (size_t)n, NAN);
	float *host = mem_must((size_t)slices * rows * (size_t)n, sizeof(float), "test");
	struct kx_product_wgrad g = {.a = x,
		.b = dy,
		.workspace = sums,
		.window = {.h = h,
			.w = w,
			.c = channels,
			.pitch = channels,
			.rows = h,
			.columns = w,
			.stride = 1,
			.up = 1,
			.top = 1,
			.left = 1,
			.size = 3},
		.pixels = (long long)pixels,
		.m = m,
		.n = n,
		.b_pitch = n,
		.ones = 1,
		.slices = slices,
		.stride_rows = rows,
		.scale = 1};

	assert_int_equal(kx_taps_wgrad(g, NULL), PS_OK);
	assert_int_equal(cudaMemcpy(host, sums, (size_t)slices * rows * (size_t)n * sizeof(float),
				 cudaMemcpyDeviceToHost),
		cudaSuccess);
	for (int k = 0; k < m; k++)
		for (int j = 0; j < n; j++) {
			const int tap = k / channels, down = tap / 3 != 1, across = tap % 3 != 1;
			const float *one = host + k * n + j, *other = one + rows * (size_t)n;
			const float sum = *one + *other;
			const int right = k == m - 1 ? 2 * h * w : (h - down) * (w - across);

			if (sum != (float)(images * right))
				fail_msg("%d channels, row %d, column %d: %g instead of %d",
					channels, k, j, (double)sum, images * right);
		}
	free(host);
	cudaFree(x);
	cudaFree(dy);
	cudaFree(sums);
}
#endif

static void walk_large_kernels(void)
{
#ifdef KX_CUDA
	if (strncmp(gpu_device(), "cuda", 4) == 0) {
		walk_taps(32);
		walk_taps(128);
		walk_dgrad(3, 99, 8, 128, 3);
		walk_dgrad(3, 99, 8, 64, 3);
		walk_dgrad(999, 1, 64, 1016, 1);
	}
#endif
}

static void every_net_walks_in_every_precision(void **state)
{
	(void)state;
	gpu_begin();
	for (size_t m = first; m < end && m < N_NETS; m++)
		for (size_t p = 0; p < gpu_n_precisions(); p++)
			walk_model(&nets[m], &gpu_precisions[p]);
	if (end > N_NETS)
		walk_large_kernels();
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		first = strtoul(argv[1], NULL, 10);
		if (first >= end)
			return 3;
		end = first + 1;
	}
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_net_walks_in_every_precision),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
