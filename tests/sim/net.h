/*
 * net.h - virtual time and a hostile network for the simulator: a heap of what will happen, and
 * messages that are delayed, lost, doubled and overtaken as one seed says; links that are cut in
 * one direction or both, or slow.
 */
#ifndef TESTS_SIM_NET_H
#define TESTS_SIM_NET_H
#include "common/rng.h"
#include "proto/msg.h"

#define SIM_SERVER 0u /* node 0 is the server, 1.. are workers */
#define SIM_NODES  9u

enum happening {
	HAPPEN_MESSAGE,
	HAPPEN_TICK,
	HAPPEN_JOB, /* the pool begins, and later ends, what it was given */
	HAPPEN_START,
	HAPPEN_COMPUTED,
	HAPPEN_HEAL, /* a cut link is made anew */
	HAPPEN_FAULT,
};

struct item {
	uint64_t at_ms, order; /* equal times happen in the order they were asked for */
	enum happening what;
	uint32_t node, from;
	uint64_t life, from_life; /* an item for a life that is over is dropped */
	uint32_t link;            /* connection number: what a server calls peer */
	uint32_t number;          /* FAULT, JOB: which */
	struct msg *msg;          /* MESSAGE; from the pool */
};

/* One direction of a worker's links. */
struct lane {
	uint64_t cut_until_ms;
	uint64_t last_at_ms[2]; /* delivery of the newest message: bulk, beat */
};

struct net {
	struct rng rng;
	uint64_t now_ms, next_order;
	uint32_t delay_ms, jitter_ms;      /* a message takes delay + below(jitter + 1) */
	uint32_t drop, twice;              /* per 1000 messages */
	int in_order;                      /* a link keeps its order, as TCP does */
	struct lane lane[SIM_NODES][2];    /* per worker; 1: to the server */
	uint64_t slow_until_ms[SIM_NODES]; /* its tensors take slow_ms each */
	uint32_t slow_ms[SIM_NODES];
	/* losses and doublings are numbered from 0; only those of [strikes_from, strikes_to) are
	 * done */
	uint64_t strikes, strikes_from, strikes_to;
	struct item *heap;
	size_t n, room, peak; /* peak: most at once, so far */
	struct msg **pool;
	size_t n_pool, room_pool;
	uint64_t sent, lost, doubled, cut;
};

void net_init(struct net *n);
void net_release(struct net *n);
/* Forget everything and begin again at time 0 with `rng`, without faults. */
void net_reset(struct net *n, struct rng rng);
void net_at(struct net *n, uint64_t at_ms, struct item it);
/* What was to happen now happens then, before what was asked for after it. */
void net_later(struct net *n, uint64_t at_ms, struct item it);
/* Send with the faults of the link. Slices keep their data pointers. */
void net_send(struct net *n, uint32_t worker, int to_server, struct item it, const struct msg *m);
/* The next thing to happen; 0: nothing. The caller gives back it->msg with net_done. */
int net_next(struct net *n, struct item *it);
void net_done(struct net *n, struct item *it);
uint64_t net_below(struct net *n, uint64_t bound);
int net_chance(struct net *n, uint32_t per_mille);

#endif
