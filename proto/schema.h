/*
 * schema.h - the table of all fields, which has for each field of each message its range and its
 * place in struct msg. Decoder and encoder are loops over this table. This header also declares the
 * descriptors and the bounded memory that decoder and encoder need for protobuf-c.
 *
 * Besides tests, only files of proto/ include this header. Any thread may call the functions, but
 * an arena belongs to its owner.
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
	WIRE_REAL,   /* float or double: decode.c accepts any value, and the core checks it */
	/* a status, which is a positive number in the message and a negative PS_E* in the struct */
	WIRE_CODE,
	WIRE_LINE, /* char[size]: text without control characters */
	WIRE_TEXT, /* const char *, borrowed */
	/* a struct with rows of its own; all zeros if the message lacks the field */
	WIRE_INNER,
	WIRE_SLICES,     /* struct slices, with rows for the fields of a slice */
	WIRE_OWN_NUMBER, /* this build always sends `max`; decode.c checks the value of a peer */
	/* the features that the message requires (encode.c); decode.c checks the text of a peer */
	WIRE_OWN_TEXT,
};

/* bytes of a routing id that libzmq has assigned: a zero byte, then 32 bits */
#define WIRE_PEER_ID 5

/* These are the numbers of the fields that decode.c reads before all other fields. */
enum {
	HELLO_PROTOCOL = 1,
	HELLO_OLDEST = 11,
	HELLO_REQUIRES = 12,
	PUSH_SEQ = 2,
	PUSH_CHUNKS = 12,
	PUSH_LANE_SLOT = 18,
	PUSH_LANE_COUNT = 19,
	PARAMS_LANE_HOLD = 7,
	PARAMS_LANE_TICKET = 8,
	PARAMS_LANE_BUFFER = 9,
	PARAMS_PARTS = 10,
	PARAMS_REQUEST = 1,
	WELCOME_PROTOCOL = 22,
	WELCOME_OLDEST = 23,
	WELCOME_REQUIRES = 24,
};

struct wire_field {
	enum wire_kind kind;
	unsigned number; /* field number in cnnps.proto */
	size_t offset;   /* offset of the value in struct msg or in the inner struct */
	size_t size;     /* bytes of the value in that struct */
	uint64_t min, max;
	const struct wire_field *inner;
	const char *why; /* error text if decode.c refuses the value */
};

struct wire_message {
	const struct wire_field *fields;
	/* Checks the rules of this message that concern several fields. Returns NULL or an error
	 * text. `rule` is NULL if the message has no such rules. */
	const char *(*rule)(const struct msg *m);
};

/* indexed by enum msg_type; row 0 is unused */
extern const struct wire_message wire_messages[MSG_TYPES];

/* Returns the descriptor of message type `type` (enum msg_type), or NULL if there is no such
 * type. */
const ProtobufCMessageDescriptor *wire_descriptor(unsigned type);
/* Returns protobuf-c's descriptor of field `number`, or NULL if the message has no such field. */
const ProtobufCFieldDescriptor *wire_field_of(
	const ProtobufCMessageDescriptor *message, unsigned number);
/* Returns protobuf-c's descriptor of the field in `message` that `row` describes. */
const ProtobufCFieldDescriptor *wire_find(
	const ProtobufCMessage *message, const struct wire_field *row);

/* An arena is a bump allocator: wire_alloc takes the memory in order from the start, and setting
 * `used` to 0 frees all of it. */
struct wire_arena {
	unsigned char *memory; /* aligned to max_align_t */
	/* size: bytes of `memory`; used: bytes that wire_alloc has given out */
	size_t size, used;
};

/* Takes `size` bytes from the arena. Returns NULL if the arena is full. */
void *wire_alloc(struct wire_arena *a, size_t size);

#endif
