/*
 * test_wire_hostile.c - bytes that no honest program sends: proves wire.h's invariants (1), nothing
 * allocated, read out of bounds or aborted, and (2), all or nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <malloc.h>
#include <cmocka.h>
#include "common/rng.h"
#include "proto/wire.h"
#include "proto/wire_fields.h"

#define N_PARAMS 100u
#define MUTANTS  300000
#define SEED     77u

static struct wire *wire;

static int set_up(void **state)
{
	(void)state;
	return wire_new(&wire, N_PARAMS);
}

static int tear_down(void **state)
{
	(void)state;
	wire_free(&wire);
	return 0;
}

/* ---- protobuf by hand --------------------------------------------------------------------------
 */

struct bytes {
	size_t n;
	unsigned char at[2 * WIRE_MAX_HEADER];
};

static void put(struct bytes *b, const void *data, size_t n)
{
	assert_true(n <= sizeof(b->at) - b->n);
	memcpy(b->at + b->n, data, n);
	b->n += n;
}

static void put_varint(struct bytes *b, uint64_t v)
{
	do {
		unsigned char byte = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
		put(b, &byte, 1);
		v >>= 7;
	} while (v);
}

static void put_number(struct bytes *b, unsigned field, uint64_t v)
{
	put_varint(b, field << 3);
	put_varint(b, v);
}

static void put_bytes(struct bytes *b, unsigned field, const void *data, size_t n)
{
	put_varint(b, field << 3 | 2);
	put_varint(b, n);
	put(b, data, n);
}

static void put_text(struct bytes *b, unsigned field, const char *text)
{
	put_bytes(b, field, text, strlen(text));
}

static struct bytes *fresh(void)
{
	static struct bytes b;

	b.n = 0;
	return &b;
}

/* ---- what decode says to a header frame --------------------------------------------------------
 */

static int decode(const void *data, size_t n, struct msg *m, const char **why)
{
	struct frames f;

	frames_init(&f);
	f.n = 1;
	assert_int_equal(zmq_msg_init_size(&f.frame[0], n), 0);
	if (n)
		memcpy(zmq_msg_data(&f.frame[0]), data, n);
	int rc = wire_decode(wire, &f, m, why);
	frames_release(&f);
	return rc;
}

static void assert_frame_refused(const void *data, size_t n, int status, const char *reason)
{
	static struct msg m;
	const char *why = "accepted";

	memset(&m, 0xff, sizeof(m));
	assert_int_equal(decode(data, n, &m, &why), status);
	assert_string_equal(why, reason);
	assert_int_equal(m.type, 0);
}

/* `body` as the body of a message of this type. */
static void assert_refused(enum msg_type type, const struct bytes *body, const char *reason)
{
	static struct bytes whole;

	whole.n = 0;
	put_bytes(&whole, type, body->at, body->n);
	assert_frame_refused(whole.at, whole.n, PS_EPROTO, reason);
}

static void assert_accepted(enum msg_type type, const struct bytes *body)
{
	static struct bytes whole;
	static struct msg m;
	const char *why = NULL;

	whole.n = 0;
	put_bytes(&whole, type, body->at, body->n);
	if (decode(whole.at, whole.n, &m, &why))
		fail_msg("refused: %s", why);
}

static struct bytes *hello(void)
{
	struct bytes *b = fresh();

	put_number(b, 1, WIRE_PROTOCOL);
	put_number(b, 2, ROLE_WORKER);
	return b;
}

static struct bytes *pull(void)
{
	struct bytes *b = fresh();

	put_number(b, 3, WEIGHTS_CURRENT);
	return b;
}

/* ---- the envelope ------------------------------------------------------------------------------
 */

static void what_is_not_one_message_is_refused(void **state)
{
	static const char not_one[] = "header is not one protobuf Message with one body";
	static const char http[] = "GET / HTTP/1.1\r\n\r\n";
	struct bytes *b = fresh();

	(void)state;
	assert_frame_refused("", 0, PS_EPROTO, not_one);
	assert_frame_refused(http, strlen(http), PS_EPROTO, not_one);
	assert_frame_refused("\x1a\x05", 2, PS_EPROTO, not_one);         /* body cut off */
	assert_frame_refused("\x1a\x00\x1a\x00", 4, PS_EPROTO, not_one); /* two bodies */
	assert_frame_refused("\x18\x00", 2, PS_EPROTO, not_one);         /* body is a number */
	assert_frame_refused(
		"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, PS_EPROTO, not_one);
	assert_frame_refused("\x7a\x00", 2, PS_EPROTO, "unknown message type");
	assert_frame_refused("\x02\x00", 2, PS_EPROTO, not_one);
	memset(b->at, 0, WIRE_MAX_HEADER + 1);
	assert_frame_refused(b->at, WIRE_MAX_HEADER + 1, PS_EPROTO, "header frame is too long");
}

static void another_protocol_version_is_told_so_whatever_else_it_says(void **state)
{
	static struct bytes whole;
	struct bytes *b = fresh();

	(void)state;
	put_number(b, 1, WIRE_PROTOCOL + 1);
	put_number(b, 99, 1);
	put_bytes(&whole, MSG_HELLO, b->at, b->n);
	assert_frame_refused(
		whole.at, whole.n, PS_EVERSION, "hello.protocol is a version not spoken here");
	whole.n = 0;
	put_bytes(&whole, MSG_HELLO, "", 0);
	assert_frame_refused(
		whole.at, whole.n, PS_EVERSION, "hello.protocol is a version not spoken here");
}

/* ---- fields ------------------------------------------------------------------------------------
 */

static void unknown_fields_are_refused_at_every_level(void **state)
{
	struct bytes *b = hello();

	(void)state;
	assert_accepted(MSG_HELLO, b);
	put_number(b, 9, 1);
	assert_refused(MSG_HELLO, b, "unknown field");
	b = hello();
	put_text(b, 6, "\x30\x01"); /* resume: field 6 of a Stamp */
	assert_refused(MSG_HELLO, b, "unknown field");
	b = hello();
	put_text(b, 5, "\x98\x06\x01"); /* data: field 99 of a DataId */
	assert_refused(MSG_HELLO, b, "unknown field");
}

static void malformed_fields_are_refused(void **state)
{
	static const char cut[] = "truncated or malformed field";
	struct bytes *b = pull();

	(void)state;
	assert_accepted(MSG_PULL, b);
	put_number(b, 3, WEIGHTS_CURRENT);
	assert_refused(MSG_PULL, b, "field given twice");
	b = pull();
	put_number(b, 1, 1);
	assert_refused(MSG_PULL, b, "field of another type");
	b = pull();
	put(b, "\x10", 1);
	assert_refused(MSG_PULL, b, cut);
	b = pull();
	put(b, "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 11); /* 65 bits */
	assert_refused(MSG_PULL, b, cut);
	b = pull();
	put(b, "\x0a\x7f", 2);
	assert_refused(MSG_PULL, b, cut);
	b = pull();
	put(b, "\x0b\x0c", 2); /* proto2 groups */
	assert_refused(MSG_PULL, b, cut);
	b = pull();
	put(b, "\x00\x00", 2); /* field 0 */
	assert_refused(MSG_PULL, b, cut);
	b = pull();
	put_text(b, 1, "\x0a"); /* inside the stamp */
	assert_refused(MSG_PULL, b, cut);
}

static void numbers_out_of_range_are_refused(void **state)
{
	struct bytes *b = fresh();

	(void)state;
	put_number(b, 3, 0);
	assert_refused(MSG_PULL, b, "pull.which is out of range");
	b = fresh();
	put_number(b, 3, 3);
	assert_refused(MSG_PULL, b, "pull.which is out of range");
	b = fresh();
	put_number(b, 3, UINT64_MAX); /* enum -1 */
	assert_refused(MSG_PULL, b, "number too large for its field");
	b = pull();
	put_text(b, 1, "\x20\x81\x08"); /* worker 1025 */
	assert_refused(MSG_PULL, b, "worker is out of range");
	b = pull();
	put_text(b, 1, "\x20\x80\x80\x80\x80\x10"); /* worker 2^32 */
	assert_refused(MSG_PULL, b, "number too large for its field");
	b = fresh();
	put_number(b, 1, 2);
	assert_refused(MSG_STATUS, b, "number too large for its field");
	b = fresh();
	put_number(b, 1, 27);
	assert_refused(MSG_ERROR, b, "error.status is out of range");
	assert_refused(MSG_ERROR, fresh(), "error.status is out of range");
	b = fresh();
	put_number(b, 2, UINT32_MAX);
	assert_refused(MSG_BYE, b, "bye.status is out of range");
	b = fresh();
	put_text(b, 4, "\x10\x80\x80\x40\x18\x01"); /* batches [2^20, 2^20 + 1) */
	assert_refused(MSG_PUSH, b, "push.work is out of range");
}

static void decisions_must_make_sense(void **state)
{
	static const char reason[] = "verdict and reject do not fit";
	struct bytes *b = fresh();

	(void)state;
	put_number(b, 2, VERDICT_OK);
	assert_accepted(MSG_ACK, b);
	put_number(b, 3, REJECT_NORM);
	assert_refused(MSG_ACK, b, reason);
	b = fresh();
	put_number(b, 2, VERDICT_REJECTED);
	assert_refused(MSG_ACK, b, reason);
	b = fresh();
	put_number(b, 9, REJECT_NORM);
	assert_refused(MSG_PUSH, b, reason);
	put_number(b, 8, VERDICT_REJECTED);
	assert_accepted(MSG_PUSH, b);
}

static void grants_and_results_must_make_sense(void **state)
{
	struct bytes *b = fresh();

	(void)state;
	put_number(b, 2, GRANT_TRAIN);
	put_number(b, 5, 100);
	assert_refused(MSG_GRANT, b, "grant of nothing");
	b = fresh();
	put_number(b, 2, GRANT_EVAL);
	put_number(b, 4, WIRE_MAX_IMAGES);
	put_number(b, 5, 1);
	assert_refused(MSG_GRANT, b, "grant.eval is out of range");
	b = fresh();
	put_number(b, 4, 10);
	put_number(b, 5, 11);
	assert_refused(MSG_RESULT, b, "more images right than evaluated");
}

/* ---- texts -------------------------------------------------------------------------------------
 */

static void assert_name(const char *name, size_t n, const char *reason)
{
	struct bytes *b = hello();

	put_bytes(b, 3, name, n);
	if (reason)
		assert_refused(MSG_HELLO, b, reason);
	else
		assert_accepted(MSG_HELLO, b);
}

static void texts_are_utf8_on_one_line(void **state)
{
	static const char no_text[] = "text is not UTF-8 or has a NUL in it";
	static const char *const bad[] = {"\x80", "\xc0\xaf", "\xc1\xbf", "\xe0\x80\xaf", "\xc3",
		"\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff",
		"a\xe2\x82"};
	static const char *const good[] = {"w1", "\xc3\xa9", "\xe2\x82\xac", "\xed\x9f\xbf",
		"\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf", "\x7e"};
	char name[WIRE_MAX_NAME + 2];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_name(bad[i], strlen(bad[i]), no_text);
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert_name(good[i], strlen(good[i]), NULL);
	assert_name("a\0b", 3, no_text);
	assert_name("a\nb", 3, "hello.name is out of range");
	assert_name("a\x1b[2J", 5, "hello.name is out of range");
	assert_name("\x7f", 1, "hello.name is out of range");
	memset(name, 'n', sizeof(name));
	assert_name(name, WIRE_MAX_NAME, NULL);
	assert_name(name, WIRE_MAX_NAME + 1, "hello.name is out of range");
}

static void long_texts_are_refused(void **state)
{
	static char text[WIRE_MAX_TEXT + 1];
	struct bytes *b = fresh();

	(void)state;
	memset(text, 't', sizeof(text));
	put_bytes(b, 2, text, WIRE_MAX_TEXT);
	assert_accepted(MSG_STATUS, b);
	b = fresh();
	put_bytes(b, 2, text, WIRE_MAX_TEXT + 1);
	assert_refused(MSG_STATUS, b, "text is too long");
}

/* ---- amplification -----------------------------------------------------------------------------
 */

static size_t heap(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

static void amplifying_headers_allocate_nothing(void **state)
{
	static struct bytes flood[3];
	size_t before;

	(void)state;
	while (flood[0].n < WIRE_MAX_HEADER - 16) /* unknown fields, two bytes each */
		put(&flood[0], "\x78\x00", 2);
	while (flood[1].n < WIRE_MAX_HEADER - 16) /* empty slices, two bytes each */
		put(&flood[1], "\x3a\x00", 2);
	while (flood[2].n < WIRE_MAX_HEADER - 16) /* the same stamp again and again */
		put(&flood[2], "\x0a\x00", 2);
	before = heap();
	assert_refused(MSG_PUSH, &flood[0], "unknown field");
	assert_refused(MSG_PUSH, &flood[1], "too many slices");
	assert_refused(MSG_PUSH, &flood[2], "field given twice");
	assert_int_equal(heap(), before);
}

static void the_largest_honest_header_fits_the_memory_limit(void **state)
{
	static struct msg m, back;
	static const float zero[WIRE_MAX_SLICES];
	struct frames f;
	const char *why = NULL;
	size_t before;

	(void)state;
	m.type = MSG_PUSH;
	m.push.slices.n = WIRE_MAX_SLICES;
	for (uint32_t i = 0; i < WIRE_MAX_SLICES; i++)
		m.push.slices.slice[i] = (struct slice){i, 1, ENCODING_F32, 0, zero};
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	before = heap();
	if (wire_decode(wire, &f, &back, &why))
		fail_msg("%s", why);
	assert_int_equal(heap(), before);
	frames_release(&f);
}

/* ---- mutants -----------------------------------------------------------------------------------
 */

/* Rows that a decoded message must fit, whatever its bytes were. */
static void assert_fits(const struct wire_field *row, const void *base)
{
	const char *at = (const char *)base + row->offset;
	const struct slices *s = (const struct slices *)(const void *)at;
	uint64_t wide = 0, end = 0;
	uint32_t narrow;

	if (row->kind == WIRE_NUMBER && row->size == 8) {
		memcpy(&wide, at, 8);
		assert_in_range(wide, row->least, row->most);
	} else if (row->kind == WIRE_NUMBER) {
		memcpy(&narrow, at, 4);
		assert_in_range(narrow, row->least, row->most);
	} else if (row->kind == WIRE_LINE) {
		assert_non_null(memchr(at, 0, row->size));
	} else if (row->kind == WIRE_SLICES) {
		for (uint32_t i = 0; i < s->n; i++) {
			assert_true(s->slice[i].offset >= end && s->slice[i].count > 0);
			end = s->slice[i].offset + s->slice[i].count;
			assert_true(end <= N_PARAMS);
		}
	}
}

static struct bytes *sample(unsigned type)
{
	struct bytes *b = fresh();

	switch (type) {
	case MSG_HELLO:
		put_number(b, 1, 1);
		put_number(b, 2, 1);
		put_text(b, 3, "worker one");
		put_text(b, 4, "cpu 2 threads");
		put_text(b, 5, "\x08\x64\x10\x0a\x18\x1c\x20\x1c\x28\x0a\x31\1\2\3\4\5\6\7\x08");
		put_text(b, 6, "\x09\1\2\3\4\5\6\7\x08\x18\x02\x20\x01\x28\x03");
		put_number(b, 7, 300);
		break;
	case MSG_PUSH:
		put_text(b, 1, "\x09\1\2\3\4\5\6\7\x08\x18\x02\x20\x01\x28\x03");
		put_number(b, 2, 7);
		put_number(b, 3, 1000);
		put_text(b, 4, "\x08\x01\x10\x05\x18\x02");
		put_number(b, 5, 100);
		put_number(b, 8, 2);
		put_number(b, 9, 3);
		break;
	case MSG_GRANT:
		put_number(b, 1, 7);
		put_number(b, 2, 1);
		put_text(b, 3, "\x08\x01\x10\x05\x18\x02");
		put_number(b, 6, 1);
		break;
	default:
		put_number(b, 1, 3);
		put_number(b, 2, 5);
		put_text(b, 3, "reason");
	}
	return b;
}

static void mutants_are_refused_or_in_range(void **state)
{
	static const unsigned types[] = {MSG_HELLO, MSG_PUSH, MSG_GRANT, MSG_ERROR};
	static struct bytes whole;
	static struct msg m;
	struct rng dice = rng_seed(SEED, RNG_SIM, 0);
	int accepted = 0;

	(void)state;
	printf("# seed %u\n", SEED);
	for (int i = 0; i < MUTANTS; i++) {
		struct bytes *b = sample(types[i % 4]);
		size_t size = b->n - (rng_below(&dice, 8) ? 0 : rng_below(&dice, b->n));
		for (uint64_t k = rng_below(&dice, 4); k > 0; k--)
			b->at[rng_below(&dice, b->n)] = (unsigned char)rng_next(&dice);
		whole.n = 0;
		put_bytes(&whole, types[i % 4], b->at, size);
		if (decode(whole.at, whole.n, &m, NULL))
			continue;
		accepted++;
		for (const struct wire_field *row = wire_messages[m.type].fields;
			row->kind != WIRE_END; row++)
			assert_fits(row, &m);
	}
	assert_true(accepted > MUTANTS / 10 && accepted < MUTANTS * 9 / 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_not_one_message_is_refused),
		cmocka_unit_test(another_protocol_version_is_told_so_whatever_else_it_says),
		cmocka_unit_test(unknown_fields_are_refused_at_every_level),
		cmocka_unit_test(malformed_fields_are_refused),
		cmocka_unit_test(numbers_out_of_range_are_refused),
		cmocka_unit_test(decisions_must_make_sense),
		cmocka_unit_test(grants_and_results_must_make_sense),
		cmocka_unit_test(texts_are_utf8_on_one_line),
		cmocka_unit_test(long_texts_are_refused),
		cmocka_unit_test(amplifying_headers_allocate_nothing),
		cmocka_unit_test(the_largest_honest_header_fits_the_memory_limit),
		cmocka_unit_test(mutants_are_refused_or_in_range),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
