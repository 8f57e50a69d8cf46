/*
 * schema.h - the one table of what every field of every message may be, and where it lives in struct
 * msg; decoder and encoder are loops over it. With it, what both share of protobuf-c: descriptors,
 * and the memory that it may use.
 *
 * Internal to proto/. Constant data and pure functions. Thread: any; an arena belongs to its owner.
 */
#ifndef PROTO_SCHEMA_H
#define PROTO_SCHEMA_H
#include <stddef.h>
#include <stdint.h>
#include <protobuf-c/protobuf-c.h>
#include "proto/msg.h"

enum wire_kind {
	WIRE_END,        /* the row after the last */
	WIRE_NUMBER,     /* integer, enum or bool of `size` bytes, in [least, most] */
	WIRE_REAL,       /* float or double: any value, the core judges it */
	WIRE_CODE,       /* status: on the wire a positive number, here a negative PS_E* */
	WIRE_LINE,       /* char[size]: text without control characters */
	WIRE_TEXT,       /* const char *, borrowed */
	WIRE_INNER,      /* a struct with rows of its own; absent on the wire: all zero */
	WIRE_SLICES,     /* struct slices, each slice with rows of its own */
	WIRE_OWN_NUMBER, /* `most`, of every sender of this build; decode.c judges a peer's */
	WIRE_OWN_TEXT,   /* WIRE_REQUIRES, likewise */
};

/* Field numbers that decode.c reads before anything else. */
enum {
	HELLO_PROTOCOL = 1,
	HELLO_OLDEST = 11,
	HELLO_REQUIRES = 12,
	PUSH_CHUNKS = 12,
	WELCOME_PROTOCOL = 22,
	WELCOME_OLDEST = 23,
	WELCOME_REQUIRES = 24,
};

struct wire_field {
	enum wire_kind kind;
	unsigned number; /* field number in cnnps.proto */
	size_t offset;   /* in struct msg, or in the inner struct */
	size_t size;     /* bytes here */
	uint64_t least, most;
	const struct wire_field *inner;
	const char *why; /* said when it is refused */
};

struct wire_message {
	const struct wire_field *fields;
	/* What single fields cannot say: NULL, or why the message is refused. May be NULL. */
	const char *(*rule)(const struct msg *m);
};

extern const struct wire_message wire_messages[MSG_TYPES]; /* row 0 is unused */

/* The body of message type `type` (enum msg_type), NULL if there is none. */
const ProtobufCMessageDescriptor *wire_descriptor(unsigned type);
/* Where `message` (of the schema) keeps the field of `row`. */
const ProtobufCFieldDescriptor *wire_find(
	const ProtobufCMessage *message, const struct wire_field *row);

/* Memory that is handed out from one end and free again all at once when `used` becomes 0. */
struct wire_arena {
	unsigned char *memory; /* aligned to max_align_t */
	size_t size, used;     /* bytes */
};

/* NULL when the arena is used up. */
void *wire_alloc(struct wire_arena *a, size_t size);

#endif
