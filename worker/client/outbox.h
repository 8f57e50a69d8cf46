/*
 * outbox.h - the send queue of the bulk connection, and the bytes of every push that the worker may
 * have to send again.
 *
 * Invariants:
 * (1) the retained tensor of a push is never replaced (asserted by outbox_retain). It is one
 *     message, which all transmissions of the push share without a copy; a tensor in memory of a
 *     device moves to memory of the host when the lane is lost
 *     (a_large_push_is_whole_again_and_the_same_when_it_is_sent_again);
 * (2) messages leave in the order of their posting (asserted by pop;
 *     what_finds_no_room_leaves_later_in_its_order);
 * (3) retained_bytes is the sum of the sizes of the retained tensors (asserted by
 *     assert_retained_bytes when a connection ends, and by drop_retained for each push;
 *     bytes_stay_until_they_have_left).
 *
 * With side connections (sides.h), the parts of a large push travel over all connections, which
 * keep no common order. The server confirms each part that arrives on a side connection with a
 * receipt. The PUSH, and every later message, waits for these receipts. The server also confirms
 * the PUSH, and the parts of the next push wait for this receipt.
 *
 * If the lane has rings, messages without frames travel through a ring. No such message overtakes a
 * message on the socket (struct outbox, is_confirmed).
 *
 * Thread: the holder of the I/O lock (net.h).
 */
#ifndef WORKER_CLIENT_OUTBOX_H
#define WORKER_CLIENT_OUTBOX_H
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>
#include "common/err.h"
#include "proto/msg.h"
#include "proto/side.h"
#include "worker/client/lane.h"

/* Maximum number of queued messages. It is larger than the number of messages of the pushes in a
 * session's window and of the session's requests. */
#define OUTBOX_SIZE  512
#define OUTBOX_PARTS 4 /* number of parts of a large push */
/* number of parts of a large push with three connections, so that each connection gets two parts */
#define OUTBOX_PARTS_OF_3 6

/* A push that is not durable yet. Push `seq` is at index seq % WIRE_MAX_WINDOW. */
struct retained {
	uint64_t seq; /* sequence number of the push; 0 if this entry is free */
	/* number of parts; all but the last are chunks, see wire.h */
	uint32_t n;
	/* The push as one slice, for shared memory. Its data are in `tensor`. Its xxh3 can be 0
	 * until the first transmission. */
	struct slice whole;
	/* The parts of the push. Their data are in `tensor`. Their xxh3 can be 0 until the first
	 * transmission. */
	struct slice part[OUTBOX_PARTS_OF_3];
	zmq_msg_t tensor; /* the values of all parts, in the encoding of `whole` */
};

struct outgoing {
	zmq_msg_t header;
	uint64_t push; /* seq of the retained push whose frame follows, or 0 if no frame follows */
	uint32_t part;
	size_t side; /* 0: on the bulk connection; i: on side connection i */
	/* seq of a push whose receipts this message waits for; 0: it waits for none */
	uint64_t after;
	uint64_t number; /* number of this message among all messages that were queued, from 1 */
	uint64_t seq;    /* seq of the push if this message is its PUSH, else 0 */
};

struct outbox {
	void *socket; /* the socket of the bulk connection, borrowed */
	/* Borrowed. If it is not NULL, the server reads tensors in the slots of this lane, and the
	 * worker does not send these tensors as frames. */
	struct lane *lane;
	int used_socket; /* 1 if the outbox has used the socket; its owner sets it to 0 */
	/* 1 if the server has received all messages that were sent on the socket, so that messages
	 * may go through the ring of the lane without overtaking them. This is certain when
	 * the message that was sent last on the socket was a PUSH, and the server has decided this
	 * push */
	int is_confirmed;
	/* the seq of this push; 0: the last message on the socket was another one */
	uint64_t socket_push;
	/* Borrowed. The device in whose memory the tensor of a push may be; NULL: there is none. */
	const struct lane_device *device;
	/* The sockets of the side connections, borrowed; n_sides is 0 if they are not in use. */
	void *side[MAX_SIDES];
	size_t n_sides;
	/* The newest push with parts on side connections, and its parts that the server has not
	 * confirmed: bit i is part i. */
	uint64_t spread_seq;
	unsigned unconfirmed;
	/* the push whose parts are all confirmed, but whose PUSH is not; 0: none. Parts of a later
	 * push must not overtake this PUSH */
	uint64_t unconfirmed_push;
	/* the newest push that was posted without side connections and that the server has not
	 * decided; 0: none. Its chunks have no side_mark (proto/side.h). The server would discard
	 * them if a part of a later push arrived before its PUSH */
	uint64_t unmarked_push;
	size_t retained_bytes;
	uint64_t sent_seq; /* seq of the newest posted push */
	uint64_t replayed; /* number of pushes that were posted again */
	struct retained retained[WIRE_MAX_WINDOW];
	uint64_t queued; /* number of messages queued so far */
	uint64_t gone;   /* number of these messages that have left the queue */
	/* first: index of the oldest message in the ring `waiting`; count: number of messages in
	 * it */
	size_t first, count;
	struct outgoing waiting[OUTBOX_SIZE];
};

void outbox_init(struct outbox *o, void *socket);
/* Discards all queued messages and all retained pushes. */
void outbox_release(struct outbox *o);

/* Retains push `seq`. `slice` has the place of the push's values in the gradient. Takes over
 * *tensor and leaves it empty. The first transmission computes the checksums, unless `slice`
 * already has one. */
void outbox_retain(struct outbox *o, uint64_t seq, const struct slice *slice, zmq_msg_t *tensor);
/* Frees the bytes of the pushes up to `seq`, which are durable. */
void outbox_drop(struct outbox *o, uint64_t seq);

/* Queues `m` after all earlier messages, and sends it at once if the socket has room. If the queue
 * is full, the function discards `m`, and the session later sends it again, as after a loss in the
 * network. */
void outbox_post(struct outbox *o, const struct msg *m);
/* Queues the retained push `seq`, like outbox_post. `m` is the header of the push without
 * slices. */
void outbox_post_push(struct outbox *o, const struct msg *m, uint64_t seq);
/* From now on, large pushes travel over the bulk connection and these `n` side connections. If `n`
 * is 0, large pushes travel over the bulk connection alone. If the outbox has used side connections
 * before, the caller must then also call outbox_clear. */
void outbox_use_sides(struct outbox *o, void *const *side, size_t n);
/* Handles the server's receipt for a part on a side connection, or for a PUSH. */
void outbox_confirm(struct outbox *o, const struct side_mark *receipt);
/* Notes that the server has decided all pushes up to `seq` since the newest WELCOME. From then on
 * messages go through the ring of the lane, if possible. */
void outbox_decided(struct outbox *o, uint64_t seq);
/* Returns 1 if the queued messages wait for receipts. */
int outbox_awaits_receipts(const struct outbox *o);
/* Sends queued messages while the socket has room. */
void outbox_flush(struct outbox *o);
/* Discards all queued messages. The caller must do this when the connection has broken. */
void outbox_clear(struct outbox *o);

#endif
