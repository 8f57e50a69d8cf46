/*
 * checksum.h - computes XXH3-64 at the speed of the memory. At run time the XXH3 library selects
 * AVX2 or AVX-512 if the CPU has it.
 *
 * Besides tests, only files of proto/ include this header. The functions are pure, and any thread
 * may call them.
 */
#ifndef PROTO_CHECKSUM_H
#define PROTO_CHECKSUM_H
#include <stddef.h>
#include <stdint.h>
#include "common/engine.h"

uint64_t wire_hash(const void *data, size_t size);
/* Returns the wire_hash of `count` floats. In the same pass over the memory, sets *peak to the bits
 * of the largest magnitude, which is the maximum of the float32 bit patterns without the sign bit.
 * The engine (NULL: none) finds the magnitudes while the caller's thread computes the hash, which
 * has to take the values in their order. */
uint64_t wire_hash_peak(
	const float *data, size_t count, uint32_t *peak, const struct engine *engine);
/* Copies `size` bytes, as memcpy does, and returns the wire_hash of these bytes. The function makes
 * only one pass over the memory, because it hashes each block while the block is in the cache. */
uint64_t wire_copy_hash(void *restrict to, const void *restrict from, size_t size);

#endif
