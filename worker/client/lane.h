/*
 * lane.h - the worker's side of a shared-memory lane (proto/lane.h).
 *
 * The program computes a gradient in a slot of the push memory, and the PUSH names this slot. A
 * PARAMS names a buffer of the server, which this process has mapped read-only. The lane makes this
 * buffer the tensor frame of the PARAMS without a copy. The rest of the library handles slots and
 * buffers as ZeroMQ messages: when any thread closes the last reference, the lane takes the slot or
 * buffer back.
 *
 * Invariants:
 * (1) a slot has one owner: the lane, the program, or the message of its push. A push keeps its
 *     slot until the push is durable, so the bytes of a push do not change while the server may
 *     read them (asserted by lane_take and return_slot; a_slot_has_one_owner);
 * (2) the memory stays mapped, and the connection to the server open, until the last slot and the
 *     last buffer are back (asserted by drop_lane_ref;
 *     weights_are_read_in_place_until_they_are_closed).
 *
 * Thread: the holder of the I/O lock (net.h), unless a function says otherwise.
 */
#ifndef WORKER_CLIENT_LANE_H
#define WORKER_CLIENT_LANE_H
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>
#include "common/err.h"
#include "proto/msg.h"
#include "proto/wire.h"

struct lane;       /* opaque, see lane.c */
struct slot_owner; /* opaque, see lane.c */

/* Functions of a device that can use memory of the host directly. `pin` returns 1 if the device can
 * use this memory from now on, until `unpin`. If `reads_only` is 1, this process cannot write the
 * memory. Any thread calls `unpin`. */
struct lane_device {
	int (*pin)(void *memory, size_t bytes, int reads_only);
	void (*unpin)(void *memory);
	/* Memory of the device, as in struct backend_memory; `share` may be NULL. */
	int (*share)(size_t *bytes, void **memory, int *fd);
	void (*unshare)(void *memory, size_t bytes);
	int (*is_shared)(const void *values);
	int (*fetch)(void *to, const void *from, size_t bytes);
};

/* Returns 1 if `values` are in memory of the device that the CPU cannot read. `device` may be
 * NULL. */
static inline int lane_on_device(const struct lane_device *device, const void *values)
{
	return device && device->share && device->is_shared(values);
}

/* Returns 1 if the values are in memory of the device that the server reads with another GPU. */
int lane_is_apart(const struct lane *l, const void *values);

/* Replaces a message in memory of the device by a copy in memory of the host. PS_ENOMEM,
 * PS_EDEVICE. */
int lane_fetch(const struct lane_device *device, zmq_msg_t *message) PS_MUST_CHECK;

/* A slot that the program owns. Any thread may use the slot. */
struct lane_slot {
	struct lane *lane; /* the lane that has the slot, or NULL */
	struct slot_owner *owner;
	/* n_params values: zeros or an earlier gradient, possibly in memory of the device */
	float *values;
};

/* Connects to the Unix socket of WELCOME `w` and presents its secret, without waiting for the
 * answer. PS_EUNREACHABLE, PS_EUSAGE, PS_ENOMEM. */
int lane_open(struct lane **out, const struct msg_welcome *w, struct err *e) PS_MUST_CHECK;
/* Drops the owner's reference to the lane and sets *l to NULL; *l may be NULL. */
void lane_close(struct lane **l);
/* Checks whether the server has answered. PS_OK: the lane is open. PS_EAGAIN: no answer yet. Any
 * other status: the lane cannot be used. */
int lane_poll(struct lane *l, struct err *e) PS_MUST_CHECK;
/* Returns 1 if lane_poll has returned PS_OK. */
int lane_is_open(const struct lane *l);
/* Returns 1 if the server has closed the lane, or has ended. */
int lane_is_lost(const struct lane *l);
/* Returns a descriptor that becomes readable when the server's answer has arrived. */
int lane_fd(const struct lane *l);
/* The functions lane_ring_* handle the rings of messages of an open lane (proto/ring.h). They have
 * no effect on a lane without rings. */

/* Returns 1 if the lane has rings. `l` may be NULL. */
int lane_has_ring(const struct lane *l);
/* Sends the message with this header through the ring. Returns 0 if the caller must send the
 * message over the connection. */
int lane_ring_send(struct lane *l, zmq_msg_t *header);
/* Receives a message from the ring, like wire_recv. Returns PS_EPROTO if the server has damaged the
 * ring; the caller must then drop the lane. */
int lane_ring_receive(struct lane *l, struct frames *f) PS_MUST_CHECK;
/* Shows the server what the worker has received over its bulk connection (struct lane_rings). */
void lane_ring_received(struct lane *l, uint64_t received);
/* Returns 1 if the ring is empty. The server then wakes the worker up with a byte in the pipe
 * lane_ring_fd, and the caller must call lane_ring_wake after its wait. */
int lane_ring_may_sleep(struct lane *l) PS_MUST_CHECK;
/* Returns the pipe, or -1 if the lane has no rings. */
int lane_ring_fd(const struct lane *l);
/* Ends a wait, and empties the pipe if `is_readable` is 1. Returns 0 if the server has closed the
 * pipe. */
int lane_ring_wake(struct lane *l, int is_readable);

/* Tells the server, in the shared memory, that a WELCOME with this lane_ticket has arrived. No
 * PARAMS with this ticket or an older one can arrive after this WELCOME, so the server may use the
 * buffers of these PARAMS again. */
void lane_resynchronised(struct lane *l, uint64_t ticket);

/* Lets the device use the slot or the buffer of weights at `values`. Returns 1 if the device can
 * use it, and 0 if it cannot or if `values` is neither a slot nor a buffer of this lane. */
int lane_pin(struct lane *l, const void *values, const struct lane_device *device);
/* Offers memory of the device to the server of an open lane, so that the server exchanges gradients
 * and weights with the device directly. Returns 0 if the device has no such memory. */
int lane_offer(struct lane *l, const struct lane_device *device);
/* Reads the answer to the offer. PS_OK: the server uses the memory. PS_EAGAIN: there is no answer
 * yet, or no offer. Any other status: the server does not use it, for the reason in *e. */
int lane_poll_offer(struct lane *l, struct err *e) PS_MUST_CHECK;
/* Takes a free slot; if `on_device` is 1, one in memory of the device. Returns 0 if no such slot is
 * free. */
int lane_take(struct lane *l, struct lane_slot *slot, int on_device) PS_MUST_CHECK;
/* Puts an unsent slot back into the lane, and sets slot->lane to NULL. Any thread may call this
 * function. */
void lane_return(struct lane_slot *slot);
/* Makes `message` of the first `count` values of the slot, without a copy, and sets slot->lane to
 * NULL. PS_ENOMEM: the caller keeps the slot. Any thread may call this function. */
int lane_send(struct lane_slot *slot, size_t count, zmq_msg_t *message) PS_MUST_CHECK;
/* Returns the number for the field lane_slot of a PUSH whose values are `values`, from a message of
 * lane_send. Returns 0 if `values` is in no slot of `l`, or if `l` is NULL. */
uint32_t lane_slot_of(const struct lane *l, const void *values);
/* Appends the weights that `ref` names to `f`, the frames of the PARAMS that contained `ref`.
 * PS_EPROTO: the PARAMS already has a tensor frame, or a number in `ref` is out of range.
 * PS_ENOMEM. */
int lane_append(struct lane *l, const struct lane_ref *ref, struct frames *f) PS_MUST_CHECK;

#endif
