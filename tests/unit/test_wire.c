/*
 * test_wire.c - proves the invariants numbered in proto/wire.h: hostile bytes cost nothing,
 * decoding is all or nothing, and decode(encode(m)) is m.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "common/rng.h"
#include "proto/wire.h"
#include "proto/wire_fields.h"

#define N_PARAMS 5000u
#define ROUNDS   2000
#define SEED     20240511u

static float values[N_PARAMS];
static struct wire *wire;
static struct rng dice;

static int set_up(void **state)
{
	(void)state;
	dice = rng_seed(SEED, RNG_SIM, 0);
	printf("# seed %u\n", SEED);
	for (size_t i = 0; i < N_PARAMS; i++)
		values[i] = (float)rng_unit(&dice);
	return wire_new(&wire, N_PARAMS);
}

static int tear_down(void **state)
{
	(void)state;
	wire_free(&wire);
	return 0;
}

/* ---- messages at random, by the table ----------------------------------------------------------
 */

static uint64_t edge_or_any(uint64_t least, uint64_t most)
{
	uint64_t span = most - least;

	switch (rng_below(&dice, 4)) {
	case 0:
		return least;
	case 1:
		return most;
	default:
		return least + (span == UINT64_MAX ? rng_next(&dice) : rng_below(&dice, span + 1));
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
	uint64_t wide = edge_or_any(row->least, row->most);
	uint32_t narrow = (uint32_t)wide;
	int status = -(int)(1 + rng_below(&dice, 26));
	static const char *const text = "{\"loss\": 0.25, \"name\": \"\xc3\xa9t\xc3\xa9\"}\n";

	switch (row->kind) {
	case WIRE_NUMBER:
		memcpy(to, row->size == 8 ? (void *)&wide : (void *)&narrow, row->size);
		break;
	case WIRE_REAL:
		memset(to, 0x41, row->size);
		break;
	case WIRE_CODE:
		memcpy(to, &status, sizeof(status));
		break;
	case WIRE_LINE:
		memset(to, 'x', rng_below(&dice, row->size));
		break;
	case WIRE_TEXT:
		memcpy(to, &text, sizeof(text));
		break;
	case WIRE_INNER:
		for (const struct wire_field *in = row->inner; in->kind != WIRE_END; in++)
			random_field(in, to, type);
		break;
	default:
		random_slices((struct slices *)(void *)to, type == MSG_PARAMS);
	}
}

/* A message that every rule allows. */
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

/* Equal but for where texts and values lie, and the checksums that encoding fills in. */
static void assert_same(struct msg *a, struct msg *b)
{
	const char **text_a = a->type == MSG_STATUS ? &a->status.text : &a->error.text;
	const char **text_b = a->type == MSG_STATUS ? &b->status.text : &b->error.text;

	assert_int_equal(a->type, b->type);
	if (slices_in(a)) {
		for (uint32_t i = 0; i < slices_in(a)->n; i++) {
			struct slice *x = &slices_in(a)->slice[i], *y = &slices_in(b)->slice[i];
			assert_memory_equal(x->data, y->data, x->count * sizeof(float));
			assert_int_equal((uintptr_t)y->data % sizeof(float), 0);
			y->data = x->data;
			x->xxh3 = y->xxh3;
		}
	} else if (a->type == MSG_STATUS || a->type == MSG_ERROR) {
		assert_string_equal(*text_a, *text_b);
		*text_b = *text_a;
	}
	assert_memory_equal(a, b, sizeof(*a));
}

static void every_message_survives_the_round_trip(void **state)
{
	static struct msg m, back;
	struct frames f;

	(void)state;
	for (unsigned type = MSG_HELLO; type < MSG_TYPES; type++) {
		for (int i = 0; i < ROUNDS; i++) {
			const char *why = NULL;
			random_message((enum msg_type)type, &m);
			assert_int_equal(wire_encode(&m, &f), PS_OK);
			if (wire_decode(wire, &f, &back, &why))
				fail_msg("type %u: %s", type, why);
			assert_same(&m, &back);
			frames_release(&f);
		}
	}
}

/* ---- slices ---------------------------------------------------------------------------------- */

static void push_of(struct msg *m, uint64_t offset, uint64_t count)
{
	memset(m, 0, sizeof(*m));
	m->type = MSG_PUSH;
	m->push.seq = 1;
	m->push.slices.n = 1;
	m->push.slices.slice[0] = (struct slice){offset, count, ENCODING_F32, 0, values + offset};
}

static const char *refusal(struct frames *f)
{
	static struct msg m;
	const char *why = NULL;
	int rc = wire_decode(wire, f, &m, &why);

	assert_int_equal(rc, rc ? PS_EPROTO : PS_OK);
	assert_true(rc == PS_OK || (why && m.type == 0));
	return rc ? why : "";
}

static void keep_memory(void *data, void *hint)
{
	(void)data;
	(void)hint;
}

static void misaligned_frames_are_copied_to_aligned_memory(void **state)
{
	static char odd[N_PARAMS * sizeof(float) + 1];
	static struct msg m, back;
	struct frames f;

	(void)state;
	push_of(&m, 10, 1000);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	memcpy(odd + 1, values + 10, 4000);
	assert_int_equal(zmq_msg_close(&f.frame[1]), 0);
	assert_int_equal(zmq_msg_init_data(&f.frame[1], odd + 1, 4000, keep_memory, NULL), 0);
	assert_int_equal(wire_decode(wire, &f, &back, NULL), PS_OK);
	assert_same(&m, &back);
	frames_release(&f);
}

static void aligned_frames_are_not_copied(void **state)
{
	static struct msg m, back;
	struct frames f;

	(void)state;
	push_of(&m, 0, N_PARAMS);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_int_equal(wire_decode(wire, &f, &back, NULL), PS_OK);
	assert_ptr_equal(back.push.slices.slice[0].data, zmq_msg_data(&f.frame[1]));
	frames_release(&f);
}

static void any_flipped_bit_of_a_tensor_is_seen(void **state)
{
	static struct msg m;
	struct frames f;

	(void)state;
	push_of(&m, 0, 40);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	for (size_t bit = 0; bit < 40 * 32; bit++) {
		unsigned char *byte = (unsigned char *)zmq_msg_data(&f.frame[1]) + bit / 8;
		*byte ^= (unsigned char)(1u << bit % 8);
		assert_string_equal(refusal(&f), "wrong tensor checksum");
		*byte ^= (unsigned char)(1u << bit % 8);
	}
	assert_string_equal(refusal(&f), "");
	frames_release(&f);
}

static void a_replay_sends_the_first_checksum_again(void **state)
{
	static struct msg m;
	struct frames f;

	(void)state;
	push_of(&m, 0, 40);
	m.push.slices.slice[0].xxh3 = wire_checksum(values, 40);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_string_equal(refusal(&f), "");
	frames_release(&f);
	m.push.slices.slice[0].xxh3 ^= 1;
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_string_equal(refusal(&f), "wrong tensor checksum");
	frames_release(&f);
}

static void header_alone_says_the_same_as_the_whole_message(void **state)
{
	static struct msg m;
	struct frames f;
	zmq_msg_t header;

	(void)state;
	push_of(&m, 7, 333);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_int_equal(wire_encode_header(&m, &header), PS_OK);
	assert_int_equal(zmq_msg_size(&header), zmq_msg_size(&f.frame[0]));
	assert_memory_equal(
		zmq_msg_data(&header), zmq_msg_data(&f.frame[0]), zmq_msg_size(&header));
	(void)zmq_msg_close(&header);
	frames_release(&f);
}

/* The constants come from Python's xxhash module. */
static void checksum_is_xxh3_of_the_little_endian_bytes(void **state)
{
	float f[1000];

	(void)state;
	for (int i = 0; i < 1000; i++)
		f[i] = (float)i;
	assert_int_equal(wire_checksum(f, 0), 0x2d06800538d394c2u);
	assert_int_equal(wire_checksum(f, 10), 0x9d5661e6a667ad1bu);
	assert_int_equal(wire_checksum(f, 1000), 0xab408abd5a63f694u);
}

/* The copy that is hashed block by block, at the edges of XXH3's and our own blocks. */
static void copying_and_hashing_in_one_pass_gives_the_same_checksum(void **state)
{
	static const size_t counts[] = {
		1, 4, 60, 61, 64, 256, 4095, 4096, 16384, 16385, 32768, 100003};
	float *big = malloc(100003 * sizeof(*big));
	static struct msg m, back;
	struct wire *w;
	struct frames f;

	(void)state;
	assert_non_null(big);
	for (size_t i = 0; i < 100003; i++)
		big[i] = (float)i;
	assert_int_equal(wire_new(&w, 100003), PS_OK);
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		push_of(&m, 0, counts[i]);
		m.push.slices.slice[0].data = big;
		assert_int_equal(wire_encode(&m, &f), PS_OK);
		assert_int_equal(wire_decode(w, &f, &back, NULL), PS_OK);
		assert_int_equal(back.push.slices.slice[0].xxh3, wire_checksum(big, counts[i]));
		frames_release(&f);
	}
	wire_free(&w);
	free(big);
}

/* Encode what an honest program would not. */
static void assert_slices_refused(const struct slice *s, uint32_t n, const char *reason)
{
	static struct msg m;
	struct frames f;

	memset(&m, 0, sizeof(m));
	m.type = MSG_PUSH;
	m.push.slices.n = n;
	memcpy(m.push.slices.slice, s, n * sizeof(*s));
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_string_equal(refusal(&f), reason);
	frames_release(&f);
}

static void slices_that_do_not_fit_are_refused(void **state)
{
	const uint64_t n = N_PARAMS;
	const struct slice past[] = {{n - 9, 10, ENCODING_F32, 0, values}};
	const struct slice far[] = {{UINT64_MAX - 3, 4, ENCODING_F32, 0, values}};
	const struct slice touch[] = {
		{0, 10, ENCODING_F32, 0, values}, {9, 5, ENCODING_F32, 0, values}};
	const struct slice back[] = {
		{50, 5, ENCODING_F32, 0, values}, {0, 5, ENCODING_F32, 0, values}};
	const struct slice strange[] = {{0, 5, (enum encoding)2, 0, values}};
	const struct slice none[] = {{0, 5, (enum encoding)0, 0, values}};

	(void)state;
	assert_slices_refused(past, 1, "slice lies outside the model");
	assert_slices_refused(far, 1, "offset is out of range");
	assert_slices_refused(touch, 2, "slices overlap or are out of order");
	assert_slices_refused(back, 2, "slices overlap or are out of order");
	assert_slices_refused(strange, 1, "encoding is out of range");
	assert_slices_refused(none, 1, "encoding is out of range");
}

static void frames_and_slices_must_agree(void **state)
{
	static struct msg m;
	struct frames f;

	(void)state;
	push_of(&m, 0, 10);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_int_equal(zmq_msg_init_size(&f.frame[f.n++], 4), 0);
	assert_string_equal(refusal(&f), "not one tensor frame per slice");
	(void)zmq_msg_close(&f.frame[--f.n]);
	(void)zmq_msg_close(&f.frame[--f.n]);
	assert_string_equal(refusal(&f), "not one tensor frame per slice");
	assert_int_equal(zmq_msg_init_size(&f.frame[f.n++], 44), 0);
	assert_string_equal(refusal(&f), "tensor frame is not 4 * count bytes");
	frames_release(&f);
	m.type = MSG_PULL;
	m.pull = (struct msg_pull){.request = 1, .which = WEIGHTS_CURRENT};
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_int_equal(zmq_msg_init_size(&f.frame[f.n++], 4), 0);
	assert_string_equal(refusal(&f), "tensor frames without slices");
	frames_release(&f);
	assert_string_equal(refusal(&f), "no header frame");
}

static void params_must_cover_the_model(void **state)
{
	static struct msg m;
	struct frames f;

	(void)state;
	random_message(MSG_PARAMS, &m);
	m.params.slices.slice[m.params.slices.n - 1].count--;
	if (m.params.slices.slice[m.params.slices.n - 1].count == 0)
		m.params.slices.n--;
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_string_equal(refusal(&f), "PARAMS does not cover the model");
	frames_release(&f);
}

static void no_tensor_is_taken_before_the_model_is_known(void **state)
{
	static struct msg m, back;
	struct wire *w;
	struct frames f;

	(void)state;
	push_of(&m, 0, 1);
	assert_int_equal(wire_new(&w, 0), PS_OK);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_int_equal(wire_decode(w, &f, &back, NULL), PS_EPROTO);
	assert_int_equal(wire_resize(w, WIRE_MAX_PARAMS + 1), PS_ENOMEM);
	assert_int_equal(wire_resize(w, 1), PS_OK);
	assert_int_equal(wire_decode(w, &f, &back, NULL), PS_OK);
	frames_release(&f);
	wire_free(&w);
	wire_free(&w);
}

static void what_cannot_be_said_is_not_encoded(void **state)
{
	static char text[WIRE_MAX_TEXT + 2];
	static struct msg m;
	struct frames f;

	(void)state;
	memset(text, 'x', WIRE_MAX_TEXT + 1);
	m.type = MSG_STATUS;
	m.status = (struct msg_status){STATUS_REPLY, text};
	assert_int_equal(wire_encode(&m, &f), PS_ETOOBIG);
	text[WIRE_MAX_TEXT] = 0;
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_string_equal(refusal(&f), "");
	frames_release(&f);
	push_of(&m, 0, 1);
	m.push.slices.n = WIRE_MAX_SLICES + 1;
	assert_int_equal(wire_encode(&m, &f), PS_ETOOBIG);
	push_of(&m, 0, 0);
	assert_int_equal(wire_encode(&m, &f), PS_ETOOBIG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_message_survives_the_round_trip),
		cmocka_unit_test(misaligned_frames_are_copied_to_aligned_memory),
		cmocka_unit_test(aligned_frames_are_not_copied),
		cmocka_unit_test(any_flipped_bit_of_a_tensor_is_seen),
		cmocka_unit_test(a_replay_sends_the_first_checksum_again),
		cmocka_unit_test(header_alone_says_the_same_as_the_whole_message),
		cmocka_unit_test(checksum_is_xxh3_of_the_little_endian_bytes),
		cmocka_unit_test(copying_and_hashing_in_one_pass_gives_the_same_checksum),
		cmocka_unit_test(slices_that_do_not_fit_are_refused),
		cmocka_unit_test(frames_and_slices_must_agree),
		cmocka_unit_test(params_must_cover_the_model),
		cmocka_unit_test(no_tensor_is_taken_before_the_model_is_known),
		cmocka_unit_test(what_cannot_be_said_is_not_encoded),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
