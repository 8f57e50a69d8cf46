/* test_wire.c - proves the invariants numbered in proto/wire.h: hostile bytes do no harm, decoding
 * accepts a whole message or nothing, and decode(encode(m)) is m. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/rng.h"
#include "proto/schema.h"
#include "proto/wire.h"
#include "tests/support/test.h"

#define N_PARAMS 5000u
#define ROUNDS   2000
#define SEED     20240511u

static float values[N_PARAMS];
static struct wire *wire;
static struct rng dice;

static int set_up_wire(void **state)
{
	(void)state;
	dice = rng_seed(SEED, RNG_SIM, 0);
	printf("# seed %u\n", SEED);
	for (size_t i = 0; i < N_PARAMS; i++)
		values[i] = (float)rng_unit(&dice);
	return wire_new(&wire, N_PARAMS);
}

static int tear_down_wire(void **state)
{
	(void)state;
	wire_free(&wire);
	return 0;
}

TEST(the_largest_frame_has_room_for_the_weights_and_for_every_header)
{
	assert_int_equal(wire_max_frame(1), WIRE_MAX_HEADER + WIRE_FRAME_SLACK);
	assert_int_equal(wire_max_frame(16384), WIRE_MAX_HEADER + WIRE_FRAME_SLACK);
	assert_int_equal(wire_max_frame(16385), WIRE_MAX_HEADER + WIRE_FRAME_SLACK + 4);
	assert_int_equal(wire_max_frame(WIRE_MAX_PARAMS), (1ull << 30) + WIRE_FRAME_SLACK);
}

/* ---- random messages, which the table of all fields describes -------------------------------- */

static uint64_t edge_or_any(uint64_t min, uint64_t max)
{
	uint64_t span = max - min;

	switch (rng_below(&dice, 4)) {
	case 0:
		return min;
	case 1:
		return max;
	default:
		return min + (span == UINT64_MAX ? rng_next(&dice) : rng_below(&dice, span + 1));
	}
}

static void random_slices(struct slices *s, int cover)
{
	uint64_t at = 0;

	while (at < N_PARAMS && s->n < WIRE_MAX_SLICES) {
		uint64_t gap = cover ? 0 : rng_below(&dice, 40);
		uint64_t left = N_PARAMS - at;

		if (gap >= left)
			return;
		uint64_t n = cover && s->n + 1 == WIRE_MAX_SLICES
				     ? left
				     : 1 + rng_below(&dice, left - gap);
		s->slice[s->n++] = (struct slice){.offset = at + gap,
			.count = n,
			.encoding = ENCODING_F32,
			.data = values + at + gap};
		at += gap + n;
	}
}

static void random_field(const struct wire_field *row, void *base, enum msg_type type)
{
	char *to = (char *)base + row->offset;
	uint64_t wide = edge_or_any(row->min, row->max);
	uint32_t narrow = (uint32_t)wide;
	int status = -(int)(1 + rng_below(&dice, 26));
	static const char *const text = "{\"loss\": 0.25, \"name\": \"\xc3\xa9t\xc3\xa9\"}\n";

	switch (row->kind) {
	case WIRE_NUMBER:
		memcpy(to, row->size == 8 ? (void *)&wide : (void *)&narrow, row->size);
		break;
	case WIRE_REAL:
		/* these bytes are 0.75 as a float, and 0.0005 as a double; every field accepts both
		 * of these values */
		memset(to, 0x3f, row->size);
		break;
	case WIRE_CODE:
		memcpy(to, &status, sizeof(status));
		break;
	case WIRE_LINE:
		memset(to, 'x', rng_below(&dice, row->size));
		break;
	case WIRE_TEXT:
		/* NOLINTNEXTLINE(bugprone-sizeof-expression): the pointer itself */
		memcpy(to, &text, sizeof(text));
		break;
	case WIRE_INNER:
		for (const struct wire_field *in = row->inner; in->kind != WIRE_END; in++)
			random_field(in, to, type);
		break;
	case WIRE_OWN_NUMBER:
	case WIRE_OWN_TEXT:
		break; /* not random, because the codec fills in this field */
	default:
		random_slices((struct slices *)(void *)to, type == MSG_PARAMS);
	}
}

/* Makes a random message that is valid by every rule of the schema. */
static void random_message(enum msg_type type, struct msg *m)
{
	do {
		memset(m, 0, sizeof(*m));
		m->type = type;
		for (const struct wire_field *row = wire_messages[type].fields;
			row->kind != WIRE_END; row++)
			random_field(row, m, type);
	} while (wire_messages[type].rule && wire_messages[type].rule(m));
}

static struct slices *slices_in(struct msg *m)
{
	return m->type == MSG_PUSH     ? &m->push.slices
	       : m->type == MSG_PARAMS ? &m->params.slices
				       : NULL;
}

static const char **text_in(struct msg *m)
{
	return m->type == MSG_STATUS    ? &m->status.text
	       : m->type == MSG_ERROR   ? &m->error.text
	       : m->type == MSG_HELLO   ? &m->hello.tensors
	       : m->type == MSG_WELCOME ? &m->welcome.tensors
					: NULL;
}

/* Checks that two messages are equal, except for pointers and for the fields that encoding and
 * decoding set. */
static void assert_same_message(struct msg *a, struct msg *b)
{
	const char **text_a = text_in(a), **text_b = text_in(b);

	assert_int_equal(a->type, b->type);
	if (slices_in(a)) {
		for (uint32_t i = 0; i < slices_in(a)->n; i++) {
			struct slice *x = &slices_in(a)->slice[i], *y = &slices_in(b)->slice[i];

			assert_memory_equal(x->data, y->data, x->count * sizeof(float));
			assert_int_equal((uintptr_t)y->data % sizeof(float), 0);
			y->data = x->data;
			x->xxh3 = y->xxh3;
			x->peak = y->peak;
		}
	} else if (text_a) {
		assert_string_equal(*text_a, *text_b);
		*text_b = *text_a;
	}
	assert_memory_equal(a, b, sizeof(*a));
}

TEST(every_message_survives_the_round_trip)
{
	static struct msg m, back;
	struct frames f;

	for (unsigned type = MSG_HELLO; type < MSG_TYPES; type++) {
		for (int i = 0; i < ROUNDS; i++) {
			const char *why = NULL;

			random_message((enum msg_type)type, &m);
			assert_int_equal(wire_encode(&m, &f), PS_OK);
			if (wire_decode(wire, &f, &back, &why))
				fail_msg("type %u: %s", type, why);
			assert_same_message(&m, &back);
			frames_release(&f);
		}
	}
}

/* Each field of the schema must have a row in the table, and each row a field in the schema. */
TEST(table_and_schema_have_the_same_fields)
{
	for (unsigned type = MSG_HELLO; type < MSG_TYPES; type++) {
		const ProtobufCMessageDescriptor *d = wire_descriptor(type);
		unsigned n = 0;

		for (const struct wire_field *row = wire_messages[type].fields;
			row->kind != WIRE_END; row++, n++)
			assert_int_equal(row->number, d->fields[n].id);
		assert_int_equal(n, d->n_fields);
	}
	assert_null(wire_descriptor(MSG_TYPES));
	assert_null(wire_descriptor(0));
}

TEST(messages_that_break_a_rule_are_not_encoded)
{
	static char text[WIRE_MAX_TEXT + 2];
	static struct msg m;
	struct frames f;

	memset(text, 'x', WIRE_MAX_TEXT + 1);
	m.type = MSG_STATUS;
	m.status = (struct msg_status){.reply = STATUS_REPLY, .text = text};
	assert_int_equal(wire_encode(&m, &f), PS_ETOOBIG);
	text[WIRE_MAX_TEXT] = 0;
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	frames_release(&f);
	memset(&m, 0, sizeof(m));
	m.type = MSG_HELLO;
	memset(m.hello.name, 'x', sizeof(m.hello.name)); /* a text without a terminating NUL */
	assert_int_equal(wire_encode(&m, &f), PS_ETOOBIG);
	memset(&m, 0, sizeof(m));
	m.type = MSG_PUSH;
	m.push.slices.n = 1; /* a slice without values */
	assert_int_equal(wire_encode(&m, &f), PS_ETOOBIG);
	m.push.slices.n = WIRE_MAX_SLICES + 1;
	assert_int_equal(wire_encode(&m, &f), PS_ETOOBIG);
}

TEST_GROUP(set_up_wire, tear_down_wire)
