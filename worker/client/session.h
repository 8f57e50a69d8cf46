/*
 * session.h - the worker's side of the protocol as a pure state machine. The session decides what
 * to send, to retain and to send again. worker/client/net.c runs the session over ZeroMQ, and
 * tests/sim runs it over a simulated network.
 *
 *            start            WELCOME                    ERROR TERM|GAP|STATE , link lost, silence
 *   (new) ----------> HELLO ----------> READY --------------------------------------> HELLO
 *                       |                 |
 *                       `----- END <------'   BYE, FENCED, WRONGRUN, WRONGDATA, ..., unreachable
 *
 * Invariants:
 * (1) a seq is assigned once, to one push (asserted by add_push), and the tensor that the outbox
 *     retains for it is never replaced (asserted by outbox_retain in outbox.c);
 * (2) a push is retained until an ACK, HEARTBEAT or WELCOME of the server reports it durable
 *     (asserted by retained_push);
 * (3) after every WELCOME all retained pushes newer than its last_seq are sent again, in order
 *     (asserted by send_push), before anything else (asserted by pump). After them come a RESULT
 *     that was not sent yet, and the LEASE and the PULL that have no answer yet;
 * (4) at most push_window pushes are sent and not acknowledged, and at most replay_window pushes
 *     are retained (asserted by assert_invariants and add_push);
 * (5) no call passes an earlier time than the call before it (asserted by take_time and
 *     session_waiting_ms).
 *
 * The link keeps the order of messages. When the WELCOME that answers a HELLO arrives, no message
 * from before this HELLO is on its way any more: the server has handled it, or it is lost. A HELLO
 * and its WELCOME are therefore enough to resynchronise, and the session uses no other way.
 *
 * Pure: no socket, clock or thread; allocates nothing after session_new. Thread: the caller's.
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
	char host[WIRE_MAX_HOST + 1]; /* name of the worker's host; only for display, like `pid` */
	uint32_t pid;
	struct data_id data;
	char metrics[METRICS_TEXT]; /* canonical text of the metrics */
	const char *tensors;        /* list of tensors, as in HELLO; borrowed until session_free */
	enum encoding wire;         /* the encoding that HELLO requests */
	uint64_t seed;              /* seed of the random part of the retry intervals */
	/* the session ends with PS_EUNREACHABLE after this time without a first WELCOME */
	uint64_t connect_timeout_ms;
	/* the session ends with PS_EUNREACHABLE this time after contact was lost, or after the
	 * session_ttl_ms of the server if that is shorter */
	uint64_t disconnect_timeout_ms;
	/* first interval between unanswered HELLOs; it doubles up to 16 times its value, and varies
	 * by +-25 % */
	uint64_t retry_ms;
	/* The session resynchronises if no message arrives for this time, or if a request has no
	 * answer for this time and no byte moves in this time. */
	uint64_t silence_ms;
};

/* An effect is an instruction to the caller. After each call, and before the next one, the caller
 * must read the effects in order with session_effect. */
enum session_effect_kind {
	DO_SEND, /* send msg on the bulk link */
	/* send the retained push `seq`; msg is the header of the push without slices, and the
	 * caller has its tensor */
	DO_SEND_PUSH,
	DO_SEND_HEARTBEAT, /* send msg on the heartbeat link */
	DO_RELEASE,        /* free the bytes of the pushes up to `seq`: they are durable */
	/* a WELCOME has arrived, and session_welcome returns its content. This effect comes again
	 * each time the session has resumed after a lost connection or a restart of the server */
	NOTIFY_READY,
	/* msg.ack is the decision on push `seq`; this effect comes once for each push */
	NOTIFY_ACK,
	NOTIFY_PARAMS, /* msg.params answers the pull; its term is that of session_welcome */
	/* the pull has no answer because of `status` (PS_EAGAIN: no evaluation is running) */
	NOTIFY_NO_PARAMS,
	NOTIFY_GRANT, /* msg.grant answers the lease request */
	NOTIFY_END,   /* the session ended with `status` */
};

struct session_effect {
	enum session_effect_kind kind;
	int status;
	uint64_t seq;
	struct msg msg; /* the last member, because it is large: see struct effect in core.h */
};

struct session; /* opaque, see session.c */

/* Creates a session. `replay_max` is the maximum number of retained pushes (<= WIRE_MAX_WINDOW);
 * the server may set a lower limit. PS_ENOMEM. */
int session_new(
	struct session **out, const struct session_config *cfg, size_t replay_max) PS_MUST_CHECK;
void session_free(struct session **s);

/* Starts the clock. The link counts as down until session_link_up. */
void session_start(struct session *s, uint64_t now_ms);
/* Notes that the bulk link is connected, and sends HELLO. */
void session_link_up(struct session *s, uint64_t now_ms);
void session_link_lost(struct session *s, uint64_t now_ms); /* Notes that the bulk link is lost. */
/* Reports that bytes moved on the bulk link, in either direction, so that the session does not take
 * the slow transfer of a large message for silence. */
void session_progress(struct session *s, uint64_t now_ms);
/* Handles a decoded message from either link. The caller must keep *m until it has read the
 * effects. */
void session_message(struct session *s, const struct msg *m, uint64_t now_ms);
/* Carries out the actions that are due at now_ms. Call session_tick at least every 100 ms. `alive`
 * is 1 if the program makes progress; 0 stops the heartbeats, so that the server detects a hang.
 * The session sends twice as many heartbeats as the server requires, because a busy machine may
 * delay one. */
void session_tick(struct session *s, int alive, uint64_t now_ms);

/* Requests of the program. At most one pull and one lease may be in progress at a time. PS_EAGAIN:
 * the session is not READY, the window is full, or a request of this kind is in progress. After the
 * end of the session, a request returns the final status of the session (PS_ESTATE after
 * session_bye). */
int session_push(struct session *s, const struct msg_push *meta, uint64_t *seq,
	uint64_t now_ms) PS_MUST_CHECK;
/* Sends one message with a push and a pull of WEIGHTS_CURRENT after that push. If a new WELCOME
 * arrives before the answer, the session sends the pull again without the push. Returns PS_EAGAIN
 * also while another pull is in progress. */
int session_push_pull(struct session *s, const struct msg_push *meta, uint64_t *seq,
	uint64_t now_ms) PS_MUST_CHECK;
int session_pull(struct session *s, enum weights which, uint64_t now_ms) PS_MUST_CHECK;
int session_lease(struct session *s, uint64_t now_ms) PS_MUST_CHECK;
int session_result(struct session *s, const struct msg_result *r, uint64_t now_ms) PS_MUST_CHECK;
/* Leaves the run: sends BYE. The session ends with PS_OK when the server has answered. If no answer
 * comes in 5 s, it ends with PS_OK, or with PS_EUNREACHABLE if a push may not be durable. An
 * observer sends no BYE. */
void session_bye(struct session *s, uint64_t now_ms);

/* Returns effect number `i` of the last call, or NULL if the call had no more effects. */
const struct session_effect *session_effect(const struct session *s, size_t i);
/* Returns the time without contact, since the start or since the last message. Returns 0 if there
 * is contact. */
uint64_t session_waiting_ms(const struct session *s, uint64_t now_ms);
/* Returns the time until the session gives up. */
uint64_t session_remaining_ms(const struct session *s, uint64_t now_ms);
enum session_phase session_phase(const struct session *s);
const struct msg_welcome *session_welcome(const struct session *s); /* returns the newest WELCOME */
/* returns the newest seq that was assigned */
uint64_t session_last_seq(const struct session *s);
/* Returns the sequence number up to which all pushes are decided. */
uint64_t session_acked_seq(const struct session *s);
/* Returns the sequence number up to which all pushes are decided since the newest WELCOME. */
uint64_t session_confirmed_seq(const struct session *s);
/* Returns the sequence number up to which all pushes are durable and released. */
uint64_t session_durable_seq(const struct session *s);
int session_can_push(const struct session *s);

#endif
