/*
 * journal.h - an append-only file of records that follow a checkpoint, durable in groups.
 *
 * File journal-<generation>: a head of 64 bytes {magic "CNNPSJNL", format, run, term,
 * generation, first sequence number, XXH3}, then records, each on a multiple of 8 bytes: {magic
 * "CNNPSREC", generation, sequence number, its group's first sequence number, size, XXH3 of these
 * and the payload} and the payload. Little-endian. A group is what one fdatasync brought home:
 * whoever waits for a record waits for the sync of its group, and never for one alone.
 *
 * A file that is not needed any more is written over instead of a new one, because blocks that are
 * there already take no journal of the file system's (three times as quick on ext4): what lies
 * behind the newest record is rubbish, or records of an older generation, which nobody believes.
 *
 * Invariants:
 * (1) what is read is a prefix of what was appended, whatever happened to the file: nothing is
 *     believed before its checksum;
 * (2) a record whose journal_sync returned 0 is in that prefix, unless the disk has lost it;
 * (3) a loss in the middle, good records of a later group behind it, is told apart from an end
 *     that was torn (journal_is_broken);
 * (4) after a failed write or sync a file is never written to again: close it.
 * Thread: any one at a time per file.
 */
#ifndef COMMON_JOURNAL_H
#define COMMON_JOURNAL_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/file.h"

struct journal_head {
	uint64_t run_hi, run_lo;
	uint64_t term;       /* term that wrote it */
	uint64_t generation; /* of the checkpoint that it follows, >= 1 */
	uint64_t first;      /* sequence number of the first record, >= 1 */
};

/* ---- writing ------------------------------------------------------------------------------ */

struct journal; /* opaque, see journal.c */

/* Begin the file of head->generation in `dir`, its name durable. Of what lies before the oldest
 * checkpoint, `oldest`, only the newest journal may be of use, as it may go on behind that one: of
 * the others one is written over, the rest is removed. PS_EIO, PS_ENOMEM. */
int journal_create(struct journal **out, const char *dir, const struct journal_head *head,
	uint64_t oldest, struct err *e) PS_MUST_CHECK;
/* Append one record: the parts, one after the other. PS_EIO. */
int journal_append(struct journal *j, const struct file_part *parts, size_t n_parts,
	struct err *e) PS_MUST_CHECK;
/* All that was appended is on disk when this returns 0. PS_EIO. */
int journal_sync(struct journal *j, struct err *e) PS_MUST_CHECK;
/* Bytes of head and records so far. */
uint64_t journal_bytes(const struct journal *j);
/* Bytes that the file would grow by with `bytes` more: those of an old file take no new space. */
uint64_t journal_growth(const struct journal *j, uint64_t bytes);
/* Closes and nulls *j without another sync; NULL is fine. */
void journal_close(struct journal **j);

/* ---- reading ------------------------------------------------------------------------------ */

struct journal_reader {
	struct journal_head head;
	int fd; /* -1: there is no such journal */
	char path[4160];
	uint64_t at, end; /* the next record; bytes of the file */
	uint64_t next;    /* its sequence number; 0: the head is lost */
	size_t most;      /* bytes of a payload */
	unsigned char *data;
	size_t room;
	struct XXH3_state_s *hash;
};

/* Open the journal of `generation`, whose payloads have at most `most` bytes. 0 with r->fd < 0:
 * there is none, or it was not begun. PS_EIO. */
int journal_open(struct journal_reader *r, const char *dir, uint64_t generation, size_t most,
	struct err *e) PS_MUST_CHECK;
/* 1: the next record, valid until the next call. 0: this is the end. PS_EIO, PS_ENOMEM. */
int journal_next(struct journal_reader *r, const unsigned char **data, size_t *size,
	struct err *e) PS_MUST_CHECK;
/* After the end. 1: records that were synced later lie behind it, so what was called durable is
 * lost. 0: nothing shows so. PS_EIO. */
int journal_is_broken(struct journal_reader *r, struct err *e) PS_MUST_CHECK;
void journal_reader_release(struct journal_reader *r);

/* ---- the directory ------------------------------------------------------------------------ */

/* The highest generation up to `most` that a journal's name claims; 0: none. */
uint64_t journal_newest(const char *dir, uint64_t most);
/* Remove the journals of the generations `first` to `last`. */
void journal_remove(const char *dir, uint64_t first, uint64_t last);

#endif
