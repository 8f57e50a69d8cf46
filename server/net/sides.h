/*
 * sides.h - the side connections of workers (proto/side.h, WIRE.md "Side connections"), which carry
 * parts of large tensors besides the bulk connection of their worker.
 *
 * A worker that joins receives a secret in WELCOME. A connection becomes a side connection of the
 * worker's session if it presents the secret, and has the same key as the connection of the
 * worker's HELLO. Parts that arrive on the side connection then belong to pushes of this session,
 * and the server sends parts of the session's weights on it. When the session ends, the server
 * closes its side connections.
 *
 * Invariants:
 * (1) a connection is the side connection of at most one session, and no bulk connection (asserted
 *     by sides_greet; a_side_connection_belongs_to_one_session);
 * (2) each secret opens each side connection at most once, and a session has at most `max` of them
 *     (asserted by sides_greet; a_secret_opens_each_side_connection_once).
 *
 * Promises:
 * (1) a connection becomes a side connection of a session only if it sends the secret of the
 *     newest WELCOME of this session, and has the same key as the connection of the HELLO
 *     (only_the_newest_secret_opens_a_side_connection,
 *     a_side_connection_has_the_key_of_its_session);
 * (2) when a session ends, its side connections are closed, and from then on its secret opens no
 *     side connection (side_connections_end_with_their_session).
 *
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_NET_SIDES_H
#define SERVER_NET_SIDES_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/msg.h"
#include "proto/side.h"
#include "server/core/core.h"

struct line_budget;
struct sides; /* opaque, see sides.c */

/* Makes a table for sessions with at most `max` side connections each (1 to MAX_SIDES). `lines`,
 * which is borrowed, limits the log lines about each worker. Error: PS_ENOMEM. */
int sides_new(struct sides **out, uint32_t max_workers, uint32_t max,
	struct line_budget *lines) PS_MUST_CHECK;
/* Frees *s and sets it to NULL; *s may be NULL. Closes no connection. */
void sides_free(struct sides **s);
/* Notes that a HELLO with `key` arrived on connection `peer`. If the server has no keys, `key` is
 * "". */
void sides_hello(struct sides *s, uint32_t peer, const char *key);
/* Adds a secret to `m`, a WELCOME that the server is about to send on connection `peer`. Closes the
 * side connections that this worker had before. The secret is new, unless the worker has sent HELLO
 * again before it used the previous secret. Returns the bulk connection that this worker had
 * before, or 0. */
uint32_t sides_welcome(struct sides *s, uint32_t peer, struct msg_welcome *m);
/* Makes connection `peer` with descriptor `fd` and this key a side connection. Returns PS_EAUTH if
 * the secret, the key or the number of `g` is wrong, or if `peer` already is a side connection or a
 * bulk connection. */
int sides_greet(struct sides *s, const struct side_greeting *g, uint32_t peer, int fd,
	const char *key, const char **why) PS_MUST_CHECK;
/* Returns the bulk connection of the session to which side connection `peer` belongs, or 0 if
 * `peer` is no side connection. */
uint32_t sides_session(const struct sides *s, uint32_t peer);
/* Returns 1 if `peer` is the bulk connection of a session that has a side connection. */
int sides_has(const struct sides *s, uint32_t peer);
/* Writes the side connections of the session with bulk connection `bulk` to `peer`, in the order of
 * their numbers, and returns their number. Returns 0 if a side connection that the worker had
 * opened is gone. */
uint32_t sides_of(const struct sides *s, uint32_t bulk, uint32_t peer[MAX_SIDES]);
/* Returns the number of bytes that the side connections of the session with bulk connection `bulk`
 * have moved since the last call. */
uint64_t sides_moved(struct sides *s, uint32_t bulk);
/* Ends the session of connection `peer`, a side connection that has closed or breaks the rules, and
 * closes all side connections of this session. Returns 0 if `peer` is no side connection. */
int sides_end(struct sides *s, uint32_t peer);
/* Ends the sessions whose workers have left or no longer use their bulk connection. */
void sides_check(struct sides *s, const struct core *c);
/* Returns the number of open side connections. */
uint32_t sides_open(const struct sides *s);
/* Forgets all side connections; called after all connections were closed. */
void sides_clear(struct sides *s);

#endif
