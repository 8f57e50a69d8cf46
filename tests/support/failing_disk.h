/*
 * failing_disk.h - a write and an fdatasync that fail when a test sets a counter. The file replaces
 * these two calls in the whole program, so the Makefile links it only into the test programs that
 * need it.
 *
 * Set the counters only while the threads of libuv's pool are idle. A write of 8 bytes or less
 * never fails, because libuv wakes its loop with such writes.
 */
#ifndef TESTS_SUPPORT_FAILING_DISK_H
#define TESTS_SUPPORT_FAILING_DISK_H
#include <stdatomic.h>

/* the number of calls that succeed before calls fail; -1: no call fails */
extern int disk_writes_left, disk_syncs_left;
extern atomic_int disk_sync_hangs; /* while this variable is not 0, fdatasync does not return */
/* while this variable is not 0, writes of this thread do not fail */
extern _Thread_local int disk_exempt;

#endif
