/*
 * disk.h - a directory on a disk that keeps only what POSIX promises, under the real code.
 *
 * The simulator links common/file.c, common/checkpoint.c, server/durability/checkpointer.c and
 * server/durability/startup.c as they are; calls.c catches their calls of the C library (ld --wrap)
 * and brings them here.
 *
 * What survives a power cut: of a file, what its last fsync found, and of later writes any
 * sectors in any order, over the old size or the new; of the directory's entries, what its last
 * fsync found, and of later links, renames and unlinks either the first few or any of them. A
 * rename is whole. A killed process loses nothing that was written, but may be killed in the middle
 * of a write.
 *
 * Invariant: all randomness is `rng`'s, so a seed replays. Thread: one.
 */
#ifndef TESTS_SIM_DISK_H
#define TESTS_SIM_DISK_H
#include <stddef.h>
#include <stdint.h>
#include "common/rng.h"

#define DISK_DIRECTORY "disk" /* its name for the code above */
#define DISK_FILES     64
#define DISK_CHANGES   48
#define DISK_OPEN      8
#define DISK_NAME      40
#define DISK_SECTOR    512u
#define DISK_NEVER     UINT32_MAX

struct disk_file {
	unsigned char *now, *safe; /* as processes see it; as the last fsync left it */
	size_t size, safe_size, room;
	int dirty;
};

/* An entry of the directory. */
struct disk_name {
	char text[DISK_NAME];
	int file; /* < 0: no entry */
};

enum disk_change_kind { CHANGE_LINK, CHANGE_UNLINK, CHANGE_RENAME };

/* What was done to the directory since its last fsync. */
struct disk_change {
	enum disk_change_kind kind;
	char name[DISK_NAME], to[DISK_NAME];
	int file;
};

struct disk_open {
	int file; /* < 0: closed */
	int is_directory, locked;
	size_t at;
};

struct disk {
	struct rng rng;
	struct disk_file file[DISK_FILES];
	struct disk_name now[DISK_FILES], safe[DISK_FILES];
	struct disk_change change[DISK_CHANGES];
	size_t n_changes;
	struct disk_open open[DISK_OPEN];
	size_t listing; /* readdir's place */

	/* weather, per 1000 operations */
	uint32_t fails;   /* writes, syncs, renames end with EIO or ENOSPC */
	uint32_t shorts;  /* writes that take less than was asked for */
	uint32_t forgets; /* syncs that say they did and did not: no promise holds any more */

	uint64_t capacity; /* bytes of all files; 0: it is never full */
	uint32_t full;     /* writes that found no space */

	uint32_t ops_left;   /* changes until the process is killed in one; DISK_NEVER: it lives */
	int dead;            /* it was: nothing that it still calls happens */
	int broken;          /* it lost something that it had promised to keep ... */
	int lied;            /* ... and can have lost anything of the last while */
	uint32_t peak_names; /* entries at once, so far */
	uint64_t ops, cuts;
};

void disk_init(struct disk *d);
void disk_release(struct disk *d);
/* An empty directory on a disk in good weather. */
void disk_reset(struct disk *d, struct rng rng);
/* The process is gone: what it had open is closed, its lock free. A new one may start. */
void disk_killed(struct disk *d);
void disk_power_cut(struct disk *d);
/* Flip a byte of the newest file whose name begins with `prefix`. */
void disk_rot(struct disk *d, const char *prefix);
/* Entries whose name begins with `prefix`. */
uint32_t disk_count(const struct disk *d, const char *prefix);

/* As the system calls of these names: -1 with errno. `name` is a plain name. */
int disk_open_directory(struct disk *d);
int disk_open_file(struct disk *d, const char *name, int flags);
int disk_close(struct disk *d, int fd);
long disk_read(struct disk *d, int fd, void *bytes, size_t n);
long disk_write(struct disk *d, int fd, const void *bytes, size_t n);
int disk_truncate(struct disk *d, int fd, size_t size);
int disk_seek(struct disk *d, int fd, size_t at);
int disk_sync(struct disk *d, int fd);
int disk_rename(struct disk *d, const char *name, const char *to);
int disk_unlink(struct disk *d, const char *name);
int disk_lock(struct disk *d, int fd);
/* Size of a file; -1: there is none. */
long disk_size_of(struct disk *d, const char *name);
long disk_size(struct disk *d, int fd);
/* The next entry's name after disk_rewind, or NULL. */
void disk_rewind(struct disk *d);
const char *disk_next(struct disk *d);

#endif
