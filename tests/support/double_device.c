/* double_device.c - see double_device.h. */
#include "tests/support/double_device.h"
#include "common/assert.h"
#include "tests/support/test.h"

static void double_check(const char *why)
{
	if (why)
		fail_msg("%s", why);
}

static void double_load(void *self, const float *weights, float *const state[PARAM_DEVICE_VECTORS])
{
	struct double_device *d = self;

	double_check(d->module->load(d->self, weights, state));
}

static void double_step(void *self, const struct device_step *s)
{
	struct double_device *d = self;

	double_check(d->module->step(d->self, s));
}

static void double_begin(void *self, float *to)
{
	struct double_device *d = self;

	double_check(d->module->begin(d->self, to));
}

static void double_wait(void *self, size_t n)
{
	struct double_device *d = self;

	double_check(d->module->wait(d->self, n));
}

static void double_fetch(void *self, float *const state[PARAM_DEVICE_VECTORS])
{
	struct double_device *d = self;

	d->fetches++;
	double_check(d->module->fetch(d->self, state));
}

static void double_weights(void *self, float *to)
{
	struct double_device *d = self;

	d->fetches++;
	double_check(d->module->weights(d->self, to));
}

static int double_keep(void *self)
{
	struct double_device *d = self;
	int keeps = 0;

	double_check(d->module->keep(d->self, &keeps));
	return keeps;
}

/* Another thread may call this function, so a failure cannot end the test here. */
static void double_kept(void *self, void *weights, void *const state[PARAM_DEVICE_VECTORS])
{
	struct double_device *d = self;

	PS_ASSERT(!d->module->kept(d->self, weights, state));
}

static const float *double_readable(void *self, const float *values, size_t n)
{
	struct double_device *d = self;

	double_check(d->module->readable(d->self, &values, n));
	return values;
}

void double_device_open(struct double_device *d, const struct store_module *module, int number,
	size_t n, size_t vectors)
{
	char name[STORE_MODULE_NAME];

	*d = (struct double_device){.module = module,
		.device = {.self = d,
			.load = double_load,
			.step = double_step,
			.begin = double_begin,
			.wait = double_wait,
			.fetch = double_fetch,
			.weights = double_weights,
			.keep = double_keep,
			.kept = double_kept,
			.readable = double_readable}};
	double_check(module->open(&d->self, number, name));
	double_check(module->allocate(d->self, n, vectors));
}

void double_device_close(struct double_device *d)
{
	d->module->close(d->self);
	d->self = NULL;
}
