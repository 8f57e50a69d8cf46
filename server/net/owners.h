/*
 * owners.h - counts the weights that wait to be sent, for each key. libzmq holds the weights that a
 * peer requested and does not read, and each version of the weights that waits needs its own buffer
 * (param_buffers.h). A key with many connections could thus fill the memory of the server.
 *
 * Invariants:
 * (1) the number of bytes of a key is the size of all counted frames of this key that exist
 *     (asserted by on_sent for the key and the bytes of each frame, and by owners_free for the
 *     end, when no frame exists).
 *
 * Promises:
 * (1) while the bytes that wait for a key reach the limit, new requests of the key are refused;
 *     requests that the core has accepted and answers later can exceed the limit
 *     (a_key_has_a_limit_for_all_its_connections);
 * (2) a key that waits for its weights does not limit other keys
 *     (a_key_has_a_limit_for_all_its_connections).
 *
 * If more than OWNERS keys wait for weights at the same time, or if the table of connections needs
 * the same entry for two connections, the bytes of some connections are not counted.
 *
 * Only the loop's thread may call these functions, but libzmq's threads also free the frames that
 * owners_count has counted.
 */
#ifndef SERVER_NET_OWNERS_H
#define SERVER_NET_OWNERS_H
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>
#include "common/err.h"

#define OWNERS      256u  /* maximum number of keys for which weights wait at the same time */
#define OWNER_PEERS 4096u /* size of the table of connections */

struct owners; /* opaque, see owners.c */

/* Makes an empty table. Returns NULL if there is no memory. */
struct owners *owners_new(void) PS_MUST_CHECK;
/* Frees *o and sets it to NULL; *o may be NULL. Call this function after the last counted frame was
 * closed. */
void owners_free(struct owners **o);
/* Notes that connection `peer` belongs to `key` and requests weights. Returns 0 if at least `limit`
 * bytes of weights wait for connections of this key; the caller must then refuse the request. */
int owners_may_pull(struct owners *o, uint32_t peer, const char *key, size_t limit);
/* Counts `frame`, weights for connection `peer`, until libzmq has sent or dropped the frame. If
 * there is no memory, or if the key of `peer` is not known, the function changes nothing. */
void owners_count(struct owners *o, uint32_t peer, zmq_msg_t *frame);
/* Returns the number of bytes of weights that wait for connections of `key`. */
size_t owners_waiting(const struct owners *o, const char *key);

#endif
