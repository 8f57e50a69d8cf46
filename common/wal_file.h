/*
 * wal_file.h - a file of the write-ahead log: append-only records behind a checkpoint, synced in
 * groups.
 *
 * File journal-<generation>: a head of 64 bytes {magic "CNNPSJNL", format, run, term,
 * generation, first sequence number, XXH3}, then records, each on a multiple of 8 bytes: {magic
 * "CNNPSREC", generation, sequence number, its group's first sequence number, size, XXH3 of these
 * and the payload} and the payload. Little-endian. A group is the records that one fdatasync made
 * durable.
 *
 * A file that is not needed any more is overwritten instead of creating a new one, because its
 * blocks are allocated already (three times as fast on ext4). So the bytes behind the newest record
 * are arbitrary, or records of an older generation, which the reader ignores.
 *
 * Invariants:
 * (1) the reader returns a prefix of what was appended, whatever happened to the file: it returns
 *     no record whose checksum is wrong;
 * (2) a record whose wal_file_sync returned 0 is in that prefix, unless the disk has lost it;
 * (3) a gap, that is a lost record with good records of a later group behind it, is told apart from
 *     a torn end (wal_reader_has_gap);
 * (4) after a failed write or sync a file is never written again: close it.
 * Thread: any one at a time per file.
 */
#ifndef COMMON_JOURNAL_H
#define COMMON_JOURNAL_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/file.h"

struct wal_head {
	uint64_t run_hi, run_lo;
	uint64_t term;       /* of the server that wrote it */
	uint64_t generation; /* of the checkpoint that it follows, >= 1 */
	uint64_t first;      /* sequence number of the first record, >= 1 */
};

/* ---- writing ------------------------------------------------------------------------------ */

struct wal_file; /* opaque, see wal_file.c */

/* Begin the file of head->generation in `dir`, its name durable. Of the files older than the oldest
 * checkpoint, `oldest`, only the newest may still be needed, because its records may continue behind
 * that checkpoint. One of the others is overwritten, and the rest is removed. PS_EIO, PS_ENOMEM. */
int wal_file_create(struct wal_file **out, const char *dir, const struct wal_head *head,
	uint64_t oldest, struct err *e) PS_MUST_CHECK;
/* Append one record of all parts in order. PS_EIO. */
int wal_file_append(struct wal_file *j, const struct file_part *parts, size_t n_parts,
	struct err *e) PS_MUST_CHECK;
/* 0: every appended record is on disk. PS_EIO. */
int wal_file_sync(struct wal_file *j, struct err *e) PS_MUST_CHECK;
/* Bytes of head and records so far. */
uint64_t wal_file_bytes(const struct wal_file *j);
/* Bytes that the file would grow by with `bytes` more: an overwritten file has some already. */
uint64_t wal_file_growth(const struct wal_file *j, uint64_t bytes);
/* Closes and nulls *j without another sync; NULL is fine. */
void wal_file_close(struct wal_file **j);

/* ---- reading ------------------------------------------------------------------------------ */

struct wal_reader {
	struct wal_head head;
	int fd; /* -1: there is no such file */
	char path[4160];
	uint64_t at, end;   /* of the next record; size of the file */
	uint64_t next;      /* its sequence number; 0: the head is lost */
	size_t max_payload; /* bytes of a payload */
	unsigned char *data;
	size_t room;
	struct XXH3_state_s *hash;
};

/* Open the file of `generation`, whose payloads have at most max_payload bytes. 0 with r->fd < 0:
 * there is none, or its writing did not begin. PS_EIO. */
int wal_reader_open(struct wal_reader *r, const char *dir, uint64_t generation, size_t max_payload,
	struct err *e) PS_MUST_CHECK;
/* 1: the next record, valid until the next call. 0: the end. PS_EIO, PS_ENOMEM. */
int wal_reader_next(struct wal_reader *r, const unsigned char **data, size_t *size,
	struct err *e) PS_MUST_CHECK;
/* At the end. 1: records that were synced later follow, so durable records are lost. 0: none do.
 * PS_EIO. */
int wal_reader_has_gap(struct wal_reader *r, struct err *e) PS_MUST_CHECK;
void wal_reader_release(struct wal_reader *r);

/* ---- the directory ------------------------------------------------------------------------ */

/* The highest generation up to `max` in the name of a file; 0: none. */
uint64_t wal_file_newest(const char *dir, uint64_t max);
/* Remove the files of the generations `first` to `last`. */
void wal_file_remove(const char *dir, uint64_t first, uint64_t last);

#endif
