/*
 * checkpoint.h - a directory of checkpoint generations: named sections with a checksum each,
 * written atomically, the newest good one found at start.
 *
 * File ckpt-<generation, 16 hex digits>: a fixed header {magic "CNNPSCK1", format version, number
 * of sections, generation}, a table {name[16], offset, size, XXH3} per section, the XXH3 of header
 * and table, then the sections. Little-endian. What the sections mean is the writer's business
 * (server/core/snapshot.h); this module promises that what is read is what was written.
 *
 * Invariants:
 * (1) a generation is visible under its name only when it is whole and on disk;
 * (2) CHECKPOINT_KEEP generations are kept; older ones and ckpt-*.tmp are removed;
 * (3) no byte of a file is believed before its checksum: a flipped or missing byte anywhere makes
 *     checkpoint_read fail, and checkpoint_read_newest takes the generation before and says so in
 *     the log.
 * Thread: any one at a time per directory (the server: the checkpointer only).
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
	char name[16]; /* NUL-padded, unique */
	const void *data;
	size_t size; /* bytes */
};

struct checkpoint {
	uint64_t generation;
	size_t n_sections;
	struct checkpoint_section section[CHECKPOINT_MAX_SECTIONS];
	void *memory; /* what the sections point into, after a read; owned */
};

/* Write generation c->generation, a new one, into `dir` and drop the ones past CHECKPOINT_KEEP. If
 * there is no space for it, the others are dropped one after the other, but never `sound`, the
 * newest one that is known to be good (0: there is none). *dropped (may be NULL) becomes the last
 * one that was, if any was. PS_EIO: there is none of that number, unless even removing it failed.
 */
int checkpoint_write_beside(const char *dir, const struct checkpoint *c, uint64_t sound,
	uint64_t *dropped, struct err *e) PS_MUST_CHECK;
/* The same; the highest generation before it is the sound one. */
int checkpoint_write(const char *dir, const struct checkpoint *c, struct err *e) PS_MUST_CHECK;
/* Remove the oldest generation before `next` other than `sound`, for its space. Returns it; 0: there
 * is none. */
uint64_t checkpoint_make_space(const char *dir, uint64_t sound, uint64_t next);
/* Remove what writes that were cut short have left. */
void checkpoint_clean(const char *dir);
/* Read one file. PS_ECHECKPOINT (corrupt) or PS_EIO; *c is zeroed then. Release with
 * checkpoint_release. */
int checkpoint_read(const char *path, struct checkpoint *c, struct err *e) PS_MUST_CHECK;
/*
 * Read the newest good generation of `dir`. A directory without any checkpoint: 0 with
 * c->generation == 0. Checkpoints there but none good: PS_ECHECKPOINT. Removes ckpt-*.tmp when
 * `clean`. *newest_seen (may be NULL) is the highest generation number that any file name claims.
 */
int checkpoint_read_newest(const char *dir, int clean, struct checkpoint *c, uint64_t *newest_seen,
	struct err *e) PS_MUST_CHECK;
/* The same below generation `before`, for a caller that refuses the content of that one. */
int checkpoint_read_older(
	const char *dir, uint64_t before, struct checkpoint *c, struct err *e) PS_MUST_CHECK;
/* The lowest generation that there is a file of; 0: none. */
uint64_t checkpoint_oldest(const char *dir);
/* Would `bytes` more still fit beside generation `sound`, once all other generations are dropped? 1
 * also when the file system does not say. */
int checkpoint_has_room(const char *dir, uint64_t sound, uint64_t bytes);
/* The section called `name`, or NULL. */
const struct checkpoint_section *checkpoint_find(const struct checkpoint *c, const char *name);
void checkpoint_release(struct checkpoint *c);

#endif
