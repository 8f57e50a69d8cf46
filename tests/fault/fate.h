/*
 * fate.h - what a bad wire does to a packet: badwire.c's rules, and the pure function that applies
 * them. Included by it alone.
 *
 * Invariant: what happens to the n-th packet of a direction is a function of seed, direction, n and
 * rules.
 */
#ifndef TESTS_FAULT_FATE_H
#define TESTS_FAULT_FATE_H
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/rng.h"

#define PORTS   18
#define MILLION 1000000

struct rules {
	uint64_t delay, jitter, hold, loss, dup, reorder, corrupt, rate, queue;
};

struct fate {
	int lost, doubled, overtaken, corrupt;
	int64_t delay; /* microseconds */
	uint64_t bit;  /* to flip, modulo the packet's size */
};

static inline struct fate fate_of(
	uint64_t seed, int from, int to, uint64_t n, const struct rules *r)
{
	struct rng g = {
		.state = rng_mix(rng_mix(rng_mix(seed) ^ (uint64_t)(from * PORTS + to)) ^ n)};
	struct fate f = {0};

	f.lost = rng_below(&g, MILLION) < r->loss;
	f.doubled = rng_below(&g, MILLION) < r->dup;
	f.overtaken = rng_below(&g, MILLION) < r->reorder;
	f.corrupt = rng_below(&g, MILLION) < r->corrupt;
	f.delay = (int64_t)(r->delay + rng_below(&g, 2 * r->jitter + 1)) - (int64_t)r->jitter;
	f.bit = rng_next(&g);
	if (f.delay < 0)
		f.delay = 0;
	if (f.overtaken)
		f.delay += (int64_t)r->hold;
	return f;
}

static int read_number(const char *text, uint64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoull(text, &end, 10);
	return errno || end == text || *end || *out > UINT32_MAX ? -1 : 0;
}

static inline int set_rule(struct rules *r, const char *word)
{
	const struct {
		const char *name;
		uint64_t *value;
	} row[] = {{"delay=", &r->delay}, {"jitter=", &r->jitter}, {"hold=", &r->hold},
		{"loss=", &r->loss}, {"dup=", &r->dup}, {"reorder=", &r->reorder},
		{"corrupt=", &r->corrupt}, {"rate=", &r->rate}, {"queue=", &r->queue}};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		if (!strncmp(word, row[i].name, strlen(row[i].name)))
			return read_number(word + strlen(row[i].name), row[i].value);
	return -1;
}

#endif
