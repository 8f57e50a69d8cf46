/*
 * checkpoint.h - writes and reads checkpoint files. A directory has one file for each of its newest
 * generations. A file has named sections, each with its own checksum. The server writes each file
 * atomically. At its start, the server reads the newest good file.
 *
 * The file ckpt-<generation, 16 hex digits> consists of four parts: a fixed header {magic
 * "CNNPSCK1", format version, number of sections, generation}, a table with a row {name[16],
 * offset, size, XXH3} for each section, the XXH3 of the header and the table, and the sections. All
 * numbers are little-endian. server/core/snapshot.h defines the content of the sections; this
 * module does not interpret it.
 *
 * Invariants:
 * (1) a checkpoint that is written has a generation of at least 1 (asserted by
 *     checkpoint_write_beside), and sections with different names (asserted by fill_head).
 *
 * Promises:
 * (1) a file gets its name ckpt-<generation> only when all its bytes are on disk
 *     (tests/unit/test_checkpoint.c);
 * (2) after a write the directory has the newest CHECKPOINT_KEEP generations. The writer removes
 *     older generations and the files ckpt-*.tmp (promise_2_three_generations_are_kept,
 *     promise_2_temporary_files_are_removed_and_nothing_else_is);
 * (3) the reader uses no byte of a section before it has verified the section's checksum. A flipped
 *     or missing byte anywhere makes checkpoint_read fail. After such a failure,
 *     checkpoint_read_newest logs a warning and reads the previous generation
 *     (tests/unit/test_checkpoint_damage.c).
 *
 * Any thread may call the functions, but only one thread at a time may write to a directory; in the
 * server this is the checkpointer.
 */
#ifndef COMMON_CHECKPOINT_H
#define COMMON_CHECKPOINT_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define CHECKPOINT_KEEP         3
#define CHECKPOINT_MAX_SECTIONS 16
#define CHECKPOINT_MAX_BYTES    ((size_t)8 << 30)

struct checkpoint_section {
	char name[16]; /* unique name of the section, padded with NULs */
	const void *data;
	size_t size; /* size of the data in bytes */
};

struct checkpoint {
	uint64_t generation;
	size_t n_sections;
	struct checkpoint_section section[CHECKPOINT_MAX_SECTIONS];
	/* owned by this struct: after a read, the bytes to which the sections point */
	void *memory;
};

/* Writes the new generation c->generation into `dir` and removes the generations before the newest
 * CHECKPOINT_KEEP. If the disk is full, the function removes older generations, beginning with the
 * oldest, until the new one fits. `sound` is the newest generation that is known to be good, or 0
 * if there is none. The function never removes generation `sound`. If the function removes
 * generations to make space, it sets *dropped to the last generation that it removed; `dropped` may
 * be NULL. After PS_EIO, the write has failed, and the function has tried to remove the incomplete
 * file. */
int checkpoint_write_beside(const char *dir, const struct checkpoint *c, uint64_t sound,
	uint64_t *dropped, struct err *e) PS_MUST_CHECK;
/* Calls checkpoint_write_beside. `sound` is the highest generation in `dir` that is lower than
 * c->generation. */
int checkpoint_write(const char *dir, const struct checkpoint *c, struct err *e) PS_MUST_CHECK;
/* Removes the oldest generation that is lower than `next` and is not `sound`, to free disk space.
 * Returns the number of the removed generation, or 0 if none was removed. */
uint64_t checkpoint_make_space(const char *dir, uint64_t sound, uint64_t next);
/* Removes the temporary files (ckpt-*.tmp) of interrupted writes. */
void checkpoint_clean(const char *dir);
/* Reads one file. After success, release *c with checkpoint_release. After PS_ECHECKPOINT (the file
 * is corrupt) or PS_EIO, *c is zero. */
int checkpoint_read(const char *path, struct checkpoint *c, struct err *e) PS_MUST_CHECK;
/*
 * Reads the newest good generation of `dir`. Returns 0 with c->generation == 0 if the directory has
 * no checkpoint. Returns PS_ECHECKPOINT if the directory has checkpoints, but none is good, and
 * PS_EIO if it cannot be opened. If `clean` is 1, the function also removes the files of
 * interrupted writes (checkpoint_clean). The function sets *newest_seen to the highest generation
 * number in any file name; `newest_seen` may be NULL.
 */
int checkpoint_read_newest(const char *dir, int clean, struct checkpoint *c, uint64_t *newest_seen,
	struct err *e) PS_MUST_CHECK;
/* Reads the newest good generation that is lower than `before`. A caller needs this function if the
 * content of generation `before` is bad. The function returns the same statuses as
 * checkpoint_read_newest. */
int checkpoint_read_older(
	const char *dir, uint64_t before, struct checkpoint *c, struct err *e) PS_MUST_CHECK;
/* Returns the lowest generation that has a file, or 0 if there is none. */
uint64_t checkpoint_oldest(const char *dir);
/* Returns 1 if the disk has room for `bytes` more bytes when all generations except `sound` are
 * removed, or if the file system does not report its free space. */
int checkpoint_has_room(const char *dir, uint64_t sound, uint64_t bytes);
/* Returns the section called `name`, or NULL. */
const struct checkpoint_section *checkpoint_find(const struct checkpoint *c, const char *name);
void checkpoint_release(struct checkpoint *c);

#endif
