/*
 * lbfgs.h - limited-memory BFGS as a state machine that runs between passes. The method uses the
 * two-loop recursion of Nocedal 1980 (Nocedal & Wright, Numerical Optimization, algorithm 7.4), and
 * a line search for the weak Wolfe conditions by bisection (Lewis & Overton 2013). The server
 * publishes each trial point of the search as the current weights. Workers compute the loss and the
 * gradient of a trial point as for any other weights.
 *
 * With the step length t, the Armijo condition is f(x + t d) <= f(x) + armijo * t * (g . d), and
 * the Wolfe condition is g(x + t d) . d >= wolfe * (g . d). A step changes the weights by s and the
 * gradient by y; the history keeps this pair (s, y) only if y . s > 1e-10 y . y. The core drops the
 * history if the search direction does not descend, or if the search finds no better point along
 * this direction. If the search finds no better point even along the negative gradient, the step
 * ends at its starting point, and the next step begins with a pass that computes f and g there
 * again.
 */
#ifndef SERVER_CORE_LBFGS_H
#define SERVER_CORE_LBFGS_H
#include <stddef.h>
#include <stdint.h>

#define LBFGS_MAX_HISTORY 32

struct core;

struct lbfgs {
	/* 1: f and g are the loss and gradient at x for the images of this step */
	int known;
	int searching; /* 1: the pass of a trial point is under way */
	/* pairs: number of pairs in the history; newest: ring index of the newest pair */
	uint32_t pairs, newest;
	uint32_t trials; /* number of points that this search has tried */
	double f, slope; /* f: loss at x; slope: g . d */
	/* step: step length of this trial; low, high: the range of step lengths that the search
	 * still considers; high is 0 while the range has no upper end */
	double step, low, high;
	/* ys: y . s of each pair; yy: y . y of the newest pair */
	double ys[LBFGS_MAX_HISTORY], yy;
	float *x, *g, *d; /* n_params floats each: point, gradient, direction */
	float *s[LBFGS_MAX_HISTORY], *y[LBFGS_MAX_HISTORY];
};

/* Returns the number of vectors of n_params floats that L-BFGS needs if it keeps `history`
 * pairs. */
size_t lbfgs_vectors(uint32_t history);
/* Begins a step on a new set of images; `same` is 1 if it has the same images as the last step. If
 * f and g are known, publishes the first trial point and returns 1. Otherwise returns 0, and the
 * first pass computes f and g at the current weights. */
int lbfgs_begin(struct core *c, int same);
/* Called when a pass has ended with loss `f` and gradient `g` at the current weights. Returns 1 if
 * the step is done; its result is then the current weights. Returns 0 if the function has published
 * another trial point. */
int lbfgs_pass(struct core *c, double f, const float *g);

#endif
