/*
 * net_impl.h - what net.c, request.c and effect.c share: the state behind net.h. Included by these
 * alone.
 */
#ifndef WORKER_CLIENT_NET_IMPL_H
#define WORKER_CLIENT_NET_IMPL_H
#include <stdatomic.h>
#include <uv.h>
#include "common/clock.h"
#include "worker/client/contact.h"
#include "worker/client/link.h"
#include "worker/client/net.h"
#include "worker/client/outbox.h"
#include "worker/client/heartbeat.h"

/* A pull of the current weights that was started before it was ordered. */
enum ahead {
	AHEAD_NONE,
	AHEAD_ASKED, /* its PARAMS have not come */
	AHEAD_HERE,  /* they wait in `fetched` */
};

/* Written by the baton's holder, read by any thread. */
struct counters {
	atomic_uint_least64_t pushed, acked, rejected, durable, last_version, reconnects, replayed;
};

struct net {
	struct net_config cfg;
	struct counters count;
	atomic_uint_least64_t active_ms; /* the program last called, or got something */
	uv_thread_t keeper;
	uv_mutex_t rest; /* the keeper's, between two looks */
	uv_cond_t stop_keeper;
	int closing; /* under `rest`: the keeper is to end */
	struct pulse pulse;

	uv_mutex_t baton; /* whoever holds it may touch what follows */
	struct link link;
	struct wire *wire;
	struct frames *in; /* the message being handled */
	struct session *session;
	struct awake awake; /* the session's time */
	struct outbox out;
	struct order *order; /* under way, or NULL */
	int asked;           /* its request is with the session or on its way */
	uint64_t asked_ms;
	enum ahead ahead;
	struct arrival fetched;
	uint64_t tick_ms;  /* when the next tick is due */
	uint64_t moved;    /* bytes of the bulk connection, at the newest tick */
	uint64_t stop_ms;  /* the program was told to stop then; 0: it was not */
	uint64_t base_seq; /* of the first WELCOME: last_seq ... */
	uint64_t n_params; /* ... and size of the model */
	int welcomed, ended, end_status;
	uint64_t links;     /* times the bulk connection came up ... */
	uint64_t not_taken; /* ... and was hung up on before it had */
	int up;             /* the bulk connection stands ... */
	int answered;       /* ... and cnn-ps has said something on it */
	uint64_t heard_ms;  /* the newest of that; before it, when the connection came up */
	struct contact contact;
	uint64_t asked_who_ms; /* STATUS was sent instead of a WELCOME that does not come */
	uint64_t redial_ms;    /* look at link_redial then */
	int keyed;             /* the connection is encrypted, with these keys */
	char own_key[KEY_SHORT + 1], server_key[KEY_SHORT + 1];
	struct err server_error; /* the newest ERROR */
	char *last_status;       /* the server's, if it came unasked: as it ended; owned */
	char why[512];
};

/* request.c: the order under way is done, if there is one. */
void net_reply(struct net *n, int status);
/* request.c: it, if it is of that kind. */
struct order *net_under_way(struct net *n, enum order_kind kind);
/* request.c: look at the order under way: it may be possible now, or done. */
void net_try_order(struct net *n, uint64_t now_ms);
/* net.c: what contact.h is to know. */
struct contact_state net_contact(const struct net *n, uint64_t now_ms);
/* effect.c: the session is over, because `why`; nothing happens when it is already. */
void net_end(struct net *n, int status, const char *why);
/* effect.c: after a call into the session: carry out its effects ... */
void net_run_effects(struct net *n);
/* effect.c: ... then net_try_order. */
void net_settle(struct net *n, uint64_t now_ms);
/* effect.c: the answer to a STATUS or ADMIN order. */
void net_answer(struct net *n, const struct msg *m);
/* effect.c: the server will not do what an ADMIN order asked, or something else went wrong. */
void net_refused(struct net *n, const struct msg_error *e);

#endif
