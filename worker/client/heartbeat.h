/*
 * heartbeat.h - the worker's heart: its beat connection, and the newest BEAT, which is said again
 * while the thread that waits for an answer does not get to run.
 *
 * A thread that has computed for long is the last that a busy machine runs, also when it only waits
 * now: by 1.6 s with fifteen more processes on two CPUs. The keeper, which never computes, was late
 * by 0.5 s there.
 *
 * Invariants:
 * (1) `socket` is used under `lock` only;
 * (2) what is said again was said before by the session's holder, in this connection's life:
 *     nothing after pulse_forget.
 * Thread: any; the lock is held for one call.
 */
#ifndef WORKER_CLIENT_HEARTBEAT_H
#define WORKER_CLIENT_HEARTBEAT_H
#include <stdint.h>
#include <uv.h>
#include "common/err.h"
#include "proto/wire.h"

struct pulse {
	uv_mutex_t lock;
	void *socket;     /* borrowed */
	zmq_msg_t said;   /* the newest BEAT; empty: there is none to be said again */
	uint64_t said_ms; /* clock_ms */
	uint64_t every_ms;
};

int pulse_init(struct pulse *p, void *socket) PS_MUST_CHECK;
void pulse_release(struct pulse *p);
/* Say this BEAT now, at clock_ms `now`; one is due every `every_ms`. */
void pulse_say(struct pulse *p, const struct msg *beat, uint64_t every_ms, uint64_t now);
/* Say it once more, if one is due. */
void pulse_repeat(struct pulse *p, uint64_t now);
void pulse_forget(struct pulse *p);
/* As wire_recv from the beat connection. */
int pulse_receive(struct pulse *p, struct frames *f) PS_MUST_CHECK;
/* Is there something to receive? Else the fd to wait for, as libzmq's ZMQ_FD; a pulse_repeat
 * meanwhile may eat its edge. */
int pulse_has(struct pulse *p, int *fd) PS_MUST_CHECK;

#endif
