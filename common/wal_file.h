/*
 * wal_file.h - a file of the write-ahead log: append-only records that follow a checkpoint and are
 * synced in groups.
 *
 * File journal-<generation> begins with a header of 64 bytes {magic "CNNPSJNL", format, run, term,
 * generation, first sequence number, XXH3}. Records follow the header, each at a multiple of 8
 * bytes. A record has a header {magic "CNNPSREC", generation, sequence number, first sequence
 * number of its group, size, XXH3 of the other fields and of the payload} and the payload. All
 * numbers are little-endian. A group consists of the records that one fdatasync makes durable.
 *
 * The writer reuses an obsolete file instead of creating a new one, because the blocks of the old
 * file are already allocated, which makes a write three times as fast on ext4. In a reused file,
 * arbitrary bytes or records of an older generation may follow the newest record. The reader
 * ignores these bytes.
 *
 * Invariants:
 * (1) after a failed write or sync, the writer never writes to the file again (asserted by
 *     wal_file_append and wal_file_sync; a_full_disk_and_a_failed_sync_are_reported). The caller
 *     can then only close the file.
 *
 * Promises:
 * (1) the reader returns the first k appended records, for some k, whatever damage the file has.
 *     The reader never returns a record with a wrong checksum
 *     (every_length_of_a_file_reads_as_a_prefix, random_damage_yields_a_prefix);
 * (2) if wal_file_sync has returned 0 after the append of a record, the reader returns this record,
 *     unless the disk has lost it (tests/sim/node_wal.c, mutant wal-not-synced);
 * (3) the reader distinguishes a gap from a torn end (wal_reader_has_gap). A gap is a lost record
 *     that is followed by a good record of a later group
 *     (every_flipped_byte_ends_the_log_and_a_loss_before_the_last_group_is_said,
 *     a_gap_in_the_last_group_is_a_torn_end).
 *
 * Any thread may call the functions, but only one at a time for each file.
 */
#ifndef COMMON_WAL_FILE_H
#define COMMON_WAL_FILE_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/file.h"

struct wal_head {
	uint64_t run_hi, run_lo;
	uint64_t term;       /* term of the server that wrote the file */
	uint64_t generation; /* generation of the checkpoint before the records, >= 1 */
	uint64_t first;      /* sequence number of the first record, >= 1 */
};

/* ---- writing ------------------------------------------------------------------------------ */

struct wal_file; /* opaque, see wal_file.c */

/* Begins the file of head->generation in `dir` and makes its name durable. `oldest` is the
 * generation of the oldest checkpoint. Among the files up to generation `oldest`, only the newest
 * file may still be needed, because its records may continue after this checkpoint. The function
 * reuses one older file and removes the others. Errors: PS_EIO, PS_ENOMEM. */
int wal_file_create(struct wal_file **out, const char *dir, const struct wal_head *head,
	uint64_t oldest, struct err *e) PS_MUST_CHECK;
/* Appends one record, whose payload is the concatenation of `parts`. Error: PS_EIO. */
int wal_file_append(struct wal_file *j, const struct file_part *parts, size_t n_parts,
	struct err *e) PS_MUST_CHECK;
/* Makes every appended record durable. Error: PS_EIO. */
int wal_file_sync(struct wal_file *j, struct err *e) PS_MUST_CHECK;
/* Returns the number of bytes of the header and of all records so far. */
uint64_t wal_file_bytes(const struct wal_file *j);
/* Returns the number of bytes of disk space that the file would additionally take if `bytes` bytes
 * were appended. The result can be 0, because a reused file already has allocated blocks. */
uint64_t wal_file_growth(const struct wal_file *j, uint64_t bytes);
/* Closes the file without another sync and sets *j to NULL; *j may be NULL. */
void wal_file_close(struct wal_file **j);

/* ---- reading ------------------------------------------------------------------------------ */

struct wal_reader {
	struct wal_head head;
	int fd; /* descriptor of the file; -1: there is no such file */
	char path[4160];
	uint64_t at, end; /* at: offset of the next record; end: size of the file */
	/* sequence number of the next record; 0 if it is unknown because the header is lost */
	uint64_t next;
	size_t max_payload; /* maximum bytes of a payload */
	unsigned char *data;
	size_t room;
	struct XXH3_state_s *hash;
};

/* Opens the file of `generation`, whose payloads have at most max_payload bytes. Returns 0 and sets
 * r->fd to a negative number if there is no such file, or if it is a reused file whose writer
 * stopped before it had written the new header. If the header is damaged or missing, the reader
 * finds no record. Errors: PS_EIO, PS_ENOMEM. */
int wal_reader_open(struct wal_reader *r, const char *dir, uint64_t generation, size_t max_payload,
	struct err *e) PS_MUST_CHECK;
/* Reads the next record. After a return of 1, *data is valid until the next call. Returns 0 if no
 * valid record follows. Errors: PS_EIO, PS_ENOMEM. */
int wal_reader_next(struct wal_reader *r, const unsigned char **data, size_t *size,
	struct err *e) PS_MUST_CHECK;
/* Searches the rest of the file for records. Call this function after wal_reader_next has returned
 * 0. Returns 1 if valid records of a later group follow: durable records are then lost. Returns 0
 * if no such records follow. Errors: PS_EIO, PS_ENOMEM. */
int wal_reader_has_gap(struct wal_reader *r, struct err *e) PS_MUST_CHECK;
void wal_reader_release(struct wal_reader *r);

/* ---- the directory ------------------------------------------------------------------------ */

/* Returns the highest generation up to `max` that has a file, or 0 if there is none. */
uint64_t wal_file_newest(const char *dir, uint64_t max);
/* Removes the files of the generations `first` to `last`, both included. */
void wal_file_remove(const char *dir, uint64_t first, uint64_t last);

#endif
