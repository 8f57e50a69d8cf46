#include "proto/wire_check.h"
#include <string.h>
#include "common/utf8.h"
#include "proto/msg.h"
#include "proto/wire_schema.h"

enum wire_type { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

struct reader {
	const uint8_t *at, *end;
};

/* One field as it stands in the bytes. */
struct field {
	unsigned number;
	enum wire_type wire_type;
	uint64_t varint;     /* WIRE_VARINT */
	const uint8_t *data; /* WIRE_BYTES */
	size_t size;
};

/* 1 if there was a whole varint of at most 64 bits. */
static int read_varint(struct reader *r, uint64_t *value)
{
	uint64_t v = 0;

	for (unsigned shift = 0; shift < 64 && r->at < r->end; shift += 7) {
		uint8_t byte = *r->at++;
		if (shift == 63 && byte > 1)
			return 0;
		v |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80)) {
			*value = v;
			return 1;
		}
	}
	return 0;
}

static int skip(struct reader *r, uint64_t n)
{
	if (n > (uint64_t)(r->end - r->at))
		return 0;
	r->at += n;
	return 1;
}

/* 1 if there was a whole field with a number and wire type that exist in proto3. */
static int read_field(struct reader *r, struct field *f)
{
	uint64_t tag, size;

	if (!read_varint(r, &tag) || tag > UINT32_MAX || tag >> 3 == 0)
		return 0;
	*f = (struct field){.number = (unsigned)(tag >> 3), .wire_type = (enum wire_type)(tag & 7)};
	switch (tag & 7) {
	case WIRE_VARINT:
		return read_varint(r, &f->varint);
	case WIRE_FIXED64:
		return skip(r, 8);
	case WIRE_FIXED32:
		return skip(r, 4);
	case WIRE_BYTES:
		if (!read_varint(r, &size))
			return 0;
		f->data = r->at;
		f->size = (size_t)size;
		return skip(r, size);
	default:
		return 0;
	}
}

static enum wire_type wire_type_of(ProtobufCType type)
{
	switch (type) {
	case PROTOBUF_C_TYPE_FIXED64:
	case PROTOBUF_C_TYPE_SFIXED64:
	case PROTOBUF_C_TYPE_DOUBLE:
		return WIRE_FIXED64;
	case PROTOBUF_C_TYPE_FIXED32:
	case PROTOBUF_C_TYPE_SFIXED32:
	case PROTOBUF_C_TYPE_FLOAT:
		return WIRE_FIXED32;
	case PROTOBUF_C_TYPE_STRING:
	case PROTOBUF_C_TYPE_BYTES:
	case PROTOBUF_C_TYPE_MESSAGE:
		return WIRE_BYTES;
	default:
		return WIRE_VARINT;
	}
}

/* Most that a varint of this type can say; protobuf-c would cut off the rest in silence. */
static uint64_t varint_limit(ProtobufCType type)
{
	switch (type) {
	case PROTOBUF_C_TYPE_BOOL:
		return 1;
	case PROTOBUF_C_TYPE_ENUM:
	case PROTOBUF_C_TYPE_UINT32:
		return UINT32_MAX;
	default:
		return UINT64_MAX;
	}
}

static const char *check_text(const uint8_t *data, size_t size)
{
	const uint8_t *end = data + size;

	if (size > WIRE_MAX_TEXT)
		return "text is too long";
	while (data < end) {
		size_t n = *data ? utf8_length(data, end) : 0;
		if (n == 0)
			return "text is not UTF-8 or has a NUL in it";
		data += n;
	}
	return NULL;
}

/* A known field has its wire type and comes once: sets its bit in *seen and its row in *row. An
 * unknown one (*row is NULL) is of a newer schema: protobuf-c passes it over, in the memory that is
 * left of the message's budget. */
static const char *check_field(const ProtobufCMessageDescriptor *message, const struct field *f,
	uint32_t *seen, const ProtobufCFieldDescriptor **row)
{
	*row = f->number < 32 ? protobuf_c_message_descriptor_get_field(message, f->number) : NULL;
	if (!*row)
		return NULL;
	if (f->wire_type != wire_type_of((*row)->type))
		return "field of another type";
	if (*seen & 1u << f->number && (*row)->label != PROTOBUF_C_LABEL_REPEATED)
		return "field given twice";
	*seen |= 1u << f->number;
	if (f->varint > varint_limit((*row)->type))
		return "number too large for its field";
	return (*row)->type == PROTOBUF_C_TYPE_STRING ? check_text(f->data, f->size) : NULL;
}

/* A message inside a body: numbers only. The schema goes no deeper; nor does this. */
static const char *check_inner(const ProtobufCMessageDescriptor *message, const struct field *outer)
{
	struct reader r = {outer->data, outer->data + outer->size};
	uint32_t seen = 0;

	while (r.at < r.end) {
		const ProtobufCFieldDescriptor *row;
		struct field f;
		if (!read_field(&r, &f))
			return "truncated or malformed field";
		const char *why = check_field(message, &f, &seen, &row);
		if (why)
			return why;
		if (row && row->type == PROTOBUF_C_TYPE_MESSAGE)
			return "messages nested too deep";
	}
	return NULL;
}

const char *wire_check_envelope(const uint8_t *data, size_t size, struct wire_body *body)
{
	struct reader r = {data, data + size};
	struct field f;

	if (size > WIRE_MAX_HEADER)
		return "header frame is too long";
	if (!read_field(&r, &f) || f.wire_type != WIRE_BYTES || r.at != r.end)
		return "header is not one protobuf Message with one body";
	*body = (struct wire_body){f.number, wire_descriptor(f.number), f.data, f.size};
	if (!body->descriptor)
		return "unknown message type";
	return NULL;
}

const char *wire_check_body(const struct wire_body *body)
{
	struct reader r = {body->data, body->data + body->size};
	uint32_t seen = 0;
	size_t repeated = 0;

	while (r.at < r.end) {
		const ProtobufCFieldDescriptor *row;
		struct field f;
		if (!read_field(&r, &f))
			return "truncated or malformed field";
		const char *why = check_field(body->descriptor, &f, &seen, &row);
		if (!why && row && row->label == PROTOBUF_C_LABEL_REPEATED &&
			++repeated > WIRE_MAX_SLICES)
			why = "too many slices";
		if (!why && row && row->type == PROTOBUF_C_TYPE_MESSAGE)
			why = check_inner(row->descriptor, &f);
		if (why)
			return why;
	}
	return NULL;
}

/* The first field of that number and wire type. 0: there is none in front of malformed bytes. */
static int peek(const struct wire_body *body, unsigned number, enum wire_type type, struct field *f)
{
	struct reader r = {body->data, body->data + body->size};

	while (r.at < r.end && read_field(&r, f))
		if (f->number == number && f->wire_type == type)
			return 1;
	return 0;
}

uint64_t wire_check_number(const struct wire_body *body, unsigned number)
{
	struct field f;

	return peek(body, number, WIRE_VARINT, &f) ? f.varint : 0;
}

const uint8_t *wire_check_bytes(const struct wire_body *body, unsigned number, size_t *size)
{
	struct field f;
	int found = peek(body, number, WIRE_BYTES, &f);

	*size = found ? f.size : 0;
	return found ? f.data : body->data;
}
