/*
 * roles.h - what each key's role lets it say, and whose worker id that is.
 *
 * Invariants:
 * (1) a message type that the table in roles.c does not name is said by nobody;
 * (2) a worker id belongs to the key whose HELLO it answered, for that incarnation;
 * (3) memory is bounded by max_workers. Pure: no socket, no clock.
 * Thread: the owner's (auth.c: the loop's).
 */
#ifndef SERVER_AUTH_ROLES_H
#define SERVER_AUTH_ROLES_H
#include "common/allow.h"
#include "proto/msg.h"

struct roles; /* opaque, see roles.c */

/* NULL: no memory. max_workers: 1..WIRE_MAX_WORKERS. */
struct roles *roles_new(uint32_t max_workers);
/* May the owner of `key` (z85, KEY_TEXT - 1 characters, "" for none), whose role is `role`, say
 * `m`? PS_EAUTH: no, because `why`. A HELLO that is allowed is kept in mind for roles_note. */
int roles_check(struct roles *r, enum key_role role, uint32_t peer, const char *key,
	const struct msg *m, const char **why) PS_MUST_CHECK;
/* `m` leaves for `peer`: a WELCOME gives a worker id to the key of that peer's last HELLO. */
void roles_note(struct roles *r, uint32_t peer, const struct msg *m);
/* Frees and nulls *r; NULL is fine. */
void roles_free(struct roles **r);

#endif
