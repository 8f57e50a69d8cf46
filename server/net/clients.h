/*
 * clients.h - what the shell knows of its clients, beside the sessions of the core: how many may say
 * HELLO now, where each worker runs, and which observers asked for the status lately.
 *
 * Thread: the loop's. Time is an argument.
 */
#ifndef SERVER_NET_CLIENTS_H
#define SERVER_NET_CLIENTS_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/msg.h"

/* ---- admission ------------------------------------------------------------------------------ */

/*
 * The rate of HELLOs. After a restart all workers say HELLO at once, and a worker whose supervisor
 * restarts it again and again says nothing else. A bucket holds ADMISSION_BURST tokens and is
 * refilled at that rate per second. A worker's HELLO takes one; an observer's takes none. A HELLO
 * without a token gets no answer, and its sender repeats it later (proto/WIRE.md, "Session").
 */
#define ADMISSION_BURST 50 /* HELLOs at once, and HELLOs per second */

/* All zero is a full bucket. */
struct admission {
	uint64_t spent_us; /* time that the admitted HELLOs are worth, not refilled yet */
	uint64_t now_ms;   /* of the last call */
	uint64_t turned_away;
};

/* May a HELLO be admitted now? `now_ms` never decreases. */
int admission_ask(struct admission *a, uint64_t now_ms);

/* ---- labels --------------------------------------------------------------------------------- */

/*
 * The label of a worker: host and pid from its HELLO, and the address of its connection. It is shown
 * in the log, the status and /metrics. It is no identity, decides nothing and is not on disk: a
 * worker that has not said HELLO since the start of the server has no label.
 *
 * A HELLO is noted with its connection. The WELCOME ties its label to a worker id and incarnation;
 * while WELCOME waits for the disk, the slot does (labels_join).
 */
#define LABEL_ADDRESS 64  /* an IPv6 address with its zone, and NUL */
#define LABEL_FENCED  384 /* a line with two hosts and a name, and NUL */

struct label {
	char host[WIRE_MAX_HOST + 1];
	uint32_t pid; /* 0: not known, and `host` is "" */
	char address[LABEL_ADDRESS];
};

struct labels; /* opaque, see clients.c */

/* NULL: no memory. */
struct labels *labels_new(uint32_t max_workers) PS_MUST_CHECK;
void labels_free(struct labels **l);
/* A HELLO arrived on connection `peer`, from `address`. */
void labels_hello(struct labels *l, uint32_t peer, const struct msg_hello *m, const char *address);
/* Tie the newest HELLO of connection `peer` to this worker id: its WELCOME leaves, or waits for the
 * disk. */
void labels_join(struct labels *l, uint32_t peer, uint32_t worker, uint32_t incarnation);
/* The label of worker id `worker`; all empty if there is none. `l` may be NULL. */
const struct label *labels_of(const struct labels *l, uint32_t worker);
/* A newer process has worker id `worker`: the text of the refusal for an older process of
 * `incarnation` on connection `peer`. `name`: its --name, or "". Logs once for each process. */
void labels_fenced(struct labels *l, uint32_t peer, uint32_t worker, uint32_t incarnation,
	const char *name, char text[LABEL_FENCED]);

/* ---- observers ------------------------------------------------------------------------------ */

/*
 * Observers that asked for the status lately. At the end of the run they receive the last status and
 * BYE, so that an observer can tell the end from a lost server. A worker is no observer, whatever it
 * asks: only the core may close its session, because it may retain pushes that the next term needs.
 */
#define MAX_OBSERVERS      64
#define OBSERVER_RECENT_MS 10000 /* an observer that asked within this time receives BYE */

struct observers {
	struct {
		uint32_t peer; /* 0: free */
		int asked;     /* for the status, after its HELLO */
		uint64_t asked_ms;
	} entry[MAX_OBSERVERS];
};

/* `peer` said HELLO as an observer. It replaces the one that asked longest ago if all are in use. */
void observers_add(struct observers *o, uint32_t peer, uint64_t now_ms);
/* `peer` asked for the status. 0: it is no observer. */
int observers_asked(struct observers *o, uint32_t peer, uint64_t now_ms);
/* The connection of `peer` is gone. */
void observers_drop(struct observers *o, uint32_t peer);
/* The i-th observer, i < MAX_OBSERVERS, if it asked lately; else 0. */
uint32_t observers_recent(const struct observers *o, size_t i, uint64_t now_ms);

#endif
