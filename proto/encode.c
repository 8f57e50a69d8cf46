/*
 * encode.c - converts a struct msg to frames, with the table in schema.c, and sends whole messages
 * on a ZeroMQ socket.
 */
#include <errno.h>
#include <stdalign.h>
#include <string.h>
#include "proto/wire.h"
#include "common/clones.h"
#include "proto/bf16.h"
#include "proto/checksum.h"
#include "proto/schema.h"

#define BODY_MEMORY   ((size_t)1024) /* bytes for a body and its inner messages, without slices */
#define SLICE_MEMORY  ((size_t)128)  /* bytes for a slice and the pointer to it */
#define ENCODE_MEMORY (BODY_MEMORY + WIRE_MAX_SLICES * SLICE_MEMORY)
#define MAX_PREFIX    11 /* maximum bytes of the envelope, which is a tag and a varint */
#define TAG_BYTES     2u /* protobuf's wire type LEN, which a field with a message inside has */

void frames_move(struct frames *to, struct frames *from)
{
	for (to->n = 0; to->n < from->n; to->n++) {
		(void)zmq_msg_init(&to->frame[to->n]);
		(void)zmq_msg_move(&to->frame[to->n], &from->frame[to->n]);
	}
	to->n_chunks = from->n_chunks;
	memcpy(to->chunk, from->chunk, sizeof(to->chunk));
	frames_release(from);
}

static const struct slices *slices_of(const struct msg *m)
{
	static const struct slices none = {.n = 0};

	if (m->type == MSG_PUSH)
		return &m->push.slices;
	return m->type == MSG_PARAMS ? &m->params.slices : &none;
}

/* ---- struct msg to protobuf structs: the functions return NULL or 0 if a text is too long ---- */

static int put_text(const char *text, size_t max, void *to)
{
	if (!text)
		text = "";
	memcpy(to, &text, sizeof(text));
	return strnlen(text, max + 1) <= max;
}

static const char *required_features(const struct msg *m)
{
	const struct msg_welcome *w = &m->welcome;

	if (m->type == MSG_HELLO && m->hello.wire == ENCODING_BF16)
		return WIRE_REQUIRES_BF16;
	if (m->type != MSG_WELCOME)
		return WIRE_REQUIRES;
	if (w->validate)
		return w->needs_images ? WIRE_REQUIRES_BOTH : WIRE_REQUIRES_VALIDATE;
	return w->needs_images ? WIRE_REQUIRES_IMAGES : WIRE_REQUIRES;
}

/* Copies one value to protobuf-c's struct. If the row is WIRE_OWN_NUMBER or WIRE_OWN_TEXT, `from`
 * is the whole message. */
static int put_value(const struct wire_field *row, const void *from, void *to)
{
	const char *text;
	uint32_t own = (uint32_t)row->max;
	int status;

	switch (row->kind) {
	case WIRE_OWN_NUMBER:
		memcpy(to, &own, sizeof(own));
		return 1;
	case WIRE_OWN_TEXT:
		return put_text(required_features(from), WIRE_MAX_TEXT, to);
	case WIRE_LINE:
		return put_text(from, row->size - 1, to);
	case WIRE_TEXT:
		memcpy(&text, from, sizeof(text));
		return put_text(text, row->max, to);
	case WIRE_CODE:
		memcpy(&status, from, sizeof(status));
		status = -status;
		memcpy(to, &status, sizeof(status));
		return 1;
	default:
		memcpy(to, from, row->size);
		return 1;
	}
}

static void *new_message(struct wire_arena *a, const ProtobufCMessageDescriptor *descriptor)
{
	ProtobufCMessage *p = wire_alloc(a, descriptor->sizeof_message);

	if (p)
		protobuf_c_message_init(descriptor, p);
	return p;
}

static void *put_inner(struct wire_arena *a, const ProtobufCMessageDescriptor *descriptor,
	const struct wire_field *rows, const void *from)
{
	ProtobufCMessage *p = new_message(a, descriptor);

	for (const struct wire_field *row = rows; p && row->kind != WIRE_END; row++)
		if (!put_value(row, (const char *)from + row->offset,
			    (char *)p + wire_find(p, row)->offset))
			return NULL;
	return p;
}

/* Makes an array of pointers to protobuf structs, one for each slice. */
static void *put_slices(struct wire_arena *a, const ProtobufCMessageDescriptor *descriptor,
	const struct wire_field *rows, const struct slices *from, const uint64_t *xxh3)
{
	void **array = wire_alloc(a, from->n * sizeof(*array));

	for (uint32_t i = 0; array && i < from->n; i++) {
		struct slice slice = from->slice[i];

		/* `xxh3` has one value per slice, which the analyzer does not know */
		/* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign) */
		slice.xxh3 = xxh3[i];
		array[i] = put_inner(a, descriptor, rows, &slice);
		if (!array[i])
			return NULL;
	}
	return array;
}

static int put_field(struct wire_arena *a, const struct wire_field *row, const struct msg *m,
	const uint64_t *xxh3, ProtobufCMessage *p)
{
	const ProtobufCFieldDescriptor *field = wire_find(p, row);
	const char *from = (const char *)m + row->offset;
	char *to = (char *)p + field->offset;
	size_t n = slices_of(m)->n;
	void *inner;

	if (row->kind == WIRE_SLICES) {
		inner = put_slices(a, field->descriptor, row->inner, slices_of(m), xxh3);
		memcpy((char *)p + field->quantifier_offset, &n, sizeof(n));
	} else if (row->kind == WIRE_INNER) {
		inner = put_inner(a, field->descriptor, row->inner, from);
	} else {
		return put_value(row, from, to);
	}
	memcpy(to, &inner, sizeof(inner));
	return inner != NULL;
}

static ProtobufCMessage *put_message(
	struct wire_arena *a, const struct msg *m, const uint64_t *xxh3)
{
	ProtobufCMessage *p = new_message(a, wire_descriptor(m->type));

	for (const struct wire_field *row = wire_messages[m->type].fields;
		p && row->kind != WIRE_END; row++)
		if (!put_field(a, row, m, xxh3, p))
			return NULL;
	return p;
}

/* ---- struct msg to frames -------------------------------------------------------------------- */

/* Writes the beginning of the protobuf `Message`: the tag of the body's field and the length of the
 * body. Returns the number of bytes written. */
static size_t put_prefix(enum msg_type type, size_t body_size, unsigned char prefix[MAX_PREFIX])
{
	size_t n = 0;

	prefix[n++] = (unsigned char)(type << 3 | TAG_BYTES);
	for (; body_size >= 0x80; body_size >>= 7)
		prefix[n++] = (unsigned char)(body_size | 0x80);
	prefix[n++] = (unsigned char)body_size;
	return n;
}

/* Encodes the header frame. `xxh3` is an array with the checksum of each slice. */
static int encode_header(const struct msg *m, const uint64_t *xxh3, zmq_msg_t *header)
{
	PS_UNINITIALIZED alignas(max_align_t) unsigned char memory[ENCODE_MEMORY];
	struct wire_arena arena = {memory, sizeof(memory), 0};
	const ProtobufCMessage *p = put_message(&arena, m, xxh3);
	unsigned char prefix[MAX_PREFIX];

	if (!p)
		return PS_ETOOBIG;
	size_t body_size = protobuf_c_message_get_packed_size(p);
	size_t prefix_size = put_prefix(m->type, body_size, prefix);
	if (zmq_msg_init_size(header, prefix_size + body_size))
		return PS_ENOMEM;
	unsigned char *out = zmq_msg_data(header);
	memcpy(out, prefix, prefix_size);
	(void)protobuf_c_message_pack(p, out + prefix_size);
	return PS_OK;
}

static int check_slices(const struct slices *s)
{
	if (s->n > WIRE_MAX_SLICES)
		return PS_ETOOBIG;
	for (uint32_t i = 0; i < s->n; i++)
		if (s->slice[i].count == 0 || s->slice[i].count > WIRE_MAX_PARAMS)
			return PS_ETOOBIG;
	return PS_OK;
}

int wire_encode_header(const struct msg *m, zmq_msg_t *header)
{
	const struct slices *s = slices_of(m);
	PS_UNINITIALIZED uint64_t xxh3[WIRE_MAX_SLICES];
	int rc = check_slices(s);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < s->n; i++)
		xxh3[i] = s->slice[i].xxh3 ? s->slice[i].xxh3
					   : wire_checksum(s->slice[i].data, s->slice[i].count);
	return encode_header(m, xxh3, header);
}

int wire_encode_chunk_header(zmq_msg_t *header)
{
	if (zmq_msg_init_size(header, 1))
		return PS_ENOMEM;
	*(unsigned char *)zmq_msg_data(header) = 0;
	return PS_OK;
}

int wire_encode_slice(struct slice *s, zmq_msg_t *frame)
{
	size_t size = s->count * encoding_bytes(s->encoding);

	if (zmq_msg_init_size(frame, size))
		return PS_ENOMEM;
	if (s->encoding == ENCODING_BF16) {
		bf16_pack(zmq_msg_data(frame), s->data, s->count);
		s->xxh3 = wire_hash(zmq_msg_data(frame), size);
	} else if (s->xxh3)
		memcpy(zmq_msg_data(frame), s->data, size);
	else
		s->xxh3 = wire_copy_hash(zmq_msg_data(frame), s->data, size);
	return PS_OK;
}

int wire_encode(const struct msg *m, struct frames *f)
{
	const struct slices *s = slices_of(m);
	PS_UNINITIALIZED uint64_t xxh3[WIRE_MAX_SLICES];
	int rc = check_slices(s);

	frames_init(f);
	/* encode the header last, because it has the checksums of the slices */
	(void)zmq_msg_init(&f->frame[0]);
	f->n = 1;
	for (uint32_t i = 0; i < s->n && !rc; i++) {
		struct slice slice = s->slice[i];

		rc = wire_encode_slice(&slice, &f->frame[f->n]);
		xxh3[i] = slice.xxh3;
		f->n += !rc;
	}
	if (!rc)
		rc = encode_header(m, xxh3, &f->frame[0]);
	if (rc)
		frames_release(f);
	return rc;
}

/* ---- to a socket, without waiting ------------------------------------------------------------ */

/* Sends one part. Returns 0, PS_EAGAIN, PS_EUNREACHABLE or PS_ENET. If the result is 0, libzmq owns
 * the part; otherwise the caller keeps it. */
static int send_part(void *socket, zmq_msg_t *part, int more)
{
	int flags = ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0);
	int rc;

	do
		rc = zmq_msg_send(part, socket, flags);
	while (rc < 0 && errno == EINTR);
	if (rc >= 0)
		return 0;
	return errno == EAGAIN ? PS_EAGAIN : errno == EHOSTUNREACH ? PS_EUNREACHABLE : PS_ENET;
}

static int send_identity(void *socket, uint32_t peer)
{
	unsigned char id[WIRE_PEER_ID] = {0, (unsigned char)(peer >> 24),
		(unsigned char)(peer >> 16), (unsigned char)(peer >> 8), (unsigned char)peer};
	zmq_msg_t part;

	if (zmq_msg_init_size(&part, sizeof(id)))
		return PS_ENOMEM;
	memcpy(zmq_msg_data(&part), id, sizeof(id));
	int rc = send_part(socket, &part, 1);
	if (rc)
		(void)zmq_msg_close(&part);
	return rc;
}

/*
 * A full queue can refuse only the first part. If the connection breaks before the last part,
 * sending a later part fails, and the message is lost, like every message that is on its way when a
 * connection breaks. The loop still passes the remaining parts to the socket, because the socket
 * would otherwise treat the beginning of the next message as the rest of this one.
 */
int wire_send(void *socket, uint32_t peer, struct frames *f)
{
	int rc = peer ? send_identity(socket, peer) : 0;

	for (size_t i = 0; i < f->n && !rc; i++) {
		int sent = send_part(socket, &f->frame[i], i + 1 < f->n);

		if (sent == PS_ENET || (sent && i == 0 && !peer))
			rc = sent;
	}
	if (!rc)
		frames_release(f);
	return rc;
}
