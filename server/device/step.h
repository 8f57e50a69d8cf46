/*
 * step.h - one step of an optimizer on one value, with the same bits as the loops of
 * server/core/optim.c on x86-64. The CUDA module and its test double (tests/device) compile these
 * functions, so a test without a GPU compares them with optim.c.
 *
 * The loops of optim.c run with FTZ and DAZ (common/subnormals.h): subnormal operands count as 0,
 * and a result that is subnormal after rounding becomes 0 with its sign. The CPU decides with the
 * result that a format with a wider exponent would have (Intel SDM, "tiny after rounding"), so it
 * keeps a product that rounds up to the smallest normal number, and does not replace it by 0. The
 * option -ftz of nvcc does not promise the same decision. These functions therefore compute with
 * subnormal numbers and then flush.
 */
#ifndef SERVER_DEVICE_STEP_H
#define SERVER_DEVICE_STEP_H
#include <math.h>
#include "common/param_device.h"

#ifdef __CUDACC__
#define STEP_FN    static __device__ __forceinline__
#define STEP_MUL   __fmul_rn
#define STEP_ADD   __fadd_rn
#define STEP_DIV   __fdiv_rn
#define STEP_SQRT  __fsqrt_rn
#define STEP_MUL64 __dmul_rn
#define STEP_ADD64 __dadd_rn
#define STEP_DIV64 __ddiv_rn
#define STEP_FLOAT __double2float_rn
#else /* compiled with -ffp-contract=off */
#define STEP_FN          static inline
#define STEP_MUL(a, b)   ((a) * (b))
#define STEP_ADD(a, b)   ((a) + (b))
#define STEP_DIV(a, b)   ((a) / (b))
#define STEP_SQRT(a)     sqrtf(a)
#define STEP_MUL64(a, b) ((a) * (b))
#define STEP_ADD64(a, b) ((a) + (b))
#define STEP_DIV64(a, b) ((a) / (b))
#define STEP_FLOAT(a)    ((float)(a))
#endif

#define STEP_NORMAL 1.17549435e-38f /* 2^-126, the smallest normal float32 */
/* 2^-126 - 2^-151: the smallest magnitude that rounds to STEP_NORMAL in 24 bits */
#define STEP_ROUNDS_UP 1.17549431578982589e-38

/* Returns 0 with the sign of x if x is subnormal; otherwise x. */
STEP_FN float step_normal(float x)
{
	return fabsf(x) < STEP_NORMAL ? copysignf(0, x) : x;
}

/* If a sum of two float32 numbers is subnormal, it is exact, so no rounding has to be
 * considered. */
STEP_FN float step_add(float a, float b)
{
	return step_normal(STEP_ADD(a, b));
}

/* The product of two float32 numbers is exact as a double, so the double shows how the product
 * rounds. */
STEP_FN float step_mul(float a, float b)
{
	float r = STEP_MUL(a, b);

	if (fabsf(r) > STEP_NORMAL)
		return r;
	return fabs(STEP_MUL64((double)a, (double)b)) < STEP_ROUNDS_UP ? copysignf(0, r) : r;
}

/* A quotient of float32 numbers is never so close to STEP_ROUNDS_UP that rounding to double reaches
 * this number. */
STEP_FN float step_div(float a, float b)
{
	float r = STEP_DIV(a, b);

	if (fabsf(r) > STEP_NORMAL)
		return r;
	return fabs(STEP_DIV64((double)a, (double)b)) < STEP_ROUNDS_UP ? copysignf(0, r) : r;
}

/* Computes the new weight from the weight `w`, its gradient `g` and the state *first and *second of
 * the optimizer, which it updates. *first or *second is 0 if the optimizer has no such state
 * vector. */
STEP_FN float step_value(enum device_rule rule, const struct step_coeff c, float w, float g,
	float *first, float *second)
{
	w = step_normal(w);
	g = step_normal(g);
	const float s = step_normal(*first), q = step_normal(*second);
	const float d = step_add(step_mul(c.scale, g), step_mul(c.decay, w));
	float move;

	switch (rule) {
	case DEVICE_SGD:
		move = step_mul(c.rate, d);
		break;
	case DEVICE_MOMENTUM:
		*first = step_add(step_mul(c.keep, s), d);
		move = step_mul(c.rate, *first);
		break;
	case DEVICE_NESTEROV:
		*first = step_add(step_mul(c.keep, s), d);
		move = step_mul(c.rate, step_add(d, step_mul(c.keep, *first)));
		break;
	case DEVICE_ADAGRAD:
		*first = step_add(s, step_mul(d, d));
		move = step_div(step_mul(c.rate, d), step_add(STEP_SQRT(*first), c.eps));
		break;
	case DEVICE_RMSPROP:
		*first = step_add(
			step_mul(c.square_keep, s), step_mul(c.square_add, step_mul(d, d)));
		move = step_div(step_mul(c.rate, d), step_add(STEP_SQRT(*first), c.eps));
		break;
	default: /* the last rule, DEVICE_ADAM */
		*first = step_add(step_mul(c.keep, s), step_mul(c.add, d));
		*second = step_add(
			step_mul(c.square_keep, q), step_mul(c.square_add, step_mul(d, d)));
		move = step_div(step_mul(c.rate, *first), step_add(STEP_SQRT(*second), c.eps));
		break;
	}
	return step_add(w, -move);
}

/* Returns `c` with 0 in place of each subnormal number. */
STEP_FN struct step_coeff step_constants(struct step_coeff c)
{
	c.rate = step_normal(c.rate);
	c.scale = step_normal(c.scale);
	c.decay = step_normal(c.decay);
	c.eps = step_normal(c.eps);
	c.keep = step_normal(c.keep);
	c.add = step_normal(c.add);
	c.square_keep = step_normal(c.square_keep);
	c.square_add = step_normal(c.square_add);
	return c;
}

/* Moves a running statistic from `from` towards the statistic of the batches. */
STEP_FN float step_running(double part, float from, float batch)
{
	return STEP_FLOAT(
		STEP_ADD64(STEP_MUL64(1 - part, (double)from), STEP_MUL64(part, (double)batch)));
}

#endif
