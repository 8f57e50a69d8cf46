/*
 * file.h - functions for files: replace a file atomically, read a file up to a limit, lock a
 * directory.
 *
 * Any thread may call the functions, which have no state.
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
	size_t size; /* size of the data in bytes */
};

/*
 * Replaces dir/name by the concatenation of `parts`. The function writes dir/name.tmp, syncs it,
 * renames it and syncs the directory. If the rename or an earlier step fails, the function removes
 * the temporary file, leaves the old file untouched, and returns PS_EIO. If only the last step
 * fails, the new file has the name, but may not be durable, and the function returns PS_EIO, too.
 * After a failed fsync, the caller must not sync the same file again, but write a new one. `name`
 * has no slash; if a file of this name exists, it is a regular file. If the process has no free
 * file descriptor, the function waits up to half a second for one. After a failure, errno has the
 * cause.
 */
int file_replace(const char *dir, const char *name, const struct file_part *parts, size_t n_parts,
	struct err *e) PS_MUST_CHECK;
/* Does the same as file_replace, but only the owner of the new file can read and write it, whatever
 * the umask. file_replace lets the umask decide who can read the file. */
int file_replace_private(const char *dir, const char *name, const struct file_part *parts,
	size_t n_parts, struct err *e) PS_MUST_CHECK;
/* Replaces the file `path`, as file_replace does. */
int file_replace_path(const char *path, const struct file_part *parts, size_t n_parts,
	struct err *e) PS_MUST_CHECK;
/* Reads the whole regular file `path`. The caller must free() *data. Returns PS_ETOOBIG if the file
 * has more than `max` bytes. Other error: PS_EIO. */
int file_read(const char *path, size_t max, void **data, size_t *size, struct err *e) PS_MUST_CHECK;
/* Creates the directory `dir` if it does not exist (but not its parents), and checks that it is
 * writable. Error: PS_EUSAGE. */
int file_make_dir(const char *dir, struct err *e) PS_MUST_CHECK;
/* Does the same as file_make_dir, and also creates missing parents. */
int file_make_dirs(const char *dir, struct err *e) PS_MUST_CHECK;
/* These functions check a path that a user gave, before a command uses it. The text `expected`,
 * which says what the user should give, is the end of the message. They return PS_EUSAGE if the
 * path does not exist, if it is not a directory or not a regular file as required, or if this
 * process may not use it. file_check_dir accepts a directory that exists and can be read. */
int file_check_dir(const char *dir, const char *expected, struct err *e) PS_MUST_CHECK;
/* file_check_readable accepts a file that exists and can be read. */
int file_check_readable(const char *path, const char *expected, struct err *e) PS_MUST_CHECK;
/* file_check_target accepts a file that file_replace_path can make or replace. Returns PS_EIO if
 * the path is too long. */
int file_check_target(const char *path, struct err *e) PS_MUST_CHECK;
/*
 * Takes an exclusive flock on dir/LOCK and writes the pid of this process into the file. The lock
 * lasts until close(*fd) or the end of the process. If another process has the lock, returns
 * PS_ELOCKED, and the message names the pid of that process. The function usually returns this
 * error within 0.1 s. If that process is ending, the function first waits up to 5 s for its end.
 */
int file_lock_dir(const char *dir, int *fd, struct err *e) PS_MUST_CHECK;

#endif
