/*
 * net.h - what stands behind libcnnps: both connections to the server, the protocol state, and the
 * program's orders.
 *
 * Two threads take turns on them, and a baton (a mutex) says whose turn it is. In a call the
 * program works the sockets itself until its order is done, so that an answer wakes the thread that
 * waits for it and no other. While the program computes, a keeper looks after them ten times a
 * second: beats, decisions, replays, a lost connection. While the program waits, the keeper sees to
 * it that beats are not missed (heartbeat.h). One order is under way at a time.
 *
 * Invariants:
 * (1) only the baton's holder touches sockets and session, but for the beat connection:
 *     heartbeat.h;
 * (2) the bytes of a push are encoded once and shared by every sending of it;
 * (3) every order ends: done, or with the status the session ended with;
 * (4) the bytes kept for replay stay under replay_bytes, or are one push.
 */
#ifndef WORKER_CLIENT_NET_H
#define WORKER_CLIENT_NET_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/wire.h"
#include "worker/client/cnnps.h"
#include "worker/client/session.h"

struct net_config {
	const char *server;           /* borrowed until net_free */
	const char *key, *server_key; /* files, read by net_new; NULL: see cnnps_options */
	struct session_config session;
	uint64_t hang_ms;
	size_t replay_bytes;
	int (*stop)(void *arg); /* NULL, or asked ten times a second by the baton's holder */
	void *stop_arg;
	void (*report)(void *arg, const char *line); /* see cnnps_options */
	void *report_arg;
};

enum order_kind {
	ORDER_CONNECT, /* wait for the first WELCOME */
	ORDER_PUSH,
	ORDER_PULL,
	ORDER_PREFETCH, /* start a pull; the next one of WEIGHTS_CURRENT waits for it */
	ORDER_LEASE,
	ORDER_RESULT,
	ORDER_FLUSH,
	ORDER_STATUS,
	ORDER_ADMIN,
	ORDER_CLOSE, /* flush, BYE; nothing may be ordered after it */
};

/* Weights that came, as they came: wire_values looks them through. */
struct arrival {
	struct frames frames; /* yours when the order's status is 0 */
	struct msg_params params;
	uint64_t term;
};
/* `to` is empty, and `from` is then. */
void arrival_move(struct arrival *to, struct arrival *from);

struct order {
	enum order_kind kind;
	int status;           /* out: 0 or PS_E* */
	char why[512];        /* out: one line for a person when the session has ended, else "" */
	uint64_t deadline_ms; /* FLUSH, CLOSE: clock_ms; others wait as long as the server lives */
	struct {
		enum weights which;
		struct arrival got;
	} pull;
	union {
		struct msg_welcome welcome; /* CONNECT, out */
		struct {
			struct msg_push meta; /* with its one slice, checksum filled */
			zmq_msg_t tensor;     /* taken over and left empty once it is made */
			int then_pull;        /* 1: made, the order becomes the PULL below */
		} push;
		struct {
			struct msg_grant grant;
			uint64_t term;
		} lease; /* out */
		struct msg_result result;
		int durable; /* FLUSH: not only decided but on the server's disk */
		struct {
			char *json;
			size_t size;
		} report; /* STATUS */
		struct {
			enum admin_verb verb;
			enum wire_log_level level;
			uint64_t generation;
		} admin;
	};
};

struct net; /* opaque */

/* Make the sockets and start the keeper. PS_EUSAGE (server is no endpoint), PS_ENET, PS_ENOMEM. */
int net_new(struct net **out, const struct net_config *cfg, struct err *e) PS_MUST_CHECK;
/* Carry out `o`, waiting; returns o->status. */
int net_order(struct net *n, struct order *o) PS_MUST_CHECK;
/* Any thread: the program is busy, not hanging. */
void net_alive(struct net *n);
/* Any thread. */
void net_stats(const struct net *n, struct cnnps_stats *s);
/* Flush decisions, say BYE, join the keeper; frees and nulls. NULL is fine. */
void net_free(struct net **n);

#endif
