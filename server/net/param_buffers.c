/* param_buffers.c - see param_buffers.h. */
#include "server/net/param_buffers.h"
#include <stdatomic.h>
#include <stdlib.h>
#include "common/mem.h"
#include "common/pool.h"
#include "proto/wire.h"
#include "proto/wire_hash.h"

/* Behind the values of each buffer: the core, while they are its current ones, and every frame of
 * them. Who leaves last gives the buffer back. */
struct users {
	struct pool *pool;
	atomic_uint n;
};

#define USERS_FLOATS (64 / sizeof(float)) /* room for it, and to align it */

struct copy {
	int valid;
	uint64_t version, xxh3;
	zmq_msg_t frame;
};

struct versions {
	struct pool *pool;
	float *current; /* the core's */
	float *spare;   /* where its next version goes while frames of current are about, or NULL */
	struct copy copy[2];    /* by enum weights - 1 */
	size_t n_params, shown; /* values of the version being written that `hash` has seen */
	struct wire_hash *hash;
	uint64_t version, xxh3; /* of current */
	int has_hash;           /* `hash` is of current */
	int is_framed;          /* xxh3 is known */
	uint64_t framed;
};

_Static_assert(sizeof(struct users) <= USERS_FLOATS * sizeof(float), "users have room");

static struct users *users_of(const struct versions *w, float *buffer)
{
	size_t end = (w->n_params + USERS_FLOATS - 1) / USERS_FLOATS * USERS_FLOATS;

	return (struct users *)(void *)(buffer + end);
}

/* Of one user, whoever asks for it. */
static float *take(struct versions *w)
{
	float *buffer = pool_take(w->pool);

	if (buffer) {
		struct users *u = users_of(w, buffer);

		u->pool = w->pool;
		atomic_init(&u->n, 1);
	}
	return buffer;
}

/* libzmq's free function, too. */
static void leave(void *buffer, void *users)
{
	struct users *u = users;
	float *values = buffer;

	if (atomic_fetch_sub(&u->n, 1) == 1)
		pool_give(u->pool, &values);
}

int versions_new(struct versions **out, size_t n_params)
{
	struct versions *w = mem_try(1, sizeof(*w));

	*out = w;
	if (!w)
		return PS_ENOMEM;
	for (size_t i = 0; i < 2; i++)
		(void)zmq_msg_init(&w->copy[i].frame);
	w->n_params = n_params;
	w->hash = wire_hash_new();
	if (w->hash && pool_new(&w->pool, n_params + 2 * USERS_FLOATS) == PS_OK)
		w->current = take(w);
	if (w->current)
		return PS_OK;
	versions_free(out);
	return PS_ENOMEM;
}

void versions_free(struct versions **out)
{
	struct versions *w = *out;

	if (!w)
		return;
	for (size_t i = 0; i < 2; i++)
		(void)zmq_msg_close(&w->copy[i].frame);
	if (w->spare)
		pool_give(w->pool, &w->spare);
	if (w->current)
		pool_give(w->pool, &w->current);
	pool_free(&w->pool);
	wire_hash_free(&w->hash);
	free(w);
	*out = NULL;
}

float *versions_first(const struct versions *w)
{
	return w->current;
}

/* core_watch's: the checksum of a version grows while it is written. */
static void on_block(void *arg, size_t offset, const float *block, size_t n)
{
	struct versions *w = arg;

	if (offset == 0) {
		wire_hash_begin(w->hash);
		w->shown = 0;
	}
	if (offset != w->shown)
		return; /* what lies between is not shown */
	wire_hash_add(w->hash, block, n * sizeof(*block));
	w->shown += n;
}

/* A frame of the core's own buffer, if there is another one for its next version. */
static int share(struct versions *w, uint64_t *xxh3, zmq_msg_t *frame)
{
	struct users *u = users_of(w, w->current);

	if (!w->spare && !(w->spare = take(w)))
		return PS_ENOMEM;
	atomic_fetch_add(&u->n, 1);
	if (zmq_msg_init_data(frame, w->current, w->n_params * sizeof(float), leave, u)) {
		atomic_fetch_sub(&u->n, 1);
		return PS_ENOMEM;
	}
	if (!w->is_framed) {
		w->xxh3 = w->has_hash ? wire_hash_end(w->hash)
				      : wire_checksum(w->current, w->n_params);
		w->is_framed = 1;
		w->framed++;
	}
	*xxh3 = w->xxh3;
	return PS_OK;
}

static int renew(struct versions *w, struct copy *c, const struct msg_params *m)
{
	struct slice slice = m->slices.slice[0];

	(void)zmq_msg_close(&c->frame);
	c->valid = wire_encode_slice(&slice, &c->frame) == PS_OK;
	if (!c->valid) {
		(void)zmq_msg_init(&c->frame);
		return PS_ENOMEM;
	}
	c->xxh3 = slice.xxh3;
	c->version = m->version;
	w->framed++;
	return PS_OK;
}

/* The core will overwrite the values: all pulls share one copy. */
static int copy(struct versions *w, struct msg_params *m, zmq_msg_t *frame)
{
	struct copy *c = &w->copy[m->which == WEIGHTS_EVAL];

	if (!c->valid || c->version != m->version) {
		int rc = renew(w, c, m);
		if (rc)
			return rc;
	}
	m->slices.slice[0].xxh3 = c->xxh3;
	(void)zmq_msg_init(frame);
	(void)zmq_msg_copy(frame, &c->frame);
	return PS_OK;
}

int versions_frame(struct versions *w, struct msg_params *m, zmq_msg_t *frame)
{
	struct slice *s = &m->slices.slice[0];

	if (s->data == w->current && share(w, &s->xxh3, frame) == PS_OK)
		return PS_OK;
	return copy(w, m, frame);
}

void versions_follow(struct versions *w, const struct core *c)
{
	uint64_t version = core_stats(c)->version;

	if (w->spare && core_weights(c) == w->spare) {
		leave(w->current, users_of(w, w->current));
		w->current = w->spare;
		w->spare = NULL;
	} else if (version == w->version) {
		return;
	}
	w->version = version;
	w->has_hash = w->shown == w->n_params;
	w->is_framed = 0;
}

void versions_lend(struct versions *w, struct core *c)
{
	int is_read = atomic_load(&users_of(w, w->current)->n) > 1;

	w->shown = 0;
	core_watch(c, on_block, w);
	core_lend(c, is_read ? w->spare : NULL);
}

uint64_t versions_framed(const struct versions *w)
{
	return w->framed;
}
