/*
 * auth.h - authentication and authorization of peers.
 *
 * With CURVE, libzmq verifies that a connecting peer has the secret key of the public key that it
 * presents. After this check, libzmq asks the ZAP handler (ZeroMQ RFC 27) whether to accept a
 * connection with this key. The ZAP handler is a socket in the event loop and answers from the list
 * in memory (common/authorized_keys.h). Each message of an accepted connection carries the key
 * (libzmq's "User-Id"). The role of the key decides which messages the peer may send (roles.c has
 * the table).
 *
 * auth_reload reads the file of the list again on a thread of libuv's pool, so that a disk that
 * hangs does not stop the loop. When the file changes, the old list in memory stays in use until
 * the file has been read without an error.
 *
 * Invariants:
 * (1) at most one read of the list is under way (asserted by auth_reload and on_list_read;
 *     a_list_on_a_hanging_disk_blocks_nothing).
 *
 * Promises:
 * (1) a peer without a positive ZAP answer has no connection (only_keys_of_the_list_get_in,
 *     test_nothing_of_an_unauthenticated_peer_is_read_or_answered);
 * (2) the key is the identity: what a message claims about its sender can only reduce the rights of
 *     the sender (a_role_decides_which_messages_are_allowed,
 *     test_another_workers_stamp_is_refused);
 * (3) when the server has read a new list, a key that is not on it has no rights, even on open
 *     connections (a_deleted_key_is_refused_on_its_open_connection, test_sighup_revokes);
 * (4) a worker id belongs to the key that received the id in WELCOME, and a worker's name belongs
 *     to the worker's key (a_worker_id_belongs_to_its_key, a_name_belongs_to_its_key);
 * (5) if a reload is requested during a read, another read begins after it
 *     (a_list_on_a_hanging_disk_blocks_nothing).
 *
 * Only the loop's thread may call these functions. While a read of the list is under way, only a
 * thread of the pool uses its result.
 */
#ifndef SERVER_AUTH_AUTH_H
#define SERVER_AUTH_AUTH_H
#include <uv.h>
#include "common/authorized_keys.h"
#include "common/err.h"
#include "proto/wire.h"

/* A function of this type reads the list of authorized keys: authorized_keys_read, or a test's own
 * function. It runs on a thread of libuv's pool. */
typedef int auth_read_fn(struct authorized_keys **out, const char *path, struct err *e);

#define AUTH_CONNECTIONS 16u

struct auth_config {
	uv_loop_t *loop;
	const char *key_file; /* file of the server's secret key */
	/* file of the list of authorized keys; NULL: AUTHORIZED_KEYS_FILE in the directory of
	 * key_file */
	const char *keys_file;
	uint32_t max_workers;
	/* maximum number of workers' HELLOs that the server accepts in a second from all keys
	 * together */
	uint32_t hellos;
	uint32_t sides;     /* maximum number of side connections of each worker */
	auth_read_fn *read; /* the function that reads the list; NULL: authorized_keys_read */
};

struct auth_stats {
	/* numbers of handshakes: with keys on the list, with other keys, and with keys on the list
	 * above their quota */
	uint64_t admitted, refused, deferred;
	/* messages that were refused because the role of the key does not allow them */
	uint64_t unauthorized;
	/* keys: number of keys on the list; worker_keys: number of workers' keys on the list */
	size_t keys, worker_keys;
};

struct auth; /* opaque, see auth.c */

/* Reads the key file and the list of keys. If a file is missing or malformed, returns PS_EUSAGE,
 * and the error names the file and the reason. */
int auth_new(struct auth **out, const struct auth_config *cfg, struct err *e) PS_MUST_CHECK;
/* Opens the ZAP handler, which answers the handshakes on all sockets of `context`. Call auth_open
 * before auth_secure and bind. */
int auth_open(struct auth *a, void *context, struct err *e) PS_MUST_CHECK;
/* Makes `socket` accept only connections with a key on the list. Call auth_secure before bind. */
int auth_secure(struct auth *a, void *socket, struct err *e) PS_MUST_CHECK;
/* Connects to `socket` with a random key, over a private address, and checks that the key is
 * refused. Returns PS_EAUTH if the server did not refuse the key. While the function waits for the
 * result, it runs the event loop. */
int auth_self_test(struct auth *a, void *socket, struct err *e) PS_MUST_CHECK;
/* Checks whether the sender of `f` may send anything: its key must be on the list. `is_chunk` is 1
 * if `f` is a chunk (chunked_push.h), which only a worker's key may send. The caller must call
 * auth_admit before it decodes or keeps the message. If the sender may not send anything, returns
 * PS_EAUTH, and *why has the reason. */
int auth_admit(struct auth *a, struct frames *f, int is_chunk, const char **why) PS_MUST_CHECK;
/* Checks whether the sender of `f` may send `m`. If the sender may not send `m`, returns PS_EAUTH,
 * and *why has the reason. If the key is over its quota (quota.h), returns PS_EAGAIN, and the
 * server does not answer the message. In a HELLO the function writes the key to `owner`, and
 * appends the start of the key to the worker's name if it has one. For a HELLO the function
 * therefore changes both `m` and `f`. */
int auth_check(struct auth *a, uint32_t peer, struct frames *f, struct msg *m,
	const char **why) PS_MUST_CHECK;
/* Returns the maximum number of worker slots for each worker's key, out of `slots` slots in
 * total. */
uint32_t auth_share(const struct auth *a, uint32_t slots);
/* auth_even_share returns the number of slots that each worker's key gets in any case, which is 0
 * if there are more keys than slots. auth_left_over returns the number L of slots that remain after
 * that: L of the keys get one slot more. */
uint32_t auth_even_share(const struct auth *a, uint32_t slots);
uint32_t auth_left_over(const struct auth *a, uint32_t slots);
/* Returns the maximum number of open connections of a key. For each slot of its share, these are
 * the two connections of the worker, its side connections, and two more: the server may not have
 * noticed yet that the worker has lost its previous two. The maximum includes AUTH_CONNECTIONS
 * more, for programs such as cnn-ctl. */
uint32_t auth_connections(const struct auth *a);
/* Returns 1 if `key` is on the list. */
int auth_is_listed(const struct auth *a, const char *key);
/* Called when the server has assigned this worker id and incarnation to `peer`. From now on, this
 * id and incarnation belong to the key of the peer. */
void auth_assign(struct auth *a, uint32_t peer, uint32_t worker, uint32_t incarnation);
/* Reads the list again, on a thread of the pool. */
void auth_reload(struct auth *a);
/* Returns 1 if a read of the list is under way. The caller must run the loop until the read has
 * ended before it calls auth_free. `a` may be NULL. */
int auth_busy(const struct auth *a);
const struct auth_stats *auth_stats(const struct auth *a);
/* Closes socket and handles. The loop must run once more before auth_free. `a` may be NULL. */
void auth_stop(struct auth *a);
/* Frees *a and sets it to NULL; *a may be NULL. */
void auth_free(struct auth **a);

#endif
