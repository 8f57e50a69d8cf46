/*
 * trainer.h - the worker's main loop: take a lease, compute, hand in.
 *
 * Thread: the program's; it owns the backend. Deterministic with one worker: a pull sees the
 * worker's own pushes applied, and everything random comes from the run's seed.
 */
#ifndef WORKER_TRAINER_H
#define WORKER_TRAINER_H
#include <stdint.h>
#include "common/err.h"
#include "worker/client/cnnps.h"
#include "worker/data/dataset.h"

struct trainer_config {
	const struct data *data;
	const char *device;
	int threads, precision; /* as struct backend_options */
	int (*stop)(void *arg); /* asked between batches */
	void *stop_arg;
};

/* What was done, also when the end was not a good one. */
struct trainer_work {
	uint64_t images, batches, evaluated;
	double seconds; /* inside the backend */
};

/*
 * Train over the connection `c` until the session ends. PS_EDONE, PS_ESHUTDOWN (the server drains,
 * or `stop` said so), the session's end (PS_EFENCED, ...), PS_EUSAGE and PS_EWRONGDATA (the run's
 * model is not for this data), PS_EDEVICE, PS_ENOMEM; `e` says why in one line.
 */
int trainer_run(struct cnnps *c, const struct trainer_config *cfg, struct trainer_work *work,
	struct err *e) PS_MUST_CHECK;
/* Can gradients be computed on this device (cfg->data may be empty)? PS_EUSAGE if not; else its
 * name for people, and the memory that it copies quickly from and to. */
int trainer_probe(const struct trainer_config *cfg, char *name, size_t size,
	const struct backend_memory **memory, struct err *e) PS_MUST_CHECK;

#endif
