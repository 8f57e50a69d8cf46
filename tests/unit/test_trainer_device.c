/*
 * test_trainer_device.c - tests that a worker trains on another device if its device has too little
 * memory for the model. The device `cpu` of this program has none. The linker uses the device_cpu
 * of this file instead of the real one, because this file precedes the archive that contains the
 * real one.
 */
#include "kernels/cpu/cpu.h"
#include "tests/support/test.h"
#include "tests/support/trainer_fixture.h"

static int opened; /* number of calls of the device's function `open` */

static int full_open(
	void **self, const struct model *m, const struct backend_options *o, struct err *e)
{
	(void)m;
	(void)o;
	*self = NULL;
	opened++;
	return err_set(e, PS_ENOMEM, "the device is full");
}

const struct device device_cpu = {.name = "cpu", .precise = 1, .open = full_open};

TEST_IN(a_worker_whose_device_is_full_trains_on_another_one, trainer_set_up, trainer_tear_down)
{
	trainer_device = "cpu";
	trainer_otherwise = "cpu-ref";
	trainer_train(trainer_two_grants, 2);
	reference_downpour(&trainer_two_grants[0].work);
	reference_downpour(&trainer_two_grants[1].work);
	trainer_expect_reference();
	/* the backend for evaluations follows that for gradients: no try of the full device */
	assert_int_equal(opened, 1);
}

TEST_IN(without_another_device_a_full_device_ends_the_worker, trainer_set_up, trainer_tear_down)
{
	trainer_device = "cpu";
	trainer_otherwise = NULL;
	assert_int_equal(trainer_run_worker(NULL, NULL), PS_ENOMEM);
}

TEST_GROUP(trainer_set_up_all, trainer_tear_down_all)
