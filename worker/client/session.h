/*
 * session.h - the worker's side of the protocol as a pure state machine: what to say, what to keep,
 * what to say again. worker/client/net.c drives it over ZeroMQ, tests/sim over a seeded network.
 *
 *            start            WELCOME                    ERROR TERM|GAP|STATE , link lost, silence
 *   (new) ----------> HELLO ----------> READY --------------------------------------> HELLO
 *                       |                 |
 *                       `----- END <------'   BYE, FENCED, WRONGRUN, WRONGDATA, ..., unreachable
 *
 * Invariants:
 * (1) a seq is given once, to one push, and its tensor bytes never change;
 * (2) a push is kept until an ACK, BEAT or WELCOME of the server calls it durable;
 * (3) after every WELCOME all kept pushes newer than its last_seq are sent again, in order, before
 *     anything else; then a RESULT that was not sent yet, the unanswered LEASE and PULL;
 * (4) at most push_window pushes are sent and unacknowledged, at most replay_window kept. Saying
 *     HELLO on a link in order behind what was sent before makes its WELCOME proof that all of
 *     that was either decided or lost: so HELLO is the one way to resynchronise.
 *
 * Pure: no socket, clock, thread; allocates nothing after birth. Thread: the caller's.
 */
#ifndef WORKER_CLIENT_SESSION_H
#define WORKER_CLIENT_SESSION_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/rng.h"
#include "proto/msg.h"

enum session_phase { PHASE_HELLO, PHASE_READY, PHASE_END };

struct session_config {
	enum role role;
	char name[WIRE_MAX_NAME + 1], device[WIRE_MAX_NAME + 1];
	char host[WIRE_MAX_HOST + 1]; /* labels for people, and so is pid */
	uint32_t pid;
	struct data_id data;
	uint64_t seed;     /* of the retry jitter */
	uint64_t first_ms; /* END(PS_EUNREACHABLE) when no WELCOME came so long after the start */
	uint64_t patience_ms; /* ... or so long after contact was lost */
	uint64_t retry_ms;   /* HELLO again after so long without an answer, doubled up to 16 times,
				+-25 % */
	uint64_t silence_ms; /* an unanswered request resynchronises after so long without any
				message, and without a byte that moves */
};

/* What to do, in order; read with session_effect after each call, before the next. */
enum session_effect_kind {
	DO_SEND,      /* msg on the bulk link */
	DO_SEND_PUSH, /* the kept push `seq`: msg has its header (no slices), tensor frames are the
			 driver's */
	DO_SEND_BEAT, /* msg on the beat link */
	DO_RELEASE,   /* pushes up to `seq` are durable: their bytes may go */
	TELL_READY, /* WELCOME: session_welcome is valid; said again after each resynchronisation */
	TELL_ACK,   /* msg->ack is the decision on push `seq`: told once per push */
	TELL_PARAMS,    /* msg->params answers the pull; they are of the term of
			   session_welcome */
	TELL_NO_PARAMS, /* the pull will not be answered: `status` says why (PS_EAGAIN: nothing is
			   under evaluation) */
	TELL_GRANT,     /* msg->grant answers the lease request */
	TELL_END,       /* over: `status` says why */
};

struct session_effect {
	enum session_effect_kind kind;
	struct msg msg;
	uint64_t seq;
	int status;
};

struct session; /* opaque */

/* `replay_max`: most pushes ever kept (<= WIRE_MAX_WINDOW); the server may allow fewer. PS_ENOMEM.
 */
int session_new(
	struct session **out, const struct session_config *cfg, size_t replay_max) PS_MUST_CHECK;
void session_free(struct session **s);

/* Time starts; the link counts as down until session_link_up. */
void session_start(struct session *s, uint64_t now_ms);
void session_link_up(struct session *s, uint64_t now_ms);   /* bulk link connected: says HELLO */
void session_link_lost(struct session *s, uint64_t now_ms); /* bulk link broke */
/* Bytes have moved on the bulk link, in either direction: an answer may still be long in coming. */
void session_moved(struct session *s, uint64_t now_ms);
/* A decoded message from either link; *m is borrowed for the call and until the effects are read.
 */
void session_message(struct session *s, const struct msg *m, uint64_t now_ms);
/* At least every 100 ms. `alive`: the trainer makes progress; 0 stops the beats, so that a hang is
 * seen. Beats go out twice as often as the server asks: one that is late on a busy machine is none
 * that is missed. */
void session_tick(struct session *s, int alive, uint64_t now_ms);

/* Requests of the program. PS_EAGAIN: not READY, or the window is full, or one is under way
 * already; the session's END status once it has ended (PS_ESTATE after a BYE of our own). One pull
 * and one lease may be under way. */
int session_push(struct session *s, const struct msg_push *meta, uint64_t *seq,
	uint64_t now_ms) PS_MUST_CHECK;
/* Both, in one request: WEIGHTS_CURRENT with this push in them. After a WELCOME the pull goes
 * alone. PS_EAGAIN also when a pull is under way. */
int session_push_pull(struct session *s, const struct msg_push *meta, uint64_t *seq,
	uint64_t now_ms) PS_MUST_CHECK;
int session_pull(struct session *s, enum weights which, uint64_t now_ms) PS_MUST_CHECK;
int session_lease(struct session *s, uint64_t now_ms) PS_MUST_CHECK;
int session_result(struct session *s, const struct msg_result *r, uint64_t now_ms) PS_MUST_CHECK;
void session_bye(struct session *s, uint64_t now_ms); /* say BYE and END with PS_OK */

const struct session_effect *session_effect(
	const struct session *s, size_t i); /* NULL past the end */
/* For how long it waits for its server: since the start, or since the last message; 0: it has it.
 */
uint64_t session_alone_ms(const struct session *s, uint64_t now_ms);
/* ... and how long it will go on. */
uint64_t session_left_ms(const struct session *s, uint64_t now_ms);
enum session_phase session_phase(const struct session *s);
const struct msg_welcome *session_welcome(const struct session *s); /* of the newest WELCOME */
uint64_t session_last_seq(const struct session *s);                 /* newest seq given */
uint64_t session_acked_seq(const struct session *s);                /* all up to here are decided */
uint64_t session_durable_seq(const struct session *s); /* all up to here are released */
int session_can_push(const struct session *s);

#endif
