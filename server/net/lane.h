/*
 * lane.h - the server's side of the shared-memory lanes (proto/lane.h): tensors that go to and from
 * workers on this host without passing through a socket.
 *
 * A worker that joins receives the path of a Unix socket and a secret in WELCOME. If the worker
 * sends the secret to this socket, it receives two pieces of shared memory: the weights, which it
 * can only read, and memory for its pushes. The server copies a push before it checks the push, so
 * later writes of the worker have no effect. A lane is open as long as its connection to the Unix
 * socket, but not longer than the session of its worker. When a worker ends, for whatever reason,
 * the kernel closes the connection, and the server takes back the buffers that the worker was
 * reading.
 *
 * Invariants:
 * (1) a lane belongs to one incarnation of one worker (asserted by lanes_welcome;
 *     a_new_incarnation_closes_the_lane_of_the_old_one);
 * (2) each secret opens at most one lane, and a lane has one connection (asserted by greet;
 *     only_the_secret_of_the_newest_welcome_opens_a_lane_once);
 * (3) only a worker with an open lane holds buffers of weights (asserted by greet), at most
 *     LANE_HOLDS, which is the size of struct lane, hold
 *     (weights_are_read_in_place_until_they_are_closed);
 * (4) the server checks and applies a private copy of each push (asserted by
 *     lanes_join, and by join_gpu for a push in the memory of a GPU;
 *     a_push_arrives_as_a_private_copy).
 *
 * Promises:
 * (1) a worker never gets memory through which it could change the weights or another worker's push
 *     (another_process_reads_held_weights_and_cannot_write_them; each lane has its own memory for
 *     pushes);
 * (2) if a worker holds LANE_HOLDS buffers, or no buffer is free, the server sends the weights to
 *     this worker over the TCP connection (weights_are_read_in_place_until_they_are_closed);
 * (3) if the checksum of the copy of a push is wrong, the server treats the push as lost
 *     (a_torn_push_counts_as_lost).
 *
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_NET_LANE_H
#define SERVER_NET_LANE_H
#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "common/err.h"
#include "common/pool.h"
#include "proto/msg.h"
#include "proto/wire.h"
#include "server/core/core.h"
#include "server/net/param_buffers.h"

#define LANE_COPIES 4u /* number of private copies of pushes in memory of the server's GPU */
/* maximum number of copies of weights to memory of workers' GPUs at the same time */
#define LANE_GIVES 5u

struct gpu_store;
struct line_budget;
struct lanes; /* opaque, see lane.c */

struct lanes_config {
	uv_loop_t *loop;
	const char *path; /* path of the Unix socket */
	int fd;           /* the socket that listens on this path (share_listen); borrowed */
	size_t n_params;
	uint32_t max_workers;
	struct line_budget *lines; /* limits the log lines about the lanes of each worker */
	/* the buffers of the weights, some of them shared; must outlive the lanes */
	struct param_buffers *params;
	/* how the server makes its only pass over a gradient that arrives (wire.h) */
	struct wire_pass pass;
	/* pool of buffers of n_params floats for the private copies of pushes; it must outlive the
	 * frames of these pushes. If NULL, the copies are in ordinary memory */
	struct pool *copies;
	/* the store of --store cuda:N, which can use memory of workers' GPUs; NULL: none */
	struct gpu_store *gpu;
	/* the reason why workers cannot use memory of their GPUs; NULL: they can */
	const char *gpu_off;
	/* called when a ring may have messages, which lanes_take takes; NULL: no lane has rings */
	void (*on_ring)(void *arg);
	void *arg;
};

struct lanes_stats {
	uint32_t open; /* number of lanes that are open */
	/* numbers of tensors of PUSH and PARAMS that went through a lane */
	uint64_t pushes, params;
	uint32_t gpus;     /* number of open lanes whose worker shares memory of its GPU */
	uint64_t refused;  /* number of greetings with a wrong secret or form */
	uint64_t messages; /* number of messages, in both directions, that went through rings */
};

/* Accepts workers on the Unix socket. Errors: PS_EIO, PS_ENOMEM. */
int lanes_new(struct lanes **out, const struct lanes_config *cfg, struct err *e) PS_MUST_CHECK;
/* Adds the path of the socket, a new secret and whether the weights are on a GPU to `m`, a WELCOME
 * that the server is about to send on connection `peer`. */
void lanes_welcome(struct lanes *l, uint32_t peer, struct msg_welcome *m);
/* Returns 1 if a lane has memory of a worker's GPU. */
int lanes_use_gpus(const struct lanes *l);
/* If `f` is a PUSH of `peer` whose values are in memory of the worker's GPU, begins to copy them to
 * private copy number `at` of the store, so that lanes_join waits less. Returns 1 if it has begun
 * to copy. */
int lanes_begin(struct lanes *l, uint32_t peer, size_t at, struct frames *f);
/* Appends a frame with a copy of the values in slot ref->slot to `f`, a PUSH of `peer`. Values in
 * memory of a worker's GPU go to private copy number `at`; `begun` is what lanes_begin has
 * returned. Returns PS_ESTATE if the peer has no lane. Returns PS_EPROTO if the lane has no such
 * slot, or if the slot has no room for these values. Other error: PS_ENOMEM. */
int lanes_join(struct lanes *l, uint32_t peer, const struct lane_ref *ref, size_t at, int begun,
	struct frames *f) PS_MUST_CHECK;
/* Lets `peer` read the weights of `m` in shared memory, and sets the fields of `m` that name the
 * buffer and its checksum. Returns 0 if the weights or the peer have no shared memory; the caller
 * must then send the weights as a frame. Sets *awaits to 1 if the server's GPU copies the weights;
 * the checksum then comes from lanes_given. `at`, below LANE_GIVES, is the number that this copy
 * gets. */
int lanes_hold(
	struct lanes *l, uint32_t peer, size_t at, struct msg_params *m, int *awaits) PS_MUST_CHECK;
/* Returns 1 and sets *xxh3 to the checksum if copy number `at` of lanes_hold is complete. If
 * `waits` is 1, first waits until the copy is complete. */
int lanes_given(struct lanes *l, size_t at, int waits, uint64_t *xxh3) PS_MUST_CHECK;
/* Takes the oldest message of a ring; each ring with messages has its turn. Returns 0 if no ring
 * has a message. Sets f->key to the sender's key, or to "". */
int lanes_take(struct lanes *l, uint32_t *peer, struct frames *f) PS_MUST_CHECK;
/* Notes that a message of `peer` with this public key (NULL: none) has arrived over TCP. Returns 1
 * if the ring of the peer has messages. The peer has sent them before, so the caller must first
 * handle those that lanes_take_earlier takes. */
int lanes_note_received(struct lanes *l, uint32_t peer, const char *key) PS_MUST_CHECK;
/* Takes the oldest message of the peer's ring that was there at the newest lanes_note_received.
 * Returns 0 if there is no such message. */
int lanes_take_earlier(struct lanes *l, uint32_t peer, struct frames *f) PS_MUST_CHECK;
/* Sends `f` through the ring of `peer`, and releases the frames. Returns 0 if the caller must send
 * `f` over TCP. */
int lanes_give(struct lanes *l, uint32_t peer, struct frames *f) PS_MUST_CHECK;
/* Notes that a message was sent to `peer` over TCP. `is_welcome` is 1 if it was a WELCOME. */
void lanes_note_sent(struct lanes *l, uint32_t peer, int is_welcome);
/* Notes that a message from the ring of `peer` was refused or dropped. If the ring has had too many
 * such messages, closes the lane and returns 1. `burst` is the maximum number at once (port.h). */
int lanes_note_refused(struct lanes *l, uint32_t peer, uint32_t burst, uint64_t now_ms);
/* Closes the lane of `peer`, if there is one. */
void lanes_end(struct lanes *l, uint32_t peer, const char *why);
/* Closes the lanes of workers that have no session. */
void lanes_check(struct lanes *l, const struct core *c);
void lanes_stats(const struct lanes *l, struct lanes_stats *s);
/* Closes all lanes and the handles, but not the socket; the loop must run once more before
 * lanes_free. */
void lanes_stop(struct lanes *l);
/* Frees *l and sets it to NULL; *l may be NULL. */
void lanes_free(struct lanes **l);

#endif
