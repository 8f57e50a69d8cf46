/*
 * core_cluster.h - a core, and workers that follow the protocol. Each worker requests a lease,
 * copies the weights when the server grants the lease, and pushes the mean gradient of its batches
 * at those weights. The test supplies the gradient of a batch as a function.
 */
#ifndef TESTS_SUPPORT_CORE_CLUSTER_H
#define TESTS_SUPPORT_CORE_CLUSTER_H
#include <math.h>
#include "tests/support/core_fixture.h"

#define CLUSTER_WORKERS 8u
#define CLUSTER_PARAMS  64u

/* Returns the mean loss of batch `i` at `w`, and writes its gradient to `g` (n_params values). */
typedef double cluster_gradient_fn(uint32_t i, const float *w, double *g);

struct cluster_worker {
	struct stamp s;
	uint32_t peer;
	uint64_t seq, request;
	struct msg_grant grant;  /* work.count 0: the worker has no work */
	float w[CLUSTER_PARAMS]; /* the server's weights at the time of the grant */
	uint64_t version, term;  /* the version and the term of `w` */
};

struct cluster {
	struct core_fixture f;
	struct data_id data;
	cluster_gradient_fn *fn;
	uint32_t n;
	struct cluster_worker worker[CLUSTER_WORKERS];
};

/* Open a core, and let `n` workers join. Each worker reports a data set of `n_train` training
 * images. */
void cluster_open(struct cluster *k, struct core_config cfg, uint32_t n, uint32_t n_train,
	cluster_gradient_fn *fn);
void cluster_close(struct cluster *k);
void cluster_join(struct cluster *k, uint32_t i);
/* Kill the server, and start it from a snapshot of this moment. The first `n` workers resume their
 * sessions and keep their work. */
void cluster_restart(struct cluster *k, uint32_t n);

/* Returns the number of images in batches [first, first + count). */
uint32_t cluster_images(const struct cluster *k, uint32_t first, uint32_t count);
/* Copy each grant that the last event sent, and the current weights, to the worker of the grant. */
void cluster_receive(struct cluster *k);
/* Request a lease for worker `i`. Returns 1 if the answer is a grant of training work. */
int cluster_request(struct cluster *k, uint32_t i);
/* Check that the newest grant of worker `i` has batches [first, first + count). */
void cluster_granted(struct cluster *k, uint32_t i, uint32_t first, uint32_t count);
/* Returns the next push of worker `i`: the mean gradient of the worker's granted batches at the
 * worker's weights. Writes the values of the gradient to `g` (CLUSTER_PARAMS floats). */
struct msg cluster_gradient(struct cluster *k, uint32_t i, float *g);
/* Send the next push of worker `i`. Returns `reject` of its ACK. */
enum reject cluster_push(struct cluster *k, uint32_t i);
/* Send the result of the evaluation that worker `i` was granted. */
void cluster_evaluate(struct cluster *k, uint32_t i);
/* Send the next message of worker `i`. Returns 0 if the worker has no message to send, because it
 * waits for a grant. */
int cluster_act(struct cluster *k, uint32_t i);
/* Let workers act until the run ends. `r` draws which of the first `n` workers acts next. If `r` is
 * NULL, worker 0 acts alone. */
void cluster_run(struct cluster *k, uint32_t n, struct rng *r);

/* ---- gradients ------------------------------------------------------------------------------ */

/* Writes a gradient of 1 at each of FIXTURE_PARAMS coordinates. Returns the loss 0.5. */
double cluster_ones(uint32_t i, const float *w, double *g);
/* Computes the loss and the gradient of a quadratic function, with a different minimum for each
 * batch and a different curvature for each coordinate. */
double cluster_bowl(uint32_t i, const float *w, double *g);

#endif
