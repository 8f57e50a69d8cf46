/* wal_record.c - see wal_record.h. */
#include "server/durability/wal_record.h"
#include <string.h>
#include "common/le.h"

#define NUMBERS 5
/* stands in a mark in place of the kind of an event; no kind of event has this number */
#define MARK UINT64_MAX

static unsigned char *put_number(unsigned char *at, uint64_t value)
{
	le64_put(at, value);
	return at + 8;
}

/* Returns the number that a record stores for this kind of event, besides the peer and the
 * message. */
static uint64_t argument_of(const struct event *ev)
{
	switch (ev->kind) {
	case EVENT_PROGRESS:
		return ev->bytes;
	case EVENT_TICK:
		return ev->held_ms;
	case EVENT_DRAIN:
		return (uint64_t)ev->rule_met;
	default:
		return ev->generation;
	}
}

static void set_argument(struct event *ev, uint64_t value)
{
	if (ev->kind == EVENT_PROGRESS)
		ev->bytes = value;
	else if (ev->kind == EVENT_TICK)
		ev->held_ms = value;
	else if (ev->kind == EVENT_DRAIN)
		ev->rule_met = value == 1; /* an earlier release always stored 0 */
	else
		ev->generation = value;
}

size_t wal_record_head(const struct event *ev, uint64_t now_ms, struct frames *f,
	unsigned char out[WAL_RECORD_HEAD])
{
	unsigned char *at = put_number(out, (uint64_t)ev->kind);
	size_t n = f ? f->n : 0;

	at = put_number(at, ev->peer);
	at = put_number(at, now_ms);
	at = put_number(at, argument_of(ev));
	at = put_number(at, n);
	for (size_t i = 0; i < n; i++)
		at = put_number(at, zmq_msg_size(&f->frame[i]));
	return (size_t)(at - out);
}

size_t wal_record_mark(uint64_t generation, unsigned char out[WAL_RECORD_HEAD])
{
	return (size_t)(put_number(put_number(out, MARK), generation) - out);
}

uint64_t wal_record_is_mark(const unsigned char *data, size_t size)
{
	return size == 16 && le64_get(data) == MARK ? le64_get(data + 8) : 0;
}

size_t wal_record_max(size_t n_params)
{
	return WAL_RECORD_HEAD + WIRE_MAX_HEADER + n_params * sizeof(float);
}

int wal_record_reader_init(struct wal_record_reader *r, size_t n_params)
{
	memset(r, 0, sizeof(*r));
	frames_init(&r->frames);
	return wire_new(&r->wire, n_params);
}

void wal_record_reader_release(struct wal_record_reader *r)
{
	frames_release(&r->frames);
	wire_free(&r->wire);
}

static void no_free(void *data, void *hint)
{
	(void)data;
	(void)hint;
}

/* Makes the frames of *r point into `data`. Returns PS_EPROTO if the last frame does not end where
 * `data` ends. */
static int take_frames(
	struct wal_record_reader *r, const unsigned char *data, size_t size, uint64_t n)
{
	size_t at = 8 * (NUMBERS + (size_t)n);

	for (uint64_t i = 0; i < n; i++) {
		uint64_t bytes = le64_get(data + 8 * (NUMBERS + i));

		if (bytes > size - at)
			return PS_EPROTO;
		/* no code writes to these frames, and they are closed before `data` is freed */
		if (zmq_msg_init_data(&r->frames.frame[r->frames.n], (void *)(data + at),
			    (size_t)bytes, no_free, NULL) != 0)
			return PS_ENOMEM;
		r->frames.n++;
		at += (size_t)bytes;
	}
	return at == size ? PS_OK : PS_EPROTO;
}

int wal_record_read(struct wal_record_reader *r, const unsigned char *data, size_t size)
{
	frames_release(&r->frames);
	if (size < 8 * NUMBERS)
		return PS_EPROTO;
	uint64_t kind = le64_get(data), peer = le64_get(data + 8), n = le64_get(data + 32);
	if (kind > EVENT_PROGRESS || peer > UINT32_MAX || n > 1 + WIRE_MAX_SLICES ||
		(n > 0) != (kind == EVENT_MESSAGE) || size < 8 * (NUMBERS + n) ||
		((kind <= EVENT_PEER_GONE || kind == EVENT_PROGRESS) && peer == 0))
		return PS_EPROTO;
	r->now_ms = le64_get(data + 16);
	r->event = (struct event){.kind = (enum event_kind)kind, .peer = (uint32_t)peer};
	set_argument(&r->event, le64_get(data + 24));
	int rc = take_frames(r, data, size, n);
	if (rc || n == 0)
		return rc;
	r->event.msg = &r->msg;
	return wire_decode(r->wire, &r->frames, &r->msg, NULL);
}
