/*
 * contact.h - explains why a worker has no contact with its server. A line says what the worker
 * waits for, why, for how long it has waited, when it gives up, and what the user can do.
 *
 * Thread: the holder of the I/O lock (net.h).
 */
#ifndef WORKER_CLIENT_CONTACT_H
#define WORKER_CLIENT_CONTACT_H
#include <stddef.h>
#include <stdint.h>
#include "common/reminder.h"
#include "worker/client/probe.h"

#define CONTACT_TEXT 512 /* size of a buffer for a line, in bytes */

/* The state of the connection to the server. */
struct contact_state {
	const char *server;
	int welcomed; /* 1 if the worker has received a WELCOME */
	int up;       /* 1 if the ZeroMQ connection is established */
	int answered; /* 1 if this connection has carried messages of cnn-ps */
	/* time since the newest message, or since the connection was established if no message
	 * came */
	uint64_t silent_ms;
	/* the text of the ERROR that says why the server has not sent a WELCOME yet, or NULL */
	const char *refusal;
	/* the reason why a request of the program has no reply yet, or NULL */
	const char *notice;
	/* number of connections that the peer closed without a message */
	uint64_t failed_handshakes;
	const char *server_key; /* key of the server; NULL if the connection has no keys */
	/* the result of session_waiting_ms; 0 if the worker is in contact */
	uint64_t waiting_ms;
	uint64_t remaining_ms;
	int idle; /* 1 if the worker is in contact and waits for a lease */
};

struct contact {
	struct probe *probe;
	struct reminder reminder;
	uint64_t probed_ms;
};

/* Prepares *k for the endpoint `server`. PS_ENOMEM. */
int contact_init(struct contact *k, const char *server) PS_MUST_CHECK;
void contact_release(struct contact *k);
/* Discards what was found out about earlier failures. Call contact_up when the connection is
 * established. */
void contact_up(struct contact *k);
/* Determines why there is no contact. Call contact_tick regularly. Returns 1 if the caller must
 * show `line` now. */
int contact_tick(
	struct contact *k, const struct contact_state *s, uint64_t now_ms, char line[CONTACT_TEXT]);
/* Writes the reason why the session gave up after `ms` milliseconds. */
void contact_gave_up(const struct contact *k, const struct contact_state *s, uint64_t ms,
	char line[CONTACT_TEXT]);

#endif
