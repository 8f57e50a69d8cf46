/*
 * checksum.h - XXH3-64 at the speed of memory: the library's run-time dispatch picks AVX2 or
 * AVX-512 where the CPU has them.
 *
 * Internal to proto/. Pure. Thread: any.
 */
#ifndef PROTO_CHECKSUM_H
#define PROTO_CHECKSUM_H
#include <stddef.h>
#include <stdint.h>

uint64_t wire_hash(const void *data, size_t size);
/* wire_hash of floats; *peak becomes the largest of their bits without the sign, in the same pass.
 */
uint64_t wire_hash_peak(const float *data, size_t count, uint32_t *peak);
/* memcpy, and the wire_hash of what was copied, in one pass: each block is hashed while the cache
 * still has it. */
uint64_t wire_copy_hash(void *restrict to, const void *restrict from, size_t size);

#endif
