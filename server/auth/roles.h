/*
 * roles.h - says which messages each role is allowed to send, and which key owns a worker id.
 *
 * Invariants:
 * (1) a message whose rights are checked has a type of the table in roles.c (asserted by
 *     roles_check; tests/wire/test_keys.py, test_keys_table).
 *
 * Promises:
 * (1) a message type without a row in the table is refused for every role (tests/wire/test_keys.py,
 *     test_keys_table);
 * (2) a worker id and an incarnation belong to the key whose HELLO got them, from the assignment
 *     on, even if the WELCOME is late or is never sent (a_worker_id_belongs_to_its_key;
 *     tests/wire/test_keys.py, test_another_workers_stamp_is_refused).
 *
 * roles_new allocates all memory. The functions use no socket and no clock. Only the owner's thread
 * may call the functions; in auth.c this is the loop's thread.
 */
#ifndef SERVER_AUTH_ROLES_H
#define SERVER_AUTH_ROLES_H
#include "common/authorized_keys.h"
#include "proto/msg.h"

struct roles; /* opaque, see roles.c */

/* Makes an empty table of the owners of worker ids. max_workers: 1..WIRE_MAX_WORKERS. Returns NULL
 * if there is no memory. */
struct roles *roles_new(uint32_t max_workers);
/* Checks whether a peer whose key is `key`, with role `role`, may send `m`. `key` has KEY_TEXT - 1
 * characters of Z85, or is "". If the peer may not send `m`, returns PS_EAUTH, and *why has the
 * reason. The function stores the key of an accepted HELLO for roles_assign. */
int roles_check(struct roles *r, enum key_role role, uint32_t peer, const char *key,
	const struct msg *m, const char **why) PS_MUST_CHECK;
/* Called when the server has assigned this worker id and incarnation to `peer`, before it sends the
 * WELCOME. From now on, this id and incarnation belong to the key of the peer's newest HELLO. */
void roles_assign(struct roles *r, uint32_t peer, uint32_t worker, uint32_t incarnation);
/* Frees *r and sets it to NULL; *r may be NULL. */
void roles_free(struct roles **r);

#endif
