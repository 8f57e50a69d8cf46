/*
 * transfers.h - bytes that move on the connections of workers that owe a delivery, as the kernel
 * counts them (TCP_INFO): a push that arrives, weights that leave. The core's clocks stand still
 * meanwhile (core/pace.h).
 *
 * A worker's connection is known by the descriptor that its newest LEASE came on, and is
 * asked about only while it owes something for longer than TRANSFERS_POLL_MS. A descriptor that has
 * another peer address by then belongs to another connection and counts as no progress.
 * Thread: the loop's.
 */
#ifndef SERVER_NET_TRANSFERS_H
#define SERVER_NET_TRANSFERS_H
#include <stdint.h>
#include "proto/wire.h"
#include "server/core/core.h"

#define TRANSFERS_POLL_MS 500

struct transfer {
	uint32_t peer;
	int fd;
	char address[64];
	uint64_t bytes; /* that have moved, when it was asked last; 0: not yet */
};

struct transfers {
	struct transfer *slot; /* one for each worker slot; owned */
	uint64_t polled_ms;
};

/* `ev` is for the core. */
typedef void transfers_report_fn(void *arg, const struct event *ev);

void transfers_init(struct transfers *t, const struct core *c);
void transfers_release(struct transfers *t);
/* A message of `peer` came in `f`, and the core has taken it. */
void transfers_note(struct transfers *t, const struct core *c, uint32_t peer, const struct msg *m,
	struct frames *f);
/* Tell the core of what has moved since the last time. */
void transfers_poll(struct transfers *t, const struct core *c, uint64_t now_ms,
	transfers_report_fn *report, void *arg);

#endif
