/*
 * probe.h - finds out why no cnn-ps answers at an address: resolves the name, connects, and reads
 * the first bytes, in its own thread, because a name lookup may take many seconds.
 *
 * libzmq reports only that it retries, neither the error nor what answered.
 * Thread: any, one at a time; the probing thread accesses only the struct probe.
 */
#ifndef WORKER_CLIENT_PROBE_H
#define WORKER_CLIENT_PROBE_H
#include "common/err.h"

enum probe_result {
	PROBE_NONE,    /* no result yet, or not a TCP endpoint */
	PROBE_LOOKUP,  /* the name lookup is running */
	PROBE_NAME,    /* the name does not resolve: `detail` */
	PROBE_REFUSED, /* connection refused */
	PROBE_FAILED,  /* no connection for another reason: `detail` */
	PROBE_TIMEOUT, /* packets get no answer */
	PROBE_SILENT,  /* accepts the connection and sends nothing */
	PROBE_CLOSED,  /* accepts the connection and closes it */
	PROBE_HTTP,    /* an HTTP server */
	PROBE_FOREIGN, /* another service: `detail` is the start of its answer */
	PROBE_ZMTP,    /* a ZeroMQ socket */
};

struct probe_report {
	enum probe_result result;
	char detail[64]; /* printable */
};

struct probe; /* opaque */

/* `endpoint`: tcp://HOST:PORT; any other is never probed. PS_ENOMEM. */
int probe_new(struct probe **out, const char *endpoint) PS_MUST_CHECK;
/* Start a probe in the background unless one is running. */
void probe_start(struct probe *p);
/* The newest result. */
void probe_read(struct probe *p, struct probe_report *r);
/* Discard the result. */
void probe_forget(struct probe *p);
/* Does not wait: a running probe ends by itself. Frees and nulls; NULL is fine. */
void probe_free(struct probe **p);

#endif
