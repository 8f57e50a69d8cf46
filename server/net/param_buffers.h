/*
 * param_buffers.h - copy-on-write buffers of the weights. PARAMS replies share these buffers with
 * the core.
 *
 * The answer to a pull points to the core's own buffer, without a copy. While libzmq sends such a
 * frame, the core writes the next version of the weights to a second buffer (`next_buffer` of
 * struct event). If no frame points to the core's buffer, the core updates this buffer in place,
 * because the caches of the CPU still hold its values. A buffer returns to the pool when libzmq has
 * sent the last frame that points to it. If k workers read the weights at different speeds, there
 * are at most k + 2 buffers.
 *
 * A shared-memory lane (lane.h) needs buffers that other processes can map and cannot change. These
 * shared buffers are parts of one memfd. If all shared buffers are in use, the next buffer is
 * ordinary memory, and its weights leave over TCP.
 *
 * Invariants:
 * (1) if a frame points to a buffer, the buffer does not change while the frame exists (asserted by
 *     param_buffers_next before each step of the core;
 *     a_frame_is_the_cores_buffer_and_never_changes);
 * (2) the weights and their buffer change only together with the version, so a checksum stays valid
 *     for all pulls of a version (asserted by param_buffers_after_step);
 * (3) each step raises the version by as much as the core says (core_new_versions), and no step
 *     that changes the weights is left out (asserted by param_buffers_after_step).
 *
 * Promises:
 * (1) the server computes the checksum of each version at most once per encoding, for any number of
 *     pulls. If the step that computes the weights also sends them, or if the version before was
 *     sent, the server computes the checksum in this step, block by block together with the
 *     weights. In all other cases the server computes the checksum when it first sends the weights
 *     (test_server_param_buffers).
 *
 * Only the loop's thread may call these functions, but libzmq's threads return buffers.
 */
#ifndef SERVER_NET_PARAM_BUFFERS_H
#define SERVER_NET_PARAM_BUFFERS_H
#include <zmq.h>
#include "common/engine.h"
#include "common/err.h"
#include "proto/msg.h"
#include "server/core/core.h"

struct param_buffers; /* opaque, see param_buffers.c */

/* Makes the buffers, each of n_params floats. At most `shared` of the buffers lie in a memfd; if
 * the system has no memfd, none does. Error: PS_ENOMEM. */
int param_buffers_new(struct param_buffers **out, size_t n_params, size_t shared) PS_MUST_CHECK;
/* Lets the threads of `engine` compute a part of the checksums. `engine` must outlive *w; if it is
 * NULL, the calling thread computes them alone. */
void param_buffers_use_engine(struct param_buffers *w, const struct engine *engine);
/* Sets the core `c` whose weights are in the first buffer. Call this function once, before the
 * first step of the core. */
void param_buffers_use_core(struct param_buffers *w, struct core *c);
/* Frees *w and sets it to NULL; *w may be NULL. Call this function after the last frame was closed
 * (router_free). */
void param_buffers_free(struct param_buffers **w);
/* Returns the first buffer, which the caller passes to core_init or snapshot_decode. */
float *param_buffers_first(const struct param_buffers *w);
/* Makes *frame with the weights of `m`, which has one slice with all weights. Sets the checksum of
 * this slice. If it returns PS_ENOMEM, *frame is unchanged. */
int param_buffers_frame(
	struct param_buffers *w, struct msg_params *m, zmq_msg_t *frame) PS_MUST_CHECK;
/* Makes *frame with the current weights of `m`, rounded to bfloat16. All calls for one version
 * share the rounded weights. Otherwise like param_buffers_frame. */
int param_buffers_frame_bf16(
	struct param_buffers *w, struct msg_params *m, zmq_msg_t *frame) PS_MUST_CHECK;
/* Returns the buffer of the next version, which the caller passes to the core in the field
 * `next_buffer` of every event. Returns NULL if no frame points to the current weights, so that the
 * core may overwrite them. */
float *param_buffers_next(const struct param_buffers *w);
/* Returns the value of the field `defers` of every event: 1 if only a device gets the new
 * weights. */
int param_buffers_defer(const struct param_buffers *w);
/* If the step updates the weights, computes the new values and notes which buffer the core uses
 * now. Call this function after every core_decide, before the effects are carried out. */
void param_buffers_after_step(struct param_buffers *w);
/* Describes the shared buffers: `fd` is their memfd, which belongs to *w, `n` is their number, and
 * `pitch` is the number of bytes from the start of a buffer to the start of the next one.
 * param_buffers_shared returns 0 if there is no memfd. */
struct param_shared {
	int fd;
	size_t n, pitch;
};
int param_buffers_shared(const struct param_buffers *w, struct param_shared *shared);
/* Returns the address of the shared buffers in this process, or NULL if there are none. */
void *param_buffers_memory(const struct param_buffers *w);
/* Lets another process read the weights of `m` in a shared buffer, and sets *index to the number of
 * this buffer. The buffer does not change until the caller has called param_buffers_drop with
 * `hold`. Sets the checksum of the only slice of `m`. Returns 0 if the weights of `m` are in no
 * shared buffer. */
int param_buffers_hold(
	struct param_buffers *w, struct msg_params *m, size_t *index, void **hold) PS_MUST_CHECK;
void param_buffers_drop(struct param_buffers *w, void **hold);
/* Returns the number of versions of the weights that the server has sent. */
uint64_t param_buffers_framed(const struct param_buffers *w);

#endif
