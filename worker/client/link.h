/*
 * link.h - the worker's two connections to the server, and their monitors. This module sets up
 * sockets and their options; it does not implement the protocol.
 *
 * The bulk connection carries pulls, pushes and requests in order. The heartbeat connection carries
 * heartbeats, so that a slow transfer does not delay them. Thread: the holder of the I/O lock
 * (net.h).
 */
#ifndef WORKER_CLIENT_LINK_H
#define WORKER_CLIENT_LINK_H
#include <stdint.h>
#include "common/err.h"
#include "common/keys.h"

/* CURVE: the worker's key pair and the server's public key. */
struct link_keys {
	struct key_pair own;
	char server[KEY_TEXT];
};

struct link {
	void *context, *bulk, *heartbeat;
	void *monitor; /* the socket from which link_next_event reads the events of `bulk` */
	/* descriptor of the bulk connection, which libzmq owns; -1: none */
	int fd;
	char server[256];
	int established; /* 1 if the handshake of `bulk` has succeeded */
	/* 1 if libzmq has given up the connection of `bulk`, and may need link_redial to
	 * reconnect */
	int stopped;
	/* the socket from which link_redial_heartbeat reads the events of `heartbeat` */
	void *heartbeat_monitor;
	int heartbeat_stopped; /* 1 if libzmq has given up the connection of `heartbeat` */
	/* for link_open_side: the keys, and 1 if the connections are encrypted with them */
	struct link_keys keys;
	int has_keys;
	uint64_t random;
};

enum link_event {
	LINK_NONE,
	LINK_UP,
	LINK_LOST,
	LINK_REFUSED,  /* the server does not accept this worker's key; libzmq does not retry */
	LINK_MISMATCH, /* one side has a key, the other has none; libzmq does not retry */
	/* the peer closed the connection during the handshake; libzmq retries */
	LINK_HANDSHAKE_FAILED,
	LINK_OTHER,
};

/* Opens the sockets, which connect to `server` and reconnect by themselves. If `keys` is NULL, the
 * connection is not encrypted. `random` must differ between workers, so that many workers do not
 * reconnect at once. `connections` is the maximum number of connections for tensors, the bulk
 * connection included. PS_EUSAGE: `server` is not an endpoint. On failure nothing stays open. */
int link_open(struct link *l, const char *server, const struct link_keys *keys, uint64_t random,
	uint32_t connections, struct err *e) PS_MUST_CHECK;
/* Opens a connection to the server that does not reconnect by itself, and its monitor. The
 * connection ends if the server sends a frame of more than `max_frame` bytes. The caller must close
 * the connection with link_close_side, also after a failure. PS_ENET. */
int link_open_side(struct link *l, uint64_t max_frame, void **socket, void **monitor) PS_MUST_CHECK;
/* Closes a connection of link_open_side, and discards its unsent messages. */
void link_close_side(void **socket, void **monitor);
/* Takes one event from the monitor of link_open_side without blocking. If the event is the start of
 * the connection, sets *fd to its descriptor. */
enum link_event link_side_event(void *monitor, int *fd);
/* Does the same as link_bytes_moved, for the connection with descriptor `fd`, or for no connection
 * if `fd` is -1. */
uint64_t link_side_moved(int fd);
/* Sets the sizes of the queues for the server's push window, which WELCOME contains. */
void link_set_window(struct link *l, uint32_t push_window);
/* Takes one event from the monitor without blocking. LINK_NONE: no event. */
enum link_event link_next_event(struct link *l);
/* Returns a descriptor that becomes readable when a message arrives on `bulk`, after a receive that
 * has found no message. */
int link_wait_fd(const struct link *l);
/* Reconnects `bulk` if libzmq has stopped. libzmq stops after a forged message, and after a
 * handshake with an incompatible program. A reconnection is useful, because the right server may
 * listen at that address later. The call discards queued messages, so do not call it often. */
void link_redial(struct link *l);
/* Closes the connection of `bulk` until link_dial. Between these two calls, the events of
 * link_next_event have no meaning. */
void link_cut(struct link *l);
/* Connects `bulk` again after link_cut. */
void link_dial(struct link *l);
/* These functions do the same as link_cut and link_dial, for `heartbeat`. Thread: the holder of the
 * heartbeat's lock. */
void link_cut_heartbeat(struct link *l);
void link_dial_heartbeat(struct link *l);
/* Does the same as link_redial, for `heartbeat`. Thread: the holder of the heartbeat's lock
 * (heartbeat.h). */
void link_redial_heartbeat(struct link *l);
/* Returns the number of bytes that were acknowledged or received on the bulk connection, or 0 if
 * there is no connection or the number is unknown. */
uint64_t link_bytes_moved(const struct link *l);
/* Closes the sockets. libzmq goes on sending queued messages for at most LINK_LINGER_MS. */
void link_close(struct link *l);
/* Waits for the queued messages and frees the context; call link_term after link_close. */
void link_term(struct link *l);

#define LINK_LINGER_MS 1000

#endif
