/* heartbeat.c - see heartbeat.h. */
#include "worker/client/heartbeat.h"

int pulse_init(struct pulse *p, void *socket)
{
	p->socket = socket;
	(void)zmq_msg_init(&p->said);
	return uv_mutex_init(&p->lock) ? PS_ENOMEM : PS_OK;
}

void pulse_release(struct pulse *p)
{
	(void)zmq_msg_close(&p->said);
	uv_mutex_destroy(&p->lock);
}

/* With the lock. One that cannot go is not worth keeping: the next says more. */
static void send_copy(struct pulse *p, uint64_t now)
{
	struct frames f;

	frames_init(&f);
	(void)zmq_msg_init(&f.frame[0]);
	(void)zmq_msg_copy(&f.frame[0], &p->said);
	f.n = 1;
	p->said_ms = now;
	if (wire_send(p->socket, 0, &f))
		frames_release(&f);
}

void pulse_say(struct pulse *p, const struct msg *beat, uint64_t every_ms, uint64_t now)
{
	zmq_msg_t header;

	if (wire_encode_header(beat, &header))
		return;
	uv_mutex_lock(&p->lock);
	(void)zmq_msg_move(&p->said, &header);
	(void)zmq_msg_close(&header);
	p->every_ms = every_ms;
	send_copy(p, now);
	uv_mutex_unlock(&p->lock);
}

void pulse_repeat(struct pulse *p, uint64_t now)
{
	uv_mutex_lock(&p->lock);
	if (zmq_msg_size(&p->said) && now - p->said_ms >= p->every_ms)
		send_copy(p, now);
	uv_mutex_unlock(&p->lock);
}

void pulse_forget(struct pulse *p)
{
	uv_mutex_lock(&p->lock);
	(void)zmq_msg_close(&p->said);
	(void)zmq_msg_init(&p->said);
	uv_mutex_unlock(&p->lock);
}

int pulse_receive(struct pulse *p, struct frames *f)
{
	uv_mutex_lock(&p->lock);
	int got = wire_recv(p->socket, NULL, f);
	uv_mutex_unlock(&p->lock);
	return got;
}

int pulse_has(struct pulse *p, int *fd)
{
	int events = 0;
	size_t size = sizeof events, fd_size = sizeof *fd;

	*fd = -1;
	uv_mutex_lock(&p->lock);
	(void)zmq_getsockopt(p->socket, ZMQ_EVENTS, &events, &size);
	(void)zmq_getsockopt(p->socket, ZMQ_FD, fd, &fd_size);
	uv_mutex_unlock(&p->lock);
	return (events & ZMQ_POLLIN) != 0;
}
