/* outbox.c - see outbox.h. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "common/log.h"
#include "proto/wire.h"
#include "worker/client/outbox.h"

#define LARGE ((uint64_t)128 << 10) /* floats: from here on a push goes in parts */
#define GRAIN 16                    /* floats of 64 bytes: where parts may begin */

void outbox_init(struct outbox *o, void *socket)
{
	memset(o, 0, sizeof *o);
	o->socket = socket;
}

static struct kept *kept_at(struct outbox *o, uint64_t seq)
{
	return &o->kept[seq % WIRE_MAX_WINDOW];
}

static void drop(struct outbox *o, struct kept *k)
{
	if (!k->seq)
		return;
	o->kept_bytes -= zmq_msg_size(&k->tensor);
	zmq_msg_close(&k->tensor);
	k->seq = 0;
}

void outbox_release(struct outbox *o)
{
	outbox_clear(o);
	for (size_t i = 0; i < WIRE_MAX_WINDOW; i++)
		drop(o, &o->kept[i]);
}

static void cut(struct kept *k, const struct slice *whole)
{
	uint64_t each = (whole->count / OUTBOX_PARTS + GRAIN - 1) / GRAIN * GRAIN;

	k->n = whole->count < LARGE ? 1 : OUTBOX_PARTS;
	for (uint32_t i = 0; i < k->n; i++) {
		k->part[i] = *whole;
		k->part[i].offset += i * each;
		k->part[i].count = i + 1 < k->n ? each : whole->count - i * each;
		k->part[i].xxh3 = 0;
		k->part[i].data = NULL;
	}
}

void outbox_keep(struct outbox *o, uint64_t seq, const struct slice *slice, zmq_msg_t *tensor)
{
	struct kept *k = kept_at(o, seq);

	k->seq = seq;
	cut(k, slice);
	zmq_msg_init(&k->tensor);
	zmq_msg_move(&k->tensor, tensor);
	o->kept_bytes += zmq_msg_size(&k->tensor);
}

/* Kept seqs are contiguous: they end, going down, where one is missing. */
void outbox_forget(struct outbox *o, uint64_t seq)
{
	for (; seq && kept_at(o, seq)->seq == seq; seq--)
		drop(o, kept_at(o, seq));
}

static void pop(struct outbox *o)
{
	zmq_msg_close(&o->waiting[o->first].header);
	o->first = (o->first + 1) % OUTBOX_SIZE;
	o->count--;
}

static float *values_of(struct kept *k, uint32_t part)
{
	return (float *)zmq_msg_data(&k->tensor) + (k->part[part].offset - k->part[0].offset);
}

/* What a frame holds of the tensor, until libzmq has sent it. */
struct loan {
	atomic_int lent; /* what ThreadSanitizer sees of libzmq's handing it to another thread */
	zmq_msg_t tensor;
};

/* On libzmq's thread. */
static void give_back(void *values, void *loan)
{
	struct loan *l = loan;

	(void)values;
	if (atomic_load(&l->lent))
		(void)zmq_msg_close(&l->tensor);
	free(l);
}

/* A frame of some of the tensor's bytes, which stay where they are. */
static int share(struct kept *k, uint32_t part, zmq_msg_t *frame)
{
	struct loan *l = malloc(sizeof *l);

	if (!l)
		return PS_ENOMEM;
	zmq_msg_init(&l->tensor);
	zmq_msg_copy(&l->tensor, &k->tensor);
	atomic_init(&l->lent, 0);
	atomic_store(&l->lent, 1);
	if (!zmq_msg_init_data(
		    frame, values_of(k, part), k->part[part].count * sizeof(float), give_back, l))
		return PS_OK;
	give_back(NULL, l);
	return PS_ENOMEM;
}

/* The frames sent share the bytes: sending consumes references, a refusal costs nothing. */
static int send_one(struct outbox *o, struct outgoing *out)
{
	struct kept *k = out->push ? kept_at(o, out->push) : NULL;
	struct frames f;
	int status;

	if (k && k->seq != out->push)
		return PS_OK; /* became durable while it waited: decided long ago */
	frames_init(&f);
	if (k && (status = share(k, out->part, &f.frame[1])))
		return status;
	zmq_msg_init(&f.frame[0]);
	zmq_msg_copy(&f.frame[0], &out->header);
	f.n = k ? 2 : 1;
	status = wire_send(o->socket, 0, &f);
	frames_release(&f);
	return status;
}

void outbox_flush(struct outbox *o)
{
	while (o->count) {
		int status = send_one(o, &o->waiting[o->first]);

		if (status == PS_EAGAIN)
			return;
		if (status)
			log_debug("net", "send_failed", "status=%s", err_name(status));
		pop(o);
	}
}

void outbox_clear(struct outbox *o)
{
	while (o->count)
		pop(o);
}

/* The next place, or NULL. */
static struct outgoing *next(struct outbox *o)
{
	return o->count < OUTBOX_SIZE ? &o->waiting[(o->first + o->count) % OUTBOX_SIZE] : NULL;
}

static void append(struct outbox *o, const struct msg *m, uint64_t push, uint32_t part)
{
	struct outgoing *out = next(o);

	if (!out || wire_encode_header(m, &out->header))
		return;
	out->push = push;
	out->part = part;
	o->count++;
	outbox_flush(o);
}

static void append_ahead(struct outbox *o, uint64_t push, uint32_t part)
{
	struct outgoing *out = next(o);

	if (!out || wire_encode_ahead(&out->header))
		return;
	out->push = push;
	out->part = part;
	o->count++;
	outbox_flush(o);
}

void outbox_post(struct outbox *o, const struct msg *m)
{
	append(o, m, 0, 0);
}

/* While one part is on its way the checksum of the next is made. */
void outbox_post_push(struct outbox *o, const struct msg *m, uint64_t seq)
{
	struct kept *k = kept_at(o, seq);
	struct msg whole = {.type = MSG_PUSH, .push = m->push};
	struct slices *s = &whole.push.slices;

	if (k->seq != seq)
		return;
	for (; s->n < k->n; s->n++) {
		struct slice *part = &k->part[s->n];
		if (!part->xxh3)
			part->xxh3 = wire_checksum(values_of(k, s->n), part->count);
		s->slice[s->n] = *part;
		if (s->n + 1 < k->n)
			append_ahead(o, seq, s->n);
	}
	whole.push.ahead = k->n - 1;
	if (seq <= o->sent_seq)
		o->replayed++;
	else
		o->sent_seq = seq;
	append(o, &whole, seq, k->n - 1);
}
