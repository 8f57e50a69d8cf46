/* test_wire_hostile.c - tests the decoder with bytes that no correct program sends. Proves
 * invariant 1 and promise 1 of proto/wire.h: such bytes cause no allocation, no read out of bounds
 * and no abort, and decoding accepts a whole message or nothing. Covers attacks A15 and A16 of
 * docs/faults.md. */
#include "tests/support/wire_bytes.h"
#include <malloc.h>
#include "common/rng.h"
#include "proto/schema.h"
#include "tests/support/test.h"

#define MUTANTS 300000
#define SEED    77u

/* ---- the envelope ---------------------------------------------------------------------------- */

TEST(what_is_not_one_message_is_refused)
{
	static const char not_one[] = "header is not one protobuf Message with one body";
	static const char http[] = "GET / HTTP/1.1\r\n\r\n";
	struct bytes *b = bytes_fresh();

	assert_frame_refused("", 0, PS_EPROTO, not_one);
	assert_frame_refused(http, strlen(http), PS_EPROTO, not_one);
	assert_frame_refused("\x1a\x05", 2, PS_EPROTO, not_one);         /* the body is cut off */
	assert_frame_refused("\x1a\x00\x1a\x00", 4, PS_EPROTO, not_one); /* there are two bodies */
	assert_frame_refused("\x18\x00", 2, PS_EPROTO, not_one);         /* the body is a number */
	assert_frame_refused(
		"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, PS_EPROTO, not_one);
	assert_frame_refused("\x7a\x00", 2, PS_EPROTO, "unknown message type");
	assert_frame_refused("\x02\x00", 2, PS_EPROTO, not_one);
	memset(b->at, 0, WIRE_MAX_HEADER + 1);
	assert_frame_refused(b->at, WIRE_MAX_HEADER + 1, PS_EPROTO, "header frame is too long");
	assert_frame_refused(b->at, WIRE_MAX_HEADER, PS_EPROTO, not_one);
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* A message of a newer peer may contain any number of unknown fields, if they fit into the memory
 * of the decoder. */
TEST(unknown_fields_are_passed_over_at_every_level)
{
	struct bytes *b = bytes_hello();

	bytes_number(b, 31, 1);
	bytes_number(b, 31, 2);
	bytes_text(b, 32, "a text, or a message");
	bytes_number(b, 536870911, UINT64_MAX); /* the highest field number of protobuf */
	bytes_varint(b, 100 << 3 | 1);          /* a field of type fixed64 */
	bytes_put(b, "12345678", 8);
	bytes_varint(b, 101 << 3 | 5); /* a field of type fixed32 */
	bytes_put(b, "1234", 4);
	assert_accepted(MSG_HELLO, b);
	b = bytes_hello();
	bytes_text(b, 6, "\x30\x01"); /* `resume` is a Stamp with the unknown field 6 */
	assert_accepted(MSG_HELLO, b);
	b = bytes_hello();
	bytes_text(b, 5, "\x98\x06\x01"); /* `data` is a DataId with the unknown field 99 */
	assert_accepted(MSG_HELLO, b);
	b = bytes_hello();
	while (b->n < 2000)
		bytes_text(b, 99, "twenty bytes or more");
	assert_accepted(MSG_HELLO, b);
	bytes_put(b, "\x9b\x06", 2); /* the start of a group, which proto3 does not have */
	assert_refused(MSG_HELLO, b, "truncated or malformed field");
}

/* The decoder does not parse the content of an unknown field, no matter how deeply messages are
 * nested in it. */
TEST(unknown_messages_are_not_entered)
{
	static struct bytes nested[2];
	int which = 0;

	for (int depth = 0; depth < 1000; depth++) {
		struct bytes *outer = &nested[!which];

		outer->n = 0;
		bytes_bytes(outer, 20, nested[which].at, nested[which].n);
		which = !which;
	}
	bytes_number(&nested[which], 3, WEIGHTS_CURRENT);
	assert_accepted(MSG_PULL, &nested[which]);
}

TEST(malformed_fields_are_refused)
{
	static const char cut[] = "truncated or malformed field";
	struct bytes *b = bytes_pull();

	assert_accepted(MSG_PULL, b);
	bytes_number(b, 3, WEIGHTS_CURRENT);
	assert_refused(MSG_PULL, b, "a field is given twice");
	b = bytes_pull();
	bytes_number(b, 1, 1);
	assert_refused(MSG_PULL, b, "a field has another wire type than the schema");
	b = bytes_pull();
	bytes_put(b, "\x10", 1);
	assert_refused(MSG_PULL, b, cut);
	b = bytes_pull();
	/* a varint with 65 bits */
	bytes_put(b, "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 11);
	assert_refused(MSG_PULL, b, cut);
	b = bytes_pull();
	bytes_put(b, "\x0a\x7f", 2);
	assert_refused(MSG_PULL, b, cut);
	b = bytes_pull();
	bytes_put(b, "\x0b\x0c", 2); /* groups of proto2 */
	assert_refused(MSG_PULL, b, cut);
	b = bytes_pull();
	bytes_put(b, "\x00\x00", 2); /* a field with number 0 */
	assert_refused(MSG_PULL, b, cut);
	b = bytes_pull();
	bytes_text(b, 1, "\x0a"); /* the stamp has an incomplete field */
	assert_refused(MSG_PULL, b, cut);
}

/* ---- amplification --------------------------------------------------------------------------- */

static size_t heap(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

TEST(amplifying_headers_allocate_nothing)
{
	static const char memory[] = "protobuf does not parse within its memory limit";
	static struct bytes flood[4];
	size_t before;

	while (flood[0].n < WIRE_MAX_HEADER - 16) /* unknown fields of two bytes each */
		bytes_put(&flood[0], "\x78\x00", 2);
	while (flood[1].n < WIRE_MAX_HEADER - 16) /* empty slices of two bytes each */
		bytes_put(&flood[1], "\x3a\x00", 2);
	while (flood[2].n < WIRE_MAX_HEADER - 16) /* the same stamp many times */
		bytes_put(&flood[2], "\x0a\x00", 2);
	while (flood[3].n < WIRE_MAX_HEADER - 16) /* a stamp that consists of unknown fields */
		bytes_put(&flood[3], "\x78\x00", 2);
	struct bytes *stamp = bytes_fresh();
	bytes_bytes(stamp, 1, flood[3].at, flood[3].n);
	before = heap();
	assert_refused(MSG_PULL, &flood[0], memory);
	assert_refused(MSG_PUSH, stamp, memory);
	assert_refused(MSG_PUSH, &flood[1], "too many slices");
	assert_refused(MSG_PUSH, &flood[2], "a field is given twice");
	assert_int_equal(heap(), before);
}

TEST(the_largest_honest_header_fits_the_memory_limit)
{
	static struct msg m, back;
	static const float zero[WIRE_MAX_SLICES];
	struct frames f;
	const char *why = NULL;
	size_t before;

	m.type = MSG_PUSH;
	m.push.slices.n = WIRE_MAX_SLICES;
	for (uint32_t i = 0; i < WIRE_MAX_SLICES; i++)
		m.push.slices.slice[i] = (struct slice){
			.offset = i, .count = 1, .encoding = ENCODING_F32, .data = zero};
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	before = heap();
	if (wire_decode(bytes_wire, &f, &back, &why))
		fail_msg("%s", why);
	assert_int_equal(heap(), before);
	frames_release(&f);
}

/* ---- mutants --------------------------------------------------------------------------------- */

/* Checks that each field of a decoded message has a value that its row of the schema allows. */
static void assert_fits(const struct wire_field *row, const void *base)
{
	const char *at = (const char *)base + row->offset;
	const struct slices *s = (const struct slices *)(const void *)at;
	uint64_t wide = 0, end = 0;
	uint32_t narrow;

	if (row->kind == WIRE_NUMBER && row->size == 8) {
		memcpy(&wide, at, 8);
		assert_in_range(wide, row->min, row->max);
	} else if (row->kind == WIRE_NUMBER) {
		memcpy(&narrow, at, 4);
		assert_in_range(narrow, row->min, row->max);
	} else if (row->kind == WIRE_LINE) {
		assert_non_null(memchr(at, 0, row->size));
	} else if (row->kind == WIRE_SLICES) {
		for (uint32_t i = 0; i < s->n; i++) {
			assert_true(s->slice[i].offset >= end && s->slice[i].count > 0);
			end = s->slice[i].offset + s->slice[i].count;
			assert_true(end <= BYTES_PARAMS);
		}
	}
}

static struct bytes *sample_message(unsigned type)
{
	struct bytes *b = bytes_fresh();

	switch (type) {
	case MSG_HELLO:
		bytes_number(b, 1, WIRE_PROTOCOL);
		bytes_number(b, 2, 1);
		bytes_text(b, 3, "worker one");
		bytes_text(b, 4, "cpu 2 threads");
		bytes_text(b, 5, "\x08\x64\x10\x0a\x18\x1c\x20\x1c\x28\x0a\x31\1\2\3\4\5\6\7\x08");
		bytes_text(b, 6, "\x09\1\2\3\4\5\6\7\x08\x18\x02\x20\x01\x28\x03");
		bytes_number(b, 7, 300);
		break;
	case MSG_PUSH:
		bytes_text(b, 1, "\x09\1\2\3\4\5\6\7\x08\x18\x02\x20\x01\x28\x03");
		bytes_number(b, 2, 7);
		bytes_number(b, 3, 1000);
		bytes_text(b, 4, "\x08\x01\x10\x05\x18\x02");
		bytes_number(b, 5, 100);
		bytes_number(b, 8, 2);
		bytes_number(b, 9, 3);
		break;
	case MSG_GRANT:
		bytes_number(b, 1, 7);
		bytes_number(b, 2, 1);
		bytes_text(b, 3, "\x08\x01\x10\x05\x18\x02");
		bytes_number(b, 6, 1);
		break;
	default:
		bytes_number(b, 1, 3);
		bytes_number(b, 2, 5);
		bytes_text(b, 3, "reason");
	}
	return b;
}

TEST(mutants_are_refused_or_in_range)
{
	static const unsigned types[] = {MSG_HELLO, MSG_PUSH, MSG_GRANT, MSG_ERROR};
	static struct bytes whole;
	static struct msg m;
	struct rng dice = rng_seed(SEED, RNG_SIM, 0);
	int accepted = 0;

	printf("# seed %u\n", SEED);
	for (int i = 0; i < MUTANTS; i++) {
		struct bytes *b = sample_message(types[i % 4]);
		size_t size = b->n - (rng_below(&dice, 8) ? 0 : rng_below(&dice, b->n));

		for (uint64_t k = rng_below(&dice, 4); k > 0; k--)
			b->at[rng_below(&dice, b->n)] = (unsigned char)rng_next(&dice);
		whole.n = 0;
		bytes_bytes(&whole, types[i % 4], b->at, size);
		if (bytes_decode(whole.at, whole.n, &m, NULL))
			continue;
		accepted++;
		for (const struct wire_field *row = wire_messages[m.type].fields;
			row->kind != WIRE_END; row++)
			assert_fits(row, &m);
	}
	assert_true(accepted > MUTANTS / 10 && accepted < MUTANTS * 9 / 10);
}

TEST_GROUP(bytes_set_up, bytes_tear_down)
