/*
 * gradients.h - tools for the tests of kernels/: a model with weights, images and a backend; models
 * of odd sizes; and comparisons of gradients.
 */
#ifndef TESTS_SUPPORT_GRADIENTS_H
#define TESTS_SUPPORT_GRADIENTS_H
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "common/mem.h"
#include "common/rng.h"
#include "kernels/backend.h"

#if defined(__SANITIZE_THREAD__)
#define IS_TSAN 1
#elif defined(__has_feature)
#define IS_TSAN __has_feature(thread_sanitizer)
#else
#define IS_TSAN 0
#endif

/* Skip a test of arithmetic under ThreadSanitizer. Such a test takes minutes there, and starts no
 * threads. */
void skip_under_tsan(void);

struct odd_model {
	struct shape input;
	const char *text;
};

/* Models whose layer sizes are 1, primes, or one more or less than 4, 8, 16 or 32, the lengths of
 * SIMD vectors and of pairs of them. Each kind of layer occurs as the first layer, as the last
 * layer, in the middle, and twice in a row. */
#define N_ODD_MODELS 31
extern const struct odd_model odd_models[N_ODD_MODELS];
/* More models of odd sizes, with the layers that odd_models lacks: tanh, sigmoid, overlapping and
 * average pools, groups, lrn, skip and add, batchnorm. */
#define N_LAYER_MODELS 31
extern const struct odd_model layer_models[N_LAYER_MODELS];

struct subject {
	struct model model;
	struct backend *backend;
	struct kx_images images;
	uint8_t *pixels;
	uint16_t *labels;
	float *params, *grad;
	uint32_t *index;
	uint64_t dropout_seed;
	size_t batch;
	double loss;
};

/* A batch of `n` random images with random labels, in a shuffled order. */
void subject_random(struct subject *s, const struct odd_model *o, size_t n);
void subject_open(struct subject *s, const char *device, int threads);
void subject_release(struct subject *s);
/* Compute s->grad and s->loss. s->grad is filled with NaN before. */
void subject_step(struct subject *s);

/* The L2 norm of a - b over the L2 norm of b. NaN if any value is NaN. */
double gradient_distance(const float *a, const float *b, size_t n);

#define NEARBY 32 /* the number of random changes that gradient_jump tries */
/* The weights after each has changed by a relative amount of up to `rounding`. The caller frees
 * them. */
float *params_nearby(const struct subject *s, double rounding, uint64_t round);
/*
 * The largest relative change of the exact gradient when each weight changes by a relative amount
 * of up to `rounding`, the rounding error of the arithmetic under test. A large value means that a
 * rounding error can flip an argmax or a ReLU of the batch. Then a difference between two gradients
 * does not prove an error of the arithmetic.
 */
double gradient_jump(struct subject *s, double rounding);

/*
 * The backward error of `grad`: the smallest relative change of the weights, from half an ulp to
 * `max`, at which the exact gradient is within `bound` of `grad`. Returns 0 if there is no such
 * change. Unless it flips an argmax or a ReLU, such a change moves the exact gradient only a
 * little. Therefore, if `grad` is farther than `bound` from the exact gradient at the unchanged
 * weights, the cause is an argmax or a ReLU that the rounding flips.
 */
double gradient_backward_error(
	struct subject *s, const float *grad, double max, double bound, double *distance_there);

/* The gradient of each tensor must equal the slope of the loss, along the gradient and along a
 * random direction. */
void check_slopes(struct subject *s);

#endif
