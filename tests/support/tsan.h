/*
 * tsan.h - a replacement of openat. The build with ThreadSanitizer includes this file before every
 * source file.
 *
 * ThreadSanitizer does not intercept openat, and does not see that libuv closes descriptors by a
 * bare system call. If openat returns the number of a descriptor that libuv has closed,
 * ThreadSanitizer takes the new file for the old connection. If another thread used that
 * connection, ThreadSanitizer reports a race that does not exist. ThreadSanitizer does intercept
 * open, so tsan_openat calls open instead.
 */
#ifndef TESTS_SUPPORT_TSAN_H
#define TESTS_SUPPORT_TSAN_H

#include <fcntl.h>

/* Opens the file `name` of the directory `dir`. The buffer `path` receives the path of the file. */
int tsan_openat(char path[512], int dir, const char *name, int flags, unsigned mode);

#define openat(dir, name, flags, mode) tsan_openat((char[512]){0}, dir, name, flags, mode)

#endif
