/* frames.c - sends and receives whole messages on a ZeroMQ socket. */
#include <errno.h>
#include <string.h>
#include "proto/wire.h"

#define PEER_ID_BYTES 5 /* libzmq's own routing id: a zero byte, then 32 bits */

void frames_init(struct frames *f)
{
	f->n = f->n_chunks = 0;
}

void frames_move(struct frames *to, struct frames *from)
{
	for (to->n = 0; to->n < from->n; to->n++) {
		(void)zmq_msg_init(&to->frame[to->n]);
		(void)zmq_msg_move(&to->frame[to->n], &from->frame[to->n]);
	}
	to->n_chunks = from->n_chunks;
	memcpy(to->chunk, from->chunk, sizeof(to->chunk));
	frames_release(from);
}

void frames_release(struct frames *f)
{
	while (f->n > 0)
		(void)zmq_msg_close(&f->frame[--f->n]);
	f->n_chunks = 0;
}

/* Receive one part into *part. 1: received. 0: none. `flags` is ZMQ_DONTWAIT, or 0 to wait for the
 * socket's receive timeout or a signal. */
static int receive_part(void *socket, int flags, zmq_msg_t *part)
{
	int rc;

	(void)zmq_msg_init(part);
	do
		rc = zmq_msg_recv(part, socket, flags);
	while (rc < 0 && errno == EINTR && flags);
	if (rc >= 0)
		return 1;
	return errno == EAGAIN || errno == EINTR ? 0 : PS_ENET;
}

/* The number in libzmq's own routing id; 0: the client chose the id. */
static uint32_t peer_number(zmq_msg_t *identity)
{
	const unsigned char *id = zmq_msg_data(identity);

	if (zmq_msg_size(identity) != PEER_ID_BYTES || id[0] != 0)
		return 0;
	return (uint32_t)id[1] << 24 | (uint32_t)id[2] << 16 | (uint32_t)id[3] << 8 | id[4];
}

/* Discard the remaining parts of a message. `more` is the flag of its newest part. */
static int drop_rest(void *socket, int more)
{
	while (more) {
		zmq_msg_t part;
		int rc = receive_part(socket, ZMQ_DONTWAIT, &part);
		more = rc == 1 && zmq_msg_more(&part);
		(void)zmq_msg_close(&part);
		if (rc != 1)
			return PS_ENET;
	}
	return PS_EPROTO;
}

/* Receive the identity frame. 1: *peer is set. 0: no message. */
static int receive_identity(void *socket, uint32_t *peer)
{
	zmq_msg_t identity;
	int rc = receive_part(socket, ZMQ_DONTWAIT, &identity);
	int more = 0;

	*peer = 0;
	if (rc == 1) {
		*peer = peer_number(&identity);
		more = zmq_msg_more(&identity);
	}
	(void)zmq_msg_close(&identity);
	if (rc == 1 && (*peer == 0 || !more))
		return drop_rest(socket, more);
	return rc;
}

/* Receive all parts after the identity frame. `flags` apply to the first part. */
static int receive_frames(void *socket, int flags, struct frames *f)
{
	int more;

	do {
		zmq_msg_t *part = &f->frame[f->n];
		int rc = receive_part(socket, f->n ? ZMQ_DONTWAIT : flags, part);
		if (rc != 1) {
			(void)zmq_msg_close(part);
			frames_release(f);
			return rc;
		}
		f->n++;
		more = zmq_msg_more(part);
	} while (more && f->n < 1 + WIRE_MAX_SLICES);
	if (more || zmq_msg_size(&f->frame[0]) > WIRE_MAX_HEADER) {
		frames_release(f);
		return drop_rest(socket, more);
	}
	return 1;
}

int wire_recv(void *socket, uint32_t *peer, struct frames *f)
{
	frames_init(f);
	if (peer) {
		int rc = receive_identity(socket, peer);
		if (rc != 1)
			return rc;
	}
	return receive_frames(socket, ZMQ_DONTWAIT, f);
}

int wire_recv_within(void *socket, int ms, struct frames *f)
{
	frames_init(f);
	if (zmq_setsockopt(socket, ZMQ_RCVTIMEO, &ms, sizeof(ms)))
		return PS_ENET;
	return receive_frames(socket, 0, f);
}

/* Send one part. 0, PS_EAGAIN, PS_EUNREACHABLE or PS_ENET. Only after 0 libzmq owns the part. */
static int send_part(void *socket, zmq_msg_t *part, int more)
{
	int flags = ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0);
	int rc;

	do
		rc = zmq_msg_send(part, socket, flags);
	while (rc < 0 && errno == EINTR);
	if (rc >= 0)
		return 0;
	return errno == EAGAIN ? PS_EAGAIN : errno == EHOSTUNREACH ? PS_EUNREACHABLE : PS_ENET;
}

static int send_identity(void *socket, uint32_t peer)
{
	unsigned char id[PEER_ID_BYTES] = {0, (unsigned char)(peer >> 24),
		(unsigned char)(peer >> 16), (unsigned char)(peer >> 8), (unsigned char)peer};
	zmq_msg_t part;

	if (zmq_msg_init_size(&part, sizeof(id)))
		return PS_ENOMEM;
	memcpy(zmq_msg_data(&part), id, sizeof(id));
	int rc = send_part(socket, &part, 1);
	if (rc)
		(void)zmq_msg_close(&part);
	return rc;
}

/*
 * Only the first part can be refused. A later part fails if the connection breaks during the
 * message; the message is then lost, like any message in the network. The loop still passes the
 * remaining parts to the socket, which would otherwise take the beginning of the next message for
 * them.
 */
int wire_send(void *socket, uint32_t peer, struct frames *f)
{
	int rc = peer ? send_identity(socket, peer) : 0;

	for (size_t i = 0; i < f->n && !rc; i++) {
		int sent = send_part(socket, &f->frame[i], i + 1 < f->n);
		if (sent == PS_ENET || (sent && i == 0 && !peer))
			rc = sent;
	}
	if (!rc)
		frames_release(f);
	return rc;
}
