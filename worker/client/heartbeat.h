/*
 * heartbeat.h - the worker's heartbeats: the beat connection and the newest BEAT. The background
 * thread repeats this BEAT while the program's thread waits for an answer and does not get the CPU.
 *
 * On a busy machine the scheduler runs a thread last after a long computation, even if the thread
 * only waits now. Measured with fifteen other busy processes on two CPUs: such a thread ran 1.6 s
 * late; the background thread, which never computes, ran 0.5 s late.
 *
 * Invariants:
 * (1) `socket` is used only under `lock` (test_cnnps.c under make tsan);
 * (2) heartbeat_repeat repeats only a BEAT that the holder of the I/O lock sent on this connection,
 *     and none after heartbeat_stop (beats_go_on_when_a_waiting_program_does_not_get_to_run).
 * PS_ASSERT checks (2) at each BEAT, in every build.
 * Thread: any; each call holds the lock for its own duration only.
 */
#ifndef WORKER_CLIENT_HEARTBEAT_H
#define WORKER_CLIENT_HEARTBEAT_H
#include <stdint.h>
#include <uv.h>
#include "common/err.h"
#include "proto/wire.h"

struct heartbeat {
	uv_mutex_t lock;
	void *socket;      /* borrowed */
	zmq_msg_t message; /* the newest BEAT; empty: none to repeat */
	uint64_t sent_ms;  /* clock_ms */
	uint64_t period_ms;
};

int heartbeat_init(struct heartbeat *h, void *socket) PS_MUST_CHECK;
void heartbeat_release(struct heartbeat *h);
/* Sends this BEAT now, at clock_ms `now`. The next one is due after `period_ms`. */
void heartbeat_send(struct heartbeat *h, const struct msg *beat, uint64_t period_ms, uint64_t now);
/* Sends the newest BEAT again if one is due. */
void heartbeat_repeat(struct heartbeat *h, uint64_t now);
/* Stops the repeats of the BEAT until the next heartbeat_send. */
void heartbeat_stop(struct heartbeat *h);
/* Like wire_recv, from the beat connection. */
int heartbeat_receive(struct heartbeat *h, struct frames *f) PS_MUST_CHECK;
/* Returns 1 if there is a message to receive. Otherwise *fd becomes the socket's ZMQ_FD for a poll.
 * This descriptor is edge-triggered: a concurrent heartbeat_repeat may consume the edge. */
int heartbeat_readable(struct heartbeat *h, int *fd) PS_MUST_CHECK;

#endif
