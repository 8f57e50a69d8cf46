/*
 * plan.h - a model as the cpu device runs it: layers fused into steps, planes of values between
 * them, and tables that say where everything lies. Made once per backend; read-only afterwards.
 *
 * Inside the device values are stored rows x columns x channels (the reverse of the outside), so
 * that a patch's row is one run of floats and neighbouring channels make a vector. The zeros around
 * a conv's input are part of the plane that it reads: written once, when memory is allocated.
 *
 * An fc layer is a conv whose window covers its whole input.
 */
#ifndef KERNELS_CPU_PLAN_H
#define KERNELS_CPU_PLAN_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/model.h"
#include "kernels/cpu/simd.h"

#define PLANE_ALIGN (2 * SIMD_MAX_LANES) /* floats; also the slack behind the last image */

/* What stands between two steps, for one image. */
struct plane {
	struct shape shape;
	size_t row;    /* floats from row to row, padding included */
	size_t origin; /* float of the first value, behind the padding */
	size_t image;  /* floats from image to image, a multiple of PLANE_ALIGN */
};

enum step_kind {
	STEP_WEIGHTS, /* conv or fc, with the relu and the pool behind it */
	STEP_POOL,    /* a pool on its own */
	STEP_RELU,    /* a relu on its own, in place */
	STEP_DROPOUT, /* in place */
};

/* How a weighted step computes one of its three products. */
enum way {
	WAY_NONE,   /* errors that nobody needs */
	WAY_DENSE,  /* every position, in tiles of registers */
	WAY_SPARSE, /* argmaxes only */
	WAY_BLAS,   /* OpenBLAS: one window per image, and more weights than a core's cache holds */
};

struct step {
	enum step_kind kind;
	size_t layer;   /* number of its (first) layer */
	float drop;     /* dropout */
	size_t in, out; /* planes; equal: in place */
	int relu, pooled;

	/* weights and pool: windows and their positions in window order; without pooling one each */
	size_t n_windows, n_positions, max_positions; /* max_positions: in one window */
	uint32_t *first;    /* of each window: its first position; n_windows + 1 */
	uint32_t *position; /* of each position: its patch in the input plane, in floats */
	uint32_t *to;       /* of each window: its values in the output plane, in floats */

	/* weights: filter f's weight for tap k is params[weight + f * n_taps + param[k]] */
	size_t filters, n_taps;
	size_t columns;      /* filters in whole vectors, see columns_pad */
	size_t taps_pad;     /* n_taps in whole simd.taps */
	uint32_t *tap;       /* of each tap: where in a patch, in floats; taps_pad, zeros behind */
	uint32_t *param;     /* of each tap: its number among a filter's weights; n_taps */
	size_t weight, bias; /* offsets in params */
	struct patch patch;
	enum way forward, filter, data; /* values; the weights' gradient; the input's errors */

	/* offsets in the packed parameters and in a thread's gradient, floats (see pack.c) */
	size_t panel, panel_bias, other;
	size_t grad, grad_bias;
};

struct plan {
	const struct simd *simd;
	size_t n_planes, n_steps;
	struct plane plane[MODEL_MAX_LAYERS + 1];
	struct step step[MODEL_MAX_LAYERS];
	size_t packed_floats, grad_floats;
	int blas;             /* some step goes that way */
	size_t max_positions; /* in a window of any step */
	size_t max_entries;   /* of one image in a sparse step */
	uint32_t *identity;   /* 0, 1, 2...: as many as any step has filters */
};

/* Release with plan_release, also after a failure. PS_ENOMEM: tables or planes too large. */
int plan_init(struct plan *p, const struct model *m, const struct simd *simd,
	struct err *e) PS_MUST_CHECK;
void plan_release(struct plan *p);

/* `n` filters in panels: whole panels of two vectors, the last one of one if that is enough. */
size_t columns_pad(const struct simd *simd, size_t n);
/* The panel that starts at filter (or column) `first` of `n`. */
struct columns columns_at(const struct simd *simd, size_t n, size_t first);
/* `n` rounded up to a multiple of `unit`. */
size_t round_up(size_t n, size_t unit);
/* Floats between a filter's lists of entries: room for every window, in whole SIMD_ENTRIES. */
size_t entries_pad(const struct step *s);

#endif
