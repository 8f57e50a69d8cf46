/*
 * failing_disk.h - a disk that fails. It replaces write and fdatasync in the whole program. So the
 * Makefile links it only into the test programs that it lists.
 *
 * Set the counters only while the threads of libuv's pool are idle. A write of 8 bytes or less
 * never fails, because libuv wakes its loop with such writes.
 */
#ifndef TESTS_SUPPORT_FAILING_DISK_H
#define TESTS_SUPPORT_FAILING_DISK_H
#include <stdatomic.h>

/* calls until the next call fails; -1: calls never fail */
extern int disk_writes_left, disk_syncs_left;
extern atomic_int disk_sync_hangs;    /* fdatasync does not return while this is set */
extern _Thread_local int disk_exempt; /* writes of this thread do not fail */

#endif
