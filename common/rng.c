/*
 * rng.c - see rng.h: SplitMix64, and the random draws that must be equal in all programs.
 */
#include "common/rng.h"

#define GOLDEN 0x9e3779b97f4a7c15u

uint64_t rng_mix(uint64_t x)
{
	uint64_t z = x + GOLDEN;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

struct rng rng_seed(uint64_t seed, enum rng_stream stream, uint64_t sub)
{
	return (struct rng){rng_mix(rng_mix(rng_mix(seed) ^ (uint64_t)stream) ^ sub)};
}

uint64_t rng_next(struct rng *r)
{
	uint64_t value = rng_mix(r->state);

	r->state += GOLDEN;
	return value;
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
	__extension__ typedef unsigned __int128 wide;
	return (uint64_t)((wide)rng_next(r) * n >> 64);
}

double rng_unit(struct rng *r)
{
	return (double)(rng_next(r) >> 11) * 0x1p-53;
}

static void shuffle(struct rng r, uint32_t *order, size_t n)
{
	for (size_t i = 0; i < n; i++)
		order[i] = (uint32_t)i;
	for (size_t i = n; i > 1; i--) {
		size_t j = (size_t)rng_below(&r, i);
		uint32_t held = order[i - 1];

		order[i - 1] = order[j];
		order[j] = held;
	}
}

void rng_order(uint64_t seed, uint32_t epoch, uint32_t *order, size_t n)
{
	shuffle(rng_seed(seed, RNG_ORDER, epoch), order, n);
}

void rng_hold_back(uint32_t *order, size_t n)
{
	shuffle(rng_seed(0, RNG_HOLD_BACK, 0), order, n);
}
