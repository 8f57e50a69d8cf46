/*
 * lane_ring.h - the server's side of the rings of a lane (proto/ring.h): messages of a worker on
 * this host that pass through no socket.
 *
 * The worker wakes the server up with an eventfd, and the server wakes the worker up with a pipe.
 * The two processes share the flags of an eventfd, and a hostile worker could make the server's
 * calls on it block. So the server only watches the eventfd (lane.c) and never reads it. It writes
 * to its own end of the pipe, whose flags the worker cannot change.
 *
 * Promises:
 * (1) the server writes to the ring only if the worker has received all messages that the server
 *     has sent over TCP, so that no message overtakes them
 *     (a_ring_waits_for_the_messages_of_the_connection).
 *
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_NET_LANE_RING_H
#define SERVER_NET_LANE_RING_H
#include <stdint.h>
#include <zmq.h>
#include "common/err.h"
#include "proto/lane.h"

struct lane_ring {
	struct lane_rings *memory; /* shared with the worker; NULL: the lane has no rings */
	struct ring in, out;
	int bell; /* the eventfd to which the worker writes */
	int wake; /* the end of the pipe to which the server writes */
	/* the value of `received` when the worker has received all messages over TCP */
	uint64_t expected;
	/* the messages up to this position were sent before the newest message over TCP */
	uint32_t end;
};

/* Makes the rings, and sets the three descriptors that the worker gets (LANE_RING_FDS). The caller
 * must close them. `expected` does not change. Error: PS_EIO. */
int lane_ring_open(struct lane_ring *r, int fds[3]) PS_MUST_CHECK;
/* Closes the rings. The call has no effect if there are none. */
void lane_ring_close(struct lane_ring *r);
/* Sends the frame through the ring, if the worker has received all messages over TCP and the ring
 * has room. Returns 1 if it has sent the frame, and 0 if the caller must send it over TCP. Returns
 * PS_EPROTO if the worker has damaged the ring. */
int lane_ring_give(struct lane_ring *r, zmq_msg_t *frame) PS_MUST_CHECK;
/* Takes the oldest message of the worker. Returns 1, or 0 if there is none. Returns PS_EPROTO if
 * the worker has damaged the ring. Other error: PS_ENOMEM. */
int lane_ring_take(struct lane_ring *r, zmq_msg_t *frame) PS_MUST_CHECK;

#endif
