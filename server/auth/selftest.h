/*
 * selftest.h - the authentication self-test of every start: the server refuses a random key.
 *
 * CURVE alone accepts every key; only a ZAP handler refuses one. Thread: the loop's.
 */
#ifndef SERVER_AUTH_SELFTEST_H
#define SERVER_AUTH_SELFTEST_H
#include <uv.h>
#include "common/err.h"

/* Bind `socket` to a private address, connect to it with a random key, and run the loop until the key
 * is refused. PS_EAUTH: it was accepted, or there was no answer in time. */
int auth_selftest(
	uv_loop_t *loop, void *socket, const char *server_key, struct err *e) PS_MUST_CHECK;

#endif
