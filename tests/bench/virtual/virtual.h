/*
 * virtual.h - a training run of cnn-ps in virtual time: the real server core and the real worker
 * (worker/trainer.c, steps.c, session.c) with real gradients, one thread, one process.
 *
 * What is not real is time. Computing a batch, a message on its way, and the server at work last as
 * long as the cost model says, whatever this machine needs for them:
 *
 *   worker   image_us for each image of a gradient, times a factor drawn for each batch: lognormal,
 *            mean 1, spread `jitter`; a third of that for an image that is only evaluated
 *   network  the server has one link, each way of it carries one message after the other at
 *            `gbit`; a message arrives latency_us after its last bit has left
 *   server   one message at a time: message_us each, and for a push apply_ns for each value
 *
 * Each worker is a coroutine: it runs trainer_run over a libcnnps (client.c) whose calls come back
 * when virtual time has come so far. Equal arguments give equal runs, bit for bit.
 *
 * Thread: one.
 */
#ifndef TESTS_BENCH_VIRTUAL_VIRTUAL_H
#define TESTS_BENCH_VIRTUAL_VIRTUAL_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <ucontext.h>
#include "common/err.h"
#include "common/rng.h"
#include "proto/msg.h"
#include "server/core/core.h"
#include "worker/trainer.h"

struct cost {
	double image_us, jitter, latency_us, gbit, message_us, apply_ns;
	double slow; /* the first worker computes so many times slower */
};

/* A message on its way, and the values that it carries. */
struct parcel {
	struct msg msg;
	float *values; /* PARAMS: owned; else NULL: a push's are the worker's until it is decided */
};

enum what {
	AT_SERVER, /* a message has arrived there */
	SERVED,    /* ... and its turn is over */
	AT_WORKER,
	AWAKE, /* a worker has computed */
	TICK,  /* of everybody */
};

struct item {
	uint64_t at_ns, order; /* equal times: as they were planned */
	enum what what;
	uint32_t peer; /* a worker's connection: 2 * index + 1 (bulk) or + 2 (beat) */
	struct parcel *parcel;
};

/* What is planned, in a heap by time. */
struct plan {
	struct item *heap;
	size_t n, room;
	uint64_t orders;
};

struct world {
	struct cost cost;
	uint64_t now_ns;
	struct plan plan;
	uint64_t in_free_ns, out_free_ns, server_free_ns; /* since when each is idle */
	void *memory;
	float *weights;
	struct core *core;
	int finished; /* the core said so */
	uint32_t n_workers;
	struct cnnps **worker;
	ucontext_t scheduler;
	struct trainer_config trainer; /* of all workers */
	uint64_t seed;
	struct err error; /* of the first worker that failed; empty: none */
	FILE *record;     /* what the server decided, a line each (world.c); NULL: not recorded */
};

/* Begin a run of `cfg` from `weights` (n_params floats, the caller's, changed in place). */
void world_init(struct world *w, const struct core_config *cfg, float *weights, uint32_t n_workers);
void world_release(struct world *w);
/* Let time pass until `until_ns`, or the end of the run. PS_OK, or what a worker failed with. */
int world_run(struct world *w, uint64_t until_ns) PS_MUST_CHECK;
int world_is_over(const struct world *w);

/* shared by the files of this folder */
/* plan.c */
void plan_add(struct plan *p, struct item it);
/* The earliest item, taken out; there is one. */
struct item plan_take(struct plan *p);

/* world.c */
uint64_t world_ms(const struct world *w);
/* A copy of `m` starts on its way to the server. */
void world_send(struct world *w, uint32_t peer, const struct msg *m);

/* client.c: a worker and its libcnnps */
struct cnnps *client_new(struct world *w, uint32_t index);
void client_free(struct cnnps **c);
/* A message for it; takes p->values over. */
void client_message(struct cnnps *c, struct parcel *p);
void client_tick(struct cnnps *c);
void client_awake(struct cnnps *c);
/* Its program has come to its end. */
int client_is_over(const struct cnnps *c);

#endif
