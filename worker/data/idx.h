/*
 * idx.h - one IDX file (MNIST's format: big-endian header, then unsigned bytes), plain or gzipped,
 * read whole into memory.
 *
 * The file is not trusted. Invariants:
 * (1) the reader checks the product of the header's dimensions before it allocates memory. The
 *     product must be the size of a plain file, or at most what deflate can produce from a gzipped
 *     file;
 * (2) the data have exactly the size in the header, there is no second gzip member, no bytes
 *     follow, and gzip's checksum is correct;
 * (3) a refusal is PS_EDATA and names the file, the field and the offset.
 * Thread: any.
 */
#ifndef WORKER_DATA_IDX_H
#define WORKER_DATA_IDX_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define IDX_MAX_BYTES ((uint64_t)2 << 30) /* decompressed, with header */
#define IDX_MAX_COUNT ((uint32_t)1 << 24) /* images or labels */
#define IDX_MAX_SIDE  4096u               /* rows or columns of an image */

struct idx {
	uint8_t *bytes; /* header and values; owned */
	size_t size;
	const uint8_t *values; /* inside bytes */
	uint32_t dim[3];       /* count, rows, columns; unused ones are 1 */
};

/* Read `path`, which must have `ndim` dimensions: 1 (labels) or 3 (images). On failure *x is
 * zeroed. PS_EDATA, PS_ENOMEM. */
int idx_read(struct idx *x, const char *path, unsigned ndim, struct err *e) PS_MUST_CHECK;
void idx_release(struct idx *x);

#endif
