/* replies.c - see replies.h. Few replies wait at a time, so linear scans are fast enough. */
#include "server/net/replies.h"
#include <stdlib.h>
#include "common/assert.h"
#include "common/mem.h"

#define MAX_FRAMES 2 /* a server's reply has a header and at most one tensor */

struct reply {
	uint32_t peer;
	uint64_t lsn;  /* must be flushed before it leaves */
	int tombstone; /* the ERROR that replaces dropped replies */
	size_t n;
	zmq_msg_t frame[MAX_FRAMES];
};

struct replies {
	size_t n, room, peer_bytes;
	struct reply **order; /* [0, n): waiting, oldest first; [n, room): free */
	struct reply *pool;
	uint64_t flushed_lsn;
	uint64_t sent, dropped;
};

/* Close the frames of `r`. */
static void clear(struct reply *r)
{
	while (r->n > 0)
		(void)zmq_msg_close(&r->frame[--r->n]);
}

static void move_frames(struct reply *r, struct frames *f)
{
	PS_ASSERT(f->n <= MAX_FRAMES);
	for (r->n = 0; r->n < f->n; r->n++) {
		(void)zmq_msg_init(&r->frame[r->n]);
		(void)zmq_msg_move(&r->frame[r->n], &f->frame[r->n]);
	}
	frames_release(f);
}

/* The bytes that a reply counts against its peer: its frames, and its entry in the queue. */
static size_t cost(zmq_msg_t *frame, size_t n)
{
	size_t bytes = sizeof(struct reply);

	for (size_t i = 0; i < n; i++)
		bytes += zmq_msg_size(&frame[i]);
	return bytes;
}

int replies_new(struct replies **out, size_t room, size_t peer_bytes)
{
	struct replies *q = mem_try(1, sizeof(*q));

	*out = NULL;
	if (!q)
		return PS_ENOMEM;
	q->room = room;
	q->peer_bytes = peer_bytes;
	q->order = mem_try(room, sizeof(struct reply *));
	q->pool = mem_try(room, sizeof(*q->pool));
	if (!q->order || !q->pool) {
		replies_free(&q);
		return PS_ENOMEM;
	}
	for (size_t i = 0; i < room; i++)
		q->order[i] = &q->pool[i];
	*out = q;
	return PS_OK;
}

void replies_free(struct replies **q)
{
	if (!*q)
		return;
	for (size_t i = 0; i < (*q)->n; i++)
		clear((*q)->order[i]);
	free((*q)->order);
	free((*q)->pool);
	free(*q);
	*q = NULL;
}

static void append_reply(
	struct replies *q, uint32_t peer, struct frames *f, uint64_t lsn, int tombstone)
{
	PS_ASSERT(q->n < q->room);
	struct reply *r = q->order[q->n++];

	r->peer = peer;
	r->lsn = lsn;
	r->tombstone = tombstone;
	move_frames(r, f);
}

/* Remove all replies to `peer`; returns their number. */
static size_t drop_all(struct replies *q, uint32_t peer)
{
	size_t kept = 0, before = q->n;

	for (size_t i = 0; i < before; i++) {
		struct reply *r = q->order[i];

		if (r->peer == peer) {
			clear(r);
			continue;
		}
		q->order[i] = q->order[kept];
		q->order[kept++] = r;
	}
	q->n = kept;
	return before - kept;
}

/* `peer` does not read: one ERROR, the tombstone, replaces all its replies. */
static void evict(struct replies *q, uint32_t peer)
{
	const struct msg m = {.type = MSG_ERROR,
		.error = {.status = PS_ESTATE,
			.text = "you did not read your replies and they were dropped: say HELLO"}};
	struct frames f;

	q->dropped += drop_all(q, peer);
	frames_init(&f);
	if (wire_encode(&m, &f) == PS_OK)
		append_reply(q, peer, &f, 0, 1);
}

/* Evict the peer with the oldest reply; a peer that is evicted already loses its tombstone, too. */
static void evict_oldest(struct replies *q)
{
	while (q->n == q->room) {
		const struct reply *oldest = q->order[0];

		if (oldest->tombstone)
			q->dropped += drop_all(q, oldest->peer);
		else
			evict(q, oldest->peer);
	}
}

void replies_put(struct replies *q, uint32_t peer, struct frames *f, uint64_t lsn)
{
	size_t mine = cost(f->frame, f->n);
	int evicted = 0;

	for (size_t i = 0; i < q->n; i++) {
		if (q->order[i]->peer != peer)
			continue;
		mine += cost(q->order[i]->frame, q->order[i]->n);
		evicted |= q->order[i]->tombstone;
	}
	if (!evicted && mine > q->peer_bytes) {
		evict(q, peer);
		evicted = 1;
	}
	if (evicted) {
		q->dropped++;
		frames_release(f);
		return;
	}
	evict_oldest(q);
	append_reply(q, peer, f, lsn, 0);
}

void replies_set_flushed(struct replies *q, uint64_t lsn)
{
	if (lsn > q->flushed_lsn)
		q->flushed_lsn = lsn;
}

/* One of the first `n` replies, which stay in the queue, is for `peer`. */
static int must_wait(const struct replies *q, size_t n, uint32_t peer)
{
	for (size_t i = 0; i < n; i++)
		if (q->order[i]->peer == peer)
			return 1;
	return 0;
}

/* `send` takes over the frames only if it succeeds. */
static int offer(struct reply *r, replies_send_fn *send, void *arg)
{
	struct frames f;

	for (f.n = 0; f.n < r->n; f.n++) {
		(void)zmq_msg_init(&f.frame[f.n]);
		(void)zmq_msg_move(&f.frame[f.n], &r->frame[f.n]);
	}
	clear(r);
	int rc = send(arg, r->peer, &f);
	if (rc)
		move_frames(r, &f);
	return rc;
}

uint32_t replies_flush(struct replies *q, replies_send_fn *send, void *arg)
{
	size_t kept = 0;
	uint32_t gone = 0;

	for (size_t i = 0; i < q->n; i++) {
		struct reply *r = q->order[i];
		int wait = gone || r->lsn > q->flushed_lsn || must_wait(q, kept, r->peer);
		int rc = wait ? PS_EAGAIN : offer(r, send, arg);

		if (rc == PS_EAGAIN) {
			q->order[i] = q->order[kept];
			q->order[kept++] = r;
			continue;
		}
		if (rc == PS_OK)
			q->sent++;
		if (rc == PS_EUNREACHABLE)
			gone = r->peer;
		clear(r);
	}
	q->n = kept;
	if (gone)
		(void)drop_all(q, gone);
	return gone;
}

size_t replies_waiting(const struct replies *q)
{
	return q->n;
}

uint64_t replies_sent(const struct replies *q)
{
	return q->sent;
}

uint64_t replies_dropped(const struct replies *q)
{
	return q->dropped;
}
