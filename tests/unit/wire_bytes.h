/*
 * wire_bytes.h - protobuf written by hand, and what wire_decode says to it: for tests of bytes that
 * no honest program sends.
 *
 * A header with bodies, for one test program is one file.
 */
#ifndef TESTS_UNIT_WIRE_BYTES_H
#define TESTS_UNIT_WIRE_BYTES_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "proto/wire.h"

#define N_PARAMS 100u

static struct wire *wire;

static inline int set_up(void **state)
{
	(void)state;
	return wire_new(&wire, N_PARAMS);
}

static inline int tear_down(void **state)
{
	(void)state;
	wire_free(&wire);
	return 0;
}

/* ---- protobuf by hand ------------------------------------------------------------------------ */

struct bytes {
	size_t n;
	unsigned char at[2 * WIRE_MAX_HEADER];
};

static inline void put(struct bytes *b, const void *data, size_t n)
{
	assert_true(n <= sizeof(b->at) - b->n);
	memcpy(b->at + b->n, data, n);
	b->n += n;
}

static inline void put_varint(struct bytes *b, uint64_t v)
{
	do {
		unsigned char byte = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
		put(b, &byte, 1);
		v >>= 7;
	} while (v);
}

static inline void put_number(struct bytes *b, unsigned field, uint64_t v)
{
	put_varint(b, field << 3);
	put_varint(b, v);
}

static inline void put_bytes(struct bytes *b, unsigned field, const void *data, size_t n)
{
	put_varint(b, field << 3 | 2);
	put_varint(b, n);
	put(b, data, n);
}

static inline void put_text(struct bytes *b, unsigned field, const char *text)
{
	put_bytes(b, field, text, strlen(text));
}

static inline struct bytes *fresh(void)
{
	static struct bytes b;

	b.n = 0;
	return &b;
}

/* ---- what decode says to a header frame ------------------------------------------------------ */

static inline int decode(const void *data, size_t n, struct msg *m, const char **why)
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

static inline void assert_frame_refused(const void *data, size_t n, int status, const char *reason)
{
	static struct msg m;
	const char *why = "accepted";

	memset(&m, 0xff, sizeof(m));
	assert_int_equal(decode(data, n, &m, &why), status);
	assert_string_equal(why, reason);
	assert_int_equal(m.type, 0);
}

/* `body` as the body of a message of this type. */
static inline void assert_refused(enum msg_type type, const struct bytes *body, const char *reason)
{
	static struct bytes whole;

	whole.n = 0;
	put_bytes(&whole, type, body->at, body->n);
	assert_frame_refused(whole.at, whole.n, PS_EPROTO, reason);
}

static inline void assert_accepted(enum msg_type type, const struct bytes *body)
{
	static struct bytes whole;
	static struct msg m;
	const char *why = NULL;

	whole.n = 0;
	put_bytes(&whole, type, body->at, body->n);
	if (decode(whole.at, whole.n, &m, &why))
		fail_msg("refused: %s", why);
}

static inline struct bytes *hello(void)
{
	struct bytes *b = fresh();

	put_number(b, 1, WIRE_PROTOCOL);
	put_number(b, 2, ROLE_WORKER);
	return b;
}

static inline struct bytes *pull(void)
{
	struct bytes *b = fresh();

	put_number(b, 3, WEIGHTS_CURRENT);
	return b;
}

#endif
