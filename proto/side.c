/* side.c - see side.h. */
#include "proto/side.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "common/le.h"
#include "proto/wire.h"

#define GREETING_BYTES 18
#define MARK_BYTES     10

/* Returns the bytes of the first frame if the message has `n` frames and the first has `size`
 * bytes, beginning with 0. Else returns NULL. */
static const unsigned char *side_bytes(struct frames *f, size_t n, size_t size)
{
	if (f->n != n || zmq_msg_size(&f->frame[0]) != size)
		return NULL;
	const unsigned char *bytes = zmq_msg_data(&f->frame[0]);
	return bytes[0] == 0 ? bytes : NULL;
}

int side_is_greeting(struct frames *f, struct side_greeting *g)
{
	const unsigned char *bytes = side_bytes(f, 1, GREETING_BYTES);

	if (!bytes)
		return 0;
	*g = (struct side_greeting){.secret_hi = le64_get(bytes + 1),
		.secret_lo = le64_get(bytes + 9),
		.number = bytes[17]};
	return 1;
}

static int read_mark(const unsigned char *bytes, struct side_mark *mark)
{
	if (bytes)
		*mark = (struct side_mark){.number = le64_get(bytes + 1), .part = bytes[9]};
	return bytes != NULL;
}

int side_is_part(struct frames *f, struct side_mark *mark)
{
	return read_mark(side_bytes(f, 2, MARK_BYTES), mark);
}

int side_is_receipt(struct frames *f, struct side_mark *mark)
{
	return read_mark(side_bytes(f, 1, MARK_BYTES), mark);
}

int side_encode_greeting(const struct side_greeting *g, zmq_msg_t *frame)
{
	if (zmq_msg_init_size(frame, GREETING_BYTES))
		return PS_ENOMEM;
	unsigned char *bytes = zmq_msg_data(frame);
	bytes[0] = 0;
	le64_put(bytes + 1, g->secret_hi);
	le64_put(bytes + 9, g->secret_lo);
	bytes[17] = (unsigned char)g->number;
	return PS_OK;
}

int side_encode_mark(const struct side_mark *mark, zmq_msg_t *frame)
{
	if (zmq_msg_init_size(frame, MARK_BYTES))
		return PS_ENOMEM;
	unsigned char *bytes = zmq_msg_data(frame);
	bytes[0] = 0;
	le64_put(bytes + 1, mark->number);
	bytes[9] = (unsigned char)mark->part;
	return PS_OK;
}

/* A reference to the frame `whole`. A frame that is a part of `whole` holds the reference until
 * libzmq has sent this part. */
struct loan {
	atomic_int lent; /* makes the handover to another thread visible to ThreadSanitizer */
	zmq_msg_t whole;
};

/* Drops a reference to a frame. libzmq calls this function on one of its own threads. */
static void return_loan(void *values, void *loan)
{
	struct loan *l = loan;

	(void)values;
	if (atomic_load(&l->lent))
		(void)zmq_msg_close(&l->whole);
	free(l);
}

int side_share(zmq_msg_t *whole, size_t offset, size_t size, zmq_msg_t *part)
{
	struct loan *l = malloc(sizeof(*l));

	if (!l)
		return PS_ENOMEM;
	(void)zmq_msg_init(&l->whole);
	(void)zmq_msg_copy(&l->whole, whole);
	atomic_init(&l->lent, 0);
	atomic_store(&l->lent, 1);
	if (!zmq_msg_init_data(
		    part, (char *)zmq_msg_data(&l->whole) + offset, size, return_loan, l))
		return PS_OK;
	return_loan(NULL, l);
	return PS_ENOMEM;
}
