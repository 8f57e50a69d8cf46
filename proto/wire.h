/*
 * wire.h - converts frames to struct msg and back. Only the code in proto/ uses protobuf and checks
 * untrusted sizes.
 *
 * A message is one header frame (protobuf `Message`). In a PUSH or PARAMS, one frame for each slice
 * follows the header frame. Such a frame has exactly `count` little-endian values: float32 of 4
 * bytes, or bfloat16 of 2 bytes (bf16.h). The data of a decoded slice are float32 in both cases.
 * WIRE.md specifies every field and every refusal.
 *
 * Invariants:
 * (1) a decoded message has a type, so m->type is 0 only if decode failed; the caller must then not
 *     use any part of *m (asserted by wire_decode in decode.c;
 *     tests/unit/test_wire_hostile.c, mutants_are_refused_or_in_range).
 *
 * Promises:
 * (1) for any input, decode uses only memory that wire_new and wire_resize have allocated, and it
 *     never reads out of bounds, recurses or aborts (tests/fuzz/wire.c;
 *     tests/unit/test_wire_hostile.c, amplifying_headers_allocate_nothing);
 * (2) decode(encode(m)) equals m for every valid m, byte for byte in the slices
 *     (tests/unit/test_wire.c, every_message_survives_the_round_trip).
 *
 * One struct wire belongs to one thread. A decoded message is valid until the next call of
 * wire_decode or wire_free.
 */
#ifndef PROTO_WIRE_H
#define PROTO_WIRE_H
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>
#include "common/engine.h"
#include "common/err.h"
#include "proto/lane.h"
#include "proto/msg.h"

/* This struct has the results of a pass over a tensor frame that arrived before its PUSH. */
struct chunk {
	uint64_t xxh3;
	uint32_t peak; /* largest magnitude, as in struct slice */
	/* the sum of squares, as in struct slice */
	uint64_t squared;
	double squares;
};

/* Returns the sum of the squares of at most ENGINE_BLOCK values. */
typedef double wire_squares_fn(const float *values, size_t n);

/* This struct says how to make the only pass over a gradient that arrives. The pass copies the
 * values if they are in memory of another process, or converts them from bfloat16, computes their
 * checksum, finds the largest magnitude, and computes the sum of squares, block by block, while a
 * block is in the caches. For chunks in bfloat16 there are two passes: the checksum is computed
 * when the chunk arrives, and the rest when the PUSH gives the encoding. */
struct wire_pass {
	/* the threads that make the pass; NULL: only the caller's thread */
	const struct engine *engine;
	wire_squares_fn *squares; /* sums the squares of a block; NULL: the sum is not needed */
	/* maximum number of values of a frame, from the first on, that are squared */
	uint64_t trained;
};

/*
 * This struct has the frames of one message. The first frame is the header.
 *
 * A chunked push sends its first tensor frames before the PUSH. Each of these frames is a message
 * of its own (a chunk). Three chunks can therefore make progress at the same time: the receiver
 * checks one, the second is on its way, and the sender computes the checksum of the third. The
 * header of a chunk is one zero byte, which is not valid protobuf, so a chunk is never taken for
 * another message.
 */
struct frames {
	size_t n;        /* number of frames: the header and one for each slice */
	size_t n_chunks; /* frames 1 to n_chunks are chunks */
	/* if wire_recv refuses the message, it sets fd to the descriptor of the connection on which
	 * the message arrived; -1: unknown */
	int fd;
	/* the public key of the sender, borrowed, if the message came through a ring (lane.h); ""
	 * if the server has no keys. NULL if the message came from a socket: then libzmq knows the
	 * key */
	const char *key;
	struct chunk chunk[WIRE_MAX_CHUNKS];
	zmq_msg_t frame[1 + WIRE_MAX_SLICES];
};

struct wire; /* opaque: protobuf arena and aligned tensor memory */

/* Creates a struct wire. `n_params` is the maximum number of tensor values in a message. If
 * `n_params` is 0, as in a worker before WELCOME, the decoder refuses every slice. Error:
 * PS_ENOMEM. */
int wire_new(struct wire **out, size_t n_params) PS_MUST_CHECK;
/* Frees the struct and sets *w to NULL; *w may be NULL. */
void wire_free(struct wire **w);
/* Sets n_params. A worker calls this function when a WELCOME has reported the size of the model.
 * After PS_ENOMEM, n_params still has its old value. */
int wire_resize(struct wire *w, size_t n_params) PS_MUST_CHECK;

/*
 * Decodes one message. The data of a slice point into its frame or, if the frame is not aligned or
 * has ENCODING_BF16, to w's memory. The frames must therefore outlive *m. On an error the function
 * sets *why (`why` may be NULL) to one sentence for the log and the ERROR reply. The sentence is
 * valid until the next call of wire_decode. Returns PS_EPROTO if the message is malformed, has a
 * wrong checksum or exceeds a limit. Returns PS_EVERSION if the peer of a HELLO or WELCOME has no
 * common version or requires an unknown feature. Returns PS_EAGAIN if the chunks belong to another
 * PUSH, because messages were lost.
 */
int wire_decode(struct wire *w, struct frames *f, struct msg *m, const char **why) PS_MUST_CHECK;
/* From now on, wire_decode refuses values with ENCODING_BF16. Do not call this function for a
 * struct wire that reads a log. */
void wire_only_exact(struct wire *w);
/* Sets the pass that wire_decode makes over gradients. The engine must outlive *w. */
void wire_use_pass(struct wire *w, const struct wire_pass *pass);
/* Makes the header frame of a chunk, which is one zero byte. Error: PS_ENOMEM. */
int wire_encode_chunk_header(zmq_msg_t *header) PS_MUST_CHECK;
/* Returns `protocol` of the newest HELLO or WELCOME that wire_decode has received. */
uint64_t wire_peer_protocol(const struct wire *w);
/* Returns 1 if the message is a chunk. Do not pass a chunk to wire_decode. */
int wire_is_chunk(struct frames *f);
/* Returns the number of chunks in the header of a PUSH, which the function does not check. Returns
 * 0 for other messages. */
size_t wire_chunks_wanted(struct frames *f);
/* Returns the seq in the header of a PUSH, which the function does not check, or 0. */
uint64_t wire_push_seq(struct frames *f);
/* If the message is a PARAMS whose one tensor frame is only a part of the weights, returns the
 * number of parts and sets *request to the request number. Both numbers are in the header, and the
 * function does not check them. Returns 0 for other messages. */
uint64_t wire_params_parts(struct frames *f, uint64_t *request);
/* Returns 1 if the header is one of a message of this type. The function checks only the type. */
int wire_has_type(struct frames *f, enum msg_type type);
/* Returns the public key of the sender, or NULL if it has none. */
const char *wire_key(struct frames *f);
/* If the message has no tensor frame and its PUSH or PARAMS header refers to shared memory instead,
 * returns 1 and sets *ref to the numbers in the header, which the function does not check. */
int wire_lane_ref(struct frames *f, struct lane_ref *ref);
/* Copies `count` floats from memory that another process may change, and sets *chunk to the results
 * for the copy. `pass` may be NULL, here and in wire_check_chunk: then there is no engine, and no
 * sum of squares. */
void wire_copy_chunk(float *to, const void *from, size_t count, struct chunk *chunk,
	const struct wire_pass *pass);
/* Makes the pass over a chunk. If the frame is not aligned for floats, the function computes only
 * its checksum. Returns PS_EPROTO if the size is zero or not a multiple of 4. */
int wire_check_chunk(
	zmq_msg_t *frame, struct chunk *chunk, const struct wire_pass *pass) PS_MUST_CHECK;
/* From now on, wire_decode does not check the values of PARAMS. The slices of a decoded PARAMS then
 * have no data, and the caller must check the values with wire_values. */
void wire_defer(struct wire *w);
/* Checks the values of PARAMS `p` in its frames `f`, and copies them to `to` (n_params floats) in
 * the same pass. If `to` is NULL, the function copies nothing. Returns PS_EPROTO if a checksum is
 * wrong. */
int wire_values(struct frames *f, const struct msg_params *p, float *to) PS_MUST_CHECK;
/*
 * Encodes `m` into new header and tensor frames, with copies of the slice data (wire_encode_slice).
 * The header gets the xxh3 of each slice; *m does not change. A slice of a replay already has its
 * xxh3, from the first transmission. After PS_ENOMEM or PS_ETOOBIG, the caller has nothing to
 * release.
 */
int wire_encode(const struct msg *m, struct frames *f) PS_MUST_CHECK;
/* Encodes only the header frame of `m`. The caller adds existing tensor frames to it with
 * zmq_msg_copy. */
int wire_encode_header(const struct msg *m, zmq_msg_t *header) PS_MUST_CHECK;
/* Makes a tensor frame with a copy of the slice's values, which the caller can send more than once.
 * Computes s->xxh3 in the same pass over the values, unless it is already set. With ENCODING_BF16,
 * the function rounds the values, and always computes s->xxh3 in a second pass. Error:
 * PS_ENOMEM. */
int wire_encode_slice(struct slice *s, zmq_msg_t *frame) PS_MUST_CHECK;
/* Returns the XXH3-64 of `count` floats, which is the checksum of a slice with these values. */
uint64_t wire_checksum(const float *data, size_t count);
/* Does the same as wire_checksum, with an engine that does a part of the work; NULL: there is
 * none. */
uint64_t wire_checksum_with(const float *data, size_t count, const struct engine *engine);
/* Does the same as wire_checksum_with for values that `fill` computes: fill(arg, i) computes block
 * i of ENGINE_BLOCK values. The engine computes and reads each block while the block is in the
 * caches. */
uint64_t wire_checksum_filled(const float *data, size_t count, engine_block_fn *fill, void *arg,
	const struct engine *engine);
/* Returns the checksum (XXH3-64) of a tensor frame that has these `size` bytes. */
uint64_t wire_frame_checksum(const void *bytes, size_t size);
/* wire_checksum_blocks computes the result of wire_checksum for values that are produced block by
 * block. A wire_block_fn sets *values to the next block and returns the number of its values, or 0
 * after the last block. */
typedef size_t wire_block_fn(void *arg, const float **values);
uint64_t wire_checksum_blocks(wire_block_fn *next, void *arg);

/* Receives one whole message without blocking. Returns 1 if it has received a message, and 0 if
 * there was none. Returns PS_EPROTO if the message has too many parts or too large a header, and
 * discards this message. Other error: PS_ENET. For a ROUTER socket, the function removes the
 * identity frame and sets *peer to the nonzero number in the 5-byte id that libzmq has assigned; if
 * the client has chosen the id itself, the function returns PS_EPROTO. For other sockets `peer`
 * must be NULL. */
int wire_recv(void *socket, uint32_t *peer, struct frames *f) PS_MUST_CHECK;
/* Receives a message on a DEALER socket, as wire_recv does, but waits for the message for at most
 * `ms` milliseconds or until a signal. */
int wire_recv_within(void *socket, int ms, struct frames *f) PS_MUST_CHECK;
/* Sends all frames without blocking and leaves `f` empty. `peer` is 0 for a DEALER socket. Returns
 * PS_EAGAIN if the peer's queue is full, and PS_EUNREACHABLE if a ROUTER socket has no such peer;
 * in both cases it has sent nothing, and the caller keeps `f`. */
int wire_send(void *socket, uint32_t peer, struct frames *f) PS_MUST_CHECK;
/* Server and worker both set ZMQ_SNDBUF to this value. By default the kernel accepts megabytes of a
 * tensor before the peer reads the first byte. With a small buffer the data are still in the CPU's
 * caches when the peer reads them. A small buffer also limits the speed of a connection: with a
 * round-trip time of t seconds, at most 2 * size / t bytes per second are possible. If the
 * connection is encrypted, the kernel's default is better, because the sender does not block and
 * encrypts the next message during the transfer. */
#define WIRE_SEND_BUFFER(has_keys) ((has_keys) ? -1 : 384 << 10)
static inline void frames_init(struct frames *f)
{
	f->n = f->n_chunks = 0;
	f->fd = -1;
	f->key = NULL;
}
/* Moves the frames of `from` to `to`, which must be empty. After the call `from` is empty. */
void frames_move(struct frames *to, struct frames *from);
/* Closes every frame. A call for closed frames has no effect. */
static inline void frames_release(struct frames *f)
{
	while (f->n > 0)
		(void)zmq_msg_close(&f->frame[--f->n]);
	f->n_chunks = 0;
}

/* Returns 1 if `text` has no control characters, as the protocol demands for names, devices, hosts
 * and models. */
int wire_is_line(const char *text);

#endif
