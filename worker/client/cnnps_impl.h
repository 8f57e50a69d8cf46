/*
 * cnnps_impl.h - what cnnps.c and weights.c share: the state behind cnnps.h. Included by these
 * alone.
 */
#ifndef WORKER_CLIENT_CNNPS_IMPL_H
#define WORKER_CLIENT_CNNPS_IMPL_H
#include <zmq.h>
#include "common/pool.h"
#include "worker/client/cnnps.h"
#include "worker/client/net.h"

/* Versions of before a crash of the server mean other weights than those of after it. */
enum { PULLS = 16 };
struct pulled {
	uint64_t version, term;
};

struct cnnps {
	struct net *net;
	int observer;
	struct cnnps_info info;
	struct msg_welcome welcome; /* the first */
	char server[256];
	struct pool *pool;
	float *gradient;        /* the program's from the pool, or NULL */
	int lands;              /* weights are to lie in the pool's memory ... */
	float *landing;         /* ... in this, or NULL */
	struct arrival awaited; /* by cnnps_await; or empty */
	zmq_msg_t view;         /* weights that the program looks at */
	struct pulled pulled[PULLS];
	size_t n_pulled;    /* so far; number i is at i % PULLS */
	struct order order; /* the one under way, or the newest */
};

/* cnnps.c: the next order, empty. */
struct order *cnnps_order(struct cnnps *c, enum order_kind kind);
/* weights.c: term of the newest pull of that version; 0: not known. */
uint64_t cnnps_term_of(const struct cnnps *c, uint64_t version);
/* weights.c: the next weights come into the memory of those that the program looks at no more. */
void cnnps_put_away(struct cnnps *c);

#endif
