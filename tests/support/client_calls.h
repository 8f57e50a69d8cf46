/*
 * client_calls.h - short forms of the calls of libcnnps that tests make often.
 */
#ifndef TESTS_SUPPORT_CLIENT_CALLS_H
#define TESTS_SUPPORT_CLIENT_CALLS_H
#include "worker/client/cnnps.h"

/* Pull the newest weights into `w`. `version` may be NULL. */
int client_pull_all(struct cnnps *c, float *w, uint64_t *version);
/* Pull the weights under evaluation into `w`. `version` may be NULL. */
int client_pull_eval(struct cnnps *c, float *w, uint64_t *version);
/* Pull the newest weights into memory of the library. view->weights points to this memory. */
int client_view(struct cnnps *c, struct cnnps_pull *view);
int client_prefetch(struct cnnps *c);
int client_await(struct cnnps *c);
/* Push the gradient `g`, which has a value for each weight. */
int client_push_all(struct cnnps *c, const float *g, uint64_t version);
/* Push the `n` values `g` as the part of a gradient that begins at coordinate `offset`. */
int client_push_slice(struct cnnps *c, uint64_t offset, const float *g, size_t n, uint64_t version);
int client_push_work(
	struct cnnps *c, const float *g, uint64_t version, const struct cnnps_work *work);
/* Push all of `g`, and pull the newest weights in the same request. */
int client_push_view(struct cnnps *c, const float *g, uint64_t version, struct cnnps_pull *view);
struct cnnps_stats client_stats(const struct cnnps *c);

#endif
