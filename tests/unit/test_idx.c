/* test_idx.c - proves the invariants numbered in worker/data/idx.h, with damaged files and with
 * files whose header contradicts their content. Covers attacks A17 and A18 of docs/faults.md. */
#include "tests/support/idx_files.h"
#include <sys/stat.h>
#include <unistd.h>
#include "common/rng.h"
#include "worker/data/idx.h"
#include "tests/support/test.h"

static char path[80];

static int read_idx_blob(const struct blob *b, enum idx_kind kind, struct idx *x, struct err *e)
{
	temp_file_put(path, b->bytes, b->size);
	return idx_read(x, path, kind, e);
}

/* Checks that idx.c refuses the file as bad data, that the error is one line with the name of the
 * file and the text `words`, and that the caller has nothing to release. */
static void assert_idx_refused(const struct blob *b, enum idx_kind kind, const char *words)
{
	struct idx x;
	struct err e = {0};

	assert_int_equal(read_idx_blob(b, kind, &x, &e), PS_EDATA);
	assert_null(x.bytes);
	assert_non_null(strstr(e.text, path));
	assert_null(strchr(e.text, '\n'));
	if (!strstr(e.text, words))
		fail_msg("\"%s\" does not say \"%s\"", e.text, words);
}

static struct blob with_be32(struct blob b, size_t offset, uint32_t v)
{
	struct blob word = {.size = 0};

	blob_be32(&word, v);
	memcpy(b.bytes + offset, word.bytes, 4);
	return b;
}

TEST(plain_and_gzipped_files_read_alike)
{
	struct blob plain = blob_images(2, 28, 28, 5), zipped = blob_gzip(&plain);
	const struct blob *forms[] = {&plain, &zipped};

	for (int i = 0; i < 2; i++) {
		struct idx x;
		struct err e;

		assert_int_equal(read_idx_blob(forms[i], IDX_IMAGES, &x, &e), PS_OK);
		assert_int_equal(x.size, plain.size);
		assert_memory_equal(x.bytes, plain.bytes, plain.size);
		assert_ptr_equal(x.values, x.bytes + 16);
		assert_int_equal(x.n, 2);
		assert_int_equal(x.rows, 28);
		assert_int_equal(x.columns, 28);
		idx_release(&x);
	}
}

TEST(labels_have_one_dimension)
{
	struct blob labels = blob_labels(11);
	struct idx x;
	struct err e;

	assert_int_equal(read_idx_blob(&labels, IDX_LABELS, &x, &e), PS_OK);
	assert_int_equal(x.n, 11);
	assert_int_equal(x.rows, 1);
	assert_ptr_equal(x.values, x.bytes + 8);
	idx_release(&x);
	assert_idx_refused(&labels, IDX_IMAGES, "magic at offset 0 is 0x00000801");
}

TEST(every_lie_in_the_header_is_refused)
{
	struct blob images = blob_images(2, 28, 28, 0);
	const struct {
		size_t offset;
		uint32_t value;
		const char *words;
	} lies[] = {
		{0, 0x0801, "magic at offset 0 is 0x00000801"},
		{0, 0x0d03, "magic at offset 0"},
		{0, 0x03080000, "magic at offset 0"},
		{4, 0, "count at offset 4 is 0"},
		{4, 1, "promise 800 bytes, the file has 1584"},
		{4, 3, "promise 2368 bytes, the file has 1584"},
		{4, IDX_MAX_COUNT + 1, "count at offset 4"},
		{4, UINT32_MAX, "count at offset 4"},
		{8, 0, "rows at offset 8 is 0"},
		{8, UINT32_MAX, "rows at offset 8"},
		{12, 0, "columns at offset 12 is 0"},
		{12, 27, "promise"},
		{12, IDX_MAX_SIDE + 1, "columns at offset 12"},
	};

	for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
		struct blob lie = with_be32(images, lies[i].offset, lies[i].value);

		assert_idx_refused(&lie, IDX_IMAGES, lies[i].words);
	}
}

TEST(a_product_that_overflows_is_refused_before_any_allocation)
{
	struct blob b = blob_images(2, 28, 28, 0), zipped;

	/* now the header describes images of 2^24 * 2^12 * 2^12 = 2^48 bytes */
	b = with_be32(b, 4, IDX_MAX_COUNT);
	b = with_be32(b, 8, IDX_MAX_SIDE);
	b = with_be32(b, 12, IDX_MAX_SIDE);
	zipped = blob_gzip(&b);
	assert_idx_refused(&b, IDX_IMAGES, "promise 281474976710672 bytes, the file has 1584");
	assert_idx_refused(&zipped, IDX_IMAGES, "limit in memory is");
}

TEST(a_gzipped_header_cannot_promise_more_than_its_bytes_can_hold)
{
	struct blob b = blob_images(2, 28, 28, 0), zipped;

	/* the header describes images of 1.5 GB, which is below the limit that applies to every
	 * file */
	b = with_be32(b, 4, 2000000);
	zipped = blob_gzip(&b);
	assert_idx_refused(&zipped, IDX_IMAGES, "gzipped bytes can hold");
}

TEST(every_truncation_of_a_plain_file_is_refused)
{
	struct blob b = blob_images(2, 28, 28, 3);

	while (b.size-- > 0)
		assert_idx_refused(&b, IDX_IMAGES,
			b.size < 16 ? "header ends at offset" : "promise 1584 bytes");
}

TEST(every_truncation_of_a_gzipped_file_is_refused)
{
	struct blob plain = blob_images(2, 28, 28, 3), b = blob_gzip(&plain);

	while (b.size-- > 0)
		assert_idx_refused(&b, IDX_IMAGES, "");
}

TEST(bytes_after_the_end_are_refused)
{
	struct blob plain = blob_images(2, 28, 28, 3), zipped = blob_gzip(&plain), longer, twice;

	twice = zipped; /* a gzip file with a second member, as `cat a.gz b.gz` makes */
	memcpy(twice.bytes + twice.size, zipped.bytes, zipped.size);
	twice.size += zipped.size;
	assert_idx_refused(&twice, IDX_IMAGES, "bytes follow the gzip member");
	zipped.bytes[zipped.size++] = 0;
	assert_idx_refused(&zipped, IDX_IMAGES, "bytes follow the gzip member");
	plain.bytes[plain.size++] = 0;
	assert_idx_refused(&plain, IDX_IMAGES, "the file has 1585");
	longer = blob_gzip(&plain);
	assert_idx_refused(&longer, IDX_IMAGES, "more data at offset 1584");
}

/* A plain file of more than 2 GiB stays on the disk, no matter how much memory the caller allows.
 * The file of this test is sparse. */
TEST(a_plain_file_of_more_than_2_gib_stays_on_the_disk)
{
	const uint64_t memory[] = {1 << 20, UINT64_MAX};
	struct blob b = with_be32(blob_images(2, 28, 28, 0), 4, 3000000);
	const uint64_t size = 16 + (uint64_t)3000000 * 28 * 28;
	uint32_t n;
	uint8_t pixel = 1;
	struct idx x;
	struct err e = {0};

	assert_true(size > IDX_MAX_BYTES);
	temp_file_put(path, b.bytes, b.size);
	assert_int_equal(truncate(path, (off_t)size), 0);
	assert_int_equal(idx_count(&n, path, IDX_IMAGES, &e), PS_OK);
	assert_int_equal(n, 3000000);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(idx_open(&x, path, IDX_IMAGES, memory[i], &e), PS_OK);
		assert_null(x.bytes);
		assert_int_equal(x.size, size);
		assert_int_equal(idx_copy(&x, size - 1, 1, &pixel, &e), PS_OK);
		assert_int_equal(pixel, 0);
		idx_release(&x);
	}
	assert_int_equal(idx_read(&x, path, IDX_IMAGES, &e), PS_EDATA);
	assert_non_null(strstr(e.text, "limit in memory is"));
	assert_int_equal(truncate(path, (off_t)size - 1), 0);
	assert_int_equal(idx_open(&x, path, IDX_IMAGES, 1 << 20, &e), PS_EDATA);
	assert_non_null(strstr(e.text, "the file has 2352000015"));
	assert_int_equal(unlink(path), 0);
}

/* The header describes 2 images, but 64 MiB of zeros follow. idx.c must stop at the first byte
 * after the images. */
TEST(a_gzip_bomb_is_stopped_at_its_first_byte_too_many)
{
	static unsigned char zeros[1 << 16];
	struct blob head = blob_images(2, 28, 28, 0);
	struct idx x;
	struct err e;
	gzFile f = gzopen(path, "wb9");

	assert_non_null(f);
	assert_int_equal(gzwrite(f, head.bytes, (unsigned)head.size), head.size);
	for (int i = 0; i < 1024; i++)
		assert_int_equal(gzwrite(f, zeros, sizeof(zeros)), sizeof(zeros));
	assert_int_equal(gzclose(f), Z_OK);
	assert_int_equal(idx_read(&x, path, IDX_IMAGES, &e), PS_EDATA);
	assert_non_null(strstr(e.text, "more data at offset 1584"));
}

TEST(what_is_not_a_regular_file_is_refused)
{
	char fifo[sizeof(path) + 8];
	struct idx x;
	struct err e;

	snprintf(fifo, sizeof(fifo), "%s/fifo", temp_dir);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_int_equal(idx_read(&x, fifo, IDX_IMAGES, &e), PS_EDATA);
	assert_non_null(strstr(e.text, "not a regular file"));
	assert_int_equal(unlink(fifo), 0);
	assert_int_equal(idx_read(&x, temp_dir, IDX_IMAGES, &e), PS_EDATA);
	assert_non_null(strstr(e.text, "not a regular file"));
	assert_int_equal(idx_read(&x, fifo, IDX_IMAGES, &e), PS_EDATA);
	assert_non_null(strstr(e.text, "No such file"));
}

/* Makes one to three random changes: changes, removes or appends bytes. */
static void mutate_blob(struct blob *b, struct rng *r)
{
	for (uint64_t k = 1 + rng_below(r, 3); k > 0 && b->size > 0; k--) {
		size_t at = rng_below(r, rng_below(r, 2) ? b->size : (b->size < 24 ? b->size : 24));

		if (!rng_below(r, 4))
			b->size = at;
		else if (!rng_below(r, 4) && b->size < sizeof(b->bytes))
			b->bytes[b->size++] = (unsigned char)rng_next(r);
		else
			b->bytes[at] ^= (unsigned char)(1 + rng_below(r, 255));
	}
}

TEST(ten_thousand_mutations_are_read_whole_or_refused)
{
	struct blob plain = blob_images(2, 28, 28, 3), zipped = blob_gzip(&plain);
	uint64_t seed = 20240607;
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	int accepted = 0;

	for (int i = 0; i < 10000; i++) {
		struct blob b = i % 2 ? zipped : plain;
		struct idx x;
		struct err e;
		int rc;

		mutate_blob(&b, &r);
		rc = read_idx_blob(&b, IDX_IMAGES, &x, &e);
		if (rc && rc != PS_EDATA)
			fail_msg("seed %llu, mutation %d: %s", (unsigned long long)seed, i, e.text);
		if (rc)
			continue;
		accepted++;
		assert_int_equal(x.size, 16 + (size_t)x.n * x.channels * x.rows * x.columns);
		idx_release(&x);
	}
	print_message(
		"mutations seed %llu: %d of 10000 accepted\n", (unsigned long long)seed, accepted);
	/* the format has no checksum, so a plain file with other pixels is valid */
	assert_in_range(accepted, 100, 5000);
}

static int set_up_idx(void **state)
{
	(void)state;
	temp_dir_make(temp_dir);
	snprintf(path, sizeof(path), "%s/file", temp_dir);
	return 0;
}

TEST_GROUP(set_up_idx, temp_dir_tear_down)
