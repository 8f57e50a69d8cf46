/*
 * transfers.h - reports connections that move bytes while their worker owes a delivery. The bytes
 * belong to a push that arrives or to weights that leave. The module reads the kernel's counts of
 * these bytes (TCP_INFO). While bytes move, the core stops the clock of the worker's deadline
 * (core/pace.h).
 *
 * The module watches the connection on which the worker's newest LEASE arrived. The module polls
 * the descriptor of a worker's connection only if the worker has owed a delivery for longer than
 * TRANSFERS_POLL_MS. Only the loop's thread may call these functions.
 */
#ifndef SERVER_NET_TRANSFERS_H
#define SERVER_NET_TRANSFERS_H
#include <stdint.h>
#include "proto/wire.h"
#include "server/core/core.h"
#include "server/net/net.h"
#include "server/net/watched.h"

#define TRANSFERS_POLL_MS 500

struct transfer {
	uint32_t peer;
	struct watched connection;
};

struct transfers {
	/* array with an entry for each worker slot; transfers_release frees it */
	struct transfer *slot;
	uint64_t polled_ms;
};

/* A function of this type gets an EVENT_PROGRESS and passes it to the core. */
typedef void transfers_report_fn(void *arg, const struct event *ev);

void transfers_init(struct transfers *t, const struct core *c);
void transfers_release(struct transfers *t);
/* Notes the connection `peer` of a LEASE in `f`, which the core has taken from `worker`
 * (core_requester). */
void transfers_note(struct transfers *t, uint32_t worker, uint32_t peer, struct frames *f);
/* Polls the connections, side connections included, of workers that have owed a delivery for longer
 * than TRANSFERS_POLL_MS, and reports those that have moved bytes since their last poll. Does
 * nothing if the last call that polled was less than 100 ms ago, so the caller can call this
 * function often. */
void transfers_poll(struct transfers *t, const struct core *c, struct router *r, uint64_t now_ms,
	transfers_report_fn *report, void *arg);

#endif
