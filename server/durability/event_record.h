/*
 * event_record.h - an event of the core as the payload of a journal's record, and back.
 *
 * Five numbers of 8 bytes - kind, peer, time, generation, number of frames - then the frames'
 * sizes, 8 bytes each, then the frames as they came from the network: a message is read back by the
 * code that reads packets, and believed no more than one. Where a journal goes on behind a second
 * snapshot a record that is no event says so. Thread: any; one struct event_reader belongs to one
 * thread.
 */
#ifndef SERVER_DURABILITY_EVENT_RECORD_H
#define SERVER_DURABILITY_EVENT_RECORD_H
#include "common/err.h"
#include "proto/wire.h"
#include "server/core/core.h"

#define EVENT_RECORD_HEAD (8u * (5 + 1 + WIRE_MAX_SLICES))

/* The bytes before the frames into `out`; returns how many. `f`: of EVENT_MESSAGE, else NULL. */
size_t event_record_head(const struct event *ev, uint64_t now_ms, struct frames *f,
	unsigned char out[EVENT_RECORD_HEAD]);
/* The place of a snapshot between two events: its bytes into `out`; returns how many. */
size_t event_record_place(uint64_t generation, unsigned char out[EVENT_RECORD_HEAD]);
/* The generation if a record is such a place; 0: it is an event, or nothing. */
uint64_t event_record_is_place(const unsigned char *data, size_t size);
/* Bytes that a record may have in a run of n_params parameters. */
size_t event_record_most(size_t n_params);

struct event_reader {
	struct wire *wire;
	struct frames frames;
	struct msg msg;
	struct event event; /* valid until the next read */
	uint64_t now_ms;
};

/* PS_ENOMEM. */
int event_reader_init(struct event_reader *r, size_t n_params) PS_MUST_CHECK;
void event_reader_release(struct event_reader *r);
/* Borrows `data` until the next read. PS_EPROTO: not what event_record_head wrote, or a message
 * that a server would refuse. */
int event_record_read(struct event_reader *r, const unsigned char *data, size_t size) PS_MUST_CHECK;

#endif
