/*
 * test_server_one_pass.c - what the server computes in one pass over a gradient, and in one pass
 * over the new weights, has the same bits for any number of threads, and the same bits as a core
 * that computes everything itself in passes of its own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/threads.h"
#include "proto/bf16.h"
#include "proto/checksum.h"
#include "proto/wire.h"
#include "server/core/blocks.h"
#include "server/core/vec.h"
#include "server/net/param_buffers.h"
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

#define N (5 * ENGINE_BLOCK + 77)
/* number of running statistics: more than a block, so that one block has both running statistics
 * and trained weights */
#define RUNNING (ENGINE_BLOCK + 1000)
#define PUSHES  8u

static const size_t thread_counts[] = {1, 2, 3, 8};

/* A server whose gradients and weights pass through the code of the shell. */
struct shell {
	struct core_fixture f;
	struct stamp worker;
	struct threads *threads;
	struct param_buffers *buffers;
	struct wire_pass pass;
	float *copy;
	zmq_msg_t frame[PUSHES]; /* frames with weights that readers still use */
	size_t frames;
};

static void open_shell(struct shell *s, struct core_config cfg, size_t threads)
{
	struct err e;

	*s = (struct shell){.copy = malloc(N * sizeof(float))};
	assert_non_null(s->copy);
	assert_int_equal(threads_new(&s->threads, threads, "test", &e), PS_OK);
	if (threads % 2)
		threads_stay_awake(s->threads);
	cfg.engine = threads_engine(s->threads);
	s->pass = (struct wire_pass){.engine = cfg.engine,
		.squares = core_needs_squares(&cfg) ? vec_squares : NULL,
		.trained = N - cfg.n_running};
	assert_int_equal(param_buffers_new(&s->buffers, N, 3), PS_OK);
	param_buffers_use_engine(s->buffers, cfg.engine);
	s->f = (struct core_fixture){.cfg = cfg, .now_ms = 1000, .memory = fixture_memory(&cfg)};
	s->f.core = core_init(s->f.memory, &s->f.cfg, param_buffers_first(s->buffers));
	param_buffers_use_core(s->buffers, s->f.core);
	s->worker = fixture_join(&s->f, 9, "");
}

static void close_shell(struct shell *s)
{
	while (s->frames > 0)
		(void)zmq_msg_close(&s->frame[--s->frames]);
	fixture_close(&s->f);
	param_buffers_free(&s->buffers);
	threads_free(&s->threads);
	free(s->copy);
}

/* Replaces the gradient of `m` by a copy, with the results of the pass that copied it. */
static void shell_receive(struct shell *s, struct msg *m)
{
	struct slice *p = &m->push.slices.slice[0];
	struct chunk chunk;

	wire_copy_chunk(s->copy, p->data, p->count, &chunk, &s->pass);
	assert_int_equal(chunk.xxh3, wire_checksum(p->data, p->count));
	assert_memory_equal(s->copy, p->data, p->count * sizeof(float));
	assert_int_equal(chunk.squared, !s->pass.squares             ? 0
					: p->count < s->pass.trained ? p->count
								     : s->pass.trained);
	*p = (struct slice){.offset = p->offset,
		.count = p->count,
		.encoding = ENCODING_F32,
		.data = s->copy,
		.peak = chunk.peak,
		.squared = chunk.squared,
		.squares = chunk.squares};
}

/* Checks the checksum of the weights. Keeps the frame with the weights, so that the next version
 * needs another buffer. */
static void shell_send_weights(struct shell *s)
{
	const struct core *c = s->f.core;
	struct msg_params m = {.which = WEIGHTS_CURRENT, .version = core_stats(c)->version};

	m.slices.n = 1;
	m.slices.slice[0] =
		(struct slice){.count = N, .encoding = ENCODING_F32, .data = core_weights(c)};
	assert_int_equal(param_buffers_frame(s->buffers, &m, &s->frame[s->frames++]), PS_OK);
	assert_int_equal(m.slices.slice[0].xxh3, wire_checksum(core_weights(c), N));
	if (s->frames == 3)
		while (s->frames > 0)
			(void)zmq_msg_close(&s->frame[--s->frames]);
}

static void step_shell(struct shell *s, struct msg *m, int sends)
{
	struct event ev = {.kind = EVENT_MESSAGE, .peer = 9, .msg = m};

	shell_receive(s, m);
	ev.next_buffer = param_buffers_next(s->buffers);
	core_decide(s->f.core, &ev, s->f.now_ms);
	param_buffers_after_step(s->buffers);
	if (sends)
		shell_send_weights(s);
}

static struct core_config one_pass_config(enum optim_kind optim, uint32_t i)
{
	struct core_config cfg = fixture_config();

	cfg.n_params = N;
	cfg.optim.kind = optim;
	cfg.rate.lr = 0.01;
	cfg.optim.clip_norm = i & 1 ? 20 : 0;
	cfg.limits.reject_norm = i & 2 ? 1e6 : 0;
	cfg.limits.norm_ratio = i & 4 ? 10 : 0;
	cfg.n_running = i & 8 ? RUNNING : 0;
	cfg.dc.kind = i % 3 == 0 ? DC_NONE : i % 3 == 1 ? DC_CONSTANT : DC_ADAPTIVE;
	cfg.dc.lambda = 0.04;
	cfg.push.buffer_size = i % 5 == 4 ? 2 : 1;
	cfg.push.aggregate = i % 10 == 9 ? AGGREGATE_MEDIAN : AGGREGATE_MEAN;
	return cfg;
}

static void draw_some_gradient(struct rng *r, float *g)
{
	for (size_t i = 0; i < N; i++)
		g[i] = (float)(rng_unit(r) - 0.4);
}

/* Returns push number `seq`. Push 5 has a value that is not finite. Some pushes have no values at
 * the end, or none at the beginning. */
static struct msg shell_push(struct stamp worker, uint64_t seq, float *g, uint64_t version)
{
	struct msg m = fixture_push(worker, seq);
	uint64_t from = seq % 4 == 3 ? 1000 : 0, to = seq % 4 == 2 ? N - 20000 : N;

	if (seq == 5)
		g[N / 2] = INFINITY;
	fixture_slice(&m, from, to - from, g);
	m.push.pull = seq % 2 ? 40 + seq : 0;
	m.push.base_version = version > 1 ? version - 1 : version;
	return m;
}

static void compare_with_whole(struct core_config cfg, size_t threads, float *g)
{
	struct rng r = rng_seed(cfg.optim.kind, RNG_SIM, 3);
	struct core_fixture whole;
	struct shell s;

	open_shell(&s, cfg, threads);
	fixture_open(&whole, cfg);
	struct stamp worker = fixture_join(&whole, 9, "");
	for (uint64_t seq = 1; seq <= PUSHES; seq++) {
		draw_some_gradient(&r, g);
		uint64_t version = core_stats(whole.core)->version;
		struct msg m = shell_push(worker, seq, g, version);
		struct msg_ack a = fixture_acked(&whole, 9, &m);

		assert_int_equal(a.reject, seq == 5 ? REJECT_NONFINITE : REJECT_NONE);
		m = shell_push(s.worker, seq, g, version);
		step_shell(&s, &m, seq % 3 > 0);
		assert_int_equal(core_stats(s.f.core)->version, core_stats(whole.core)->version);
		assert_memory_equal(
			core_weights(s.f.core), core_weights(whole.core), N * sizeof(float));
	}
	for (size_t i = 0; i < optim_vectors(cfg.optim.kind); i++)
		assert_memory_equal(
			s.f.core->store.state[i], whole.core->store.state[i], N * sizeof(float));
	close_shell(&s);
	fixture_close(&whole);
}

TEST(one_pass_gives_the_bits_of_several_passes_with_any_number_of_threads)
{
	float *g = malloc(N * sizeof(*g));
	uint32_t i = 0;

	assert_non_null(g);
	for (enum optim_kind o = OPTIM_SGD; o < OPTIM_LBFGS; o++)
		for (uint32_t v = 0; v < 4; v++, i++)
			for (size_t t = 0; t < 4; t++)
				compare_with_whole(one_pass_config(o, i), thread_counts[t], g);
	free(g);
}

TEST(a_refused_push_changes_no_bit)
{
	float *g = malloc(N * sizeof(*g)), *before = malloc(N * sizeof(*g)),
	      *kept = malloc(N * sizeof(*g));
	struct core_config cfg = one_pass_config(OPTIM_MOMENTUM, 0);
	struct rng r = {7};

	assert_true(g && before && kept);
	cfg.limits.reject_norm = 1000;
	for (size_t t = 0; t < 4; t++) {
		struct shell s;

		open_shell(&s, cfg, thread_counts[t]);
		for (uint64_t seq = 1; seq <= 4; seq++) {
			draw_some_gradient(&r, g);
			struct msg m = fixture_push(s.worker, seq);

			fixture_slice(&m, 0, N, g);
			if (seq == 2) /* push 2: each value is allowed, but the norm is too large */
				for (size_t i = 0; i < N; i++)
					g[i] *= 20;
			if (seq == 3)
				g[N - 1] = NAN;
			memcpy(before, core_weights(s.f.core), N * sizeof(*g));
			memcpy(kept, s.f.core->store.state[0], N * sizeof(*g));
			step_shell(&s, &m, 1);
			int is_bad = seq == 2 || seq == 3;
			assert_int_equal(
				memcmp(before, core_weights(s.f.core), N * sizeof(*g)) == 0,
				is_bad);
			assert_int_equal(
				memcmp(kept, s.f.core->store.state[0], N * sizeof(*g)) == 0,
				is_bad);
		}
		assert_int_equal(core_stats(s.f.core)->version, 2);
		assert_int_equal(core_stats(s.f.core)->rejected[REJECT_NORM], 1);
		assert_int_equal(core_stats(s.f.core)->rejected[REJECT_NONFINITE], 1);
		close_shell(&s);
	}
	free(g);
	free(before);
	free(kept);
}

/* Compares the pass over `count` bfloat16 values with a conversion, a checksum and a sum of squares
 * in passes of their own. */
static void compare_bf16_pass(
	size_t count, const struct wire_pass *pass, const unsigned char *packed)
{
	float *whole = malloc(N * sizeof(*whole)), *to = malloc(N * sizeof(*to));
	double result[N / ENGINE_BLOCK + 1];
	const struct blocks b = {.result = result};
	struct chunk chunk;

	assert_true(whole && to);
	uint32_t peak = bf16_unpack(whole, packed, count);
	for (int needs_hash = 0; needs_hash <= 1; needs_hash++) {
		size_t squared = !pass || !pass->squares ? 0
				 : count < pass->trained ? count
							 : pass->trained;

		memset(to, 0, N * sizeof(*to));
		wire_unpack_bf16(to, packed, count, needs_hash, &chunk, pass);
		assert_memory_equal(to, whole, count * sizeof(*to));
		assert_int_equal(chunk.peak, peak);
		assert_int_equal(chunk.xxh3,
			needs_hash ? wire_frame_checksum(packed, count * BF16_BYTES) : 0);
		assert_int_equal(chunk.squared, squared);
		double squares = squared ? blocks_squares(&b, whole, squared) : 0;
		assert_memory_equal(&chunk.squares, &squares, sizeof(squares));
	}
	free(whole);
	free(to);
}

TEST(one_pass_over_bfloat16_gives_the_bits_of_several_passes_with_any_number_of_threads)
{
	static const size_t counts[] = {
		1, 500, ENGINE_BLOCK - 1, ENGINE_BLOCK, ENGINE_BLOCK + 1, 2 * ENGINE_BLOCK, N};
	unsigned char *packed = malloc(N * BF16_BYTES + 1);
	float *g = malloc(N * sizeof(*g));
	struct rng r = {11};
	struct err e;

	assert_true(packed && g);
	draw_some_gradient(&r, g);
	/* an odd address, because a frame can have any alignment */
	bf16_pack(packed + 1, g, N);
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		struct wire_pass pass = {.squares = vec_squares, .trained = N - RUNNING};

		compare_bf16_pass(counts[i], NULL, packed + 1);
		compare_bf16_pass(counts[i], &pass, packed + 1);
		for (size_t t = 0; t < sizeof(thread_counts) / sizeof(thread_counts[0]); t++) {
			struct threads *threads;

			assert_int_equal(
				threads_new(&threads, thread_counts[t], "test", &e), PS_OK);
			pass.engine = threads_engine(threads);
			compare_bf16_pass(counts[i], &pass, packed + 1);
			threads_free(&threads);
		}
	}
	free(packed);
	free(g);
}
