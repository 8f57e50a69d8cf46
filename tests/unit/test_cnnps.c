/* test_cnnps.c - libcnnps with a fake server that answers, loses its state, disconnects and sends
 * invalid messages. Proves the promises of worker/client/cnnps.h and the invariants of net.h and
 * outbox.h. */
#include <time.h>
#include "tests/support/client_fixture.h"
#include "tests/support/test.h"

/* ---- without faults ------------------------------------------------------------------------- */

TEST_IN(connecting_returns_the_fields_of_welcome, client_set_up, client_tear_down)
{
	const struct cnnps_info *i = cnnps_info(client);

	assert_string_equal(i->model, "vector:6");
	assert_int_equal(i->n_params, FAKE_PARAMS);
	assert_int_equal(i->seed, 4);
	assert_int_equal(i->batch, 5);
	assert_int_equal(i->worker, 1);
	assert_string_equal(fake_read_seen(&client_server).hello.device, "test");
	assert_int_equal(fake_read_seen(&client_server).hello.role, ROLE_WORKER);
}

TEST_IN(a_push_is_seen_by_the_next_pull, client_set_up, client_tear_down)
{
	uint64_t version = 99;
	float w[FAKE_PARAMS];

	assert_int_equal(client_pull_all(client, w, &version), 0);
	assert_int_equal(version, 0);
	client_push(2, 0);
	client_push(3, 0);
	assert_int_equal(client_pull_all(client, w, &version), 0);
	assert_int_equal(version, 2);
	assert_true(w[0] == -5 && w[FAKE_PARAMS - 1] == -5);
}

TEST_IN(one_request_pushes_and_brings_the_weights_after_it, client_set_up, client_tear_down)
{
	struct cnnps_pull w;
	struct cnnps_stats stats;
	struct fake_seen seen;

	for (int i = 1; i <= 3; i++) {
		fake_set(&client_server, &client_server.how.joined_acks, i != 2);
		assert_int_equal(client_push_view(client, client_ones, 0, &w), 0);
		assert_int_equal(w.version, i);
		assert_true(w.weights[0] == (float)-i && w.weights[FAKE_PARAMS - 1] == (float)-i);
		stats = client_stats(client);
		assert_int_equal(stats.acked, i);
	}
	seen = fake_read_seen(&client_server);
	assert_int_equal(seen.pushes, 3);
	assert_true(seen.push.pull != 0);
	/* sends a PULL whose answer the next client_view waits for */
	assert_int_equal(client_prefetch(client), 0);
	assert_int_equal(client_push_view(client, client_ones, 0, &w), 0);
	assert_int_equal(w.version, 3);
	client_expect_weights(-4);
}

TEST_IN(a_slice_touches_its_values_only, client_set_up, client_tear_down)
{
	float w[FAKE_PARAMS];

	assert_int_equal(client_push_slice(client, 4, client_ones, 2, 0), 0);
	assert_int_equal(client_pull_all(client, w, NULL), 0);
	assert_true(w[3] == 0 && w[4] == -1 && w[5] == -1);
	assert_int_equal(client_push_slice(client, 5, client_ones, 2, 0), PS_EUSAGE);
	assert_int_equal(client_push_slice(client, UINT64_MAX, client_ones, 2, 0), PS_EUSAGE);
}

TEST_IN(flush_waits_for_decisions_and_for_the_disk, client_set_up, client_tear_down)
{
	struct cnnps_stats s;

	fake_set(&client_server, &client_server.how.not_durable, 1);
	client_push(1, 0);
	client_push(1, 0);
	assert_int_equal(cnnps_flush(client, 0, 10000), 0);
	s = client_stats(client);
	assert_int_equal(s.pushed, 2);
	assert_int_equal(s.acked, 2);
	assert_int_equal(s.durable, 0);
	assert_int_equal(s.last_version, 2);
	assert_int_equal(cnnps_flush(client, 1, 50), CNNPS_EAGAIN);
	fake_set(&client_server, &client_server.how.not_durable, 0);
	assert_int_equal(
		/* succeeds without further pushes, because the answer to a HEARTBEAT contains the
		 * durable seq */
		cnnps_flush(client, 1, 10000), 0);
	s = client_stats(client);
	assert_int_equal(s.durable, 2);
	assert_int_equal(s.replayed, 0);
}

TEST_IN(the_time_is_split, client_set_up, client_tear_down)
{
	struct cnnps_stats before = client_stats(client), s;
	const struct timespec pause = {.tv_nsec = 30 * 1000 * 1000};

	client_expect_weights(0);
	nanosleep(&pause, NULL); /* the program computes */
	fake_set(&client_server, &client_server.how.not_durable, 1);
	client_push(1, 0);
	assert_int_equal(cnnps_flush(client, 1, 50), CNNPS_EAGAIN);
	s = client_stats(client);
	assert_in_range(s.compute_us - before.compute_us, 30 * 1000, 10 * 1000 * 1000);
	assert_in_range(s.push_us - before.push_us, 50 * 1000, 10 * 1000 * 1000);
	assert_true(s.weights_us > before.weights_us);
	fake_set(&client_server, &client_server.how.not_durable, 0);
}

TEST_IN(a_rejection_is_counted, client_set_up, client_tear_down)
{
	struct cnnps_stats s;

	fake_set(&client_server, &client_server.how.reject, REJECT_NORM);
	client_push(1, 0);
	assert_int_equal(cnnps_flush(client, 0, 10000), 0);
	s = client_stats(client);
	assert_true(s.rejected == 1 && s.superseded == 0 && s.acked == 0);
	fake_set(&client_server, &client_server.how.reject,
		REJECT_WORK); /* as for a worker with another data set */
	client_push(1, 0);
	assert_int_equal(cnnps_flush(client, 0, 10000), 0);
	s = client_stats(client);
	assert_true(s.rejected == 2 && s.superseded == 0 && s.acked == 0);
	/* from now on, as if another worker had delivered each batch first */
	fake_set(&client_server, &client_server.how.superseded, 1);
	client_push(1, 0);
	assert_int_equal(cnnps_flush(client, 0, 10000), 0);
	s = client_stats(client);
	assert_true(s.rejected == 2 && s.superseded == 1 && s.acked == 0);
}

TEST_IN(leases_and_results_travel_whole, client_set_up, client_tear_down)
{
	struct cnnps_lease a = {.size = sizeof(a)}, b = {.size = sizeof(b)};
	struct cnnps_work work = {.epoch = 1, .first = 20, .count = 1, .images = 5, .loss = 0.5f};
	struct cnnps_evaluation result = {sizeof(result), 24, 1.5, {-2, 0, 0, 1e300}};
	struct fake_seen seen;

	assert_int_equal(cnnps_lease(client, &a), 0);
	assert_int_equal(a.kind, CNNPS_TRAIN);
	assert_true(a.epoch == 1 && a.first == 20 && a.count == 3);
	assert_int_equal(client_push_work(client, client_ones, 7, &work), 0);
	assert_int_equal(cnnps_lease(client, &b), 0);
	assert_int_equal(b.kind, CNNPS_EVAL);
	assert_true(b.first == 50 && b.count == 25 && b.eval_id == 9);
	assert_int_equal(cnnps_result(client, &a, &result), PS_EUSAGE);
	assert_int_equal(cnnps_result(client, &b, &result), 0);
	/* Messages arrive in the order in which they were sent. When the weights arrive, the server
	 * has therefore received all messages that were sent before the pull. */
	client_expect_weights(-1);
	seen = fake_read_seen(&client_server);
	assert_int_equal(seen.result.correct, 24);
	assert_true(seen.result.loss_sum == 1.5 && seen.result.eval_id == 9);
	assert_true(seen.result.metric_sum[0] == -2 && seen.result.metric_sum[3] == 1e300);
	assert_true(seen.push.base_version == 7 && seen.push.images == 5 &&
		    seen.push.work.first == 20 && seen.push.work.count == 1);
	assert_true(seen.push.loss == 0.5f);
}

TEST_IN(observers_ask_but_do_not_push, client_set_up_unconnected, client_tear_down)
{
	struct cnnps_options o = client_options();
	struct cnnps_lease lease = {.size = sizeof(lease)};
	uint64_t generation;
	char json[64];

	o.observer = 1;
	client_connect(&o);
	assert_int_equal(cnnps_status(client, json, sizeof(json)), 0);
	assert_string_equal(json, FAKE_JSON);
	assert_int_equal(cnnps_status(client, json, 5), 0);
	assert_string_equal(json, "{\"fa");
	assert_int_equal(cnnps_checkpoint(client, &generation), 0);
	assert_int_equal(generation, 12);
	assert_int_equal(cnnps_drain(client), 0);
	client_push(1, PS_EUSAGE);
	assert_int_equal(cnnps_lease(client, &lease), PS_EUSAGE);
	client_expect_weights(0);
}

TEST_IN(closing_waits_for_decisions_and_sends_bye, client_set_up, client_tear_down)
{
	client_push(1, 0);
	client_push(1, 0);
	cnnps_close(&client);
	assert_null(client);
	assert_int_equal(fake_read_seen(&client_server).last_seq, 2);
	assert_int_equal(fake_read_seen(&client_server).byes, 1);
}

/* ---- windows and memory ------------------------------------------------------------------- */

static int two_pushes(const struct fake *f)
{
	return f->seen.pushes >= 2;
}

/* This struct describes a thread that makes three pushes. `done` becomes 1 after the third push. */
struct pusher {
	pthread_t thread;
	atomic_int done;
};

static void *push_three(void *arg)
{
	struct pusher *p = arg;

	for (int i = 0; i < 3; i++)
		client_push(1, 0);
	atomic_store(&p->done, 1);
	return NULL;
}

static void a_third_push_waits_for(int *mute)
{
	struct cnnps_options o = client_options();
	struct pusher p = {.done = 0};
	struct fake_seen seen;

	o.replay_bytes = 2 * FAKE_PARAMS * sizeof(float);
	client_connect(&o);
	fake_set(&client_server, mute, 1);
	assert_int_equal(pthread_create(&p.thread, NULL, push_three, &p), 0);
	fake_wait(&client_server, two_pushes, "two pushes");
	seen = fake_read_seen(&client_server);
	/* a library that ignores the limit would have sent the third push by now */
	fake_hang_up(&client_server, 0);
	assert_int_equal(atomic_load(&p.done), 0);
	assert_int_equal(seen.pushes, 2);
	fake_set(&client_server, mute, 0);
	pthread_join(p.thread, NULL);
	assert_int_equal(cnnps_flush(client, 0, 10000), 0);
	assert_true(fake_read_seen(&client_server).sum[0] == 3);
}

TEST_IN(pushes_beyond_the_replay_memory_wait_for_the_disk, client_set_up_unconnected,
	client_tear_down)
{
	a_third_push_waits_for(&client_server.how.not_durable);
}

TEST_IN(pushes_beyond_the_replay_memory_wait_for_a_decision, client_set_up_unconnected,
	client_tear_down)
{
	a_third_push_waits_for(&client_server.how.mute_pushes);
}

TEST_IN(many_pushes_pass_a_small_window_in_order, client_set_up, client_tear_down)
{
	struct fake_seen seen;

	for (int i = 0; i < FAKE_PUSHES; i++)
		client_push(1, 0);
	client_expect_weights(-FAKE_PUSHES);
	seen = fake_read_seen(&client_server);
	assert_int_equal(seen.pushes, FAKE_PUSHES);
	for (int i = 0; i < FAKE_PUSHES; i++)
		assert_int_equal(seen.seq[i], i + 1);
}

/* ---- faults ------------------------------------------------------------------------------- */

static int has_three_pushes(const struct fake *f)
{
	return f->seen.pushes >= 3;
}

TEST_IN(a_crash_of_the_server_is_replayed_byte_for_byte, client_set_up, client_tear_down)
{
	struct fake_seen before, after;
	struct cnnps_stats s;

	fake_set(&client_server, &client_server.how.not_durable, 1);
	for (int i = 1; i <= 3; i++)
		client_push((float)i, 0);
	fake_wait(&client_server, has_three_pushes, "three pushes");
	before = fake_read_seen(&client_server);
	fake_hang_up(&client_server, 1);
	client_expect_weights(-6);
	after = fake_read_seen(&client_server);
	assert_int_equal(after.pushes, 6);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(after.seq[3 + i], i + 1);
		assert_true(after.hash[3 + i] == before.hash[i]);
	}
	s = client_stats(client);
	assert_int_equal(s.reconnects, 1);
	assert_int_equal(s.replayed, 3);
	assert_int_equal(s.pushed, 3);
	assert_int_equal(after.hello.last_seq, 3);
	assert_int_equal(after.hello.resume.worker, 1);
}

static void connect_bf16(void)
{
	struct cnnps_options o = client_options();

	o.wire = CNNPS_WIRE_BF16;
	client_connect(&o);
	assert_int_equal(fake_read_seen(&client_server).hello.wire, ENCODING_BF16);
}

/* 1 + 2^-10 lies between the bfloat16 values 1 and 1 + 2^-7. The rounding error of each push is
 * added to the next push. When a push is sent again, it must have the bytes of the first
 * transmission, although the rounding error has changed since. */
TEST_IN(a_push_in_bfloat16_has_the_same_bytes_when_it_is_sent_again, client_set_up_unconnected,
	client_tear_down)
{
	struct fake_seen before, after;
	const struct slice *s;

	connect_bf16();
	fake_set(&client_server, &client_server.how.not_durable, 1);
	for (int i = 0; i < 8; i++)
		client_push(1 + 0x1p-10f, 0);
	assert_int_equal(cnnps_flush(client, 0, 10000), 0);
	before = fake_read_seen(&client_server);
	/* if rounding errors were not added to the next push, the sum would be 8 */
	assert_true(before.sum[0] == 8 + 8 * 0x1p-10f);
	assert_true(before.made[0].g[0] == 1 && before.made[0].g[FAKE_PARAMS - 1] == 1);
	assert_true(before.made[4].g[0] == 1 + 0x1p-7f);
	s = &before.push.slices.slice[0];
	assert_int_equal(s->encoding, ENCODING_BF16);
	fake_hang_up(&client_server, 1);
	client_expect_weights(-8); /* -8 - 2^-7, rounded to bfloat16 */
	after = fake_read_seen(&client_server);
	assert_int_equal(after.pushes, 16);
	for (int i = 0; i < 8; i++) {
		assert_int_equal(after.seq[8 + i], i + 1);
		assert_true(after.hash[8 + i] == before.hash[i]);
	}
	assert_true(after.sum[0] == before.sum[0]);
}

TEST_IN(weights_in_bfloat16_arrive_as_floats, client_set_up_unconnected, client_tear_down)
{
	struct cnnps_pull w;

	connect_bf16();
	client_push(3, 0);
	for (int two = 0; two < 2; two++) {
		fake_set(&client_server, &client_server.how.two_slices, two);
		client_expect_weights(-3);
		for (int i = 0; i < 3; i++) {
			assert_int_equal(client_view(client, &w), 0);
			assert_true(w.weights[0] == -3 && w.weights[FAKE_PARAMS - 1] == -3);
		}
	}
	float *g = cnnps_gradient(client);
	for (int i = 0; i < FAKE_PARAMS; i++)
		g[i] = 1;
	assert_int_equal(client_push_view(client, g, 0, &w), 0);
	assert_true(w.weights[0] == -4);
	fake_set(&client_server, &client_server.how.damaged_pulls, 2);
	client_expect_weights(-4);
}

TEST_IN(a_server_that_accepts_no_bfloat16_is_refused, client_set_up_unconnected, client_tear_down)
{
	struct cnnps_options o = client_options();

	o.wire = CNNPS_WIRE_BF16;
	fake_set(&client_server, &client_server.how.only_fp32, 1);
	assert_int_equal(cnnps_connect(&client, &o), CNNPS_EUSAGE);
	assert_non_null(strstr(cnnps_error(client), "--wire fp32"));
	cnnps_close(&client);
	o.lane = CNNPS_LANE_SHM;
	assert_int_equal(cnnps_connect(&client, &o), CNNPS_EUSAGE);
	assert_non_null(strstr(cnnps_error(client), "shared memory"));
}

TEST_IN(what_was_durable_is_not_replayed, client_set_up, client_tear_down)
{
	client_push(1, 0);
	assert_int_equal(cnnps_flush(client, 1, 10000), 0);
	fake_set(&client_server, &client_server.how.not_durable, 1);
	fake_hang_up(&client_server, 0);
	client_push(1, 0);
	client_expect_weights(-2);
	assert_int_equal(fake_read_seen(&client_server).pushes, 2);
}

TEST_IN(a_lost_acknowledgement_applies_nothing_twice, client_set_up, client_tear_down)
{
	struct cnnps_stats s;

	fake_set(&client_server, &client_server.how.not_durable, 1);
	fake_set(&client_server, &client_server.how.mute_acks, 1);
	client_push(1, 0);
	client_push(1, 0);
	fake_wait(&client_server, two_pushes, "two pushes");
	fake_set(&client_server, &client_server.how.mute_acks, 0);
	fake_hang_up(&client_server, 0);
	assert_int_equal(cnnps_flush(client, 0, 10000), 0);
	client_expect_weights(-2);
	s = client_stats(client);
	assert_int_equal(s.acked, 2);
}

static void *hang_up_after_the_pull(void *arg)
{
	int (*pulled)(const struct fake *) = *(int (**)(const struct fake *))arg;

	fake_wait(&client_server, pulled, "a pull");
	fake_set(&client_server, &client_server.how.mute_pulls, 0);
	fake_hang_up(&client_server, 0);
	return NULL;
}

TEST_IN(a_pull_outlives_its_connection, client_set_up, client_tear_down)
{
	pthread_t thread;

	int (*pulled)(const struct fake *) = fake_has_pull;

	fake_set(&client_server, &client_server.how.mute_pulls, 1);
	assert_int_equal(pthread_create(&thread, NULL, hang_up_after_the_pull, &pulled), 0);
	client_expect_weights(0);
	pthread_join(thread, NULL);
	assert_int_equal(fake_read_seen(&client_server).pulls, 2);
}

static int asked_in_vain(const struct fake *f)
{
	return f->seen.pulls >= 1;
}

static void *hang_up_once_asked(void *arg)
{
	fake_wait(&client_server, asked_in_vain, "a push that asks");
	fake_set(&client_server, &client_server.how.mute_pulls, 0);
	fake_hang_up(&client_server, 1);
	return arg;
}

/* The server crashes after a request that both pushes and pulls, so that the request and its answer
 * are lost. The library must send both the push and the pull again. */
TEST_IN(a_request_for_both_outlives_a_crash, client_set_up, client_tear_down)
{
	struct cnnps_pull w;
	pthread_t t;

	fake_set(&client_server, &client_server.how.not_durable, 1);
	fake_set(&client_server, &client_server.how.mute_pulls, 1);
	assert_int_equal(pthread_create(&t, NULL, hang_up_once_asked, NULL), 0);
	assert_int_equal(client_push_view(client, client_ones, 0, &w), 0);
	assert_true(w.weights[0] == -1);
	assert_int_equal(w.version, 1);
	assert_int_equal(pthread_join(t, NULL), 0);
	assert_int_equal(fake_read_seen(&client_server).pushes, 2);
}

TEST_IN(ten_crashes_lose_and_repeat_nothing, client_set_up, client_tear_down)
{
	fake_set(&client_server, &client_server.how.not_durable, 1);
	for (int i = 0; i < 10; i++) {
		client_push(1, 0);
		fake_hang_up(&client_server, i % 2);
	}
	client_expect_weights(-10);
}

TEST_IN(garbage_from_the_server_is_dropped, client_set_up, client_tear_down)
{
	fake_set(&client_server, &client_server.how.garbage, 1);
	client_push(1, 0);
	client_expect_weights(-1);
	assert_int_equal(cnnps_flush(client, 1, 10000), 0);
}
