/*
 * decode.c - receives whole messages from a ZeroMQ socket and converts their frames to struct msg.
 * First a scan validates the bytes of the header. After this scan, protobuf-c unpacks the header
 * into an arena, and a loop over the rows of schema.c checks each value and copies it. Last,
 * read_slices checks the tensor frames. The functions of encode.c make frames from a struct msg.
 */
#include "proto/wire.h"
#include <errno.h>
#include <inttypes.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/utf8.h"
#include "proto/bf16.h"
#include "proto/checksum.h"
#include "proto/schema.h"

#define WHY_BYTES 192
struct wire {
	size_t n_params;
	float *floats;          /* n_params floats, for copies of misaligned frames */
	int defers;             /* 1 after wire_defer */
	int exact;              /* 1 after wire_only_exact */
	uint64_t peer_protocol; /* see wire_peer_protocol */
	struct wire_pass pass;  /* see wire_use_pass */
	char why[WHY_BYTES];
	struct wire_arena arena;
	alignas(max_align_t) unsigned char memory[WIRE_MAX_BODY_MEMORY];
};

/* ---- from a socket --------------------------------------------------------------------------- */

/* Receives one part of a message into *part. Returns 1 if a part was received, and 0 if there was
 * none. If `flags` is ZMQ_DONTWAIT, the function does not wait. If `flags` is 0, the function waits
 * until a part arrives, the socket's receive timeout ends, or a signal comes. */
static int receive_part(void *socket, int flags, zmq_msg_t *part)
{
	int rc;

	(void)zmq_msg_init(part);
	do
		rc = zmq_msg_recv(part, socket, flags);
	while (rc < 0 && errno == EINTR && flags);
	if (rc >= 0)
		return 1;
	return errno == EAGAIN || errno == EINTR ? 0 : PS_ENET;
}

/* Returns the number in a routing id that libzmq has assigned, or 0 if the client has chosen the
 * id. */
static uint32_t peer_number(zmq_msg_t *identity)
{
	const unsigned char *id = zmq_msg_data(identity);

	if (zmq_msg_size(identity) != WIRE_PEER_ID || id[0] != 0)
		return 0;
	return (uint32_t)id[1] << 24 | (uint32_t)id[2] << 16 | (uint32_t)id[3] << 8 | id[4];
}

/* Discards the remaining parts of a message, and sets *fd to the descriptor of their connection.
 * `more` is 1 if further parts follow the part that was received last. */
static int drop_rest(void *socket, int more, int *fd)
{
	while (more) {
		zmq_msg_t part;
		int rc = receive_part(socket, ZMQ_DONTWAIT, &part);

		more = rc == 1 && zmq_msg_more(&part);
		if (rc == 1)
			*fd = zmq_msg_get(&part, ZMQ_SRCFD);
		(void)zmq_msg_close(&part);
		if (rc != 1)
			return PS_ENET;
	}
	return PS_EPROTO;
}

/* Receives the identity frame. Returns 1 and sets *peer if there is a message, and 0 if there is
 * none. If the function refuses the message, it sets *fd to the descriptor of its connection. */
static int receive_identity(void *socket, uint32_t *peer, int *fd)
{
	zmq_msg_t identity;
	int rc = receive_part(socket, ZMQ_DONTWAIT, &identity);
	int more = 0;

	*peer = 0;
	if (rc == 1) {
		*peer = peer_number(&identity);
		more = zmq_msg_more(&identity);
	}
	(void)zmq_msg_close(&identity);
	if (rc == 1 && (*peer == 0 || !more))
		return drop_rest(socket, more, fd);
	return rc;
}

/* Receives all parts after the identity frame. The function uses `flags` only for the first of
 * these parts. */
static int receive_frames(void *socket, int flags, struct frames *f)
{
	int more;

	do {
		zmq_msg_t *part = &f->frame[f->n];
		int rc = receive_part(socket, f->n ? ZMQ_DONTWAIT : flags, part);

		if (rc != 1) {
			(void)zmq_msg_close(part);
			frames_release(f);
			return rc;
		}
		f->n++;
		more = zmq_msg_more(part);
	} while (more && f->n < 1 + WIRE_MAX_SLICES);
	if (more || zmq_msg_size(&f->frame[0]) > WIRE_MAX_HEADER) {
		f->fd = zmq_msg_get(&f->frame[0], ZMQ_SRCFD);
		frames_release(f);
		return drop_rest(socket, more, &f->fd);
	}
	return 1;
}

int wire_recv(void *socket, uint32_t *peer, struct frames *f)
{
	frames_init(f);
	if (peer) {
		int rc = receive_identity(socket, peer, &f->fd);

		if (rc != 1)
			return rc;
	}
	return receive_frames(socket, ZMQ_DONTWAIT, f);
}

int wire_recv_within(void *socket, int ms, struct frames *f)
{
	frames_init(f);
	if (zmq_setsockopt(socket, ZMQ_RCVTIMEO, &ms, sizeof(ms)))
		return PS_ENET;
	return receive_frames(socket, 0, f);
}

/* ---- memory ------------------------------------------------------------------------------- */

static void *allocator_alloc(void *arena, size_t size)
{
	return wire_alloc(arena, size);
}

/* Frees nothing, because the decoder resets the whole arena before the next message. */
static void allocator_free(void *arena, void *p)
{
	(void)arena;
	(void)p;
}

int wire_resize(struct wire *w, size_t n_params)
{
	float *floats = NULL;

	if (n_params > WIRE_MAX_PARAMS)
		return PS_ENOMEM;
	if (n_params > 0) {
		/* until the decoder writes a misaligned frame here, this block takes only address
		 * space */
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
	w->defers = w->exact = 0;
	w->pass = (struct wire_pass){.engine = NULL};
	w->arena = (struct wire_arena){w->memory, sizeof(w->memory), 0};
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

void wire_defer(struct wire *w)
{
	w->defers = 1;
}

void wire_use_pass(struct wire *w, const struct wire_pass *pass)
{
	w->pass = *pass;
}

void wire_only_exact(struct wire *w)
{
	w->exact = 1;
}

/* ---- the scan of a header: returns NULL or the error text ------------------------------------
 *
 * For hostile input, protobuf-c may allocate many times the size of the input. Therefore this scan
 * runs before protobuf-c. The scan allocates nothing and accepts only simple messages: they have
 * one body, each known field at most once (slices at most WIRE_MAX_SLICES times), the wire types of
 * the schema, and texts in valid UTF-8 without NUL. The scan also accepts well-formed unknown
 * fields. protobuf-c copies unknown fields into its arena of WIRE_MAX_BODY_MEMORY bytes, and the
 * decoder ignores them. */

/* This struct describes the body of a header frame: its message type, and its bytes inside the
 * frame. */
struct wire_body {
	unsigned type; /* field number in the oneof, which is also the enum msg_type */
	const ProtobufCMessageDescriptor *descriptor;
	const uint8_t *data;
	size_t size;
};

enum wire_type { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

struct reader {
	const uint8_t *at, *end;
};

/* This struct describes a field in protobuf's binary format. */
struct field {
	unsigned number;
	enum wire_type wire_type;
	uint64_t varint;     /* WIRE_VARINT */
	const uint8_t *data; /* WIRE_BYTES */
	size_t size;
};

/* Reads a varint. Returns 1 if the varint is complete and has at most 64 bits. */
static int scan_varint(struct reader *r, uint64_t *value)
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

static int scan_past(struct reader *r, uint64_t n)
{
	if (n > (uint64_t)(r->end - r->at))
		return 0;
	r->at += n;
	return 1;
}

/* Reads a field. Returns 1 if the field is complete and has a number and a wire type that proto3
 * permits. */
static int scan_field(struct reader *r, struct field *f)
{
	uint64_t tag, size;

	if (!scan_varint(r, &tag) || tag > UINT32_MAX || tag >> 3 == 0)
		return 0;
	*f = (struct field){.number = (unsigned)(tag >> 3), .wire_type = (enum wire_type)(tag & 7)};
	switch (tag & 7) {
	case WIRE_VARINT:
		return scan_varint(r, &f->varint);
	case WIRE_FIXED64:
		return scan_past(r, 8);
	case WIRE_FIXED32:
		return scan_past(r, 4);
	case WIRE_BYTES:
		if (!scan_varint(r, &size))
			return 0;
		f->data = r->at;
		f->size = (size_t)size;
		return scan_past(r, size);
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

/* Returns the largest varint that a field of this type can hold. The scan refuses larger values,
 * because protobuf-c would truncate them silently. */
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

/* Checks that a known field has the wire type of the schema and occurs only once. Sets the bit of
 * the field in *seen, and sets *row to the descriptor of the field. For an unknown field, which may
 * be of a newer schema, the function sets *row to NULL; the decoder ignores such a field, but the
 * copy of protobuf-c counts towards the memory limit of the message. */
static const char *check_field(const ProtobufCMessageDescriptor *message, const struct field *f,
	uint64_t *seen, const ProtobufCFieldDescriptor **row)
{
	*row = f->number < 64 ? wire_field_of(message, f->number) : NULL;
	if (!*row)
		return NULL;
	if (f->wire_type != wire_type_of((*row)->type))
		return "a field has another wire type than the schema";
	const uint64_t bit = (uint64_t)1 << f->number;
	if (*seen & bit && (*row)->label != PROTOBUF_C_LABEL_REPEATED)
		return "a field is given twice";
	*seen |= bit;
	if (f->varint > varint_limit((*row)->type))
		return "number too large for its field";
	return (*row)->type == PROTOBUF_C_TYPE_STRING ? check_text(f->data, f->size) : NULL;
}

/* Checks a message inside a body. In the schema, no inner message has messages of its own, so the
 * function refuses such messages and does not recurse. */
static const char *check_inner(const ProtobufCMessageDescriptor *message, const struct field *outer)
{
	struct reader r = {outer->data, outer->data + outer->size};
	uint64_t seen = 0;

	while (r.at < r.end) {
		const ProtobufCFieldDescriptor *row;
		struct field f;

		if (!scan_field(&r, &f))
			return "truncated or malformed field";
		const char *why = check_field(message, &f, &seen, &row);
		if (why)
			return why;
		if (row && row->type == PROTOBUF_C_TYPE_MESSAGE)
			return "messages nested too deep";
	}
	return NULL;
}

/* Finds the body in the header frame and sets *body. Returns NULL or the error text. */
static const char *check_envelope(const uint8_t *data, size_t size, struct wire_body *body)
{
	struct reader r = {data, data + size};
	struct field f;

	if (size > WIRE_MAX_HEADER)
		return "header frame is too long";
	if (!scan_field(&r, &f) || f.wire_type != WIRE_BYTES || r.at != r.end)
		return "header is not one protobuf Message with one body";
	*body = (struct wire_body){f.number, wire_descriptor(f.number), f.data, f.size};
	if (!body->descriptor)
		return "unknown message type";
	return NULL;
}

/* Checks every field of the body and of its inner messages. Returns NULL or the error text. */
static const char *check_body(const struct wire_body *body)
{
	struct reader r = {body->data, body->data + body->size};
	uint64_t seen = 0;
	size_t repeated = 0;

	while (r.at < r.end) {
		const ProtobufCFieldDescriptor *row;
		struct field f;

		if (!scan_field(&r, &f))
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

/* Finds the first field with this number and wire type. Returns 0 if there is no such field, or if
 * malformed bytes come before it. */
static int peek(const struct wire_body *body, unsigned number, enum wire_type type, struct field *f)
{
	struct reader r = {body->data, body->data + body->size};

	while (r.at < r.end && scan_field(&r, f))
		if (f->number == number && f->wire_type == type)
			return 1;
	return 0;
}

/* Returns the value of varint field `number`, or 0 if there is no such field or malformed bytes
 * come before it. */
static uint64_t peek_number(const struct wire_body *body, unsigned number)
{
	struct field f;

	return peek(body, number, WIRE_VARINT, &f) ? f.varint : 0;
}

/* Returns the bytes of text field `number`, which are not checked yet. Sets *size to 0 if there is
 * no such field, or if malformed bytes come before it. */
static const uint8_t *peek_bytes(const struct wire_body *body, unsigned number, size_t *size)
{
	struct field f;
	int found = peek(body, number, WIRE_BYTES, &f);

	*size = found ? f.size : 0;
	return found ? f.data : body->data;
}

/* ---- values: the functions return 0 if a value is out of range ------------------------------- */

/* Names, devices, hosts and models appear in log lines, so they must not have control
 * characters. */
int wire_is_line(const char *text)
{
	for (; *text; text++) {
		unsigned char c = (unsigned char)text[0], after = (unsigned char)text[1];

		if (c < 0x20 || c == 0x7f || (c == 0xc2 && after < 0xa0)) /* C0, DEL, C1 */
			return 0;
	}
	return 1;
}

static int read_line(const char *from, char *to, size_t size)
{
	size_t n = strlen(from);

	if (n >= size || !wire_is_line(from))
		return 0;
	memcpy(to, from, n + 1);
	return 1;
}

static int read_text(const struct wire_field *row, const char *from, void *to)
{
	memcpy(to, &from, sizeof(from));
	return strlen(from) <= row->max;
}

static int read_number(const struct wire_field *row, const void *from, void *to)
{
	uint64_t wide;
	uint32_t narrow;

	memcpy(to, from, row->size);
	if (row->size == sizeof(wide)) {
		memcpy(&wide, from, sizeof(wide));
	} else {
		memcpy(&narrow, from, sizeof(narrow));
		wide = narrow;
	}
	return wide >= row->min && wide <= row->max;
}

static int read_code(const struct wire_field *row, const void *from, void *to)
{
	uint32_t code;

	memcpy(&code, from, sizeof(code));
	if (code < row->min || !err_known(-(long)code))
		return 0;
	int status = -(int)code;
	memcpy(to, &status, sizeof(status));
	return 1;
}

static const void *pointer_at(const void *where)
{
	const void *p;

	memcpy(&p, where, sizeof(p));
	return p;
}

/* Copies one value from protobuf-c's struct to the struct of msg.h. */
static int read_value(const struct wire_field *row, const void *from, void *to)
{
	switch (row->kind) {
	case WIRE_NUMBER:
		return read_number(row, from, to);
	case WIRE_CODE:
		return read_code(row, from, to);
	case WIRE_LINE:
		return read_line(pointer_at(from), to, row->size);
	case WIRE_OWN_NUMBER:
	case WIRE_OWN_TEXT:
		return 1;
	case WIRE_TEXT:
		return read_text(row, pointer_at(from), to);
	default:
		memcpy(to, from, row->size);
		return 1;
	}
}

/* ---- messages: the functions return NULL or the error text ----------------------------------- */

static const char *read_inner(const struct wire_field *rows, const ProtobufCMessage *from, void *to)
{
	if (!from)
		return NULL;
	for (const struct wire_field *row = rows; row->kind != WIRE_END; row++) {
		const char *value = (const char *)from + wire_find(from, row)->offset;

		if (!read_value(row, value, (char *)to + row->offset))
			return row->why;
	}
	return NULL;
}

/* Returns the values of a frame. If the frame is not aligned for floats, the function copies the
 * values to `spare`. */
static const float *frame_floats(zmq_msg_t *frame, float *spare)
{
	void *data = zmq_msg_data(frame);

	if ((uintptr_t)data % alignof(float) == 0)
		return data;
	memcpy(spare, data, zmq_msg_size(frame));
	return spare;
}

static void use_results(struct slice *s, const struct chunk *of)
{
	s->peak = of->peak;
	s->squared = of->squared;
	s->squares = of->squares;
}

/* Sets the data of a slice, and its peak and squares, which only gradients need. Returns the
 * checksum of its values. If the frame arrived as a chunk before the PUSH, `chunk` has the results
 * of the pass over its values on arrival. If `chunk` is NULL, the function makes this pass. */
static uint64_t take_values(struct wire *w, zmq_msg_t *frame, const struct chunk *chunk,
	enum msg_type type, struct slice *s)
{
	float *to = w->floats + s->offset;
	struct chunk whole;

	s->squared = 0;
	if (s->encoding == ENCODING_BF16) {
		wire_unpack_bf16(to, zmq_msg_data(frame), s->count, !chunk, &whole, &w->pass);
		s->data = to;
		/* of a chunk, use only the checksum: its other results are those of its bytes as
		 * float32 */
		use_results(s, &whole);
		return chunk ? chunk->xxh3 : whole.xxh3;
	}
	s->data = frame_floats(frame, to);
	if (!chunk && type != MSG_PUSH)
		return wire_checksum(s->data, s->count);
	if (!chunk) {
		wire_pass_over(s->data, s->count, &whole, &w->pass);
		chunk = &whole;
	}
	use_results(s, chunk);
	return chunk->xxh3;
}

/* If a check returns this error text, wire_decode returns PS_EAGAIN instead of PS_EPROTO. */
static const char foreign[] = "a chunk is of another push";

/* Checks one slice. `from` is the end of the slice before this one. */
static const char *check_slice(struct wire *w, uint64_t from, zmq_msg_t *frame,
	const struct chunk *chunk, enum msg_type type, struct slice *s)
{
	if (s->count > w->n_params || s->offset > w->n_params - s->count)
		return "slice lies outside the model";
	if (s->offset < from)
		return "slices overlap or are out of order";
	if (s->encoding == ENCODING_BF16 && w->exact)
		return "this run accepts no bfloat16, because its optimizer needs exact gradients";
	if (zmq_msg_size(frame) != s->count * encoding_bytes(s->encoding))
		return chunk ? foreign : "tensor frame has not `count` values";
	if (type == MSG_PARAMS && w->defers)
		return NULL;
	if (take_values(w, frame, chunk, type, s) == s->xxh3)
		return NULL;
	return chunk ? foreign : "wrong tensor checksum";
}

int wire_values(struct frames *f, const struct msg_params *p, float *to)
{
	for (uint32_t i = 0; i < p->slices.n; i++) {
		const struct slice *s = &p->slices.slice[i];
		const void *data = zmq_msg_data(&f->frame[1 + i]);
		size_t size = s->count * encoding_bytes(s->encoding);
		int is_bf16 = s->encoding == ENCODING_BF16;

		if (s->xxh3 != (to && !is_bf16 ? wire_copy_hash(to + s->offset, data, size)
					       : wire_hash(data, size)))
			return PS_EPROTO;
		if (to && is_bf16)
			(void)bf16_unpack(to + s->offset, data, s->count);
	}
	return PS_OK;
}

/* Reads the slices of a message from `n` protobuf structs, to which `from` points. */
static const char *read_slices(struct wire *w, struct frames *f, const struct wire_field *rows,
	ProtobufCMessage *const *from, size_t n, enum msg_type type, struct slices *to)
{
	uint64_t end = 0;

	if (n > WIRE_MAX_SLICES || f->n != 1 + n)
		return "not one tensor frame per slice";
	for (size_t i = 0; i < n; i++) {
		struct slice *s = &to->slice[i];
		const char *why = read_inner(rows, from[i], s);

		if (!why)
			why = check_slice(w, end, &f->frame[1 + i],
				i < f->n_chunks ? &f->chunk[i] : NULL, type, s);
		if (why)
			return why;
		end = s->offset + s->count;
	}
	to->n = (uint32_t)n;
	return NULL;
}

/* Returns 1 if the slices contain every value exactly once, as PARAMS must. */
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

static const char *read_field(struct wire *w, struct frames *f, const struct wire_field *row,
	const ProtobufCMessage *from, struct msg *m)
{
	const ProtobufCFieldDescriptor *field = wire_find(from, row);
	const char *value = (const char *)from + field->offset;
	char *to = (char *)m + row->offset;
	size_t n;

	switch (row->kind) {
	case WIRE_SLICES:
		memcpy(&n, (const char *)from + field->quantifier_offset, sizeof(n));
		return read_slices(
			w, f, row->inner, pointer_at(value), n, m->type, (struct slices *)to);
	case WIRE_INNER:
		return read_inner(row->inner, pointer_at(value), to);
	default:
		return read_value(row, value, to) ? NULL : row->why;
	}
}

static const char *read_message(
	struct wire *w, struct frames *f, const ProtobufCMessage *from, struct msg *m)
{
	const struct wire_message *message = &wire_messages[m->type];
	const char *why = NULL;

	for (const struct wire_field *row = message->fields; row->kind != WIRE_END && !why; row++)
		why = read_field(w, f, row, from, m);
	if (!why && f->n > 1 && m->type != MSG_PUSH && m->type != MSG_PARAMS)
		why = "tensor frames without slices";
	if (!why && m->type == MSG_PARAMS && !covers(&m->params.slices, w->n_params))
		why = "PARAMS does not cover the model";
	return why || !message->rule ? why : message->rule(m);
}

static const char *decode(
	struct wire *w, struct frames *f, const struct wire_body *body, struct msg *m)
{
	ProtobufCAllocator allocator = {allocator_alloc, allocator_free, &w->arena};
	const char *why = check_body(body);

	if (why)
		return why;
	w->arena.used = 0;
	ProtobufCMessage *unpacked =
		protobuf_c_message_unpack(body->descriptor, &allocator, body->size, body->data);
	if (!unpacked)
		return "protobuf does not parse within its memory limit";
	memset(m, 0, sizeof(*m)); /* fields that the message lacks are zero */
	m->type = (enum msg_type)body->type;
	return read_message(w, f, unpacked, m);
}

/* ---- versions: the functions return an error text, or NULL ---------------------------------- */

/* Returns 1 if the `n` bytes of `name` are one of the words in `list`. */
static int is_among(const char *name, size_t n, const char *list)
{
	while (*list) {
		size_t word = strcspn(list, " ");

		if (word == n && memcmp(list, name, n) == 0)
			return 1;
		list += word + strspn(list + word, " ");
	}
	return 0;
}

static int is_feature_name(const char *name, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!memchr("abcdefghijklmnopqrstuvwxyz0123456789-", name[i], 37))
			return 0;
	return n > 0 && n <= WIRE_MAX_NAME;
}

/* Checks the features that a peer requires. `names` has `size` bytes, which are the names of
 * features with one blank between two names. */
static const char *check_features(struct wire *w, const char *names, size_t size)
{
	for (size_t at = 0, n; size > 0 && at <= size; at += n + 1) {
		const char *name = names + at, *blank = memchr(name, ' ', size - at);

		n = blank ? (size_t)(blank - name) : size - at;
		if (!is_feature_name(name, n))
			return "the name of a required feature is malformed";
		if (!is_among(name, n, WIRE_FEATURES)) {
			snprintf(w->why, sizeof(w->why),
				"feature \"%.*s\" is required and not supported here: update the "
				"older of server and worker",
				(int)n, name);
			return w->why;
		}
	}
	return NULL;
}

static const char *check_versions(struct wire *w, uint64_t newest, uint64_t oldest)
{
	if (oldest == 0)
		oldest = newest;
	if (oldest <= newest && oldest <= WIRE_PROTOCOL && newest >= WIRE_OLDEST_PROTOCOL)
		return NULL;
	snprintf(w->why, sizeof(w->why),
		"protocol %" PRIu64 " is not supported here, only %u to %u: install releases at "
		"most one protocol version apart",
		newest, WIRE_OLDEST_PROTOCOL, WIRE_PROTOCOL);
	return w->why;
}

/* Checks the protocol versions and required features of a HELLO or WELCOME. The decoder makes this
 * check first, because the rest of the message may follow the rules of a newer version. */
static const char *check_greeting(struct wire *w, const struct wire_body *body)
{
	static const struct {
		enum msg_type type;
		unsigned newest, oldest, requires;
	} row[] = {{MSG_HELLO, HELLO_PROTOCOL, HELLO_OLDEST, HELLO_REQUIRES},
		{MSG_WELCOME, WELCOME_PROTOCOL, WELCOME_OLDEST, WELCOME_REQUIRES}};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		if (body->type != (unsigned)row[i].type)
			continue;
		uint64_t newest = peek_number(body, row[i].newest);
		const char *why = check_versions(w, newest, peek_number(body, row[i].oldest));
		size_t size;

		w->peer_protocol = newest;
		const uint8_t *names = peek_bytes(body, row[i].requires, &size);
		return why ? why : check_features(w, (const char *)names, size);
	}
	return NULL;
}

uint64_t wire_peer_protocol(const struct wire *w)
{
	return w->peer_protocol;
}

int wire_has_type(struct frames *f, enum msg_type type)
{
	struct wire_body body;

	return f->n > 0 &&
	       !check_envelope(zmq_msg_data(&f->frame[0]), zmq_msg_size(&f->frame[0]), &body) &&
	       body.type == (unsigned)type;
}

const char *wire_key(struct frames *f)
{
	if (f->n == 0 || f->key)
		return f->key;
	return zmq_msg_gets(&f->frame[0], "User-Id");
}

int wire_is_chunk(struct frames *f)
{
	return f->n == 2 && zmq_msg_size(&f->frame[0]) == 1 &&
	       *(const unsigned char *)zmq_msg_data(&f->frame[0]) == 0;
}

size_t wire_chunks_wanted(struct frames *f)
{
	struct wire_body body;

	if (f->n == 0 ||
		check_envelope(zmq_msg_data(&f->frame[0]), zmq_msg_size(&f->frame[0]), &body))
		return 0;
	uint64_t n = body.type == MSG_PUSH ? peek_number(&body, PUSH_CHUNKS) : 0;
	return n < WIRE_MAX_CHUNKS ? (size_t)n : WIRE_MAX_CHUNKS;
}

uint64_t wire_push_seq(struct frames *f)
{
	struct wire_body body;

	if (f->n == 0 ||
		check_envelope(zmq_msg_data(&f->frame[0]), zmq_msg_size(&f->frame[0]), &body))
		return 0;
	return body.type == MSG_PUSH ? peek_number(&body, PUSH_SEQ) : 0;
}

uint64_t wire_params_parts(struct frames *f, uint64_t *request)
{
	struct wire_body body;

	if (f->n != 2 ||
		check_envelope(zmq_msg_data(&f->frame[0]), zmq_msg_size(&f->frame[0]), &body) ||
		body.type != MSG_PARAMS)
		return 0;
	*request = peek_number(&body, PARAMS_REQUEST);
	return peek_number(&body, PARAMS_PARTS);
}

int wire_lane_ref(struct frames *f, struct lane_ref *ref)
{
	struct wire_body body;

	if (f->n != 1 ||
		check_envelope(zmq_msg_data(&f->frame[0]), zmq_msg_size(&f->frame[0]), &body))
		return 0;
	if (body.type == MSG_PUSH) {
		ref->slot = peek_number(&body, PUSH_LANE_SLOT);
		ref->count = peek_number(&body, PUSH_LANE_COUNT);
		return ref->slot-- > 0;
	}
	if (body.type != MSG_PARAMS)
		return 0;
	ref->hold = peek_number(&body, PARAMS_LANE_HOLD);
	ref->ticket = peek_number(&body, PARAMS_LANE_TICKET);
	ref->buffer = peek_number(&body, PARAMS_LANE_BUFFER);
	return ref->hold-- > 0;
}

int wire_check_chunk(zmq_msg_t *frame, struct chunk *chunk, const struct wire_pass *pass)
{
	size_t size = zmq_msg_size(frame);
	void *data = zmq_msg_data(frame);

	if (size == 0 || size % sizeof(float) != 0)
		return PS_EPROTO;
	if ((uintptr_t)data % alignof(float) == 0)
		wire_pass_over(data, size / sizeof(float), chunk, pass);
	else
		*chunk = (struct chunk){.xxh3 = wire_hash(data, size)};
	return PS_OK;
}

int wire_decode(struct wire *w, struct frames *f, struct msg *m, const char **why)
{
	struct wire_body body;
	const char *reason = "no header frame";
	int rc = PS_EPROTO;

	if (f->n > 0)
		reason = check_envelope(
			zmq_msg_data(&f->frame[0]), zmq_msg_size(&f->frame[0]), &body);
	if (!reason) {
		reason = check_greeting(w, &body);
		rc = reason ? PS_EVERSION : PS_EPROTO;
	}
	if (!reason)
		reason = decode(w, f, &body, m);
	if (!reason) {
		PS_ASSERT(m->type > 0 && m->type < MSG_TYPES); /* invariant 1 */
		return PS_OK;
	}
	m->type = (enum msg_type)0;
	if (why)
		*why = reason;
	return reason == foreign ? PS_EAGAIN : rc;
}
