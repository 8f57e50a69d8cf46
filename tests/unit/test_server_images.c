/*
 * test_server_images.c - which HELLOs change the images of a run with --input auto. tests/e2e
 * (test_images.py) tests the restart of the server.
 */
#include "server/config/images.h"
#include <string.h>
#include "common/opt.h"
#include "tests/support/test.h"

/* static, because the struct is too large for the stack */
static struct options options;

static int begin_auto(const char *data_id)
{
	char *argv[] = {"cnn-ps", "--input", "auto", "--model", "fc:10", "--data-id", NULL, NULL};
	struct err e;

	memcpy(&argv[6], &data_id, sizeof(data_id));
	return options_parse(&options, data_id ? 7 : 5, argv) == OPT_RUN &&
	       images_begin(&options, &e) == PS_OK;
}

static int take_from(const char *key, uint32_t rows, uint32_t n_train)
{
	struct msg_hello h = {
		.data = {.n_train = n_train, .n_test = 7, .cols = 4, .classes = 10, .xxh3 = 99}};
	struct err e;

	h.data.rows = rows;
	memcpy(h.owner, key, strlen(key));
	return images_take(&options, &h, UINT64_MAX, &e);
}

/* Each change of the run's images ends all connections to the server. To limit the damage that a
 * hostile key can do, the workers of one key can change the images only a few times. After that,
 * workers of another key can still change the images. */
TEST(a_key_changes_the_images_a_few_times)
{
	assert_true(begin_auto(NULL));
	for (uint32_t i = 0; i < IMAGES_CHANGES; i++)
		assert_int_equal(take_from("first", 1 + i, 35), PS_OK);
	assert_int_equal(take_from("first", 20, 35), PS_EWRONGDATA);
	assert_int_equal(options.model.input.h, IMAGES_CHANGES);
	assert_int_equal(take_from("second", 20, 35), PS_OK);
	assert_int_equal(options.model.input.h, 20);
	assert_int_equal(take_from("first", 1, 35), PS_EWRONGDATA);
}

TEST(many_keys_change_the_images_a_bounded_number_of_times)
{
	char key[] = "key A";
	uint32_t changes = 0;

	assert_true(begin_auto(NULL));
	for (uint32_t i = 0; i < 2000; i++) {
		key[4] = (char)(1 + i % 100);
		changes += take_from(key, 1 + i % 2, 35) == PS_OK;
	}
	assert_int_equal(changes, IMAGES_KEYS * IMAGES_CHANGES);
}

TEST(a_worker_without_the_data_set_of_the_option_changes_nothing)
{
	assert_true(begin_auto("0000000000000063:35:7"));
	assert_int_equal(take_from("first", 3, 34), PS_EWRONGDATA);
	assert_true(options.unknown_images);
	assert_int_equal(take_from("first", 3, 35), PS_OK);
	assert_false(options.unknown_images);
	assert_true(begin_auto("0000000000000064"));
	assert_int_equal(take_from("first", 3, 35), PS_EWRONGDATA);
}
