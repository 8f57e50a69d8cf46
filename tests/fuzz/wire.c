/*
 * wire.c - fuzzes the codec of messages. Byte 0 gives the number of parameters that the receiver
 * expects, and says whether it defers the check of PARAMS. Byte 1 modulo 8 is the number of tensor
 * frames that are chunks. Then one byte for each tensor frame gives its number of values; 255 ends
 * the list. The remaining bytes are the header frame.
 *
 * The target checks that a decoded message, encoded and decoded again, is the same message
 * (proto/wire.h, promise 2), and that all functions that encode parts of a message or compute a
 * checksum agree. The sanitizers and assertions check invariant 1 and promise 1.
 */
#include "proto/lane.h"
#include "proto/wire.h"
#include "tests/support/fuzz_input.h"

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
		PS_ASSERT(
			memcmp(zmq_msg_data(&part), slice.data, slice.count * sizeof(float)) == 0);
		zmq_msg_close(&part);
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

static void decode_frames(struct frames *f, size_t n_params, int deferred)
{
	float values[128];
	struct wire *w = NULL;
	struct lane_ref ref;
	struct msg m;
	const char *why = NULL;

	if (wire_lane_ref(f, &ref))
		PS_ASSERT(f->n == 1);
	PS_ASSERT(wire_new(&w, n_params) == 0);
	if (deferred)
		wire_defer(w);
	if (wire_is_chunk(f)) {
		PS_ASSERT(wire_chunks_wanted(f) == 0);
	} else if (wire_decode(w, f, &m, &why) != 0) {
		PS_ASSERT(why && why[0] && m.type == 0);
		(void)wire_chunks_wanted(f);
	} else if (deferred && m.type == MSG_PARAMS) {
		(void)!wire_values(f, &m.params, values);
		(void)!wire_values(f, &m.params, NULL);
	} else if (!deferred) {
		check_round_trip(&m, n_params);
	}
	wire_free(&w);
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
	frames_init(&f);
	add_frame(&f, in.at, in.left);
	for (size_t i = 0; i < n_sizes; i++)
		add_frame(&f, zeros, sizes[i] * 4u + (i % 7 == 6));
	add_chunks(&f, n_chunks % 8);
	decode_frames(&f, first & 127u, first >> 7);
	frames_release(&f);
	return 0;
}
