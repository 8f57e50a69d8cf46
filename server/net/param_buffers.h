/*
 * param_buffers.h - the weights as frames that PARAMS replies share.
 *
 * A pull is answered with the core's own buffer, not with a copy. While a frame of it is under way
 * nobody changes it: the core is lent a spare one, into which it applies the next gradient
 * (core_lend). When all frames have left it applies in place, into what the caches still have. A
 * buffer comes back when its last frame has left. With k readers of different speed there are at
 * most k + 2 buffers.
 *
 * Invariants:
 * (1) the buffer of a frame that is not a copy never changes while the frame exists;
 * (2) weights of one version are checksummed once, however many pull them.
 * Thread: the loop's; buffers come back from libzmq's.
 */
#ifndef SERVER_NET_PARAM_BUFFERS_H
#define SERVER_NET_PARAM_BUFFERS_H
#include <zmq.h>
#include "common/err.h"
#include "proto/msg.h"
#include "server/core/core.h"

struct param_buffers; /* opaque, see param_buffers.c */

/* Of n_params floats. PS_ENOMEM. */
int param_buffers_new(struct param_buffers **out, size_t n_params) PS_MUST_CHECK;
/* Frees and nulls *w; after the last frame was closed (router_free). NULL is fine. */
void param_buffers_free(struct param_buffers **w);
/* The first buffer, for core_init or image_read. */
float *param_buffers_first(const struct param_buffers *w);
/* A frame of what `m` (of one slice: the whole vector) sends, and its checksum into the slice.
 * PS_ENOMEM leaves *frame alone. */
int param_buffers_frame(
	struct param_buffers *w, struct msg_params *m, zmq_msg_t *frame) PS_MUST_CHECK;
/* Before every core_step: where its next version goes. */
void param_buffers_before_step(struct param_buffers *w, struct core *c);
/* After it, before its effects: which buffer is the core's now? */
void param_buffers_after_step(struct param_buffers *w, const struct core *c);
/* Versions made into a frame. */
uint64_t param_buffers_framed(const struct param_buffers *w);

#endif
