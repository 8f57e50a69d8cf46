/* wire_bytes.c - see wire_bytes.h. */
#include "tests/support/wire_bytes.h"

struct wire *bytes_wire;

int bytes_set_up(void **state)
{
	(void)state;
	return wire_new(&bytes_wire, BYTES_PARAMS);
}

int bytes_tear_down(void **state)
{
	(void)state;
	wire_free(&bytes_wire);
	return 0;
}

/* ---- protobuf by hand ------------------------------------------------------------------------ */

void bytes_put(struct bytes *b, const void *data, size_t n)
{
	assert_true(n <= sizeof(b->at) - b->n);
	memcpy(b->at + b->n, data, n);
	b->n += n;
}

void bytes_varint(struct bytes *b, uint64_t v)
{
	do {
		unsigned char byte = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));

		bytes_put(b, &byte, 1);
		v >>= 7;
	} while (v);
}

void bytes_number(struct bytes *b, unsigned field, uint64_t v)
{
	bytes_varint(b, field << 3);
	bytes_varint(b, v);
}

void bytes_bytes(struct bytes *b, unsigned field, const void *data, size_t n)
{
	bytes_varint(b, field << 3 | 2);
	bytes_varint(b, n);
	bytes_put(b, data, n);
}

void bytes_text(struct bytes *b, unsigned field, const char *text)
{
	bytes_bytes(b, field, text, strlen(text));
}

struct bytes *bytes_fresh(void)
{
	static struct bytes b;

	b.n = 0;
	return &b;
}

/* ---- decode --------------------------------------------------------------------------------- */

int bytes_decode(const void *data, size_t n, struct msg *m, const char **why)
{
	struct frames f;

	frames_init(&f);
	f.n = 1;
	assert_int_equal(zmq_msg_init_size(&f.frame[0], n), 0);
	if (n)
		memcpy(zmq_msg_data(&f.frame[0]), data, n);
	int rc = wire_decode(bytes_wire, &f, m, why);
	frames_release(&f);
	return rc;
}

void assert_frame_refused(const void *data, size_t n, int status, const char *reason)
{
	static struct msg m;
	const char *why = "accepted";

	memset(&m, 0xff, sizeof(m));
	assert_int_equal(bytes_decode(data, n, &m, &why), status);
	assert_string_equal(why, reason);
	assert_int_equal(m.type, 0);
}

void assert_refused(enum msg_type type, const struct bytes *body, const char *reason)
{
	static struct bytes whole;

	whole.n = 0;
	bytes_bytes(&whole, type, body->at, body->n);
	assert_frame_refused(whole.at, whole.n, PS_EPROTO, reason);
}

void assert_accepted(enum msg_type type, const struct bytes *body)
{
	static struct bytes whole;
	static struct msg m;
	const char *why = NULL;

	whole.n = 0;
	bytes_bytes(&whole, type, body->at, body->n);
	if (bytes_decode(whole.at, whole.n, &m, &why))
		fail_msg("refused: %s", why);
}

struct bytes *bytes_hello(void)
{
	struct bytes *b = bytes_fresh();

	bytes_number(b, 1, WIRE_PROTOCOL);
	bytes_number(b, 2, ROLE_WORKER);
	return b;
}

struct bytes *bytes_pull(void)
{
	struct bytes *b = bytes_fresh();

	bytes_number(b, 3, WEIGHTS_CURRENT);
	return b;
}
