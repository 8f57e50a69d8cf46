/* param_buffers.c - see param_buffers.h. */
#include "server/net/param_buffers.h"
#include <stdatomic.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/assert.h"
#include "common/mem.h"
#include "common/pool.h"
#include "common/share.h"
#include "proto/wire.h"

#define PAGE ((size_t)4096)

/* This struct has the reference count of a buffer. The count of a buffer in ordinary memory lies
 * after the values of the buffer. The counts of shared buffers lie in struct shared instead,
 * because other processes can read the memory of a shared buffer. The core holds one reference to
 * its current buffer. Each frame and each reader in another process holds one reference to its
 * buffer. When the last reference is dropped, the buffer returns to its pool. */
struct refs {
	/* the pool to which an ordinary buffer returns; NULL if the buffer is shared */
	struct pool *pool;
	struct shared *shared; /* the owner of a shared buffer; NULL if the buffer is ordinary */
	atomic_uint n;
};

/* This struct describes the shared buffers, which lie in a memfd. A mutex protects the list of free
 * buffers, because libzmq's threads return buffers, too. */
struct shared {
	struct param_shared at;
	char *base;
	struct refs *refs; /* array of at.n reference counts */
	pthread_mutex_t mutex;
	size_t n_free;
	uint32_t *free_index; /* stack of the indexes of the free buffers */
};

/* number of floats that struct refs takes, with alignment */
#define REFS_FLOATS (64 / sizeof(float))

/* indexes in `copy` of struct param_buffers */
enum { COPY_CURRENT, COPY_EVAL, COPY_BF16, COPIES };

struct copy {
	int valid;
	uint64_t version, xxh3;
	zmq_msg_t frame;
};

struct param_buffers {
	struct pool *pool;
	struct shared *shared; /* the shared buffers; NULL if there are none */
	float *current;        /* the buffer of the core's current weights */
	/* the buffer for the next version, taken when `current` got a reader; NULL: `current` has
	 * got no reader */
	float *spare;
	struct copy copy[COPIES];
	size_t n_params;
	const struct engine *engine; /* the engine that computes checksums; NULL: none */
	uint64_t version, xxh3;      /* version and checksum of `current` */
	int is_framed;               /* 1 if xxh3 is the checksum of `current` */
	/* 1 if the weights in `current` were sent, or will be sent at the end of this step */
	int is_sent;
	uint64_t framed;
	struct core *core; /* the core whose weights these are; NULL: not set yet */
};

_Static_assert(sizeof(struct refs) <= REFS_FLOATS * sizeof(float), "the count has room");

/* ---- shared buffers -------------------------------------------------------------------------- */

static void shared_free(struct shared **out)
{
	struct shared *s = *out;

	if (!s)
		return;
	if (s->base)
		(void)munmap(s->base, s->at.n * s->at.pitch);
	if (s->at.fd >= 0)
		close(s->at.fd);
	pthread_mutex_destroy(&s->mutex);
	free(s->refs);
	free(s->free_index);
	free(s);
	*out = NULL;
}

static struct shared *shared_new(size_t n_params, size_t n)
{
	struct shared *s = mem_try(1, sizeof(*s));

	if (!s)
		return NULL;
	if (pthread_mutex_init(&s->mutex, NULL)) {
		free(s);
		return NULL;
	}
	s->at = (struct param_shared){
		.fd = -1, .n = n, .pitch = (n_params * sizeof(float) + PAGE - 1) / PAGE * PAGE};
	s->refs = mem_try(n, sizeof(*s->refs));
	s->free_index = mem_try(n, sizeof(*s->free_index));
	if (s->refs && s->free_index &&
		share_new("cnn-ps weights", n * s->at.pitch, &s->at.fd) == PS_OK)
		s->base = share_map(s->at.fd, n * s->at.pitch, 1);
	if (!s->base || share_freeze(s->at.fd)) {
		shared_free(&s);
		return NULL;
	}
	for (size_t i = n; i-- > 0;)
		s->free_index[s->n_free++] = (uint32_t)i;
	return s;
}

static float *shared_take(struct shared *s)
{
	char *at = NULL;

	pthread_mutex_lock(&s->mutex);
	if (s->n_free > 0)
		at = s->base + s->free_index[--s->n_free] * s->at.pitch;
	pthread_mutex_unlock(&s->mutex);
	return (float *)(void *)at;
}

static int is_shared(const struct shared *s, const float *buffer)
{
	const char *at = (const char *)buffer;

	return s && at >= s->base && at < s->base + s->at.n * s->at.pitch;
}

static size_t shared_index(const struct shared *s, const float *buffer)
{
	return (size_t)((const char *)buffer - s->base) / s->at.pitch;
}

static void shared_return(struct shared *s, const float *buffer)
{
	pthread_mutex_lock(&s->mutex);
	PS_ASSERT(s->n_free < s->at.n);
	s->free_index[s->n_free++] = (uint32_t)shared_index(s, buffer);
	pthread_mutex_unlock(&s->mutex);
}

/* ---- all buffers ----------------------------------------------------------------------------- */

static struct refs *refs_of(const struct param_buffers *w, float *buffer)
{
	size_t end = (w->n_params + REFS_FLOATS - 1) / REFS_FLOATS * REFS_FLOATS;

	if (is_shared(w->shared, buffer))
		return &w->shared->refs[shared_index(w->shared, buffer)];
	return (struct refs *)(void *)(buffer + end);
}

/* Takes a shared buffer, or a buffer in ordinary memory if no shared buffer is free. The reference
 * count of the buffer is 1. */
static float *take_buffer(struct param_buffers *w)
{
	float *buffer = w->shared ? shared_take(w->shared) : NULL;

	if (!buffer)
		buffer = pool_acquire(w->pool);
	if (buffer) {
		struct refs *u = refs_of(w, buffer);

		u->shared = is_shared(w->shared, buffer) ? w->shared : NULL;
		u->pool = u->shared ? NULL : w->pool;
		atomic_init(&u->n, 1);
	}
	return buffer;
}

/* Drops one reference. libzmq calls this function for each frame that it has sent. */
static void drop_ref(void *buffer, void *refs)
{
	struct refs *u = refs;
	float *values = buffer;

	unsigned before = atomic_fetch_sub(&u->n, 1);

	PS_ASSERT(before >= 1);
	if (before > 1)
		return;
	if (u->shared)
		shared_return(u->shared, values);
	else
		pool_release(u->pool, &values);
}

int param_buffers_new(struct param_buffers **out, size_t n_params, size_t shared)
{
	struct param_buffers *w = mem_try(1, sizeof(*w));

	*out = w;
	if (!w)
		return PS_ENOMEM;
	for (size_t i = 0; i < COPIES; i++)
		(void)zmq_msg_init(&w->copy[i].frame);
	w->n_params = n_params;
	if (shared)
		w->shared = shared_new(n_params, shared);
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
	for (size_t i = 0; i < COPIES; i++)
		(void)zmq_msg_close(&w->copy[i].frame);
	if (w->spare)
		drop_ref(w->spare, refs_of(w, w->spare));
	if (w->current)
		drop_ref(w->current, refs_of(w, w->current));
	pool_free(&w->pool);
	shared_free(&w->shared);
	free(w);
	*out = NULL;
}

void param_buffers_use_engine(struct param_buffers *w, const struct engine *engine)
{
	w->engine = engine;
}

void param_buffers_use_core(struct param_buffers *w, struct core *c)
{
	PS_ASSERT(core_weights(c) == w->current);
	w->core = c;
	w->version = core_stats(c)->version;
}

float *param_buffers_first(const struct param_buffers *w)
{
	return w->current;
}

/* Returns the device that keeps the weights, or NULL if they are in memory of the host. */
static const struct param_device *device_of(const struct param_buffers *w)
{
	return w->core ? core_config(w->core)->device : NULL;
}

/* Copies the weights to `current` if only a device has them. */
static void fetch(struct param_buffers *w)
{
	if (device_of(w))
		core_fetch_weights(w->core);
}

/* Adds a reader of the current buffer, so that the next version needs another buffer. Sets *xxh3 to
 * the checksum of the weights. Returns the reader's reference, or NULL if there is no memory for
 * another buffer. */
static struct refs *add_reader(struct param_buffers *w, uint64_t *xxh3)
{
	struct refs *u = refs_of(w, w->current);

	if (!w->spare && !(w->spare = take_buffer(w)))
		return NULL;
	fetch(w);
	atomic_fetch_add(&u->n, 1);
	if (!w->is_framed)
		w->xxh3 = wire_checksum_with(w->current, w->n_params, w->engine);
	w->is_framed = 1;
	w->framed += !w->is_sent;
	w->is_sent = 1;
	*xxh3 = w->xxh3;
	return u;
}

/* Makes a frame that points to the core's own buffer. */
static int frame_current(struct param_buffers *w, uint64_t *xxh3, zmq_msg_t *frame)
{
	struct refs *u = add_reader(w, xxh3);

	if (!u)
		return PS_ENOMEM;
	if (zmq_msg_init_data(frame, w->current, w->n_params * sizeof(float), drop_ref, u)) {
		drop_ref(w->current, u);
		return PS_ENOMEM;
	}
	return PS_OK;
}

int param_buffers_shared(const struct param_buffers *w, struct param_shared *shared)
{
	if (w->shared)
		*shared = w->shared->at;
	return w->shared != NULL;
}

void *param_buffers_memory(const struct param_buffers *w)
{
	return w->shared ? w->shared->base : NULL;
}

int param_buffers_hold(struct param_buffers *w, struct msg_params *m, size_t *index, void **hold)
{
	struct slice *s = &m->slices.slice[0];

	*hold = NULL;
	if (s->data != w->current || !is_shared(w->shared, w->current) || !add_reader(w, &s->xxh3))
		return 0;
	*index = shared_index(w->shared, w->current);
	*hold = w->current;
	return 1;
}

void param_buffers_drop(struct param_buffers *w, void **hold)
{
	if (*hold)
		drop_ref(*hold, refs_of(w, *hold));
	*hold = NULL;
}

static int make_copy(struct param_buffers *w, struct copy *c, const struct msg_params *m)
{
	struct slice slice = m->slices.slice[0];

	fetch(w);
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

/* Makes a frame with a copy of the values, because the core may overwrite the original values. All
 * pulls of one version share the copy. */
static int frame_copy(
	struct param_buffers *w, struct copy *c, struct msg_params *m, zmq_msg_t *frame)
{
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
	return frame_copy(
		w, &w->copy[m->which == WEIGHTS_EVAL ? COPY_EVAL : COPY_CURRENT], m, frame);
}

int param_buffers_frame_bf16(struct param_buffers *w, struct msg_params *m, zmq_msg_t *frame)
{
	m->slices.slice[0].encoding = ENCODING_BF16;
	return frame_copy(w, &w->copy[COPY_BF16], m, frame);
}

struct computation {
	struct core *core;
	size_t done; /* number of values that core_compute has returned so far */
};

static size_t compute_block(void *arg, const float **values)
{
	struct computation *u = arg;
	size_t n = core_compute(u->core, values);

	u->done += n;
	return n;
}

static void fill_block(void *core, size_t block)
{
	core_compute_block(core, block);
}

/* Computes the new weights and their checksum on the threads of the engine, in one pass if the core
 * has not computed the weights already. */
static void compute_and_hash_with(struct param_buffers *w, struct core *c)
{
	struct computation u = {.core = c};
	const float *values;

	if (core_update_blocks(c) > 0 &&
		engine_block_values(core_config(c)->engine) == ENGINE_BLOCK) {
		w->xxh3 = wire_checksum_filled(
			core_weights(c), w->n_params, fill_block, c, w->engine);
		core_end_update(c);
		return;
	}
	while (compute_block(&u, &values) > 0)
		;
	w->xxh3 = wire_checksum_with(core_weights(c), w->n_params, w->engine);
}

/* Computes the new weights and their checksum together. Returns 1 if it set w->xxh3 to the
 * checksum. Returns 0 if the core had already computed a part of the weights, so that w->xxh3 is
 * not valid. */
static int compute_and_hash(struct param_buffers *w, struct core *c)
{
	struct computation u = {.core = c};

	if (w->engine) {
		compute_and_hash_with(w, c);
		return 1;
	}
	w->xxh3 = wire_checksum_blocks(compute_block, &u);
	return u.done == w->n_params;
}

int param_buffers_defer(const struct param_buffers *w)
{
	const struct param_device *d = device_of(w);

	return d && d->defers;
}

void param_buffers_after_step(struct param_buffers *w)
{
	struct core *c = w->core;
	struct computation u = {.core = c};
	const float *values;
	int is_hashed = 0, is_sent = core_sends_weights(c);

	w->version += core_new_versions(c);
	PS_ASSERT(w->version == core_stats(c)->version); /* invariant 3 */
	if (core_new_versions(c) == 0) {
		PS_ASSERT(core_weights(c) == w->current); /* invariant 2 */
		return;
	}
	if ((is_sent || w->is_sent) && !param_buffers_defer(w))
		is_hashed = compute_and_hash(w, c);
	else
		while (compute_block(&u, &values) > 0)
			;
	if (core_weights(c) != w->current) {
		PS_ASSERT(core_weights(c) == w->spare); /* invariant 2 */
		drop_ref(w->current, refs_of(w, w->current));
		w->current = w->spare;
		w->spare = NULL;
	}
	w->is_framed = is_hashed;
	w->is_sent = is_sent && is_hashed;
	w->framed += (uint64_t)w->is_sent;
}

float *param_buffers_next(const struct param_buffers *w)
{
	int is_read = atomic_load(&refs_of(w, w->current)->n) > 1;

	PS_ASSERT(!is_read || w->spare); /* invariant 1: the core must not write to current */
	return is_read ? w->spare : NULL;
}

uint64_t param_buffers_framed(const struct param_buffers *w)
{
	return w->framed;
}
