/* test_loader.c - proves the invariants and promises of worker/data/loader.h. */
#include "tests/support/idx_files.h"
#include <unistd.h>
#include "common/rng.h"
#include "worker/data/loader.h"
#include "tests/support/test.h"

#define N    11
#define C    2
#define H    5
#define W    4
#define SIZE (C * H * W)

static struct blob images;

static void put_idx_file(const char *name, const struct blob *b)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", temp_dir, name);
	temp_file_put(path, b->bytes, b->size);
}

static void load_planes(struct data *d, uint64_t memory)
{
	struct blob labels = blob_labels(N), tests = blob_planes(3, C, H, W, 9),
		    test_labels = blob_labels(3);
	struct err e = {0};

	images = blob_planes(N, C, H, W, 3);
	put_idx_file("train-images-idx3-ubyte", &images);
	put_idx_file("train-labels-idx1-ubyte", &labels);
	put_idx_file("t10k-images-idx3-ubyte", &tests);
	put_idx_file("t10k-labels-idx1-ubyte", &test_labels);
	assert_int_equal(data_load_within(d, temp_dir, memory, &e), PS_OK);
	assert_int_equal(data_in_memory(d, TRAIN_PART), memory > 1000);
}

static const uint8_t *loader_image(uint32_t i)
{
	return images.bytes + 20 + (size_t)i * SIZE;
}

/* Requests a batch of `n` images: the images `first`, `first` + 2, ... */
static void ask_for_batch(struct loader *l, uint32_t epoch, uint32_t first, uint32_t n)
{
	uint32_t index[N];

	for (uint32_t i = 0; i < n; i++)
		index[i] = (first + 2 * i) % N;
	loader_ask(l, &(struct loader_batch){.epoch = epoch, .index = index, .n = n});
}

static void expect_batch(const struct kx_images *x, const struct preprocess *p, uint64_t seed,
	uint32_t epoch, uint32_t first, uint32_t n)
{
	uint8_t right[SIZE];

	assert_int_equal(x->n, n);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t image = (first + 2 * i) % N;

		preprocess_image(p, seed, epoch, image, C, H, W, loader_image(image), right);
		assert_memory_equal(x->pixels + (size_t)i * SIZE, right, SIZE);
		assert_int_equal(x->labels[i], image % 10);
	}
}

TEST(only_random_or_large_sets_need_a_loader)
{
	const struct preprocess none = {0}, flip = {.flip = 1};
	struct data d;

	load_planes(&d, 1 << 20);
	assert_int_equal(loader_is_needed(&d, TRAIN_PART, &none), 0);
	assert_int_equal(loader_is_needed(&d, TRAIN_PART, &flip), 1);
	assert_int_equal(loader_is_needed(&d, TEST_PART, NULL), 0);
	data_release(&d);
	/* the limit of 200 bytes is enough for the test images, which have 140 bytes */
	load_planes(&d, 200);
	assert_int_equal(loader_is_needed(&d, TRAIN_PART, &none), 1);
	assert_int_equal(loader_is_needed(&d, TEST_PART, NULL), 0);
	data_release(&d);
}

/* A batch must have the same bytes from memory and from the disk, in any order of calls. */
TEST(invariant_1_batches_come_in_order_with_the_specified_bytes)
{
	const struct preprocess kinds[] = {{0}, {.flip = 1}, {.shift = 2, .flip = 1}};
	const uint64_t memory[] = {1 << 20, 200};

	for (size_t k = 0; k < 6; k++) {
		const struct preprocess *p = &kinds[k / 2];
		struct loader *l;
		struct kx_images x;
		struct data d;
		struct err e = {0};
		uint32_t requested = 0;

		load_planes(&d, memory[k % 2]);
		assert_int_equal(loader_new(&l, &d, TRAIN_PART, p, 5, 4, &e), PS_OK);
		for (uint32_t i = 0; i < 50; i++) {
			while (loader_has_room(l) && requested < 50) {
				ask_for_batch(l, requested % 3, requested, 1 + requested % 4);
				requested++;
			}
			assert_in_range(requested - i, 1, LOADER_BATCHES);
			assert_int_equal(loader_take(l, &x, &e), PS_OK);
			expect_batch(&x, p, 5, i % 3, i, 1 + i % 4);
		}
		ask_for_batch(l, 0, 1, 4); /* a request that loader_reset() discards */
		loader_reset(l);
		ask_for_batch(l, 7, 2, 3);
		assert_int_equal(loader_take(l, &x, &e), PS_OK);
		expect_batch(&x, p, 5, 7, 2, 3);
		/* a batch that the caller never takes; loader_free() must still free it */
		ask_for_batch(l, 0, 1, 4);
		loader_free(&l);
		assert_null(l);
		data_release(&d);
	}
}

TEST(promise_1_a_file_that_shrinks_is_bad_data)
{
	struct loader *l;
	struct kx_images x;
	struct data d;
	struct err e = {0};
	char path[128];

	load_planes(&d, 200);
	assert_int_equal(loader_new(&l, &d, TRAIN_PART, NULL, 5, 4, &e), PS_OK);
	snprintf(path, sizeof(path), "%s/train-images-idx3-ubyte", temp_dir);
	assert_int_equal(truncate(path, 20 + 3 * SIZE + 1), 0);
	ask_for_batch(l, 0, 0, 2); /* images 0 and 2 */
	ask_for_batch(l, 0, 1, 2); /* images 1 and 3 */
	assert_int_equal(loader_take(l, &x, &e), PS_OK);
	assert_int_equal(loader_take(l, &x, &e), PS_EDATA);
	assert_non_null(strstr(e.text, "train-images-idx3-ubyte: has become shorter: nothing is at "
				       "offset 141, its header promises 460 bytes"));
	loader_free(&l);
	data_release(&d);
}

TEST(a_batch_that_does_not_fit_memory_is_refused)
{
	struct loader *l;
	struct data d;
	struct err e = {0};

	load_planes(&d, 1 << 20);
	d.shape = (struct shape){4096, 4096, 4096};
	assert_int_equal(loader_new(&l, &d, TRAIN_PART, NULL, 5, UINT32_MAX, &e), PS_ENOMEM);
	assert_null(l);
	data_release(&d);
}

TEST_GROUP(temp_dir_set_up, temp_dir_tear_down)
