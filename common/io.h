/*
 * io.h - write(2) until all bytes are written.
 *
 * Thread: any; no state.
 */
#ifndef COMMON_IO_H
#define COMMON_IO_H
#include <stddef.h>
#include "common/err.h"

/* Write all of `size` bytes, whatever a signal or a short write leaves of them. 0, or -1 with errno;
 * then a part may have been written. */
int io_write_all(int fd, const void *data, size_t size) PS_MUST_CHECK;

#endif
