/* param_buffers.c - see param_buffers.h. */
#include "server/net/param_buffers.h"
#include <stdatomic.h>
#include <stdlib.h>
#include "common/assert.h"
#include "common/mem.h"
#include "common/pool.h"
#include "proto/wire.h"

/* The reference count of a buffer, stored after its values. The core has one reference to its
 * current buffer, and each frame has one. When the last reference is dropped, the buffer returns to
 * the pool. */
struct refs {
	struct pool *pool;
	atomic_uint n;
};

#define REFS_FLOATS (64 / sizeof(float)) /* its size, with alignment */

struct copy {
	int valid;
	uint64_t version, xxh3;
	zmq_msg_t frame;
};

struct param_buffers {
	struct pool *pool;
	float *current;      /* the buffer that the core uses */
	float *spare;        /* for the next version while frames of `current` exist, or NULL */
	struct copy copy[2]; /* by enum weights - 1 */
	size_t n_params;
	uint64_t version, xxh3; /* of `current` */
	int is_framed;          /* xxh3 is known */
	uint64_t framed;
};

_Static_assert(sizeof(struct refs) <= REFS_FLOATS * sizeof(float), "the count has room");

static struct refs *refs_of(const struct param_buffers *w, float *buffer)
{
	size_t end = (w->n_params + REFS_FLOATS - 1) / REFS_FLOATS * REFS_FLOATS;

	return (struct refs *)(void *)(buffer + end);
}

/* Take a buffer from the pool, with one reference. */
static float *take_buffer(struct param_buffers *w)
{
	float *buffer = pool_acquire(w->pool);

	if (buffer) {
		struct refs *u = refs_of(w, buffer);

		u->pool = w->pool;
		atomic_init(&u->n, 1);
	}
	return buffer;
}

/* Drop one reference. libzmq calls this function for each frame that it has sent. */
static void drop_ref(void *buffer, void *refs)
{
	struct refs *u = refs;
	float *values = buffer;

	unsigned before = atomic_fetch_sub(&u->n, 1);

	PS_ASSERT(before >= 1);
	if (before == 1)
		pool_release(u->pool, &values);
}

int param_buffers_new(struct param_buffers **out, size_t n_params)
{
	struct param_buffers *w = mem_try(1, sizeof(*w));

	*out = w;
	if (!w)
		return PS_ENOMEM;
	for (size_t i = 0; i < 2; i++)
		(void)zmq_msg_init(&w->copy[i].frame);
	w->n_params = n_params;
	if (pool_new(&w->pool, n_params + 2 * REFS_FLOATS) == PS_OK)
		w->current = take_buffer(w);
	if (w->current)
		return PS_OK;
	param_buffers_free(out);
	return PS_ENOMEM;
}

void param_buffers_free(struct param_buffers **out)
{
	struct param_buffers *w = *out;

	if (!w)
		return;
	for (size_t i = 0; i < 2; i++)
		(void)zmq_msg_close(&w->copy[i].frame);
	if (w->spare)
		pool_release(w->pool, &w->spare);
	if (w->current)
		pool_release(w->pool, &w->current);
	pool_free(&w->pool);
	free(w);
	*out = NULL;
}

float *param_buffers_first(const struct param_buffers *w)
{
	return w->current;
}

/* Make a frame that points to the core's own buffer. This needs a second buffer for the next
 * version. */
static int frame_current(struct param_buffers *w, uint64_t *xxh3, zmq_msg_t *frame)
{
	struct refs *u = refs_of(w, w->current);

	if (!w->spare && !(w->spare = take_buffer(w)))
		return PS_ENOMEM;
	atomic_fetch_add(&u->n, 1);
	if (zmq_msg_init_data(frame, w->current, w->n_params * sizeof(float), drop_ref, u)) {
		atomic_fetch_sub(&u->n, 1);
		return PS_ENOMEM;
	}
	if (!w->is_framed) {
		w->xxh3 = wire_checksum(w->current, w->n_params);
		w->is_framed = 1;
		w->framed++;
	}
	*xxh3 = w->xxh3;
	return PS_OK;
}

static int make_copy(struct param_buffers *w, struct copy *c, const struct msg_params *m)
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

/* Make a frame with a copy of the values, because the core may overwrite them. All pulls of one
 * version share the copy. */
static int frame_copy(struct param_buffers *w, struct msg_params *m, zmq_msg_t *frame)
{
	struct copy *c = &w->copy[m->which == WEIGHTS_EVAL];

	if (!c->valid || c->version != m->version) {
		int rc = make_copy(w, c, m);

		if (rc)
			return rc;
	}
	m->slices.slice[0].xxh3 = c->xxh3;
	(void)zmq_msg_init(frame);
	(void)zmq_msg_copy(frame, &c->frame);
	return PS_OK;
}

int param_buffers_frame(struct param_buffers *w, struct msg_params *m, zmq_msg_t *frame)
{
	struct slice *s = &m->slices.slice[0];

	if (s->data == w->current && frame_current(w, &s->xxh3, frame) == PS_OK)
		return PS_OK;
	return frame_copy(w, m, frame);
}

/* 1 if the effects of the step send the current weights. */
static int are_sent(const struct core *c)
{
	const struct effect *e;

	for (size_t i = 0; (e = core_effect(c, i)) != NULL; i++)
		if (e->kind == EFFECT_SEND && e->msg.type == MSG_PARAMS &&
			e->msg.params.which == WEIGHTS_CURRENT)
			return 1;
	return 0;
}

struct computation {
	struct core *core;
	size_t done; /* values */
};

static size_t compute_block(void *arg, const float **values)
{
	struct computation *u = arg;
	size_t n = core_compute(u->core, values);

	u->done += n;
	return n;
}

/* Compute the new weights and their checksum together. 1: w->xxh3 is the checksum. 0: the core had
 * computed a part of the weights before, so w->xxh3 is not valid. */
static int compute_and_hash(struct param_buffers *w, struct core *c)
{
	struct computation u = {.core = c};

	w->xxh3 = wire_checksum_blocks(compute_block, &u);
	return u.done == w->n_params;
}

void param_buffers_after_step(struct param_buffers *w, struct core *c)
{
	uint64_t version = core_stats(c)->version;
	struct computation u = {.core = c};
	const float *values;
	int is_hashed = 0;

	if (version != w->version && are_sent(c))
		is_hashed = compute_and_hash(w, c);
	else
		while (compute_block(&u, &values) > 0)
			;
	if (w->spare && core_weights(c) == w->spare) {
		drop_ref(w->current, refs_of(w, w->current));
		w->current = w->spare;
		w->spare = NULL;
	} else if (version == w->version) {
		PS_ASSERT(core_weights(c) == w->current); /* invariant 2: nothing new */
		return;
	}
	w->version = version;
	w->is_framed = is_hashed;
	w->framed += (uint64_t)is_hashed;
}

void param_buffers_before_step(struct param_buffers *w, struct core *c)
{
	int is_shared = atomic_load(&refs_of(w, w->current)->n) > 1;

	PS_ASSERT(!is_shared || w->spare); /* invariant 1: the core must not write to current */
	core_lend(c, is_shared ? w->spare : NULL);
}

uint64_t param_buffers_framed(const struct param_buffers *w)
{
	return w->framed;
}
