/*
 * test_choose.c - tests which GPU gpu_open_usable chooses, and which GPUs it skips. The GPUs are
 * those of fake_gpus.h, so the tests need no GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/capture.h"
#include "tests/support/test.h"
#ifdef KX_CUDA
#include "kernels/cuda/choose.h"
#include "tests/gpu/fake_gpus.h"

static struct capture logged;
static int answer[FAKE_GPUS]; /* status of the opener on each GPU */
static int tried[FAKE_GPUS], n_tried;
static int locks; /* 1: gpu_open_usable must lock the GPU that it tries */

static int open_fake(void *arg, int gpu, struct err *e)
{
	assert_ptr_equal(arg, answer);
	assert_int_equal(gpu, fake_current_gpu);
	for (int i = 0; i < fake_n_gpus; i++)
		assert_int_equal(fake_gpu_is_locked(i), locks && i == gpu);
	tried[n_tried++] = gpu;
	return answer[gpu] ? err_set(e, answer[gpu], "GPU %d: %s", gpu, err_text(answer[gpu]))
			   : PS_OK;
}

/* Choose a GPU. Returns the status, and sets *log to the text of the log. */
static int choose_fake(const char *device, const char **log, struct err *e)
{
	int rc;

	*e = (struct err){0};
	n_tried = 0;
	locks = fake_n_gpus > 1 && !strchr(device, ':') && !getenv("SLURM_LOCALID");
	capture_begin(&logged, 2);
	rc = gpu_open_usable(device, open_fake, answer, e);
	*log = capture_log(&logged);
	return rc;
}

/* Check that gpu_open_usable has called the opener for these GPUs, in this order, and has released
 * all locks. */
static void check_tried(const char *numbers)
{
	char text[2 * FAKE_GPUS + 1] = "";

	for (int i = 0; i < n_tried; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%d", tried[i]);
	assert_string_equal(text, numbers);
	for (int i = 0; i < fake_n_gpus; i++)
		assert_false(fake_gpu_is_locked(i));
}
#endif

/* Make four GPUs that work, of which number 2 is used least, then 0, 3 and 1. */
static int make_gpus(void **state)
{
	(void)state;
#ifdef KX_CUDA
	static const unsigned long long used[FAKE_GPUS] = {20, 90, 10, 20};

	unsetenv("SLURM_LOCALID");
	fake_n_gpus = FAKE_GPUS;
	for (int i = 0; i < FAKE_GPUS; i++) {
		fake_gpu[i] = (struct fake_gpu){.used = used[i]};
		answer[i] = PS_OK;
	}
#endif
	return 0;
}

TEST_GROUP(capture_info, NULL)

TEST_IN(the_least_used_gpu_is_taken, make_gpus, NULL)
{
#ifdef KX_CUDA
	const char *log;
	struct err e;

	assert_int_equal(choose_fake("cuda", &log, &e), PS_OK);
	check_tried("2");
	assert_string_equal(log, "");
#else
	skip();
#endif
}

TEST_IN(gpus_without_enough_memory_are_skipped_in_order_of_use, make_gpus, NULL)
{
#ifdef KX_CUDA
	const char *log;
	struct err e;

	answer[2] = PS_ENOMEM;
	answer[0] = PS_EDEVICE;
	assert_int_equal(choose_fake("cuda", &log, &e), PS_OK);
	check_tried("203");
	assert_string_equal(e.text, "");
	assert_int_equal(count_lines(log), 2);
	assert_non_null(strstr(log, "msg=\"cuda gpu_skipped\" gpu=cuda:2 reason=\"GPU 2: "));
	assert_non_null(strstr(log, "msg=\"cuda gpu_skipped\" gpu=cuda:0 reason=\"GPU 0: "));
#else
	skip();
#endif
}

TEST_IN(if_no_gpu_works_each_has_been_tried_once, make_gpus, NULL)
{
#ifdef KX_CUDA
	const char *log;
	struct err e;

	for (int i = 0; i < FAKE_GPUS; i++)
		answer[i] = PS_ENOMEM;
	assert_int_equal(choose_fake("cuda", &log, &e), PS_ENOMEM);
	check_tried("2031");
	assert_memory_equal(e.text, "GPU 1: ", 7);
	assert_int_equal(count_lines(log), FAKE_GPUS);
#else
	skip();
#endif
}

TEST_IN(gpus_that_do_not_start_are_skipped, make_gpus, NULL)
{
#ifdef KX_CUDA
	const char *log;
	struct err e;

	fake_gpu[2].stopped = 1;
	fake_gpu[0].unknown = 1;
	fake_gpu[3].unreadable = 1;
	assert_int_equal(choose_fake("cuda", &log, &e), PS_OK);
	check_tried("1");
	assert_int_equal(count_lines(log), 2);
	assert_non_null(strstr(log, "gpu=cuda:2 reason=\"device cuda:2: the GPU does not start: "));
	assert_non_null(strstr(log, "gpu=cuda:0 reason=\"device cuda:0: this program has no code"));
	answer[1] = PS_ENOMEM;
	assert_int_equal(choose_fake("cuda", &log, &e), PS_EDEVICE);
	check_tried("1");
	assert_int_equal(count_lines(log), FAKE_GPUS);
	assert_non_null(strstr(e.text, "device cuda:3: the GPU does not start: "));
#else
	skip();
#endif
}

TEST_IN(an_error_of_the_caller_ends_the_search, make_gpus, NULL)
{
#ifdef KX_CUDA
	const char *log;
	struct err e;

	answer[2] = PS_EUSAGE;
	assert_int_equal(choose_fake("cuda", &log, &e), PS_EUSAGE);
	check_tried("2");
	assert_string_equal(log, "");
#else
	skip();
#endif
}

TEST_IN(a_gpu_with_a_number_has_no_substitute, make_gpus, NULL)
{
#ifdef KX_CUDA
	const char *log;
	struct err e;

	answer[1] = PS_ENOMEM;
	fake_n_gpus = 1;
	answer[0] = PS_ENOMEM;
	assert_int_equal(choose_fake("cuda", &log, &e), PS_ENOMEM);
	check_tried("0");
	assert_string_equal(log, "");
	setenv("SLURM_LOCALID", "5", 1); /* GPU 5 modulo 4 */
	fake_n_gpus = FAKE_GPUS;
	assert_int_equal(choose_fake("cuda", &log, &e), PS_ENOMEM);
	check_tried("1");
	assert_int_equal(choose_fake("cuda:1", &log, &e), PS_ENOMEM);
	check_tried("1");
	assert_string_equal(log, "");
	assert_int_equal(choose_fake("cuda:4", &log, &e), PS_EUSAGE);
	check_tried("");
#else
	skip();
#endif
}
