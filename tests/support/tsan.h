/*
 * tsan.h - included before every file when ThreadSanitizer checks the program.
 *
 * ThreadSanitizer does not intercept openat, and does not see that libuv closes descriptors by a
 * bare system call. So if openat returns the number of a connection that libuv has closed, it takes
 * the new file for the old connection, which belonged to another thread, and reports a race. It
 * does see open, which makes the number a new file.
 */
#ifndef TESTS_SUPPORT_TSAN_H
#define TESTS_SUPPORT_TSAN_H

#include <fcntl.h>
#include <stdio.h>

/* Like openat with a mode. `dir` is an open directory. */
static inline int tsan_openat(int dir, const char *name, int flags, unsigned mode)
{
	char path[512];

	snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", dir, name);
	return open(path, flags, mode);
}

#define openat(dir, name, flags, mode) tsan_openat(dir, name, flags, mode)

#endif
