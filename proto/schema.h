/*
 * schema.h - the table of all fields: for each field of each message its range and its place in
 * struct msg. Decoder and encoder are loops over this table. This header also declares what decoder
 * and encoder need of protobuf-c: descriptors and bounded memory.
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
	WIRE_END,    /* the end of the table */
	WIRE_NUMBER, /* integer, enum or bool of `size` bytes, in [min, max] */
	WIRE_REAL,   /* float or double: any value; the core checks it */
	/* status: a positive number on the wire, a negative PS_E* in the struct */
	WIRE_CODE,
	WIRE_LINE,       /* char[size]: text without control characters */
	WIRE_TEXT,       /* const char *, borrowed */
	WIRE_INNER,      /* a struct with its own rows; all zero if absent on the wire */
	WIRE_SLICES,     /* struct slices; each slice has its own rows */
	WIRE_OWN_NUMBER, /* always `max` when this build sends; decode.c checks a peer's value */
	/* always WIRE_REQUIRES when this build sends; decode.c checks the text of a peer */
	WIRE_OWN_TEXT,
};

#define WIRE_PEER_ID 5 /* bytes of libzmq's own routing id: a zero byte, then 32 bits */

/* Fields that decode.c reads before all others. */
enum {
	HELLO_PROTOCOL = 1,
	HELLO_ROLE = 2,
	HELLO_OLDEST = 11,
	HELLO_REQUIRES = 12,
	PUSH_CHUNKS = 12,
	PUSH_LANE_SLOT = 18,
	PUSH_LANE_COUNT = 19,
	PARAMS_LANE_HOLD = 7,
	PARAMS_LANE_TICKET = 8,
	PARAMS_LANE_BUFFER = 9,
	WELCOME_PROTOCOL = 22,
	WELCOME_OLDEST = 23,
	WELCOME_REQUIRES = 24,
};

struct wire_field {
	enum wire_kind kind;
	unsigned number; /* field number in cnnps.proto */
	size_t offset;   /* in struct msg, or in the inner struct */
	size_t size;     /* bytes in that struct */
	uint64_t min, max;
	const struct wire_field *inner;
	const char *why; /* error text when the field is refused */
};

struct wire_message {
	const struct wire_field *fields;
	/* Checks rules over several fields. Returns NULL, or the error text. The pointer may be
	 * NULL. */
	const char *(*rule)(const struct msg *m);
};

extern const struct wire_message wire_messages[MSG_TYPES]; /* row 0 is unused */

/* Returns the descriptor of message type `type` (enum msg_type); NULL: no such type. */
const ProtobufCMessageDescriptor *wire_descriptor(unsigned type);
/* Returns the field descriptor of `row` in `message`. */
const ProtobufCFieldDescriptor *wire_find(
	const ProtobufCMessage *message, const struct wire_field *row);

/* A bump allocator: wire_alloc takes memory from the start, and used = 0 frees all of it. */
struct wire_arena {
	unsigned char *memory; /* aligned to max_align_t */
	size_t size, used;     /* bytes */
};

/* Takes `size` bytes from the arena. NULL: the arena is full. */
void *wire_alloc(struct wire_arena *a, size_t size);

#endif
