/* zepoll.c - see zepoll.h. */
#include "common/zepoll.h"
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REPLACES_LIBC __attribute__((visibility("default")))
#define END           ((uint32_t)EPOLLERR | (uint32_t)EPOLLHUP)

/* This struct describes a descriptor that an epoll instance watches, or watched. */
struct watch {
	int epfd; /* the epoll instance; -1: none */
	/* 1: the kernel does not watch the descriptor until the next EPOLL_CTL_MOD */
	int is_parked;
	struct epoll_event wanted; /* the argument of the caller */
};

static const struct watch unused = {.epfd = -1};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct watch *watch; /* array with one element for each descriptor, up to the largest one */
static size_t n_watches;

void zepoll_use(void)
{
}

/* Returns the element of descriptor `fd`, or NULL if there is no memory. The caller holds the
 * lock. */
static struct watch *watch_of(int fd)
{
	const size_t i = (size_t)fd;

	if (i >= n_watches) {
		const size_t n = 2 * i + 64;
		struct watch *more = realloc(watch, n * sizeof(*watch));

		if (!more)
			return NULL;
		for (size_t k = n_watches; k < n; k++)
			more[k] = unused;
		watch = more;
		n_watches = n;
	}
	return &watch[i];
}

static int control(int epfd, int op, int fd, struct epoll_event *event)
{
	return (int)syscall(SYS_epoll_ctl, epfd, op, fd, event);
}

/* Does what epoll_ctl does, and notes it in `w`. */
static int control_watch(struct watch *w, int epfd, int op, int fd, struct epoll_event *event)
{
	const int is_parked = w->epfd == epfd && w->is_parked;

	if (op == EPOLL_CTL_DEL) {
		if (w->epfd == epfd)
			*w = unused;
		return is_parked ? 0 : control(epfd, op, fd, event);
	}
	if (control(epfd, is_parked ? EPOLL_CTL_ADD : op, fd, event) != 0)
		return -1;
	*w = (struct watch){.epfd = epfd, .wanted = *event};
	return 0;
}

REPLACES_LIBC int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
	struct watch *w = NULL;
	int rc;

	(void)pthread_mutex_lock(&lock);
	if (fd >= 0 && (event || op == EPOLL_CTL_DEL))
		w = watch_of(fd);
	rc = w ? control_watch(w, epfd, op, fd, event) : control(epfd, op, fd, event);
	(void)pthread_mutex_unlock(&lock);
	return rc;
}

/* Returns the descriptor of event `e` if the caller does not want to read it, otherwise -1. */
static int paused_descriptor(int epfd, const struct epoll_event *e)
{
	for (size_t i = 0; i < n_watches; i++)
		if (watch[i].epfd == epfd && watch[i].wanted.data.u64 == e->data.u64)
			return watch[i].wanted.events & EPOLLIN ? -1 : (int)i;
	return -1;
}

/* Removes the end of the connection from event `e` if the caller does not want to read. Returns 1
 * if nothing is left of the event. The kernel would report the end again and again, so it stops to
 * watch the descriptor. */
static int hides_end(int epfd, struct epoll_event *e)
{
	int fd, is_hidden = 0;

	(void)pthread_mutex_lock(&lock);
	fd = paused_descriptor(epfd, e);
	if (fd >= 0) {
		e->events &= ~END;
		is_hidden = e->events == 0;
	}
	if (is_hidden && control(epfd, EPOLL_CTL_DEL, fd, e) == 0)
		watch[fd].is_parked = 1;
	(void)pthread_mutex_unlock(&lock);
	return is_hidden;
}

REPLACES_LIBC int epoll_wait(int epfd, struct epoll_event *events, int max, int timeout)
{
	int n = (int)syscall(SYS_epoll_pwait, epfd, events, max, timeout, NULL, 0), kept = 0;

	for (int i = 0; i < n; i++) {
		/* if the connection has data, too, the caller reads them first: libzmq would call
		 * its function twice, and the first call may stop to read */
		if (events[i].events & EPOLLIN)
			events[i].events &= ~END;
		if ((events[i].events & END) && hides_end(epfd, &events[i]))
			continue;
		events[kept++] = events[i];
	}
	return n < 0 ? n : kept;
}
