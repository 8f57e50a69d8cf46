/*
 * rungs.c - the table of rungs, slowest first, and helpers for all rungs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "kernels/ladder/ladder.h"

#define PAGE ((size_t)4096)

extern const struct rung rung_sequential;
#if defined(KX_CUDA)
extern const struct rung rung_thread, rung_fused, rung_ring, rung_wide_ring, rung_products,
	rung_tiled, rung_staged, rung_dense, rung_pinned, rung_graph, rung_tensor, rung_forward,
	rung_recomputed, rung_production, rung_local, rung_bf16, rung_persistent;
#endif

const struct rung *const ladder_rungs[] = {
	&rung_sequential,
#if defined(KX_CUDA)
	&rung_thread,
	&rung_fused,
	&rung_ring,
	&rung_wide_ring,
	&rung_products,
	&rung_tiled,
	&rung_staged,
	&rung_dense,
	&rung_pinned,
	&rung_graph,
	&rung_tensor,
	&rung_forward,
	&rung_recomputed,
	&rung_production,
	&rung_local,
	&rung_bf16,
	&rung_persistent,
#endif
};
const size_t ladder_n_rungs = sizeof(ladder_rungs) / sizeof(ladder_rungs[0]);

const struct rung_bounds ladder_exact = {.min_batch = 1, .max_batch = SIZE_MAX, .tolerance = 1e-5};

const struct rung_bounds *ladder_bounds(const struct rung *r)
{
	return r->bounds ? r->bounds : &ladder_exact;
}

int ladder_runs(const struct rung *r, size_t batch)
{
	const struct rung_bounds *b = ladder_bounds(r);

	return b->min_batch <= batch && batch <= b->max_batch;
}

int ladder_model(struct model *m, size_t filters, struct err *e)
{
	char text[32];

	snprintf(text, sizeof(text), "seed:%zu", filters);
	return model_parse(m, text, (struct shape){1, 28, 28}, e);
}

float *ladder_floats(size_t n)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, sizeof(float), &bytes) || bytes > PTRDIFF_MAX - PAGE)
		return NULL;
	bytes = (bytes / PAGE + 1) * PAGE;
	void *p = aligned_alloc(PAGE, bytes);
	return p ? memset(p, 0, bytes) : NULL;
}

#if !defined(KX_CUDA)
int ladder_has_gpu(const char **why)
{
	*why = "this program was built without CUDA";
	return 0;
}

int ladder_memory(struct err *e)
{
	return err_set(e, PS_EUSAGE, "memory: this program was built without CUDA");
}
#endif
