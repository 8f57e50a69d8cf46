/*
 * trainer_fixture.h - a worker's trainer with a fake server, and a serial reference that follows
 * proto/WIRE.md, "Modes", and shares no code with the trainer.
 */
#ifndef TESTS_SUPPORT_TRAINER_FIXTURE_H
#define TESTS_SUPPORT_TRAINER_FIXTURE_H
#include <math.h>
#include "tests/support/fake_server.h"
#include "common/log.h"
#include "common/rng.h"
#include "worker/data/batch.h"
#include "worker/trainer.h"

#define TRAINER_PARAMS FAKE_PARAMS /* the number of parameters of fc:3 for images of one pixel */
#define IMAGES         33
#define BATCHES        7  /* the last batch has 3 images */
#define MAX_IMAGES     58 /* 12 batches; the last batch has 3 images */

extern struct fake trainer_server;
/* trainer_run_worker gives the fake server this behaviour before the worker connects */
extern struct fake_how trainer_server_how;
/* the value of trainer_config.overlaps for the next worker */
extern int trainer_overlaps;
/* the values of trainer_config.device and trainer_config.otherwise for the next worker */
extern const char *trainer_device, *trainer_otherwise;

/* ---- set-up --------------------------------------------------------------------------------- */

/* Set up a test program with IMAGES images and the model fc:3. */
int trainer_set_up_all(void **state);
int trainer_tear_down_all(void **state);
/* Set up a test: start the fake server, and empty the reference. */
int trainer_set_up(void **state);
int trainer_tear_down(void **state);
void trainer_start(void);
void trainer_use_model(const char *text);
void trainer_use_images(uint32_t n);
/* Connect and train until the server or the callback `stop` ends the training. Returns the status
 * of trainer_run. */
int trainer_run_worker(int (*stop)(void *), void *arg);
/* Run a worker to the end of the run. The server answers the first `n` LEASEs of the worker with
 * these grants, and then ends the run. */
void trainer_train(const struct msg_grant *grants, uint32_t n);
/* Two grants that contain all batches of an epoch. */
extern const struct msg_grant trainer_two_grants[2];

/* ---- the reference -------------------------------------------------------------------------- */

/* The state of the reference: the weights and counters of a correct server and a correct worker,
 * and the pushes that the fake server must receive from a correct worker. */
struct trainer_reference {
	float sum[TRAINER_PARAMS];
	struct fake_push push[FAKE_PUSHES];
	int n, pulls;
};

extern struct trainer_reference trainer_ref;

/* Write the weights that the server would have after the pushes of the reference to `w`. */
void reference_weights(float *w);
/* Compute the gradient `g` of one batch at the weights `w`. Add the batch, its images and its loss
 * to the push `of`. */
void reference_gradient(const float *w, struct work batch, float *g, struct fake_push *of);
/* Apply the push `of` with the gradient `g` to the reference, and clear `of` for the next push. */
void reference_push(struct fake_push *of, const float *g, uint64_t base_version);
/* Add to the reference the pushes that a worker in mode downpour makes for one lease. */
void reference_downpour(const struct work *lease);
/* Check that the fake server has received the pushes of the reference. */
void trainer_expect_reference(void);

#endif
