/* test_data.c - four files of one data set: found, checked against each other, fingerprinted. */
#include "tests/support/idx_files.h"
#include <sys/stat.h>
#include <xxhash.h>
#include "worker/data/dataset.h"

static char dir[64];
static const char *const names[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
	"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};

static void put(int file, const char *ending, const struct blob *b)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s%s", dir, names[file], ending);
	temp_file_put(path, b->bytes, b->size);
}

static int clear(void **state)
{
	static const char *const endings[] = {"", ".gz"};

	(void)state;
	for (int f = 0; f < 4; f++)
		for (int k = 0; k < 2; k++) {
			char path[128];

			snprintf(path, sizeof(path), "%s/%s%s", dir, names[f], endings[k]);
			unlink(path);
		}
	return 0;
}

/* 5 training and 3 test images of 4x6. */
static void put_all(struct blob b[4])
{
	b[0] = blob_images(5, 4, 6, 1);
	b[1] = blob_labels(5);
	b[2] = blob_images(3, 4, 6, 2);
	b[3] = blob_labels(3);
	for (int f = 0; f < 4; f++)
		put(f, "", &b[f]);
}

static void refused(const char *words)
{
	struct data d;
	struct err e = {0};

	assert_int_equal(data_load(&d, dir, &e), PS_EDATA);
	if (!strstr(e.text, words) || !strstr(e.text, dir))
		fail_msg("\"%s\" does not say \"%s\"", e.text, words);
	assert_null(d.file[TRAIN_IMAGES].bytes);
}

static void four_files_make_a_data_set(void **state)
{
	struct blob b[4];
	struct data d;
	struct err e;
	unsigned char all[1024];
	size_t n = 0;

	(void)state;
	put_all(b);
	for (int f = 0; f < 4; f++, n += b[f - 1].size)
		memcpy(all + n, b[f].bytes, b[f].size);
	assert_int_equal(data_load(&d, dir, &e), PS_OK);
	assert_int_equal(d.id.n_train, 5);
	assert_int_equal(d.id.n_test, 3);
	assert_int_equal(d.id.rows, 4);
	assert_int_equal(d.id.cols, 6);
	assert_int_equal(d.id.classes, 10);
	assert_true(d.id.xxh3 == XXH3_64bits(all, n));
	assert_memory_equal(data_train(&d).pixels, b[0].bytes + 16, 5 * 24);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(data_test(&d).labels[i], b[3].bytes[8 + i]);
	assert_int_equal(data_test(&d).n, 3);
	data_release(&d);
}

static void the_fingerprint_does_not_depend_on_compression(void **state)
{
	struct blob b[4], zipped;
	struct data plain, mixed;
	struct err e;

	(void)state;
	put_all(b);
	assert_int_equal(data_load(&plain, dir, &e), PS_OK);
	clear(NULL);
	for (int f = 0; f < 4; f++) {
		zipped = blob_gzip(&b[f]);
		put(f, ".gz", &zipped);
	}
	assert_int_equal(data_load(&mixed, dir, &e), PS_OK);
	assert_true(plain.id.xxh3 == mixed.id.xxh3);
	data_release(&plain);
	data_release(&mixed);
}

static void a_missing_file_is_named(void **state)
{
	struct blob b[4];
	char path[128];

	(void)state;
	put_all(b);
	snprintf(path, sizeof(path), "%s/%s", dir, names[3]);
	assert_int_equal(unlink(path), 0);
	refused("holds neither t10k-labels-idx1-ubyte nor");
}

static void a_label_over_nine_is_refused_with_its_offset(void **state)
{
	struct blob b[4];

	(void)state;
	put_all(b);
	b[1].bytes[8 + 4] = 10;
	put(1, "", &b[1]);
	refused("train-labels-idx1-ubyte: label 4 at offset 12 is 10");
}

static void files_that_disagree_are_refused(void **state)
{
	struct blob b[4], other;

	(void)state;
	put_all(b);
	other = blob_labels(6);
	put(1, "", &other);
	refused("has 5 images (count at offset 4), train-labels-idx1-ubyte has 6 labels");
	put_all(b);
	other = blob_images(3, 6, 4, 2);
	put(2, "", &other);
	refused("training images are 4x6, test images 6x4");
}

/* Nobody names a directory: data/mnist of the working directory is the first one looked at. */
static void the_usual_place_is_found_and_named(void **state)
{
	struct blob b[4];
	struct data d;
	struct err e;
	char old[4096], mnist[80];

	(void)state;
	put_all(b);
	assert_non_null(getcwd(old, sizeof(old)));
	snprintf(mnist, sizeof(mnist), "%s/data", dir);
	assert_int_equal(mkdir(mnist, 0700), 0);
	assert_int_equal(chdir(mnist), 0);
	assert_int_equal(symlink("..", "mnist"), 0); /* data/mnist: where the four files are */
	assert_int_equal(chdir(".."), 0);
	assert_int_equal(data_load(&d, NULL, &e), PS_OK);
	assert_string_equal(d.dir, "data/mnist");
	assert_int_equal(d.id.n_train, 5);
	data_release(&d);
	assert_int_equal(unlink("data/mnist"), 0);
	assert_int_equal(rmdir("data"), 0);
	assert_int_equal(chdir(old), 0);
}

static int make_dir(void **state)
{
	(void)state;
	temp_dir_make(dir);
	return 0;
}

static int remove_dir(void **state)
{
	(void)state;
	temp_dir_remove(dir);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(four_files_make_a_data_set, clear),
		cmocka_unit_test_teardown(the_fingerprint_does_not_depend_on_compression, clear),
		cmocka_unit_test_teardown(a_missing_file_is_named, clear),
		cmocka_unit_test_teardown(a_label_over_nine_is_refused_with_its_offset, clear),
		cmocka_unit_test_teardown(files_that_disagree_are_refused, clear),
		cmocka_unit_test_teardown(the_usual_place_is_found_and_named, clear),
	};

	return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
