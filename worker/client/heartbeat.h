/*
 * heartbeat.h - the worker's heartbeats: the heartbeat connection and the newest HEARTBEAT. While
 * the program's thread waits for an answer, the background thread repeats this HEARTBEAT, because
 * the program's thread may get the CPU too late: if more threads compute than there are CPUs, the
 * scheduler prefers other threads to a thread that has computed for a long time, even if this
 * thread now only waits. In a measurement on two CPUs with fifteen other processes that computed,
 * the program's thread ran 1.6 s late. The background thread, which never computes, ran only 0.5 s
 * late.
 *
 * Invariants:
 * (1) one thread at a time has `lock`, and `socket` is used only under it (asserted by
 *     lock_heartbeat, unlock_heartbeat and send_copy; test_cnnps.c under make tsan);
 * (2) heartbeat_repeat repeats only a HEARTBEAT that the holder of the I/O lock has sent on this
 *     connection, and repeats nothing after heartbeat_stop (asserted by send_copy;
 *     heartbeats_go_on_when_a_waiting_program_does_not_get_to_run).
 *
 * Thread: any. A call takes the lock at its start and releases it at its end.
 */
#ifndef WORKER_CLIENT_HEARTBEAT_H
#define WORKER_CLIENT_HEARTBEAT_H
#include <stdint.h>
#include <uv.h>
#include "common/err.h"
#include "proto/wire.h"

struct link;

struct heartbeat {
	uv_mutex_t lock;
	int locked;        /* 1 if a thread has the lock */
	void *socket;      /* the socket of the heartbeat connection, borrowed */
	zmq_msg_t message; /* the newest HEARTBEAT; empty if there is none to repeat */
	uint64_t sent_ms;  /* time (clock_ms) at which `message` was last sent */
	uint64_t period_ms;
};

int heartbeat_init(struct heartbeat *h, void *socket) PS_MUST_CHECK;
void heartbeat_release(struct heartbeat *h);
/* Sends this HEARTBEAT now, at clock_ms `now`. The next heartbeat is due after `period_ms`. */
void heartbeat_send(
	struct heartbeat *h, const struct msg *heartbeat, uint64_t period_ms, uint64_t now);
/* Sends the newest HEARTBEAT again if a heartbeat is due. */
void heartbeat_repeat(struct heartbeat *h, uint64_t now);
/* Stops the repeats of the HEARTBEAT until the next heartbeat_send. */
void heartbeat_stop(struct heartbeat *h);
/* Receives a message from the heartbeat connection, like wire_recv. */
int heartbeat_receive(struct heartbeat *h, struct frames *f) PS_MUST_CHECK;
/* Connects `socket`, the heartbeat socket of `l`, again if libzmq has given up its connection. */
void heartbeat_redial(struct heartbeat *h, struct link *l);
/* These functions do the same as link_cut and link_dial, for `socket`. */
void heartbeat_cut(struct heartbeat *h, struct link *l);
void heartbeat_dial(struct heartbeat *h, struct link *l);
/* Returns 1 if there is a message to receive. If there is no message, sets *fd to the socket's
 * ZMQ_FD, which the caller can poll. The ZMQ_FD is edge-triggered: a concurrent heartbeat_repeat
 * may consume the edge. */
int heartbeat_readable(struct heartbeat *h, int *fd) PS_MUST_CHECK;

#endif
