/*
 * wal_record.h - encodes an event of the core as a record of the write-ahead log, and decodes it.
 *
 * A record has five numbers of 8 bytes (kind, peer, time, a number whose meaning depends on the
 * kind, number of frames), then the sizes of the frames, 8 bytes each, then the frames as they were
 * received. At a replay, wire_decode checks the frames again, as if they had come from the network.
 * A mark is a record without an event. A mark contains the generation of a snapshot, which contains
 * all events before the mark and none after it. This header is private to the log: only wal.c and
 * wal_replay.c include it. Any thread may call these functions, but only one thread may use a
 * struct wal_record_reader.
 */
#ifndef SERVER_DURABILITY_WAL_RECORD_H
#define SERVER_DURABILITY_WAL_RECORD_H
#include "common/err.h"
#include "proto/wire.h"
#include "server/core/core.h"

#define WAL_RECORD_HEAD (8u * (5 + 1 + WIRE_MAX_SLICES))

/* Writes the bytes of a record that come before its frames. Returns the number of these bytes. `f`
 * has the frames of an EVENT_MESSAGE; for other events it is NULL. */
size_t wal_record_head(const struct event *ev, uint64_t now_ms, struct frames *f,
	unsigned char out[WAL_RECORD_HEAD]);
/* Writes the mark of the snapshot with number `generation`: the snapshot contains the events before
 * the mark and none after it. Returns the number of bytes of the mark. */
size_t wal_record_mark(uint64_t generation, unsigned char out[WAL_RECORD_HEAD]);
/* Returns the generation in a mark, or 0 if the record is not a mark. */
uint64_t wal_record_is_mark(const unsigned char *data, size_t size);
/* Returns the maximum size of a record in a run of n_params parameters. */
size_t wal_record_max(size_t n_params);

struct wal_record_reader {
	struct wire *wire;
	struct frames frames;
	struct msg msg;
	struct event event; /* the decoded event, valid until the next call of wal_record_read */
	uint64_t now_ms;
};

/* Prepares *r to read the records of a run with n_params parameters. Error: PS_ENOMEM. */
int wal_record_reader_init(struct wal_record_reader *r, size_t n_params) PS_MUST_CHECK;
void wal_record_reader_release(struct wal_record_reader *r);
/* Decodes a record into r->event. The reader borrows `data` until the next call. Returns PS_EPROTO
 * if the record is malformed, or has a message that the server would refuse. Other error:
 * PS_ENOMEM. */
int wal_record_read(
	struct wal_record_reader *r, const unsigned char *data, size_t size) PS_MUST_CHECK;

#endif
