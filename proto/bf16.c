/* bf16.c - see bf16.h. */
#include "proto/bf16.h"
#include "common/clones.h"

PS_CLONES void bf16_pack(void *restrict to, const float *restrict from, size_t count)
{
	unsigned char *out = to;

	for (size_t i = 0; i < count; i++) {
		uint16_t half = bf16_of(from[i]);

		memcpy(out + BF16_BYTES * i, &half, sizeof(half));
	}
}

PS_CLONES uint32_t bf16_unpack(float *restrict to, const void *restrict from, size_t count)
{
	const unsigned char *in = from;
	uint32_t peak = 0;

	for (size_t i = 0; i < count; i++) {
		uint16_t half;

		memcpy(&half, in + BF16_BYTES * i, sizeof(half));
		uint32_t bits = (uint32_t)half << 16;
		memcpy(&to[i], &bits, sizeof(bits));
		bits &= 0x7fffffffu;
		peak = bits > peak ? bits : peak;
	}
	return peak;
}
