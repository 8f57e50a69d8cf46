/*
 * wire.c - fuzzes the codec of messages. Byte 0 gives the number of parameters that the receiver
 * expects, and says whether it defers the check of PARAMS. Byte 1 modulo 8 is the number of tensor
 * frames that are chunks. The other bits of byte 1 add checks: LONG_PASS adds a check of the
 * functions that make a pass over a long vector, SOCKETS a check of the functions that send and
 * receive, EXACT a check with a receiver that refuses bfloat16, and SHARED a check with a receiver
 * that shares its work with an engine. Then one byte for each tensor frame gives its number of
 * values; 255 ends the list. The remaining bytes are the header frame.
 *
 * The target checks that a decoded message, encoded and decoded again, is the same message
 * (proto/wire.h, promise 2), and that all functions that encode parts of a message or compute a
 * checksum agree. The sanitizers and assertions check invariant 1 and promise 1. A message of a
 * side connection (proto/side.h), encoded again, must be the same bytes, and wire_decode must
 * refuse it. The whole input is also a message in the ring of a lane, and what a hostile peer
 * writes to the memory of the ring.
 */
#include "proto/bf16.h"
#include "proto/checksum.h"
#include "proto/lane.h"
#include "proto/ring.h"
#include "proto/side.h"
#include "proto/wire.h"
#include "tests/support/fuzz_input.h"

#define LONG_PASS 128
#define SOCKETS   64
#define EXACT     32
#define SHARED    16

static double sum_squares(const float *values, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += (double)values[i] * (double)values[i];
	return sum;
}

static struct engine engine;
static const struct wire_pass shared_pass = {&engine, sum_squares, 64};

static void add_frame(struct frames *f, const void *data, size_t size)
{
	PS_ASSERT(f->n <= WIRE_MAX_SLICES);
	PS_ASSERT(zmq_msg_init_size(&f->frame[f->n], size) == 0);
	memcpy(zmq_msg_data(&f->frame[f->n]), data, size);
	f->n++;
}

/* The state of next_block, which yields the values of a slice in blocks of at most 3. */
struct blocks {
	const float *at;
	size_t left;
};

static size_t next_block(void *arg, const float **values)
{
	struct blocks *b = arg;
	size_t n = b->left < 3 ? b->left : 3;

	*values = b->at;
	b->at += n;
	b->left -= n;
	return n;
}

/* Check that the functions that encode only the header or only one slice give the same bytes as
 * wire_encode. */
static void check_parts(const struct msg *m, const struct slices *s, struct frames *f)
{
	zmq_msg_t part;

	PS_ASSERT(wire_encode_header(m, &part) == 0);
	PS_ASSERT(zmq_msg_size(&part) == zmq_msg_size(&f->frame[0]));
	PS_ASSERT(
		memcmp(zmq_msg_data(&part), zmq_msg_data(&f->frame[0]), zmq_msg_size(&part)) == 0);
	zmq_msg_close(&part);
	for (uint32_t i = 0; s && i < s->n; i++) {
		struct slice slice = s->slice[i];
		struct blocks blocks = {slice.data, slice.count};
		struct chunk chunk;
		float copy[256];

		PS_ASSERT(wire_encode_slice(&slice, &part) == 0);
		PS_ASSERT(zmq_msg_size(&part) == zmq_msg_size(&f->frame[1 + i]));
		PS_ASSERT(memcmp(zmq_msg_data(&part), zmq_msg_data(&f->frame[1 + i]),
				  zmq_msg_size(&part)) == 0);
		zmq_msg_close(&part);
		if (slice.encoding == ENCODING_BF16)
			continue;
		PS_ASSERT(memcmp(slice.data, zmq_msg_data(&f->frame[1 + i]),
				  slice.count * sizeof(float)) == 0);
		PS_ASSERT(wire_checksum(slice.data, slice.count) == slice.xxh3);
		PS_ASSERT(wire_checksum_blocks(next_block, &blocks) == slice.xxh3);
		PS_ASSERT(slice.count <= 256);
		wire_copy_chunk(copy, slice.data, slice.count, &chunk, NULL);
		PS_ASSERT(memcmp(copy, slice.data, slice.count * sizeof(float)) == 0);
		PS_ASSERT(chunk.xxh3 == slice.xxh3);
		PS_ASSERT(slice.peak == 0 || slice.peak == chunk.peak);
	}
}

/* Encode `m`, decode the frames, encode the result, and compare the two header frames. */
static void check_round_trip(const struct msg *m, size_t n_params)
{
	struct frames encoded, a, b;
	struct wire *w = NULL;
	struct msg again;
	const char *why = NULL;

	if (wire_encode(m, &encoded) != 0)
		return;
	frames_move(&a, &encoded);
	PS_ASSERT(encoded.n == 0);
	check_parts(m,
		m->type == MSG_PUSH     ? &m->push.slices
		: m->type == MSG_PARAMS ? &m->params.slices
					: NULL,
		&a);
	PS_ASSERT(wire_new(&w, n_params) == 0);
	PS_ASSERT(wire_decode(w, &a, &again, &why) == 0);
	PS_ASSERT(again.type == m->type);
	PS_ASSERT(wire_encode(&again, &b) == 0);
	PS_ASSERT(a.n == b.n);
	for (size_t i = 0; i < a.n; i++) {
		size_t size = zmq_msg_size(&a.frame[i]);

		PS_ASSERT(size == zmq_msg_size(&b.frame[i]));
		PS_ASSERT(memcmp(zmq_msg_data(&a.frame[i]), zmq_msg_data(&b.frame[i]), size) == 0);
	}
	frames_release(&b);
	frames_release(&a);
	wire_free(&w);
}

/* Treat the first tensor frames as chunks, which a receiver checks before the PUSH arrives. */
static void add_chunks(struct frames *f, size_t n)
{
	zmq_msg_t header;

	PS_ASSERT(wire_encode_chunk_header(&header) == 0);
	PS_ASSERT(zmq_msg_size(&header) == 1);
	zmq_msg_close(&header);
	while (f->n_chunks < n && f->n_chunks + 1 < f->n && f->n_chunks < WIRE_MAX_CHUNKS) {
		zmq_msg_t *frame = &f->frame[1 + f->n_chunks];

		if (wire_check_chunk(frame, &f->chunk[f->n_chunks], NULL) != 0)
			break;
		f->n_chunks++;
	}
}

/* Check the functions that read a part of a header before the decoder checks all of it. */
static void peek_at(struct frames *f)
{
	struct lane_ref ref;
	uint64_t request;

	if (wire_lane_ref(f, &ref))
		PS_ASSERT(f->n == 1);
	if (wire_params_parts(f, &request) > 0)
		PS_ASSERT(f->n == 2);
	(void)wire_push_seq(f);
}

/* Check that `frame` has the same bytes as the first frame of `f`, and close it. */
static void check_first_frame(zmq_msg_t *frame, struct frames *f)
{
	size_t size = zmq_msg_size(frame);

	PS_ASSERT(size == zmq_msg_size(&f->frame[0]));
	PS_ASSERT(memcmp(zmq_msg_data(frame), zmq_msg_data(&f->frame[0]), size) == 0);
	zmq_msg_close(frame);
}

/* Check that two shares of a frame of `size` bytes have its bytes, also after the frame was
 * closed. */
static void check_shares(size_t size)
{
	size_t half = size / 2;
	zmq_msg_t whole, part[2];

	PS_ASSERT(zmq_msg_init_size(&whole, size) == 0);
	for (size_t i = 0; i < size; i++)
		((unsigned char *)zmq_msg_data(&whole))[i] = (unsigned char)(i + i / 256);
	PS_ASSERT(side_share(&whole, 0, half, &part[0]) == 0);
	PS_ASSERT(side_share(&whole, half, size - half, &part[1]) == 0);
	zmq_msg_close(&whole);
	PS_ASSERT(zmq_msg_size(&part[0]) == half && zmq_msg_size(&part[1]) == size - half);
	for (size_t i = 0; i < size; i++) {
		const unsigned char *bytes = zmq_msg_data(&part[i >= half]);

		PS_ASSERT(bytes[i < half ? i : i - half] == (unsigned char)(i + i / 256));
	}
	zmq_msg_close(&part[0]);
	zmq_msg_close(&part[1]);
}

/* Check the functions for the messages of side connections. Returns 1 if `f` is such a message. */
static int check_side(struct frames *f)
{
	struct side_greeting greeting;
	struct side_mark mark;
	zmq_msg_t frame;
	int is_greeting = side_is_greeting(f, &greeting);
	int is_part = side_is_part(f, &mark), is_receipt = !is_part && side_is_receipt(f, &mark);

	PS_ASSERT(is_greeting + is_part + is_receipt + wire_is_chunk(f) <= 1);
	if (is_greeting) {
		PS_ASSERT(side_encode_greeting(&greeting, &frame) == 0);
		check_first_frame(&frame, f);
	}
	if (is_part || is_receipt) {
		PS_ASSERT(side_encode_mark(&mark, &frame) == 0);
		check_first_frame(&frame, f);
	}
	if (is_part)
		check_shares(zmq_msg_size(&f->frame[1]));
	return is_greeting || is_part || is_receipt;
}

static void decode_frames(struct frames *f, size_t n_params, int deferred, uint8_t how)
{
	float values[128];
	struct wire *w = NULL;
	struct msg m;
	const char *why = NULL;
	int is_side = check_side(f);

	peek_at(f);
	PS_ASSERT(wire_new(&w, n_params) == 0);
	if (deferred)
		wire_defer(w);
	if (how & EXACT)
		wire_only_exact(w);
	if (how & SHARED)
		wire_use_pass(w, &shared_pass);
	if (wire_is_chunk(f)) {
		PS_ASSERT(wire_chunks_wanted(f) == 0);
	} else if (wire_decode(w, f, &m, &why) != 0) {
		PS_ASSERT(why && why[0] && m.type == 0);
		(void)wire_chunks_wanted(f);
		(void)wire_peer_protocol(w);
	} else if (is_side) {
		PS_ASSERT(0);
	} else if (deferred && m.type == MSG_PARAMS) {
		(void)!wire_values(f, &m.params, values);
		(void)!wire_values(f, &m.params, NULL);
	} else if (!deferred) {
		check_round_trip(&m, n_params);
	}
	wire_free(&w);
}

/* The state of copy_next_block, which copies `count` values block by block. */
struct fill {
	float *to;
	const float *from;
	size_t count;
};

static void copy_next_block(void *arg, size_t block)
{
	const struct fill *fill = arg;
	size_t at = block * ENGINE_BLOCK, left = fill->count - at;

	memcpy(fill->to + at, fill->from + at,
		(left < ENGINE_BLOCK ? left : ENGINE_BLOCK) * sizeof(float));
}

/* Check that a pass over a vector of up to three blocks gives the same results with an engine as
 * without one. */
static void check_long_pass(struct input *in)
{
	static float values[3 * ENGINE_BLOCK], copy[3 * ENGINE_BLOCK];
	size_t count = input_below(in, 4) * ENGINE_BLOCK, less = input_u8(in);
	struct wire_pass alone = {.squares = sum_squares}, shared = shared_pass;
	struct chunk a, b, c;

	count = count > less ? count - less : less;
	count = count > 3 * ENGINE_BLOCK ? 3 * ENGINE_BLOCK : count;
	for (size_t i = 0; i < count; i += 500)
		values[i] = (float)input_u8(in);
	alone.trained = shared.trained = input_below(in, 4) * ENGINE_BLOCK / 2;
	wire_pass_over(values, count, &a, &alone);
	wire_pass_over(values, count, &b, &shared);
	wire_copy_chunk(copy, values, count, &c, &shared);
	PS_ASSERT(memcmp(copy, values, count * sizeof(*values)) == 0);
	PS_ASSERT(a.xxh3 == b.xxh3 && a.peak == b.peak && a.squared == b.squared);
	PS_ASSERT(a.xxh3 == c.xxh3 && a.peak == c.peak && a.squared == c.squared);
	PS_ASSERT(memcmp(&a.squares, &b.squares, sizeof(a.squares)) == 0);
	PS_ASSERT(memcmp(&a.squares, &c.squares, sizeof(a.squares)) == 0);
	PS_ASSERT(wire_checksum_with(values, count, &engine) == a.xxh3);
	PS_ASSERT(wire_checksum_with(values, count, NULL) == a.xxh3);
	struct fill fill = {copy, values, count};
	memset(copy, 0, sizeof(copy));
	PS_ASSERT(wire_checksum_filled(copy, count, copy_next_block, &fill, &engine) == a.xxh3);
	memset(copy, 0, sizeof(copy));
	PS_ASSERT(wire_checksum_filled(copy, count, copy_next_block, &fill, NULL) == a.xxh3);
	PS_ASSERT(wire_copy_hash(copy, values, count * sizeof(*values)) == a.xxh3);
}

/* Check that a pass over a vector of bfloat16 values gives the same results with an engine as
 * without one, and the checksum of its bytes. */
static void check_bf16_pass(struct input *in)
{
	static float first[3 * ENGINE_BLOCK], second[3 * ENGINE_BLOCK];
	static unsigned char packed[3 * ENGINE_BLOCK * BF16_BYTES];
	size_t count = input_below(in, 3 * ENGINE_BLOCK) + 1;
	struct wire_pass alone = {.squares = sum_squares}, shared = shared_pass;
	struct chunk a, b;

	for (size_t i = 0; i < sizeof(packed); i += 301)
		packed[i] = input_u8(in);
	alone.trained = shared.trained = input_below(in, 4) * ENGINE_BLOCK / 2;
	wire_unpack_bf16(first, packed, count, 1, &a, &alone);
	wire_unpack_bf16(second, packed, count, 1, &b, &shared);
	PS_ASSERT(memcmp(first, second, count * sizeof(*first)) == 0);
	PS_ASSERT(a.xxh3 == wire_hash(packed, count * BF16_BYTES) && a.xxh3 == b.xxh3);
	PS_ASSERT(a.peak == b.peak && a.squared == b.squared);
	PS_ASSERT(memcmp(&a.squares, &b.squares, sizeof(a.squares)) == 0);
}

/* A socket of a worker, one of a client that chooses its routing id, and the socket of a server. */
static void *dealer, *named, *router;

static void open_inproc(void)
{
	void *context = zmq_ctx_new();

	PS_ASSERT(context);
	/* sockets with inproc endpoints need no I/O thread */
	PS_ASSERT(zmq_ctx_set(context, ZMQ_IO_THREADS, 0) == 0);
	dealer = zmq_socket(context, ZMQ_DEALER);
	named = zmq_socket(context, ZMQ_DEALER);
	router = zmq_socket(context, ZMQ_ROUTER);
	PS_ASSERT(dealer && named && router);
	PS_ASSERT(zmq_setsockopt(named, ZMQ_ROUTING_ID, "name", 4) == 0);
	PS_ASSERT(zmq_setsockopt(router, ZMQ_ROUTER_MANDATORY, &(int){1}, sizeof(int)) == 0);
	PS_ASSERT(zmq_bind(router, "inproc://server") == 0);
	PS_ASSERT(zmq_connect(dealer, "inproc://server") == 0);
	PS_ASSERT(zmq_connect(named, "inproc://server") == 0);
}

/* Send the frames to a server and back, and move them to `f` again. The server refuses a header
 * that is too long, and every message of a client that has chosen its routing id. Returns 1 if `f`
 * has its frames, and 0 if the server has refused them. */
static int check_sockets(struct frames *f)
{
	struct frames at_server;
	size_t n = f->n, size = zmq_msg_size(&f->frame[0]);
	uint64_t xxh3 = wire_frame_checksum(zmq_msg_data(&f->frame[0]), size);
	uint32_t peer;

	if (!router)
		open_inproc();
	if (f->n_chunks > 0)
		return 1;
	PS_ASSERT(wire_recv(router, &peer, &at_server) == 0);
	zmq_msg_t part;
	PS_ASSERT(zmq_msg_init_size(&part, 1) == 0);
	PS_ASSERT(zmq_msg_send(&part, named, 0) == 1);
	PS_ASSERT(wire_recv(router, &peer, &at_server) == PS_EPROTO);
	PS_ASSERT(wire_send(dealer, 0, f) == 0 && f->n == 0);
	int rc = wire_recv(router, &peer, &at_server);
	if (size > WIRE_MAX_HEADER) {
		PS_ASSERT(rc == PS_EPROTO && at_server.n == 0);
		return 0;
	}
	PS_ASSERT(rc == 1 && peer != 0 && at_server.n == n);
	PS_ASSERT(wire_send(router, peer == 1 ? 2 : 1, &at_server) == PS_EUNREACHABLE);
	PS_ASSERT(wire_send(router, peer, &at_server) == 0);
	PS_ASSERT(wire_recv_within(dealer, 1000, f) == 1 && f->n == n);
	PS_ASSERT(wire_frame_checksum(zmq_msg_data(&f->frame[0]), size) == xxh3);
	return 1;
}

static const unsigned char zeros_of_ring[100];

/* Check the ring of a lane (proto/ring.h). First both sides follow the rules: the reader gets the
 * input back, often enough to wrap around. Then each side gets positions and bytes of the input. */
static void check_ring(const uint8_t *data, size_t size)
{
	static struct ring_memory memory;
	unsigned char message[RING_MAX_MESSAGE];
	struct ring writer, reader;
	uint32_t hostile[3] = {0};
	size_t n;
	int sleeps;

	memset(&memory, 0, sizeof(memory));
	ring_init(&writer, &memory);
	ring_init(&reader, &memory);
	PS_ASSERT(ring_may_sleep(&reader) == 1);
	for (int i = 0; i < 20; i++) {
		int rc = ring_write(&writer, data, size, &sleeps);

		PS_ASSERT(rc == (size >= 1 && size <= RING_MAX_MESSAGE ? PS_OK : PS_EAGAIN));
		PS_ASSERT(ring_has_message(&reader) == (rc == PS_OK));
		if (rc != PS_OK)
			break;
		PS_ASSERT(sleeps == (i == 0) && ring_may_sleep(&reader) == 0);
		PS_ASSERT(ring_read(&reader, message, &n) == 1 && n == size);
		PS_ASSERT(memcmp(message, data, size) == 0);
	}
	memcpy(hostile, data, size < sizeof(hostile) ? size : sizeof(hostile));
	memcpy(memory.bytes, data, size < RING_BYTES ? size : RING_BYTES);
	atomic_store(&memory.tail, reader.at + hostile[0] % (2 * RING_BYTES));
	while (ring_read(&reader, message, &n) == 1)
		PS_ASSERT(n >= 1 && n <= RING_MAX_MESSAGE);
	ring_discard(&reader, reader.at + hostile[1] % (2 * RING_BYTES));
	atomic_store(&memory.head, hostile[2]);
	while (ring_write(&writer, zeros_of_ring, sizeof(zeros_of_ring), &sleeps) == PS_OK)
		PS_ASSERT(writer.at - hostile[2] <= RING_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const float zeros[256];
	struct input in = {data, size};
	uint8_t first = input_u8(&in), n_chunks = input_u8(&in), n;
	size_t n_sizes = 0;
	uint8_t sizes[WIRE_MAX_SLICES];
	struct frames f;

	while (in.left && n_sizes < WIRE_MAX_SLICES && (n = input_u8(&in)) != 255)
		sizes[n_sizes++] = n;
	engine = input_engine(ENGINE_BLOCK);
	frames_init(&f);
	add_frame(&f, in.at, in.left);
	for (size_t i = 0; i < n_sizes; i++)
		add_frame(&f, zeros, sizes[i] * 4u + (i % 7 == 6));
	add_chunks(&f, n_chunks % 8);
	if (!(n_chunks & SOCKETS) || check_sockets(&f))
		decode_frames(&f, first & 127u, first >> 7, n_chunks);
	frames_release(&f);
	if (n_chunks & LONG_PASS) {
		check_long_pass(&in);
		check_bf16_pass(&in);
	}
	check_ring(data, size);
	return 0;
}
