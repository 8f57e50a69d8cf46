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
#include "proto/wire.h"

uint64_t wire_hash(const void *data, size_t size);
/* Sets *chunk to the results for `count` floats, in one pass over the memory (struct wire_pass).
 * The checksum is that of wire_hash. The peak is the maximum of the float32 bit patterns without
 * the sign bit. */
void wire_pass_over(
	const float *data, size_t count, struct chunk *chunk, const struct wire_pass *pass);
/* Converts `count` bfloat16 values (bf16.h), with any alignment, to floats, and sets *chunk to the
 * results for these values, in the same pass. The checksum is that of the bfloat16 bytes; 0 if
 * `needs_hash` is 0. `pass` may be NULL, as in wire_copy_chunk. */
void wire_unpack_bf16(float *to, const void *from, size_t count, int needs_hash,
	struct chunk *chunk, const struct wire_pass *pass);
/* Copies `size` bytes, as memcpy does, and returns the wire_hash of these bytes. The function makes
 * only one pass over the memory, because it hashes each block while the block is in the cache. */
uint64_t wire_copy_hash(void *restrict to, const void *restrict from, size_t size);

#endif
