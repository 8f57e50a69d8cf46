/*
 * labels.h - where each worker runs: host and pid, as its HELLO says, and the address that its
 * connection comes from. For people: in the log, STATUS and /metrics.
 *
 * A label is no identity. It decides nothing, is not on disk, and the core does not have it: a
 * worker that has not said HELLO since the server's start has none.
 *
 * A HELLO is noted by its connection. The WELCOME that answers it gives the label to a worker id
 * and incarnation, or, where that waits for the disk, the slot that it got. Thread: the loop's.
 */
#ifndef SERVER_NET_LABELS_H
#define SERVER_NET_LABELS_H
#include <stdint.h>
#include "common/err.h"
#include "proto/msg.h"

#define LABEL_ADDRESS 64  /* an IPv6 address with its zone, and NUL */
#define LABEL_FENCED  384 /* a line with two hosts and a name, each whole, and NUL */

struct label {
	char host[WIRE_MAX_HOST + 1];
	uint32_t pid; /* 0: not known, and so `host` "" */
	char address[LABEL_ADDRESS];
};

struct labels; /* opaque, see labels.c */

/* NULL: no memory. */
struct labels *labels_new(uint32_t max_workers) PS_MUST_CHECK;
void labels_free(struct labels **l);
/* A HELLO came on connection `peer`, from `address`. */
void labels_hello(struct labels *l, uint32_t peer, const struct msg_hello *m, const char *address);
/* `m` leaves for `peer`: a WELCOME ties the newest HELLO of that connection to its stamp. */
void labels_note(struct labels *l, uint32_t peer, const struct msg *m);
/* The HELLO of connection `peer` got worker id `worker`, which is not on disk yet: no WELCOME. */
void labels_join(struct labels *l, uint32_t peer, uint32_t worker, uint32_t incarnation);
/* The label of worker id `worker`; all empty where there is none. `l` may be NULL. */
const struct label *labels_of(const struct labels *l, uint32_t worker);
/* Worker id `worker` was given to a newer process: what an older one, of `incarnation`, is to be
 * told in one line on its connection `peer`. `name`: its --name, or "". Logged once per process. */
void labels_fenced(struct labels *l, uint32_t peer, uint32_t worker, uint32_t incarnation,
	const char *name, char text[LABEL_FENCED]);

#endif
