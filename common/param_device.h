/*
 * param_device.h - keeps the weights and the optimizer's state of a run in the memory of another
 * processor, which computes the updates.
 *
 * The shell of the server implements `struct param_device` (server/device/). The core calls it for
 * each update, and does not depend on which processor computes. Only the device has the current
 * state of the optimizer. The core also has the current weights in its own memory, because it sends
 * them to workers. The device writes the weights to this memory after each update, or only when the
 * core needs them (`defers`).
 *
 * A device computes the same bits as optim_apply (server/core/optim.c): each value needs the same
 * operations in the same order, and subnormal numbers count as 0.
 *
 * A function of a device returns only if it has succeeded. If the device fails, the shell ends the
 * process, as a crash would: the log and the checkpoints on disk have everything that the server
 * has acknowledged.
 *
 * Only one thread at a time may use a device, except that `kept` may run on another thread at the
 * same time.
 */
#ifndef COMMON_PARAM_DEVICE_H
#define COMMON_PARAM_DEVICE_H
#include <stddef.h>
#include <stdint.h>

#define PARAM_DEVICE_VECTORS 2 /* maximum number of state vectors of an optimizer */

enum device_rule {
	DEVICE_SGD,
	DEVICE_ADAGRAD,
	DEVICE_MOMENTUM,
	DEVICE_NESTEROV,
	DEVICE_RMSPROP,
	DEVICE_ADAM,
};

/* The constants of an optimizer's step, rounded to float32. */
struct step_coeff {
	float rate, scale, decay, eps;
	float keep, add; /* keep: momentum or beta1; add: 1 minus this constant */
	/* square_keep: beta2 or alpha; square_add: 1 minus this constant */
	float square_keep, square_add;
};

/* A part of an update: the values [offset, offset + count), with the gradient of these values.
 * Values from `trained` on are running statistics: each moves by `running` of its distance towards
 * the value of the gradient. */
struct device_step {
	enum device_rule rule;
	struct step_coeff coeff;
	double running;
	size_t trained, offset, count;
	/* `count` values in memory of the host or of the device, which do not change until `wait`
	 * has returned */
	const float *gradient;
};

struct param_device {
	void *self;
	/* Copies all weights and the state of the optimizer to the device. */
	void (*load)(void *self, const float *weights, float *const state[PARAM_DEVICE_VECTORS]);
	/* 1: after an update only the device should have the new weights, until the core calls
	 * `weights`. Only the shell reads this member, and passes it to the core in each event. */
	int defers;
	/* Begins an update, whose new weights the device also writes to `to`. If `to` is NULL, only
	 * the device has the new weights; `wait` then returns when the gradients may change. */
	void (*begin)(void *self, float *to);
	/* Starts a part of the update. The parts come in ascending order and do not overlap. The
	 * weights that are in no part do not change, and the device copies them to `to`. */
	void (*step)(void *self, const struct device_step *step);
	/* Returns when the first n values of `to` are valid. After it has started all parts, the
	 * caller calls `wait` with ascending n, the last time with the number of all weights. */
	void (*wait)(void *self, size_t n);
	/* Copies the state of the optimizer from the device. */
	void (*fetch)(void *self, float *const state[PARAM_DEVICE_VECTORS]);
	/* Copies all weights from the device to `to`. */
	void (*weights)(void *self, float *to);
	/* Keeps a copy of the present weights and of the optimizer's state on the device, for
	 * `kept`. Returns 0 if the device has no memory for this copy. Do not call `keep` again
	 * before `kept` has returned. */
	int (*keep)(void *self);
	/* Copies what `keep` has kept to memory of the host, which needs no alignment. Another
	 * thread may call this function at the same time as one thread calls the others. */
	void (*kept)(void *self, void *weights, void *const state[PARAM_DEVICE_VECTORS]);
	/* Returns `values` if the CPU can read these `n` values. If they are in memory of the
	 * device, returns a copy in memory of the host, which is valid until the next call. */
	const float *(*readable)(void *self, const float *values, size_t n);
};

#endif
