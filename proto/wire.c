/*
 * wire.c - protobuf messages <-> struct msg. Decoding: wire_check.c walks the bytes, protobuf-c
 * unpacks them into an arena, the rows of wire_fields.c say where each value goes and what it may
 * be, read_slices judges the tensor frames. Encoding walks the same rows the other way.
 */
#include "proto/wire.h"
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include "cnnps.pb-c.h"
#include "proto/wire_check.h"
#include "proto/wire_fields.h"
#include "proto/wire_hash.h"

#define ARENA_ALIGN    alignof(max_align_t)
#define HELLO_PROTOCOL 1u             /* field number */
#define MESSAGE_MEMORY ((size_t)1024) /* body and what is inside it */
#define SLICE_MEMORY   (sizeof(Cnnps__Slice *) + sizeof(Cnnps__Slice) + ARENA_ALIGN)
#define ENCODE_MEMORY  (MESSAGE_MEMORY + WIRE_MAX_SLICES * SLICE_MEMORY)

struct arena {
	unsigned char *memory;
	size_t size, used; /* bytes */
};

struct wire {
	size_t n_params;
	float *floats; /* n_params: copies of misaligned frames */
	struct arena arena;
	alignas(max_align_t) unsigned char memory[WIRE_MAX_BODY_MEMORY];
};

/* ---- memory ------------------------------------------------------------------------------- */

static void *arena_alloc(void *data, size_t size)
{
	struct arena *a = data;
	size_t left = a->size - a->used;

	if (size > left)
		return NULL;
	void *p = a->memory + a->used;
	size_t rounded = (size + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
	a->used += rounded < left ? rounded : left;
	return p;
}

/* All of the arena is free again at the next message. */
static void arena_free(void *data, void *p)
{
	(void)data;
	(void)p;
}

int wire_resize(struct wire *w, size_t n_params)
{
	float *floats = NULL;

	if (n_params > WIRE_MAX_PARAMS)
		return PS_ENOMEM;
	if (n_params > 0) {
		/* not touched before a misaligned frame comes: costs address space only */
		floats = malloc(n_params * sizeof(*floats));
		if (!floats)
			return PS_ENOMEM;
	}
	free(w->floats);
	w->floats = floats;
	w->n_params = n_params;
	return PS_OK;
}

int wire_new(struct wire **out, size_t n_params)
{
	struct wire *w = malloc(sizeof(*w));

	*out = NULL;
	if (!w)
		return PS_ENOMEM;
	w->floats = NULL;
	w->arena = (struct arena){w->memory, sizeof(w->memory), 0};
	int rc = wire_resize(w, n_params);
	if (rc) {
		free(w);
		return rc;
	}
	*out = w;
	return PS_OK;
}

void wire_free(struct wire **w)
{
	if (!*w)
		return;
	free((*w)->floats);
	free(*w);
	*w = NULL;
}

/* ---- decoding: functions return NULL, or why the message is refused ------------------------- */

/* Aligned values of a frame: in place where possible, else copied to `spare`. */
static const float *frame_floats(zmq_msg_t *frame, float *spare)
{
	void *data = zmq_msg_data(frame);

	if ((uintptr_t)data % alignof(float) == 0)
		return data;
	memcpy(spare, data, zmq_msg_size(frame));
	return spare;
}

/* `from`: where the slice before ended. */
static const char *read_slice(
	struct wire *w, const Cnnps__Slice *p, uint64_t from, zmq_msg_t *frame, struct slice *s)
{
	if (p->encoding != CNNPS__ENCODING__ENCODING_F32)
		return "unknown tensor encoding";
	if (p->count == 0 || p->count > w->n_params || p->offset > w->n_params - p->count)
		return "slice is empty or outside the model";
	if (p->offset < from)
		return "slices overlap or are out of order";
	if (zmq_msg_size(frame) != p->count * sizeof(float))
		return "tensor frame is not 4 * count bytes";
	*s = (struct slice){.offset = p->offset,
		.count = p->count,
		.encoding = ENCODING_F32,
		.xxh3 = p->xxh3,
		.data = frame_floats(frame, w->floats + p->offset)};
	return wire_checksum(s->data, s->count) == p->xxh3 ? NULL : "wrong tensor checksum";
}

static const char *read_slices(
	struct wire *w, struct frames *f, Cnnps__Slice *const *from, size_t n, struct slices *to)
{
	uint64_t end = 0;

	if (n > WIRE_MAX_SLICES || f->n != 1 + n)
		return "not one tensor frame per slice";
	for (size_t i = 0; i < n; i++) {
		const char *why = read_slice(w, from[i], end, &f->frame[1 + i], &to->slice[i]);
		if (why)
			return why;
		end = from[i]->offset + from[i]->count;
	}
	to->n = (uint32_t)n;
	return NULL;
}

static int covers(const struct slices *s, size_t n_params)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < s->n; i++) {
		if (s->slice[i].offset != end)
			return 0;
		end += s->slice[i].count;
	}
	return end == n_params;
}

/* What goes into a log line has no control character. */
static int read_line(const char *from, char *to, size_t size)
{
	size_t n = strlen(from);

	if (n >= size)
		return 0;
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)from[i] < 0x20 || from[i] == 0x7f)
			return 0;
	memcpy(to, from, n + 1);
	return 1;
}

static int read_number(const struct wire_field *row, const void *from, void *to)
{
	uint64_t wide = 0;
	uint32_t narrow;

	if (row->size == sizeof(wide)) {
		memcpy(&wide, from, sizeof(wide));
	} else {
		memcpy(&narrow, from, sizeof(narrow));
		wide = narrow;
	}
	memcpy(to, from, row->size);
	return wide >= row->least && wide <= row->most;
}

static int read_code(const struct wire_field *row, const void *from, void *to)
{
	uint32_t code;

	memcpy(&code, from, sizeof(code));
	if (code < row->least || !err_known(-(long)code))
		return 0;
	int status = -(int)code;
	memcpy(to, &status, sizeof(status));
	return 1;
}

static int read_text(const struct wire_field *row, const char *from, void *to)
{
	memcpy(to, &from, sizeof(from));
	return strlen(from) <= row->most;
}

static const void *pointer_at(const void *where)
{
	const void *p;

	memcpy(&p, where, sizeof(p));
	return p;
}

/* One value from an unpacked protobuf struct; 0 if it is out of range. */
static int read_value(const struct wire_field *row, const void *from, void *to)
{
	switch (row->kind) {
	case WIRE_NUMBER:
		return read_number(row, from, to);
	case WIRE_CODE:
		return read_code(row, from, to);
	case WIRE_LINE:
		return read_line(pointer_at(from), to, row->size);
	case WIRE_TEXT:
		return read_text(row, pointer_at(from), to);
	default:
		memcpy(to, from, row->size);
		return 1;
	}
}

static const ProtobufCFieldDescriptor *find(
	const ProtobufCMessage *message, const struct wire_field *row)
{
	return protobuf_c_message_descriptor_get_field(message->descriptor, row->number);
}

static const char *read_inner(
	const struct wire_field *rows, const ProtobufCMessage *from, unsigned char *to)
{
	if (!from)
		return NULL;
	for (const struct wire_field *row = rows; row->kind != WIRE_END; row++)
		if (!read_value(
			    row, (const char *)from + find(from, row)->offset, to + row->offset))
			return row->why;
	return NULL;
}

static const char *read_body(
	struct wire *w, struct frames *f, const ProtobufCMessage *from, struct msg *m)
{
	const struct wire_message *message = &wire_messages[m->type];
	size_t n_slices = 0;
	const char *why = NULL;

	for (const struct wire_field *row = message->fields; row->kind != WIRE_END && !why; row++) {
		const ProtobufCFieldDescriptor *field = find(from, row);
		const char *value = (const char *)from + field->offset;
		unsigned char *to = (unsigned char *)m + row->offset;
		if (row->kind == WIRE_SLICES) {
			memcpy(&n_slices, (const char *)from + field->quantifier_offset,
				sizeof(n_slices));
			why = read_slices(w, f, pointer_at(value), n_slices, (struct slices *)to);
		} else if (row->kind == WIRE_INNER) {
			why = read_inner(row->inner, pointer_at(value), to);
		} else if (!read_value(row, value, to)) {
			why = row->why;
		}
	}
	if (!why && f->n != 1 + n_slices)
		why = "tensor frames without slices";
	if (!why && m->type == MSG_PARAMS && !covers(&m->params.slices, w->n_params))
		why = "PARAMS does not cover the model";
	return why || !message->rule ? why : message->rule(m);
}

static const char *decode(
	struct wire *w, struct frames *f, const struct wire_body *body, struct msg *m)
{
	ProtobufCAllocator allocator = {arena_alloc, arena_free, &w->arena};
	const char *why = wire_check_body(body);

	if (why)
		return why;
	w->arena.used = 0;
	ProtobufCMessage *unpacked =
		protobuf_c_message_unpack(body->descriptor, &allocator, body->size, body->data);
	if (!unpacked)
		return "protobuf does not parse within its memory limit";
	*m = (struct msg){.type = (enum msg_type)body->type};
	return read_body(w, f, unpacked, m);
}

int wire_decode(struct wire *w, struct frames *f, struct msg *m, const char **why)
{
	struct wire_body body;
	const char *reason = "no header frame";
	int status = PS_EPROTO;

	if (f->n > 0)
		reason = wire_check_envelope(&cnnps__message__descriptor,
			zmq_msg_data(&f->frame[0]), zmq_msg_size(&f->frame[0]), &body);
	if (!reason && body.type == MSG_HELLO &&
		wire_check_peek(&body, HELLO_PROTOCOL) != WIRE_PROTOCOL) {
		reason = "only protocol version 1 is spoken here";
		status = PS_EVERSION;
	}
	if (!reason)
		reason = decode(w, f, &body, m);
	if (!reason)
		return PS_OK;
	m->type = (enum msg_type)0;
	if (why)
		*why = reason;
	return status;
}

/* ---- encoding ------------------------------------------------------------------------------- */

uint64_t wire_checksum(const float *data, size_t count)
{
	return wire_hash(data, count * sizeof(*data));
}

static const struct slices *slices_of(const struct msg *m)
{
	static const struct slices none = {.n = 0};

	return m->type == MSG_PUSH     ? &m->push.slices
	       : m->type == MSG_PARAMS ? &m->params.slices
				       : &none;
}

/* Point `array` and the slices it points to, in the arena, at `from`. */
static void *put_slices(struct arena *a, const struct slices *from, const uint64_t *xxh3)
{
	Cnnps__Slice **array = arena_alloc(a, from->n * sizeof(*array));

	for (uint32_t i = 0; array && i < from->n; i++) {
		array[i] = arena_alloc(a, sizeof(*array[i]));
		if (!array[i])
			return NULL;
		cnnps__slice__init(array[i]);
		array[i]->offset = from->slice[i].offset;
		array[i]->count = from->slice[i].count;
		array[i]->encoding = (Cnnps__Encoding)from->slice[i].encoding;
		array[i]->xxh3 = xxh3[i];
	}
	return array;
}

/* One value into a protobuf struct; 0 if it is too long. */
static int put_value(const struct wire_field *row, const void *from, void *to)
{
	const char *text = row->kind == WIRE_TEXT ? pointer_at(from) : from;
	size_t most = row->kind == WIRE_TEXT ? row->most : row->size - 1;
	int status;

	switch (row->kind) {
	case WIRE_LINE:
	case WIRE_TEXT:
		if (!text)
			text = "";
		memcpy(to, &text, sizeof(text));
		return strnlen(text, most + 1) <= most;
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

static void *new_message(struct arena *a, const ProtobufCMessageDescriptor *descriptor)
{
	ProtobufCMessage *p = arena_alloc(a, descriptor->sizeof_message);

	if (p)
		protobuf_c_message_init(descriptor, p);
	return p;
}

static void *put_inner(struct arena *a, const ProtobufCMessageDescriptor *descriptor,
	const struct wire_field *rows, const unsigned char *from)
{
	ProtobufCMessage *p = new_message(a, descriptor);

	for (const struct wire_field *row = rows; p && row->kind != WIRE_END; row++)
		if (!put_value(row, from + row->offset, (char *)p + find(p, row)->offset))
			return NULL;
	return p;
}

static void *put_body(struct arena *a, const struct msg *m, const uint64_t *xxh3)
{
	const ProtobufCMessageDescriptor *descriptor =
		protobuf_c_message_descriptor_get_field(&cnnps__message__descriptor, m->type)
			->descriptor;
	ProtobufCMessage *p = new_message(a, descriptor);

	for (const struct wire_field *row = wire_messages[m->type].fields;
		p && row->kind != WIRE_END; row++) {
		const ProtobufCFieldDescriptor *field = find(p, row);
		const unsigned char *from = (const unsigned char *)m + row->offset;
		char *to = (char *)p + field->offset;
		void *inner = NULL;
		if (row->kind == WIRE_INNER) {
			inner = put_inner(a, field->descriptor, row->inner, from);
		} else if (row->kind == WIRE_SLICES) {
			size_t n = slices_of(m)->n;
			inner = put_slices(a, slices_of(m), xxh3);
			memcpy((char *)p + field->quantifier_offset, &n, sizeof(n));
		} else {
			if (!put_value(row, from, to))
				return NULL;
			continue;
		}
		if (!inner)
			return NULL;
		memcpy(to, &inner, sizeof(inner));
	}
	return p;
}

/* `xxh3`: of each slice. */
static int encode_header(const struct msg *m, const uint64_t *xxh3, zmq_msg_t *header)
{
	alignas(max_align_t) unsigned char memory[ENCODE_MEMORY];
	struct arena arena = {memory, sizeof(memory), 0};
	Cnnps__Message envelope = CNNPS__MESSAGE__INIT;

	envelope.body_case = (Cnnps__Message__BodyCase)m->type;
	envelope.hello = put_body(&arena, m, xxh3); /* any member: all are pointers */
	if (!envelope.hello)
		return PS_ETOOBIG;
	if (zmq_msg_init_size(header, cnnps__message__get_packed_size(&envelope)))
		return PS_ENOMEM;
	(void)cnnps__message__pack(&envelope, zmq_msg_data(header));
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
	uint64_t xxh3[WIRE_MAX_SLICES];
	int rc = check_slices(s);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < s->n; i++)
		xxh3[i] = s->slice[i].xxh3 ? s->slice[i].xxh3
					   : wire_checksum(s->slice[i].data, s->slice[i].count);
	return encode_header(m, xxh3, header);
}

/* A frame with a copy of the slice's values. */
static int encode_slice(const struct slice *s, uint64_t *xxh3, zmq_msg_t *frame)
{
	size_t size = s->count * sizeof(float);

	if (zmq_msg_init_size(frame, size))
		return PS_ENOMEM;
	if (s->xxh3)
		memcpy(zmq_msg_data(frame), s->data, size);
	*xxh3 = s->xxh3 ? s->xxh3 : wire_copy_hash(zmq_msg_data(frame), s->data, size);
	return PS_OK;
}

int wire_encode(const struct msg *m, struct frames *f)
{
	const struct slices *s = slices_of(m);
	uint64_t xxh3[WIRE_MAX_SLICES];
	int rc = check_slices(s);

	frames_init(f);
	(void)zmq_msg_init(&f->frame[0]);
	f->n = 1;
	for (uint32_t i = 0; i < s->n && !rc; i++) {
		rc = encode_slice(&s->slice[i], &xxh3[i], &f->frame[f->n]);
		f->n += !rc;
	}
	if (!rc)
		rc = encode_header(m, xxh3, &f->frame[0]);
	if (rc)
		frames_release(f);
	return rc;
}
