/*
 * auth.h - authentication and authorization of peers.
 *
 * libzmq's CURVE proves that a connecting peer owns the secret of the public key that it shows, and
 * asks by ZAP (ZeroMQ RFC 27) whether that key may connect. The ZAP handler is a socket of the loop
 * and answers from the list in memory (common/authorized_keys.h). Each message of an accepted connection
 * carries the key (libzmq's "User-Id"). The role of the key decides which messages it may send: see
 * the table in roles.c.
 *
 * auth_reload reads the file again on a thread of libuv's pool, so that a disk that hangs does not
 * stop the loop. Until a file was read without an error, the list in memory stays in use.
 *
 * Invariants:
 * (1) no ZAP answer, no connection;
 * (2) the key is the identity: a message's claims about its sender can only reduce its rights;
 * (3) a key that is removed from the list has no rights from the moment the new list is read, on
 *     open connections too;
 * (4) a worker id belongs to the key that received it in WELCOME, and a worker's name to its key;
 * (5) at most one read is under way; a reload during a read starts another one after it.
 * Thread: the loop's; the pool owns the result of a read from its start to its end.
 */
#ifndef SERVER_AUTH_AUTH_H
#define SERVER_AUTH_AUTH_H
#include <uv.h>
#include "common/authorized_keys.h"
#include "common/err.h"
#include "proto/wire.h"

/* How a list is read: authorized_keys_read, or a test's. Runs on a thread of libuv's pool. */
typedef int auth_read_fn(struct authorized_keys **out, const char *path, struct err *e);

struct auth_config {
	uv_loop_t *loop;
	const char *key_file;  /* the server's secret */
	const char *keys_file; /* NULL: "allow" beside it */
	uint32_t max_workers;
	auth_read_fn *read; /* NULL: authorized_keys_read */
};

struct auth_stats {
	uint64_t admitted, refused; /* handshakes of keys on the list and not on it */
	uint64_t unauthorized;      /* messages that their key may not send */
	size_t keys;                /* on the list */
};

struct auth; /* opaque, see auth.c */

/* Read both files. PS_EUSAGE names the file and the reason. */
int auth_new(struct auth **out, const struct auth_config *cfg, struct err *e) PS_MUST_CHECK;
/* Answer the handshakes of the context from now on. Before auth_secure and bind. */
int auth_open(struct auth *a, void *context, struct err *e) PS_MUST_CHECK;
/* Require a listed key for connections to this socket. Before bind. */
int auth_secure(struct auth *a, void *socket, struct err *e) PS_MUST_CHECK;
/* Connect to `socket` with a random key, on a private address: PS_EAUTH unless the key is refused.
 * Runs the loop while it waits. */
int auth_self_test(struct auth *a, void *socket, struct err *e) PS_MUST_CHECK;
/* May the sender of `f` send `m`? PS_EAUTH: no, because `why`. Appends the key to a worker's name, in
 * `m` and in `f`. */
int auth_check(struct auth *a, uint32_t peer, struct frames *f, struct msg *m,
	const char **why) PS_MUST_CHECK;
/* `m` leaves for `peer`: a WELCOME binds its worker id to the key of the peer. */
void auth_note(struct auth *a, uint32_t peer, const struct msg *m);
/* Read the list again, on the pool. */
void auth_reload(struct auth *a);
/* A read is under way: auth_free must wait until the loop has seen its end. NULL is fine. */
int auth_busy(const struct auth *a);
const struct auth_stats *auth_stats(const struct auth *a);
/* Close socket and handles; the loop must run once more before auth_free. NULL is fine. */
void auth_stop(struct auth *a);
/* Frees and nulls *a; NULL is fine. */
void auth_free(struct auth **a);

#endif
