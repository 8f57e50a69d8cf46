/* idx_files.c - see idx_files.h. */
#include "tests/support/idx_files.h"

void blob_be32(struct blob *b, uint32_t v)
{
	for (int shift = 24; shift >= 0; shift -= 8)
		b->bytes[b->size++] = (unsigned char)(v >> shift);
}

struct blob blob_images(uint32_t n, uint32_t rows, uint32_t cols, unsigned seed)
{
	struct blob b = {.size = 0};

	blob_be32(&b, 0x0803);
	blob_be32(&b, n);
	blob_be32(&b, rows);
	blob_be32(&b, cols);
	for (uint32_t i = 0; i < n * rows * cols; i++)
		b.bytes[b.size++] = (unsigned char)(seed + i * 7);
	return b;
}

struct blob blob_planes(uint32_t n, uint32_t channels, uint32_t rows, uint32_t cols, unsigned seed)
{
	struct blob b = {.size = 0};

	blob_be32(&b, 0x0804);
	blob_be32(&b, n);
	blob_be32(&b, channels);
	blob_be32(&b, rows);
	blob_be32(&b, cols);
	for (uint32_t i = 0; i < n * channels * rows * cols; i++)
		b.bytes[b.size++] = (unsigned char)(seed + i * 7);
	return b;
}

struct blob blob_labels(uint32_t n)
{
	struct blob b = {.size = 0};

	blob_be32(&b, 0x0801);
	blob_be32(&b, n);
	for (uint32_t i = 0; i < n; i++)
		b.bytes[b.size++] = (unsigned char)(i % 10);
	return b;
}

struct blob blob_gzip(const struct blob *plain)
{
	struct blob b = {.size = 0};
	z_stream z = {.next_in = (unsigned char *)(uintptr_t)plain->bytes,
		.avail_in = (uInt)plain->size,
		.next_out = b.bytes,
		.avail_out = sizeof(b.bytes)};

	assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 31, 9, Z_DEFAULT_STRATEGY), Z_OK);
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	b.size = z.total_out;
	deflateEnd(&z);
	return b;
}
