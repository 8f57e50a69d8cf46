/*
 * test_lane_ring.c - the rings of shared-memory lanes: the server's side (server/net/lane.h) and
 * the worker's side (worker/client/lane.h) in one process, and workers that break the protocol.
 * Covers attack A23 of docs/faults.md.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/share.h"
#include "proto/lane.h"
#include "server/net/lane.h"
#include "server/net/line_budget.h"
#include "tests/support/capture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test.h"
#include "worker/client/lane.h"

#define PEER        7u
#define PARAMS      16u
#define DEADLINE_MS 10000

static char dir[64], path[128];
static uv_loop_t loop;
static struct param_buffers *params;
static struct line_budget lines;
static struct lanes *lanes;
static int listening;
static unsigned notified; /* number of calls of on_ring */
static struct capture said;

static void count_ring(void *arg)
{
	assert_ptr_equal(arg, &loop);
	notified++;
}

static int set_up_rings(void **state)
{
	struct err e;

	(void)state;
	log_set_level(LOG_ERROR);
	signal(SIGPIPE, SIG_IGN); /* as in the server */
	memset(&lines, 0, sizeof(lines));
	notified = 0;
	temp_dir_make(dir);
	snprintf(path, sizeof(path), "%s/lane", dir);
	if (param_buffers_new(&params, PARAMS, 4) || uv_loop_init(&loop) ||
		share_listen(path, &listening, &e))
		return 1;
	const struct lanes_config config = {.loop = &loop,
		.path = path,
		.fd = listening,
		.n_params = PARAMS,
		.max_workers = 3,
		.lines = &lines,
		.params = params,
		.on_ring = count_ring,
		.arg = &loop};
	return lanes_new(&lanes, &config, &e);
}

static int tear_down_rings(void **state)
{
	(void)state;
	lanes_stop(lanes);
	uv_run(&loop, UV_RUN_DEFAULT);
	lanes_free(&lanes);
	close(listening);
	(void)unlink(path);
	param_buffers_free(&params);
	temp_dir_remove(dir);
	return uv_loop_close(&loop);
}

static struct lanes_stats stats(void)
{
	struct lanes_stats s;

	lanes_stats(lanes, &s);
	return s;
}

static void until_lanes(uint32_t n)
{
	uint64_t end = clock_ms() + DEADLINE_MS;

	while (stats().open != n) {
		assert_true(clock_ms() < end);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
}

static void until_notified(unsigned n)
{
	uint64_t end = clock_ms() + DEADLINE_MS;

	while (notified < n) {
		assert_true(clock_ms() < end);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
}

static struct msg_welcome welcome_ring(uint32_t worker, uint32_t peer)
{
	struct msg_welcome w = {.stamp = {.worker = worker, .incarnation = 1}, .n_params = PARAMS};

	lanes_welcome(lanes, peer, &w);
	return w;
}

/* Open the lane of WELCOME `w`, which the worker has received over TCP. */
static struct lane *open_test_lane(const struct msg_welcome *w, uint32_t peer)
{
	uint32_t before = stats().open;
	struct lane *l;
	struct err e;

	lanes_note_sent(lanes, peer, 1);
	assert_int_equal(lane_open(&l, w, &e), PS_OK);
	until_lanes(before + 1);
	assert_int_equal(lane_poll(l, &e), PS_OK);
	lane_ring_received(l, lane_received(w->lane_secret_lo));
	return l;
}

static struct lane *open_worker(uint32_t worker, uint32_t peer)
{
	const struct msg_welcome w = welcome_ring(worker, peer);

	assert_int_equal(w.lane_ring, 1);
	struct lane *l = open_test_lane(&w, peer);
	assert_int_equal(lane_has_ring(l), 1);
	return l;
}

/* ---- messages -------------------------------------------------------------------------------- */

static zmq_msg_t text_frame(const char *text)
{
	zmq_msg_t frame;

	assert_int_equal(zmq_msg_init_size(&frame, strlen(text)), 0);
	memcpy(zmq_msg_data(&frame), text, strlen(text));
	return frame;
}

static int worker_sends(struct lane *l, const char *text)
{
	zmq_msg_t frame = text_frame(text);
	int sent = lane_ring_send(l, &frame);

	zmq_msg_close(&frame);
	return sent;
}

static int server_sends(uint32_t peer, const char *text)
{
	struct frames f;

	frames_init(&f);
	f.frame[0] = text_frame(text);
	f.n = 1;
	int sent = lanes_give(lanes, peer, &f);
	assert_int_equal(f.n, sent ? 0 : 1);
	frames_release(&f);
	return sent;
}

static void assert_text(struct frames *f, const char *text)
{
	assert_int_equal(f->n, 1);
	assert_int_equal(zmq_msg_size(&f->frame[0]), strlen(text));
	assert_memory_equal(zmq_msg_data(&f->frame[0]), text, strlen(text));
	frames_release(f);
}

static void server_takes(uint32_t peer, const char *text)
{
	struct frames f;
	uint32_t from;

	assert_int_equal(lanes_take(lanes, &from, &f), 1);
	assert_int_equal(from, peer);
	assert_text(&f, text);
}

static void server_takes_nothing(void)
{
	struct frames f;
	uint32_t from;

	assert_int_equal(lanes_take(lanes, &from, &f), 0);
}

static void worker_receives(struct lane *l, const char *text)
{
	struct frames f;

	assert_int_equal(lane_ring_receive(l, &f), 1);
	assert_text(&f, text);
}

TEST_IN(messages_go_both_ways_and_wake_the_other_side, set_up_rings, tear_down_rings)
{
	struct lane *l = open_worker(1, PEER);
	struct frames f;

	server_takes_nothing();
	notified = 0;
	assert_int_equal(worker_sends(l, "one"), 1);
	until_notified(1);
	assert_int_equal(worker_sends(l, "two"), 1);
	server_takes(PEER, "one");
	server_takes(PEER, "two");
	server_takes_nothing();
	assert_int_equal(notified, 1); /* the server did not sleep when the second one came */

	assert_int_equal(lane_ring_receive(l, &f), 0);
	assert_int_equal(lane_ring_may_sleep(l), 1);
	char byte;
	assert_true(read(lane_ring_fd(l), &byte, 1) < 0);
	assert_int_equal(server_sends(PEER, "three"), 1);
	assert_int_equal(lane_ring_wake(l, 1), 1);
	assert_true(read(lane_ring_fd(l), &byte, 1) < 0);
	assert_int_equal(server_sends(PEER, "four"), 1);
	assert_true(read(lane_ring_fd(l), &byte, 1) < 0); /* the worker does not sleep */
	assert_int_equal(lane_ring_may_sleep(l), 0);
	worker_receives(l, "three");
	worker_receives(l, "four");
	assert_int_equal(stats().messages, 4);
	lane_close(&l);
	until_lanes(0);
}

/* No message of the server overtakes one that travels over TCP. */
TEST_IN(a_ring_waits_for_the_messages_of_the_connection, set_up_rings, tear_down_rings)
{
	const struct msg_welcome w = welcome_ring(1, PEER);
	struct lane *l = open_test_lane(&w, PEER);
	const uint64_t received = lane_received(w.lane_secret_lo);

	assert_int_equal(server_sends(PEER, "a"), 1);
	lanes_note_sent(lanes, PEER, 0);
	assert_int_equal(server_sends(PEER, "b"), 0);
	lanes_note_sent(lanes, PEER, 0);
	lane_ring_received(l, received + 1);
	assert_int_equal(server_sends(PEER, "c"), 0);
	lane_ring_received(l, received + 2);
	assert_int_equal(server_sends(PEER, "d"), 1);
	/* a second WELCOME is on its way: first it is only queued, and an earlier message leaves */
	const struct msg_welcome next = welcome_ring(1, PEER);
	assert_int_equal(server_sends(PEER, "e"), 0);
	lanes_note_sent(lanes, PEER, 0);
	lanes_note_sent(lanes, PEER, 1);
	lane_ring_received(l, received + 3);
	assert_int_equal(server_sends(PEER, "f"), 0);
	lane_ring_received(l, lane_received(next.lane_secret_lo));
	assert_int_equal(server_sends(PEER, "g"), 1);
	worker_receives(l, "a");
	worker_receives(l, "d");
	worker_receives(l, "g");
	lane_close(&l);
}

/* The server handles the messages in the ring before a message over TCP that was sent later. */
TEST_IN(earlier_messages_in_the_ring_come_first, set_up_rings, tear_down_rings)
{
	struct lane *l = open_worker(1, PEER);
	struct frames f;

	assert_int_equal(lanes_note_received(lanes, PEER, NULL), 0);
	assert_int_equal(worker_sends(l, "first"), 1);
	assert_int_equal(lanes_note_received(lanes, PEER + 1, NULL), 0);
	assert_int_equal(lanes_note_received(lanes, PEER, NULL), 1);
	assert_int_equal(worker_sends(l, "later"), 1);
	assert_int_equal(lanes_take_earlier(lanes, PEER, &f), 1);
	assert_text(&f, "first");
	assert_int_equal(lanes_take_earlier(lanes, PEER, &f), 0);
	server_takes(PEER, "later");
	lane_close(&l);
}

/* When the server sends WELCOME, the messages in the ring are older than the HELLO of the
 * worker. */
TEST_IN(a_welcome_discards_older_messages, set_up_rings, tear_down_rings)
{
	struct lane *l = open_worker(1, PEER);

	assert_int_equal(worker_sends(l, "before"), 1);
	(void)welcome_ring(1, PEER + 1);
	server_takes_nothing();
	notified = 0;
	assert_int_equal(worker_sends(l, "after"), 1);
	until_notified(1);
	server_takes(PEER + 1, "after");
	lane_close(&l);
}

TEST_IN(a_full_ring_leaves_the_message_to_tcp, set_up_rings, tear_down_rings)
{
	struct lane *l = open_worker(1, PEER);
	char text[RING_MAX_MESSAGE + 2];
	unsigned there = 0, back = 0;

	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	assert_int_equal(worker_sends(l, text), 0);
	assert_int_equal(server_sends(PEER, text), 0);
	text[RING_MAX_MESSAGE] = '\0';
	while (worker_sends(l, text))
		there++;
	while (server_sends(PEER, text))
		back++;
	assert_int_equal(there, RING_BYTES / (RING_MAX_MESSAGE + RING_ALIGN));
	assert_int_equal(back, there);
	server_takes(PEER, text);
	worker_receives(l, text);
	assert_int_equal(worker_sends(l, text), 1);
	assert_int_equal(server_sends(PEER, text), 1);
	lane_close(&l);
}

TEST_IN(a_busy_ring_does_not_delay_another, set_up_rings, tear_down_rings)
{
	struct lane *busy = open_worker(1, PEER), *other = open_worker(2, PEER + 1);

	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(worker_sends(busy, "busy"), 1);
	assert_int_equal(worker_sends(other, "other"), 1);
	until_notified(2);
	server_takes(PEER, "busy");
	server_takes(PEER + 1, "other");
	server_takes(PEER, "busy");
	lane_close(&busy);
	lane_close(&other);
	until_lanes(0);
	server_takes_nothing();
}

static size_t count_descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	size_t n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

TEST_IN(a_closed_lane_leaves_no_descriptor, set_up_rings, tear_down_rings)
{
	struct lane *l = open_worker(1, PEER);

	lane_close(&l);
	until_lanes(0);
	size_t before = count_descriptors();
	for (unsigned i = 0; i < 5; i++) {
		l = open_worker(1, PEER);
		assert_true(count_descriptors() > before);
		lane_close(&l);
		until_lanes(0);
		uv_run(&loop, UV_RUN_NOWAIT);
		assert_int_equal(count_descriptors(), before);
	}
}

/* The key of the session is that of its connection, and the first message over TCP shows it. */
TEST_IN(a_message_in_the_ring_has_the_key_of_the_connection, set_up_rings, tear_down_rings)
{
	struct lane *l = open_worker(1, PEER);
	struct frames f;
	uint32_t from;

	assert_int_equal(worker_sends(l, "unknown"), 1);
	assert_int_equal(lanes_take(lanes, &from, &f), 1);
	assert_string_equal(wire_key(&f), "");
	frames_release(&f);
	assert_int_equal(lanes_note_received(lanes, PEER, "the key"), 0);
	assert_int_equal(lanes_note_received(lanes, PEER, "another"), 0);
	assert_int_equal(worker_sends(l, "known"), 1);
	assert_int_equal(lanes_take(lanes, &from, &f), 1);
	assert_string_equal(wire_key(&f), "the key");
	frames_release(&f);
	(void)welcome_ring(1, PEER + 1); /* another connection, whose key is not known yet */
	lanes_note_sent(lanes, PEER + 1, 1);
	assert_int_equal(worker_sends(l, "unknown"), 1);
	assert_int_equal(lanes_take(lanes, &from, &f), 1);
	assert_string_equal(wire_key(&f), "");
	frames_release(&f);
	lane_close(&l);
}

/* ---- programs of an earlier version ---------------------------------------------------------- */

/* A worker that does not support rings, or whose server has none, greets as before. */
TEST_IN(an_older_program_gets_a_lane_without_rings, set_up_rings, tear_down_rings)
{
	struct msg_welcome w = welcome_ring(1, PEER);
	struct frames f;

	w.lane_ring = 0;
	struct lane *l = open_test_lane(&w, PEER);
	assert_int_equal(lane_is_open(l), 1);
	assert_int_equal(lane_has_ring(l), 0);
	assert_int_equal(worker_sends(l, "m"), 0);
	assert_int_equal(server_sends(PEER, "m"), 0);
	assert_int_equal(lane_ring_receive(l, &f), 0);
	assert_int_equal(lane_ring_may_sleep(l), 1);
	assert_int_equal(lane_ring_wake(l, 0), 1);
	server_takes_nothing();
	assert_int_equal(lanes_note_received(lanes, PEER, NULL), 0);
	lane_close(&l);
	until_lanes(0);
}

/* ---- hostile workers ------------------------------------------------------------------------- */

struct hostile {
	int fd, fds[LANE_RING_FDS];
	struct lane_rings *rings;
};

/* Open a lane, and give the test its memory and its descriptors. */
static struct hostile open_hostile(void)
{
	const struct msg_welcome w = welcome_ring(1, PEER);
	const struct lane_greeting g = {.magic = LANE_RING_MAGIC,
		.secret_hi = w.lane_secret_hi,
		.secret_lo = w.lane_secret_lo,
		.worker = 1,
		.incarnation = 1};
	struct lane_layout layout;
	struct hostile h;
	struct err e;

	lanes_note_sent(lanes, PEER, 1);
	assert_int_equal(share_connect(path, &h.fd, &e), PS_OK);
	assert_int_equal(share_send(h.fd, &g, sizeof(g), NULL, 0), PS_OK);
	until_lanes(1);
	assert_int_equal(share_receive(h.fd, &layout, sizeof(layout), h.fds, LANE_RING_FDS), PS_OK);
	h.rings = share_map(h.fds[2], sizeof(*h.rings), 1);
	assert_non_null(h.rings);
	atomic_store(&h.rings->to_worker.received, lane_received(w.lane_secret_lo));
	server_takes_nothing();
	return h;
}

static void close_hostile(struct hostile *h)
{
	(void)munmap(h->rings, sizeof(*h->rings));
	for (size_t i = 0; i < LANE_RING_FDS; i++)
		close(h->fds[i]);
	close(h->fd);
}

static void ring_bell(const struct hostile *h)
{
	const uint64_t one = 1;

	notified = 0;
	assert_int_equal(write(h->fds[3], &one, sizeof(one)), sizeof(one));
	until_notified(1);
}

static void assert_closed_with_one_line(void)
{
	const char *text = capture_log(&said);

	assert_int_equal(stats().open, 0);
	assert_non_null(
		strstr(text, "msg=\"lane closed\" worker=1 reason=\"the worker has damaged"));
	assert_int_equal(count_lines(text), 1);
}

TEST_IN(a_damaged_ring_ends_the_lane_with_one_line, set_up_rings, tear_down_rings)
{
	for (int to_worker = 0; to_worker < 2; to_worker++) {
		struct hostile h = open_hostile();

		log_set_level(LOG_INFO);
		capture_begin(&said, 2);
		if (to_worker)
			atomic_store(&h.rings->to_worker.head, 12345);
		else
			atomic_store(&h.rings->to_server.tail, 12345);
		ring_bell(&h);
		server_takes_nothing();
		assert_int_equal(server_sends(PEER, "over TCP"), 0);
		server_takes_nothing();
		log_set_level(LOG_ERROR);
		assert_closed_with_one_line();
		close_hostile(&h);
	}
}

/* The worker can change the flags of the eventfd, which both processes share, so that a read of an
 * eventfd without an event, or a write to a full one, would wait for ever. */
TEST_IN(a_worker_cannot_make_the_server_wait, set_up_rings, tear_down_rings)
{
	struct hostile h = open_hostile();
	const uint64_t full = UINT64_MAX - 1;
	uint64_t value;

	assert_int_equal(fcntl(h.fds[3], F_SETFL, 0), 0);
	ring_bell(&h);
	assert_int_equal(read(h.fds[3], &value, sizeof(value)), sizeof(value));
	server_takes_nothing();
	notified = 0;
	assert_int_equal(write(h.fds[3], &full, sizeof(full)), sizeof(full));
	until_notified(1);
	server_takes_nothing();
	/* the worker reads its ring, but never the pipe, and always seems to sleep */
	assert_int_equal(fcntl(h.fds[4], F_SETFL, 0), 0);
	for (unsigned i = 0; i < 70000; i++) {
		atomic_store(&h.rings->to_worker.sleeps, 1);
		assert_int_equal(server_sends(PEER, "m"), 1);
		atomic_store(&h.rings->to_worker.head, atomic_load(&h.rings->to_worker.tail));
	}
	close_hostile(&h);
	until_lanes(0);
}

/* Refused messages in the ring count as they do over TCP, also if the worker opens its lane
 * again. */
TEST_IN(a_flood_of_refused_messages_ends_the_lane, set_up_rings, tear_down_rings)
{
	struct lane *l = open_worker(1, PEER);
	unsigned n = 0;

	while (!lanes_note_refused(lanes, PEER, 10, 1000) && n < 100)
		n++;
	assert_int_equal(n, 10);
	assert_int_equal(stats().open, 0);
	lane_close(&l);
	l = open_worker(1, PEER);
	assert_int_equal(lanes_note_refused(lanes, PEER, 10, 1000), 1);
	lane_close(&l);
	l = open_worker(1, PEER);
	assert_int_equal(lanes_note_refused(lanes, PEER, 10, 2000), 0);
	lanes_end(lanes, PEER, "the test ends");
	until_lanes(0);
	lane_close(&l);
}

/* ---- hostile servers ------------------------------------------------------------------------- */

/* Let a worker open a lane of a server that the test plays. Sets *rings to the memory of the rings,
 * and *pipe_end to the end of the pipe to which the server writes. */
static struct lane *open_played(struct lane_rings **rings, int *pipe_end)
{
	const struct lane_layout layout = {LANE_MAGIC, PARAMS, 1, LANE_PAGE, 2, LANE_PAGE, 0};
	struct msg_welcome w = {.n_params = PARAMS, .lane_ring = 1};
	int fds[LANE_RING_FDS], ends[2], other;
	struct lane_greeting g;
	struct lane *l;
	struct err e;

	snprintf(w.lane_path, sizeof(w.lane_path), "%s/played", dir);
	assert_int_equal(share_listen(w.lane_path, &other, &e), PS_OK);
	assert_int_equal(lane_open(&l, &w, &e), PS_OK);
	int fd = accept(other, NULL, NULL);
	assert_true(fd >= 0);
	assert_int_equal(share_receive(fd, &g, sizeof(g), NULL, 0), PS_OK);
	assert_true(g.magic == LANE_RING_MAGIC);
	assert_int_equal(share_new("weights", LANE_PAGE, &fds[0]), PS_OK);
	assert_int_equal(share_new("pushes", 3 * LANE_PAGE, &fds[1]), PS_OK);
	assert_int_equal(share_new("rings", sizeof(**rings), &fds[2]), PS_OK);
	assert_int_equal(pipe(ends), 0);
	fds[3] = eventfd(0, 0);
	fds[4] = ends[0];
	*rings = share_map(fds[2], sizeof(**rings), 1);
	assert_int_equal(share_send(fd, &layout, sizeof(layout), fds, LANE_RING_FDS), PS_OK);
	assert_int_equal(lane_poll(l, &e), PS_OK);
	for (size_t i = 0; i < LANE_RING_FDS; i++)
		close(fds[i]);
	close(fd);
	close(other);
	(void)unlink(w.lane_path);
	*pipe_end = ends[1];
	return l;
}

TEST_IN(a_server_cannot_damage_its_worker, set_up_rings, tear_down_rings)
{
	struct lane_rings *rings;
	struct frames f;
	int end;
	struct lane *l = open_played(&rings, &end);

	/* the server has made the end of the pipe blocking */
	assert_int_equal(lane_ring_wake(l, 1), 1);
	assert_int_equal(lane_ring_receive(l, &f), 0);
	atomic_store(&rings->to_server.head, 12345);
	assert_int_equal(worker_sends(l, "m"), 0);
	atomic_store(&rings->to_worker.tail, RING_BYTES + 8);
	assert_int_equal(lane_ring_receive(l, &f), PS_EPROTO);
	assert_int_equal(lane_ring_wake(l, 0), 1);
	close(end);
	assert_int_equal(lane_ring_wake(l, 1), 0);
	(void)munmap(rings, sizeof(*rings));
	lane_close(&l);
}
