/*
 * idx.h - reads one IDX file (MNIST's format: big-endian header, then the values), plain or
 * gzipped. The module reads the whole file into memory or, if the file is plain and large, pieces
 * of it from the disk when they are needed.
 *
 * A file of images holds unsigned bytes (type 0x08) with dimensions N x rows x columns or N x
 * channels x rows x columns. A file of labels holds unsigned bytes or big-endian integers of 16 or
 * 32 bits (types 0x08, 0x0b, 0x0c).
 *
 * The file is not trusted. Invariants:
 * (1) the reader checks the product of the header's dimensions before it allocates memory. The
 *     product must be the size of a plain file, or at most what deflate can produce from a gzipped
 *     file (asserted by read_values;
 *     a_product_that_overflows_is_refused_before_any_allocation,
 *     a_gzipped_header_cannot_promise_more_than_its_bytes_can_hold);
 * (2) nothing is read beyond the size in the header (asserted by idx_copy).
 *
 * Promises:
 * (1) the data have exactly the size in the header, there is no second gzip member, no bytes
 *     follow, and gzip's checksum is correct (bytes_after_the_end_are_refused,
 *     every_truncation_of_a_gzipped_file_is_refused);
 * (2) if a file is refused, the status is PS_EDATA, and the error names the file, the field and the
 *     offset (every_lie_in_the_header_is_refused);
 * (3) a file on the disk that shrinks or cannot be read leads to PS_EDATA and not to a signal,
 *     because it is never mapped (promise_1_a_file_that_shrinks_is_bad_data).
 *
 * Thread: any; several threads may read a file on the disk.
 */
#ifndef WORKER_DATA_IDX_H
#define WORKER_DATA_IDX_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

/* maximum number of bytes of a file in memory, decompressed and with its header */
#define IDX_MAX_BYTES ((uint64_t)2 << 30)
#define IDX_MAX_COUNT ((uint32_t)1 << 24) /* maximum number of images or labels */
#define IDX_MAX_SIDE  4096u /* maximum number of channels, rows or columns of an image */
#define IDX_MAX_LABEL 65535u

enum idx_kind { IDX_LABELS, IDX_IMAGES };

struct idx {
	/* header and values; owned; NULL: they are on the disk */
	uint8_t *bytes;
	uint64_t size;         /* size of the file, decompressed */
	size_t head;           /* number of bytes before the values */
	const uint8_t *values; /* the values in `bytes`, or NULL */
	/* path of a file on the disk, for error messages; owned */
	char *path;
	int fd; /* descriptor of a file on the disk */
	/* bytes of a value: 1 for images; 1, 2 or 4 for labels */
	unsigned width;
	/* n: number of images or labels; the other three are 1 for labels */
	uint32_t n, channels, rows, columns;
};

/* Reads `path` into memory. On failure *x is zeroed. PS_EDATA, PS_ENOMEM. */
int idx_read(struct idx *x, const char *path, enum idx_kind kind, struct err *e) PS_MUST_CHECK;
/* Reads a file like idx_read, but a plain file of more than `memory` or IDX_MAX_BYTES bytes stays
 * on the disk. A larger gzipped file is refused with PS_EDATA. */
int idx_open(struct idx *x, const char *path, enum idx_kind kind, uint64_t memory,
	struct err *e) PS_MUST_CHECK;
/* Sets *n to the number of images or labels in the header of `path`, without allocating memory for
 * them. */
int idx_count(uint32_t *n, const char *path, enum idx_kind kind, struct err *e) PS_MUST_CHECK;
/* Copies n bytes of the file from offset `at` on; at + n <= x->size. PS_EDATA: the file on the disk
 * has become shorter or cannot be read. */
int idx_copy(const struct idx *x, uint64_t at, size_t n, uint8_t *to, struct err *e) PS_MUST_CHECK;
/* Writes the labels of `x`, which is in memory, to label[0..x->n). PS_EDATA: a label is not in [0,
 * IDX_MAX_LABEL]. */
int idx_labels(const struct idx *x, const char *path, uint16_t *label, struct err *e) PS_MUST_CHECK;
void idx_release(struct idx *x);

#endif
