/*
 * file.h - files that are whole or absent: atomic replace, bounded read, directory lock.
 *
 * Thread: any; no state.
 */
#ifndef COMMON_FILE_H
#define COMMON_FILE_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

/* 1: `error`, an errno, says that the disk has no space. */
int file_no_space(int error);

struct file_part {
	const void *data;
	size_t size; /* bytes */
};

/*
 * Replace dir/name by the concatenation of `parts`: write dir/name.tmp, fsync it, rename, fsync the
 * directory. On any error up to the rename the old file is untouched and the temporary one removed:
 * PS_EIO. After a failed fsync the file is never synced again: the caller writes a new one. `name`
 * is a plain name; what is there under it must be a regular file, or nothing. Without a descriptor
 * it waits, half a second at most. errno says what failed.
 */
int file_replace(const char *dir, const char *name, const struct file_part *parts, size_t n_parts,
	struct err *e) PS_MUST_CHECK;
/* Read a whole regular file of at most `max` bytes; *data is the caller's to free(). PS_EIO,
 * PS_ETOOBIG. */
int file_read(const char *path, size_t max, void **data, size_t *size, struct err *e) PS_MUST_CHECK;
/* Create `dir` (one level) if absent and check that it can be written to. PS_EUSAGE. */
int file_make_dir(const char *dir, struct err *e) PS_MUST_CHECK;
/*
 * Take an exclusive flock on dir/LOCK, write our pid into it and keep it until the process ends or
 * close(*fd). PS_ELOCKED names the holder's pid, within 0.1 s; a holder that is dying is waited
 * for.
 */
int file_lock_dir(const char *dir, int *fd, struct err *e) PS_MUST_CHECK;

#endif
