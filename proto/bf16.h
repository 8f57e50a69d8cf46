/*
 * bf16.h - converts float32 to bfloat16 and back. A bfloat16 is the upper half of a float32: its
 * sign, its exponent and 7 bits of its fraction.
 *
 * The conversion to bfloat16 rounds to the nearest value, and to an even fraction if two values are
 * equally near. Infinity stays infinity, and a magnitude above the largest bfloat16 becomes
 * infinity. A NaN stays a NaN with the same sign and the upper bits of its payload. The conversion
 * to float32 is exact. The functions are pure, and any thread may call them.
 */
#ifndef PROTO_BF16_H
#define PROTO_BF16_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BF16_BYTES 2u /* bytes of a value on the wire, little-endian */

/* Rounds the bits of a float32 to the bits of a bfloat16. The function has no branch, so that the
 * compiler can vectorize the loops that call it. */
static inline uint16_t bf16_of_bits(uint32_t bits)
{
	uint32_t upper = bits >> 16;
	uint32_t rounded = (bits + 0x7fffu + (upper & 1)) >> 16;
	/* without the quiet bit, a NaN whose payload is only in the lower half would become
	 * infinity */
	uint32_t nan = upper & 0x7fu ? upper : upper | 0x40u;

	uint32_t is_nan = -(uint32_t)((bits & 0x7fffffffu) > 0x7f800000u);

	return (uint16_t)((nan & is_nan) | (rounded & ~is_nan));
}

static inline uint16_t bf16_of(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bf16_of_bits(bits);
}

static inline float bf16_float(uint16_t half)
{
	uint32_t bits = (uint32_t)half << 16;
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* Rounds `count` floats. `to` has room for count * BF16_BYTES bytes, with any alignment. */
void bf16_pack(void *restrict to, const float *restrict from, size_t count);
/* Converts `count` bfloat16 values to float32. `from` may have any alignment. Returns the largest
 * magnitude among them, as the bits of a float32; NaN counts as larger than all numbers. */
uint32_t bf16_unpack(float *restrict to, const void *restrict from, size_t count);

#endif
