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

struct versions; /* opaque, see param_buffers.c */

/* Of n_params floats. PS_ENOMEM. */
int versions_new(struct versions **out, size_t n_params) PS_MUST_CHECK;
/* Frees and nulls *w; after the last frame was closed (router_free). NULL is fine. */
void versions_free(struct versions **w);
/* The first buffer, for core_init or image_read. */
float *versions_first(const struct versions *w);
/* A frame of what `m` (of one slice: the whole vector) sends, and its checksum into the slice.
 * PS_ENOMEM leaves *frame alone. */
int versions_frame(struct versions *w, struct msg_params *m, zmq_msg_t *frame) PS_MUST_CHECK;
/* Before every core_step: where its next version goes. */
void versions_lend(struct versions *w, struct core *c);
/* After it, before its effects: which buffer is the core's now? */
void versions_follow(struct versions *w, const struct core *c);
/* Versions made into a frame. */
uint64_t versions_framed(const struct versions *w);

#endif
