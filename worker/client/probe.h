/*
 * probe.h - why nothing at an address answers as a server: resolves the name, connects, and reads
 * what is there, in a thread of its own, because a look-up may take many seconds.
 *
 * libzmq reports that it tries again, but neither the error nor what answered.
 * Thread: any, one at a time; the probing thread touches nothing of the caller's.
 */
#ifndef WORKER_CLIENT_PROBE_H
#define WORKER_CLIENT_PROBE_H
#include "common/err.h"

enum probe_result {
	PROBE_NONE,    /* no result yet, or none is possible */
	PROBE_LOOKUP,  /* the name is being looked up */
	PROBE_NAME,    /* it does not resolve: `detail` */
	PROBE_REFUSED, /* connection refused */
	PROBE_FAILED,  /* no connection for another reason: `detail` */
	PROBE_TIMEOUT, /* packets get no answer */
	PROBE_SILENT,  /* accepts the connection and sends nothing */
	PROBE_CLOSED,  /* accepts the connection and closes it */
	PROBE_HTTP,    /* an HTTP server */
	PROBE_FOREIGN, /* another service: `detail` is how its answer begins */
	PROBE_ZMTP,    /* a ZeroMQ socket */
};

struct probe_report {
	enum probe_result result;
	char detail[64]; /* printable */
};

struct probe; /* opaque */

/* `endpoint`: tcp://HOST:PORT; of others no result comes. PS_ENOMEM. */
int probe_new(struct probe **out, const char *endpoint) PS_MUST_CHECK;
/* Probe in the background, unless that is under way. */
void probe_start(struct probe *p);
/* The newest result. */
void probe_read(struct probe *p, struct probe_report *r);
/* What was found does not count any more. */
void probe_forget(struct probe *p);
/* Does not wait: a probe under way ends by itself. Frees and nulls; NULL is fine. */
void probe_free(struct probe **p);

#endif
