/* Proves the promises of common/zloop.h: no wake-up is missed, and the safety timer would detect a
 * missed wake-up. */
#include <stddef.h>
#include <stdint.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>
#include "common/clock.h"
#include "common/zloop.h"
#include "tests/support/test.h"

enum { DEADLINE_MS = 40000 };

/* libzmq is not built with ThreadSanitizer, so the sanitizer reports false races between libzmq's
 * own threads. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "ignore_noninstrumented_modules=1";
}

/* An event loop that watches a DEALER socket and, in some tests, also a ROUTER socket. */
static struct fixture {
	uv_loop_t loop;
	uv_timer_t deadline, busy;
	uv_prepare_t step_counter;
	void *context, *dealer, *router;
	struct zloop dealer_watch, router_watch;
	int late;      /* 1: the deadline of the test has passed */
	size_t closed; /* the number of calls of on_watch_closed() */
	size_t steps;  /* the number of iterations of the loop */
	/* got: the messages that the dealer has received; sent: the pings; target: the test ends
	 * when `got` reaches this number */
	size_t got, sent, target;
	size_t skipped; /* the number of times that dealer_asks did not ask the socket */
	size_t step_of_last, max_in_a_step, in_this_step;
} f;

static void on_deadline(uv_timer_t *t)
{
	(void)t;
	f.late = 1;
	uv_stop(&f.loop);
}

static void count_step(uv_prepare_t *p)
{
	(void)p;
	f.steps++;
}

static void *new_loop_socket(int type)
{
	int linger = 0, hwm = 0;
	void *s = zmq_socket(f.context, type);

	assert_non_null(s);
	zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof(linger));
	zmq_setsockopt(s, ZMQ_SNDHWM, &hwm, sizeof(hwm));
	zmq_setsockopt(s, ZMQ_RCVHWM, &hwm, sizeof(hwm));
	return s;
}

static int set_up_zloop(void **state)
{
	char endpoint[128];
	size_t size = sizeof(endpoint);

	(void)state;
	memset(&f, 0, sizeof(f));
	f.context = zmq_ctx_new();
	f.router = new_loop_socket(ZMQ_ROUTER);
	assert_int_equal(zmq_bind(f.router, "tcp://127.0.0.1:*"), 0);
	assert_int_equal(zmq_getsockopt(f.router, ZMQ_LAST_ENDPOINT, endpoint, &size), 0);
	f.dealer = new_loop_socket(ZMQ_DEALER);
	assert_int_equal(zmq_connect(f.dealer, endpoint), 0);
	assert_int_equal(uv_loop_init(&f.loop), 0);
	uv_timer_init(&f.loop, &f.deadline);
	uv_timer_start(&f.deadline, on_deadline, DEADLINE_MS, 0);
	uv_timer_init(&f.loop, &f.busy);
	uv_prepare_init(&f.loop, &f.step_counter);
	uv_prepare_start(&f.step_counter, count_step);
	return 0;
}

static void on_watch_closed(void *arg)
{
	assert_ptr_equal(arg, &f);
	f.closed++;
}

static void close_handle(uv_handle_t *h, void *arg)
{
	(void)arg;
	if (!uv_is_closing(h))
		uv_close(h, NULL);
}

static int tear_down_zloop(void **state)
{
	(void)state;
	/* closes the watches that a failed test has left open */
	uv_walk(&f.loop, close_handle, NULL);
	uv_run(&f.loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&f.loop), 0);
	if (f.dealer)
		zmq_close(f.dealer);
	if (f.router)
		zmq_close(f.router);
	zmq_ctx_term(f.context);
	return 0;
}

/* Closes the watches, and runs the loop until they are closed. */
static void stop_watches(struct zloop *first, struct zloop *second)
{
	size_t expected = f.closed + (first != NULL) + (second != NULL);

	if (first)
		zloop_stop(first, on_watch_closed);
	if (second)
		zloop_stop(second, on_watch_closed);
	for (int steps = 0; f.closed < expected && steps < 10; steps++)
		uv_run(&f.loop, UV_RUN_NOWAIT);
	assert_int_equal(f.closed, expected);
}

static void send_ping(void)
{
	assert_int_equal(zmq_send(f.dealer, "ping", 4, ZMQ_DONTWAIT), 4);
	f.sent++;
}

static int dealer_readable(void *arg)
{
	char reply[8];

	assert_ptr_equal(arg, &f);
	if (zmq_recv(f.dealer, reply, sizeof(reply), ZMQ_DONTWAIT) < 0) {
		assert_int_equal(zmq_errno(), EAGAIN);
		return 0;
	}
	f.in_this_step = f.steps == f.step_of_last ? f.in_this_step + 1 : 1;
	f.step_of_last = f.steps;
	if (f.in_this_step > f.max_in_a_step)
		f.max_in_a_step = f.in_this_step;
	if (++f.got == f.target)
		uv_stop(&f.loop);
	return 1;
}

static void watch_dealer(void)
{
	assert_int_equal(
		zloop_start(&f.dealer_watch, &f.loop, f.dealer, dealer_readable, &f), PS_OK);
}

/* Makes a sequence that stalls a naive combination of libuv and libzmq. A reply arrives while the
 * loop works, and then a send without an answer consumes the edge of libzmq's file descriptor. When
 * the edge is consumed, only the safety timer would wake the loop. */
static void on_busy(uv_timer_t *t)
{
	(void)t;
	send_ping();
	double until = clock_seconds() + 300e-6;
	while (clock_seconds() < until)
		;
	assert_int_equal(zmq_send(f.dealer, "hush", 4, ZMQ_DONTWAIT), 4);
	zloop_used(&f.dealer_watch);
}

/* Receives a reply, and sends the next ping or lets the timer send it. One message is in flight at
 * a time, and the timer sends every fourth ping. */
static int dealer_plays(void *arg)
{
	int had = dealer_readable(arg);

	if (had && f.got < f.target && f.got % 4 == 0)
		uv_timer_start(&f.busy, on_busy, 1, 0);
	else if (had && f.got < f.target)
		send_ping();
	return had;
}

/* Receives a message of two frames and sends it back, unless it is "hush". Returns 0 if no message
 * was there. */
static int echo_one(void *router, int flags)
{
	char id[256], body[8];
	int n = zmq_recv(router, id, sizeof(id), flags);

	if (n < 0)
		return 0;
	int m = zmq_recv(router, body, sizeof(body), 0);
	if (m != 4 || memcmp(body, "hush", 4) != 0) {
		zmq_send(router, id, (size_t)n, ZMQ_SNDMORE);
		zmq_send(router, body, (size_t)m, 0);
	}
	return 1;
}

static int router_readable(void *arg)
{
	(void)arg;
	return echo_one(f.router, ZMQ_DONTWAIT);
}

static void play(size_t target)
{
	f.target = target;
	assert_int_equal(zloop_start(&f.dealer_watch, &f.loop, f.dealer, dealer_plays, &f), PS_OK);
	send_ping();
	uv_run(&f.loop, UV_RUN_DEFAULT);
}

static void assert_played(size_t target)
{
	if (f.late)
		fail_msg("stalled after %zu of %zu round trips", f.got, f.target);
	assert_int_equal(f.got, target);
	assert_int_equal(zloop_rescues(&f.dealer_watch), 0);
}

TEST_IN(ping_pong_inside_one_loop_never_stalls, set_up_zloop, tear_down_zloop)
{
	assert_int_equal(
		zloop_start(&f.router_watch, &f.loop, f.router, router_readable, &f), PS_OK);
	play(5000);
	assert_played(5000);
	assert_int_equal(zloop_rescues(&f.router_watch), 0);
	stop_watches(&f.dealer_watch, &f.router_watch);
}

static void *echo_thread(void *arg)
{
	while (echo_one(arg, 0))
		;
	return NULL;
}

/* The answers of the peer can arrive while the loop sleeps, while it works, or when it is about to
 * sleep. */
/* Asks the socket only if something has happened to it, as the router does. */
static int dealer_asks(void *arg)
{
	if (zloop_is_quiet(&f.dealer_watch)) {
		f.skipped++;
		return 0;
	}
	int had = dealer_plays(arg);
	if (!had)
		zloop_found_empty(&f.dealer_watch);
	return had;
}

static void on_other_work(uv_idle_t *i)
{
	(void)i;
	zloop_wake(&f.dealer_watch);
}

/* Other work wakes on_readable up in each step of the loop. on_readable then asks no quiet socket,
 * and misses no message. */
TEST_IN(a_quiet_socket_need_not_be_asked, set_up_zloop, tear_down_zloop)
{
	uv_idle_t other;

	uv_idle_init(&f.loop, &other);
	uv_idle_start(&other, on_other_work);
	f.target = 200;
	assert_int_equal(
		zloop_start(&f.router_watch, &f.loop, f.router, router_readable, &f), PS_OK);
	assert_int_equal(zloop_start(&f.dealer_watch, &f.loop, f.dealer, dealer_asks, &f), PS_OK);
	send_ping();
	uv_run(&f.loop, UV_RUN_DEFAULT);
	assert_played(200);
	assert_true(f.skipped > 10);
	uv_close((uv_handle_t *)&other, NULL);
	stop_watches(&f.dealer_watch, &f.router_watch);
}

TEST_IN(ping_pong_with_another_thread_never_stalls, set_up_zloop, tear_down_zloop)
{
	pthread_t thread;
	int ms = 1000;
	void *router = f.router;

	f.router = NULL;
	/* with this timeout, the thread ends when no more messages arrive */
	zmq_setsockopt(router, ZMQ_RCVTIMEO, &ms, sizeof(ms));
	assert_int_equal(pthread_create(&thread, NULL, echo_thread, router), 0);
	play(2000);
	pthread_join(thread, NULL);
	zmq_close(router);
	assert_played(2000);
	stop_watches(&f.dealer_watch, NULL);
}

TEST_IN(a_step_of_the_loop_handles_at_most_the_budget, set_up_zloop, tear_down_zloop)
{
	f.target = 1000;
	assert_int_equal(
		zloop_start(&f.router_watch, &f.loop, f.router, router_readable, &f), PS_OK);
	watch_dealer();
	for (size_t i = 0; i < f.target; i++)
		send_ping();
	uv_run(&f.loop, UV_RUN_DEFAULT);
	assert_int_equal(f.late, 0);
	assert_in_range(f.max_in_a_step, 1, ZLOOP_BUDGET);
	assert_true(f.steps >= f.target / ZLOOP_BUDGET);
	stop_watches(&f.dealer_watch, &f.router_watch);
}

static void stop_loop(uv_timer_t *t)
{
	uv_stop(t->loop);
}

TEST_IN(a_silent_socket_lets_the_loop_sleep, set_up_zloop, tear_down_zloop)
{
	f.target = 1;
	watch_dealer();
	send_ping();
	assert_true(echo_one(f.router, 0));
	zmq_pollitem_t reply = {.socket = f.dealer, .events = ZMQ_POLLIN};
	/* the prepare handle must find the message, because the file descriptor does not signal
	 * it */
	assert_int_equal(zmq_poll(&reply, 1, 10000), 1);
	uv_run(&f.loop, UV_RUN_DEFAULT);
	assert_int_equal(f.got, 1);
	f.steps = 0;
	uv_timer_start(&f.busy, stop_loop, 550, 0);
	uv_run(&f.loop, UV_RUN_DEFAULT);
	/* five iterations for the safety timer, one for the timer `busy`, and a few for signals */
	assert_in_range(f.steps, 1, 20);
	assert_int_equal(f.got, 1);
	assert_int_equal(zloop_rescues(&f.dealer_watch), 0);
	stop_watches(&f.dealer_watch, NULL);
}

/* Handles one message, then stops the watch and closes the socket. After this call no code may use
 * the socket. */
static int dealer_stops(void *arg)
{
	int had = dealer_readable(arg);

	if (had) {
		zloop_stop(&f.dealer_watch, on_watch_closed);
		zmq_close(f.dealer);
		f.dealer = NULL;
	}
	return had;
}

TEST_IN(watching_may_stop_inside_the_callback, set_up_zloop, tear_down_zloop)
{
	assert_int_equal(
		zloop_start(&f.router_watch, &f.loop, f.router, router_readable, &f), PS_OK);
	assert_int_equal(zloop_start(&f.dealer_watch, &f.loop, f.dealer, dealer_stops, &f), PS_OK);
	for (int i = 0; i < 10; i++)
		send_ping();
	while (f.closed == 0 && !f.late)
		uv_run(&f.loop, UV_RUN_ONCE);
	assert_int_equal(f.got, 1);
	assert_int_equal(f.closed, 1);
	stop_watches(&f.router_watch, NULL);
}

/* Sends a ping from the dealer, and the answer from the router. When the function returns, the
 * answer is on its way to the dealer. */
static void get_an_answer(void)
{
	send_ping();
	assert_true(echo_one(f.router, 0));
}

/* Poll the dealer's socket until the answer has arrived. The poll consumes the edge of the file
 * descriptor, so the loop will not wake up for the answer. */
static void eat_edge(void)
{
	int events = 0;
	size_t size = sizeof(events);
	uint64_t start = clock_ms();

	while (!(events & ZMQ_POLLIN) && clock_ms() - start < 5000)
		assert_int_equal(zmq_getsockopt(f.dealer, ZMQ_EVENTS, &events, &size), 0);
	assert_true(events & ZMQ_POLLIN);
}

/* A message has arrived, and a poll that was not noted with zloop_used has consumed the edge of the
 * file descriptor. The prepare handle does not look for the message, because that would cost system
 * calls in each iteration. Only the safety timer can find the message. */
TEST_IN(a_missed_wake_up_is_rescued_and_counted, set_up_zloop, tear_down_zloop)
{
	f.target = 1;
	watch_dealer();
	uv_run(&f.loop, UV_RUN_NOWAIT);
	get_an_answer();
	eat_edge();
	uv_run(&f.loop, UV_RUN_DEFAULT);
	assert_int_equal(f.late, 0);
	assert_int_equal(f.got, 1);
	assert_int_equal(zloop_rescues(&f.dealer_watch), 1);
	stop_watches(&f.dealer_watch, NULL);
}

/* A message arrives, and the file descriptor still signals it, so the safety timer must not count
 * this message as a rescue. The test stops the poll and prepare handles, so that the message stays
 * unread until the timer runs. */
TEST_IN(a_message_that_the_fd_announces_is_no_rescue, set_up_zloop, tear_down_zloop)
{
	watch_dealer();
	uv_timer_start(&f.busy, stop_loop, 250, 0);
	get_an_answer();
	uv_run(&f.loop, UV_RUN_DEFAULT);
	assert_int_equal(f.got, 1);
	uv_prepare_stop(&f.dealer_watch.prepare);
	uv_poll_stop(&f.dealer_watch.poll);
	get_an_answer();
	struct pollfd p = {.events = POLLIN};
	assert_int_equal(uv_fileno((uv_handle_t *)&f.dealer_watch.poll, &p.fd), 0);
	assert_int_equal(poll(&p, 1, 10000), 1);
	uv_timer_start(&f.busy, stop_loop, 350, 0);
	uv_run(&f.loop, UV_RUN_DEFAULT);
	assert_int_equal(f.got, 1);
	assert_int_equal(zloop_rescues(&f.dealer_watch), 0);
	stop_watches(&f.dealer_watch, NULL);
}

/* Another timer runs before the safety timer and sends a message. Sending this message consumes the
 * edge of a message that arrived while the loop was busy. The prepare handle would have found this
 * message next, so the safety timer must not count a rescue. */
TEST_IN(an_edge_consumed_by_the_owner_is_no_rescue, set_up_zloop, tear_down_zloop)
{
	watch_dealer();
	/* pretend that the loop does not reach the prepare handle for 250 ms */
	uv_prepare_stop(&f.dealer_watch.prepare);
	get_an_answer();
	eat_edge();
	zloop_used(&f.dealer_watch);
	uv_timer_start(&f.busy, stop_loop, 250, 0);
	uv_run(&f.loop, UV_RUN_DEFAULT);
	assert_int_equal(f.got, 0);
	assert_int_equal(zloop_rescues(&f.dealer_watch), 0);
	stop_watches(&f.dealer_watch, NULL);
}

/* A message was there before the loop began. libzmq signals on its file descriptor only after a
 * poll has found the socket empty, and no code has polled this socket yet. Normally the prepare
 * handle finds the message in the first iteration. In a program that starts slowly, the safety
 * timer may run before that, and must not count a rescue. */
TEST_IN(what_was_there_before_the_loop_is_no_rescue, set_up_zloop, tear_down_zloop)
{
	f.target = 1;
	get_an_answer();
	zmq_pollitem_t reply = {.socket = f.dealer, .events = ZMQ_POLLIN};
	assert_int_equal(zmq_poll(&reply, 1, 10000), 1);
	watch_dealer();
	poll(NULL, 0, 150);
	uv_run(&f.loop, UV_RUN_DEFAULT);
	assert_int_equal(f.got, 1);
	assert_int_equal(zloop_rescues(&f.dealer_watch), 0);
	stop_watches(&f.dealer_watch, NULL);
}

TEST_IN(what_cannot_be_watched_is_refused_with_nothing_to_undo, set_up_zloop, tear_down_zloop)
{
	int not_a_socket[64] = {0};

	assert_int_equal(
		zloop_start(&f.router_watch, &f.loop, not_a_socket, router_readable, &f), PS_ENET);
	watch_dealer();
	/* a socket may have only one watch, because the loop already watches its file descriptor */
	assert_int_equal(
		zloop_start(&f.router_watch, &f.loop, f.dealer, dealer_readable, &f), PS_ENET);
	stop_watches(&f.dealer_watch, NULL);
}
