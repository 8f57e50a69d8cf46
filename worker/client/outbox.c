/* outbox.c - see outbox.h. */
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/log.h"
#include "proto/wire.h"
#include "worker/client/outbox.h"

/* minimum number of floats of a push that is sent in several parts */
#define LARGE ((uint64_t)128 << 10)
/* number of floats in 64 bytes; each part begins at a multiple of it */
#define GRAIN 16

void outbox_init(struct outbox *o, void *socket)
{
	memset(o, 0, sizeof(*o));
	o->socket = socket;
}

static struct retained *retained_at(struct outbox *o, uint64_t seq)
{
	return &o->retained[seq % WIRE_MAX_WINDOW];
}

static void drop_retained(struct outbox *o, struct retained *k)
{
	if (!k->seq)
		return;
	PS_ASSERT(o->retained_bytes >= zmq_msg_size(&k->tensor)); /* invariant (3) */
	o->retained_bytes -= zmq_msg_size(&k->tensor);
	zmq_msg_close(&k->tensor);
	k->seq = 0;
}

/* Checks invariant (3) in full. This takes microseconds, so the outbox does it for each connection
 * and not for each push. */
static void assert_retained_bytes(const struct outbox *o)
{
	size_t bytes = 0;

	for (size_t i = 0; i < WIRE_MAX_WINDOW; i++)
		bytes += o->retained[i].seq ? zmq_msg_size(&o->retained[i].tensor) : 0;
	PS_ASSERT(bytes == o->retained_bytes); /* invariant (3) */
}

void outbox_release(struct outbox *o)
{
	outbox_clear(o);
	for (size_t i = 0; i < WIRE_MAX_WINDOW; i++)
		drop_retained(o, &o->retained[i]);
	assert_retained_bytes(o);
	PS_ASSERT(!o->retained_bytes && !o->count);
}

static void split_parts(struct retained *k, const struct slice *whole, uint32_t parts)
{
	uint64_t each = (whole->count / parts + GRAIN - 1) / GRAIN * GRAIN;

	k->n = whole->count < LARGE ? 1 : parts;
	for (uint32_t i = 0; i < k->n; i++) {
		k->part[i] = *whole;
		k->part[i].offset += i * each;
		k->part[i].count = i + 1 < k->n ? each : whole->count - i * each;
		k->part[i].xxh3 = 0;
		k->part[i].data = NULL;
	}
}

void outbox_retain(struct outbox *o, uint64_t seq, const struct slice *slice, zmq_msg_t *tensor)
{
	struct retained *k = retained_at(o, seq);

	/* invariant (1), and invariant (2) of net.h: a retained tensor is never replaced */
	PS_ASSERT(!k->seq && seq);
	k->seq = seq;
	k->whole = *slice;
	split_parts(k, slice, o->n_sides == 2 ? OUTBOX_PARTS_OF_3 : OUTBOX_PARTS);
	zmq_msg_init(&k->tensor);
	zmq_msg_move(&k->tensor, tensor);
	o->retained_bytes += zmq_msg_size(&k->tensor);
}

/* The loop ends at the first number without a retained push, because retained pushes have
 * consecutive numbers. */
void outbox_drop(struct outbox *o, uint64_t seq)
{
	for (; seq && retained_at(o, seq)->seq == seq; seq--)
		drop_retained(o, retained_at(o, seq));
}

static void pop(struct outbox *o)
{
	PS_ASSERT(o->count);
	o->gone++;
	PS_ASSERT(o->waiting[o->first].number == o->gone); /* invariant (2) */
	zmq_msg_close(&o->waiting[o->first].header);
	o->first = (o->first + 1) % OUTBOX_SIZE;
	o->count--;
}

/* Returns the offset, in bytes, of part number `part` in the tensor. */
static size_t part_start(const struct retained *k, uint32_t part)
{
	uint64_t before = k->part[part].offset - k->part[0].offset;

	return before * encoding_bytes(k->whole.encoding);
}

static size_t part_size(const struct retained *k, uint32_t part)
{
	return k->part[part].count * encoding_bytes(k->whole.encoding);
}

/* Returns the first frame of a part that is sent on its own. With side connections, this frame says
 * to which push the part belongs. */
static int chunk_header(const struct outbox *o, uint64_t push, uint32_t part, zmq_msg_t *header)
{
	const struct side_mark mark = {.number = push, .part = part};

	return o->n_sides ? side_encode_mark(&mark, header) : wire_encode_chunk_header(header);
}

static void await_receipt(struct outbox *o, const struct outgoing *out)
{
	if (o->spread_seq != out->push)
		o->unconfirmed = 0;
	o->spread_seq = out->push;
	o->unconfirmed |= 1u << out->part;
}

int outbox_awaits_receipts(const struct outbox *o)
{
	const struct outgoing *out = &o->waiting[o->first];

	if (o->count == 0)
		return 0;
	return (out->after && out->after == o->spread_seq && o->unconfirmed) ||
	       (out->side && (o->unconfirmed_push || o->unmarked_push));
}

/* Sends one queued message. The frames of a push share the bytes of the tensor by reference. */
static int send_one(struct outbox *o, struct outgoing *out)
{
	struct retained *k = out->push ? retained_at(o, out->push) : NULL;
	struct frames f;
	int rc;

	if ((k && k->seq != out->push) ||
		(out->after && retained_at(o, out->after)->seq != out->after))
		return PS_OK; /* the push became durable while it was queued */
	frames_init(&f);
	if (k && (rc = side_share(&k->tensor, part_start(k, out->part), part_size(k, out->part),
			  &f.frame[1])))
		return rc;
	zmq_msg_init(&f.frame[0]);
	zmq_msg_copy(&f.frame[0], &out->header);
	f.n = k ? 2 : 1;
	if (f.n == 1 && o->is_confirmed && !o->n_sides && lane_ring_send(o->lane, &f.frame[0])) {
		frames_release(&f);
		return PS_OK;
	}
	rc = wire_send(out->side ? o->side[out->side - 1] : o->socket, 0, &f);
	o->used_socket = 1;
	frames_release(&f);
	if (!rc) {
		o->is_confirmed = 0;
		o->socket_push = out->seq;
	}
	if (!rc && out->side)
		await_receipt(o, out);
	if (!rc && out->after)
		o->unconfirmed_push = out->after;
	return rc;
}

void outbox_flush(struct outbox *o)
{
	while (o->count && !outbox_awaits_receipts(o)) {
		int rc = send_one(o, &o->waiting[o->first]);

		if (rc == PS_EAGAIN)
			return;
		if (rc)
			log_debug("net", "send_failed", "status=%s", err_name(rc));
		pop(o);
	}
}

void outbox_clear(struct outbox *o)
{
	assert_retained_bytes(o);
	while (o->count)
		pop(o);
	o->spread_seq = o->unconfirmed_push = o->unmarked_push = 0;
	o->unconfirmed = 0;
}

void outbox_decided(struct outbox *o, uint64_t seq)
{
	if (o->socket_push && seq >= o->socket_push) {
		o->socket_push = 0;
		o->is_confirmed = 1;
	}
	if (!o->unmarked_push || seq < o->unmarked_push)
		return;
	o->unmarked_push = 0;
	outbox_flush(o);
}

void outbox_use_sides(struct outbox *o, void *const *side, size_t n)
{
	for (size_t i = 0; i < n; i++)
		o->side[i] = side[i];
	o->n_sides = n;
}

void outbox_confirm(struct outbox *o, const struct side_mark *receipt)
{
	if (receipt->number == o->unconfirmed_push && receipt->part == SIDE_WHOLE_PUSH)
		o->unconfirmed_push = 0;
	if (receipt->number == o->spread_seq && receipt->part < OUTBOX_PARTS_OF_3)
		o->unconfirmed &= ~(1u << receipt->part);
	outbox_flush(o);
}

/* Returns the next free place in the queue, or NULL if the queue is full. */
static struct outgoing *next(struct outbox *o)
{
	return o->count < OUTBOX_SIZE ? &o->waiting[(o->first + o->count) % OUTBOX_SIZE] : NULL;
}

/* Queues the message whose encoded header is in `out`, the next free place of the ring. The last
 * five arguments are those of struct outgoing. */
static void add_queued(struct outbox *o, struct outgoing *out, uint64_t push, uint32_t part,
	size_t side, uint64_t after, uint64_t seq)
{
	out->push = push;
	out->part = part;
	out->side = side;
	out->after = after;
	out->seq = seq;
	out->number = ++o->queued;
	o->count++;
	outbox_flush(o);
}

static void queue_part(
	struct outbox *o, const struct msg *m, uint64_t push, uint32_t part, uint64_t after)
{
	struct outgoing *out = next(o);

	if (out && !wire_encode_header(m, &out->header))
		add_queued(o, out, push, part, 0, after, m->type == MSG_PUSH ? m->push.seq : 0);
}

static void enqueue_chunk(struct outbox *o, uint64_t push, uint32_t part)
{
	struct outgoing *out = next(o);

	if (out && !chunk_header(o, push, part, &out->header))
		add_queued(o, out, push, part, part % (o->n_sides + 1), 0, 0);
}

void outbox_post(struct outbox *o, const struct msg *m)
{
	if (m->type == MSG_HELLO) {
		/* A HELLO belongs to a connection, so it must not travel in a ring. The ring waits
		 * until the server has decided a push of the new connection. */
		o->is_confirmed = 0;
		o->socket_push = 0;
	}
	queue_part(o, m, 0, 0, 0);
}

/* Posts a push whose values the server reads in slot `slot` - 1. */
static void post_in_lane(struct outbox *o, struct msg *m, struct retained *k, uint32_t slot)
{
	if (!k->whole.xxh3)
		k->whole.xxh3 = wire_checksum(zmq_msg_data(&k->tensor), k->whole.count);
	m->push.slices.n = 1;
	m->push.slices.slice[0] = k->whole;
	m->push.lane_slot = slot;
	m->push.lane_count = k->whole.count;
	queue_part(o, m, 0, 0, 0);
}

/* Posts the frames of a push. While libzmq sends one part, this function computes the checksum of
 * the next part. With side connections, all parts are chunks, and the PUSH waits for the receipts
 * of those on side connections. */
static void post_in_frames(struct outbox *o, struct msg *m, struct retained *k)
{
	struct slices *s = &m->push.slices;
	uint32_t chunks = k->n > 1 && o->n_sides ? k->n : k->n - 1;

	for (; s->n < k->n; s->n++) {
		struct slice *part = &k->part[s->n];

		if (!part->xxh3)
			part->xxh3 = wire_frame_checksum(
				(char *)zmq_msg_data(&k->tensor) + part_start(k, s->n),
				part_size(k, s->n));
		s->slice[s->n] = *part;
		if (s->n < chunks)
			enqueue_chunk(o, k->seq, s->n);
	}
	m->push.chunks = chunks;
	if (chunks < k->n)
		queue_part(o, m, k->seq, k->n - 1, 0);
	else
		queue_part(o, m, 0, 0, k->seq);
}

void outbox_post_push(struct outbox *o, const struct msg *m, uint64_t seq)
{
	struct retained *k = retained_at(o, seq);
	struct msg whole = {.type = MSG_PUSH, .push = m->push};

	if (k->seq != seq)
		return;
	if (seq <= o->sent_seq)
		o->replayed++;
	else
		o->sent_seq = seq;
	if (!o->n_sides)
		o->unmarked_push = seq;
	uint32_t slot = lane_slot_of(o->lane, zmq_msg_data(&k->tensor));
	if ((!slot || !k->whole.xxh3) && lane_on_device(o->device, zmq_msg_data(&k->tensor))) {
		slot = 0;
		if (lane_fetch(o->device, &k->tensor))
			return; /* the session sends the push again later */
	}
	if (slot)
		post_in_lane(o, &whole, k, slot);
	else
		post_in_frames(o, &whole, k);
}
