/* test_pool.c - tests that a worker pushes gradients and reads weights without a copy. Tests
 * pool.h, and cnnps_gradient and cnnps_pull of cnnps.h with a fake server. */
#include <stdlib.h>
#include "tests/support/client_fixture.h"
#include "common/mem.h"
#include "common/pool.h"
#include "tests/support/test.h"

#define FLOATS 1000

/* ---- pool ---------------------------------------------------------------------------------- */

TEST(a_buffer_comes_back_when_its_message_is_closed)
{
	struct pool *pool;
	zmq_msg_t first, second;

	assert_int_equal(pool_new(&pool, FLOATS), 0);
	float *buffer = pool_acquire(pool), *sent = buffer;
	assert_true(buffer[0] == 0 && buffer[FLOATS - 1] == 0);
	assert_int_equal((uintptr_t)buffer % 64, 0);
	buffer[FLOATS - 1] = 5;
	assert_int_equal(pool_send(pool, &buffer, &first), 0);
	assert_null(buffer);
	assert_ptr_equal(zmq_msg_data(&first), sent);
	assert_int_equal(zmq_msg_size(&first), FLOATS * sizeof(float));
	zmq_msg_init(&second);
	zmq_msg_copy(&second, &first);
	zmq_msg_close(&first);
	/* a copy of the message still refers to the first buffer, so the pool returns another
	 * buffer */
	buffer = pool_acquire(pool);
	assert_ptr_not_equal(buffer, sent);
	zmq_msg_close(&second);
	float *again = pool_acquire(pool);
	assert_ptr_equal(again, sent);
	assert_true(again[FLOATS - 1] == 5);
	pool_release(pool, &buffer);
	pool_release(pool, &again);
	assert_null(again);
	pool_free(&pool);
	pool_free(&pool);
}

TEST(more_buffers_than_the_pool_keeps_are_freed)
{
	float *buffer[40];
	struct pool *pool;

	assert_int_equal(pool_new(&pool, FLOATS), 0);
	for (size_t i = 0; i < 40; i++)
		buffer[i] = pool_acquire(pool);
	for (size_t i = 0; i < 40; i++)
		pool_release(pool, &buffer[i]);
	pool_free(&pool); /* must free all buffers, or the leak sanitizer reports them */
}

/* ---- gradients ----------------------------------------------------------------------------- */

static void push_gradient(float value)
{
	float *g = cnnps_gradient(client);

	assert_non_null(g);
	assert_ptr_equal(cnnps_gradient(client), g);
	for (int i = 0; i < FAKE_PARAMS; i++)
		g[i] = value;
	assert_int_equal(client_push_all(client, g, 0), 0);
}

TEST_IN(gradients_made_in_place_arrive, client_set_up, client_tear_down)
{
	struct cnnps_stats s;

	fake_set(&client_server, &client_server.how.not_durable, 1);
	for (int i = 1; i <= 5; i++) {
		const float *g = cnnps_gradient(client);

		push_gradient((float)i);
		/* another buffer, because the library retains the buffer of the push for replays */
		assert_ptr_not_equal(cnnps_gradient(client), g);
	}
	assert_int_equal(cnnps_flush(client, 0, 10000), 0);
	s = client_stats(client);
	assert_int_equal(s.acked, 5);
	struct fake_seen seen = fake_read_seen(&client_server);
	assert_true(seen.sum[0] == 15 && seen.sum[FAKE_PARAMS - 1] == 15);
}

TEST_IN(a_part_of_the_buffer_is_copied, client_set_up, client_tear_down)
{
	float *g = cnnps_gradient(client);

	g[0] = 7;
	assert_int_equal(client_push_slice(client, 2, g, 1, 0), 0);
	g[0] = 8;
	assert_ptr_equal(cnnps_gradient(client), g);
	assert_int_equal(cnnps_flush(client, 0, 10000), 0);
	assert_true(fake_read_seen(&client_server).sum[2] == 7);
}

/* ---- weights ------------------------------------------------------------------------------- */

TEST_IN(a_view_stays_as_it_is_until_the_next_one, client_set_up, client_tear_down)
{
	float w[FAKE_PARAMS];
	struct cnnps_pull view;

	fake_set(&client_server, &client_server.how.two_slices, 1);
	push_gradient(2);
	assert_int_equal(client_view(client, &view), 0);
	assert_int_equal(view.version, 1);
	assert_int_equal(view.term, 1);
	push_gradient(3);
	assert_int_equal(client_pull_all(client, w, NULL), 0);
	for (int i = 0; i < FAKE_PARAMS; i++)
		assert_true(view.weights[i] == -2 && w[i] == -5);
	assert_int_equal((uintptr_t)view.weights % sizeof(float), 0);
	fake_set(&client_server, &client_server.how.two_slices, 0);
	assert_int_equal(client_view(client, &view), 0);
	assert_true(view.weights[0] == -5 && view.weights[FAKE_PARAMS - 1] == -5);
}

/* ---- buffers in memory that the program allocates ------------------------------------------ */

static struct {
	_Atomic int taken, given;
} special;

static void *special_allocate(size_t bytes)
{
	special.taken++;
	return mem_try(bytes, 1);
}

static void special_release(void *memory)
{
	special.given++;
	free(memory);
}

/* Check that a pool with the program's own allocator makes few allocations and releases each of
 * them once. The buffers of the pool must not overlap. */
TEST(special_memory_is_taken_once_and_given_back)
{
	float *buffer[40];
	struct pool *pool;

	special.taken = special.given = 0;
	assert_int_equal(pool_new_in(&pool, FLOATS, special_allocate, special_release), 0);
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < 40; i++) {
			buffer[i] = pool_acquire(pool);
			assert_int_equal((uintptr_t)buffer[i] % 64, 0);
			for (size_t k = 0; k < FLOATS; k++)
				buffer[i][k] = (float)i;
		}
		for (size_t i = 0; i < 40; i++) {
			for (size_t k = 0; k < FLOATS; k++)
				assert_true(buffer[i][k] == (float)i);
			pool_release(pool, &buffer[i]);
		}
	}
	assert_in_range(special.taken, 1, 4);
	assert_int_equal(special.given, 0);
	int taken = special.taken;
	pool_free(&pool);
	assert_int_equal(special.taken, taken);
	assert_int_equal(special.given, taken);
}

static void use_special_memory(enum cnnps_wire wire)
{
	struct cnnps_options o = {.size = sizeof(o),
		.server = client_server.url,
		.connect_timeout_ms = 10000,
		.allocate = special_allocate,
		.release = special_release,
		.wire = wire};
	struct cnnps_pull view;

	log_set_level(LOG_ERROR);
	special.taken = special.given = 0;
	fake_start(&client_server);
	assert_int_equal(cnnps_connect(&client, &o), 0);
	for (int i = 1; i <= 20; i++) {
		int before = special.taken;

		fake_set(&client_server, &client_server.how.two_slices, i % 2);
		if (i % 3 == 0)
			assert_int_equal(client_prefetch(client), 0);
		assert_int_equal(client_view(client, &view), 0);
		assert_int_equal(
			/* aligned, because the weights are in a buffer of the pool, not in a
			 * message */
			(uintptr_t)view.weights % 64, 0);
		for (int k = 0; k < FAKE_PARAMS; k++)
			assert_true(view.weights[k] == -(float)(i - 1));
		if (i == 1)
			assert_true(special.taken > before);
		push_gradient(1);
		assert_int_equal(cnnps_flush(client, 1, 10000), 0);
	}
	assert_in_range(special.taken, 1, 10);
	client_tear_down(NULL);
	assert_int_equal(special.given, special.taken);
}

TEST(weights_and_gradients_lie_where_the_program_wants_them)
{
	use_special_memory(CNNPS_WIRE_FP32);
	use_special_memory(CNNPS_WIRE_BF16);
}
