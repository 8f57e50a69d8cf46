/* lane_ring.c - see lane_ring.h. */
#include "server/net/lane_ring.h"
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/assert.h"
#include "common/share.h"

static void close_fds(const int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

int lane_ring_open(struct lane_ring *r, int fds[3])
{
	int ends[2] = {-1, -1};

	PS_ASSERT(!r->memory);
	fds[0] = fds[1] = fds[2] = -1;
	if (share_new("cnn-ps rings", sizeof(*r->memory), &fds[0]) ||
		(fds[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 ||
		pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
		goto fail;
	fds[2] = ends[0];
	r->bell = fcntl(fds[1], F_DUPFD_CLOEXEC, 0);
	r->memory = r->bell < 0 ? NULL : share_map(fds[0], sizeof(*r->memory), 1);
	if (!r->memory) {
		close_fds(&r->bell, 1);
		close(ends[1]);
		goto fail;
	}
	r->wake = ends[1];
	ring_init(&r->in, &r->memory->to_server);
	ring_init(&r->out, &r->memory->to_worker);
	return PS_OK;
fail:
	close_fds(fds, 3);
	fds[0] = fds[1] = fds[2] = -1;
	return PS_EIO;
}

void lane_ring_close(struct lane_ring *r)
{
	if (!r->memory)
		return;
	(void)munmap(r->memory, sizeof(*r->memory));
	close(r->bell);
	close(r->wake);
	r->memory = NULL;
}

static int has_received_all(const struct lane_ring *r)
{
	return atomic_load(&r->memory->to_worker.received) == r->expected;
}

int lane_ring_give(struct lane_ring *r, zmq_msg_t *frame)
{
	int sleeps, is_sent;

	if (!r->memory || !has_received_all(r))
		return 0;
	int rc = ring_write(&r->out, zmq_msg_data(frame), zmq_msg_size(frame), &sleeps);
	if (rc)
		return rc == PS_EAGAIN ? 0 : rc;
	/* if the pipe is full, or if the worker has ended, nobody needs to be woken up */
	is_sent = sleeps && write(r->wake, "", 1) == 1;
	(void)is_sent;
	return 1;
}

int lane_ring_take(struct lane_ring *r, zmq_msg_t *frame)
{
	unsigned char bytes[RING_MAX_MESSAGE];
	size_t n;

	if (!r->memory)
		return 0;
	int rc = ring_read(&r->in, bytes, &n);
	if (rc != 1)
		return rc;
	if (zmq_msg_init_size(frame, n))
		return PS_ENOMEM;
	memcpy(zmq_msg_data(frame), bytes, n);
	return 1;
}
