/*
 * tsan.h - replaces calls of openat by calls of open. The build with ThreadSanitizer includes this
 * file before every source file.
 *
 * ThreadSanitizer does not notice calls of openat, and does not notice that libuv closes
 * descriptors by a bare system call. If openat then returns the number of such a closed descriptor,
 * ThreadSanitizer takes the new file for the connection that had this number before. If another
 * thread used that connection, ThreadSanitizer reports a race that does not exist. ThreadSanitizer
 * does notice calls of open, so tsan_openat calls open instead of openat.
 */
#ifndef TESTS_SUPPORT_TSAN_H
#define TESTS_SUPPORT_TSAN_H

#include <fcntl.h>

/* Opens the file `name` of the directory `dir`. The buffer `path` receives the path of the file. */
int tsan_openat(char path[512], int dir, const char *name, int flags, unsigned mode);

#define openat(dir, name, flags, mode) tsan_openat((char[512]){0}, dir, name, flags, mode)

#endif
