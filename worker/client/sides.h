/*
 * sides.h - the worker's side connections, which carry parts of large tensors besides the bulk
 * connection (WIRE.md, "Side connections"). The worker opens them for a session if the program has
 * asked for several connections, the server permits them in its WELCOME, and no shared memory is in
 * use. While all of them are open, the outbox uses them.
 *
 * The side connections of a session are open together or not at all. If one of them breaks or is
 * refused, the worker closes all of them, and sends HELLO on the bulk connection if anything may
 * be lost. The session then sends everything again that the server does not have, as after a lost
 * connection. Later WELCOMEs open side connections again, but after a failure only when some time
 * has passed.
 *
 * Invariants:
 * (1) the outbox uses the side connections only while all of them are open (asserted by
 *     sides_poll; a_large_push_travels_over_all_connections).
 *
 * Promises:
 * (1) PARAMS with parts become PARAMS with the whole tensor frame, or are dropped
 *     (test_a_side_connection_breaks_in_the_middle_of_a_tensor).
 *
 * Thread: the holder of the I/O lock (net.h).
 */
#ifndef WORKER_CLIENT_SIDES_H
#define WORKER_CLIENT_SIDES_H
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>
#include "common/err.h"
#include "proto/msg.h"
#include "proto/side.h"
#include "proto/wire.h"
#include "worker/client/link.h"
#include "worker/client/outbox.h"

struct side_connection {
	void *socket, *monitor;
	int fd;       /* descriptor of the connection, which libzmq owns; -1: none */
	int greeted;  /* 1 if the worker has presented the secret */
	int accepted; /* 1 if the server has accepted the secret */
	/* the newest part of weights that has arrived, and the number of the pull that it
	 * answers */
	int has_part;
	uint64_t request;
	zmq_msg_t part;
};

struct sides {
	struct link *link;  /* the worker's connections to the server, borrowed */
	struct outbox *out; /* the outbox that uses the side connections, borrowed */
	uint32_t requested; /* cnnps_options.connections, the bulk connection included */
	/* number of side connections that the newest WELCOME permits, until they are opened with
	 * the secret of this WELCOME; then 0 */
	uint32_t offered;
	struct side_greeting greeting;
	uint64_t max_frame; /* maximum number of bytes of a frame that the server may send */
	size_t n;           /* number of side connections that exist */
	int is_open;
	uint64_t since_ms; /* time at which the side connections were opened */
	/* pause_ms: length of the newest pause after a failure; until_ms: end of this pause */
	uint64_t pause_ms, until_ms;
	struct side_connection side[MAX_SIDES];
	/* parts: number of parts of the PARAMS in `params`, which are not complete yet; 0: there
	 * are no such PARAMS. request: number of the pull that these PARAMS answer */
	uint64_t parts, request;
	struct frames params;
};

/* Prepares for a program that uses at most `requested` connections. `link` and `out` must outlive
 * *s. */
void sides_init(struct sides *s, struct link *link, struct outbox *out, uint32_t requested);
/* Handles WELCOME `w`: closes the side connections that are open, and notes how many the WELCOME
 * offers. */
void sides_on_welcome(struct sides *s, const struct msg_welcome *w);
/* Opens side connections if the newest WELCOME offers them. */
void sides_tick(struct sides *s, uint64_t now_ms);
/* Receives the messages and events of all side connections. Returns 1 if the caller must discard
 * the queued messages and send HELLO, because a side connection is lost. */
int sides_poll(struct sides *s, uint64_t now_ms) PS_MUST_CHECK;
/* Closes the side connections. Returns 1 if the worker has sent something on one of them, which the
 * server may not have received. */
int sides_drop(struct sides *s);
/* Takes over `f`, a PARAMS message with only the first of `parts` parts of its tensor. */
void sides_hold(struct sides *s, struct frames *f, uint64_t parts, uint64_t request);
/* Moves the PARAMS with their whole tensor frame to `f` if all parts have arrived. Returns 0 if no
 * PARAMS is complete. */
int sides_take(struct sides *s, size_t max_bytes, struct frames *f) PS_MUST_CHECK;
/* Returns the number of bytes that the side connections have moved. */
uint64_t sides_bytes_moved(const struct sides *s);

#endif
