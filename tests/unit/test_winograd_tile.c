/*
 * test_winograd_tile.c - proves the transforms of kernels/cuda/tensor/winograd_tile.h, which the
 * kernels of the GPU use, on the CPU.
 *
 * A convolution is linear in its input and in its weights. Therefore it is enough to test inputs
 * and weights with a single value that is not 0, at each place in turn. A weight of 576, which is
 * 24 * 24, makes every division of the transforms exact, so the results must be exact.
 */
#include <math.h>
#include <string.h>
#include "common/rng.h"
#include "kernels/cuda/tensor/winograd_tile.h"
#include "tests/support/test.h"

#define SIDE   6
#define POINTS 36
#define EXACT  576

static void multiply_points(float *to, const float *by)
{
	for (int i = 0; i < POINTS; i++)
		to[i] *= by[i];
}

/* Prove the outputs for an input of 1 at place d and a weight at place g. */
static void prove_output(int size, int d, int g)
{
	float input[POINTS] = {0}, weights[POINTS] = {0};

	input[d] = 1;
	weights[g] = EXACT;
	winograd_tile_input(input);
	winograd_tile_weights(weights, size);
	multiply_points(weights, input);
	winograd_tile_output(weights, size);
	for (int y = 0; y < 7 - size; y++)
		for (int x = 0; x < 7 - size; x++) {
			const int under = (y + g / SIDE) * SIDE + x + g % SIDE;

			assert_true(weights[y * SIDE + x] == (under == d ? EXACT : 0));
		}
}

static void prove_outputs(int size)
{
	for (int d = 0; d < POINTS; d++)
		for (int r = 0; r < size; r++)
			for (int s = 0; s < size; s++)
				prove_output(size, d, r * SIDE + s);
}

TEST(tiles_of_3x3_filters_are_convolutions)
{
	prove_outputs(3);
}

TEST(tiles_of_5x5_filters_are_convolutions)
{
	prove_outputs(5);
}

/* Prove the gradients of the weights for an input of 1 at place d and a gradient at place e. */
static void prove_wgrad(int d, int e)
{
	float input[POINTS] = {0}, dy[POINTS] = {0};

	input[d] = 1;
	dy[e] = EXACT;
	winograd_tile_input(input);
	winograd_dy(dy);
	assert_true(dy[KX_WINOGRAD_SUM] == EXACT);
	multiply_points(dy, input);
	winograd_tile_wgrad(dy);
	for (int r = 0; r < 3; r++)
		for (int s = 0; s < 3; s++) {
			const int under = (e / SIDE + r) * SIDE + e % SIDE + s;

			assert_true(dy[r * SIDE + s] == (under == d ? EXACT : 0));
		}
}

TEST(tiles_of_dy_give_the_gradients_of_weights_and_bias)
{
	for (int d = 0; d < POINTS; d++)
		for (int y = 0; y < 4; y++)
			for (int x = 0; x < 4; x++)
				prove_wgrad(d, y * SIDE + x);
}

static float draw_value(struct rng *r)
{
	return (float)(2 * rng_unit(r) - 1);
}

/* Returns the relative rounding error of convolutions of 64 channels. */
static double rounding_error(int size)
{
	const int out = 7 - size, channels = 64;
	struct rng rng = {(uint64_t)size};
	double error = 0, norm = 0;

	for (int tile = 0; tile < 100; tile++) {
		double exact[16] = {0};
		float sum[POINTS] = {0};

		for (int c = 0; c < channels; c++) {
			float d[POINTS], g[POINTS];

			for (int i = 0; i < POINTS; i++) {
				d[i] = draw_value(&rng);
				g[i] = draw_value(&rng);
			}
			for (int i = 0; i < out * out * size * size; i++) {
				const int y = i / size / size / out, x = i / size / size % out;
				const int r = i / size % size, s = i % size;

				exact[y * out + x] +=
					(double)g[r * SIDE + s] * (double)d[(y + r) * SIDE + x + s];
			}
			winograd_tile_input(d);
			winograd_tile_weights(g, size);
			multiply_points(g, d);
			for (int i = 0; i < POINTS; i++)
				sum[i] += g[i];
		}
		winograd_tile_output(sum, size);
		for (int i = 0; i < out * out; i++) {
			error += pow((double)sum[i / out * SIDE + i % out] - exact[i], 2);
			norm += pow(exact[i], 2);
		}
	}
	return sqrt(error / norm);
}

/* The sum over the weights alone has an error of 3e-7 to 5e-7. */
TEST(rounding_errors_of_tiles_are_small)
{
	const double error3 = rounding_error(3), error5 = rounding_error(5);

	print_message("# relative rounding error: 3x3 %.2e, 5x5 %.2e\n", error3, error5);
	assert_true(error3 > 0 && error3 < 3e-6);
	assert_true(error5 > 0 && error5 < 3e-6);
}

TEST_GROUP(NULL, NULL)
