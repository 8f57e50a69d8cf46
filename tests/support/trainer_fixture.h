/*
 * trainer_fixture.h - a worker's trainer with a fake server, and a serial reference that is written
 * from proto/WIRE.md, "Modes".
 */
#ifndef TESTS_SUPPORT_TRAINER_FIXTURE_H
#define TESTS_SUPPORT_TRAINER_FIXTURE_H
#include <math.h>
#include "tests/support/fake_server.h"
#include "common/log.h"
#include "common/rng.h"
#include "worker/data/batch.h"
#include "worker/trainer.h"

#define TRAINER_PARAMS FAKE_PARAMS /* of fc:3 on one pixel */
#define IMAGES         33
#define BATCHES        7  /* the last one has 3 images */
#define MAX_IMAGES     58 /* 12 batches; the last one has 3 images */

extern struct fake trainer_server;
extern struct fake_how trainer_server_how; /* in force when trainer_run_worker begins */

/* ---- set-up --------------------------------------------------------------------------------- */

/* Of the program: IMAGES images and the model fc:3. */
int trainer_set_up_all(void **state);
int trainer_tear_down_all(void **state);
/* Of a test: a fake server, and an empty reference. */
int trainer_set_up(void **state);
int trainer_tear_down(void **state);
void trainer_start(void);
#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, trainer_set_up, trainer_tear_down)

void trainer_use_model(const char *text);
void trainer_use_images(uint32_t n);
/* Connect and train until the server or `stop` ends it; the status of trainer_run. */
int trainer_run_worker(int (*stop)(void *), void *arg);
/* The server gives these grants, and then ends the run. */
void trainer_train(const struct msg_grant *grants, uint32_t n);
/* All batches of an epoch in two grants. */
extern const struct msg_grant trainer_two_grants[2];

/* ---- the reference -------------------------------------------------------------------------- */

/* The state of the server and the pushes that it must receive. */
struct trainer_reference {
	float sum[TRAINER_PARAMS];
	struct fake_push push[FAKE_PUSHES];
	int n, pulls;
};

extern struct trainer_reference trainer_ref;

/* The weights of the reference's server. */
void reference_weights(float *w);
/* The gradient of one batch at `w`. Adds its batch, images and loss to the push `of`. */
void reference_gradient(const float *w, struct work batch, float *g, struct fake_push *of);
/* Push `g`, and begin the next push in `of`. */
void reference_push(struct fake_push *of, const float *g, uint64_t base_version);
/* The pushes of downpour for a lease. */
void reference_downpour(const struct work *lease);
/* The fake server has received the pushes of the reference. */
void trainer_expect_reference(void);

#endif
