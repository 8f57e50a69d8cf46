/*
 * fake_server.h - a parameter server for tests of libcnnps: one ROUTER in its own thread that
 * answers by the book, except for what the test switches off, and notes what it saw.
 *
 * A header with bodies, for one test program is one file. Thread: every fake_* function is for the
 * test's thread; `how`, `seen` and what follows are under the mutex.
 */
#ifndef TESTS_UNIT_FAKE_SERVER_H
#define TESTS_UNIT_FAKE_SERVER_H
#include "tests/unit/fake_answers.h"

/* ---- the thread ----------------------------------------------------------------------------- */

static inline void fake_bind(struct fake *f, const char *url)
{
	int linger = 0;
	size_t size = sizeof f->url;

	f->socket = zmq_socket(f->context, ZMQ_ROUTER);
	zmq_setsockopt(f->socket, ZMQ_LINGER, &linger, sizeof linger);
	/* the port of the socket before this one may take a moment to become free */
	for (int i = 0; zmq_bind(f->socket, url) && i < 100; i++)
		zmq_poll(NULL, 0, 20);
	zmq_getsockopt(f->socket, ZMQ_LAST_ENDPOINT, f->url, &size);
}

static inline void fake_come_back(struct fake *f)
{
	char url[sizeof f->url];

	memcpy(url, f->url, sizeof url);
	zmq_close(f->socket);
	if (f->forget) {
		f->epoch++;
		f->seen.last_seq = 0;
		memset(f->seen.sum, 0, sizeof f->seen.sum);
	}
	fake_bind(f, url);
	f->hang_up = 0;
}

static inline void fake_take_all(struct fake *f)
{
	struct frames in;
	struct msg m;
	uint32_t peer;

	while (wire_recv(f->socket, &peer, &in) == 1) {
		const char *why = "";

		if (wire_decode(f->wire, &in, &m, &why))
			fail_msg("the library sent what is no message: %s", why);
		fake_answer(f, peer, &m);
		frames_release(&in);
	}
}

static inline void *fake_run(void *arg)
{
	struct fake *f = arg;
	int stop = 0;

	while (!stop) {
		zmq_pollitem_t item = {.socket = f->socket, .events = ZMQ_POLLIN};

		zmq_poll(&item, 1, 5);
		pthread_mutex_lock(&f->mutex);
		if (f->hang_up)
			fake_come_back(f);
		else
			fake_take_all(f);
		stop = f->stop;
		pthread_cond_broadcast(&f->changed);
		pthread_mutex_unlock(&f->mutex);
	}
	zmq_close(f->socket);
	return NULL;
}

/* ---- the test's side ------------------------------------------------------------------------ */

/* Bind to a free port of 127.0.0.1 and start. */
static inline void fake_start(struct fake *f)
{
	memset(f, 0, sizeof *f);
	f->epoch = 1;
	f->how = (struct fake_how){.push_window = 8,
		.replay_window = 16,
		.model = "vector:6",
		.mode = MODE_DOWNPOUR,
		.n_push = 1,
		.n_fetch = 1};
	f->context = zmq_ctx_new();
	assert_int_equal(wire_new(&f->wire, FAKE_PARAMS), 0);
	fake_bind(f, "tcp://127.0.0.1:*");
	assert_string_not_equal(f->url, "");
	pthread_mutex_init(&f->mutex, NULL);
	pthread_cond_init(&f->changed, NULL);
	assert_int_equal(pthread_create(&f->thread, NULL, fake_run, f), 0);
}

static inline void fake_stop(struct fake *f)
{
	pthread_mutex_lock(&f->mutex);
	f->stop = 1;
	pthread_mutex_unlock(&f->mutex);
	pthread_join(f->thread, NULL);
	zmq_ctx_term(f->context);
	wire_free(&f->wire);
	pthread_cond_destroy(&f->changed);
	pthread_mutex_destroy(&f->mutex);
}

/* Wait until `enough(f)` holds under the mutex, at most so many seconds: did it? */
static inline int fake_happens(struct fake *f, int (*enough)(const struct fake *), int seconds)
{
	struct timespec deadline;
	int late = 0;

	clock_gettime(CLOCK_REALTIME, &deadline);
	deadline.tv_sec += seconds;
	pthread_mutex_lock(&f->mutex);
	while (!enough(f) && !late)
		late = pthread_cond_timedwait(&f->changed, &f->mutex, &deadline);
	pthread_mutex_unlock(&f->mutex);
	return !late;
}

/* The test fails when it does not in 20 s, naming `what`. */
static inline void fake_wait(struct fake *f, int (*enough)(const struct fake *), const char *what)
{
	if (!fake_happens(f, enough, 20))
		fail_msg("waited in vain for %s", what);
}

/* Change behaviour: `*how` becomes `value` under the mutex. */
static inline void fake_set(struct fake *f, int *how, int value)
{
	pthread_mutex_lock(&f->mutex);
	*how = value;
	pthread_mutex_unlock(&f->mutex);
}

/* The whole of it. */
static inline void fake_behave(struct fake *f, struct fake_how how)
{
	pthread_mutex_lock(&f->mutex);
	f->how = how;
	pthread_mutex_unlock(&f->mutex);
}

static inline struct fake_seen fake_look(struct fake *f)
{
	struct fake_seen seen;

	pthread_mutex_lock(&f->mutex);
	seen = f->seen;
	pthread_mutex_unlock(&f->mutex);
	return seen;
}

static inline int fake_is_back(const struct fake *f)
{
	return !f->hang_up;
}

/* Break every connection and come back on the same port; `forget`: as a new term that
 * knows of no push, as after a crash without a checkpoint. */
static inline void fake_hang_up(struct fake *f, int forget)
{
	pthread_mutex_lock(&f->mutex);
	f->hang_up = 1;
	f->forget = forget;
	pthread_mutex_unlock(&f->mutex);
	fake_wait(f, fake_is_back, "the fake server to bind again");
}

#endif
