/* test_wire_slices.c - tests that tensors arrive as they were sent, aligned and with verified
 * checksums, and that the decoder refuses a tensor that does not fit the model. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "proto/bf16.h"
#include "proto/wire.h"
#include "tests/support/test.h"

#define N_PARAMS 5000u

#define SLICE(from, n)                                                                             \
	{                                                                                          \
		.offset = (from), .count = (n), .encoding = ENCODING_F32, .data = values           \
	}

static float values[N_PARAMS];
static struct wire *wire;

static int set_up_slices(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_PARAMS; i++)
		values[i] = (float)i;
	return wire_new(&wire, N_PARAMS);
}

static int tear_down_slices(void **state)
{
	(void)state;
	wire_free(&wire);
	return 0;
}

static void push_of_slice(struct msg *m, uint64_t offset, uint64_t count)
{
	memset(m, 0, sizeof(*m));
	m->type = MSG_PUSH;
	m->push.seq = 1;
	m->push.slices.n = 1;
	m->push.slices.slice[0] = (struct slice)SLICE(offset, count);
	m->push.slices.slice[0].data += offset;
}

/* Makes a PARAMS with the whole vector in `n` slices. */
static void params_of(struct msg *m, uint32_t n)
{
	struct slices *s = &m->params.slices;

	memset(m, 0, sizeof(*m));
	m->type = MSG_PARAMS;
	m->params.which = WEIGHTS_CURRENT;
	for (s->n = 0; s->n < n; s->n++) {
		uint64_t from = N_PARAMS * s->n / n, to = N_PARAMS * (s->n + 1) / n;

		s->slice[s->n] = (struct slice)SLICE(from, to - from);
		s->slice[s->n].data += from;
	}
}

TEST(an_elastic_part_is_a_part)
{
	const double good[] = {0, 0.0625, 1}, bad[] = {-0.1, 1.01, (double)NAN, (double)INFINITY};
	static struct msg m, back;
	const char *why = NULL;
	struct frames f;

	for (size_t i = 0; i < 3 + 4; i++) {
		params_of(&m, 1);
		m.params.elastic = i < 3 ? good[i] : bad[i - 3];
		assert_int_equal(wire_encode(&m, &f), PS_OK);
		assert_int_equal(wire_decode(wire, &f, &back, &why), i < 3 ? PS_OK : PS_EPROTO);
		if (i < 3)
			assert_true(back.params.elastic == good[i]);
		else
			assert_string_equal(why, "params.elastic is out of range");
		frames_release(&f);
	}
}

static void assert_values(const struct slices *s)
{
	for (uint32_t i = 0; i < s->n; i++) {
		assert_int_equal((uintptr_t)s->slice[i].data % sizeof(float), 0);
		assert_memory_equal(s->slice[i].data, values + s->slice[i].offset,
			s->slice[i].count * sizeof(float));
	}
}

static const char *refusal(struct frames *f)
{
	static struct msg m;
	const char *why = NULL;
	int rc = wire_decode(wire, f, &m, &why);

	assert_int_equal(rc, rc ? PS_EPROTO : PS_OK);
	assert_true(rc == PS_OK || (why && m.type == 0));
	return rc ? why : "";
}

static void keep_memory(void *data, void *hint)
{
	(void)data;
	(void)hint;
}

TEST(misaligned_frames_are_copied_to_aligned_memory)
{
	static char odd[N_PARAMS * sizeof(float) + 1];
	static struct msg m, back;
	struct frames f;

	push_of_slice(&m, 10, 1000);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	memcpy(odd + 1, values + 10, 4000);
	assert_int_equal(zmq_msg_close(&f.frame[1]), 0);
	assert_int_equal(zmq_msg_init_data(&f.frame[1], odd + 1, 4000, keep_memory, NULL), 0);
	assert_int_equal(wire_decode(wire, &f, &back, NULL), PS_OK);
	assert_values(&back.push.slices);
	frames_release(&f);
}

TEST(aligned_frames_are_not_copied)
{
	static struct msg m, back;
	struct frames f;

	push_of_slice(&m, 0, N_PARAMS);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_int_equal(wire_decode(wire, &f, &back, NULL), PS_OK);
	assert_ptr_equal(back.push.slices.slice[0].data, zmq_msg_data(&f.frame[1]));
	frames_release(&f);
}

static uint32_t peak_after_the_wire(size_t place, float value)
{
	static float g[N_PARAMS];
	static struct msg m, back;
	struct frames f;

	for (size_t i = 0; i < N_PARAMS; i++)
		g[i] = -1.5f;
	g[place] = value;
	push_of_slice(&m, 0, N_PARAMS);
	m.push.slices.slice[0].data = g;
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_int_equal(wire_decode(wire, &f, &back, NULL), PS_OK);
	frames_release(&f);
	return back.push.slices.slice[0].peak;
}

TEST(the_largest_magnitude_is_found_wherever_it_is)
{
	const uint32_t of_1_5 = 0x3fc00000, of_2 = 0x40000000, of_infinity = 0x7f800000;

	assert_int_equal(peak_after_the_wire(0, 0), of_1_5);
	for (size_t place = 0; place < N_PARAMS; place += place < 40 || place > 4950 ? 1 : 61) {
		assert_int_equal(peak_after_the_wire(place, -2), of_2);
		assert_int_equal(peak_after_the_wire(place, -INFINITY), of_infinity);
		assert_true(peak_after_the_wire(place, NAN) > of_infinity);
		assert_true(peak_after_the_wire(place, -NAN) > of_infinity);
	}
}

TEST(weights_are_verified_later_on_request)
{
	static float landing[N_PARAMS];
	static struct msg m, back;
	struct wire *lazy;
	struct frames f;

	assert_int_equal(wire_new(&lazy, N_PARAMS), PS_OK);
	wire_defer(lazy);
	push_of_slice(&m, 0, N_PARAMS);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_int_equal(wire_decode(lazy, &f, &back, NULL), PS_OK);
	assert_ptr_equal(back.push.slices.slice[0].data, zmq_msg_data(&f.frame[1]));
	frames_release(&f);
	params_of(&m, 7);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_int_equal(wire_decode(lazy, &f, &back, NULL), PS_OK);
	assert_int_equal(back.params.slices.n, 7);
	assert_null(back.params.slices.slice[0].data);
	assert_int_equal(wire_values(&f, &back.params, NULL), PS_OK);
	assert_int_equal(wire_values(&f, &back.params, landing), PS_OK);
	assert_memory_equal(landing, values, sizeof(landing));
	for (size_t i = 1; i < f.n; i++) {
		unsigned char *last = zmq_msg_data(&f.frame[i]);

		last += zmq_msg_size(&f.frame[i]) - 1;
		*last ^= 1;
		assert_int_equal(wire_decode(lazy, &f, &back, NULL), PS_OK);
		assert_int_equal(wire_values(&f, &back.params, NULL), PS_EPROTO);
		assert_int_equal(wire_values(&f, &back.params, landing), PS_EPROTO);
		*last ^= 1;
	}
	frames_release(&f);
	wire_free(&lazy);
}

TEST(any_flipped_bit_of_a_tensor_is_seen)
{
	static struct msg m;
	struct frames f;

	push_of_slice(&m, 0, 40);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	for (size_t bit = 0; bit < 40 * 32; bit++) {
		unsigned char *byte = (unsigned char *)zmq_msg_data(&f.frame[1]) + bit / 8;

		*byte ^= (unsigned char)(1u << bit % 8);
		assert_string_equal(refusal(&f), "wrong tensor checksum");
		*byte ^= (unsigned char)(1u << bit % 8);
	}
	assert_string_equal(refusal(&f), "");
	frames_release(&f);
}

TEST(a_replay_sends_the_first_checksum_again)
{
	static struct msg m;
	struct frames f;

	push_of_slice(&m, 0, 40);
	m.push.slices.slice[0].xxh3 = wire_checksum(values, 40);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_string_equal(refusal(&f), "");
	frames_release(&f);
	m.push.slices.slice[0].xxh3 ^= 1;
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_string_equal(refusal(&f), "wrong tensor checksum");
	frames_release(&f);
}

TEST(header_alone_says_the_same_as_the_whole_message)
{
	static struct msg m;
	struct frames f;
	zmq_msg_t header;

	push_of_slice(&m, 7, 333);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_int_equal(wire_encode_header(&m, &header), PS_OK);
	assert_int_equal(zmq_msg_size(&header), zmq_msg_size(&f.frame[0]));
	assert_memory_equal(
		zmq_msg_data(&header), zmq_msg_data(&f.frame[0]), zmq_msg_size(&header));
	(void)zmq_msg_close(&header);
	frames_release(&f);
}

/* The expected checksums come from Python's module xxhash. */
TEST(checksum_is_xxh3_of_the_little_endian_bytes)
{
	float f[1000];

	for (int i = 0; i < 1000; i++)
		f[i] = (float)i;
	assert_int_equal(wire_checksum(f, 0), 0x2d06800538d394c2u);
	assert_int_equal(wire_checksum(f, 10), 0x9d5661e6a667ad1bu);
	assert_int_equal(wire_checksum(f, 1000), 0xab408abd5a63f694u);
}

/* Tests the function that copies and hashes in one pass. The tested sizes are near the block sizes
 * of XXH3 and of wire.c. */
TEST(copying_and_hashing_in_one_pass_gives_the_same_checksum)
{
	static const size_t counts[] = {
		1, 4, 60, 61, 64, 256, 4095, 4096, 16384, 16385, 32768, 100003};
	float *big = malloc(100003 * sizeof(*big));
	static struct msg m, back;
	struct wire *w;
	struct frames f;

	assert_non_null(big);
	for (size_t i = 0; i < 100003; i++)
		big[i] = (float)i;
	assert_int_equal(wire_new(&w, 100003), PS_OK);
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		push_of_slice(&m, 0, counts[i]);
		m.push.slices.slice[0].data = big;
		assert_int_equal(wire_encode(&m, &f), PS_OK);
		assert_int_equal(wire_decode(w, &f, &back, NULL), PS_OK);
		assert_int_equal(back.push.slices.slice[0].xxh3, wire_checksum(big, counts[i]));
		frames_release(&f);
	}
	wire_free(&w);
	free(big);
}

/* Checks that the decoder refuses a PUSH with these slices, and gives `reason` as the reason. A
 * correct program would not send such slices. */
static void assert_slices_refused(const struct slice *s, uint32_t n, const char *reason)
{
	static struct msg m;
	struct frames f;

	memset(&m, 0, sizeof(m));
	m.type = MSG_PUSH;
	m.push.slices.n = n;
	memcpy(m.push.slices.slice, s, n * sizeof(*s));
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_string_equal(refusal(&f), reason);
	frames_release(&f);
}

TEST(slices_that_do_not_fit_are_refused)
{
	const uint64_t n = N_PARAMS;
	const struct slice past[] = {SLICE(n - 9, 10)};
	const struct slice far[] = {SLICE(UINT64_MAX - 3, 4)};
	const struct slice touch[] = {SLICE(0, 10), SLICE(9, 5)};
	const struct slice back[] = {SLICE(50, 5), SLICE(0, 5)};
	struct slice strange[] = {SLICE(0, 5)};

	assert_slices_refused(past, 1, "slice lies outside the model");
	assert_slices_refused(far, 1, "offset is out of range");
	assert_slices_refused(touch, 2, "slices overlap or are out of order");
	assert_slices_refused(back, 2, "slices overlap or are out of order");
	for (int i = 0; i < 2; i++) {
		strange[0].encoding = i ? (enum encoding)3 : ENCODING_NONE;
		assert_slices_refused(strange, 1, "encoding is out of range");
	}
}

/* Makes a PUSH or PARAMS of `count` values in bfloat16, and its frames. */
static void encode_bf16(struct msg *m, uint64_t count, struct frames *f)
{
	struct slice *s;

	push_of_slice(m, 0, count);
	if (count == N_PARAMS)
		params_of(m, 1);
	s = count == N_PARAMS ? &m->params.slices.slice[0] : &m->push.slices.slice[0];
	s->encoding = ENCODING_BF16;
	assert_int_equal(wire_encode(m, f), PS_OK);
	assert_int_equal(zmq_msg_size(&f->frame[1]), count * BF16_BYTES);
}

static void assert_rounded(const float *data, size_t count)
{
	for (size_t i = 0; i < count; i++)
		assert_true(data[i] == bf16_float(bf16_of(values[i])));
}

TEST(bfloat16_arrives_as_the_rounded_floats)
{
	static float to[N_PARAMS];
	static struct msg m, back;
	struct frames f;
	struct wire *lazy;

	for (uint64_t n = 1; n < 300; n += 7) {
		encode_bf16(&m, n, &f);
		assert_int_equal(wire_decode(wire, &f, &back, NULL), PS_OK);
		const struct slice *s = &back.push.slices.slice[0];
		uint32_t peak = (uint32_t)bf16_of(values[n - 1]) << 16;
		assert_rounded(s->data, n);
		assert_int_equal(s->peak, peak);
		assert_int_equal(
			s->xxh3, wire_frame_checksum(zmq_msg_data(&f.frame[1]), n * BF16_BYTES));
		frames_release(&f);
	}
	encode_bf16(&m, N_PARAMS, &f);
	assert_int_equal(wire_decode(wire, &f, &back, NULL), PS_OK);
	assert_rounded(back.params.slices.slice[0].data, N_PARAMS);
	assert_int_equal(wire_new(&lazy, N_PARAMS), PS_OK);
	wire_defer(lazy);
	assert_int_equal(wire_decode(lazy, &f, &back, NULL), PS_OK);
	assert_int_equal(wire_values(&f, &back.params, NULL), PS_OK);
	assert_int_equal(wire_values(&f, &back.params, to), PS_OK);
	assert_rounded(to, N_PARAMS);
	((unsigned char *)zmq_msg_data(&f.frame[1]))[7] ^= 1;
	assert_int_equal(wire_values(&f, &back.params, to), PS_EPROTO);
	assert_string_equal(refusal(&f), "wrong tensor checksum");
	wire_free(&lazy);
	frames_release(&f);
}

TEST(a_misaligned_frame_of_bfloat16_is_read)
{
	static char odd[N_PARAMS * sizeof(float) + 1];
	static struct msg m, back;
	struct frames f;

	encode_bf16(&m, 1001, &f);
	memcpy(odd + 1, zmq_msg_data(&f.frame[1]), 2002);
	assert_int_equal(zmq_msg_close(&f.frame[1]), 0);
	assert_int_equal(zmq_msg_init_data(&f.frame[1], odd + 1, 2002, keep_memory, NULL), 0);
	assert_int_equal(wire_decode(wire, &f, &back, NULL), PS_OK);
	assert_rounded(back.push.slices.slice[0].data, 1001);
	frames_release(&f);
}

/* The encoding of a chunk comes only with the PUSH. Until then, the receiver takes a chunk in
 * bfloat16 for float32 and computes a wrong peak (largest magnitude), which it must correct when
 * the PUSH arrives. */
TEST(the_peak_of_a_chunk_in_bfloat16_is_that_of_its_values)
{
	static struct msg m, back;
	struct frames f;

	encode_bf16(&m, 1000, &f);
	f.n_chunks = 1;
	f.chunk[0] = (struct chunk){
		.xxh3 = wire_frame_checksum(zmq_msg_data(&f.frame[1]), 1000 * BF16_BYTES),
		.peak = 1};
	assert_int_equal(wire_decode(wire, &f, &back, NULL), PS_OK);
	assert_rounded(back.push.slices.slice[0].data, 1000);
	assert_int_equal(back.push.slices.slice[0].peak, (uint32_t)bf16_of(values[999]) << 16);
	f.chunk[0].xxh3++;
	assert_int_equal(wire_decode(wire, &f, &back, NULL), PS_EAGAIN);
	frames_release(&f);
}

static double add_squares(const float *data, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += (double)data[i] * (double)data[i];
	return sum;
}

/* The sum of squares is that of the float32 values, and not that of the bytes of a chunk. */
TEST(the_squares_of_bfloat16_are_summed_on_arrival)
{
	const struct wire_pass pass = {.squares = add_squares, .trained = 900};
	static struct msg m, back;
	struct frames f;
	struct wire *w;

	assert_int_equal(wire_new(&w, N_PARAMS), PS_OK);
	wire_use_pass(w, &pass);
	encode_bf16(&m, 1000, &f);
	for (f.n_chunks = 0; f.n_chunks <= 1; f.n_chunks++) {
		f.chunk[0] = (struct chunk){.squared = 7,
			.squares = 7,
			.xxh3 = wire_frame_checksum(zmq_msg_data(&f.frame[1]), 1000 * BF16_BYTES)};
		assert_int_equal(wire_decode(w, &f, &back, NULL), PS_OK);
		const struct slice *s = &back.push.slices.slice[0];
		double expected = add_squares(s->data, 900);

		assert_int_equal(s->squared, 900);
		assert_memory_equal(&s->squares, &expected, sizeof(expected));
	}
	frames_release(&f);
	wire_free(&w);
}

TEST(bfloat16_is_refused_where_it_does_not_belong)
{
	static struct msg m;
	struct frames f;

	encode_bf16(&m, 10, &f);
	assert_int_equal(zmq_msg_close(&f.frame[1]), 0);
	assert_int_equal(zmq_msg_init_size(&f.frame[1], 40), 0);
	assert_string_equal(refusal(&f), "tensor frame has not `count` values");
	frames_release(&f);
	encode_bf16(&m, 10, &f);
	m.push.lane_slot = 1;
	m.push.slices.slice[0].xxh3 =
		wire_frame_checksum(zmq_msg_data(&f.frame[1]), 10 * BF16_BYTES);
	assert_int_equal(zmq_msg_close(&f.frame[0]), 0);
	assert_int_equal(wire_encode_header(&m, &f.frame[0]), PS_OK);
	assert_string_equal(refusal(&f), "values in shared memory are not float32");
	frames_release(&f);
	encode_bf16(&m, 10, &f);
	wire_only_exact(wire);
	assert_string_equal(refusal(&f), "this run accepts no bfloat16, because its optimizer "
					 "needs exact gradients");
	frames_release(&f);
}

TEST(frames_and_slices_must_agree)
{
	static struct msg m;
	struct frames f;

	push_of_slice(&m, 0, 10);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_int_equal(zmq_msg_init_size(&f.frame[f.n++], 4), 0);
	assert_string_equal(refusal(&f), "not one tensor frame per slice");
	(void)zmq_msg_close(&f.frame[--f.n]);
	(void)zmq_msg_close(&f.frame[--f.n]);
	assert_string_equal(refusal(&f), "not one tensor frame per slice");
	assert_int_equal(zmq_msg_init_size(&f.frame[f.n++], 44), 0);
	assert_string_equal(refusal(&f), "tensor frame has not `count` values");
	frames_release(&f);
	m.type = MSG_PULL;
	m.pull = (struct msg_pull){.request = 1, .which = WEIGHTS_CURRENT};
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_int_equal(zmq_msg_init_size(&f.frame[f.n++], 4), 0);
	assert_string_equal(refusal(&f), "tensor frames without slices");
	frames_release(&f);
	assert_string_equal(refusal(&f), "no header frame");
}

TEST(params_must_cover_the_model)
{
	static struct msg m;
	struct frames f;

	params_of(&m, 3);
	m.params.slices.slice[2].count--;
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_string_equal(refusal(&f), "PARAMS does not cover the model");
	frames_release(&f);
}

TEST(no_tensor_is_taken_before_the_model_is_known)
{
	static struct msg m, back;
	struct wire *w;
	struct frames f;

	push_of_slice(&m, 0, 1);
	assert_int_equal(wire_new(&w, 0), PS_OK);
	assert_int_equal(wire_encode(&m, &f), PS_OK);
	assert_int_equal(wire_decode(w, &f, &back, NULL), PS_EPROTO);
	assert_int_equal(wire_resize(w, WIRE_MAX_PARAMS + 1), PS_ENOMEM);
	assert_int_equal(wire_resize(w, 1), PS_OK);
	assert_int_equal(wire_decode(w, &f, &back, NULL), PS_OK);
	frames_release(&f);
	wire_free(&w);
	wire_free(&w);
}

TEST_GROUP(set_up_slices, tear_down_slices)
