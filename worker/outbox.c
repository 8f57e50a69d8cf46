/* outbox.c - see outbox.h. */
#include <string.h>
#include "common/log.h"
#include "proto/wire.h"
#include "worker/outbox.h"

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

void outbox_keep(struct outbox *o, uint64_t seq, const struct slice *slice, zmq_msg_t *tensor)
{
	struct kept *k = kept_at(o, seq);

	k->seq = seq;
	k->slice = *slice;
	k->slice.data = NULL;
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

/* The frames sent share the bytes: sending consumes references, a refusal costs nothing. */
static int send_one(struct outbox *o, struct outgoing *out)
{
	struct kept *k = out->push ? kept_at(o, out->push) : NULL;
	struct frames f;
	int status;

	if (k && k->seq != out->push)
		return PS_OK; /* became durable while it waited: decided long ago */
	frames_init(&f);
	zmq_msg_init(&f.frame[f.n++]);
	zmq_msg_copy(&f.frame[0], &out->header);
	if (k) {
		zmq_msg_init(&f.frame[f.n++]);
		zmq_msg_copy(&f.frame[1], &k->tensor);
	}
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

static void append(struct outbox *o, const struct msg *m, uint64_t push)
{
	struct outgoing *out = &o->waiting[(o->first + o->count) % OUTBOX_SIZE];

	if (o->count == OUTBOX_SIZE || wire_encode_header(m, &out->header))
		return;
	out->push = push;
	o->count++;
	outbox_flush(o);
}

void outbox_post(struct outbox *o, const struct msg *m)
{
	append(o, m, 0);
}

void outbox_post_push(struct outbox *o, const struct msg *m, uint64_t seq)
{
	struct kept *k = kept_at(o, seq);
	struct msg whole = {.type = MSG_PUSH, .push = m->push};

	if (k->seq != seq)
		return;
	whole.push.slices.n = 1;
	whole.push.slices.slice[0] = k->slice;
	if (seq <= o->sent_seq)
		o->replayed++;
	else
		o->sent_seq = seq;
	append(o, &whole, seq);
}
