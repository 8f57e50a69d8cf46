/*
 * test_gpu_lane.c - lanes whose worker offers memory of its GPU: the server's side
 * (server/net/lane.h) and the worker's side (worker/client/lane.h) in one process. Instead of GPUs,
 * the server has the double of the store module (tests/device/), and the worker's memory is a
 * memfd. Covers attacks A22 and A23 of docs/faults.md.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <uv.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/share.h"
#include "server/core/vec.h"
#include "server/device/gpu_store.h"
#include "server/net/line_budget.h"
#include "server/net/net.h"
#include "tests/device/store_double.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test.h"
#include "worker/client/lane_setup.h"

#define N           20001u
#define TRAINED     19000u
#define PEER        7u
#define DEADLINE_MS 10000
#define FAKE_SLOTS  256u /* the number of slots that lane_offer makes if the model has N values */

static char dir[64], path[128];
static int listening; /* the socket of the lanes */
static uv_loop_t loop;
static struct param_buffers *params;
static struct gpu_store *store;
static struct line_budget lines;
static struct lanes *lanes;
static struct wire *wire;
static float weights[N];

static int open_lanes_of(int gpu, const char *gpu_off)
{
	struct err e;

	log_set_level(LOG_ERROR);
	temp_dir_make(dir);
	snprintf(path, sizeof(path), "%s/lane", dir);
	if (param_buffers_new(&params, N, 4) || uv_loop_init(&loop) || wire_new(&wire, N) ||
		gpu_store_open(&store, gpu, &e) || gpu_store_allocate(store, N, 0, &e))
		return 1;
	for (size_t i = 0; i < N; i++)
		weights[i] = (float)i / 7;
	if (share_listen(path, &listening, &e))
		return 1;
	const struct lanes_config config = {.loop = &loop,
		.path = path,
		.fd = listening,
		.n_params = N,
		.max_workers = 3,
		.lines = &lines,
		.params = params,
		.pass = {.trained = TRAINED},
		.gpu = store,
		.gpu_off = gpu_off};
	return lanes_new(&lanes, &config, &e);
}

static int set_up_gpu_lanes(void **state)
{
	(void)state;
	return open_lanes_of(0, NULL);
}

static int set_up_lanes_of_one_gpu(void **state)
{
	(void)state;
	return open_lanes_of(STORE_DOUBLE_OWN, NULL);
}

static int set_up_host_lanes(void **state)
{
	(void)state;
	return open_lanes_of(0, "this run needs the host");
}

static int tear_down_gpu_lanes(void **state)
{
	(void)state;
	lanes_stop(lanes);
	uv_run(&loop, UV_RUN_DEFAULT);
	lanes_free(&lanes);
	close(listening);
	gpu_store_close(&store);
	param_buffers_free(&params);
	wire_free(&wire);
	temp_dir_remove(dir);
	return uv_loop_close(&loop);
}

/* ---- the worker's device --------------------------------------------------------------------- */

static struct {
	char *memory;
	size_t bytes;
	int unshared;
} fake_gpu;

static int share_fake(size_t *bytes, void **memory, int *fd)
{
	if (share_new("a fake GPU", *bytes, fd))
		return 0;
	*memory = fake_gpu.memory = share_map(*fd, *bytes, 1);
	fake_gpu.bytes = *bytes;
	return *memory != NULL;
}

static void unshare_fake(void *memory, size_t bytes)
{
	(void)munmap(memory, bytes);
	fake_gpu.unshared++;
}

static int is_fake(const void *values)
{
	const char *at = values;

	return at >= fake_gpu.memory && at < fake_gpu.memory + fake_gpu.bytes;
}

static int fetch_fake(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
	return 1;
}

static const struct lane_device device = {
	.share = share_fake, .unshare = unshare_fake, .is_shared = is_fake, .fetch = fetch_fake};

/* Opens a lane of worker 1, which offers no memory of a GPU. */
static void open_plain_lane(struct lane **l)
{
	struct msg_welcome w = {.stamp = {.worker = 1, .incarnation = 1}, .n_params = N};
	uint64_t end = clock_ms() + DEADLINE_MS;
	struct err e;
	int rc;

	lanes_welcome(lanes, PEER, &w);
	assert_int_equal(lane_open(l, &w, &e), PS_OK);
	while ((rc = lane_poll(*l, &e)) == PS_EAGAIN && clock_ms() < end)
		uv_run(&loop, UV_RUN_NOWAIT);
	assert_int_equal(rc, PS_OK);
}

/* Opens a lane of worker 1, which offers memory of its GPU. Returns the status with which the
 * server answers the offer. */
static int open_offering_lane(struct lane **l, struct err *e)
{
	uint64_t end = clock_ms() + DEADLINE_MS;
	int rc;

	memset(&fake_gpu, 0, sizeof(fake_gpu));
	open_plain_lane(l);
	assert_int_equal(lane_offer(*l, &device), 1);
	while ((rc = lane_poll_offer(*l, e)) == PS_EAGAIN && clock_ms() < end)
		uv_run(&loop, UV_RUN_NOWAIT);
	return rc;
}

static void close_worker_lane(struct lane **l)
{
	struct lanes_stats s;
	uint64_t end = clock_ms() + DEADLINE_MS;

	lane_close(l);
	do {
		uv_run(&loop, UV_RUN_NOWAIT);
		lanes_stats(lanes, &s);
	} while (s.open > 0 && clock_ms() < end);
	assert_int_equal(s.open, 0);
	assert_int_equal(s.gpus, 0);
	assert_int_equal(gpu_store_device(store)->defers, 0);
	assert_int_equal(fake_gpu.unshared, 1);
}

/* ---- whether the worker offers memory -------------------------------------------------------- */

/* A worker with a GPU gets a WELCOME with this lane_gpu. Returns 1 if the worker then uses memory
 * of its GPU for the lane. */
static int takes_memory(uint32_t lane_gpu)
{
	struct msg_welcome w = {.stamp = {.term = 1, .worker = 1, .incarnation = 1}, .n_params = N};
	uint64_t end = clock_ms() + DEADLINE_MS;
	struct outbox out = {0};
	struct lane_setup s;
	struct err e;

	memset(&fake_gpu, 0, sizeof(fake_gpu));
	lanes_welcome(lanes, PEER, &w);
	assert_int_equal(w.lane_gpu, 1);
	w.lane_gpu = lane_gpu;
	lane_setup_init(&s, CNNPS_LANE_AUTO, "a server", &out);
	lane_setup_use_device(&s, &device);
	assert_int_equal(lane_setup_welcome(&s, &w, clock_ms(), &e), PS_OK);
	while (lane_setup_waits(&s) && clock_ms() < end) {
		uv_run(&loop, UV_RUN_NOWAIT);
		assert_int_equal(lane_setup_poll(&s, clock_ms(), &e), PS_OK);
	}
	assert_int_equal(lane_is_open(out.lane), 1);
	lane_setup_drop(&s);
	assert_int_equal(fake_gpu.unshared, fake_gpu.memory != NULL);
	return fake_gpu.memory != NULL;
}

TEST_IN(only_a_server_with_weights_on_a_gpu_gets_an_offer, set_up_gpu_lanes, tear_down_gpu_lanes)
{
	assert_int_equal(takes_memory(1), 1);
	assert_int_equal(takes_memory(0), 0);
}

/* ---- pushes ---------------------------------------------------------------------------------- */

/* 1: the copies of pushes begin before lanes_join, which then only waits for them */
static int begins_early;

/* Receives a PUSH whose values are in `message`, as the router does. */
static int receive_gpu_push(const struct lane *l, zmq_msg_t *message, uint64_t xxh3, uint32_t slot,
	struct msg *got, struct frames *in)
{
	struct msg m = {.type = MSG_PUSH};
	struct lane_ref ref;
	const char *why;

	m.push.seq = 1;
	m.push.slices.n = 1;
	m.push.slices.slice[0] = (struct slice){.count = N, .encoding = ENCODING_F32, .xxh3 = xxh3};
	m.push.lane_slot = slot ? slot : lane_slot_of(l, zmq_msg_data(message));
	m.push.lane_count = N;
	frames_init(in);
	assert_int_equal(wire_encode_header(&m, &in->frame[0]), PS_OK);
	in->n = 1;
	assert_int_equal(wire_lane_ref(in, &ref), 1);
	int begun = begins_early && lanes_begin(lanes, PEER, 1, in);
	int rc = lanes_join(lanes, PEER, &ref, 1, begun, in);
	assert_int_equal(begins_early && !rc, begun);
	return rc ? rc : wire_decode(wire, in, got, &why);
}

static void send_gradient_from_gpu_to_gpu(void)
{
	struct lane *l;
	struct lane_slot slot;
	struct frames in;
	struct err e;
	struct msg m;
	zmq_msg_t message;
	double squares = 0;

	assert_int_equal(open_offering_lane(&l, &e), PS_OK);
	assert_int_equal(gpu_store_device(store)->defers, 1);
	assert_int_equal(lane_take(l, &slot, 1), 1);
	assert_true(is_fake(slot.values));
	assert_int_equal(lane_is_apart(l, slot.values), 1);
	assert_int_equal(lane_is_apart(l, weights), 0);
	for (size_t i = 0; i < N; i++)
		slot.values[i] = (float)(i % 100) - 51;
	assert_int_equal(lane_send(&slot, N, &message), PS_OK);
	const float *values = zmq_msg_data(&message);
	const uint64_t xxh3 = wire_checksum(values, N);

	assert_int_equal(receive_gpu_push(l, &message, xxh3, 0, &m, &in), PS_OK);
	const struct slice *s = &m.push.slices.slice[0];
	/* the values are not in the worker's memory any more: the server checks and applies a
	 * private copy */
	assert_false(is_fake(s->data));
	assert_memory_equal(s->data, values, N * sizeof(float));
	const float peak = 51;
	assert_memory_equal(&s->peak, &peak, sizeof(peak));
	for (size_t i = 0; i < TRAINED; i += ENGINE_BLOCK)
		squares += vec_squares(
			values + i, TRAINED - i < ENGINE_BLOCK ? TRAINED - i : ENGINE_BLOCK);
	assert_int_equal(s->squared, TRAINED);
	assert_memory_equal(&s->squares, &squares, sizeof(squares));
	frames_release(&in);

	/* a push whose copy has a wrong checksum counts as lost; a slot that does not exist is
	 * refused */
	((float *)zmq_msg_data(&message))[N - 1] = 3;
	assert_int_equal(receive_gpu_push(l, &message, xxh3, 0, &m, &in), PS_EAGAIN);
	frames_release(&in);
	const uint32_t after = lane_slot_of(l, fake_gpu.memory) + FAKE_SLOTS;
	assert_int_equal(receive_gpu_push(l, &message, xxh3, after, &m, &in), PS_EPROTO);
	frames_release(&in);
	assert_int_equal(receive_gpu_push(l, &message, xxh3, UINT32_MAX, &m, &in), PS_EPROTO);
	frames_release(&in);

	/* the worker can move the tensor of a push to memory of the host */
	assert_int_equal(lane_on_device(&device, zmq_msg_data(&message)), 1);
	assert_int_equal(lane_fetch(&device, &message), PS_OK);
	assert_int_equal(lane_on_device(&device, zmq_msg_data(&message)), 0);
	zmq_msg_close(&message);
	close_worker_lane(&l);
}

TEST_IN(a_gradient_goes_from_gpu_to_gpu, set_up_gpu_lanes, tear_down_gpu_lanes)
{
	for (begins_early = 0; begins_early < 2; begins_early++)
		send_gradient_from_gpu_to_gpu();
	/* no copy may begin for a push without a lane, or for another message type */
	struct msg heartbeat = {.type = MSG_HEARTBEAT};
	struct frames in;

	frames_init(&in);
	assert_int_equal(wire_encode(&heartbeat, &in), PS_OK);
	assert_int_equal(lanes_begin(lanes, PEER, 1, &in), 0);
	frames_release(&in);
}

TEST_IN(worker_and_store_may_use_one_gpu, set_up_lanes_of_one_gpu, tear_down_gpu_lanes)
{
	struct lane *l;
	struct lane_slot slot;
	struct err e;

	assert_int_equal(open_offering_lane(&l, &e), PS_OK);
	assert_int_equal(lane_take(l, &slot, 1), 1);
	assert_int_equal(lane_is_apart(l, slot.values), 0);
	lane_return(&slot);
	close_worker_lane(&l);
}

/* ---- weights --------------------------------------------------------------------------------- */

static int hold_weights_on_gpu(struct lane_ref *ref, uint64_t *xxh3)
{
	struct msg_params m = {.which = WEIGHTS_CURRENT};

	m.slices.n = 1;
	m.slices.slice[0] = (struct slice){
		.count = N, .encoding = ENCODING_F32, .data = param_buffers_first(params)};
	int awaits, held = lanes_hold(lanes, PEER, LANE_GIVES - 1, &m, &awaits);

	*xxh3 = m.slices.slice[0].xxh3;
	if (awaits) { /* the copy takes time in the double, so it is not complete at first */
		assert_int_equal(lanes_given(lanes, LANE_GIVES - 1, 0, xxh3), 0);
		assert_int_equal(lanes_given(lanes, LANE_GIVES - 1, 1, xxh3), 1);
	}
	*ref = (struct lane_ref){
		.hold = m.lane_hold - 1u, .ticket = m.lane_ticket, .buffer = m.lane_buffer};
	return held;
}

TEST_IN(weights_go_from_gpu_to_gpu, set_up_gpu_lanes, tear_down_gpu_lanes)
{
	const struct param_device *d = gpu_store_device(store);
	struct lane_ref ref[LANE_HOLDS + 1];
	struct frames in[LANE_HOLDS];
	struct lane *l;
	struct err e;
	uint64_t xxh3;

	assert_int_equal(open_offering_lane(&l, &e), PS_OK);
	/* before the first update, the server has no weights on the GPU, so it copies them there
	 * from memory of the host */
	assert_int_equal(hold_weights_on_gpu(&ref[0], &xxh3), 1);
	assert_true(ref[0].buffer < 4);
	frames_init(&in[0]);
	in[0].n = 1;
	zmq_msg_init(&in[0].frame[0]);
	assert_int_equal(lane_append(l, &ref[0], &in[0]), PS_OK);
	frames_release(&in[0]);

	d->load(d->self, weights, (float *const[PARAM_DEVICE_VECTORS]){NULL, NULL});
	for (size_t i = 0; i < LANE_HOLDS; i++) {
		assert_int_equal(hold_weights_on_gpu(&ref[i], &xxh3), 1);
		assert_int_equal(ref[i].buffer, 4 + ref[i].hold);
		assert_true(xxh3 == wire_checksum(weights, N));
		frames_init(&in[i]);
		in[i].n = 1;
		zmq_msg_init(&in[i].frame[0]);
		assert_int_equal(lane_append(l, &ref[i], &in[i]), PS_OK);
		assert_true(is_fake(zmq_msg_data(&in[i].frame[1])));
		assert_memory_equal(zmq_msg_data(&in[i].frame[1]), weights, sizeof(weights));
	}
	assert_int_equal(hold_weights_on_gpu(&ref[LANE_HOLDS], &xxh3), 0);
	frames_release(&in[2]);
	assert_int_equal(hold_weights_on_gpu(&ref[LANE_HOLDS], &xxh3), 1);
	assert_int_equal(ref[LANE_HOLDS].hold, ref[2].hold);
	for (size_t i = 0; i < LANE_HOLDS; i++)
		if (i != 2)
			frames_release(&in[i]);
	close_worker_lane(&l);
}

/* ---- offers ---------------------------------------------------------------------------------- */

/* Sends an offer on a lane, as a hostile worker does. */
static void send_offer(const struct lane *l, struct lane_gpu_offer offer)
{
	int fd;

	assert_int_equal(share_new("an offer", 1 << 20, &fd), PS_OK);
	assert_int_equal(share_send(lane_fd(l), &offer, sizeof(offer), &fd, 1), PS_OK);
	close(fd);
}

static uint32_t lanes_in_use(void)
{
	struct lanes_stats s;

	for (int i = 0; i < 100; i++)
		uv_run(&loop, UV_RUN_NOWAIT);
	lanes_stats(lanes, &s);
	return s.open;
}

TEST_IN(a_second_offer_ends_the_lane, set_up_host_lanes, tear_down_gpu_lanes)
{
	struct lane *l;
	struct err e;

	assert_int_equal(open_offering_lane(&l, &e), PS_EUSAGE);
	assert_int_equal(lanes_in_use(), 1);
	send_offer(l, (struct lane_gpu_offer){.magic = LANE_GPU_MAGIC});
	assert_int_equal(lanes_in_use(), 0);
	close_worker_lane(&l);
}

TEST_IN(an_offer_with_another_layout_is_refused, set_up_gpu_lanes, tear_down_gpu_lanes)
{
	const uint64_t bytes = N * sizeof(float), pitch = (bytes + 255) / 256 * 256;
	const struct lane_gpu_offer good = {LANE_GPU_MAGIC, 10 * pitch, pitch, 6};
	struct lane_gpu_offer bad[] = {good, good, good, good, good, good, good, good};

	bad[0].magic++;
	bad[1].bytes = good.bytes - 1; /* too few bytes for the last buffer */
	bad[2].pitch = bytes;          /* not aligned */
	bad[3].pitch = pitch - 256;    /* too small: a slot has no room for a gradient */
	bad[4].pitch = UINT64_MAX / 256 * 256;
	bad[5].pitch = 0;
	bad[6].slots = 0;
	bad[7].slots = UINT64_MAX - LANE_HOLDS + 1;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct lane_gpu_answer answer;
		struct lanes_stats s;
		struct lane *l;

		open_plain_lane(&l);
		send_offer(l, bad[i]);
		/* the lane stays open, but without this memory */
		assert_int_equal(lanes_in_use(), 1);
		assert_int_equal(
			share_receive(lane_fd(l), &answer, sizeof(answer), NULL, 0), PS_OK);
		assert_int_equal(answer.accepted, 0);
		lanes_stats(lanes, &s);
		assert_int_equal(s.gpus, 0);
		lane_close(&l);
	}
}

TEST_IN(without_memory_of_the_gpu_the_lane_stays, set_up_host_lanes, tear_down_gpu_lanes)
{
	struct lane *l;
	struct lane_slot slot;
	struct err e;

	assert_int_equal(open_offering_lane(&l, &e), PS_EUSAGE);
	assert_string_equal(e.text, "this run needs the host");
	assert_int_equal(lane_take(l, &slot, 1), 0);
	assert_int_equal(lane_take(l, &slot, 0), 1);
	lane_return(&slot);
	close_worker_lane(&l);
}

/* A worker has offered memory of its GPU. A server that breaks the rules first sends weights in
 * this memory, and then refuses the memory. */
TEST_IN(refused_memory_stays_while_weights_in_it_are_read, set_up_host_lanes, tear_down_gpu_lanes)
{
	const struct lane_ref ref = {.buffer = 4, .ticket = 1};
	uint64_t end = clock_ms() + DEADLINE_MS;
	struct frames early, late;
	struct lane *l;
	struct err e;
	int rc;

	memset(&fake_gpu, 0, sizeof(fake_gpu));
	open_plain_lane(&l);
	assert_int_equal(lane_offer(l, &device), 1);
	frames_init(&early);
	early.n = 1;
	zmq_msg_init(&early.frame[0]);
	assert_int_equal(lane_append(l, &ref, &early), PS_OK);
	assert_true(is_fake(zmq_msg_data(&early.frame[1])));
	while ((rc = lane_poll_offer(l, &e)) == PS_EAGAIN && clock_ms() < end)
		uv_run(&loop, UV_RUN_NOWAIT);
	assert_int_equal(rc, PS_EUSAGE);
	assert_int_equal(fake_gpu.unshared, 0);
	frames_init(&late);
	late.n = 1;
	zmq_msg_init(&late.frame[0]);
	assert_int_equal(lane_append(l, &ref, &late), PS_EPROTO);
	frames_release(&late);
	frames_release(&early);
	close_worker_lane(&l);
}

/* ---- the order of messages ------------------------------------------------------------------- */

#define PUSHES 40u

/* A router whose core notes the pushes, and answers HELLO with a WELCOME. */
static struct {
	void *context, *client;
	struct router *router;
	unsigned pushes, heartbeats;
} routed;

/* Answers the pull of a push with weights that are loaded to the GPU only now. */
static void answer_routed(uint32_t peer, uint64_t request)
{
	const struct param_device *d = gpu_store_device(store);
	struct msg m = {.type = MSG_PARAMS, .params = {.request = request}};

	weights[0] = weights[N - 1] = (float)routed.pushes;
	d->load(d->self, weights, (float *const[PARAM_DEVICE_VECTORS]){NULL, NULL});
	m.params.which = WEIGHTS_CURRENT;
	m.params.version = routed.pushes;
	m.params.slices.n = 1;
	m.params.slices.slice[0] = (struct slice){
		.count = N, .encoding = ENCODING_F32, .data = param_buffers_first(params)};
	router_send(routed.router, peer, &m);
}

static void note_routed(void *arg, uint32_t peer, const struct msg *m, struct frames *f)
{
	struct msg welcome = {.type = MSG_WELCOME,
		.welcome = {.stamp = {.term = 1, .worker = 1, .incarnation = 1},
			.n_params = N,
			.batch = 1,
			.push_window = 64,
			.replay_window = 256,
			.heartbeat_ms = 100,
			.dead_ms = 2000,
			.session_ttl_ms = 60000,
			.mode = MODE_DOWNPOUR,
			.n_push = 1,
			.n_fetch = 1,
			.model = "vector:20001"}};

	(void)arg;
	(void)f;
	if (m->type == MSG_HELLO)
		router_send(routed.router, peer, &welcome);
	if (m->type == MSG_HEARTBEAT) {
		routed.heartbeats++;
		assert_int_equal(m->heartbeat.last_seq, routed.pushes);
	}
	if (m->type != MSG_PUSH)
		return;
	assert_int_equal(m->push.seq, ++routed.pushes);
	for (size_t i = 0; i < N; i += N - 1)
		assert_true(m->push.slices.slice[0].data[i] == (float)(m->push.seq + i));
	if (m->push.pull)
		answer_routed(peer, m->push.pull);
}

static void note_gone(void *arg, uint32_t peer)
{
	(void)arg;
	(void)peer;
}

static int set_up_routed(void **state)
{
	int rc = open_lanes_of(0, NULL);
	struct err e;

	(void)state;
	if (rc)
		return rc;
	lanes_stop(lanes);
	memset(&routed, 0, sizeof(routed));
	const struct router_config config = {.loop = &loop,
		.bind = "tcp://127.0.0.1:0",
		.n_params = N,
		.push_window = 64,
		.max_workers = 3,
		.lines = &lines,
		.params = params,
		.pass = {.trained = TRAINED},
		.gpu = store,
		.lane_path = path,
		.lane_fd = listening,
		.needs_lane = 1,
		.on_message = note_routed,
		.on_gone = note_gone};
	return router_new(&routed.router, &config, &e);
}

static int tear_down_routed(void **state)
{
	router_stop(routed.router);
	uv_run(&loop, UV_RUN_DEFAULT);
	zmq_close(routed.client);
	zmq_ctx_term(routed.context);
	router_free(&routed.router);
	return tear_down_gpu_lanes(state);
}

static void send_routed(const struct msg *m)
{
	struct frames f;

	frames_init(&f);
	assert_int_equal(wire_encode_header(m, &f.frame[0]), PS_OK);
	f.n = 1;
	assert_int_equal(wire_send(routed.client, 0, &f), PS_OK);
}

#define UNTIL_ROUTED(condition)                                                                    \
	for (uint64_t end = clock_ms() + DEADLINE_MS; !(condition);) {                             \
		assert_true(clock_ms() < end);                                                     \
		uv_run(&loop, UV_RUN_NOWAIT);                                                      \
	}

/* Connects, and opens a lane with memory of the fake GPU. */
static struct lane *connect_routed(void)
{
	const struct msg hello = {.type = MSG_HELLO, .hello = {.role = ROLE_WORKER}};
	struct frames f;
	struct msg m;
	struct lane *l;
	struct err e;
	int rc;

	memset(&fake_gpu, 0, sizeof(fake_gpu));
	routed.context = zmq_ctx_new();
	routed.client = zmq_socket(routed.context, ZMQ_DEALER);
	assert_int_equal(zmq_connect(routed.client, router_endpoint(routed.router)), 0);
	send_routed(&hello);
	UNTIL_ROUTED(wire_recv(routed.client, NULL, &f) == 1)
	assert_int_equal(wire_decode(wire, &f, &m, NULL), PS_OK);
	assert_int_equal(m.type, MSG_WELCOME);
	assert_int_equal(lane_open(&l, &m.welcome, &e), PS_OK);
	frames_release(&f);
	UNTIL_ROUTED((rc = lane_poll(l, &e)) != PS_EAGAIN)
	assert_int_equal(rc, PS_OK);
	assert_int_equal(lane_offer(l, &device), 1);
	UNTIL_ROUTED((rc = lane_poll_offer(l, &e)) != PS_EAGAIN)
	assert_int_equal(rc, PS_OK);
	return l;
}

/* Sends push number `seq`, whose values are in memory of the fake GPU. */
static void push_routed(struct lane *l, uint64_t seq, uint64_t pull, zmq_msg_t *tensor)
{
	struct msg m = {.type = MSG_PUSH};
	struct lane_slot slot;

	assert_int_equal(lane_take(l, &slot, 1), 1);
	for (size_t k = 0; k < N; k++)
		slot.values[k] = (float)(seq + k);
	assert_int_equal(lane_send(&slot, N, tensor), PS_OK);
	m.push.seq = seq;
	m.push.pull = pull;
	m.push.slices.n = 1;
	m.push.slices.slice[0] = (struct slice){.count = N,
		.encoding = ENCODING_F32,
		.xxh3 = wire_checksum(zmq_msg_data(tensor), N)};
	m.push.lane_slot = lane_slot_of(l, zmq_msg_data(tensor));
	m.push.lane_count = N;
	send_routed(&m);
}

/* The router receives several messages before it handles the first. The router must keep the order
 * of the messages, and must lose none at the end of an iteration of the loop. */
TEST_IN(copies_that_begin_too_soon_change_no_order, set_up_routed, tear_down_routed)
{
	struct lane *l = connect_routed();
	struct router_stats stats;
	zmq_msg_t tensor[PUSHES];

	for (unsigned i = 0; i < PUSHES; i++) {
		const struct msg heartbeat = {
			.type = MSG_HEARTBEAT, .heartbeat = {.last_seq = i + 1}};

		push_routed(l, i + 1, 0, &tensor[i]);
		if (i % 3 == 0)
			send_routed(&heartbeat);
		/* run the loop seldom, so that messages accumulate before the router handles
		 * them */
		if (i % 7 == 0)
			router_receive_pending(routed.router);
	}
	UNTIL_ROUTED(routed.pushes == PUSHES && routed.heartbeats == (PUSHES + 2) / 3)
	router_stats(routed.router, &stats);
	assert_int_equal(stats.rescues, 0);
	assert_int_equal(stats.lanes.pushes, PUSHES);
	assert_int_equal(stats.lanes.gpus, 1);
	for (unsigned i = 0; i < PUSHES; i++)
		zmq_msg_close(&tensor[i]);
	lane_close(&l);
}

/* Receives PARAMS with the weights of push `seq`, which are in memory of the fake GPU. */
static void receive_routed(struct lane *l, uint64_t seq)
{
	struct lane_ref ref;
	struct frames f;
	struct msg m;

	UNTIL_ROUTED(wire_recv(routed.client, NULL, &f) == 1)
	assert_int_equal(wire_lane_ref(&f, &ref), 1);
	assert_int_equal(lane_append(l, &ref, &f), PS_OK);
	assert_true(is_fake(zmq_msg_data(&f.frame[1])));
	/* wire_decode checks the checksum */
	assert_int_equal(wire_decode(wire, &f, &m, NULL), PS_OK);
	assert_int_equal(m.params.request, seq);
	assert_int_equal(m.params.version, seq);
	assert_true(m.params.slices.slice[0].data[N - 1] == (float)seq);
	frames_release(&f);
}

/* The replies wait until the GPU has copied their weights, and leave in order. */
TEST_IN(weights_leave_when_the_gpu_has_copied_them, set_up_routed, tear_down_routed)
{
	struct lane *l = connect_routed();
	struct router_stats stats;
	zmq_msg_t tensor[LANE_HOLDS];
	uint64_t seq = 0;

	for (unsigned round = 0; round < 12; round++) {
		const unsigned n = 1 + round % LANE_HOLDS;

		for (unsigned i = 0; i < n; i++)
			push_routed(l, seq + i + 1, seq + i + 1, &tensor[i]);
		for (unsigned i = 0; i < n; i++)
			receive_routed(l, ++seq);
		for (unsigned i = 0; i < n; i++)
			zmq_msg_close(&tensor[i]);
	}
	router_stats(routed.router, &stats);
	assert_int_equal(stats.lanes.params, seq);
	assert_int_equal(stats.waiting, 0);
	/* when a worker is gone, the server must discard the replies that wait for this worker */
	push_routed(l, seq + 1, seq + 1, &tensor[0]);
	UNTIL_ROUTED(routed.pushes == seq + 1)
	zmq_msg_close(&tensor[0]);
	lane_close(&l);
}
