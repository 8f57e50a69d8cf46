/*
 * counters.h - what the worker counts: its pushes, the decisions on them, its connections, and the
 * time that the program spends on each part of its work. cnnps_stats reports the counters, and each
 * HEARTBEAT reports the times. The times include the part that is going on: a program that has
 * waited for ten minutes reports ten minutes of waiting, although the wait has not ended.
 *
 * Thread: the holder of the I/O lock (net.h) writes the counters, and the program's thread writes
 * the times. Any thread may read both.
 */
#ifndef WORKER_CLIENT_COUNTERS_H
#define WORKER_CLIENT_COUNTERS_H
#include <stdatomic.h>
#include <stdint.h>
#include <uv.h>
#include "common/err.h"
#include "proto/msg.h"
#include "worker/client/cnnps.h"

/* The parts of struct time_split. */
enum time_part { TIME_COMPUTE, TIME_WEIGHTS, TIME_PUSH, TIME_LEASE, TIME_COPY, TIME_PARTS };

/* The counters of cnnps_stats. */
struct counters {
	atomic_uint_least64_t pushed, acked, rejected, superseded, durable, last_version,
		reconnects, replayed;
	uv_mutex_t time_lock; /* guards all members below */
	/* times of all parts; the present part counts only up to `since_us` */
	uint64_t time_us[TIME_PARTS];
	enum time_part part; /* the present part; TIME_PARTS: there is none */
	uint64_t since_us;   /* time (clock_us) at which the present part began */
};

/* Sets all counters to zero. Until counters_spend_on is called, the time counts as no part.
 * PS_ENOMEM. */
int counters_init(struct counters *c) PS_MUST_CHECK;
void counters_release(struct counters *c);

/* Notes that the server has weights of this version. */
void counters_version(struct counters *c, uint64_t version);
/* Counts the decision on a push. */
void counters_ack(struct counters *c, const struct msg_ack *a);
/* From now on, the time counts as `part`. */
void counters_spend_on(struct counters *c, enum time_part part);
/* Returns the times for a HEARTBEAT. */
struct time_split counters_time(struct counters *c);
/* Writes the counters to *s. */
void counters_stats(struct counters *c, struct cnnps_stats *s);

#endif
