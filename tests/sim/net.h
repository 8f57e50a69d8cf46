/*
 * net.h - virtual time and an unreliable network for the simulator. A heap contains all future
 * events. The network delays, loses, duplicates and reorders messages; the seed determines which
 * messages. A link can be slow, or cut in one direction or in both.
 */
#ifndef TESTS_SIM_NET_H
#define TESTS_SIM_NET_H
#include "common/rng.h"
#include "proto/msg.h"

#define SIM_SERVER 0u /* node 0 is the server, and the nodes from 1 on are workers */
#define SIM_NODES  10u

enum happening {
	HAPPEN_MESSAGE,
	HAPPEN_TICK,
	HAPPEN_JOB, /* the thread pool runs a job, or reports the end of a job */
	HAPPEN_START,
	HAPPEN_COMPUTED,
	HAPPEN_HEAL, /* the connections of a worker are lost, and established again */
	HAPPEN_FAULT,
};

struct item {
	/* at_ms: virtual time of the event; order: events of equal time happen in the order in
	 * which they were added */
	uint64_t at_ms, order;
	enum happening what;
	uint32_t node, from;
	/* the numbers of the receiving and the sending process; an item whose process has ended is
	 * dropped */
	uint64_t process, from_process;
	uint32_t link;   /* the number of the connection; the server calls it `peer` */
	uint32_t number; /* FAULT, JOB: the number of the fault or job */
	struct msg *msg; /* MESSAGE: the message, in memory of the network's pool */
};

/* This struct has the time and the order of an item as one number, and the place of the item in an
 * array of items. */
struct moment_of {
	uint64_t when;
	uint32_t item;
};

/* This struct describes the links of a worker in one direction. */
struct lane {
	uint64_t cut_until_ms;
	/* the delivery time of the newest message: [0] bulk link, [1] heartbeat link */
	uint64_t last_at_ms[2];
};

struct net {
	struct rng rng;
	uint64_t now_ms, next_order;
	uint32_t delay_ms, jitter_ms; /* a message takes delay_ms + below(jitter_ms + 1) */
	uint32_t drop, twice;         /* rates of losses and duplications, per 1000 messages */
	uint32_t tear;                /* rate of torn copies, per 1000 pushes in shared memory */
	int in_order;                 /* 1: a link keeps the order of its messages, as TCP does */
	/* [0]: from the server to the worker; [1]: to the server */
	struct lane lane[SIM_NODES][2];
	/* until this time, a message with a tensor to or from the worker takes slow_ms longer */
	uint64_t slow_until_ms[SIM_NODES];
	uint32_t slow_ms[SIM_NODES];
	/* The losses, duplications and torn copies of a run are numbered from 0. Only the faults
	 * with numbers in [strikes_from, strikes_to) happen. */
	uint64_t strikes, strikes_from, strikes_to;
	/* The heap has the times of the items, and their places in `item`, because its entries move
	 * often. Entries n to n_used - 1 of the heap have the free places of `item`. The places
	 * from n_used on have never been used. */
	struct moment_of *heap;
	struct item *item;
	size_t n, n_used, room, peak; /* peak: the largest n so far */
	uint32_t current;             /* the place of the item that net_next returned last */
	struct msg **pool;
	size_t n_pool, room_pool;
	uint64_t sent, lost, doubled, cut;
};

void net_init(struct net *n);
void net_release(struct net *n);
/* Drops all items, sets the time to 0 and all fault rates to 0, and draws from `rng` from now
 * on. */
void net_reset(struct net *n, struct rng rng);
/* Adds a copy of `it` that happens at `at_ms`, and returns this copy. */
struct item *net_at(struct net *n, uint64_t at_ms, const struct item *it);
/* Adds an item that was taken out before, with the new time `at_ms`. The item keeps its order, so
 * it comes before all items with the same time that were first added after it. */
void net_later(struct net *n, uint64_t at_ms, const struct item *it);
/* Sends a copy of a message; the faults of the link apply to this copy. The slices of the copy
 * point to the values of the original. */
void net_send(
	struct net *n, uint32_t worker, int to_server, const struct item *it, const struct msg *m);
/* Takes the next item and advances the time to it. Returns NULL if there is no item. The item is
 * valid until the next call. The caller must release it->msg with net_done. */
struct item *net_next(struct net *n);
void net_done(struct net *n, struct item *it);
/* Copies the fields that a message of this type has. */
void net_copy(struct msg *to, const struct msg *m);
uint64_t net_below(struct net *n, uint64_t bound);
int net_chance(struct net *n, uint32_t per_mille);
/* Returns 1 if this message is to be lost, duplicated or torn. The function draws the random number
 * even if the limits of a shrunk case forbid the fault, so that the later random numbers stay the
 * same. */
int net_strikes(struct net *n, uint32_t per_mille);

#endif
