/* net.c - see net.h. The router receives and decodes messages, and encodes, queues and sends
 * replies. The time of each pass over the queue of replies grows linearly with its length, because
 * peers that do not read can fill the queue. */
#include "server/net/net.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <zmq.h>
#include "common/assert.h"
#include "common/clock.h"
#include "common/clones.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/zepoll.h"
#include "common/zloop.h"
#include "proto/wire.h"
#include "server/net/chunked_push.h"
#include "server/net/clients.h"
#include "server/net/owners.h"
#include "server/net/port.h"

/* maximum bytes of the small replies that wait for one peer; enough for a few hundred replies */
#define SMALL 65536
/* maximum time between two attempts to send the waiting replies, in ms. Usually flush_waiting sends
 * earlier: the peer's connection wakes the loop when it has sent a part of its queue. */
#define RETRY_MS  10
#define LINGER_MS 1000
/* threads of libzmq: with only one, a gradient would wait while the weights for another worker are
 * sent */
#define IO_THREADS 3
#define MAX_FRAMES 2    /* a server's reply has a header and at most one tensor */
#define REFUSAL_MS 1000 /* minimum interval between log lines about malformed messages */
/* maximum number of PARAMS that wait until the server's GPU has copied their weights; for one more,
 * encode_awaited waits until the copy is complete */
#define AWAITED (LANE_GIVES - 1)

/* A message that was received. */
struct received {
	uint32_t peer;
	int rc;    /* result of wire_recv */
	int begun; /* result of lanes_begin: 1 if the server's GPU is copying the values */
	struct frames frames;
};

/*
 * A ring of received messages. The server handles the oldest message first. If workers have
 * gradients in memory of GPUs, the server receives a few messages before it handles the first of
 * them, and the server's GPU begins to copy the gradients and to compute their checksums, sums of
 * squares and largest magnitudes. The server handles messages in the order in which it received
 * them. The number of a message's place in the ring is also the number of its private copy
 * (lane.h).
 */
struct inbox {
	size_t first, n;
	struct received message[LANE_COPIES];
};

/* PARAMS that leave when the server's GPU has copied the weights to the memory of a worker's GPU.
 * Until then, the header frame of such a reply points to this struct. */
struct awaited {
	int in_use;
	struct msg msg;
};

struct router {
	struct router_config cfg;
	void *context, *socket;
	struct port port;
	struct zloop loop;
	uv_timer_t retry;

	struct wire *wire;
	struct inbox inbox;
	/* A message that has arrived over TCP. Before the router handles it, it handles the
	 * messages that the same worker has written to its ring before. */
	struct received held;
	int is_held;
	int ring_is_next; /* 1 if the next message comes from a ring, if one has a message */
	struct frames in; /* the frames of the message that on_readable handles */
	size_t in_at;     /* the place of this message in `inbox` */
	int in_begun;     /* `begun` of this message (struct received) */
	struct chunked_push *chunks;
	/* the shared-memory lanes; NULL if the server has none, for the reason in lane_off */
	struct lanes *lanes;
	/* the reason why `lanes` is NULL, or "" if the options demand no lanes */
	char lane_off[sizeof(((struct err *)0)->text)];
	int has_ended;       /* 1: router_run_ended was called */
	int has_chunks;      /* 1 if `chunks` may contain chunks of a peer */
	struct sides *sides; /* NULL if workers may have no side connections */
	struct msg msg;
	struct awaited awaited[AWAITED];
	int waits; /* 1 if router_flush must wait until copies of weights are complete */
	struct replies *replies;
	struct owners *owners; /* the owners of connections; NULL if the server has no keys */
	uint64_t lsn;          /* replies that are queued now wait until this LSN is flushed */

	struct router_stats stats;
	uint64_t refusal_ms; /* time of the newest log line about a malformed message */
	uint64_t flood_ms;   /* time of the newest log line about a flood */
	/* time of the newest log line about a key with too many connections */
	uint64_t crowded_ms;
	/* time of the newest port_sweep or, before the first one, of the first
	 * router_check_sessions */
	uint64_t swept_ms;
	uint32_t *used;  /* scratch array for the connections of all sessions */
	uint32_t sender; /* the peer whose message on_message handles now, or 0 */
	const char *key; /* the key of `sender`, or "" if the server has no keys */
	/* 1 if on_message has refused or dropped the message of `sender` */
	int is_refused;
	char address[LABEL_ADDRESS]; /* IP address of the sender of the newest HELLO */
	/* A ring of the connections whose newest HELLO requested bfloat16. If newer entries have
	 * overwritten the entry of a connection, its PARAMS have float32, which every worker
	 * accepts. */
	uint32_t *bf16_peer;
	/* bf16_room: size of the ring; n_bf16: number of entries written so far */
	size_t bf16_room, n_bf16;
};

/* ---- the queue of replies -------------------------------------------------------------------- */

struct reply {
	uint32_t peer;
	uint64_t number; /* place of the reply in the order of all replies */
	uint64_t lsn;    /* the reply may leave when this LSN is flushed */
	int tombstone;   /* 1 if this reply is an ERROR in place of replies that were dropped */
	size_t n;
	zmq_msg_t frame[MAX_FRAMES];
};

struct replies {
	size_t n, room, peer_bytes;
	/* the first n replies wait, the oldest first; the others, up to `room`, are free */
	struct reply **order;
	struct reply *pool;
	/* A hash table of the peers whose replies stay in the queue, for one replies_flush. It has
	 * `mask` + 1 places, a power of two that is at least 2 * room; an empty place is 0. */
	uint32_t *waiting;
	size_t mask;
	uint64_t flushed_lsn;
	uint64_t number; /* number of the newest reply */
	uint64_t sent, dropped;
};

/* Closes the frames of `r`. */
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

/* Returns the number of bytes of a reply that count against its peer's limit: the bytes of its
 * frames and of its entry in the queue. */
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
	*q = (struct replies){
		.room = room,
		.peer_bytes = peer_bytes,
		.order = mem_try(room, sizeof(struct reply *)),
		.pool = mem_try(room, sizeof(struct reply)),
		.mask = 1,
	};
	while (q->mask < 2 * room)
		q->mask = 2 * q->mask + 1;
	q->waiting = mem_try(q->mask + 1, sizeof(*q->waiting));
	if (!q->order || !q->pool || !q->waiting) {
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
	free((*q)->waiting);
	free(*q);
	*q = NULL;
}

static void append_reply(
	struct replies *q, uint32_t peer, struct frames *f, uint64_t lsn, int tombstone)
{
	PS_ASSERT(q->n < q->room); /* invariant 1 of the router, and invariant 2 of the queue */
	struct reply *r = q->order[q->n++];

	r->number = ++q->number;
	r->peer = peer;
	r->lsn = lsn;
	r->tombstone = tombstone;
	move_frames(r, f);
}

/* Drops all replies to `peer`. Returns their number. */
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

/* Replaces all replies to `peer` by one ERROR, the tombstone, because `peer` does not read its
 * replies. */
static void evict(struct replies *q, uint32_t peer)
{
	const struct msg m = {.type = MSG_ERROR,
		.error = {.status = PS_ESTATE,
			.text = "you did not read your replies and they were dropped: send HELLO"}};
	struct frames f;

	q->dropped += drop_all(q, peer);
	frames_init(&f);
	if (wire_encode(&m, &f) == PS_OK)
		append_reply(q, peer, &f, 0, 1);
}

/* While the queue is full, evicts the peer with the oldest reply, or drops this reply if it is a
 * tombstone. */
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
	PS_ASSERT(mine <= q->peer_bytes); /* invariant 2 */
	evict_oldest(q);
	append_reply(q, peer, f, lsn, 0);
}

void replies_set_flushed(struct replies *q, uint64_t lsn)
{
	if (lsn > q->flushed_lsn)
		q->flushed_lsn = lsn;
}

/* Returns the place of `peer` in the table of waiting peers: this place has `peer`, or 0 if the
 * table does not have it. A later reply to a waiting peer must wait, too, so that it does not
 * overtake the earlier one. */
static uint32_t *place_of_peer(const struct replies *q, uint32_t peer)
{
	size_t at = peer * 0x9e3779b1u;

	for (;; at++) {
		uint32_t *place = &q->waiting[at & q->mask];

		if (*place == 0 || *place == peer)
			return place;
	}
}

/* Sends a reply. If `send` fails, `r` keeps its frames. */
static int offer(struct reply *r, replies_send_fn *send, void *arg)
{
	PS_UNINITIALIZED struct frames f;

	frames_init(&f);
	for (; f.n < r->n; f.n++) {
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
	int several = q->n > 1; /* usually a single reply waits, and needs no table */

	if (several)
		memset(q->waiting, 0, (q->mask + 1) * sizeof(*q->waiting));
	for (size_t i = 0; i < q->n; i++) {
		struct reply *r = q->order[i];
		uint32_t *place = several ? place_of_peer(q, r->peer) : q->waiting;
		int wait = gone || r->lsn > q->flushed_lsn || (several && *place);

		/* invariant 3 of the queue, and invariant 4 of server.h */
		PS_ASSERT(wait || r->lsn <= q->flushed_lsn);
		int rc = wait ? PS_EAGAIN : offer(r, send, arg);

		if (rc == PS_EAGAIN) {
			/* invariant 1 of the queue, and invariant 2 of the router */
			PS_ASSERT(kept == 0 || q->order[kept - 1]->number < r->number);
			q->order[i] = q->order[kept];
			q->order[kept++] = r;
			*place = r->peer;
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

/* ---- out ----------------------------------------------------------------------------------- */

/* Returns the entry of `peer` in the ring of connections with bfloat16, or NULL. */
static uint32_t *find_bf16(const struct router *r, uint32_t peer)
{
	size_t known = r->n_bf16 < r->bf16_room ? r->n_bf16 : r->bf16_room;

	for (size_t i = 0; i < known; i++)
		if (r->bf16_peer[i] == peer)
			return &r->bf16_peer[i];
	return NULL;
}

/* Notes the encoding that the HELLO of `peer` requests. */
static void note_wire(struct router *r, uint32_t peer, const struct msg_hello *m)
{
	uint32_t *entry = find_bf16(r, peer);
	int takes_bf16 = m->role == ROLE_WORKER && m->wire == ENCODING_BF16 && !r->cfg.only_exact;

	if (entry && !takes_bf16)
		*entry = 0;
	if (takes_bf16 && !entry)
		r->bf16_peer[r->n_bf16++ % r->bf16_room] = peer;
}

/* Called when the frame that points to `awaited` is closed: frees this entry. */
static void forget_awaited(void *awaited, void *unused)
{
	(void)unused;
	((struct awaited *)awaited)->in_use = 0;
}

/* Makes a header frame for PARAMS `m` whose weights the server's GPU copies to a worker's GPU as
 * copy number `at` (lanes_hold). */
static int encode_awaited(struct router *r, size_t at, struct msg *m, zmq_msg_t *header)
{
	if (at == AWAITED) /* no entry is free: wait until the copy is complete */
		return lanes_given(r->lanes, at, 1, &m->params.slices.slice[0].xxh3)
			       ? wire_encode_header(m, header)
			       : PS_EAGAIN;
	r->awaited[at] = (struct awaited){.in_use = 1, .msg = *m};
	if (!zmq_msg_init_data(
		    header, &r->awaited[at], sizeof(r->awaited[at]), forget_awaited, NULL))
		return PS_OK;
	r->awaited[at].in_use = 0;
	return PS_ENOMEM;
}

/* Returns the number of the awaited PARAMS that `f` stands for, or AWAITED if `f` is another
 * reply. */
static size_t find_awaited(const struct router *r, struct frames *f)
{
	const uintptr_t at = (uintptr_t)zmq_msg_data(&f->frame[0]) - (uintptr_t)r->awaited;

	return at < sizeof(r->awaited) ? at / sizeof(r->awaited[0]) : AWAITED;
}

/* Replaces the header frame of awaited PARAMS by the header itself. Returns PS_EAGAIN if the GPU
 * has not copied the weights of these PARAMS yet. */
static int complete_awaited(struct router *r, size_t at, struct frames *f)
{
	struct awaited *a = &r->awaited[at];
	zmq_msg_t header;

	if (!lanes_given(r->lanes, at, r->waits, &a->msg.params.slices.slice[0].xxh3))
		return PS_EAGAIN;
	int rc = wire_encode_header(&a->msg, &header);
	if (rc)
		return rc;
	(void)zmq_msg_move(&f->frame[0], &header);
	return PS_OK;
}

/* Queues a message of a side connection: the mark and, unless it is NULL, the part. The function
 * takes over the frame `part`. */
static int queue_mark(
	struct router *r, uint32_t peer, const struct side_mark *mark, zmq_msg_t *part)
{
	struct frames f;

	frames_init(&f);
	if (side_encode_mark(mark, &f.frame[0])) {
		if (part)
			(void)zmq_msg_close(part);
		return PS_ENOMEM;
	}
	f.n = 1;
	if (part) {
		(void)zmq_msg_init(&f.frame[1]);
		(void)zmq_msg_move(&f.frame[1], part);
		f.n = 2;
		if (r->owners)
			owners_count(r->owners, peer, &f.frame[1]);
	}
	replies_put(r->replies, peer, &f, part ? r->lsn : 0);
	return PS_OK;
}

/* Sends the ACK inside PARAMS as a message of its own, because the worker reads PARAMS with parts
 * only when the last part has arrived. */
static int queue_inner_ack(struct router *r, uint32_t peer, struct msg_params *p)
{
	const struct msg m = {.type = MSG_ACK, .ack = p->ack};
	struct frames f;

	frames_init(&f);
	int rc = p->ack.seq ? wire_encode(&m, &f) : PS_OK;
	if (rc)
		return rc;
	if (p->ack.seq)
		replies_put(r->replies, peer, &f, r->lsn);
	p->ack = (struct msg_ack){0};
	return PS_OK;
}

/* If the session of `peer` has side connections, sends parts of the weights on these connections,
 * and leaves the first part in *frame. */
static int spread_params(struct router *r, uint32_t peer, struct msg_params *p, zmq_msg_t *frame)
{
	uint32_t side[MAX_SIDES], n = 0;
	const size_t size = zmq_msg_size(frame);
	zmq_msg_t part;

	if (p->which == WEIGHTS_CURRENT && size >= SIDE_MIN_BYTES)
		n = sides_of(r->sides, peer, side);
	if (n == 0)
		return PS_OK;
	const size_t each = (size / (n + 1) + 63) / 64 * 64;
	int rc = queue_inner_ack(r, peer, p);
	for (uint32_t i = 1; i <= n && !rc; i++) {
		const struct side_mark mark = {.number = p->request, .part = i};

		rc = side_share(frame, i * each, i < n ? each : size - i * each, &part);
		if (!rc)
			rc = queue_mark(r, side[i - 1], &mark, &part);
	}
	if (!rc)
		rc = side_share(frame, 0, each, &part);
	if (rc)
		return rc;
	(void)zmq_msg_move(frame, &part);
	(void)zmq_msg_close(&part);
	p->parts = n + 1;
	return PS_OK;
}

/* Encodes PARAMS. The second frame usually points to the weights without a copy (param_buffers.h).
 * If the peer reads the weights in shared memory, the message has no second frame. */
static int encode_params(struct router *r, uint32_t peer, const struct msg *m, struct frames *f)
{
	struct msg header = *m;
	size_t at = 0;
	int awaits;

	/* the router sets these fields, not the core */
	header.params.lane_hold = header.params.lane_buffer = 0;
	header.params.lane_ticket = 0;
	header.params.parts = 0;
	while (at < AWAITED && r->awaited[at].in_use)
		at++;
	if (r->lanes && lanes_hold(r->lanes, peer, at, &header.params, &awaits)) {
		f->n = 1;
		return awaits ? encode_awaited(r, at, &header, &f->frame[0])
			      : wire_encode_header(&header, &f->frame[0]);
	}
	int is_bf16 = m->params.which == WEIGHTS_CURRENT && find_bf16(r, peer);
	int rc = is_bf16 ? param_buffers_frame_bf16(r->cfg.params, &header.params, &f->frame[1])
			 : param_buffers_frame(r->cfg.params, &header.params, &f->frame[1]);

	if (rc)
		return rc;
	if (r->sides)
		rc = spread_params(r, peer, &header.params, &f->frame[1]);
	if (!rc)
		rc = wire_encode_header(&header, &f->frame[0]);
	if (rc) {
		(void)zmq_msg_close(&f->frame[1]);
		return rc;
	}
	if (r->owners)
		owners_count(r->owners, peer, &f->frame[1]);
	f->n = 2;
	return PS_OK;
}

/* Encodes WELCOME `m` with the encoding that the server accepts, and with the offers of a
 * shared-memory lane and of side connections. */
static int encode_welcome(struct router *r, uint32_t peer, const struct msg *m, struct frames *f)
{
	struct msg offer = *m;

	offer.welcome.wire = find_bf16(r, peer) ? ENCODING_BF16 : ENCODING_F32;
	if (r->lanes)
		lanes_welcome(r->lanes, peer, &offer.welcome);
	offer.welcome.connections = 0;
	offer.welcome.side_secret_hi = offer.welcome.side_secret_lo = 0;
	if (r->sides)
		chunked_push_drop(r->chunks, sides_welcome(r->sides, peer, &offer.welcome));
	return wire_encode(&offer, f);
}

static int encode(struct router *r, uint32_t peer, const struct msg *m, struct frames *f)
{
	if (m->type == MSG_PARAMS)
		return encode_params(r, peer, m, f);
	return m->type == MSG_WELCOME ? encode_welcome(r, peer, m, f) : wire_encode(m, f);
}

/* Encodes `m` now and queues it until r->lsn is flushed. */
static int queue(struct router *r, uint32_t peer, const struct msg *m)
{
	PS_UNINITIALIZED struct frames f;

	frames_init(&f);
	int rc = encode(r, peer, m, &f);
	if (rc) {
		r->stats.dropped++;
		log_warn("net", "unsendable", "type=%d reason=\"%s\"", (int)m->type, err_text(rc));
		return rc;
	}
	replies_put(r->replies, peer, &f, r->lsn);
	return PS_OK;
}

void router_send(struct router *r, uint32_t peer, const struct msg *m)
{
	r->is_refused |= m->type == MSG_ERROR && peer == r->sender;
	if (queue(r, peer, m) && m->type == MSG_PARAMS && m->params.ack.seq) {
		/* there was no memory for the weights: send at least the decision on the push */
		const struct msg ack = {.type = MSG_ACK, .ack = m->params.ack};

		(void)queue(r, peer, &ack);
	}
}

const char *router_sender_key(const struct router *r)
{
	PS_ASSERT(r->sender);
	return r->key;
}

void router_set_lsn(struct router *r, uint64_t lsn)
{
	r->lsn = lsn;
}

void router_set_flushed(struct router *r, uint64_t lsn)
{
	replies_set_flushed(r->replies, lsn);
}

static uint64_t frame_bytes(struct frames *f)
{
	uint64_t n = 0;

	for (size_t i = 0; i < f->n; i++)
		n += zmq_msg_size(&f->frame[i]);
	return n;
}

static int send_reply(void *arg, uint32_t peer, struct frames *f)
{
	struct router *r = arg;
	size_t at = find_awaited(r, f);
	int rc = at < AWAITED ? complete_awaited(r, at, f) : PS_OK;

	if (rc)
		return rc;
	uint64_t bytes = frame_bytes(f);
	int is_welcome = r->lanes && wire_has_type(f, MSG_WELCOME);
	if (r->lanes && !is_welcome && lanes_give(r->lanes, peer, f)) {
		r->stats.sent_bytes += bytes;
		return PS_OK;
	}
	rc = wire_send(r->socket, peer, f);
	zloop_used(&r->loop);

	if (rc == PS_OK) {
		r->stats.sent_bytes += bytes;
		if (r->lanes)
			lanes_note_sent(r->lanes, peer, is_welcome);
	}
	if (rc == PS_EUNREACHABLE)
		r->stats.gone++;
	return rc;
}

void router_send_notice(struct router *r, uint32_t peer, const struct msg *m)
{
	struct frames f;

	frames_init(&f);
	if (wire_encode(m, &f) || send_reply(r, peer, &f))
		frames_release(&f);
}

static void on_retry(uv_timer_t *t)
{
	router_flush(t->data);
}

void router_flush(struct router *r)
{
	uint32_t gone;

	if (!r->socket)
		return;
	while ((gone = replies_flush(r->replies, send_reply, r)) != 0)
		if (!r->sides || !sides_end(r->sides, gone))
			r->cfg.on_gone(r->cfg.arg, gone);
	if (replies_waiting(r->replies) > 0)
		uv_timer_start(&r->retry, on_retry, RETRY_MS, 0);
}

/* ---- in ------------------------------------------------------------------------------------ */

static void note_malformed(struct router *r, uint32_t peer, int status, const char *why)
{
	uint64_t now = uv_now(r->cfg.loop);

	r->stats.malformed++;
	if (r->stats.malformed == 1 || now - r->refusal_ms >= REFUSAL_MS) {
		r->refusal_ms = now;
		log_warn("net", "refused", "peer=%08x code=%s reason=\"%s\" total=%llu", peer,
			err_name(status), why, (unsigned long long)r->stats.malformed);
	}
}

/* Returns 1 if the message `r->in` came through a ring (lane.h). */
static int is_from_ring(const struct router *r)
{
	return r->in.key != NULL;
}

/* Notes that the message `r->in` of `peer` was refused or dropped. */
static void note_refused(struct router *r, uint32_t peer)
{
	uint64_t now = uv_now(r->cfg.loop);

	if (is_from_ring(r) ? !lanes_note_refused(r->lanes, peer, r->port.burst, now)
			    : !port_note_refused(&r->port, r->in.fd, peer, now))
		return;
	if (is_from_ring(r))
		r->port.stats.floods++;
	else if (r->lanes)
		lanes_end(r->lanes, peer, "too many refused messages");
	if (r->port.stats.floods == 1 || now - r->flood_ms >= REFUSAL_MS) {
		r->flood_ms = now;
		log_warn("net", "flood",
			"peer=%08x reason=\"too many refused messages\" total=%llu", peer,
			(unsigned long long)r->port.stats.floods);
	}
}

/* Returns the key of the sender of `r->in`, or "" if the server has no keys. */
static const char *key_of_sender(struct router *r)
{
	const char *key = r->cfg.auth ? wire_key(&r->in) : NULL;

	return key ? key : "";
}

static void refuse_message(struct router *r, uint32_t peer, int status, const char *why)
{
	const struct msg m = {.type = MSG_ERROR, .error = {.status = status, .text = why}};

	if (status != PS_EAUTH) /* auth.c has already counted a message with PS_EAUTH */
		note_malformed(r, peer, status, why);
	if (peer)
		router_send(r, peer, &m);
	note_refused(r, peer);
	if (status == PS_EAUTH && r->cfg.auth && r->in.n &&
		!auth_is_listed(r->cfg.auth, key_of_sender(r))) {
		if (is_from_ring(r))
			lanes_end(r->lanes, peer, "its key is no longer on the list");
		else
			port_note_revoked(&r->port, r->in.fd, peer);
	}
}

void router_run_ended(struct router *r)
{
	r->has_ended = 1;
}

void router_note_dropped(struct router *r)
{
	r->is_refused = 1;
}

/* For each chunk that the newest call of the store of chunks has discarded, counts one message of
 * `peer` that the server drops. */
static void note_wasted_chunks(struct router *r, uint32_t peer)
{
	for (size_t n = chunked_push_wasted(r->chunks); n > 0; n--)
		note_refused(r, peer);
}

/* Returns how many of the `bytes` bytes each key may use: at least the bytes of one push. Returns 0
 * if there is no limit. */
static size_t part_of_key(const struct router *r, uint64_t bytes)
{
	const size_t push = r->cfg.n_params * sizeof(float);

	if (!r->cfg.auth || r->cfg.key_bytes == 0)
		return 0;
	const size_t keys = auth_stats(r->cfg.auth)->worker_keys;
	const uint64_t part = bytes / (keys ? keys : 1);
	return part < push ? push : (size_t)part;
}

/* Keeps a chunk until the PUSH of connection `owner` arrives. Returns PS_EAGAIN if it kept the
 * chunk, because the server does not answer a chunk. `mark` is NULL for a chunk without a mark. */
static int keep_chunk(struct router *r, uint32_t peer, uint32_t owner, const struct side_mark *mark,
	const char **why)
{
	chunked_push_limit(r->chunks, part_of_key(r, r->cfg.key_bytes));
	/* limit the store to one entry for each open connection, and one more */
	int rc = chunked_push_keep(
		r->chunks, owner, key_of_sender(r), mark, &r->in, r->port.stats.connections + 1);

	*why = "a chunk is not a tensor frame, or has a wrong mark";
	r->has_chunks = 1;
	note_wasted_chunks(r, peer);
	if (!rc && owner != peer && queue_mark(r, peer, mark, NULL))
		r->stats.dropped++;
	return rc ? rc : PS_EAGAIN;
}

/* Makes `peer` a side connection if its greeting is right. Returns PS_EAGAIN if it has queued the
 * answer. */
static int greet_side(
	struct router *r, uint32_t peer, const struct side_greeting *g, const char **why)
{
	const struct side_mark answer = {.part = g->number};
	const char *key = key_of_sender(r);
	int rc = sides_greet(r->sides, g, peer, r->in.fd, key, why);

	if (rc) {
		note_malformed(r, peer, rc, *why);
		return rc;
	}
	/* from now on, weights that wait on this connection count for the key */
	if (r->owners && key[0])
		(void)owners_may_pull(r->owners, peer, key, 0);
	return queue_mark(r, peer, &answer, NULL) ? PS_ENOMEM : PS_EAGAIN;
}

/* Handles the messages of side connections, and parts on bulk connections. Returns 1 for any other
 * message, and PS_EAGAIN if the caller has nothing else to do. */
static int take_side(struct router *r, uint32_t peer, const char **why)
{
	const uint32_t session = sides_session(r->sides, peer);
	struct side_greeting greeting;
	struct side_mark mark;

	if (!session && side_is_greeting(&r->in, &greeting))
		return greet_side(r, peer, &greeting, why);
	int is_part = side_is_part(&r->in, &mark);
	if (is_part && (session || sides_has(r->sides, peer)))
		return keep_chunk(r, peer, session ? session : peer, &mark, why);
	*why = "the side connections of this session are closed: send HELLO";
	if (!session)
		return is_part ? PS_ESTATE : 1;
	*why = "a side connection carries only parts of the pushes of its session";
	(void)sides_end(r->sides, peer);
	return PS_EPROTO;
}

/* Completes the message with its chunks. Returns PS_EAGAIN if a chunk is missing. */
static int join_pushed_chunks(struct router *r, uint32_t peer)
{
	int rc = chunked_push_join(r->chunks, peer, &r->in);
	const struct side_mark push = {
		.number = chunked_push_joined(r->chunks), .part = SIDE_WHOLE_PUSH};

	/* notifies the worker that it may send parts of its next push on side connections */
	if (push.number && queue_mark(r, peer, &push, NULL))
		r->stats.dropped++;
	note_wasted_chunks(r, peer);
	return rc;
}

/* Copies the values of a PUSH from shared memory to a frame, and appends the frame to the PUSH. */
static int join_lane(struct router *r, uint32_t peer, const struct lane_ref *ref, const char **why)
{
	int rc = r->lanes ? lanes_join(r->lanes, peer, ref, r->in_at, r->in_begun, &r->in)
			  : PS_ESTATE;

	*why = rc == PS_ESTATE ? "no shared memory is open: send HELLO"
			       : "wrong lane_slot or lane_count";
	return rc;
}

/* Notes the IP address of the sender. The caller must call note_address before it calls auth_check,
 * which can replace the header frame of the HELLO. */
static void note_address(struct router *r)
{
	const char *address = zmq_msg_gets(&r->in.frame[0], "Peer-Address");

	snprintf(r->address, sizeof(r->address), "%s", address ? address : "");
}

/* Returns PS_ESTATE if `r->msg` requests weights, and too many bytes of weights already wait for
 * the connections of the sender's key. A correct worker waits for one reply, and sends its request
 * again after HELLO. The limit has room for a second reply, because one may still wait for an
 * earlier connection that has ended. */
static int check_pull(struct router *r, uint32_t peer, const char **why)
{
	int is_pull = r->msg.type == MSG_PULL || (r->msg.type == MSG_PUSH && r->msg.push.pull);
	const char *key = r->owners && is_pull ? wire_key(&r->in) : NULL;

	if (!key)
		return PS_OK;
	size_t replies = 2 * (size_t)auth_share(r->cfg.auth, r->cfg.max_workers) + 4;
	size_t limit = replies * r->cfg.n_params * sizeof(float);
	size_t part = part_of_key(r, r->cfg.key_bytes / 2);
	if (owners_may_pull(r->owners, peer, key, part && part < limit ? part : limit))
		return PS_OK;
	*why = "your key does not read the weights that it requested: send HELLO";
	return PS_ESTATE;
}

/* Notes the fields of a HELLO that its answer depends on: the encoding and, for side connections,
 * the key. */
static void note_hello(struct router *r, uint32_t peer, const struct msg_hello *m)
{
	note_wire(r, peer, m);
	if (!r->sides)
		return;
	sides_hello(r->sides, peer, m->owner);
	/* drop chunks of lost pushes: the worker sends these pushes again */
	chunked_push_drop(r->chunks, peer);
}

/* Passes the message `r->in` to on_message. */
static void pass_on(struct router *r, uint32_t peer)
{
	r->sender = peer;
	/* in a HELLO, auth_check has replaced the frame that had the key */
	r->key = r->msg.type == MSG_HELLO ? r->msg.hello.owner : key_of_sender(r);
	r->is_refused = 0;
	r->cfg.on_message(r->cfg.arg, peer, &r->msg, &r->in);
	r->sender = 0;
	if (r->is_refused)
		note_refused(r, peer);
}

/* Notes the key of the connection of `peer`, from which `r->in` has arrived. Returns 1 if the
 * connection is closed now, because its key has too many connections. */
static int is_one_too_many(struct router *r, uint32_t peer)
{
	const char *key = r->cfg.auth ? zmq_msg_gets(&r->in.frame[0], "User-Id") : NULL;
	uint32_t limit = key ? auth_connections(r->cfg.auth) : 0;
	uint64_t now = uv_now(r->cfg.loop);

	if (!key || !port_note_key(&r->port, r->in.fd, peer, key, limit))
		return 0;
	if (r->port.stats.crowded == 1 || now - r->crowded_ms >= REFUSAL_MS) {
		r->crowded_ms = now;
		log_warn("net", "crowded", "key=\"%.*s\" connections=%u total=%llu", KEY_SHORT, key,
			limit, (unsigned long long)r->port.stats.crowded);
	}
	return 1;
}

/* Notes the connection on which `r->in`, which was received with the result `rc`, has arrived.
 * Returns 0 if this connection is closed, so that the router must drop the message. */
static int note_sender(struct router *r, uint32_t peer, int rc)
{
	if (r->in.n > 0)
		r->in.fd = port_descriptor(&r->port, peer, &r->in.frame[0]);
	port_note_message(&r->port, r->in.fd, peer);
	return !port_is_closed(&r->port, r->in.fd, peer) && !(rc == 1 && is_one_too_many(r, peer));
}

/* Returns 1 if this message is a chunk, or a part or greeting of a side connection. Such a message
 * has no header, so no role can be checked by its type; only the owner of a worker's key may send
 * it. */
static int needs_worker_key(struct frames *f)
{
	struct side_greeting greeting;
	struct side_mark mark;

	return wire_is_chunk(f) || side_is_part(f, &mark) || side_is_greeting(f, &greeting);
}

/* Takes the message that was held. */
static int take_held(struct router *r, uint32_t *peer, struct frames *f)
{
	*peer = r->held.peer;
	r->is_held = 0;
	frames_init(f);
	frames_move(f, &r->held.frames);
	f->fd = r->held.frames.fd;
	return r->held.rc;
}

/* Receives a message over TCP. If the sender has messages in its ring, holds the message and takes
 * the first of those. */
static int receive_tcp(struct router *r, uint32_t *peer, struct frames *f)
{
	struct received *h = &r->held;

	if (zloop_is_quiet(&r->loop))
		return 0;
	int rc = wire_recv(r->socket, peer, f);
	if (rc == 0)
		zloop_found_empty(&r->loop);

	if (!r->lanes || rc != 1)
		return rc;
	if (!lanes_note_received(r->lanes, *peer, r->cfg.auth ? wire_key(f) : NULL))
		return rc;
	h->rc = rc;
	h->peer = *peer;
	frames_init(&h->frames);
	frames_move(&h->frames, f);
	r->is_held = 1;
	return lanes_take_earlier(r->lanes, h->peer, f) ? 1 : take_held(r, peer, f);
}

/* Receives a message from a ring or over TCP, in turn. Returns the results of wire_recv. */
static int receive_next(struct router *r, uint32_t *peer, struct frames *f)
{
	if (r->is_held) {
		*peer = r->held.peer;
		return lanes_take_earlier(r->lanes, *peer, f) ? 1 : take_held(r, peer, f);
	}
	r->ring_is_next = !r->ring_is_next;
	if (r->lanes && r->ring_is_next && lanes_take(r->lanes, peer, f))
		return 1;
	int rc = receive_tcp(r, peer, f);
	return rc == 0 && r->lanes && !r->ring_is_next && lanes_take(r->lanes, peer, f) ? 1 : rc;
}

/* Receives a message into the ring. Returns 0 if no message has arrived. */
static int receive_to_inbox(struct router *r)
{
	const size_t at = (r->inbox.first + r->inbox.n) % LANE_COPIES;
	struct received *m = &r->inbox.message[at];

	m->rc = receive_next(r, &m->peer, &m->frames);
	if (m->rc == 0 || m->rc == PS_ENET)
		return 0;
	m->begun = m->rc == 1 && lanes_begin(r->lanes, m->peer, at, &m->frames);
	r->inbox.n++;
	return 1;
}

/* Returns 1 if the newest message in the ring has a tensor. The server then reads no further
 * message ahead, because tensors take much memory. */
static int newest_has_tensor(const struct inbox *a)
{
	return a->n > 0 && a->message[(a->first + a->n - 1) % LANE_COPIES].frames.n > 1;
}

/* Moves the oldest received message to r->in. Returns the result of wire_recv for this message, or
 * 0 if there is no message. */
static int take_message(struct router *r, uint32_t *peer)
{
	struct inbox *a = &r->inbox;
	struct received *m = &a->message[a->first];

	r->in_begun = 0;
	if (a->n == 0 && !(r->lanes && lanes_use_gpus(r->lanes)))
		return receive_next(r, peer, &r->in);
	while (a->n < LANE_COPIES && !newest_has_tensor(a) && receive_to_inbox(r))
		continue;
	if (a->n == 0)
		return 0;
	*peer = m->peer;
	r->in_at = a->first;
	r->in_begun = m->begun;
	frames_move(&r->in, &m->frames);
	r->in.fd = m->frames.fd;
	r->in.key = m->frames.key;
	a->first = (a->first + 1) % LANE_COPIES;
	a->n--;
	return m->rc;
}

/* Drops the messages that the router has received and not handled. */
static void drop_received(struct router *r)
{
	struct inbox *a = &r->inbox;

	for (; a->n > 0; a->n--) {
		frames_release(&a->message[a->first].frames);
		a->first = (a->first + 1) % LANE_COPIES;
	}
	if (r->is_held)
		frames_release(&r->held.frames);
	r->is_held = 0;
}

/* Waits for the copies of weights that replies need, and then sends these replies. Called when no
 * received message is left to handle. Returns 0. */
static int flush_awaited(struct router *r)
{
	int waits = 0;

	for (size_t i = 0; i < AWAITED; i++)
		waits |= r->awaited[i].in_use;
	if (!waits)
		return 0;
	r->waits = 1;
	router_flush(r);
	r->waits = 0;
	return 0;
}

/* Handles one message: receives, decodes and authorizes it, calls on_message, and replies. */
static int on_readable(void *arg)
{
	struct router *r = arg;

	const char *why =
		"too many frames, a header over the limit, or a routing id that the client chose";
	struct lane_ref ref = {0};
	uint32_t peer = 0;
	int in_lane = 0, admitted = !r->cfg.auth, rc = take_message(r, &peer);

	if (rc == 0 || rc == PS_ENET)
		return flush_awaited(r);
	double begin = clock_seconds();
	r->stats.received++;
	r->stats.received_bytes += frame_bytes(&r->in);
	if (!is_from_ring(r) && !note_sender(r, peer, rc)) {
		frames_release(&r->in);
		return 1;
	}
	if (rc == 1 && r->cfg.auth) {
		admitted = auth_admit(r->cfg.auth, &r->in, needs_worker_key(&r->in), &why) == PS_OK;
		rc = admitted ? 1 : PS_EAUTH;
	}
	if (rc == 1 && r->sides && !is_from_ring(r))
		rc = take_side(r, peer, &why);
	if (rc == 1 && wire_is_chunk(&r->in))
		rc = keep_chunk(r, peer, peer, NULL, &why);
	else if (rc == 1 && (r->has_chunks || wire_chunks_wanted(&r->in) > 0))
		rc = join_pushed_chunks(r, peer);
	if ((rc == 1 || rc == PS_OK) && (in_lane = wire_lane_ref(&r->in, &ref)))
		rc = join_lane(r, peer, &ref, &why);
	/* drop the push without an answer if the run has ended (router_run_ended) */
	if (in_lane && rc == PS_ESTATE && r->has_ended)
		rc = PS_EAGAIN;
	PS_ASSERT(admitted || (rc != 1 && rc != PS_OK)); /* invariant 3 of the router */
	if (rc == 1 || rc == PS_OK)
		rc = wire_decode(r->wire, &r->in, &r->msg, &why);
	r->stats.verify_s += clock_seconds() - begin;
	if (rc == PS_EAGAIN) {
		r->stats.torn += (uint64_t)(in_lane && !r->has_ended);
		frames_release(&r->in);
		if (r->sides)
			router_flush(r); /* send the answers to messages of side connections */
		return 1;
	}
	if (rc == PS_OK && r->msg.type == MSG_HELLO && is_from_ring(r)) {
		rc = PS_EPROTO;
		why = "a HELLO must not come through a ring";
	}
	if (rc == PS_OK && r->msg.type == MSG_HELLO)
		note_address(r);
	if (rc == PS_OK && r->msg.type == MSG_HELLO && r->msg.hello.owner[0]) {
		rc = PS_EPROTO;
		why = "hello.owner is set, but only the server may set it";
	}
	if (rc == PS_OK && r->cfg.auth)
		rc = auth_check(r->cfg.auth, peer, &r->in, &r->msg, &why);
	if (rc == PS_OK)
		rc = check_pull(r, peer, &why);
	if (rc == PS_EAGAIN) { /* the key of the sender is over its quota */
		note_refused(r, peer);
		frames_release(&r->in);
		return 1;
	}
	if (rc == PS_OK && r->msg.type == MSG_HELLO)
		note_hello(r, peer, &r->msg.hello);
	if (rc == PS_OK)
		pass_on(r, peer);
	else
		refuse_message(r, peer, rc, why);
	frames_release(&r->in);
	router_flush(r);
	return 1;
}

/* ---- creation ------------------------------------------------------------------------------ */

/* Sets the options of the socket. The defaults of libzmq are not suitable for large messages and
 * for peers that are not trusted. */
static int router_set_options(void *socket, const struct router_config *cfg, int backlog)
{
	int64_t max_bytes = (int64_t)wire_max_frame(cfg->n_params);
	int window = (int)cfg->push_window + 2;
	const struct {
		int option, value;
	} row[] = {
		/* if a reply cannot be sent, report an error (EAGAIN, EHOSTUNREACH) */
		{ZMQ_ROUTER_MANDATORY, 1},
		/* limits in messages: a correct peer never has more unanswered messages than
		 * this */
		{ZMQ_SNDHWM, window},
		{ZMQ_RCVHWM, window},
		{ZMQ_SNDBUF, WIRE_SEND_BUFFER(cfg->auth != NULL)},
		/* the backlog is smaller than the accept gate's reserve of descriptors */
		{ZMQ_BACKLOG, backlog},
		/* a client that does not speak ZMTP holds a descriptor for at most two seconds */
		{ZMQ_HANDSHAKE_IVL, 2000},
		/* no heartbeats of ZMTP: they would drop a healthy peer in the middle of a large
		 * message */
		{ZMQ_HEARTBEAT_IVL, 0},
		/* a peer is lost if it acknowledges neither data nor TCP's probes (one each second)
		 * for 2.5 s (see worker/client/link.c) */
		{ZMQ_TCP_KEEPALIVE, 1},
		{ZMQ_TCP_KEEPALIVE_IDLE, 1},
		{ZMQ_TCP_KEEPALIVE_INTVL, 1},
		{ZMQ_TCP_KEEPALIVE_CNT, 2},
		{ZMQ_TCP_MAXRT, 2500},
		/* zmq_ctx_term waits LINGER_MS at most for the last replies */
		{ZMQ_LINGER, LINGER_MS},
		{ZMQ_IPV6, strchr(cfg->bind, '[') != NULL},
	};
	/* libzmq closes the connection of a peer that announces a larger message */
	int bad = zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max_bytes, sizeof(max_bytes));

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]) && !bad; i++)
		bad = zmq_setsockopt(socket, row[i].option, &row[i].value, sizeof(int));
	return bad ? PS_ENET : PS_OK;
}

/* Enables and tests authentication before the first connection is possible. */
static int enable_auth(struct router *r, struct err *e)
{
	struct auth *auth = r->cfg.auth;
	int rc = auth ? auth_open(auth, r->context, e) : PS_OK;

	if (!rc && auth)
		rc = auth_secure(auth, r->socket, e);
	return !rc && auth ? auth_self_test(auth, r->socket, e) : rc;
}

static int open_sockets(struct router *r, struct err *e)
{
	zepoll_use();
	r->context = zmq_ctx_new();
	if (r->context)
		(void)zmq_ctx_set(r->context, ZMQ_IO_THREADS, IO_THREADS);
	r->socket = r->context ? zmq_socket(r->context, ZMQ_ROUTER) : NULL;
	if (!r->socket || router_set_options(r->socket, &r->cfg, accept_gate_backlog(r->port.gate)))
		return err_set(e, PS_ENET, "no socket: %s", zmq_strerror(errno));
	int rc = enable_auth(r, e);
	return rc ? rc : port_monitor(&r->port, r->context, r->socket, e);
}

static void close_sockets(struct router *r)
{
	port_close(&r->port);
	if (r->socket)
		zmq_close(r->socket);
	r->socket = NULL;
}

/* Sends the replies that wait for room in the queues of their peers. */
static int flush_waiting(void *arg)
{
	struct router *r = arg;

	if (replies_waiting(r->replies) == 0)
		return 0;
	router_flush(r);
	return 1;
}

static int start_watching(struct router *r, struct err *e)
{
	if (zloop_start(&r->loop, r->cfg.loop, r->socket, on_readable, r) != 0)
		return err_set(e, PS_ENET, "the socket cannot be watched");
	if (port_start(&r->port, r->cfg.loop, &r->loop, r->cfg.push_window) != 0) {
		zloop_stop(&r->loop, NULL);
		return err_set(e, PS_ENET, "the socket's monitor cannot be watched");
	}
	zloop_on_iteration(&r->loop, flush_waiting);
	uv_timer_init(r->cfg.loop, &r->retry);
	r->retry.data = r;
	return PS_OK;
}

/* Called when a ring may have messages. */
static void on_lane_ring(void *arg)
{
	struct router *r = arg;

	zloop_wake(&r->loop);
}

/* Opens the Unix socket for lanes. If the socket cannot be opened, all tensors travel over the TCP
 * connections. */
static int open_lanes(struct router *r, struct err *e)
{
	const struct lanes_config cfg = {.loop = r->cfg.loop,
		.path = r->cfg.lane_path,
		.fd = r->cfg.lane_fd,
		.n_params = r->cfg.n_params,
		.max_workers = r->cfg.max_workers,
		.lines = r->cfg.lines,
		.params = r->cfg.params,
		.pass = r->cfg.pass,
		.copies = r->cfg.copies,
		.gpu = r->cfg.gpu,
		.gpu_off = r->cfg.gpu_off,
		.on_ring = on_lane_ring,
		.arg = r};
	struct err why;

	if (!r->cfg.lane_path)
		return PS_OK;
	int rc;
	if (!cfg.path[0])
		rc = err_set(&why, PS_EUSAGE,
			"no place for a socket whose path has at most %u bytes: give --lane-socket",
			WIRE_MAX_SOCKET);
	else if (cfg.fd < 0)
		rc = err_set(&why, r->cfg.lane_why->status, "%s", r->cfg.lane_why->text);
	else
		rc = lanes_new(&r->lanes, &cfg, &why);
	if (rc && r->cfg.needs_lane)
		return err_set(e, rc, "--lane shm: %.400s", why.text);
	if (rc)
		snprintf(r->lane_off, sizeof(r->lane_off), "%s", why.text);
	return PS_OK;
}

int router_new(struct router **out, const struct router_config *cfg, struct err *e)
{
	struct router *r = mem_try(1, sizeof(*r));
	/* room for the replies of one step of the core, which has fewer effects than this */
	size_t room = 4 * (size_t)cfg->max_workers + 1024;
	size_t per_peer = 2 * cfg->n_params * sizeof(float) + SMALL;
	int rc;

	*out = NULL;
	if (!r)
		return err_set(e, PS_ENOMEM, "no memory for the port");
	r->cfg = *cfg;
	frames_init(&r->in);
	r->bf16_room = 2 * (size_t)cfg->max_workers + 64;
	r->bf16_peer = mem_try(r->bf16_room, sizeof(*r->bf16_peer));
	r->used = mem_try((size_t)cfg->max_workers * (1 + MAX_SIDES), sizeof(*r->used));
	if (port_init(&r->port) || !r->bf16_peer || !r->used || wire_new(&r->wire, cfg->n_params) ||
		replies_new(&r->replies, room, per_peer) ||
		/* room for the chunks of each worker, and of one peer whose key has no slot */
		chunked_push_new(
			&r->chunks, cfg->n_params, (size_t)cfg->max_workers + 1, &cfg->pass) ||
		(cfg->sides && sides_new(&r->sides, cfg->max_workers, cfg->sides, cfg->lines)) ||
		(cfg->auth && !(r->owners = owners_new())))
		rc = err_set(e, PS_ENOMEM, "no memory for messages");
	else
		rc = open_sockets(r, e);
	if (!rc) {
		wire_use_pass(r->wire, &cfg->pass);
		if (cfg->only_exact)
			wire_only_exact(r->wire);
		rc = port_bind(&r->port, cfg->bind, e);
	}
	if (!rc)
		rc = open_lanes(r, e);
	if (!rc)
		rc = start_watching(r, e);
	if (rc) {
		auth_stop(cfg->auth);
		if (r->lanes) {
			lanes_stop(r->lanes);
			(void)uv_run(cfg->loop, UV_RUN_NOWAIT);
		}
		close_sockets(r);
		router_free(&r);
		return rc;
	}
	*out = r;
	return PS_OK;
}

/* libzmq reads from its connections in turn, one message each. The function reads one more message
 * than there are connections, so it reads from every connection that has a message. The function
 * first handles the messages that are already in the ring. */
void router_receive_pending(struct router *r)
{
	/* the rings take every second turn */
	zloop_read(&r->loop, r->inbox.n + 2 * (r->port.stats.connections + 1));
}

void router_close_connections(struct router *r)
{
	port_close_connections(&r->port);
	drop_received(r);
	chunked_push_clear(r->chunks);
	if (r->sides)
		sides_clear(r->sides);
	r->has_chunks = 0;
}

/* Closes the connections that are silent and belong to no session, and all connections of revoked
 * keys. */
static void close_silent(struct router *r, const struct core *c)
{
	size_t n = 0;

	for (uint32_t i = 0; i < r->cfg.max_workers; i++) {
		struct worker_view w;

		core_worker(c, i, &w);
		if (!w.in_session)
			continue;
		r->used[n++] = w.peer;
		if (r->sides)
			n += sides_of(r->sides, w.peer, &r->used[n]);
	}
	port_sweep(&r->port, r->cfg.auth, r->used, n);
}

void router_check_sessions(struct router *r, const struct core *c, uint64_t now_ms)
{
	if (r->sides)
		sides_check(r->sides, c);
	if (r->lanes)
		lanes_check(r->lanes, c);
	if (!r->swept_ms)
		r->swept_ms = now_ms;
	if (now_ms - r->swept_ms < r->cfg.silent_ms)
		return;
	r->swept_ms = now_ms;
	close_silent(r, c);
}

uint64_t router_sides_moved(struct router *r, uint32_t peer)
{
	return r->sides ? sides_moved(r->sides, peer) : 0;
}

void router_log_lanes(const struct router *r)
{
	if (r->lanes)
		log_info("lane", "listening", "socket=\"%s\"", r->cfg.lane_path);
	else if (r->lane_off[0])
		log_info("lane", "off", "reason=\"%s\"", r->lane_off);
}

const char *router_address(const struct router *r)
{
	return r->address;
}

const char *router_endpoint(const struct router *r)
{
	return r->port.endpoint;
}

void router_stats(const struct router *r, struct router_stats *s)
{
	*s = r->stats;
	s->sent = replies_sent(r->replies);
	s->dropped += replies_dropped(r->replies);
	s->params_framed = param_buffers_framed(r->cfg.params);
	s->waiting = (uint32_t)replies_waiting(r->replies);
	s->rescues = zloop_rescues(&r->loop) + zloop_rescues(&r->port.loop);
	s->port = r->port.stats;
	s->sides = r->sides ? sides_open(r->sides) : 0;
	s->has_lanes = r->lanes != NULL;
	if (r->lanes)
		lanes_stats(r->lanes, &s->lanes);
}

void router_stop(struct router *r)
{
	zloop_stop(&r->loop, NULL);
	port_stop(&r->port);
	uv_close((uv_handle_t *)&r->retry, NULL);
	auth_stop(r->cfg.auth);
	if (r->lanes)
		lanes_stop(r->lanes);
	close_sockets(r);
}

void router_free(struct router **r)
{
	if (!*r)
		return;
	port_release(&(*r)->port);
	drop_received(*r);
	frames_release(&(*r)->in);
	replies_free(&(*r)->replies);
	chunked_push_free(&(*r)->chunks);
	sides_free(&(*r)->sides);
	wire_free(&(*r)->wire);
	free((*r)->bf16_peer);
	free((*r)->used);
	if ((*r)->context)
		zmq_ctx_term((*r)->context);
	owners_free(&(*r)->owners);
	lanes_free(&(*r)->lanes);
	free(*r);
	*r = NULL;
}
