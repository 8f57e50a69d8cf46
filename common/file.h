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

/* Returns 1 if `error`, an errno, means that the disk is full. */
int file_no_space(int error);

struct file_part {
	const void *data;
	size_t size; /* bytes */
};

/*
 * Replaces dir/name by the concatenation of `parts`: the function writes dir/name.tmp, syncs it,
 * renames it and syncs the directory. If a step up to the rename fails, the old file is untouched,
 * the temporary file is removed and the result is PS_EIO. After a failed fsync the file is never
 * synced again: the caller writes a new one. `name` has no slash, and names a regular file or
 * nothing. If the process has no free file descriptor, the function waits for one, for half a
 * second at most. After a failure, errno has the cause.
 */
int file_replace(const char *dir, const char *name, const struct file_part *parts, size_t n_parts,
	struct err *e) PS_MUST_CHECK;
/* Like file_replace, for the file `path`. */
int file_replace_path(const char *path, const struct file_part *parts, size_t n_parts,
	struct err *e) PS_MUST_CHECK;
/* Reads a whole regular file of at most `max` bytes. The caller must free() *data. PS_EIO,
 * PS_ETOOBIG. */
int file_read(const char *path, size_t max, void **data, size_t *size, struct err *e) PS_MUST_CHECK;
/* Creates `dir` (one level) if absent and checks that it can be written to. PS_EUSAGE. */
int file_make_dir(const char *dir, struct err *e) PS_MUST_CHECK;
/*
 * Takes an exclusive flock on dir/LOCK and writes our pid into the file. The lock lasts until
 * close(*fd) or the end of the process. PS_ELOCKED, within 0.1 s: another process has the lock; the
 * message names its pid. If that process is ending, the function waits for its end, for 5 s at
 * most.
 */
int file_lock_dir(const char *dir, int *fd, struct err *e) PS_MUST_CHECK;

#endif
