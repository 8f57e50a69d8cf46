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

/* Opens a file of the directory `dir`. `path` is a buffer. */
static inline int tsan_openat(char path[512], int dir, const char *name, int flags, unsigned mode)
{
	return snprintf(path, 512, "/proc/self/fd/%d/%s", dir, name), open(path, flags, mode);
}

#define openat(dir, name, flags, mode) tsan_openat((char[512]){0}, dir, name, flags, mode)

#endif
