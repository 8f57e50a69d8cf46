/* versions.c - see versions.h. */
#include "server/versions.h"
#include <stdlib.h>
#include "common/mem.h"
#include "common/pool.h"
#include "proto/wire.h"
#include "proto/wire_hash.h"

struct shared {
	int valid;
	uint64_t version, xxh3;
	zmq_msg_t frame;
};

struct versions {
	struct pool *pool;
	float *current;          /* the core's; also the first set's frame's, if that is no copy */
	float *spare;            /* where the core's next version goes; NULL: into current */
	struct shared shared[2]; /* by enum weights - 1 */
	uint64_t framed;
	size_t n_params, hashed; /* of the version being written: values that `hash` has seen */
	struct wire_hash *hash;
	uint64_t version; /* in current */
	int has_hash;     /* `hash` is of current */
};

int versions_new(struct versions **out, size_t n_params)
{
	struct versions *w = mem_try(1, sizeof(*w));

	*out = w;
	if (!w)
		return PS_ENOMEM;
	for (size_t i = 0; i < 2; i++)
		(void)zmq_msg_init(&w->shared[i].frame);
	w->n_params = n_params;
	w->hash = wire_hash_new();
	if (w->hash && pool_new(&w->pool, n_params) == PS_OK)
		w->current = pool_take(w->pool);
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
		(void)zmq_msg_close(&w->shared[i].frame);
	if (w->pool) {
		if (w->spare)
			pool_give(w->pool, &w->spare);
		else
			pool_give(w->pool, &w->current);
	}
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
		w->hashed = 0;
	}
	wire_hash_add(w->hash, block, n * sizeof(*block));
	w->hashed += n;
}

static uint64_t checksum(const struct versions *w)
{
	return w->has_hash ? wire_hash_end(w->hash) : wire_checksum(w->current, w->n_params);
}

/* The core's buffer itself, if there is another one for its next version. */
static int share(struct versions *w, zmq_msg_t *frame)
{
	float *buffer = w->current;
	float *spare = pool_take(w->pool);

	if (!spare)
		return PS_ENOMEM;
	int rc = pool_send(w->pool, &buffer, frame);
	if (rc)
		pool_give(w->pool, &spare);
	w->spare = spare;
	return rc;
}

static int make_frame(struct versions *w, struct shared *s, const struct msg_params *m)
{
	struct slice slice = m->slices.slice[0];
	int rc = PS_ENOMEM;

	(void)zmq_msg_close(&s->frame);
	s->valid = 0;
	if (slice.data == w->current && !w->spare)
		rc = share(w, &s->frame);
	if (rc == PS_OK)
		slice.xxh3 = checksum(w);
	else
		rc = wire_encode_slice(&slice, &s->frame);
	if (rc) {
		(void)zmq_msg_init(&s->frame);
		return rc;
	}
	s->xxh3 = slice.xxh3;
	s->version = m->version;
	s->valid = 1;
	w->framed++;
	return PS_OK;
}

int versions_frame(struct versions *w, struct msg_params *m, zmq_msg_t *frame)
{
	struct shared *s = &w->shared[m->which == WEIGHTS_EVAL];

	if (!s->valid || s->version != m->version) {
		int rc = make_frame(w, s, m);
		if (rc)
			return rc;
	}
	m->slices.slice[0].xxh3 = s->xxh3;
	(void)zmq_msg_init(frame);
	(void)zmq_msg_copy(frame, &s->frame);
	return PS_OK;
}

/* The core has gone on to the spare: the old buffer is its frames' alone. */
static void let_go(struct versions *w)
{
	struct shared *s = &w->shared[0];

	w->current = w->spare;
	w->spare = NULL;
	w->has_hash = w->hashed == w->n_params;
	w->hashed = 0;
	s->valid = 0;
	(void)zmq_msg_close(&s->frame);
	(void)zmq_msg_init(&s->frame);
}

void versions_follow(struct versions *w, const struct core *c)
{
	uint64_t version = core_stats(c)->version;

	if (w->spare && core_weights(c) == w->spare)
		let_go(w);
	else if (version != w->version)
		w->has_hash = 0; /* it was changed in place */
	w->version = version;
}

void versions_lend(struct versions *w, struct core *c)
{
	core_watch(c, on_block, w);
	core_lend(c, w->spare);
}

uint64_t versions_framed(const struct versions *w)
{
	return w->framed;
}
