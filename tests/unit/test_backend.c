/*
 * test_backend.c - tests which device a backend opens if the first one does not work. The device
 * `cpu` of this program fails. The linker uses the device_cpu of this file instead of the real one,
 * because this file precedes the archive that contains the real one.
 */
#include <string.h>
#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"
#include "tests/support/test.h"

static int status; /* what the device returns */
static int opened; /* number of calls of its function `open` */

static int failing_open(
	void **self, const struct model *m, const struct backend_options *o, struct err *e)
{
	(void)m;
	(void)o;
	*self = NULL;
	opened++;
	return err_set(e, status, "the device fails");
}

const struct device device_cpu = {.name = "cpu", .precise = 1, .open = failing_open};

static int open_or_else(struct backend **b, const char *otherwise, struct err *e)
{
	static struct model m;
	const struct backend_options o = {
		.device = "cpu", .otherwise = otherwise, .threads = 1, .max_batch = 2};

	opened = 0;
	assert_int_equal(model_parse(&m, "fc:2", (struct shape){1, 4, 4}, e), PS_OK);
	return backend_new(b, &m, &o, e);
}

TEST(another_device_opens_if_the_first_fails)
{
	static const int failures[] = {PS_ENOMEM, PS_EDEVICE};

	for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++) {
		struct backend *b;
		struct err e = {0};

		status = failures[i];
		assert_int_equal(open_or_else(&b, "cpu-ref", &e), PS_OK);
		assert_int_equal(opened, 1);
		assert_string_equal(backend_device(b), "cpu-ref");
		assert_string_equal(e.text, "");
		backend_free(&b);
	}
}

TEST(without_another_device_the_first_error_is_reported)
{
	struct backend *b;
	struct err e = {0};

	status = PS_ENOMEM;
	assert_int_equal(open_or_else(&b, NULL, &e), PS_ENOMEM);
	assert_null(b);
	assert_string_equal(e.text, "the device fails");
}

TEST(an_error_of_the_caller_opens_no_other_device)
{
	struct backend *b;
	struct err e = {0};

	status = PS_EUSAGE;
	assert_int_equal(open_or_else(&b, "cpu-ref", &e), PS_EUSAGE);
	assert_null(b);
	assert_string_equal(e.text, "the device fails");
}

TEST(the_other_device_must_exist)
{
	struct backend *b;
	struct err e = {0};

	status = PS_EDEVICE;
	assert_int_equal(open_or_else(&b, "gpu", &e), PS_EUSAGE);
	assert_null(b);
	assert_non_null(strstr(e.text, "cpu-ref"));
}
