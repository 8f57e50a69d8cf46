/*
 * test_server_param_buffers.c - the frames of weights that pulls share, with a real core. Proves
 * the invariants numbered in server/net/param_buffers.h.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "tests/support/core_fixture.h"
#include "common/share.h"
#include "common/threads.h"
#include "proto/bf16.h"
#include "proto/wire.h"
#include "server/net/param_buffers.h"
#include "tests/support/test.h"

static struct param_buffers *buffers;
static struct core_fixture f;
static struct stamp worker;
static uint64_t seq;
static size_t shared_buffers; /* 0: the buffers are ordinary memory */
static struct threads *threads;
static int has_engine; /* 1: an engine computes the checksums */

static int set_up_buffers(void **state)
{
	struct core_config cfg = fixture_config();

	(void)state;
	struct err e;

	if (param_buffers_new(&buffers, cfg.n_params, shared_buffers) ||
		(has_engine && threads_new(&threads, 2, "test", &e)))
		return 1;
	if (has_engine)
		param_buffers_use_engine(buffers, threads_engine(threads));
	f = (struct core_fixture){.cfg = cfg, .now_ms = 1000, .memory = fixture_memory(&cfg)};
	f.core = core_init(f.memory, &f.cfg, param_buffers_first(buffers));
	param_buffers_use_core(buffers, f.core);
	worker = fixture_join(&f, 9, "");
	seq = 0;
	return 0;
}

/* Set up three buffers in shared memory. As long as readers hold all three buffers, new weights are
 * in ordinary memory. */
static int set_up_shared(void **state)
{
	shared_buffers = 3;
	int rc = set_up_buffers(state);
	shared_buffers = 0;
	return rc;
}

static int set_up_engine(void **state)
{
	has_engine = 1;
	int rc = set_up_shared(state);
	has_engine = 0;
	return rc;
}

static int tear_down_buffers(void **state)
{
	(void)state;
	fixture_close(&f);
	param_buffers_free(&buffers);
	threads_free(&threads);
	assert_null(buffers);
	return 0;
}

/* Push a gradient that decreases each weight by one. */
static void push_and_step(void)
{
	struct msg m = fixture_push_ones(worker, ++seq);

	f.next_buffer = param_buffers_next(buffers);
	fixture_applied(&f, 9, &m);
	param_buffers_after_step(buffers);
}

/* Make the frame that answers a pull at this moment, and verify its checksum. */
static void pull_frame(enum weights which, const float *values, uint64_t version, zmq_msg_t *frame)
{
	struct msg_params m = {.which = which, .version = version};

	m.slices.n = 1;
	m.slices.slice[0] =
		(struct slice){.count = FIXTURE_PARAMS, .encoding = ENCODING_F32, .data = values};
	assert_int_equal(param_buffers_frame(buffers, &m, frame), PS_OK);
	assert_int_equal(m.slices.slice[0].xxh3, wire_checksum(values, FIXTURE_PARAMS));
	assert_int_equal(zmq_msg_size(frame), FIXTURE_PARAMS * sizeof(float));
}

static void pull_current(zmq_msg_t *frame)
{
	pull_frame(WEIGHTS_CURRENT, core_weights(f.core), core_stats(f.core)->version, frame);
}

static void assert_frame(zmq_msg_t *frame, float value)
{
	const float *at = zmq_msg_data(frame);

	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		assert_true(at[i] == value);
}

static void pull_bf16(zmq_msg_t *frame)
{
	const float *values = core_weights(f.core);
	struct msg_params m = {
		.which = WEIGHTS_CURRENT, .version = core_stats(f.core)->version, .slices.n = 1};
	struct slice *s = &m.slices.slice[0];

	*s = (struct slice){.count = FIXTURE_PARAMS, .encoding = ENCODING_F32, .data = values};
	assert_int_equal(param_buffers_frame_bf16(buffers, &m, frame), PS_OK);
	assert_int_equal(s->encoding, ENCODING_BF16);
	assert_int_equal(zmq_msg_size(frame), FIXTURE_PARAMS * BF16_BYTES);
	assert_int_equal(s->xxh3, wire_frame_checksum(zmq_msg_data(frame), zmq_msg_size(frame)));
	for (size_t i = 0; i < FIXTURE_PARAMS; i++) {
		uint16_t half;

		memcpy(&half, (char *)zmq_msg_data(frame) + BF16_BYTES * i, sizeof(half));
		assert_int_equal(half, bf16_of(values[i]));
	}
}

TEST_IN(pulls_of_one_version_share_the_rounded_weights, set_up_buffers, tear_down_buffers)
{
	zmq_msg_t frame[5];

	push_and_step();
	pull_bf16(&frame[0]);
	pull_current(&frame[1]); /* as a worker that uses float32 pulls the same version */
	pull_bf16(&frame[2]);
	assert_int_equal(param_buffers_framed(buffers), 2); /* one frame for each encoding */
	assert_frame(&frame[1], -1);
	/* without memory for another buffer, a pull gets a copy of the weights */
	float copy[FIXTURE_PARAMS];
	memcpy(copy, core_weights(f.core), sizeof(copy));
	pull_frame(WEIGHTS_CURRENT, copy, core_stats(f.core)->version, &frame[4]);
	push_and_step();
	pull_bf16(&frame[3]);
	assert_int_equal(param_buffers_framed(buffers), 4);
	for (int i = 0; i < 5; i++)
		(void)zmq_msg_close(&frame[i]);
}
TEST_AGAIN(pulls_of_one_version_share_the_rounded_weights, set_up_shared, tear_down_buffers)

TEST_IN(without_pulls_the_weights_stay_in_place, set_up_buffers, tear_down_buffers)
{
	for (int i = 0; i < 5; i++)
		push_and_step();
	assert_ptr_equal(core_weights(f.core), param_buffers_first(buffers));
	assert_int_equal(param_buffers_framed(buffers), 0);
}
TEST_AGAIN(without_pulls_the_weights_stay_in_place, set_up_shared, tear_down_buffers)

TEST_IN(a_frame_is_the_cores_buffer_and_never_changes, set_up_buffers, tear_down_buffers)
{
	zmq_msg_t frame[40];

	for (int i = 0; i < 40; i++) {
		pull_current(&frame[i]);
		assert_ptr_equal(zmq_msg_data(&frame[i]), core_weights(f.core));
		push_and_step();
		assert_ptr_not_equal(zmq_msg_data(&frame[i]), core_weights(f.core));
	}
	for (int i = 0; i < 40; i++) {
		assert_frame(&frame[i], -(float)i);
		zmq_msg_close(&frame[i]);
	}
	assert_int_equal(param_buffers_framed(buffers), 40);
}
TEST_AGAIN(a_frame_is_the_cores_buffer_and_never_changes, set_up_shared, tear_down_buffers)

TEST_IN(pulls_of_one_version_share_one_frame, set_up_buffers, tear_down_buffers)
{
	zmq_msg_t frame[6];

	for (int i = 0; i < 6; i++) {
		if (i == 3)
			push_and_step();
		pull_current(&frame[i]);
	}
	assert_int_equal(param_buffers_framed(buffers), 2);
	for (int i = 0; i < 6; i++) {
		assert_ptr_equal(zmq_msg_data(&frame[i]), zmq_msg_data(&frame[i / 3 * 3]));
		assert_frame(&frame[i], i < 3 ? 0 : -1);
	}
	for (int i = 0; i < 6; i++)
		zmq_msg_close(&frame[i]);
}
TEST_AGAIN(pulls_of_one_version_share_one_frame, set_up_shared, tear_down_buffers)

TEST_IN(sent_frames_let_the_weights_stay_in_place, set_up_buffers, tear_down_buffers)
{
	zmq_msg_t frame[2];

	for (int i = 0; i < 100; i++) {
		pull_current(&frame[0]);
		pull_current(&frame[1]);
		zmq_msg_close(&frame[0]);
		assert_frame(&frame[1], -(float)i);
		zmq_msg_close(&frame[1]);
		push_and_step();
		assert_ptr_equal(core_weights(f.core), param_buffers_first(buffers));
	}
	assert_int_equal(param_buffers_framed(buffers), 100);
}
TEST_AGAIN(sent_frames_let_the_weights_stay_in_place, set_up_shared, tear_down_buffers)

/* If the only reader always holds the previous version, two buffers must be enough: each buffer
 * must become free when its reader is done. */
TEST_IN(buffers_come_back, set_up_buffers, tear_down_buffers)
{
	const void *seen[2] = {NULL, NULL};
	zmq_msg_t frame;

	for (int i = 0; i < 100; i++) {
		pull_current(&frame);
		const void *at = zmq_msg_data(&frame);
		if (at != seen[0] && at != seen[1]) {
			assert_null(seen[1]);
			seen[seen[0] != NULL] = at;
		}
		push_and_step();
		zmq_msg_close(&frame);
	}
	assert_non_null(seen[1]);
}
TEST_AGAIN(buffers_come_back, set_up_shared, tear_down_buffers)

/* The core computes the checksum together with the weights, so the frame needs no second pass over
 * the weights. */
TEST_IN(weights_that_the_same_step_sends_are_hashed_as_they_are_computed, set_up_buffers,
	tear_down_buffers)
{
	const struct effect *sent = NULL;
	struct msg m = fixture_push_ones(worker, ++seq);
	const struct event ev = {.kind = EVENT_MESSAGE,
		.peer = 9,
		.msg = &m,
		.next_buffer = param_buffers_next(buffers)};
	zmq_msg_t frame;

	m.push.pull = 42;
	core_decide(f.core, &ev, f.now_ms);
	param_buffers_after_step(buffers);
	assert_int_equal(param_buffers_framed(buffers), 1);
	for (size_t i = 0; (sent = core_effect(f.core, i)) && sent->kind != EFFECT_SEND; i++)
		;
	assert_non_null(sent);
	assert_int_equal(sent->msg.type, MSG_PARAMS);
	assert_memory_equal(sent->msg.params.slices.slice[0].data, core_weights(f.core),
		FIXTURE_PARAMS * sizeof(float));
	pull_current(&frame);
	assert_frame(&frame, -1);
	assert_int_equal(param_buffers_framed(buffers), 1);
	zmq_msg_close(&frame);
}
TEST_AGAIN(weights_that_the_same_step_sends_are_hashed_as_they_are_computed, set_up_shared,
	tear_down_buffers)

TEST_IN(an_engine_computes_the_same_checksums, set_up_engine, tear_down_buffers)
{
	zmq_msg_t frame;

	for (int i = 1; i <= 3; i++) {
		struct msg m = fixture_push_ones(worker, ++seq);

		m.push.pull = i == 2; /* in one of the steps, the push also requests the weights */
		f.next_buffer = param_buffers_next(buffers);
		fixture_applied(&f, 9, &m);
		param_buffers_after_step(buffers);
		assert_int_equal(param_buffers_framed(buffers), i - (i != 2));
		pull_current(&frame);
		assert_frame(&frame, (float)-i);
		assert_int_equal(param_buffers_framed(buffers), i);
		(void)zmq_msg_close(&frame);
	}
}

/* An update changes only some of the values, in place or in another buffer. The checksum must cover
 * all values (see pull). */
TEST_IN(a_part_of_the_weights_changes, set_up_buffers, tear_down_buffers)
{
	zmq_msg_t frame[8];

	for (uint64_t i = 0; i < 8; i++) {
		struct msg m = fixture_push(worker, ++seq);
		uint64_t offset = i / 2 % 2 ? FIXTURE_PARAMS / 2 : 0;

		fixture_slice(&m, offset, FIXTURE_PARAMS / 2, fixture_ones);
		if (i % 2)
			pull_current(&frame[i]);
		f.next_buffer = param_buffers_next(buffers);
		fixture_applied(&f, 9, &m);
		param_buffers_after_step(buffers);
		pull_current(&frame[i - i % 2]);
		zmq_msg_close(&frame[i - i % 2]);
		if (i % 2)
			zmq_msg_close(&frame[i]);
	}
}
TEST_AGAIN(a_part_of_the_weights_changes, set_up_shared, tear_down_buffers)

/* The core keeps the weights under evaluation in a buffer that it overwrites in the next epoch, so
 * frames of these weights must have a copy. */
TEST_IN(weights_under_evaluation_are_copied, set_up_buffers, tear_down_buffers)
{
	float eval[FIXTURE_PARAMS] = {0};
	zmq_msg_t frame, current;

	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		eval[i] = 77;
	pull_frame(WEIGHTS_EVAL, eval, 0, &frame);
	pull_current(&current);
	memset(eval, 0, sizeof(eval));
	assert_frame(&frame, 77);
	assert_frame(&current, 0);
	zmq_msg_close(&frame);
	zmq_msg_close(&current);
}
TEST_AGAIN(weights_under_evaluation_are_copied, set_up_shared, tear_down_buffers)

/* ---- readers in other processes -------------------------------------------------------------- */

static int hold_current(size_t *index, void **hold)
{
	struct msg_params m = {.which = WEIGHTS_CURRENT, .version = core_stats(f.core)->version};

	m.slices.n = 1;
	m.slices.slice[0] = (struct slice){
		.count = FIXTURE_PARAMS, .encoding = ENCODING_F32, .data = core_weights(f.core)};
	int held = param_buffers_hold(buffers, &m, index, hold);
	if (held)
		assert_int_equal(m.slices.slice[0].xxh3,
			wire_checksum(core_weights(f.core), FIXTURE_PARAMS));
	return held;
}

/* A worker maps the shared memory. The worker must see the values of each buffer that it holds, and
 * must not be able to make the memory writable. */
TEST_IN(another_process_reads_held_weights_and_cannot_write_them, set_up_shared, tear_down_buffers)
{
	struct param_shared at;
	size_t index[2];
	void *hold[2];

	assert_int_equal(param_buffers_shared(buffers, &at), 1);
	assert_true(share_is_sound(at.fd, at.n * at.pitch));
	assert_null(share_map(at.fd, at.pitch, 1));
	char *view = share_map(at.fd, at.n * at.pitch, 0);
	assert_non_null(view);
	assert_int_equal(mprotect(view, at.pitch, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(pwrite(at.fd, "x", 1, 0), -1);
	assert_int_equal(ftruncate(at.fd, 0), -1);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(hold_current(&index[i], &hold[i]), 1);
		push_and_step();
	}
	for (int i = 0; i < 2; i++) {
		const float *values = (const float *)(void *)(view + index[i] * at.pitch);

		for (size_t k = 0; k < FIXTURE_PARAMS; k++)
			assert_true(values[k] == (float)-i);
		param_buffers_drop(buffers, &hold[i]);
		assert_null(hold[i]);
	}
	assert_int_equal(munmap(view, at.n * at.pitch), 0);
}

/* A reader that keeps every shared buffer must not stop the server: until the reader releases the
 * buffers, new weights are in ordinary memory. */
TEST_IN(without_a_free_shared_buffer_the_weights_are_ordinary, set_up_shared, tear_down_buffers)
{
	size_t index, held = 0;
	void *hold[8];

	while (held < 8 && hold_current(&index, &hold[held])) {
		held++;
		push_and_step();
	}
	assert_int_equal(held, 3);
	push_and_step();
	while (held > 0)
		param_buffers_drop(buffers, &hold[--held]);
	/* while a frame uses a buffer, the core must write to another buffer */
	for (int i = 0; i < 2; i++) {
		zmq_msg_t frame;

		pull_current(&frame);
		push_and_step();
		zmq_msg_close(&frame);
	}
	assert_int_equal(hold_current(&index, &hold[0]), 1);
	param_buffers_drop(buffers, &hold[0]);
}

TEST_IN(ordinary_buffers_have_no_readers_elsewhere, set_up_buffers, tear_down_buffers)
{
	struct param_shared at;
	size_t index;
	void *hold;

	assert_int_equal(param_buffers_shared(buffers, &at), 0);
	assert_int_equal(hold_current(&index, &hold), 0);
	assert_null(hold);
}
