/*
 * clients.h - data about clients that the shell of the server stores, besides the core's sessions:
 * the rate limit of HELLOs, the host and process of each worker, and the observers that recently
 * requested the status.
 *
 * Only the loop's thread may call these functions. The caller passes the time.
 */
#ifndef SERVER_NET_CLIENTS_H
#define SERVER_NET_CLIENTS_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/msg.h"

/* ---- admission ------------------------------------------------------------------------------ */

/*
 * Limits the rate of HELLOs, because after a restart of the server all workers send HELLO at once,
 * and a worker that crashes and restarts in a loop sends HELLO again and again. A token bucket has
 * room for ADMISSION_BURST tokens and receives ADMISSION_BURST new ones per second. The HELLO of a
 * worker takes one token; the HELLO of an observer takes none. If the bucket is empty, the server
 * does not answer the HELLO, and the sender repeats it later (proto/WIRE.md, "Session").
 */
/* the bucket has room for this number of tokens, and gets this number per second */
#define ADMISSION_BURST 50

/* The token bucket for HELLOs. A struct of zeros is a full bucket. */
struct admission {
	/* time in us until the bucket is full: 1000000 / ADMISSION_BURST us for each missing
	 * token */
	uint64_t spent_us;
	uint64_t now_ms; /* time of the last call */
	uint64_t turned_away;
};

/* Takes a token for a HELLO. Returns 0 if the bucket is empty; the server must then not answer it.
 * `now_ms` never decreases. */
int admission_ask(struct admission *a, uint64_t now_ms);

/* ---- labels --------------------------------------------------------------------------------- */

/*
 * The label of a worker consists of the host and the pid in its HELLO and the address of its
 * connection. The log, the status and /metrics show the label. A label is only for people: it
 * identifies no worker, and no decision depends on it. Before a worker has sent HELLO to this
 * process of the server, its label has only the host, which comes from the history of the run
 * (history_labels).
 *
 * labels_hello stores the label of each HELLO with its connection. When the core has accepted the
 * HELLO (EFFECT_HELLO), labels_join assigns the label to a worker id and incarnation.
 */
#define LABEL_ADDRESS 64  /* size of a buffer for an IPv6 address with its zone */
#define LABEL_FENCED  384 /* size of a buffer for a line with two hosts and a name */

struct label {
	char host[WIRE_MAX_HOST + 1];
	uint32_t pid; /* process id; 0: not known, as before the first HELLO */
	char address[LABEL_ADDRESS];
	/* the encoding that the worker's HELLO requests; NONE: the worker has sent no HELLO */
	enum encoding wire;
};

struct labels; /* opaque, see clients.c */
struct line_budget;

/* Makes an empty table of labels. `lines`, which is borrowed, limits the lines of labels_fenced.
 * Returns NULL if there is no memory. */
struct labels *labels_new(uint32_t max_workers, struct line_budget *lines) PS_MUST_CHECK;
void labels_free(struct labels **l);
/* Stores the label of a HELLO that arrived on connection `peer` from `address`. */
void labels_hello(struct labels *l, uint32_t peer, const struct msg_hello *m, const char *address);
/* Assigns the label of the newest HELLO of connection `peer` to this worker id. */
void labels_join(struct labels *l, uint32_t peer, uint32_t worker, uint32_t incarnation);
/* Sets the host of worker id `worker` to `host`, which an earlier process of the server has written
 * to the history. Ignores a text that a HELLO could not contain. */
void labels_restore(struct labels *l, uint32_t worker, const char *host);
/* Returns the label of worker id `worker`. The fields of the label are empty if the worker has
 * none. `l` may be NULL. */
const struct label *labels_of(const struct labels *l, uint32_t worker);
/* Writes to `text` the message that refuses a fenced process. The worker id `worker` of this
 * process now belongs to a newer process. The fenced process has `incarnation` and connection
 * `peer`. `name` is the worker's --name, or "" if the worker has none. At the first call for a
 * process, the function also logs that the process is fenced. */
void labels_fenced(struct labels *l, uint32_t peer, uint32_t worker, uint32_t incarnation,
	const char *name, char text[LABEL_FENCED]);

/* ---- observers ------------------------------------------------------------------------------ */

/*
 * The server remembers which observers have recently requested the status. At the end of the run
 * these observers receive the last status and BYE, so that an observer can distinguish the end of
 * the run from a lost server. A worker that requests the status gets no entry in this table. Only
 * the core sends BYE to a worker, because the worker may retain pushes that the next term needs.
 */
#define MAX_OBSERVERS 64
/* an observer receives BYE if it has requested the status within this time before the end of the
 * run */
#define OBSERVER_RECENT_MS 10000

struct observers {
	struct {
		uint32_t peer;     /* the observer's connection; 0 if this entry is free */
		int requested;     /* 1 if the observer has requested the status since its HELLO */
		uint32_t max_text; /* the `max_text` of the newest request */
		uint64_t request_ms;
	} entry[MAX_OBSERVERS];
};

/* Adds `peer`, which has sent HELLO as an observer. If all entries are in use, `peer` replaces the
 * observer with the oldest request. */
void observers_add(struct observers *o, uint32_t peer, uint64_t now_ms);
/* Notes the time at which `peer` has requested the status, and the `max_text` of the request.
 * Returns 0 if `peer` is not an observer. */
int observers_request(struct observers *o, uint32_t peer, uint32_t max_text, uint64_t now_ms);
/* Removes `peer`, whose connection is gone. */
void observers_drop(struct observers *o, uint32_t peer);
/* Returns the peer of entry `i` (< MAX_OBSERVERS) if the peer has requested the status in the last
 * OBSERVER_RECENT_MS; otherwise 0. Sets *max_text to the `max_text` of the peer's newest
 * request. */
uint32_t observers_recent(const struct observers *o, size_t i, uint64_t now_ms, uint32_t *max_text);

#endif
