/*
 * selftest.h - the server's question to itself at every start: is a key that nobody knows refused?
 *
 * CURVE alone lets every key in; only a ZAP handler that is asked keeps strangers out. Thread: the
 * loop's.
 */
#ifndef SERVER_AUTH_SELFTEST_H
#define SERVER_AUTH_SELFTEST_H
#include <uv.h>
#include "common/err.h"

/* Bind `socket` to a private address, connect to it with a fresh key, and wait, running the loop,
 * for the refusal. PS_EAUTH: it was let in, or nothing came. */
int stranger_is_refused(
	uv_loop_t *loop, void *socket, const char *server_key, struct err *e) PS_MUST_CHECK;

#endif
