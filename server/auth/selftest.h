/*
 * selftest.h - checks at each start of the server that the server refuses a random key.
 *
 * The test is needed because CURVE accepts every key if no ZAP handler runs. Only the loop's thread
 * may call the function.
 */
#ifndef SERVER_AUTH_SELFTEST_H
#define SERVER_AUTH_SELFTEST_H
#include <uv.h>
#include "common/err.h"

/* Binds `socket` to a private address, connects to this address with a random key, and runs the
 * loop until the key is refused. Returns PS_EAUTH if the server accepted the key, or if no answer
 * came in time. */
int auth_selftest(
	uv_loop_t *loop, void *socket, const char *server_key, struct err *e) PS_MUST_CHECK;

#endif
