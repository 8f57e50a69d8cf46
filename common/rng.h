/*
 * rng.h - the project's only random generator, and the order of images that it defines.
 *
 * The generator is SplitMix64 (Steele, Lea, Flood 2014), which is short and easy to write in any
 * language. proto/WIRE.md specifies every random draw that must be equal in all programs.
 *
 * The functions have no state except the struct, and any thread may call them.
 */
#ifndef COMMON_RNG_H
#define COMMON_RNG_H
#include <stddef.h>
#include <stdint.h>

struct rng {
	uint64_t state;
};

/* Each value names one of the independent streams of a seed, and is the second argument of
 * rng_seed. */
enum rng_stream {
	RNG_INIT = 1,      /* initial weights; sub-stream: tensor number */
	RNG_ORDER = 2,     /* order of images; sub-stream: epoch */
	RNG_DROPOUT = 3,   /* dropout masks; sub-stream: see kernels/backend.h */
	RNG_BACKOFF = 4,   /* random part of the wait before a reconnect */
	RNG_SIM = 5,       /* all random choices of tests/sim */
	RNG_AUGMENT = 6,   /* shifts and flips; sub-stream: (epoch << 32) | image number */
	RNG_HOLD_BACK = 7, /* choice of images for --validate; always seed 0, sub-stream 0 */
};

/* Returns a generator with state = mix(mix(mix(seed) ^ stream) ^ sub), where mix is rng_mix. */
struct rng rng_seed(uint64_t seed, enum rng_stream stream, uint64_t sub);
/* Returns the result of SplitMix64's output function for x + 0x9e3779b97f4a7c15. */
uint64_t rng_mix(uint64_t x);
/* Returns the next 64 bits: adds 0x9e3779b97f4a7c15 to the state, and returns the output function
 * of the result. */
uint64_t rng_next(struct rng *r);
/* Returns the high 64 bits of the 128-bit product rng_next() * n, which is a uniform number in [0,
 * n). `n` must be at least 1. */
uint64_t rng_below(struct rng *r, uint64_t n);
/* Returns the upper 53 bits of rng_next() times 2^-53, which is a uniform number in [0, 1). */
double rng_unit(struct rng *r);
/*
 * Computes the order of images in `epoch` (from 0), which is a permutation of 0..n-1. The algorithm
 * is the Fisher-Yates shuffle with the RNG_ORDER stream: for i = n-1 down to 1, swap order[i] with
 * order[rng_below(i + 1)].
 */
void rng_order(uint64_t seed, uint32_t epoch, uint32_t *order, size_t n);
/* Computes order[] as rng_order does, but with the stream RNG_HOLD_BACK. The first numbers in
 * order[] are the images that --validate holds back: the same for every seed of the run. */
void rng_hold_back(uint32_t *order, size_t n);

#endif
