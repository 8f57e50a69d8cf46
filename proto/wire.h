/*
 * wire.h - frames <-> struct msg. The only code that sees protobuf, and the only judge of untrusted
 * sizes.
 *
 * A message is one header frame (protobuf `Message`) followed by one frame per slice of a PUSH or
 * PARAMS: little-endian float32, exactly 4 * count bytes. WIRE.md specifies every field and
 * refusal.
 *
 * Invariants:
 * (1) no input makes decode allocate more than WIRE_MAX_BODY_MEMORY outside the arenas made at
 *     wire_new, read out of bounds, recurse, or abort;
 * (2) decode is all or nothing: on an error *m is MSG type 0 and nothing of it may be used;
 * (3) decode(encode(m)) equals m for every valid m, byte for byte in the slices.
 * Thread: one struct wire belongs to one thread. A decoded message lives until the next decode or
 * free.
 */
#ifndef PROTO_WIRE_H
#define PROTO_WIRE_H
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>
#include "common/err.h"
#include "proto/msg.h"

/* What is known of a tensor frame that was sent before its PUSH, and read then. */
struct chunk {
	uint64_t xxh3;
	uint32_t peak; /* see struct slice */
};

/*
 * The frames of one message, header first.
 *
 * A chunked push: the first tensor frames are sent before the PUSH, each as a message of its own
 * behind a header of one zero byte, which is no protobuf. The receiver reads them while the others
 * travel, and the sender meanwhile computes the checksums of the next.
 */
struct frames {
	size_t n;        /* 1 + slices */
	size_t n_chunks; /* frames 1 to n_chunks were sent before the message */
	struct chunk chunk[WIRE_MAX_CHUNKS];
	zmq_msg_t frame[1 + WIRE_MAX_SLICES];
};

struct wire; /* opaque: protobuf arena and aligned tensor memory */

/* `n_params`: the most floats a message may carry; 0 refuses every slice (before WELCOME).
 * PS_ENOMEM. */
int wire_new(struct wire **out, size_t n_params) PS_MUST_CHECK;
/* Frees and nulls *w; NULL is fine. */
void wire_free(struct wire **w);
/* The model became known (WELCOME): make room for n_params floats. PS_ENOMEM leaves the old room.
 */
int wire_resize(struct wire *w, size_t n_params) PS_MUST_CHECK;

/*
 * Decode. Slices' data points into the frames when aligned, else into w's memory: the frames must
 * outlive the use of *m. PS_EPROTO (malformed, wrong checksum, over a limit), PS_EVERSION (HELLO
 * or WELCOME of a peer that speaks none of our versions or requires an unknown feature), PS_EAGAIN
 * (the chunks are not of this PUSH: messages were lost), with the reason in `why` (may be NULL),
 * valid until the next decode: one sentence for the log and the ERROR reply.
 */
int wire_decode(struct wire *w, struct frames *f, struct msg *m, const char **why) PS_MUST_CHECK;
/* The header of a chunk. PS_ENOMEM. */
int wire_encode_chunk_header(zmq_msg_t *header) PS_MUST_CHECK;
/* 1: the message is a chunk, which is not for wire_decode. */
int wire_is_chunk(struct frames *f);
/* The number of chunks that a header announces; 0 for all but a PUSH. wire_decode checks it. */
size_t wire_chunks_wanted(struct frames *f);
/* Compute what is to be known of a chunk. PS_EPROTO: it is not 4 bytes to a value. */
int wire_check_chunk(zmq_msg_t *frame, struct chunk *chunk) PS_MUST_CHECK;
/* From now on the values of PARAMS are left alone: their slices have no data, and wire_values looks
 * them through when they are wanted. */
void wire_defer(struct wire *w);
/* The values of PARAMS `p` that came in `f`: PS_EPROTO for a wrong checksum. They are copied into
 * `to` (n_params floats) in the pass that checks them; NULL: they stay where they are. */
int wire_values(struct frames *f, const struct msg_params *p, float *to) PS_MUST_CHECK;
/*
 * Encode header and tensor frames into fresh frames; slice data is copied. Each slice's xxh3 is
 * computed unless it is nonzero (a replay: the checksum of the first sending is sent again).
 * PS_ENOMEM, PS_ETOOBIG: nothing to release.
 */
int wire_encode(const struct msg *m, struct frames *f) PS_MUST_CHECK;
/* Only the header frame of `m`; tensor frames are shared by the caller with zmq_msg_copy. */
int wire_encode_header(const struct msg *m, zmq_msg_t *header) PS_MUST_CHECK;
/* A fresh tensor frame with a copy of the slice's values, for one that is sent more than once.
 * Fills s->xxh3, in the same pass, unless it is nonzero. PS_ENOMEM. */
int wire_encode_slice(struct slice *s, zmq_msg_t *frame) PS_MUST_CHECK;
/* XXH3-64 of `count` floats, the checksum of a slice. */
uint64_t wire_checksum(const float *data, size_t count);
/* The same of values that become known block by block: `next` sets *values to the next block and
 * returns the number of its values, 0 after the last. */
typedef size_t wire_block_fn(void *arg, const float **values);
uint64_t wire_checksum_blocks(wire_block_fn *next, void *arg);

/* Receive every part of one message without waiting: 1 got one, 0 none, PS_EPROTO too many parts or
 * a header over the limit (all parts consumed and dropped), PS_ENET. With `peer` (ROUTER sockets)
 * the identity frame is taken off: libzmq's own 5-byte ids become a nonzero number; a client-chosen
 * id is PS_EPROTO. */
int wire_recv(void *socket, uint32_t *peer, struct frames *f) PS_MUST_CHECK;
/* The same of a DEALER socket, waiting at most `ms` milliseconds, or until a signal, for the
 * message. */
int wire_recv_within(void *socket, int ms, struct frames *f) PS_MUST_CHECK;
/* Send all frames without waiting and leave `f` empty: PS_EAGAIN (the peer's queue is full) and
 * PS_EUNREACHABLE (ROUTER: no such peer) leave `f` the caller's, unsent as a whole. peer 0: a
 * DEALER socket. */
int wire_send(void *socket, uint32_t peer, struct frames *f) PS_MUST_CHECK;
/* For ZMQ_SNDBUF, on both sides. The kernel would take megabytes of a tensor before its peer reads
 * any; of so little, what the one side writes is in the caches still when the other reads it. Over
 * a line with a round trip of t s it bounds a connection to twice as many bytes / t. With keys the
 * kernel's own size: a sender that does not wait encrypts the next message meanwhile. */
#define WIRE_SEND_BUFFER(has_keys) ((has_keys) ? -1 : 384 << 10)
void frames_init(struct frames *f);
/* `to` is empty, and `from` is then. */
void frames_move(struct frames *to, struct frames *from);
/* Close every frame; idempotent. */
void frames_release(struct frames *f);

/* No control characters: what a name, a device, a host and a model may be. */
int wire_is_line(const char *text);

#endif
