/*
 * contact.h - a worker without its server says so: what it waits for, why there is no contact, for
 * how long, until when, and what to do about it.
 *
 * Thread: one at a time (net.h's baton).
 */
#ifndef WORKER_CLIENT_CONTACT_H
#define WORKER_CLIENT_CONTACT_H
#include <stddef.h>
#include <stdint.h>
#include "common/reminder.h"
#include "worker/client/probe.h"

#define CONTACT_TEXT 512 /* bytes of a line, with its NUL */

/* What a connection knows of its server. */
struct contact_state {
	const char *server;
	int welcomed;           /* it had the server once */
	int up;                 /* the ZeroMQ connection stands */
	int answered;           /* ... and messages of cnn-ps have come on it */
	uint64_t silent_ms;     /* since the newest of them, or since it stands */
	const char *refusal;    /* the server's own words, or NULL */
	uint64_t hung_up;       /* times that a handshake ended without a word */
	const char *server_key; /* NULL: no keys */
	uint64_t alone_ms;      /* session_alone_ms; 0: it has its server */
	uint64_t left_ms;
	int idle; /* it has its server, and waits for work */
};

struct contact {
	struct probe *probe;
	struct reminder reminder;
	uint64_t probed_ms;
};

/* PS_ENOMEM. */
int contact_init(struct contact *k, const char *server) PS_MUST_CHECK;
void contact_release(struct contact *k);
/* The connection stands: what was found before does not count any more. */
void contact_up(struct contact *k);
/* Time passed: find out why there is no contact. 1: `line` is to be shown now. */
int contact_tick(
	struct contact *k, const struct contact_state *s, uint64_t now_ms, char line[CONTACT_TEXT]);
/* After `ms` it has given up: why, in one line. */
void contact_gave_up(const struct contact *k, const struct contact_state *s, uint64_t ms,
	char line[CONTACT_TEXT]);

#endif
