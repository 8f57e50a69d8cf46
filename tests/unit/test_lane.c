/*
 * test_lane.c - shared-memory lanes: the server's side (server/net/lane.h) and the worker's side
 * (worker/client/lane.h) in one process, and peers that break the protocol.
 * Covers attacks A5 and A23 of docs/faults.md.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "tests/support/capture.h"
#include "tests/support/core_fixture.h"
#include "tests/support/temp_dir.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/share.h"
#include "server/net/lane.h"
#include "server/net/line_budget.h"
#include "worker/client/lane.h"
#include "tests/support/test.h"

#define PEER        7u
#define DEADLINE_MS 10000

static char dir[64], path[128];
static uv_loop_t loop;
static struct param_buffers *params;
static struct core_fixture f;
static struct line_budget lines;
static struct lanes *lanes;
static int listening; /* the socket of the lanes */
static struct wire *wire;
static struct capture said;

static int set_up_lanes(void **state)
{
	struct core_config cfg = fixture_config();
	struct err e;

	(void)state;
	log_set_level(LOG_ERROR);
	memset(&lines, 0, sizeof(lines));
	temp_dir_make(dir);
	snprintf(path, sizeof(path), "%s/lane", dir);
	if (param_buffers_new(&params, cfg.n_params, 16) || uv_loop_init(&loop) ||
		wire_new(&wire, cfg.n_params))
		return 1;
	f = (struct core_fixture){.cfg = cfg, .now_ms = 1000, .memory = fixture_memory(&cfg)};
	f.core = core_init(f.memory, &f.cfg, param_buffers_first(params));
	param_buffers_use_core(params, f.core);
	if (share_listen(path, &listening, &e))
		return 1;
	const struct lanes_config config = {.loop = &loop,
		.path = path,
		.fd = listening,
		.n_params = FIXTURE_PARAMS,
		.max_workers = 3,
		.lines = &lines,
		.params = params};
	return lanes_new(&lanes, &config, &e);
}

static int tear_down_lanes(void **state)
{
	(void)state;
	lanes_stop(lanes);
	uv_run(&loop, UV_RUN_DEFAULT);
	lanes_free(&lanes);
	close(listening);
	(void)unlink(path);
	fixture_close(&f);
	param_buffers_free(&params);
	wire_free(&wire);
	temp_dir_remove(dir);
	return uv_loop_close(&loop);
}

static uint32_t count_open_lanes(void)
{
	struct lanes_stats s;

	lanes_stats(lanes, &s);
	return s.open;
}

/* Run the event loop until `n` lanes are open. */
static void until_open(uint32_t n)
{
	uint64_t end = clock_ms() + DEADLINE_MS;

	while (count_open_lanes() != n) {
		assert_true(clock_ms() < end);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
}

static void run_for(uint64_t ms)
{
	for (uint64_t end = clock_ms() + ms; clock_ms() < end;)
		uv_run(&loop, UV_RUN_NOWAIT);
}

static struct msg_welcome welcome_to_lane(uint32_t worker, uint32_t incarnation, uint32_t peer)
{
	struct msg_welcome w = {.stamp = {.worker = worker, .incarnation = incarnation},
		.n_params = FIXTURE_PARAMS};

	lanes_welcome(lanes, peer, &w);
	return w;
}

static struct lane *open_worker_lane(uint32_t worker, uint32_t peer)
{
	const struct msg_welcome w = welcome_to_lane(worker, 1, peer);
	uint32_t before = count_open_lanes();
	struct lane *l;
	struct err e;

	assert_int_equal(lane_open(&l, &w, &e), PS_OK);
	assert_int_equal(lane_poll(l, &e), PS_EAGAIN);
	until_open(before + 1);
	assert_int_equal(lane_poll(l, &e), PS_OK);
	assert_true(lane_is_open(l));
	return l;
}

/* ---- pushes ---------------------------------------------------------------------------------- */

/* Make the frames of the PUSH that a worker sends if its gradient is in `message`. */
static void make_lane_push(const struct lane *l, zmq_msg_t *message, struct frames *out)
{
	struct msg m = {.type = MSG_PUSH};
	const float *values = zmq_msg_data(message);
	size_t n = zmq_msg_size(message) / sizeof(float);

	m.push.seq = 1;
	m.push.slices.n = 1;
	m.push.slices.slice[0] = (struct slice){.count = n,
		.encoding = ENCODING_F32,
		.xxh3 = wire_checksum(values, n),
		.data = values};
	m.push.lane_slot = lane_slot_of(l, values);
	m.push.lane_count = n;
	assert_true(m.push.lane_slot > 0);
	frames_init(out);
	assert_int_equal(wire_encode_header(&m, &out->frame[0]), PS_OK);
	out->n = 1;
}

/* Receive a PUSH as the router does. Returns the status of lanes_join if it fails, otherwise that
 * of wire_decode. */
static int receive_push(uint32_t peer, struct frames *in, struct msg *m)
{
	struct lane_ref ref;
	const char *why;

	assert_int_equal(wire_lane_ref(in, &ref), 1);
	int rc = lanes_join(lanes, peer, &ref, 0, 0, in);
	return rc ? rc : wire_decode(wire, in, m, &why);
}

static void fill_values(float *values, float value)
{
	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		values[i] = value;
}

static void take_and_fill(struct lane *l, float value, size_t count, zmq_msg_t *message)
{
	struct lane_slot slot;

	assert_int_equal(lane_take(l, &slot, 0), 1);
	fill_values(slot.values, value);
	assert_int_equal(lane_send(&slot, count, message), PS_OK);
	assert_null(slot.lane);
}

TEST_IN(a_push_arrives_as_a_private_copy, set_up_lanes, tear_down_lanes)
{
	struct lane *l = open_worker_lane(1, PEER);
	struct frames in;
	struct msg m;
	zmq_msg_t push;

	take_and_fill(l, 3, FIXTURE_PARAMS, &push);
	make_lane_push(l, &push, &in);
	assert_int_equal(receive_push(PEER, &in, &m), PS_OK);
	/* a hostile worker writes to the slot after it has sent the PUSH */
	fill_values(zmq_msg_data(&push), 99);
	assert_int_equal(m.push.slices.slice[0].count, FIXTURE_PARAMS);
	for (size_t i = 0; i < FIXTURE_PARAMS; i++)
		assert_true(m.push.slices.slice[0].data[i] == 3);
	const float three = 3;
	uint32_t peak;
	memcpy(&peak, &three, sizeof(peak));
	assert_int_equal(m.push.slices.slice[0].peak, peak);
	frames_release(&in);
	zmq_msg_close(&push);
	take_and_fill(l, 4, 2, &push); /* a push of a part of the gradient */
	make_lane_push(l, &push, &in);
	assert_int_equal(receive_push(PEER, &in, &m), PS_OK);
	assert_int_equal(m.push.slices.slice[0].count, 2);
	frames_release(&in);
	zmq_msg_close(&push);
	lane_close(&l);
	until_open(0);
}

/* In this test a worker changes a byte of the gradient after it has sent the PUSH. After such a
 * change the server's copy has another checksum, so the push counts as lost. */
TEST_IN(a_torn_push_counts_as_lost, set_up_lanes, tear_down_lanes)
{
	struct lane *l = open_worker_lane(1, PEER);
	struct frames in;
	struct msg m;
	zmq_msg_t push;

	for (size_t byte = 0; byte < FIXTURE_PARAMS * sizeof(float); byte++) {
		take_and_fill(l, 3, FIXTURE_PARAMS, &push);
		make_lane_push(l, &push, &in);
		((unsigned char *)zmq_msg_data(&push))[byte] ^= 1;
		assert_int_equal(receive_push(PEER, &in, &m), PS_EAGAIN);
		frames_release(&in);
		zmq_msg_close(&push);
	}
	lane_close(&l);
}

TEST_IN(slots_out_of_range_are_refused, set_up_lanes, tear_down_lanes)
{
	struct lane *l = open_worker_lane(1, PEER);
	const struct lane_ref ref[] = {{.slot = 1u << 20, .count = 1},
		{.slot = UINT64_MAX, .count = 1}, {.slot = 0, .count = 0},
		{.slot = 0, .count = FIXTURE_PARAMS + 1}, {.slot = 0, .count = UINT64_MAX}};
	struct frames in;
	zmq_msg_t push;

	take_and_fill(l, 3, FIXTURE_PARAMS, &push);
	make_lane_push(l, &push, &in);
	for (size_t i = 0; i < sizeof(ref) / sizeof(ref[0]); i++) {
		assert_int_equal(lanes_join(lanes, PEER, &ref[i], 0, 0, &in), PS_EPROTO);
		assert_int_equal(in.n, 1);
	}
	/* refused, because the slot belongs to the lane of another peer */
	assert_int_equal(lanes_join(lanes, PEER + 1, &ref[0], 0, 0, &in), PS_ESTATE);
	frames_release(&in);
	zmq_msg_close(&push);
	lane_close(&l);
	until_open(0);
	assert_int_equal(lanes_join(lanes, PEER, &ref[0], 0, 0, &in), PS_ESTATE);
}

/* A slot becomes free when the server closes its push. Until then, the worker must not get this
 * slot again. */
TEST_IN(a_slot_has_one_owner, set_up_lanes, tear_down_lanes)
{
	struct lane *l = open_worker_lane(1, PEER);
	static zmq_msg_t push[1024];
	struct lane_slot slot;
	size_t n = 0;

	while (lane_take(l, &slot, 0)) {
		slot.values[0] = (float)n;
		assert_true(n < 1024);
		assert_int_equal(lane_send(&slot, FIXTURE_PARAMS, &push[n++]), PS_OK);
	}
	assert_true(n >= 2);
	for (size_t i = 0; i < n; i++)
		assert_true(*(float *)zmq_msg_data(&push[i]) == (float)i);
	zmq_msg_close(&push[1]);
	assert_int_equal(lane_take(l, &slot, 0), 1);
	assert_true(slot.values[0] == 1);
	struct lane_slot none;
	assert_int_equal(lane_take(l, &none, 0), 0);
	lane_return(&slot);
	lane_close(&l); /* the memory stays mapped until the last slot is free */
	assert_true(*(float *)zmq_msg_data(&push[0]) == 0);
	for (size_t i = 0; i < n; i++)
		if (i != 1)
			zmq_msg_close(&push[i]);
	until_open(0);
}

/* ---- weights --------------------------------------------------------------------------------- */

static struct msg_params current_weights(void)
{
	struct msg_params m = {.which = WEIGHTS_CURRENT, .version = core_stats(f.core)->version};

	m.slices.n = 1;
	m.slices.slice[0] = (struct slice){
		.count = FIXTURE_PARAMS, .encoding = ENCODING_F32, .data = core_weights(f.core)};
	return m;
}

static int hold(uint32_t peer, struct lane_ref *ref)
{
	struct msg_params m = current_weights();
	int awaits, held = lanes_hold(lanes, peer, 0, &m, &awaits);

	assert_int_equal(awaits, 0);

	*ref = (struct lane_ref){
		.hold = m.lane_hold - 1u, .ticket = m.lane_ticket, .buffer = m.lane_buffer};
	return held;
}

/* Receive, as a worker does, a PARAMS that refers to the weights with `ref`. Returns the status of
 * lane_append. */
static int arrive(struct lane *l, const struct lane_ref *ref, struct frames *in)
{
	frames_init(in);
	in->n = 1;
	zmq_msg_init(&in->frame[0]);
	return lane_append(l, ref, in);
}

TEST_IN(weights_are_read_in_place_until_they_are_closed, set_up_lanes, tear_down_lanes)
{
	struct lane *l = open_worker_lane(1, PEER);
	struct lane_ref ref[LANE_HOLDS + 1];
	struct frames in[LANE_HOLDS + 1];

	for (size_t i = 0; i < LANE_HOLDS; i++) {
		assert_int_equal(hold(PEER, &ref[i]), 1);
		assert_int_equal(arrive(l, &ref[i], &in[i]), PS_OK);
		assert_int_equal(zmq_msg_size(&in[i].frame[1]), FIXTURE_PARAMS * sizeof(float));
		assert_memory_equal(zmq_msg_data(&in[i].frame[1]), core_weights(f.core),
			FIXTURE_PARAMS * sizeof(float));
	}
	/* promise 2 of server/net/lane.h: without a free hold, PARAMS contain the weights */
	assert_int_equal(hold(PEER, &ref[LANE_HOLDS]), 0);
	frames_release(&in[2]);
	assert_int_equal(hold(PEER, &ref[LANE_HOLDS]), 1);
	assert_int_equal(ref[LANE_HOLDS].hold, 2);
	assert_int_equal(arrive(l, &ref[LANE_HOLDS], &in[2]), PS_OK);
	for (size_t i = 0; i < LANE_HOLDS; i++)
		frames_release(&in[i]);
	lane_close(&l);
	until_open(0);
}

/* The state of a device for lane_pin: it counts the calls of the device's functions. */
static struct {
	int refuses, pinned, unpinned, read_only;
	void *memory;
} fake_device;

static int pin_for_test(void *memory, size_t bytes, int reads_only)
{
	assert_true(bytes >= FIXTURE_PARAMS * sizeof(float));
	fake_device.memory = memory;
	fake_device.read_only = reads_only;
	fake_device.pinned += !fake_device.refuses;
	return !fake_device.refuses;
}

static void unpin_for_test(void *memory)
{
	(void)memory;
	fake_device.unpinned++;
}

static const struct lane_device counting_device = {.pin = pin_for_test, .unpin = unpin_for_test};

TEST_IN(a_device_pins_memory_once_and_releases_it_with_the_lane, set_up_lanes, tear_down_lanes)
{
	struct lane *l = open_worker_lane(1, PEER);
	struct lane_slot slot;
	struct lane_ref ref;
	struct frames in;
	float other = 0;

	memset(&fake_device, 0, sizeof(fake_device));
	assert_int_equal(lane_take(l, &slot, 0), 1);
	for (int i = 0; i < 2; i++)
		assert_int_equal(lane_pin(l, slot.values, &counting_device), 1);
	assert_int_equal(fake_device.pinned, 1);
	assert_ptr_equal(fake_device.memory, slot.values);
	assert_int_equal(fake_device.read_only, 0);
	assert_int_equal(hold(PEER, &ref), 1);
	assert_int_equal(arrive(l, &ref, &in), PS_OK);
	for (int i = 0; i < 2; i++)
		assert_int_equal(lane_pin(l, zmq_msg_data(&in.frame[1]), &counting_device), 1);
	assert_int_equal(fake_device.pinned, 2);
	/* read-only: once, for the weights, which a worker must not write */
	assert_int_equal(fake_device.read_only, 1);
	assert_int_equal(lane_pin(l, &other, &counting_device), 0);
	lane_close(&l);
	frames_release(&in);
	/* nothing is unpinned yet, because the slot is still in use */
	assert_int_equal(fake_device.unpinned, 0);
	lane_return(&slot);
	assert_int_equal(fake_device.unpinned, 2);
	until_open(0);
}

TEST_IN(a_device_may_refuse_memory, set_up_lanes, tear_down_lanes)
{
	struct lane *l = open_worker_lane(1, PEER);
	struct lane_slot slot;

	memset(&fake_device, 0, sizeof(fake_device));
	fake_device.refuses = 1;
	assert_int_equal(lane_take(l, &slot, 0), 1);
	assert_int_equal(lane_pin(l, slot.values, &counting_device), 0);
	fake_device.refuses = 0;
	assert_int_equal(lane_pin(l, slot.values, &counting_device), 0);
	lane_return(&slot);
	lane_close(&l);
	assert_int_equal(fake_device.pinned + fake_device.unpinned, 0);
	until_open(0);
}

/* If a connection breaks, PARAMS messages can get lost. The next PARAMS that arrives, or the next
 * WELCOME, must free the holds of the lost messages. */
TEST_IN(lost_weights_do_not_stay_held, set_up_lanes, tear_down_lanes)
{
	struct lane *l = open_worker_lane(1, PEER);
	struct lane_ref ref[LANE_HOLDS];
	struct frames in;

	for (size_t i = 0; i < LANE_HOLDS; i++)
		assert_int_equal(hold(PEER, &ref[i]), 1);
	assert_int_equal(arrive(l, &ref[LANE_HOLDS - 1], &in), PS_OK);
	for (size_t i = 0; i < LANE_HOLDS - 1; i++)
		assert_int_equal(hold(PEER, &ref[i]), 1);
	assert_int_equal(hold(PEER, &ref[0]), 0);
	/* this WELCOME is for a new connection */
	const struct msg_welcome w = welcome_to_lane(1, 1, PEER + 1);
	assert_true(w.lane_ticket >= LANE_HOLDS);
	lane_resynchronised(l, w.lane_ticket);
	assert_int_equal(hold(PEER, &ref[0]), 0); /* the lane now belongs to the new connection */
	for (size_t i = 0; i < LANE_HOLDS - 1; i++)
		assert_int_equal(hold(PEER + 1, &ref[i]), 1);
	/* one of the holds is still in use, because `in` has a message whose weights the worker is
	 * still reading */
	assert_int_equal(hold(PEER + 1, &ref[0]), 0);
	frames_release(&in);
	assert_int_equal(hold(PEER + 1, &ref[0]), 1);
	lane_close(&l);
	until_open(0);
}

TEST_IN(wrong_numbers_of_a_server_are_refused, set_up_lanes, tear_down_lanes)
{
	struct lane *l = open_worker_lane(1, PEER);
	const struct lane_ref ref[] = {{.hold = LANE_HOLDS, .ticket = 1},
		{.hold = UINT64_MAX, .ticket = 1}, {.ticket = 1, .buffer = 16}, {.ticket = 0}};
	struct frames in;

	for (size_t i = 0; i < sizeof(ref) / sizeof(ref[0]); i++) {
		assert_int_equal(arrive(l, &ref[i], &in), PS_EPROTO);
		frames_release(&in);
	}
	lane_close(&l);
	until_open(0);
}

/* ---- opening a lane ------------------------------------------------------------------------- */

/* Connect to the server, and send the greeting `g`. Returns the descriptor. */
static int greet_lane(const struct lane_greeting *g, size_t size)
{
	struct err e;
	int fd;

	assert_int_equal(share_connect(path, &fd, &e), PS_OK);
	assert_int_equal(share_send(fd, g, size, NULL, 0), PS_OK);
	return fd;
}

/* Check that the server closes the connection `fd` and opens no lane. */
static void assert_lane_refused(int fd)
{
	struct lane_layout layout;
	int fds[LANE_FDS], rc;
	uint64_t end = clock_ms() + DEADLINE_MS;
	uint32_t before = count_open_lanes();

	while ((rc = share_receive(fd, &layout, sizeof(layout), fds, LANE_FDS)) == PS_EAGAIN) {
		assert_true(clock_ms() < end);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	assert_int_equal(rc, PS_EUNREACHABLE);
	assert_int_equal(count_open_lanes(), before);
	close(fd);
}

TEST_IN(only_the_secret_of_the_newest_welcome_opens_a_lane_once, set_up_lanes, tear_down_lanes)
{
	const struct msg_welcome old = welcome_to_lane(1, 1, PEER), w = welcome_to_lane(1, 1, PEER);
	const struct lane_greeting good = {.magic = LANE_MAGIC,
		.secret_hi = w.lane_secret_hi,
		.secret_lo = w.lane_secret_lo,
		.worker = 1,
		.incarnation = 1};
	struct lane_greeting g;

	assert_string_equal(w.lane_path, path);
	assert_int_equal(w.lane_gpu, 0); /* 0, because the server's weights are not on a GPU */
	assert_true(old.lane_secret_hi != w.lane_secret_hi);
	g = good, g.secret_hi = old.lane_secret_hi, g.secret_lo = old.lane_secret_lo;
	assert_lane_refused(greet_lane(&g, sizeof(g)));
	g = good, g.secret_lo ^= 1;
	assert_lane_refused(greet_lane(&g, sizeof(g)));
	g = good, g.worker = 2;
	assert_lane_refused(greet_lane(&g, sizeof(g)));
	g = good, g.worker = 0;
	assert_lane_refused(greet_lane(&g, sizeof(g)));
	g = good, g.worker = 4;
	assert_lane_refused(greet_lane(&g, sizeof(g)));
	g = good, g.worker = UINT32_MAX;
	assert_lane_refused(greet_lane(&g, sizeof(g)));
	g = good, g.incarnation = 2;
	assert_lane_refused(greet_lane(&g, sizeof(g)));
	g = good, g.magic = 0;
	assert_lane_refused(greet_lane(&g, sizeof(g)));
	assert_lane_refused(greet_lane(&good, sizeof(good) - 1));
	int fd = greet_lane(&good, sizeof(good));
	until_open(1);
	assert_lane_refused(greet_lane(&good, sizeof(good))); /* a secret is valid only once */
	close(fd);
	until_open(0);
}

/* The server must limit the number of connections to its lane socket that send nothing, and such
 * connections must not delay a worker. */
TEST_IN(silent_connections_are_bounded, set_up_lanes, tear_down_lanes)
{
	struct err e;
	int fd[60];

	for (size_t i = 0; i < 60; i++) {
		assert_int_equal(share_connect(path, &fd[i], &e), PS_OK);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	run_for(50);
	size_t closed = 0;
	for (size_t i = 0; i < 60; i++)
		closed += share_receive(fd[i], &e, 1, NULL, 0) == PS_EUNREACHABLE;
	assert_int_equal(closed, 60 - 32);
	for (size_t i = 0; i < 60; i++)
		close(fd[i]);
	run_for(50);
	struct lane *l = open_worker_lane(1, PEER);
	lane_close(&l);
}

/* When a new process takes the slot of a worker, the server closes the lane of the old process. */
TEST_IN(a_new_incarnation_closes_the_lane_of_the_old_one, set_up_lanes, tear_down_lanes)
{
	struct lane *l = open_worker_lane(2, PEER);
	struct lane_ref ref;

	assert_int_equal(hold(PEER, &ref), 1);
	(void)welcome_to_lane(2, 2, PEER + 1);
	assert_int_equal(count_open_lanes(), 0);
	assert_true(lane_is_lost(l));
	assert_int_equal(hold(PEER, &ref), 0);
	lane_close(&l);
}

/* Covers attacks A4 and A7 of docs/faults.md: a worker falls silent, or its key is revoked, but its
 * process keeps the Unix socket open and goes on reading the shared weights. The server must close
 * this lane. */
TEST_IN(a_lane_ends_with_the_session_of_its_worker, set_up_lanes, tear_down_lanes)
{
	(void)fixture_join(&f, PEER, "");
	struct lane *l = open_worker_lane(1, PEER);
	struct lane_ref ref;

	assert_int_equal(hold(PEER, &ref), 1);
	lanes_check(lanes, f.core);
	fixture_tick(&f, f.cfg.sessions.suspect_ms);
	lanes_check(lanes, f.core);
	assert_int_equal(count_open_lanes(), 1);
	fixture_tick(&f, f.cfg.sessions.dead_ms);
	lanes_check(lanes, f.core);
	assert_int_equal(count_open_lanes(), 0);
	assert_true(lane_is_lost(l));
	lane_close(&l);
}

/* A hostile worker opens its lane again and again, with a new secret each time. The log must not
 * get a line each time. */
TEST_IN(lanes_do_not_fill_the_log, set_up_lanes, tear_down_lanes)
{
	log_set_level(LOG_INFO);
	capture_begin(&said, 2);
	for (uint32_t i = 0; i < 2; i++) {
		while (i == 1 && line_budget_take(&lines, 1))
			continue;
		for (uint32_t worker = 1; worker <= 2; worker++) {
			struct lane *l = open_worker_lane(worker, PEER);

			lane_close(&l);
			until_open(0);
		}
	}
	assert_int_equal(count_lines(capture_log(&said)), 2 + 4);
	log_set_level(LOG_ERROR);
}

/* A worker opens its lane a second time, for example because the first attempt took too long. The
 * worker must not take PARAMS of the first lane for PARAMS of the second lane. */
TEST_IN(tickets_of_an_earlier_lane_are_refused, set_up_lanes, tear_down_lanes)
{
	struct lane *first = open_worker_lane(1, PEER), *second;
	const struct msg_welcome w = welcome_to_lane(1, 1, PEER);
	struct lane_ref old, ref;
	struct frames in;
	struct err e;

	assert_int_equal(hold(PEER, &old), 1);
	assert_int_equal(lane_open(&second, &w, &e), PS_OK);
	while (lane_poll(second, &e) == PS_EAGAIN)
		uv_run(&loop, UV_RUN_NOWAIT);
	assert_true(lane_is_open(second) && lane_is_lost(first));
	assert_int_equal(arrive(second, &old, &in), PS_EPROTO);
	frames_release(&in);
	assert_int_equal(hold(PEER, &ref), 1);
	assert_int_equal(arrive(second, &ref, &in), PS_OK);
	frames_release(&in);
	lane_close(&first);
	lane_close(&second);
	until_open(0);
}

/* ---- servers that break the protocol -------------------------------------------------------- */

/* Answer the greeting of a worker with `layout` and `n` descriptors of shared memory, which have
 * `weights` and `pushes` bytes. Returns the status of lane_poll in the worker. */
static int answer_welcome(struct lane_layout layout, size_t weights, size_t pushes, size_t n)
{
	const struct msg_welcome w = {.stamp = {.worker = 1, .incarnation = 1},
		.n_params = FIXTURE_PARAMS,
		.lane_path = "."};
	struct msg_welcome here = w;
	char fake[128];
	struct lane *l;
	struct err e;
	int listener, fds[LANE_FDS], rc;

	snprintf(fake, sizeof(fake), "%s/fake", dir);
	memcpy(here.lane_path, fake, strlen(fake) + 1);
	assert_int_equal(share_listen(fake, &listener, &e), PS_OK);
	assert_int_equal(lane_open(&l, &here, &e), PS_OK);
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(share_new("weights", weights, &fds[0]), PS_OK);
	assert_int_equal(share_new("pushes", pushes, &fds[1]), PS_OK);
	assert_int_equal(share_send(fd, &layout, sizeof(layout), fds, n), PS_OK);
	rc = lane_poll(l, &e);
	for (size_t i = 0; i < LANE_FDS; i++)
		close(fds[i]);
	close(fd);
	close(listener);
	unlink(fake);
	lane_close(&l);
	return rc;
}

TEST_IN(memory_of_another_form_is_refused, set_up_lanes, tear_down_lanes)
{
	const struct lane_layout good = {.magic = LANE_MAGIC,
		.n_params = FIXTURE_PARAMS,
		.buffers = 4,
		.buffer_pitch = LANE_PAGE,
		.slots = 2,
		.slot_pitch = LANE_PAGE};
	const size_t weights = 4 * LANE_PAGE, pushes = 3 * LANE_PAGE;
	struct lane_layout a;

	assert_int_equal(answer_welcome(good, weights, pushes, 2), PS_OK);
	assert_int_equal(answer_welcome(good, weights, pushes, 1), PS_EPROTO);
	assert_int_equal(answer_welcome(good, weights, pushes, 0), PS_EPROTO);
	assert_int_equal(answer_welcome(good, weights - 1, pushes, 2), PS_EPROTO);
	assert_int_equal(answer_welcome(good, weights, pushes - 1, 2), PS_EPROTO);
	a = good, a.magic++;
	assert_int_equal(answer_welcome(a, weights, pushes, 2), PS_EPROTO);
	a = good, a.n_params++;
	assert_int_equal(answer_welcome(a, weights, pushes, 2), PS_EPROTO);
	a = good, a.buffers = 0;
	assert_int_equal(answer_welcome(a, weights, pushes, 2), PS_EPROTO);
	a = good, a.slots = UINT64_MAX / LANE_PAGE;
	assert_int_equal(answer_welcome(a, weights, pushes, 2), PS_EPROTO);
	a = good, a.slot_pitch = 0;
	assert_int_equal(answer_welcome(a, weights, pushes, 2), PS_EPROTO);
	a = good, a.buffer_pitch = UINT64_MAX;
	assert_int_equal(answer_welcome(a, weights, pushes, 2), PS_EPROTO);
}
