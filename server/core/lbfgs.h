/*
 * lbfgs.h - limited-memory BFGS as a state machine between passes: Nocedal 1980's two loops
 * (Nocedal & Wright, Numerical Optimization, algorithm 7.4), and a line search for the weak Wolfe
 * conditions by bisection (Lewis & Overton 2013). Each point that the search looks at is published
 * as the current weights; workers compute its loss and gradient like any others.
 *
 * Armijo: f(x + s d) <= f(x) + armijo * s * (g . d);  Wolfe: g(x + s d) . d >= wolfe * (g . d).
 * Guards: a pair is kept only if y . s > 1e-10 y . y; the history is dropped when the direction
 * does not go down, or the search finds nothing along it; if even the gradient's direction gives
 * nothing, the step ends where it began.
 */
#ifndef SERVER_CORE_LBFGS_H
#define SERVER_CORE_LBFGS_H
#include <stddef.h>
#include <stdint.h>

#define LBFGS_MAX_HISTORY 32

struct core;

struct lbfgs {
	int known;                        /* f and g are those of x on the present window */
	int searching;                    /* a trial's pass is under way */
	uint32_t pairs, newest;           /* pairs kept; ring index of the newest */
	uint32_t trials;                  /* points that this search has looked at */
	double f, slope;                  /* at x; slope = g . d */
	double step, low, high;           /* of this trial; bracket, high 0: none yet */
	double ys[LBFGS_MAX_HISTORY], yy; /* y . s of each pair; y . y of the newest */
	float *x, *g, *d;                 /* n_params each */
	float *s[LBFGS_MAX_HISTORY], *y[LBFGS_MAX_HISTORY];
};

/* Vectors of n_params floats that it needs with this history. */
size_t lbfgs_vectors(uint32_t history);
/* A step begins on a new window; `same`: of the same images as the last one. If f and g are known
 * the first trial is published: 1. Else the first pass looks at the current weights: 0. */
int lbfgs_begin(struct core *c, int same);
/* A pass has ended: loss and gradient at the current weights. 1: the step is done, the weights are
 * its result. 0: another point was published, or the search begins now. */
int lbfgs_pass(struct core *c, double f, const float *g);

#endif
