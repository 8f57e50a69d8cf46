/*
 * auth.h - who may speak to the server, and say what.
 *
 * libzmq's CURVE proves that a connecting peer owns the secret of the public key that it shows, and
 * asks by ZAP (ZeroMQ RFC 27) whether that key may come in. We answer from the allow-list
 * (common/allow.h) by way of a thread of its own (judge.h). From then on each message of that
 * connection carries its key (libzmq's "User-Id"), and what it may say depends on that key's role:
 * the table in roles.c.
 *
 * Invariants:
 * (1) no answer, no connection: without ZAP, with a judge that hangs, or with a list that never
 *     could be read nobody gets in;
 * (2) identity is the key: a message's own words about its sender only make it less;
 * (3) a key taken off the list has no say from the moment the new list is read, on open
 *     connections too;
 * (4) a worker id belongs to the key that was told it, a worker's name to its key.
 * Thread: the loop's.
 */
#ifndef SERVER_AUTH_AUTH_H
#define SERVER_AUTH_AUTH_H
#include <uv.h>
#include "common/err.h"
#include "proto/wire.h"
#include "server/auth/judge.h"

struct auth_config {
	uv_loop_t *loop;
	const char *key_file;   /* the server's secret */
	const char *allow_file; /* NULL: "allow" beside it */
	uint32_t max_workers;
	judge_read_fn *read; /* NULL: allow_read */
};

struct auth_stats {
	uint64_t admitted, refused; /* handshakes of keys on the list and not on it */
	uint64_t overruled;         /* messages that their key may not send */
	uint64_t restarts;          /* of a judge that hung */
	size_t hanging;             /* of those, not at their end yet */
	size_t keys;                /* on the list */
};

struct auth; /* opaque, see auth.c */

/* Read both files. PS_EUSAGE: which and why not. */
int auth_new(struct auth **out, const struct auth_config *cfg, struct err *e) PS_MUST_CHECK;
/* Answer the context's handshakes from now on. Before the first bind of a socket that is given to
 * auth_secure. */
int auth_open(struct auth *a, void *context, struct err *e) PS_MUST_CHECK;
/* Connections to this socket need a key of the list. Before bind. */
int auth_secure(struct auth *a, void *socket, struct err *e) PS_MUST_CHECK;
/* Connect to `socket` with a key that nobody knows, on a private address: PS_EAUTH unless just that
 * is refused. Runs the loop while it waits. */
int auth_self_test(struct auth *a, void *socket, struct err *e) PS_MUST_CHECK;
/* May the sender of `f` say `m`? PS_EAUTH: no, because `why`. A worker's name in `m` is made its
 * key's own, in `f` as well. */
int auth_check(struct auth *a, uint32_t peer, struct frames *f, struct msg *m,
	const char **why) PS_MUST_CHECK;
/* `m` leaves for `peer`: a WELCOME gives a worker id to its key. */
void auth_note(struct auth *a, uint32_t peer, const struct msg *m);
/* Read the list again, soon. */
void auth_reload(struct auth *a);
const struct auth_stats *auth_stats(const struct auth *a);
/* Close socket and handles; the loop must run once more before auth_free. NULL is fine. */
void auth_stop(struct auth *a);
/* Frees and nulls *a; NULL is fine. */
void auth_free(struct auth **a);

#endif
