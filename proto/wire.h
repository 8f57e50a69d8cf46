/*
 * wire.h - converts frames to struct msg and back. Only this code uses protobuf and checks
 * untrusted sizes.
 *
 * A message is one header frame (protobuf `Message`). One frame per slice follows in a PUSH or
 * PARAMS: little-endian float32, exactly 4 * count bytes. WIRE.md specifies every field and every
 * refusal.
 *
 * Invariants:
 * (1) whatever the input, decode uses only the memory of wire_new and wire_resize. It never reads
 *     out of bounds, recurses or aborts (tests/fuzz/wire.c; tests/unit/test_wire_hostile.c,
 *     amplifying_headers_allocate_nothing);
 * (2) decode succeeds as a whole or fails: after an error m->type is 0 and the caller must not use
 *     *m (tests/unit/test_wire_hostile.c, mutants_are_refused_or_in_range);
 * (3) decode(encode(m)) equals m for every valid m, byte for byte in the slices
 *     (tests/unit/test_wire.c, every_message_survives_the_round_trip).
 * Thread: one struct wire belongs to one thread. A decoded message lives until the next decode or
 * free.
 */
#ifndef PROTO_WIRE_H
#define PROTO_WIRE_H
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>
#include "common/err.h"
#include "proto/lane.h"
#include "proto/msg.h"

/* Checksum and peak of a tensor frame that arrived before its PUSH. */
struct chunk {
	uint64_t xxh3;
	uint32_t peak; /* see struct slice */
};

/*
 * The frames of one message, header first.
 *
 * A chunked push sends its first tensor frames before the PUSH. Each is a message of its own with a
 * header of one zero byte, which is not valid protobuf. So the receiver checks one chunk while the
 * next is on its way, and the sender computes the checksum of the one after that.
 */
struct frames {
	size_t n;        /* 1 + slices */
	size_t n_chunks; /* frames 1 to n_chunks are chunks */
	struct chunk chunk[WIRE_MAX_CHUNKS];
	zmq_msg_t frame[1 + WIRE_MAX_SLICES];
};

struct wire; /* opaque: protobuf arena and aligned tensor memory */

/* Creates a struct wire. `n_params` is the maximum of floats in a message; 0 (before WELCOME)
 * refuses every slice. PS_ENOMEM. */
int wire_new(struct wire **out, size_t n_params) PS_MUST_CHECK;
/* Frees the struct and sets *w to NULL; *w may be NULL. */
void wire_free(struct wire **w);
/* Sets n_params. Call wire_resize when WELCOME has brought the model. PS_ENOMEM: the old value
 * stays. */
int wire_resize(struct wire *w, size_t n_params) PS_MUST_CHECK;

/*
 * Decodes one message. Slice data point into aligned frames, or else to copies in w's memory, so
 * the frames must outlive *m. On an error *why (`why` may be NULL) becomes one sentence for the log
 * and the ERROR reply, valid until the next decode. PS_EPROTO: the message is malformed, has a
 * wrong checksum or exceeds a limit. PS_EVERSION: the peer of a HELLO or WELCOME has no common
 * version or requires an unknown feature. PS_EAGAIN: the chunks belong to another PUSH, because
 * messages were lost.
 */
int wire_decode(struct wire *w, struct frames *f, struct msg *m, const char **why) PS_MUST_CHECK;
/* Makes wire_decode refuse from now on the HELLO of a worker that lacks a feature which servers
 * require (WIRE.md, "Versions"). Do not call wire_serve to read a log, because the log of an older
 * release may contain the HELLO of an older worker. */
void wire_serve(struct wire *w);
/* Makes the header frame of a chunk. PS_ENOMEM. */
int wire_encode_chunk_header(zmq_msg_t *header) PS_MUST_CHECK;
/* Returns 1 if the message is a chunk. Do not pass a chunk to wire_decode. */
int wire_is_chunk(struct frames *f);
/* Returns the number of chunks that a PUSH header states, not verified; 0 for other types. */
size_t wire_chunks_wanted(struct frames *f);
/* Returns 1 if the message has no tensor frame, and its PUSH or PARAMS header names shared memory
 * instead; *ref then has its numbers. They are not verified. */
int wire_lane_ref(struct frames *f, struct lane_ref *ref);
/* Copies `count` floats from memory that another process may change, and sets the checksum and the
 * peak of the copy. */
void wire_copy_chunk(float *to, const void *from, size_t count, struct chunk *chunk);
/* Computes checksum and peak of a chunk. PS_EPROTO: the size is zero or not a multiple of 4. */
int wire_check_chunk(zmq_msg_t *frame, struct chunk *chunk) PS_MUST_CHECK;
/* Makes wire_decode leave the values of PARAMS unchecked from now on. The slices of PARAMS then
 * have no data, and wire_values checks the values later. */
void wire_defer(struct wire *w);
/* Checks the values of PARAMS `p` in its frames `f`, and copies them to `to` (n_params floats) in
 * the same pass. `to` NULL: the function copies nothing. PS_EPROTO: a checksum is wrong. */
int wire_values(struct frames *f, const struct msg_params *p, float *to) PS_MUST_CHECK;
/*
 * Encodes `m` into new header and tensor frames, with copies of the slice data. Computes each
 * slice's xxh3 unless it is nonzero; a replay has the checksum of the first transmission.
 * PS_ENOMEM, PS_ETOOBIG: the caller has nothing to release.
 */
int wire_encode(const struct msg *m, struct frames *f) PS_MUST_CHECK;
/* Encodes only the header frame of `m`. The caller shares existing tensor frames with
 * zmq_msg_copy. */
int wire_encode_header(const struct msg *m, zmq_msg_t *header) PS_MUST_CHECK;
/* Makes a tensor frame with a copy of the slice's values, for sending it more than once. Computes
 * s->xxh3 in the same pass unless it is nonzero. PS_ENOMEM. */
int wire_encode_slice(struct slice *s, zmq_msg_t *frame) PS_MUST_CHECK;
/* Returns the XXH3-64 of `count` floats, the checksum of a slice. */
uint64_t wire_checksum(const float *data, size_t count);
/* Like wire_checksum, for values that are produced block by block. `next` sets *values to the next
 * block and returns its number of values, 0 after the last block. */
typedef size_t wire_block_fn(void *arg, const float **values);
uint64_t wire_checksum_blocks(wire_block_fn *next, void *arg);

/* Receives one whole message without blocking. 1: received. 0: none. PS_EPROTO: the message has too
 * many parts or too large a header; it is discarded. PS_ENET. `peer` is for ROUTER sockets, else
 * NULL: the function removes the identity frame, and *peer becomes the nonzero number in libzmq's
 * own 5-byte id. An id that the client chose is PS_EPROTO. */
int wire_recv(void *socket, uint32_t *peer, struct frames *f) PS_MUST_CHECK;
/* Like wire_recv for a DEALER socket, but waits for a message for at most `ms` milliseconds or
 * until a signal. */
int wire_recv_within(void *socket, int ms, struct frames *f) PS_MUST_CHECK;
/* Sends all frames without blocking and leaves `f` empty. `peer` is 0 for a DEALER socket.
 * PS_EAGAIN (the peer's queue is full), PS_EUNREACHABLE (ROUTER: no such peer): nothing was sent,
 * and the caller keeps `f`. */
int wire_send(void *socket, uint32_t peer, struct frames *f) PS_MUST_CHECK;
/* The value of ZMQ_SNDBUF on both sides. By default the kernel accepts megabytes of a tensor before
 * the peer reads any. With a small buffer the data are still in the CPU's caches when the peer
 * reads them. A small buffer limits a connection with a round-trip time of t seconds to twice its
 * size / t bytes per second. With keys the kernel's default is better: the sender does not block,
 * and encrypts the next message during the transfer. */
#define WIRE_SEND_BUFFER(has_keys) ((has_keys) ? -1 : 384 << 10)
static inline void frames_init(struct frames *f)
{
	f->n = f->n_chunks = 0;
}
/* Moves the frames of `from` to the empty `to`; `from` becomes empty. */
void frames_move(struct frames *to, struct frames *from);
/* Closes every frame. Idempotent. */
static inline void frames_release(struct frames *f)
{
	while (f->n > 0)
		(void)zmq_msg_close(&f->frame[--f->n]);
	f->n_chunks = 0;
}

/* Returns 1 if `text` has no control characters, the rule for names, devices, hosts and models. */
int wire_is_line(const char *text);

#endif
