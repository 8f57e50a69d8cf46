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
#include "tests/support/sanitizer.h"

/* Skip a test of arithmetic under ThreadSanitizer. A test of arithmetic takes minutes under
 * ThreadSanitizer, and it starts no threads that could race. */
void skip_under_tsan(void);

struct odd_model {
	struct shape input;
	const char *text;
};

/* Models with unusual sizes. Most sizes of layers are 1, primes, or one more or less than 4, 8, 16
 * or 32, the lengths of SIMD vectors and of pairs of them. Each kind of layer occurs as the first
 * layer, as the last layer, in the middle, and twice in a row. */
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

/* Set up the model of `o` with initial weights, and a batch of `n` random images with random labels
 * in a shuffled order. */
void subject_random(struct subject *s, const struct odd_model *o, size_t n);
void subject_open(struct subject *s, const char *device, int threads);
void subject_release(struct subject *s);
/* Compute s->grad and s->loss. Before the step, s->grad is filled with NaN, so that a test finds
 * each value that the device does not write. */
void subject_step(struct subject *s);

/* Returns the L2 norm of a - b divided by the L2 norm of b. The result is NaN if any value of `a`
 * or `b` is NaN. */
double gradient_distance(const float *a, const float *b, size_t n);

#define NEARBY 32 /* the number of random changes that gradient_jump tries */
/* Returns a copy of the weights in which each weight has changed by a random relative amount of at
 * most `rounding`. Each value of `round` gives other random amounts. The caller frees the copy. */
float *params_nearby(const struct subject *s, double rounding, uint64_t round);
/*
 * Returns the largest relative change of the exact gradient `right`, in NEARBY trials, when each
 * weight changes by a relative amount of up to `rounding`, the rounding error of the arithmetic
 * under test. The function makes no further trials as soon as a change is at least `enough`. A
 * large result means that a rounding error can flip an argmax or a ReLU of the batch, so a
 * difference between two gradients does not prove an error of the arithmetic. The trials use all
 * CPUs.
 */
double gradient_jump(const struct subject *s, const float *right, double rounding, double enough);

/*
 * Returns the backward error of `grad`: the smallest relative change of the weights, from half an
 * ulp to `max`, at which the exact gradient is within `bound` of `grad`. Returns 0 if no such
 * change was found. A change that flips no argmax and no ReLU moves the exact gradient only a
 * little. Let `grad` be farther than `bound` from the exact gradient at the unchanged weights. A
 * result above 0 then means that rounding has flipped an argmax or a ReLU. A result of 0 means that
 * rounding does not explain the distance, so the arithmetic may be wrong. *distance_there becomes
 * the smallest distance between `grad` and an exact gradient at the last change that was tried. The
 * trials use all CPUs.
 */
double gradient_backward_error(const struct subject *s, const float *grad, double max, double bound,
	double *distance_there);

/* Check that the gradient of each trained tensor equals the slope of the loss, along the gradient
 * and along a random direction. */
void check_slopes(struct subject *s);

#endif
