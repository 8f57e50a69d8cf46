/* store_values.c - see store_values.h. */
#include "tests/support/store_values.h"
#include <math.h>
#include <string.h>

/* Returns a value whose exponent is from `low` to `low` + 31; if low is 0, the value may be
 * subnormal. */
static float random_value_of(struct rng *r, uint32_t low)
{
	uint64_t x = rng_next(r);
	uint32_t exponent = low + (uint32_t)(x >> 32) % 32;
	uint32_t bits = (uint32_t)(x & 0x807fffffu) | exponent << 23;
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

void store_values(struct rng *r, float *v, size_t n)
{
	static const uint32_t low[] = {0, 0, 40, 60, 100, 110, 110, 120};

	for (size_t i = 0; i < n; i++) {
		uint64_t kind = rng_below(r, 9);

		v[i] = kind == 8 ? copysignf(0, random_value_of(r, 100))
				 : random_value_of(r, low[kind]);
	}
}

void store_state(struct rng *r, const struct optim *o, float *const state[OPTIM_VECTORS], size_t n)
{
	for (size_t v = 0; v < optim_vectors(o->kind); v++) {
		store_values(r, state[v], n);
		for (size_t i = 0; optim_is_square(o->kind, v) && i < n; i++)
			state[v][i] = fabsf(state[v][i]);
	}
}
