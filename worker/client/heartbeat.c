/* heartbeat.c - see heartbeat.h. */
#include "worker/client/heartbeat.h"
#include "common/assert.h"
#include "worker/client/link.h"

int heartbeat_init(struct heartbeat *h, void *socket)
{
	h->socket = socket;
	h->locked = 0;
	(void)zmq_msg_init(&h->message);
	return uv_mutex_init(&h->lock) ? PS_ENOMEM : PS_OK;
}

void heartbeat_release(struct heartbeat *h)
{
	(void)zmq_msg_close(&h->message);
	uv_mutex_destroy(&h->lock);
}

static void lock_heartbeat(struct heartbeat *h)
{
	uv_mutex_lock(&h->lock);
	PS_ASSERT(!h->locked); /* invariant (1) */
	h->locked = 1;
}

static void unlock_heartbeat(struct heartbeat *h)
{
	PS_ASSERT(h->locked); /* invariant (1) */
	h->locked = 0;
	uv_mutex_unlock(&h->lock);
}

/* Sends a copy of the HEARTBEAT. The caller holds the lock. If the socket has no room, the function
 * drops the HEARTBEAT, because the next HEARTBEAT makes it obsolete. */
static void send_copy(struct heartbeat *h, uint64_t now)
{
	struct frames f;

	/* invariants (1) and (2): the message is a HEARTBEAT that was sent before */
	PS_ASSERT(h->locked && zmq_msg_size(&h->message));
	frames_init(&f);
	(void)zmq_msg_init(&f.frame[0]);
	(void)zmq_msg_copy(&f.frame[0], &h->message);
	f.n = 1;
	h->sent_ms = now;
	if (wire_send(h->socket, 0, &f))
		frames_release(&f);
}

void heartbeat_send(
	struct heartbeat *h, const struct msg *heartbeat, uint64_t period_ms, uint64_t now)
{
	zmq_msg_t header;

	if (wire_encode_header(heartbeat, &header))
		return;
	lock_heartbeat(h);
	(void)zmq_msg_move(&h->message, &header);
	(void)zmq_msg_close(&header);
	h->period_ms = period_ms;
	send_copy(h, now);
	unlock_heartbeat(h);
}

void heartbeat_repeat(struct heartbeat *h, uint64_t now)
{
	lock_heartbeat(h);
	if (zmq_msg_size(&h->message) && now - h->sent_ms >= h->period_ms)
		send_copy(h, now);
	unlock_heartbeat(h);
}

void heartbeat_stop(struct heartbeat *h)
{
	lock_heartbeat(h);
	(void)zmq_msg_close(&h->message);
	(void)zmq_msg_init(&h->message);
	unlock_heartbeat(h);
}

int heartbeat_receive(struct heartbeat *h, struct frames *f)
{
	lock_heartbeat(h);
	int got = wire_recv(h->socket, NULL, f);
	unlock_heartbeat(h);
	return got;
}

int heartbeat_readable(struct heartbeat *h, int *fd)
{
	int events = 0;
	size_t size = sizeof(events), fd_size = sizeof(*fd);

	*fd = -1;
	lock_heartbeat(h);
	(void)zmq_getsockopt(h->socket, ZMQ_EVENTS, &events, &size);
	(void)zmq_getsockopt(h->socket, ZMQ_FD, fd, &fd_size);
	unlock_heartbeat(h);
	return (events & ZMQ_POLLIN) != 0;
}

void heartbeat_redial(struct heartbeat *h, struct link *l)
{
	lock_heartbeat(h);
	link_redial_heartbeat(l);
	unlock_heartbeat(h);
}

void heartbeat_cut(struct heartbeat *h, struct link *l)
{
	lock_heartbeat(h);
	link_cut_heartbeat(l);
	unlock_heartbeat(h);
}

void heartbeat_dial(struct heartbeat *h, struct link *l)
{
	lock_heartbeat(h);
	link_dial_heartbeat(l);
	unlock_heartbeat(h);
}
