/*
 * param_buffers.h - copy-on-write buffers of the weights, which PARAMS replies share.
 *
 * A pull is answered with the core's own buffer, without a copy. While a frame of it is being sent,
 * the core writes its next version to a second buffer (core_lend). Otherwise it updates in place,
 * which keeps the caches warm. A buffer returns to the pool when its last frame was sent. With k
 * readers of different speed there are at most k + 2 buffers.
 *
 * Invariants:
 * (1) the buffer of a frame that is no copy never changes while the frame exists;
 * (2) the weights of one version are checksummed once, for any number of pulls: block by block as
 *     they are computed if this step sends them, else when they are first sent (test_server_param_buffers).
 * Thread: the loop's; libzmq's threads return buffers.
 */
#ifndef SERVER_NET_PARAM_BUFFERS_H
#define SERVER_NET_PARAM_BUFFERS_H
#include <zmq.h>
#include "common/err.h"
#include "proto/msg.h"
#include "server/core/core.h"

struct param_buffers; /* opaque, see param_buffers.c */

/* Buffers of n_params floats. PS_ENOMEM. */
int param_buffers_new(struct param_buffers **out, size_t n_params) PS_MUST_CHECK;
/* Frees and nulls *w; after the last frame was closed (router_free). NULL is fine. */
void param_buffers_free(struct param_buffers **w);
/* The first buffer, for core_init or snapshot_decode. */
float *param_buffers_first(const struct param_buffers *w);
/* The frame of the weights that `m` sends (one slice, the whole vector), and the checksum in the
 * slice. PS_ENOMEM leaves *frame unchanged. */
int param_buffers_frame(
	struct param_buffers *w, struct msg_params *m, zmq_msg_t *frame) PS_MUST_CHECK;
/* Before every core_decide: select the buffer of the next version. */
void param_buffers_before_step(struct param_buffers *w, struct core *c);
/* After it, before its effects: compute the new weights, and note which buffer the core uses now. */
void param_buffers_after_step(struct param_buffers *w, struct core *c);
/* Versions that became a frame. */
uint64_t param_buffers_framed(const struct param_buffers *w);

#endif
