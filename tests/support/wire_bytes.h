/*
 * wire_bytes.h - functions with which a test encodes messages field by field. With these functions,
 * tests make bytes that no correct program sends.
 */
#ifndef TESTS_SUPPORT_WIRE_BYTES_H
#define TESTS_SUPPORT_WIRE_BYTES_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "proto/wire.h"

#define BYTES_PARAMS 100u

extern struct wire *bytes_wire;

int bytes_set_up(void **state);
int bytes_tear_down(void **state);

/* ---- encode --------------------------------------------------------------------------------- */

struct bytes {
	size_t n;
	unsigned char at[2 * WIRE_MAX_HEADER];
};

/* Empties the static buffer, and returns it: each call discards the bytes of the previous
 * message. */
struct bytes *bytes_fresh(void);
void bytes_put(struct bytes *b, const void *data, size_t n);
void bytes_varint(struct bytes *b, uint64_t v);
void bytes_number(struct bytes *b, unsigned field, uint64_t v);
void bytes_bytes(struct bytes *b, unsigned field, const void *data, size_t n);
void bytes_text(struct bytes *b, unsigned field, const char *text);
/* bytes_hello returns the body of a valid HELLO, and bytes_pull that of a valid PULL. Both
 * functions use the static buffer of bytes_fresh. */
struct bytes *bytes_hello(void);
struct bytes *bytes_pull(void);

/* ---- decode --------------------------------------------------------------------------------- */

/* Call wire_decode with `n` bytes as the only frame of a message. */
int bytes_decode(const void *data, size_t n, struct msg *m, const char **why);
/* Check that wire_decode returns `status` for these bytes, and gives `reason` as the reason. */
void assert_frame_refused(const void *data, size_t n, int status, const char *reason);
/* Check that a message of this type with this body is refused with PS_EPROTO. */
void assert_refused(enum msg_type type, const struct bytes *body, const char *reason);
void assert_accepted(enum msg_type type, const struct bytes *body);

#endif
