/*
 * transfers.h - reports progress of the connections whose workers owe a delivery: bytes of a push
 * that arrive and of weights that leave, as the kernel counts them (TCP_INFO). The core stops the
 * clocks of such a worker meanwhile (core/pace.h).
 *
 * The connection of a worker is the descriptor of its newest LEASE. It is polled only while the
 * worker owes a delivery for longer than TRANSFERS_POLL_MS. If the descriptor has another peer
 * address by then, it belongs to another connection and counts as no progress.
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
	uint64_t bytes; /* moved until the newest poll; 0: none yet */
};

struct transfers {
	struct transfer *slot; /* one for each worker slot; owned */
	uint64_t polled_ms;
};

/* `ev` is for the core. */
typedef void transfers_report_fn(void *arg, const struct event *ev);

void transfers_init(struct transfers *t, const struct core *c);
void transfers_release(struct transfers *t);
/* The core has handled the LEASE `m` of `peer`, which arrived in `f`. */
void transfers_note(struct transfers *t, const struct core *c, uint32_t peer,
	const struct msg_lease *m, struct frames *f);
/* Report the bytes that moved since the last call. */
void transfers_poll(struct transfers *t, const struct core *c, uint64_t now_ms,
	transfers_report_fn *report, void *arg);

#endif
