/* accept_gate.c - see accept_gate.h. */
#include "server/net/accept_gate.h"
#include <fcntl.h>
#include <linux/filter.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/mem.h"

/* maximum number of reserved descriptors; the gate reserves fewer if the process may open only
 * few */
#define RESERVE 160
/* maximum number of connections that wait in the kernel; libzmq's default, too */
#define BACKLOG   100
#define MARGIN    8 /* the gate closes when fewer than MARGIN descriptors are left */
#define UNLIMITED (1 << 20)

struct accept_gate {
	int listener; /* libzmq's listening socket; -1: none yet */
	int reserve[RESERVE], n_reserve, max_reserve;
	int backlog;
	int last; /* a new descriptor with this number or a higher one shows that few are left */
	int closed;
};

/* Attaches a filter to the socket (drop = 1) or detaches it (0). The filter has one instruction,
 * which keeps 0 bytes of each packet; the kernel therefore drops every packet. */
static int drop_packets(int socket, int drop)
{
	struct sock_filter nothing = {.code = BPF_RET | BPF_K, .k = 0};
	const struct sock_fprog all = {.len = 1, .filter = &nothing};
	const int unused = 0;

	return drop ? setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &all, sizeof(all))
		    : setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused));
}

static void release_reserve(struct accept_gate *g)
{
	while (g->n_reserve > 0)
		close(g->reserve[--g->n_reserve]);
}

/* Takes the whole reserve of descriptors, or none. Returns 1 if it has taken the whole reserve. */
static int take_reserve(struct accept_gate *g)
{
	while (g->n_reserve < g->max_reserve) {
		int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);

		if (fd < 0 || fd >= g->last) {
			if (fd >= 0)
				close(fd);
			release_reserve(g);
			return 0;
		}
		g->reserve[g->n_reserve++] = fd;
	}
	return 1;
}

int accept_gate_new(struct accept_gate **out)
{
	struct accept_gate *g = mem_try(1, sizeof(*g));
	struct rlimit limit;
	int max = UNLIMITED;

	*out = g;
	if (!g)
		return PS_ENOMEM;
	g->listener = -1;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < UNLIMITED)
		max = (int)limit.rlim_cur;
	g->max_reserve = max / 4 < RESERVE ? max / 4 : RESERVE;
	g->backlog = 2 * g->max_reserve / 3 < BACKLOG ? 2 * g->max_reserve / 3 : BACKLOG;
	g->last = max > MARGIN ? max - MARGIN : 0;
	(void)take_reserve(g);
	return PS_OK;
}

void accept_gate_free(struct accept_gate **g)
{
	if (*g)
		release_reserve(*g);
	free(*g);
	*g = NULL;
}

int accept_gate_backlog(const struct accept_gate *g)
{
	return g->backlog;
}

void accept_gate_set_listener(struct accept_gate *g, int fd)
{
	g->listener = fd;
	if (fd >= 0)
		return;
	g->closed = 0;
	(void)take_reserve(g);
}

int accept_gate_is_needed(const struct accept_gate *g, uint32_t fd)
{
	return fd >= (uint32_t)g->last;
}

int accept_gate_close(struct accept_gate *g)
{
	if (g->closed || g->listener < 0)
		return 0;
	g->closed = 1;
	(void)drop_packets(g->listener, 1);
	release_reserve(g);
	return 1;
}

int accept_gate_try_open(struct accept_gate *g)
{
	if (!g->closed)
		return 1;
	if (!take_reserve(g))
		return 0;
	(void)drop_packets(g->listener, 0);
	g->closed = 0;
	return 1;
}
