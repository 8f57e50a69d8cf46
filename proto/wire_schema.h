/*
 * wire_schema.h - what decoder, encoder and scan share of protobuf-c: the schema's descriptors,
 * and the memory that it may use.
 *
 * Internal to proto/; wire.c implements it. Thread: any; an arena belongs to its owner.
 */
#ifndef PROTO_WIRE_SCHEMA_H
#define PROTO_WIRE_SCHEMA_H
#include <stddef.h>
#include <protobuf-c/protobuf-c.h>
#include "proto/wire_fields.h"

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
