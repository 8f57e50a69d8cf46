/*
 * double_device.h - makes a device of the core (common/param_device.h) from a store module. If a
 * function of the module fails, the test fails.
 */
#ifndef TESTS_SUPPORT_DOUBLE_DEVICE_H
#define TESTS_SUPPORT_DOUBLE_DEVICE_H
#include "server/device/module.h"

struct double_device {
	struct param_device device;
	const struct store_module *module;
	void *self;
	/* number of calls of the device's `fetch` and `weights`; no update can run during such a
	 * call, so some tests require that there is none */
	unsigned fetches;
};

/* Opens device `number` of the module, with memory for n values and `vectors` state vectors. */
void double_device_open(struct double_device *d, const struct store_module *module, int number,
	size_t n, size_t vectors);
void double_device_close(struct double_device *d);

#endif
