/*
 * shrink.c - finds a small case that still fails, by delta debugging. The search removes the parts
 * of a case that sim_limits can exclude, one after the other, and runs the rest. To try a
 * candidate, the search runs the whole simulation again.
 */
#include "tests/sim/shrink.h"

struct search {
	struct sim *s;
	uint64_t seed;
	struct sim_limits best;
	uint32_t runs;
};

#define MAX_RUNS 2000u

/* Runs a candidate. If the candidate also fails, makes it the best case so far and returns 1. */
static int try(struct search *f, struct sim_limits l)
{
	if (f->runs++ >= MAX_RUNS || !sim_run(f->s, f->seed, &l, 0))
		return 0;
	f->best = l;
	return 1;
}

static int fewer_faults(struct search *f)
{
	int better = 0;

	for (uint32_t i = 0; i < SIM_FAULTS; i++) {
		struct sim_limits l = f->best;

		l.faults &= ~(1u << i);
		if (l.faults != f->best.faults)
			better |= try(f, l);
	}
	return better;
}

static int fewer_workers(struct search *f)
{
	for (uint32_t n = 1; n < SIM_WORKERS; n++) {
		struct sim_limits l = f->best;

		l.workers = n;
		if (f->best.workers && n >= f->best.workers)
			return 0;
		if (try(f, l))
			return 1;
	}
	return 0;
}

static int fewer_steps(struct search *f)
{
	for (uint32_t n = 1; n <= 32; n += 1 + n / 4) {
		struct sim_limits l = f->best;

		l.steps = n;
		if (f->best.steps && n >= f->best.steps)
			return 0;
		if (try(f, l))
			return 1;
	}
	return 0;
}

static int calmer(struct search *f)
{
	struct sim_limits l = f->best;

	if (l.calm)
		return 0;
	l.calm = 1;
	return try(f, l);
}

/* Narrows the range [strikes_from, strikes_to) of losses and duplications, by removing smaller and
 * smaller pieces from both ends. */
static int fewer_strikes(struct search *f)
{
	struct sim_limits l = f->best;
	int better = 0;

	if (l.strikes_from == l.strikes_to)
		return 0;
	l.strikes_from = l.strikes_to = 0;
	if (try(f, l))
		return 1;
	l = f->best;
	/* replace "all losses and duplications" by the number of losses and duplications in this
	 * run */
	if (l.strikes_to == UINT64_MAX) {
		(void)sim_run(f->s, f->seed, &l, 0);
		l.strikes_to = f->s->net.strikes;
		if (!try(f, l))
			return 0;
		better = 1;
	}
	for (uint64_t cut = (l.strikes_to - l.strikes_from) / 2; cut; cut /= 2) {
		l = f->best;
		l.strikes_to -= cut;
		while (l.strikes_to > l.strikes_from && try(f, l)) {
			l.strikes_to -= cut < l.strikes_to ? cut : l.strikes_to;
			better = 1;
		}
		l = f->best;
		l.strikes_from += cut;
		while (l.strikes_from < l.strikes_to && try(f, l)) {
			l.strikes_from += cut;
			better = 1;
		}
	}
	return better;
}

struct sim_limits shrink(struct sim *s, uint64_t seed, const struct sim_limits *failing)
{
	struct search f = {.s = s, .seed = seed, .best = *failing};
	int better = 1;

	(void)sim_run(s, seed, failing, 0);
	f.best.mode = s->mode;
	while (better && f.runs < MAX_RUNS)
		better = fewer_faults(&f) | fewer_workers(&f) | fewer_steps(&f) | calmer(&f) |
			 fewer_strikes(&f);
	/* run the best case again, so that `s` contains its violation */
	(void)sim_run(s, seed, &f.best, 0);
	return f.best;
}
