/* chunked_push.c - see chunked_push.h. */
#include "server/net/chunked_push.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/keys.h"
#include "common/mem.h"

/* This struct has the chunks of one peer. */
struct partial {
	uint32_t peer;      /* the peer; 0 if this entry is free */
	char key[KEY_TEXT]; /* the key of the peer; "" if it has none */
	size_t places;      /* number of entries in use with this key, this one included */
	/* the number of this peer's newest chunk, counted over the chunks of all peers */
	uint64_t clock;
	/* the seq of the PUSH, from the marks of the chunks; 0 if they have no marks */
	uint64_t push;
	unsigned filled; /* bit i: chunk[i] and frame[i] are in use */
	size_t n, bytes;
	struct chunk chunk[WIRE_MAX_CHUNKS];
	zmq_msg_t frame[WIRE_MAX_CHUNKS];
};

struct chunked_push {
	size_t max_peers, max_bytes, used; /* used: number of peers that have chunks */
	/* maximum bytes of the chunks of a key (chunked_push_limit) */
	size_t key_bytes;
	size_t wasted;   /* the result of chunked_push_wasted */
	uint64_t joined; /* the result of chunked_push_joined */
	uint64_t clock;
	struct wire_pass pass;
	struct partial *partial;
};

int chunked_push_new(
	struct chunked_push **out, size_t n_params, size_t max_peers, const struct wire_pass *pass)
{
	struct chunked_push *a = mem_try(1, sizeof(*a));

	*out = a;
	if (!a)
		return PS_ENOMEM;
	a->max_peers = max_peers;
	if (pass)
		a->pass = *pass;
	a->max_bytes = n_params * sizeof(float);
	a->partial = mem_try(max_peers, sizeof(*a->partial));
	if (a->partial)
		return PS_OK;
	chunked_push_free(out);
	return PS_ENOMEM;
}

void chunked_push_limit(struct chunked_push *a, size_t bytes)
{
	a->key_bytes = bytes;
}

/* Sets `places` in all entries with the key of `e`. */
static void note_places(struct chunked_push *a, const struct partial *e, size_t places)
{
	for (size_t i = 0; i < a->max_peers; i++)
		if (a->partial[i].peer && strcmp(a->partial[i].key, e->key) == 0)
			a->partial[i].places = places;
}

static void discard(struct chunked_push *a, struct partial *e)
{
	note_places(a, e, e->places - 1);
	PS_ASSERT(a->used > 0 && e->n <= WIRE_MAX_CHUNKS);
	for (size_t i = 0; i < WIRE_MAX_CHUNKS; i++)
		if (e->filled >> i & 1)
			(void)zmq_msg_close(&e->frame[i]);
	e->filled = 0;
	e->n = e->bytes = 0;
	e->peer = 0;
	a->used--;
}

void chunked_push_clear(struct chunked_push *a)
{
	for (size_t i = 0; i < a->max_peers; i++)
		if (a->partial[i].peer)
			discard(a, &a->partial[i]);
	PS_ASSERT(a->used == 0); /* invariant 2: `used` is the number of peers with chunks */
}

void chunked_push_free(struct chunked_push **a)
{
	if (!*a)
		return;
	if ((*a)->partial)
		chunked_push_clear(*a);
	free((*a)->partial);
	free(*a);
	*a = NULL;
}

/* Returns the entry of `peer` or, if `peer` is 0, a free entry. Returns NULL if there is no such
 * entry. */
static struct partial *find_partial(struct chunked_push *a, uint32_t peer)
{
	for (size_t i = 0; (a->used || !peer) && i < a->max_peers; i++)
		if (a->partial[i].peer == peer)
			return &a->partial[i];
	return NULL;
}

static size_t places_of(const struct chunked_push *a, const char *key)
{
	for (size_t i = 0; i < a->max_peers; i++)
		if (a->partial[i].peer && strcmp(a->partial[i].key, key) == 0)
			return a->partial[i].places;
	return 0;
}

/* Returns the entry that a new entry of `key` replaces. This is the oldest entry of the key that
 * would have the most places if the new entry were added. If several keys would have the most
 * places, and `key` is among them, the entry is one of `key`. */
static struct partial *find_surplus(struct chunked_push *a, const char *key)
{
	struct partial *found = NULL;
	size_t max = 0;

	for (size_t i = 0; i < a->max_peers; i++) {
		struct partial *e = &a->partial[i];
		int own = e->peer && strcmp(e->key, key) == 0;
		/* `rank` is twice the number of places. For `key`, it is 2 more for the new place,
		 * and 1 more so that `key` comes before another key with as many places */
		size_t rank = 2 * e->places + (own ? 3 : 0);

		if (!e->peer || rank < max || (rank == max && found && e->clock > found->clock))
			continue;
		found = e;
		max = rank;
	}
	return found;
}

static struct partial *allot(struct chunked_push *a, uint32_t peer, const char *key, size_t peers)
{
	struct partial *e;

	while (a->used && (a->used >= peers || a->used == a->max_peers)) {
		e = find_surplus(a, key);
		PS_ASSERT(e);
		if (key[0] && strcmp(e->key, key) == 0)
			a->wasted += e->n;
		discard(a, e);
	}
	e = find_partial(a, 0);
	PS_ASSERT(e && a->used < peers); /* invariant 2 */
	size_t places = places_of(a, key) + 1;
	e->peer = peer;
	snprintf(e->key, sizeof(e->key), "%s", key);
	note_places(a, e, places);
	a->used++;
	return e;
}

/* Returns the number of bytes of the chunks of the key of `e`. Sets *oldest to the entry of this
 * key, other than `e`, that was idle for longest, or to NULL if there is none. */
static size_t bytes_of_key(struct chunked_push *a, const struct partial *e, struct partial **oldest)
{
	size_t bytes = 0;

	*oldest = NULL;
	for (size_t i = 0; i < a->max_peers; i++) {
		struct partial *o = &a->partial[i];

		if (!o->peer || strcmp(o->key, e->key) != 0)
			continue;
		bytes += o->bytes;
		if (o != e && (!*oldest || o->clock < (*oldest)->clock))
			*oldest = o;
	}
	return bytes;
}

/* Discards the oldest chunks of other peers with the key of `e` until the key is within its
 * limit. */
static void trim_key(struct chunked_push *a, const struct partial *e)
{
	struct partial *oldest;
	size_t bytes;

	while ((bytes = bytes_of_key(a, e, &oldest)) > a->key_bytes && oldest) {
		a->wasted += oldest->n;
		discard(a, oldest);
	}
	PS_ASSERT(bytes <= a->key_bytes || bytes == e->bytes); /* invariant 3 */
}

/* Returns PS_EPROTO if place `at`, which the mark names, cannot have a chunk, and PS_EAGAIN if the
 * peer has too many chunks. */
static int check_place(const struct chunked_push *a, const struct partial *e,
	const struct side_mark *mark, size_t at)
{
	if (mark && (!mark->number || at >= WIRE_MAX_CHUNKS || e->filled >> at & 1))
		return PS_EPROTO;
	return e->n == WIRE_MAX_CHUNKS || e->bytes > a->max_bytes ? PS_EAGAIN : PS_OK;
}

int chunked_push_keep(struct chunked_push *a, uint32_t peer, const char *key,
	const struct side_mark *mark, struct frames *f, size_t peers)
{
	struct partial *e = find_partial(a, peer);
	zmq_msg_t *from = &f->frame[1];
	size_t lost = 0;

	if (e && e->push != (mark ? mark->number : 0)) {
		lost = e->n; /* these chunks belong to an earlier PUSH, which did not arrive */
		discard(a, e);
		e = NULL;
	}
	a->wasted = 0;
	if (!e)
		e = allot(a, peer, key, peers);
	a->wasted += lost;
	e->push = mark ? mark->number : 0;
	e->bytes += zmq_msg_size(from);
	if (a->key_bytes)
		trim_key(a, e);
	size_t at = mark ? mark->part : e->n;
	int rc = check_place(a, e, mark, at);
	if (!rc)
		rc = wire_check_chunk(from, &e->chunk[at], &a->pass);
	if (rc) {
		a->wasted += e->n + (rc == PS_EAGAIN);
		discard(a, e);
		return rc;
	}
	/* invariant 1 */
	PS_ASSERT(e->n < WIRE_MAX_CHUNKS && at < WIRE_MAX_CHUNKS && e->bytes <= a->max_bytes);
	(void)zmq_msg_init(&e->frame[at]);
	(void)zmq_msg_move(&e->frame[at], from);
	e->filled |= 1u << at;
	e->n++;
	e->clock = ++a->clock;
	return PS_OK;
}

void chunked_push_drop(struct chunked_push *a, uint32_t peer)
{
	struct partial *e = peer ? find_partial(a, peer) : NULL;

	if (e)
		discard(a, e);
}

static void prepend(struct frames *f, struct partial *e)
{
	for (size_t i = f->n; i-- > 1;) {
		(void)zmq_msg_init(&f->frame[i + e->n]);
		(void)zmq_msg_move(&f->frame[i + e->n], &f->frame[i]);
		(void)zmq_msg_close(&f->frame[i]);
	}
	for (size_t i = 0; i < e->n; i++) {
		(void)zmq_msg_init(&f->frame[1 + i]);
		(void)zmq_msg_move(&f->frame[1 + i], &e->frame[i]);
		f->chunk[i] = e->chunk[i];
	}
	f->n += e->n;
	f->n_chunks = e->n;
}

/* Returns 1 if all chunks of `e` may be the first tensor frames of message `f`. */
static int is_push_of(const struct partial *e, struct frames *f)
{
	return e->filled == (1u << e->n) - 1 && (!e->push || e->push == wire_push_seq(f));
}

int chunked_push_join(struct chunked_push *a, uint32_t peer, struct frames *f)
{
	struct partial *e = find_partial(a, peer);
	size_t wanted = wire_chunks_wanted(f), here = e ? e->n : 0;
	int fits = here == wanted && f->n + here <= 1 + WIRE_MAX_SLICES &&
		   (here == 0 || is_push_of(e, f));

	a->wasted = 0;
	a->joined = fits && e ? e->push : 0;
	if (e && e->push && !wanted)
		/* this message is not the PUSH of the chunks with marks, so the chunks continue to
		 * wait for it */
		return PS_OK;
	a->wasted = fits ? 0 : here;
	if (fits && e)
		prepend(f, e);
	if (e)
		discard(a, e);
	return fits || !wanted ? PS_OK : PS_EAGAIN;
}

uint64_t chunked_push_joined(const struct chunked_push *a)
{
	return a->joined;
}

size_t chunked_push_wasted(const struct chunked_push *a)
{
	return a->wasted;
}
