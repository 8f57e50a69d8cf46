/*
 * roles.h - which messages each role may send, and which key owns a worker id.
 *
 * Invariants:
 * (1) no role may send a message type that the table in roles.c does not name;
 * (2) a worker id belongs to the key whose HELLO it answered, for that incarnation;
 * (3) memory is bounded by max_workers. Pure: no socket, no clock.
 * Thread: the owner's (auth.c: the loop's).
 */
#ifndef SERVER_AUTH_ROLES_H
#define SERVER_AUTH_ROLES_H
#include "common/authorized_keys.h"
#include "proto/msg.h"

struct roles; /* opaque, see roles.c */

/* NULL: no memory. max_workers: 1..WIRE_MAX_WORKERS. */
struct roles *roles_new(uint32_t max_workers);
/* May the owner of `key` (z85, KEY_TEXT - 1 characters, "" for none) with `role` send `m`? PS_EAUTH:
 * no, because `why`. Remembers the key of an accepted HELLO for roles_note. */
int roles_check(struct roles *r, enum key_role role, uint32_t peer, const char *key,
	const struct msg *m, const char **why) PS_MUST_CHECK;
/* `m` leaves for `peer`: a WELCOME binds its worker id to the key of the peer's newest HELLO. */
void roles_note(struct roles *r, uint32_t peer, const struct msg *m);
/* Frees and nulls *r; NULL is fine. */
void roles_free(struct roles **r);

#endif
