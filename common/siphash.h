/*
 * siphash.h - SipHash-2-4 (Aumasson and Bernstein 2012) of 64-bit words: a message authentication
 * code. Without the key, nobody can compute the code of new words, even from the codes of many
 * other words.
 *
 * The function is pure, and any thread may call it.
 */
#ifndef COMMON_SIPHASH_H
#define COMMON_SIPHASH_H
#include <stddef.h>
#include <stdint.h>

static inline uint64_t siphash_rotate(uint64_t x, unsigned n)
{
	return x << n | x >> (64 - n);
}

static inline void siphash_round(uint64_t v[4])
{
	v[0] += v[1];
	v[1] = siphash_rotate(v[1], 13) ^ v[0];
	v[0] = siphash_rotate(v[0], 32);
	v[2] += v[3];
	v[3] = siphash_rotate(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = siphash_rotate(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = siphash_rotate(v[1], 17) ^ v[2];
	v[2] = siphash_rotate(v[2], 32);
}

static inline void siphash_word(uint64_t v[4], uint64_t word)
{
	v[3] ^= word;
	siphash_round(v);
	siphash_round(v);
	v[0] ^= word;
}

/* Returns the SipHash code of `n` words. The input of the hash is the 8 little-endian bytes of each
 * word. */
static inline uint64_t siphash(const uint64_t key[2], const uint64_t *word, size_t n)
{
	uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du,
		key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u};

	for (size_t i = 0; i < n; i++)
		siphash_word(v, word[i]);
	siphash_word(v, (uint64_t)(8 * n) << 56);
	v[2] ^= 0xff;
	for (int i = 0; i < 4; i++)
		siphash_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
