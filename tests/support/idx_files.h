/* idx_files.h - small IDX files for the tests of the modules that read IDX files. */
#ifndef TESTS_SUPPORT_IDX_FILES_H
#define TESTS_SUPPORT_IDX_FILES_H
#include <zlib.h>
#include "tests/support/temp_dir.h"

struct blob {
	unsigned char bytes[8192];
	size_t size;
};

void blob_be32(struct blob *b, uint32_t v);

/* Returns a file with images of rows x cols pixels. The pixel values count up from `seed`. */
struct blob blob_images(uint32_t n, uint32_t rows, uint32_t cols, unsigned seed);
/* Returns a file like that of blob_images, but with channels (idx4). */
struct blob blob_planes(uint32_t n, uint32_t channels, uint32_t rows, uint32_t cols, unsigned seed);
struct blob blob_labels(uint32_t n);
struct blob blob_gzip(const struct blob *plain);

#endif
