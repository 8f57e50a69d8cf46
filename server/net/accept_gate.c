/* accept_gate.c - see accept_gate.h. */
#include "server/net/accept_gate.h"
#include <fcntl.h>
#include <linux/filter.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG   100 /* libzmq's own */
#define MARGIN    8   /* so many left: shut */
#define UNLIMITED (1 << 20)

/* A filter of one instruction: keep 0 bytes of each packet. */
static int drop_packets(int socket, int drop)
{
	struct sock_filter nothing = {.code = BPF_RET | BPF_K, .k = 0};
	const struct sock_fprog all = {.len = 1, .filter = &nothing};
	const int unused = 0;

	return drop ? setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &all, sizeof(all))
		    : setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused));
}

static void give_up_reserve(struct door *d)
{
	while (d->n_reserve > 0)
		close(d->reserve[--d->n_reserve]);
}

/* All of it, or nothing. */
static int take_reserve(struct door *d)
{
	while (d->n_reserve < d->want) {
		int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
		if (fd < 0 || fd >= d->last) {
			if (fd >= 0)
				close(fd);
			give_up_reserve(d);
			return 0;
		}
		d->reserve[d->n_reserve++] = fd;
	}
	return 1;
}

void door_init(struct door *d)
{
	struct rlimit limit;
	int most = UNLIMITED;

	*d = (struct door){.listener = -1};
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < UNLIMITED)
		most = (int)limit.rlim_cur;
	d->want = most / 4 < DOOR_RESERVE ? most / 4 : DOOR_RESERVE;
	d->backlog = 2 * d->want / 3 < BACKLOG ? 2 * d->want / 3 : BACKLOG;
	d->last = most > MARGIN ? most - MARGIN : 0;
	(void)take_reserve(d);
}

void door_release(struct door *d)
{
	give_up_reserve(d);
}

int door_is_near(const struct door *d, uint32_t fd)
{
	return fd >= (uint32_t)d->last;
}

int door_shut(struct door *d)
{
	if (d->shut || d->listener < 0)
		return 0;
	d->shut = 1;
	(void)drop_packets(d->listener, 1);
	give_up_reserve(d);
	return 1;
}

void door_closed(struct door *d)
{
	d->listener = -1;
	d->shut = 0;
	(void)take_reserve(d);
}

int door_try_open(struct door *d)
{
	if (!d->shut)
		return 1;
	if (!take_reserve(d))
		return 0;
	(void)drop_packets(d->listener, 0);
	d->shut = 0;
	return 1;
}
