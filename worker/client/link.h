/*
 * link.h - the worker's two connections to the server and the monitor that says whether the bulk
 * one stands: sockets with their options, nothing of the protocol.
 *
 * Bulk carries pulls, pushes and requests in order; beat carries heartbeats past a slow transfer.
 * Thread: one at a time (net.h's baton).
 */
#ifndef WORKER_CLIENT_LINK_H
#define WORKER_CLIENT_LINK_H
#include <stdint.h>
#include "common/err.h"
#include "common/keys.h"

/* CURVE: who we are and whom we expect to talk to. */
struct link_keys {
	struct key_pair own;
	char server[KEY_TEXT];
};

struct link {
	void *context, *bulk, *beat;
	void *monitor; /* receives bulk's events: link_event */
	int fd;        /* of bulk's connection, libzmq's: looked at only; -1: there is none */
	char server[256];
	int stopped; /* bulk was disconnected, and libzmq does not try again by itself */
};

enum link_event {
	LINK_NONE,
	LINK_UP,
	LINK_LOST,
	LINK_REFUSED,   /* the server does not want our key; it is not asked again */
	LINK_UNLIKE,    /* one of us has a key and the other none; so too */
	LINK_NOT_TAKEN, /* hung up on during the handshake; dialled again */
	LINK_OTHER,
};

/* Sockets that dial `server` and keep doing so. `keys` NULL: not encrypted. `random` spreads the
 * reconnects of many workers. PS_EUSAGE: no such endpoint. On failure nothing is left open. */
int link_open(struct link *l, const char *server, const struct link_keys *keys, uint64_t random,
	struct err *e) PS_MUST_CHECK;
/* Room for the server's window; known from WELCOME on. */
void link_set_window(struct link *l, uint32_t push_window);
/* Take one event off the monitor without waiting. LINK_NONE: there is none. */
enum link_event link_next_event(struct link *l);
/* Dial again if libzmq has stopped to, as it does after a peer that is no match: another program
 * may have given way to a server since. Once in a while: what is queued is lost. */
void link_redial(struct link *l);
/* Bytes of bulk's connection that the other side has, and that we have of it; 0: there is none. */
uint64_t link_moved(const struct link *l);
/* Close the sockets. What is queued goes out for at most LINK_LINGER_MS. */
void link_close(struct link *l);
/* Wait for that and free the context, after link_close. */
void link_term(struct link *l);

#define LINK_LINGER_MS 1000

#endif
