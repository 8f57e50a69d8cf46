/*
 * zloop.c - the prepare/check bridge between a ZeroMQ socket and a libuv loop.
 *
 * One iteration of the loop runs the timers, the idle handles and PREPARE, sleeps in poll, and then
 * runs CHECK. Code that ran before PREPARE may have consumed the edge of the descriptor. If the
 * socket was used, PREPARE therefore asks the socket itself. If the socket was not used since
 * on_readable found it empty, the next message makes an edge, and PREPARE asks nothing: this saves
 * two system calls. No code runs between PREPARE and the sleep. CHECK handles messages only if
 * PREPARE or the descriptor has reported one. If PREPARE and the descriptor both miss a message,
 * the timer finds the message and counts it as missed.
 */
#include "common/zloop.h"
#include <poll.h>
#include <zmq.h>

#define SAFETY_MS 100

static int socket_ready(const struct zloop *z)
{
	int events = 0;
	size_t size = sizeof(events);

	if (zmq_getsockopt(z->socket, ZMQ_EVENTS, &events, &size) != 0)
		return 0; /* the context is terminating; its owner will call zloop_stop */
	return (events & ZMQ_POLLIN) != 0;
}

/* Does nothing. The idle handle is needed because the loop does not sleep while it is active. */
static void on_idle(uv_idle_t *h)
{
	(void)h;
}

static void mark_ready(struct zloop *z)
{
	z->ready = 1;
	uv_idle_start(&z->idle, on_idle);
}

static void on_prepare(uv_prepare_t *h)
{
	struct zloop *z = h->data;

	int is_ready = z->used && socket_ready(z);
	/* on_iteration has used the socket, which may consume an edge */
	if (z->on_iteration && z->on_iteration(z->arg))
		is_ready = socket_ready(z);
	z->used = 0;
	if (is_ready) {
		z->is_quiet = 0;
		mark_ready(z);
	} else if (!z->ready)
		uv_idle_stop(&z->idle);
}

static void on_fd(uv_poll_t *h, int status, int events)
{
	struct zloop *z = h->data;

	(void)status;
	(void)events;
	z->is_quiet = 0;
	z->ready = 1;
}

static void handle(struct zloop *z, size_t max)
{
	/* the loop ends if on_readable has called zloop_stop, after which the socket may be
	 * closed */
	for (size_t n = 0; !uv_is_closing((uv_handle_t *)&z->check); n++) {
		if (n == max) {
			mark_ready(z); /* the socket may have more messages, but no new edge */
			return;
		}
		/* the next call asks the socket itself, so after it no earlier use of the socket
		 * can have hidden a message */
		z->used = 0;
		if (!z->on_readable(z->arg))
			return;
		z->woken = 1;
	}
}

static void on_check(uv_check_t *h)
{
	struct zloop *z = h->data;

	if (!z->ready)
		return;
	z->ready = 0;
	handle(z, ZLOOP_BUDGET);
}

/*
 * Finds a message that PREPARE and the descriptor have both missed: for a whole period of the timer
 * no message was handled and the descriptor reported none, but the socket has a message. The
 * function counts this as a rescue. The function checks the descriptor first, so that a message
 * that has just arrived does not count as a rescue.
 */
static void on_safety_timer(uv_timer_t *h)
{
	struct zloop *z = h->data;
	int quiet = !z->woken && !z->ready && !z->used;

	z->woken = 0;
	if (!quiet)
		return;
	uv_os_fd_t fd;
	if (uv_fileno((const uv_handle_t *)&z->poll, &fd) != 0)
		return;
	struct pollfd p = {.fd = fd, .events = POLLIN};
	if (poll(&p, 1, 0) == 0 && socket_ready(z)) {
		z->rescues++;
		z->is_quiet = 0;
		mark_ready(z);
	}
}

int zloop_start(
	struct zloop *z, uv_loop_t *loop, void *socket, zloop_readable_fn *on_readable, void *arg)
{
	*z = (struct zloop){.socket = socket, .on_readable = on_readable, .arg = arg, .used = 1};
	int fd;
	size_t size = sizeof(fd);

	if (zmq_getsockopt(socket, ZMQ_FD, &fd, &size) != 0)
		return PS_ENET;
	if (uv_poll_init(loop, &z->poll, fd) != 0)
		return PS_ENET;
	/* these calls only add the handles to the loop and cannot fail */
	uv_prepare_init(loop, &z->prepare);
	uv_check_init(loop, &z->check);
	uv_idle_init(loop, &z->idle);
	uv_timer_init(loop, &z->timer);
	z->open_handles = 5;
	z->poll.data = z->prepare.data = z->check.data = z->idle.data = z->timer.data = z;
	uv_poll_start(&z->poll, UV_READABLE, on_fd);
	uv_prepare_start(&z->prepare, on_prepare);
	uv_check_start(&z->check, on_check);
	uv_timer_start(&z->timer, on_safety_timer, SAFETY_MS, SAFETY_MS);
	return PS_OK;
}

static void on_handle_closed(uv_handle_t *h)
{
	struct zloop *z = h->data;

	if (--z->open_handles == 0 && z->on_closed)
		z->on_closed(z->arg);
}

void zloop_stop(struct zloop *z, zloop_closed_fn *on_closed)
{
	z->on_closed = on_closed;
	uv_close((uv_handle_t *)&z->poll, on_handle_closed);
	uv_close((uv_handle_t *)&z->prepare, on_handle_closed);
	uv_close((uv_handle_t *)&z->check, on_handle_closed);
	uv_close((uv_handle_t *)&z->idle, on_handle_closed);
	uv_close((uv_handle_t *)&z->timer, on_handle_closed);
}

void zloop_read(struct zloop *z, size_t max)
{
	zloop_used(z);
	handle(z, max);
}

void zloop_used(struct zloop *z)
{
	z->used = 1;
	z->is_quiet = 0;
}

void zloop_found_empty(struct zloop *z)
{
	z->is_quiet = 1;
}

int zloop_is_quiet(const struct zloop *z)
{
	return z->is_quiet;
}

void zloop_wake(struct zloop *z)
{
	mark_ready(z);
}

void zloop_on_iteration(struct zloop *z, zloop_iteration_fn *on_iteration)
{
	z->on_iteration = on_iteration;
}

uint64_t zloop_rescues(const struct zloop *z)
{
	return z->rescues;
}
