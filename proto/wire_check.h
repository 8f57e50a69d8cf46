/*
 * wire_check.h - judge the bytes of a header frame before protobuf-c sees them.
 *
 * protobuf-c expands hostile input many times over. This scan walks the frame once, allocates
 * nothing, and lets only plain messages through: one body, each known field at most once (slices:
 * at most WIRE_MAX_SLICES times), wire types as in the schema, texts valid UTF-8 without NUL.
 * Unknown fields pass if they are well-formed. protobuf-c copies them into its arena, which is
 * limited to WIRE_MAX_BODY_MEMORY and never grows, and nobody looks at them.
 *
 * Internal to proto/. Pure. Thread: any.
 */
#ifndef PROTO_WIRE_CHECK_H
#define PROTO_WIRE_CHECK_H
#include <stddef.h>
#include <stdint.h>
#include <protobuf-c/protobuf-c.h>

/* The body of a header frame: which message, and its bytes inside the frame. */
struct wire_body {
	unsigned type; /* field number in the oneof = enum msg_type */
	const ProtobufCMessageDescriptor *descriptor;
	const uint8_t *data;
	size_t size;
};

/* Take the envelope off. NULL, or why it is refused. */
const char *wire_check_envelope(const uint8_t *data, size_t size, struct wire_body *body);
/* Check every field of the body and of the messages inside it. NULL, or why it is refused. */
const char *wire_check_body(const struct wire_body *body);
/* The varint field `number` of the body, 0 if absent or if the bytes before it make no sense. */
uint64_t wire_check_number(const struct wire_body *body, unsigned number);
/* The field of text `number`, not checked; size 0 if absent or if the bytes before it make no sense.
 */
const uint8_t *wire_check_bytes(const struct wire_body *body, unsigned number, size_t *size);

#endif
