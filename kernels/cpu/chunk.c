/*
 * chunk.c - see chunk.h.
 */
#include "kernels/cpu/chunk.h"

struct chunk chunk_at(const struct lane *l, size_t i, float *const *out, size_t window, size_t n)
{
	const struct step *s = &l->plan->step[i];
	const struct table *t = &l->table[i];

	return (struct chunk){.n_windows = n,
		.n_positions = t->first[window + n] - t->first[window],
		.max_positions = s->max_positions,
		.source = t->source + t->first[window],
		.first = t->first + window,
		.out = out + window,
		.argmax = s->pooled ? l->argmax[i] + window * s->filters : NULL,
		.filters = s->filters};
}
