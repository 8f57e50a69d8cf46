/*
 * virtual.h - makes a training run of cnn-ps in virtual time. The server core and the workers
 * (worker/trainer.c, steps.c, session.c) are the real ones, compute real gradients, and run in one
 * thread of one process.
 *
 * Only time is simulated. The cost model determines how long the computation of a batch, the
 * transfer of a message and the work of the server take. The speed of the machine that runs the
 * simulation has no effect. The cost model is:
 *
 *   worker   image_us for each image of a gradient, times a random factor for each batch
 *            (lognormal, mean 1, spread `jitter`); a third of image_us for an image that is
 *            only evaluated
 *   network  the server has one link. Each direction carries one message after the other at `gbit`.
 *            A message arrives latency_us after its last bit has been sent
 *   server   one message at a time: message_us for each, and for a push apply_ns for each value
 *
 * Each worker is a coroutine. A worker runs trainer_run with a libcnnps (client.c) whose calls
 * return when enough virtual time has passed. Equal arguments give equal runs, bit for bit.
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
	double slow; /* the factor by which worker 0 is slower than the others */
};

/* A message in transit, and the values that it carries. */
struct parcel {
	struct msg msg;
	/* The weights of a PARAMS, which its parcel owns. In other parcels this field is NULL: the
	 * values of a push stay in a buffer of the worker until the server has decided the push. */
	float *values;
};

enum what {
	AT_SERVER, /* a message has arrived at the server */
	SERVED,    /* the server has processed the message */
	AT_WORKER,
	AWAKE, /* a worker has finished a computation */
	TICK,  /* a tick of the server and of all workers */
};

struct item {
	/* order: among items with equal at_ns, the item that was added first comes first */
	uint64_t at_ns, order;
	enum what what;
	/* a connection of worker `index`: 2 * index + 1 (bulk) or 2 * index + 2 (heartbeats) */
	uint32_t peer;
	struct parcel *parcel;
};

/* The future events, in a heap ordered by time. */
struct plan {
	struct item *heap;
	size_t n, room;
	uint64_t orders;
};

/* The ways in which the last worker of a run may misbehave; attack.c explains them. */
enum attack {
	ATTACK_NONE,
	ATTACK_SCALE,
	ATTACK_FLIP,
	ATTACK_NOISE,
	ATTACK_STALE,
	ATTACK_STALE2,
	ATTACK_HUGE,
	ATTACK_NAN,
	ATTACK_EMPTY,
	ATTACK_FORGE,
	ATTACKS
};

struct attacker {
	enum attack attack;
	struct rng rng;
	float *old[2];   /* ATTACK_STALE, ATTACK_STALE2: the gradients to send again, or NULL */
	uint32_t pushes; /* ATTACK_STALE2: number of the attacker's pushes so far */
};

struct world {
	struct attacker attacker;
	struct cost cost;
	uint64_t now_ns;
	struct plan plan;
	/* The virtual times from which on three things are idle: the link to the server, the link
	 * from the server, and the server itself. */
	uint64_t in_free_ns, out_free_ns, server_free_ns;
	void *memory;
	float *weights;
	struct core *core;
	int finished; /* 1: the core has finished the run */
	uint32_t n_workers;
	struct cnnps **worker;
	ucontext_t scheduler;
	struct trainer_config trainer; /* the configuration of each worker */
	uint64_t seed;
	/* the error of the first worker that failed; empty: no worker has failed */
	struct err error;
	/* a file for the decisions of the server, one per line (record in world.c), or NULL */
	FILE *record;
};

/* Begin a run with the configuration `cfg` from `weights`, an array of n_params floats. The run
 * changes the array in place, and the caller frees it after the run. */
void world_init(struct world *w, const struct core_config *cfg, float *weights, uint32_t n_workers);
void world_release(struct world *w);
/* Run until the virtual time `until_ns` or the end of the run. Returns PS_OK, or the error of a
 * worker. */
int world_run(struct world *w, uint64_t until_ns) PS_MUST_CHECK;
int world_is_over(const struct world *w);

/* The files of this folder share the functions below. */
/* functions of plan.c */
void plan_add(struct plan *p, struct item it);
/* Remove and return the earliest item. The plan must not be empty. */
struct item plan_take(struct plan *p);

/* functions of network.c */
uint64_t world_ms(const struct world *w);
/* Send a copy of `m` to the server. */
void world_send(struct world *w, uint32_t peer, const struct msg *m);
/* Send a copy of `m` to a worker, with a copy of the weights: the server may change the weights
 * before the message arrives. */
void world_send_to_worker(struct world *w, uint32_t peer, const struct msg *m);

/* functions of attack.c */
/* Returns the attack with this name, or -1 if the name is unknown. */
int attack_of(const char *name);
/* Change the n values of the attacker's next push (attack_push), or its next result. */
void attack_push(struct attacker *a, float *g, size_t n);
void attack_result(const struct attacker *a, struct msg_result *r);
void attack_release(struct attacker *a);

/* functions of client.c: a worker and its libcnnps */
struct cnnps *client_new(struct world *w, uint32_t index);
void client_free(struct cnnps **c);
/* Deliver a message to the worker. The function takes over p->values. */
void client_message(struct cnnps *c, struct parcel *p);
void client_tick(struct cnnps *c);
void client_awake(struct cnnps *c);
/* Returns 1 if the program of the worker has ended. */
int client_is_over(const struct cnnps *c);

#endif
