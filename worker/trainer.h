/*
 * trainer.h - the worker's main loop: lease, pull, batch, gradient, push.
 *
 * Thread: the program's; it owns the backends. A run with one worker is deterministic: a pull
 * includes the worker's own pushes, and all random numbers derive from the run's seed.
 */
#ifndef WORKER_TRAINER_H
#define WORKER_TRAINER_H
#include <stdint.h>
#include "common/err.h"
#include "worker/client/cnnps.h"
#include "worker/data/dataset.h"

struct trainer_config {
	const struct data *data;
	const char *device, *otherwise; /* as in struct backend_options */
	int threads, precision, kernels;
	uint64_t memory; /* maximum bytes for the model and its activations; 0: no maximum */
	/* called between batches; if it returns nonzero, the trainer stops */
	int (*stop)(void *arg);
	void *stop_arg;
	/* 1: with prefetch, gradients of single batches overlap even on a device that computes them
	 * one after the other; only tests set this field */
	int overlaps;
};

/* The completed work, which is valid even after a failure. */
struct trainer_work {
	uint64_t images, batches, evaluated;
	double seconds; /* time for which the backend has computed, in seconds */
};

/*
 * Trains over the connection `c` until the session ends. Returns PS_EDONE, PS_ESHUTDOWN (the server
 * drains, or `stop` returned nonzero), another status that ended the session (PS_EFENCED, ...),
 * PS_EUSAGE or PS_EWRONGDATA (the run's model does not match the data), PS_EDATA (a data file
 * cannot be read any more), PS_EDEVICE or PS_ENOMEM; `e` has the reason in one line.
 */
int trainer_run(struct cnnps *c, const struct trainer_config *cfg, struct trainer_work *work,
	struct err *e) PS_MUST_CHECK;
struct trainer_device {
	/* name: for display; option: the value for trainer_config.device */
	char name[64], option[64];
	int precision;                       /* the value for trainer_config.precision */
	const struct backend_memory *memory; /* memory with fast copies to and from the device */
};
/* Tests whether this device can compute gradients; cfg->data may be empty. Returns PS_EUSAGE or
 * PS_EDEVICE if the device cannot compute gradients. */
int trainer_probe(
	const struct trainer_config *cfg, struct trainer_device *d, struct err *e) PS_MUST_CHECK;

#endif
