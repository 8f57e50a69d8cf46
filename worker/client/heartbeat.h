/*
 * heartbeat.h - the worker's heartbeats: the beat connection, and the newest BEAT, which the
 * background thread repeats while the program's thread waits for an answer without being scheduled.
 *
 * A busy machine runs a thread that has computed for long last, even when the thread only waits
 * now: 1.6 s late with fifteen more processes on two CPUs. The background thread, which never
 * computes, was 0.5 s late there.
 *
 * Invariants:
 * (1) `socket` is used only under `lock`;
 * (2) only a BEAT that the holder of the I/O lock sent on this connection is repeated, and none
 *     after heartbeat_stop.
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
/* Send this BEAT now, at clock_ms `now`. The next one is due after `period_ms`. */
void heartbeat_send(struct heartbeat *h, const struct msg *beat, uint64_t period_ms, uint64_t now);
/* Send it once more if one is due. */
void heartbeat_repeat(struct heartbeat *h, uint64_t now);
/* Repeat nothing until the next heartbeat_send. */
void heartbeat_stop(struct heartbeat *h);
/* As wire_recv, from the beat connection. */
int heartbeat_receive(struct heartbeat *h, struct frames *f) PS_MUST_CHECK;
/* Is there a message to receive? Otherwise *fd is what to poll, as libzmq's ZMQ_FD; a concurrent
 * heartbeat_repeat may consume its edge. */
int heartbeat_readable(struct heartbeat *h, int *fd) PS_MUST_CHECK;

#endif
