/* test_data.c - the four files of a data set: how the worker finds them, checks them against each
 * other, and computes their fingerprint. Covers attack A18 of docs/faults.md. */
#include "tests/support/idx_files.h"
#include <sys/stat.h>
#include <xxhash.h>
#include "worker/data/dataset.h"
#include "tests/support/test.h"

static const char *const names[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
	"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};

static void put_data_file(int file, const char *ending, const struct blob *b)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s%s", temp_dir, names[file], ending);
	temp_file_put(path, b->bytes, b->size);
}

static void remove_data_file(const char *name)
{
	char path[160];

	snprintf(path, sizeof(path), "%s/%s", temp_dir, name);
	assert_int_equal(unlink(path), 0);
}

/* Gives file number `file` of the data set another name, and writes the bytes `b` to it. */
static void rename_file(int file, const char *name, const struct blob *b)
{
	char path[128];

	remove_data_file(names[file]);
	snprintf(path, sizeof(path), "%s/%s", temp_dir, name);
	temp_file_put(path, b->bytes, b->size);
}

static int remove_data_files(void **state)
{
	static const char *const endings[] = {"", ".gz"};

	(void)state;
	for (int f = 0; f < 4; f++)
		for (int k = 0; k < 2; k++) {
			char path[128];

			snprintf(path, sizeof(path), "%s/%s%s", temp_dir, names[f], endings[k]);
			unlink(path);
		}
	return 0;
}

/* Make the files of a data set with 5 training and 3 test images of 4x6 pixels. */
static void put_all(struct blob b[4])
{
	b[0] = blob_images(5, 4, 6, 1);
	b[1] = blob_labels(5);
	b[2] = blob_images(3, 4, 6, 2);
	b[3] = blob_labels(3);
	for (int f = 0; f < 4; f++)
		put_data_file(f, "", &b[f]);
}

static void assert_data_refused(const char *words)
{
	struct data d;
	struct err e = {0};

	assert_int_equal(data_load(&d, temp_dir, &e), PS_EDATA);
	if (!strstr(e.text, words) || !strstr(e.text, temp_dir))
		fail_msg("\"%s\" does not say \"%s\"", e.text, words);
	assert_null(d.file[TRAIN_IMAGES].bytes);
}

TEST_IN(four_files_make_a_data_set, NULL, remove_data_files)
{
	struct blob b[4];
	struct data d;
	struct err e;
	unsigned char all[1024];
	size_t n = 0;

	put_all(b);
	for (int f = 0; f < 4; f++, n += b[f - 1].size)
		memcpy(all + n, b[f].bytes, b[f].size);
	assert_int_equal(data_load(&d, temp_dir, &e), PS_OK);
	assert_int_equal(d.id.n_train, 5);
	assert_int_equal(d.id.n_test, 3);
	assert_int_equal(d.id.rows, 4);
	assert_int_equal(d.id.cols, 6);
	assert_int_equal(d.id.classes, 5); /* 5, because the labels in the files are 0 to 4 */
	assert_int_equal(d.id.channels, 0);
	assert_true(d.id.xxh3 == XXH3_64bits(all, n));
	assert_memory_equal(data_train(&d).pixels, b[0].bytes + 16, 5 * 24);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(data_test(&d).labels[i], b[3].bytes[8 + i]);
	assert_int_equal(data_test(&d).n, 3);
	data_release(&d);
}

TEST_IN(the_fingerprint_does_not_depend_on_compression, NULL, remove_data_files)
{
	struct blob b[4], zipped;
	struct data plain, mixed;
	struct err e;

	put_all(b);
	assert_int_equal(data_load(&plain, temp_dir, &e), PS_OK);
	remove_data_files(NULL);
	for (int f = 0; f < 4; f++) {
		zipped = blob_gzip(&b[f]);
		put_data_file(f, ".gz", &zipped);
	}
	assert_int_equal(data_load(&mixed, temp_dir, &e), PS_OK);
	assert_true(plain.id.xxh3 == mixed.id.xxh3);
	data_release(&plain);
	data_release(&mixed);
}

TEST_IN(a_missing_file_is_named, NULL, remove_data_files)
{
	struct blob b[4];
	char path[128];

	put_all(b);
	snprintf(path, sizeof(path), "%s/%s", temp_dir, names[3]);
	assert_int_equal(unlink(path), 0);
	assert_data_refused("holds neither t10k-labels-idx1-ubyte nor");
}

/* Images of MNIST's shape have 10 classes even if some labels do not occur in the file. Workers of
 * older releases report 10 classes for such images, and must count as workers with the same data
 * set. */
TEST_IN(images_of_mnists_shape_have_ten_classes_or_more, NULL, remove_data_files)
{
	struct blob b[4];
	struct data d;
	struct err e;

	put_all(b);
	b[0] = blob_images(5, 28, 28, 1);
	b[2] = blob_images(3, 28, 28, 2);
	put_data_file(0, "", &b[0]);
	put_data_file(2, "", &b[2]);
	assert_int_equal(data_load(&d, temp_dir, &e), PS_OK);
	assert_int_equal(d.id.classes, 10);
	data_release(&d);
	b[3].bytes[8] = 46;
	put_data_file(3, "", &b[3]);
	assert_int_equal(data_load(&d, temp_dir, &e), PS_OK);
	assert_int_equal(d.id.classes, 47);
	assert_int_equal(d.max_label, 46);
	data_release(&d);
}

TEST_IN(images_may_have_channels_and_labels_32_bits, NULL, remove_data_files)
{
	struct blob b[4], labels = {.size = 0};
	struct data d;
	struct err e;

	put_all(b);
	b[0] = blob_planes(5, 3, 4, 6, 1);
	b[2] = blob_planes(3, 3, 4, 6, 2);
	put_data_file(0, "", &b[0]);
	rename_file(2, "t10k-images-idx4-ubyte", &b[2]);
	blob_be32(&labels, 0x0c01);
	blob_be32(&labels, 5);
	for (uint32_t i = 0; i < 5; i++)
		blob_be32(&labels, i * 16000);
	put_data_file(1, "", &labels);
	assert_int_equal(data_load(&d, temp_dir, &e), PS_OK);
	assert_int_equal(d.shape.c, 3);
	assert_int_equal(d.shape.h, 4);
	assert_int_equal(d.shape.w, 6);
	assert_int_equal(d.id.channels, 3);
	assert_int_equal(d.id.classes, 64001);
	assert_int_equal(data_train(&d).labels[4], 64000);
	assert_memory_equal(data_train(&d).pixels, b[0].bytes + 20, 5 * 72);
	data_release(&d);
	memcpy(labels.bytes + 8 + 4 * 3, "\0\1\0\0", 4);
	put_data_file(1, "", &labels);
	assert_data_refused(
		"train-labels-idx1-ubyte: label 3 at offset 20 is 65536, must be 0..65535");
	memcpy(labels.bytes + 8 + 4 * 3, "\xff\xff\xff\xff", 4);
	put_data_file(1, "", &labels);
	assert_data_refused("label 3 at offset 20 is -1, must be 0..65535");
	remove_data_file("t10k-images-idx4-ubyte");
}

TEST_IN(labels_may_have_16_bits, NULL, remove_data_files)
{
	struct blob b[4], labels = {.size = 0};
	struct data d;
	struct err e;

	put_all(b);
	blob_be32(&labels, 0x0b01);
	blob_be32(&labels, 5);
	memcpy(labels.bytes + labels.size, "\0\0\0\1\1\0\x7f\xff\0\2", 10);
	labels.size += 10;
	put_data_file(1, "", &labels);
	assert_int_equal(data_load(&d, temp_dir, &e), PS_OK);
	assert_int_equal(data_train(&d).labels[2], 256);
	assert_int_equal(d.id.classes, 32768);
	data_release(&d);
	labels.bytes[8] = 0x80;
	put_data_file(1, "", &labels);
	assert_data_refused("label 0 at offset 8 is -32768");
}

static void refused_within(uint64_t memory, const char *words)
{
	struct data d;
	struct err e = {0};

	assert_int_equal(data_load_within(&d, temp_dir, memory, &e), PS_EDATA);
	if (!strstr(e.text, words) || !strstr(e.text, temp_dir))
		fail_msg("\"%s\" does not say \"%s\"", e.text, words);
}

TEST_IN(images_that_cannot_stay_on_the_disk_must_fit_the_memory, NULL, remove_data_files)
{
	struct blob b[4], zipped;
	const uint64_t train = 16 + 5 * 24, test = 16 + 3 * 24;
	struct data d;
	struct err e = {0};

	put_all(b);
	for (int f = 0; f < 4; f += 2) {
		remove_data_file(names[f]);
		zipped = blob_gzip(&b[f]);
		put_data_file(f, ".gz", &zipped);
	}
	refused_within(train - 1, "has 136 bytes when decompressed");
	refused_within(train + test - 1, "leaves 87: decompress the file");
	assert_int_equal(data_load_within(&d, temp_dir, train + test, &e), PS_OK);
	data_release(&d);
}

/* If the number of images in the header differs from the number of labels, the worker refuses the
 * file before it allocates memory for the images. */
TEST_IN(the_number_of_images_is_compared_before_they_are_read, NULL, remove_data_files)
{
	struct blob b[4], many = blob_images(5, 4, 6, 1);

	put_all(b);
	many.bytes[6] = 1; /* now the header claims 261 images, more than there are */
	struct blob packed = blob_gzip(&many);
	remove_data_file(names[0]);
	put_data_file(0, ".gz", &packed);
	assert_data_refused(
		"has 261 images (count at offset 4), train-labels-idx1-ubyte has 5 labels");
}

TEST_IN(files_that_disagree_are_refused, NULL, remove_data_files)
{
	struct blob b[4], other;

	put_all(b);
	other = blob_labels(6);
	put_data_file(1, "", &other);
	assert_data_refused(
		"has 5 images (count at offset 4), train-labels-idx1-ubyte has 6 labels");
	put_all(b);
	other = blob_images(3, 6, 4, 2);
	put_data_file(2, "", &other);
	assert_data_refused("training images are 1x4x6, test images 1x6x4");
}

static void put_emnist(const char *split, struct blob b[4])
{
	static const char *const kinds[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
		"test-images-idx3-ubyte", "test-labels-idx1-ubyte"};
	char path[160];

	for (int f = 0; f < 4; f++) {
		snprintf(path, sizeof(path), "%s/emnist-%s-%s", temp_dir, split, kinds[f]);
		temp_file_put(path, b[f].bytes, b[f].size);
	}
}

static void remove_emnist(const char *split)
{
	static const char *const kinds[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
		"test-images-idx3-ubyte", "test-labels-idx1-ubyte"};
	char name[80];

	for (int f = 0; f < 4; f++) {
		snprintf(name, sizeof(name), "emnist-%s-%s", split, kinds[f]);
		remove_data_file(name);
	}
}

TEST_IN(emnist_is_turned_and_its_letters_begin_at_zero, NULL, remove_data_files)
{
	struct blob b[4] = {blob_images(5, 28, 28, 1), blob_labels(5), blob_images(3, 28, 28, 2),
		blob_labels(3)};
	struct data d;
	struct err e;
	char place[160];
	uint64_t digits;

	put_emnist("digits", b);
	assert_int_equal(data_load(&d, temp_dir, &e), PS_OK);
	digits = d.id.xxh3;
	assert_int_equal(d.id.classes, 10);
	for (size_t y = 0; y < 28; y++)
		for (size_t x = 0; x < 28; x++)
			assert_int_equal(data_train(&d).pixels[784 * 3 + y * 28 + x],
				b[0].bytes[16 + 784 * 3 + x * 28 + y]);
	data_release(&d);
	refused_within(16 + 5 * 784 + 15 + 3 * 784, "leaves 2367; images of EMNIST must fit it");
	b[1].bytes[8] = b[3].bytes[8] = 26;
	put_emnist("letters", b);
	assert_data_refused("several splits of EMNIST: name one, as --data");
	snprintf(place, sizeof(place), "%s/emnist-letters", temp_dir);
	assert_int_equal(data_load(&d, place, &e), PS_OK);
	assert_int_equal(d.id.classes, 26);
	assert_int_equal(data_train(&d).labels[0], 25);
	assert_int_equal(data_train(&d).labels[1], 0);
	data_release(&d);
	b[1].bytes[8] = b[3].bytes[8] = 0;
	put_emnist("letters", b);
	assert_int_equal(data_load(&d, place, &e), PS_EDATA);
	assert_non_null(strstr(e.text, "label 0 is 0; letters have labels of 1 to 26"));
	remove_emnist("letters");
	remove_emnist("digits");
	for (int f = 0; f < 4; f++)
		put_data_file(f, "", &b[f]);
	assert_int_equal(data_load(&d, temp_dir, &e), PS_OK);
	/* transposed images are different images */
	assert_true(d.id.xxh3 != digits);
	data_release(&d);
}

/* If the caller names no directory, the worker first searches data/mnist in the working
 * directory. */
TEST_IN(the_usual_place_is_found_and_named, NULL, remove_data_files)
{
	struct blob b[4];
	struct data d;
	struct err e;
	char old[4096], mnist[80];

	put_all(b);
	assert_non_null(getcwd(old, sizeof(old)));
	snprintf(mnist, sizeof(mnist), "%s/data", temp_dir);
	assert_int_equal(mkdir(mnist, 0700), 0);
	assert_int_equal(chdir(mnist), 0);
	/* the link data/mnist leads back to temp_dir, which contains the four files */
	assert_int_equal(symlink("..", "mnist"), 0);
	assert_int_equal(chdir(".."), 0);
	assert_int_equal(data_load(&d, NULL, &e), PS_OK);
	assert_string_equal(d.files.dir, "data/mnist");
	assert_int_equal(d.id.n_train, 5);
	data_release(&d);
	assert_int_equal(unlink("data/mnist"), 0);
	assert_int_equal(rmdir("data"), 0);
	assert_int_equal(chdir(old), 0);
}

TEST_GROUP(temp_dir_set_up, temp_dir_tear_down)
