/*
 * image.h - the gradient of one image, computed value by value. The sequential rung runs this code
 * on a CPU for one image after the other. The first CUDA rung runs the same code in one thread per
 * image.
 *
 * Layouts are those of common/model.h: params = conv weight [F][3][3], conv bias [F], fc weight
 * [10][F * 169], fc bias [10]. Single precision throughout.
 */
#ifndef KERNELS_LADDER_IMAGE_H
#define KERNELS_LADDER_IMAGE_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define IMAGE_FN static inline __host__ __device__
#else
#define IMAGE_FN static inline
#endif

enum {
	IMAGE_SIDE = 28,
	IMAGE_AREA = IMAGE_SIDE * IMAGE_SIDE,
	WINDOW = 3,
	WEIGHTS = WINDOW * WINDOW,
	MAP_SIDE = IMAGE_SIDE - WINDOW + 1,
	MAP_AREA = MAP_SIDE * MAP_SIDE,
	POOL_SIDE = MAP_SIDE / 2,
	POOL_AREA = POOL_SIDE * POOL_SIDE,
	CLASSES = 10,
};

/* The intermediate values of one image, for F filters. */
struct image_space {
	float *map;      /* F * MAP_AREA values after the ReLU */
	float *d_map;    /* d loss / d map */
	float *pooled;   /* F * POOL_AREA values */
	float *d_pooled; /* d loss / d pooled */
};

/* Returns the number of floats of a struct image_space for `filters` filters. */
IMAGE_FN size_t image_space_floats(size_t filters)
{
	return 2 * filters * (MAP_AREA + POOL_AREA);
}

IMAGE_FN struct image_space image_space_at(float *floats, size_t filters)
{
	struct image_space s;

	s.map = floats;
	s.d_map = s.map + filters * MAP_AREA;
	s.pooled = s.d_map + filters * MAP_AREA;
	s.d_pooled = s.pooled + filters * POOL_AREA;
	return s;
}

/* Return the offsets of the tensors of seed:F in params. */
IMAGE_FN size_t image_conv_bias(size_t filters)
{
	return filters * WEIGHTS;
}

IMAGE_FN size_t image_fc_weight(size_t filters)
{
	return filters * (WEIGHTS + 1);
}

IMAGE_FN size_t image_fc_bias(size_t filters)
{
	return image_fc_weight(filters) + CLASSES * filters * POOL_AREA;
}

IMAGE_FN void image_convolve(
	const float *params, size_t filters, const float *image, struct image_space *s)
{
	const float *bias = params + image_conv_bias(filters);

	for (size_t f = 0; f < filters; f++)
		for (size_t y = 0; y < MAP_SIDE; y++)
			for (size_t x = 0; x < MAP_SIDE; x++) {
				float sum = bias[f];

				for (size_t ky = 0; ky < WINDOW; ky++)
					for (size_t kx = 0; kx < WINDOW; kx++)
						sum += params[f * WEIGHTS + ky * WINDOW + kx] *
						       image[(y + ky) * IMAGE_SIDE + x + kx];
				s->map[f * MAP_AREA + y * MAP_SIDE + x] = sum > 0 ? sum : 0;
			}
}

/* Returns the first maximum of the pool window of pooled value (y, x), as an offset into the
 * map. */
IMAGE_FN size_t image_argmax(const float *map, size_t y, size_t x)
{
	size_t best = 2 * y * MAP_SIDE + 2 * x;
	const size_t rest[3] = {best + 1, best + MAP_SIDE, best + MAP_SIDE + 1};

	for (size_t i = 0; i < 3; i++)
		if (map[rest[i]] > map[best])
			best = rest[i];
	return best;
}

IMAGE_FN void image_pool(size_t filters, struct image_space *s)
{
	for (size_t f = 0; f < filters; f++)
		for (size_t y = 0; y < POOL_SIDE; y++)
			for (size_t x = 0; x < POOL_SIDE; x++) {
				const float *map = s->map + f * MAP_AREA;

				s->pooled[f * POOL_AREA + y * POOL_SIDE + x] =
					map[image_argmax(map, y, x)];
			}
}

IMAGE_FN void image_logits(
	const float *params, size_t filters, const struct image_space *s, float *logits)
{
	size_t n = filters * POOL_AREA;

	for (size_t c = 0; c < CLASSES; c++) {
		const float *weight = params + image_fc_weight(filters) + c * n;

		logits[c] = params[image_fc_bias(filters) + c];
		for (size_t i = 0; i < n; i++)
			logits[c] += weight[i] * s->pooled[i];
	}
}

/* Replaces the logits by d loss / d logits: the probability, minus 1 at the label. Returns the
 * loss. */
IMAGE_FN float image_softmax(float *logits, size_t label)
{
	float max = logits[0], sum = 0, target = logits[label];

	for (size_t c = 1; c < CLASSES; c++)
		max = logits[c] > max ? logits[c] : max;
	for (size_t c = 0; c < CLASSES; c++) {
		logits[c] = expf(logits[c] - max);
		sum += logits[c];
	}
	for (size_t c = 0; c < CLASSES; c++)
		logits[c] /= sum;
	logits[label] -= 1;
	return logf(sum) - (target - max);
}

IMAGE_FN void image_fc_backward(const float *params, size_t filters, const float *d_logits,
	struct image_space *s, float *grad)
{
	size_t n = filters * POOL_AREA;

	for (size_t i = 0; i < n; i++)
		s->d_pooled[i] = 0;
	for (size_t c = 0; c < CLASSES; c++) {
		const float *weight = params + image_fc_weight(filters) + c * n;
		float *to = grad + image_fc_weight(filters) + c * n;

		grad[image_fc_bias(filters) + c] += d_logits[c];
		for (size_t i = 0; i < n; i++) {
			to[i] += d_logits[c] * s->pooled[i];
			s->d_pooled[i] += d_logits[c] * weight[i];
		}
	}
}

/* Passes dY to the argmax of each window if its value is positive (ReLU). */
IMAGE_FN void image_pool_backward(size_t filters, struct image_space *s)
{
	for (size_t i = 0; i < filters * MAP_AREA; i++)
		s->d_map[i] = 0;
	for (size_t f = 0; f < filters; f++)
		for (size_t y = 0; y < POOL_SIDE; y++)
			for (size_t x = 0; x < POOL_SIDE; x++) {
				size_t i = f * MAP_AREA + image_argmax(s->map + f * MAP_AREA, y, x);
				float d = s->d_pooled[f * POOL_AREA + y * POOL_SIDE + x];

				s->d_map[i] = s->map[i] > 0 ? d : 0;
			}
}

IMAGE_FN void image_conv_backward(
	size_t filters, const float *image, const struct image_space *s, float *grad)
{
	float *bias = grad + image_conv_bias(filters);

	for (size_t f = 0; f < filters; f++)
		for (size_t y = 0; y < MAP_SIDE; y++)
			for (size_t x = 0; x < MAP_SIDE; x++) {
				float d = s->d_map[f * MAP_AREA + y * MAP_SIDE + x];

				bias[f] += d;
				for (size_t ky = 0; ky < WINDOW; ky++)
					for (size_t kx = 0; kx < WINDOW; kx++)
						grad[f * WEIGHTS + ky * WINDOW + kx] +=
							d * image[(y + ky) * IMAGE_SIDE + x + kx];
			}
}

/* Adds the image's gradient to `grad` (n_params floats) and returns its loss. */
IMAGE_FN float image_gradient(const float *params, size_t filters, const float *image, size_t label,
	struct image_space s, float *grad)
{
	float logits[CLASSES];

	image_convolve(params, filters, image, &s);
	image_pool(filters, &s);
	image_logits(params, filters, &s, logits);
	float loss = image_softmax(logits, label);
	image_fc_backward(params, filters, logits, &s, grad);
	image_pool_backward(filters, &s);
	image_conv_backward(filters, image, &s, grad);
	return loss;
}

#endif
