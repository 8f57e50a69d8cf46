/*
 * chunked_push.h - chunked pushes on the server. A worker may send the tensor frames of a push as
 * chunks, before the PUSH message (wire.h). This module verifies the chunks and keeps them until
 * the PUSH arrives.
 *
 * The chunks of a peer belong to its next message. The messages of one connection arrive in order.
 * If the next message is not the PUSH of the chunks, either this PUSH was lost or the peer violates
 * WIRE.md, and in both cases the server discards the chunks. If a connection closes before its
 * PUSH, nothing notifies this module, and the chunks stay until this module needs their place for
 * another peer (invariant 2).
 *
 * A worker with side connections (side.h) sends the parts of a push on several connections, which
 * keep no common order. Each of these chunks therefore has a mark. All of them count as chunks of
 * the worker's bulk connection. They stay until one of three events: the bulk connection sends the
 * PUSH with the seq of the mark, a chunk for another seq arrives, or the server calls
 * chunked_push_drop.
 *
 * The number of places is limited, and a place has the chunks of one peer. The places are shared
 * out among keys, because a key may have more connections than there are places. If a peer needs a
 * place and none is free, the key with the most places gives one up. If several keys have the most,
 * the key of this peer gives one up if it is among them. Therefore the workers of a key, which have
 * at most one place for each slot of the key, do not lose their places to a key with many
 * connections. If the server has no keys, all peers count as peers of one key.
 *
 * Invariants:
 * (1) a peer has at most WIRE_MAX_CHUNKS chunks of n_params values in total (asserted by
 *     chunked_push_keep; chunks_over_the_limit_are_discarded);
 * (2) at most `peers` peers have chunks, where `peers` is an argument of chunked_push_keep. If one
 *     more peer sends a chunk, the server chooses the key with the most places and, among its
 *     peers, the one that was idle for longest. It discards the chunks of this peer as if the
 *     network had lost them (asserted by allot, and by chunked_push_clear for the number of peers;
 *     the_push_of_the_longest_silent_peer_is_discarded);
 * (3) the chunks of a key have at most the bytes of chunked_push_limit, or belong to one peer.
 *     Above this limit the key loses the oldest of its own pushes (asserted by trim_key;
 *     a_key_has_a_limited_number_of_bytes).
 *
 * Promises:
 * (1) a key with any number of connections takes no place of a key that has fewer places
 *     (a_key_takes_no_place_of_another_one).
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_NET_CHUNKED_PUSH_H
#define SERVER_NET_CHUNKED_PUSH_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/side.h"
#include "proto/wire.h"

struct chunked_push; /* opaque, see chunked_push.c */

/* Makes a store for the chunks of at most max_peers peers. The parameter `peers` of
 * chunked_push_keep can lower this limit. `pass`, which may be NULL, says how to verify chunks; its
 * engine must outlive the store. Returns PS_ENOMEM if there is no memory. */
int chunked_push_new(struct chunked_push **out, size_t n_params, size_t max_peers,
	const struct wire_pass *pass) PS_MUST_CHECK;
/* Frees *a and sets it to NULL; *a may be NULL. */
void chunked_push_free(struct chunked_push **a);
/* Sets the maximum number of bytes of the chunks of each key; 0: no limit. */
void chunked_push_limit(struct chunked_push *a, size_t bytes);
/* Verifies and keeps the tensor frame of `f`, a message of a peer with this key, or with the key ""
 * if the server has no keys. `mark` is NULL for a chunk without a mark. After the call, at most
 * `peers` (>= 1) peers have chunks. Returns PS_EPROTO if `f` has no valid tensor frame, or if its
 * mark is wrong. Returns PS_EAGAIN if the peer has too many chunks, because an earlier PUSH was
 * lost. In both cases of failure, the function discards all chunks of the peer. */
int chunked_push_keep(struct chunked_push *a, uint32_t peer, const char *key,
	const struct side_mark *mark, struct frames *f, size_t peers) PS_MUST_CHECK;
/* Completes `f`, a message of `peer`, with the peer's chunks. If the store has as many chunks of
 * the peer as the message says, the function inserts these chunks before the message's own tensor
 * frames. If the numbers differ, the function returns PS_EAGAIN, and the caller must treat the
 * message as lost. */
int chunked_push_join(struct chunked_push *a, uint32_t peer, struct frames *f) PS_MUST_CHECK;
/* Returns the seq of the PUSH that the newest call of chunked_push_join has completed with chunks
 * that had marks, or 0 if it has completed none. */
uint64_t chunked_push_joined(const struct chunked_push *a);
/* Returns the number of chunks that the newest call of chunked_push_keep or chunked_push_join has
 * discarded: chunks of its peer, or of another peer with the same key. If this happens often, the
 * peer is not correct. */
size_t chunked_push_wasted(const struct chunked_push *a);
/* Discards the chunks of `peer`. */
void chunked_push_drop(struct chunked_push *a, uint32_t peer);
/* Discards all chunks. Called after all connections were closed. */
void chunked_push_clear(struct chunked_push *a);

#endif
