/*
 * net.h - the implementation behind libcnnps: both connections to the server, the session, and the
 * program's requests.
 *
 * Two threads share the connections under the I/O lock. In a call, the program's thread takes the
 * lock and handles the sockets itself until its request is complete, so that an answer wakes only
 * the thread that waits for it. While the program computes, a background thread takes the lock at
 * least about ten times a second. The background thread sends heartbeats, reads decisions, sends
 * lost pushes again and handles lost connections. While the program waits, the background thread
 * only repeats heartbeats (heartbeat.h). One request is in progress at a time.
 *
 * Invariants:
 * (1) only the holder of the I/O lock uses the sockets and the session; the heartbeat connection
 *     has its own lock (heartbeat.h) (asserted by assert_io_lock);
 * (2) the tensor that the outbox retains for a push is never replaced (asserted by outbox_retain in
 *     outbox.c), and all transmissions of the push share its bytes
 *     (a_large_push_is_whole_again_and_the_same_when_it_is_sent_again);
 * (3) one request at a time is under way (asserted by requests_begin in requests.c);
 * (4) the bytes retained for replay are at most replay_bytes, or belong to a single push (asserted
 *     by try_push; pushes_beyond_the_replay_memory_wait_for_the_disk).
 *
 * Promises:
 * (1) every request completes, with its answer or with the final status of the session
 *     (a_pull_outlives_its_connection, a_server_that_is_not_there_is_given_up,
 *     a_fenced_session_ends_every_call).
 */
#ifndef WORKER_CLIENT_NET_H
#define WORKER_CLIENT_NET_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/wire.h"
#include "worker/client/cnnps.h"
#include "worker/client/counters.h"
#include "worker/client/lane.h"
#include "worker/client/requests.h"
#include "worker/client/session.h"

struct net_config {
	const char *server; /* borrowed until net_free */
	/* key files, which net_new reads; NULL has the same meaning as in cnnps_options */
	const char *key, *server_key;
	struct session_config session;
	uint64_t batch_timeout_ms;
	size_t replay_bytes;
	enum cnnps_lane lane;
	uint32_t connections;   /* as in cnnps_options; at least 1 */
	int (*stop)(void *arg); /* as in cnnps_options */
	void *stop_arg;
	void (*report)(void *arg, const char *line); /* as in cnnps_options */
	void *report_arg;
};

struct net; /* opaque, see net.c */

/* Makes the sockets and starts the background thread. PS_EUSAGE (server is not an endpoint),
 * PS_ENET, PS_ENOMEM. */
int net_new(struct net **out, const struct net_config *cfg, struct err *e) PS_MUST_CHECK;
/* Carries out `r` and blocks until it is complete. Returns r->status. */
int net_request(struct net *n, struct request *r) PS_MUST_CHECK;
/* Takes a slot of shared memory for a gradient; if `on_device` is 1, a slot in memory of the
 * device. Returns 0 if no slot is free, so that the gradient must travel over the connection. Any
 * thread may call this function. */
int net_take_slot(struct net *n, struct lane_slot *slot, int on_device) PS_MUST_CHECK;
/* Sets the device that net_pin allows to use the memory of lanes. */
void net_use_device(struct net *n, const struct lane_device *device);
/* Does the same as lane_pin, with the present lane and the device of net_use_device. Also returns 0
 * if there is no lane or no device. */
int net_pin(struct net *n, const void *values);
/* Does the same as lane_is_apart, with the present lane. Also returns 0 if there is no lane. */
int net_is_apart(struct net *n, const void *values);
/* Reports that the program makes progress. Any thread may call this function. */
void net_alive(struct net *n);
/* Notes weights with a wrong checksum (garbage.h). Any thread may call this function. */
void net_note_garbage(struct net *n, const char *why);
/* Returns 1 if the server has asked for the pictures of show.h since the last call. Any thread may
 * call this function. */
int net_show_requested(struct net *n);
/* From now on, the program's time counts as `part`. Each HEARTBEAT reports the time of each part.
 * Only the program's thread may call this function. */
void net_spend_on(struct net *n, enum time_part part);
/* Writes the counters to *s. Any thread may call this function. */
void net_stats(struct net *n, struct cnnps_stats *s);
/* Waits for the decisions on the pushes, sends BYE, joins the background thread, frees the struct
 * and sets *n to NULL; *n may be NULL. */
void net_free(struct net **n);

#endif
