/*
 * io.h - writes all bytes of a buffer, with as many calls of write(2) as needed.
 *
 * Any thread may call the function, which has no state.
 */
#ifndef COMMON_IO_H
#define COMMON_IO_H
#include <stddef.h>
#include "common/err.h"

/* Writes all `size` bytes. If a signal interrupts a write, or if a write is short, the function
 * writes the rest. Returns 0 on success. Returns -1 and sets errno on failure; some bytes may then
 * have been written. */
int io_write_all(int fd, const void *data, size_t size) PS_MUST_CHECK;

#endif
