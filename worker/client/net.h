/*
 * net.h - the implementation behind libcnnps: both connections to the server, the session, and the
 * program's requests.
 *
 * Two threads share the connections under the I/O lock. In a call, the program's thread takes the
 * lock and handles the sockets itself until its request is complete, so that an answer wakes only
 * the thread that waits for it. While the program computes, a background thread takes the lock ten
 * times a second. The background thread sends heartbeats, reads decisions, sends lost pushes again
 * and handles lost connections. While the program waits, the background thread only repeats
 * heartbeats (heartbeat.h). One request is in progress at a time.
 *
 * Invariants:
 * (1) only the holder of the I/O lock uses the sockets and the session; the heartbeat connection
 *     has its own lock (heartbeat.h) (assert_io_lock in net.c);
 * (2) the bytes of a push are encoded once, and all its transmissions share them
 *     (a_large_push_is_whole_again_and_the_same_when_it_is_sent_again);
 * (3) every request completes, with its answer or with the final status of the session
 *     (a_pull_outlives_its_connection, a_server_that_is_not_there_is_given_up,
 *     a_fenced_session_ends_every_call);
 * (4) the bytes retained for replay are at most replay_bytes, or belong to a single push
 *     (pushes_beyond_the_replay_memory_wait_for_the_disk).
 * PS_ASSERT checks (1) and (4) in every build.
 */
#ifndef WORKER_CLIENT_NET_H
#define WORKER_CLIENT_NET_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/wire.h"
#include "worker/client/cnnps.h"
#include "worker/client/lane.h"
#include "worker/client/session.h"

struct net_config {
	const char *server; /* borrowed until net_free */
	/* key files, which net_new reads; NULL has the same meaning as in cnnps_options */
	const char *key, *server_key;
	struct session_config session;
	uint64_t batch_timeout_ms;
	size_t replay_bytes;
	enum cnnps_lane lane;
	int (*stop)(void *arg); /* see cnnps_options */
	void *stop_arg;
	void (*report)(void *arg, const char *line); /* see cnnps_options */
	void *report_arg;
};

enum request_kind {
	REQUEST_CONNECT, /* wait for the first WELCOME */
	REQUEST_PUSH,
	REQUEST_PULL,
	REQUEST_PREFETCH, /* start a pull; the next PULL of WEIGHTS_CURRENT waits for its answer */
	REQUEST_LEASE,
	REQUEST_RESULT,
	REQUEST_FLUSH,
	REQUEST_STATUS,
	REQUEST_ADMIN,
	/* send the pictures that the server has requested (show.h), if the session is
	 * established */
	REQUEST_SHOW,
	REQUEST_CLOSE, /* flush, BYE; no request may follow */
};

/* Received weights that are not verified yet. wire_values verifies them. */
struct arrival {
	struct frames frames; /* the caller owns them if the request's status is 0 */
	struct msg_params params;
	uint64_t term;
};
/* Moves `from` to `to`, which must be empty. After the call `from` is empty. */
void arrival_move(struct arrival *to, struct arrival *from);

struct request {
	enum request_kind kind;
	int status; /* out: 0 or PS_E* */
	/* out: the reason in one line for a person if the session has ended, else "" */
	char why[512];
	/* deadline of FLUSH and CLOSE, a time of clock_ms; requests of other kinds can wait until
	 * the session ends */
	uint64_t deadline_ms;
	struct {
		enum weights which;
		struct arrival got;
	} pull;
	uint64_t pushed_us; /* out, PUSH with a pull: clock_us when the push was sent */
	union {
		struct msg_welcome welcome; /* CONNECT, out */
		struct {
			struct msg_push meta; /* has exactly one slice */
			/* a successful push takes over the tensor and leaves it empty */
			zmq_msg_t tensor;
			/* 1: after the push, the request continues as a PULL with the fields
			 * below */
			int then_pull;
		} push;
		struct {
			struct msg_grant grant;
			uint64_t term;
		} lease; /* out */
		struct msg_result result;
		int durable; /* FLUSH: wait for the server's disk, not only for the decisions */
		struct {
			char *json;
			size_t size;
			uint32_t first; /* not 0: only the workers from this number on */
		} report;               /* STATUS */
		const char *show;       /* SHOW: JSON */
		struct {
			enum admin_verb verb;
			enum wire_log_level level;
			char worker[WIRE_MAX_NAME + 1];
			uint64_t generation;
		} admin;
	};
};

struct net; /* opaque */

/* Makes the sockets and starts the background thread. PS_EUSAGE (server is not an endpoint),
 * PS_ENET, PS_ENOMEM. */
int net_new(struct net **out, const struct net_config *cfg, struct err *e) PS_MUST_CHECK;
/* Carries out `r` and blocks until it is complete. Returns r->status. */
int net_request(struct net *n, struct request *r) PS_MUST_CHECK;
/* Takes a slot of shared memory for a gradient. Returns 0 if no slot is free, so that the gradient
 * must travel over the connection. Any thread may call it. */
int net_take_slot(struct net *n, struct lane_slot *slot) PS_MUST_CHECK;
/* Reports that the program makes progress. Any thread may call it. */
void net_alive(struct net *n);
/* Returns 1 if the server has asked for the pictures of show.h since the last call. Any thread may
 * call it. */
int net_show_requested(struct net *n);
/* The parts of struct time_split. */
enum time_part { TIME_COMPUTE, TIME_WEIGHTS, TIME_PUSH, TIME_LEASE, TIME_COPY, TIME_PARTS };
/* Adds `us` to the time that the program has spent on `part`. Each HEARTBEAT reports the sums. Only
 * the program's thread may call this function. */
void net_spend(struct net *n, enum time_part part, uint64_t us);
/* Writes the counters to *s. Any thread may call it. */
void net_stats(const struct net *n, struct cnnps_stats *s);
/* Waits for the decisions on the pushes, sends BYE, joins the background thread, frees the struct
 * and sets *n to NULL; *n may be NULL. */
void net_free(struct net **n);

#endif
