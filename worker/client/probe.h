/*
 * probe.h - determines why no cnn-ps answers at an address. The probe resolves the name, connects,
 * and reads the first bytes. The probe runs in its own thread, because a name lookup may take many
 * seconds.
 *
 * The probe is needed because libzmq reports that it connects again, but neither why the connection
 * failed nor what the peer has answered. Thread: any, one at a time; the probing thread accesses
 * only the struct probe.
 */
#ifndef WORKER_CLIENT_PROBE_H
#define WORKER_CLIENT_PROBE_H
#include "common/err.h"

enum probe_result {
	PROBE_NONE,    /* no result yet, or not a TCP endpoint */
	PROBE_LOOKUP,  /* the name lookup is running */
	PROBE_NAME,    /* the name does not resolve; `detail` has the reason */
	PROBE_REFUSED, /* connection refused */
	PROBE_FAILED,  /* no connection for another reason, which is in `detail` */
	PROBE_TIMEOUT, /* the server's host did not answer the packets */
	PROBE_SILENT,  /* the peer accepts the connection and sends nothing */
	PROBE_CLOSED,  /* the peer accepts the connection and closes it */
	PROBE_HTTP,    /* an HTTP server */
	PROBE_FOREIGN, /* another service: `detail` is the start of its answer */
	PROBE_ZMTP,    /* a ZeroMQ socket */
};

struct probe_report {
	enum probe_result result;
	char detail[64]; /* details of the result, in printable characters */
};

struct probe; /* opaque, see probe.c */

/* Creates a probe of `endpoint`, tcp://HOST:PORT. If the endpoint has another form, probe_start
 * does nothing. PS_ENOMEM. */
int probe_new(struct probe **out, const char *endpoint) PS_MUST_CHECK;
/* Starts the probe in the background, unless it is already running. */
void probe_start(struct probe *p);
/* Copies the newest result to *r. */
void probe_read(struct probe *p, struct probe_report *r);
/* Discards the result. */
void probe_forget(struct probe *p);
/* Frees the struct and sets *p to NULL; *p may be NULL. Does not wait: a running probe ends by
 * itself. */
void probe_free(struct probe **p);

#endif
