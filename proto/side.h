/*
 * side.h - the messages of side connections, on which a worker and the server exchange parts of
 * large tensors (WIRE.md, "Side connections"). The first byte of their first frame is 0, so they
 * are not valid headers.
 *
 * Any thread may call these functions.
 */
#ifndef PROTO_SIDE_H
#define PROTO_SIDE_H
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>
#include "common/err.h"
#include "proto/msg.h"

#define MAX_SIDES (WIRE_MAX_CONNECTIONS - 1) /* maximum number of side connections of a worker */
/* minimum size of a tensor that travels in parts */
#define SIDE_MIN_BYTES ((size_t)512 << 10)

struct frames;

/* The first message on a side connection. */
struct side_greeting {
	uint64_t secret_hi, secret_lo; /* the secret from WELCOME */
	uint32_t number;               /* the number of this side connection, from 1 */
};

/* The part number that stands for the whole PUSH in a receipt. */
#define SIDE_WHOLE_PUSH 255u

/* A mark says to which message a part belongs, and which part it is. */
struct side_mark {
	uint64_t number; /* seq of the PUSH, or request of the PARAMS */
	uint32_t part;
};

/* Each of these functions returns 1 if `f` is a message of the kind in the function's name. The
 * function then sets *g or *mark to the content. */
int side_is_greeting(struct frames *f, struct side_greeting *g);
int side_is_part(struct frames *f, struct side_mark *mark);
int side_is_receipt(struct frames *f, struct side_mark *mark);
/* side_encode_greeting makes the only frame of a greeting. side_encode_mark makes the first frame
 * of a part, which is also the only frame of the receipt for this part. Error: PS_ENOMEM. */
int side_encode_greeting(const struct side_greeting *g, zmq_msg_t *frame) PS_MUST_CHECK;
int side_encode_mark(const struct side_mark *mark, zmq_msg_t *frame) PS_MUST_CHECK;
/* Makes a frame of `size` bytes of `whole` from `offset` on, without a copy. The bytes of `part`
 * stay valid until `part` is closed, even if `whole` is closed before. Error: PS_ENOMEM. */
int side_share(zmq_msg_t *whole, size_t offset, size_t size, zmq_msg_t *part) PS_MUST_CHECK;

#endif
