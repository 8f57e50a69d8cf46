/*
 * double_device.h - makes a device of the core (common/param_device.h) from a store module. A
 * function that fails ends the test.
 */
#ifndef TESTS_SUPPORT_DOUBLE_DEVICE_H
#define TESTS_SUPPORT_DOUBLE_DEVICE_H
#include "server/device/module.h"

struct double_device {
	struct param_device device;
	const struct store_module *module;
	void *self;
	unsigned fetches; /* calls of the device's `fetch` and `weights`, for which updates wait */
};

/* Opens device `number` of the module, with memory for n values and `vectors` state vectors. */
void double_device_open(struct double_device *d, const struct store_module *module, int number,
	size_t n, size_t vectors);
void double_device_close(struct double_device *d);

#endif
