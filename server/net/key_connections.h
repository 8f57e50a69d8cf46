/*
 * key_connections.h - counts the open connections of each key. libzmq reports the key of a
 * connection only with its messages, so a connection counts from its first message on.
 *
 * After a connection is closed, the system gives its descriptor to a new one, although messages of
 * the old one may still wait. The number `peer` is different for each connection, so it shows which
 * of the two has sent a message.
 *
 * Invariants:
 * (1) the counter of a key is the number of descriptors that are counted for this key (asserted by
 *     key_connections_remove, and by assert_counts for all keys; connections_count_for_their_key).
 *
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_NET_KEY_CONNECTIONS_H
#define SERVER_NET_KEY_CONNECTIONS_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

struct key_connections; /* opaque, see key_connections.c */

/* Makes a table for the descriptors below `fds`. Error: PS_ENOMEM. */
int key_connections_new(struct key_connections **out, uint32_t fds) PS_MUST_CHECK;
/* Frees *k and sets it to NULL; *k may be NULL. */
void key_connections_free(struct key_connections **k);
/* Returns 1 if connection `peer` with descriptor `fd` is already counted. */
int key_connections_has(const struct key_connections *k, uint32_t fd, uint32_t peer);
/* Counts a connection of `key`. Returns the number of connections of the key, or 0 if the key has
 * no entry and the table is full. */
uint32_t key_connections_add(
	struct key_connections *k, uint32_t fd, uint32_t peer, const char *key);
/* Stops counting the connection with descriptor `fd`. Does nothing if it was not counted. */
void key_connections_remove(struct key_connections *k, uint32_t fd);
/* Stops counting each connection whose bit in `open` is 0, except for the connection with
 * descriptor `but`. */
void key_connections_retain(struct key_connections *k, const unsigned char *open, uint32_t but);
/* Returns the key for which the connection with descriptor `fd` counts, or NULL if it does not
 * count. */
const char *key_connections_key(const struct key_connections *k, uint32_t fd);
/* Returns the number of connections of `key`. */
uint32_t key_connections_of(const struct key_connections *k, const char *key);

#endif
