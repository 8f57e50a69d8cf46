/*
 * failing_disk.h - a disk that fails. It replaces write and fdatasync of the whole program, so the
 * Makefile links it only into the programs that it names.
 *
 * Set the counters while the threads of libuv's pool are idle. A write of 8 bytes or less never
 * fails: libuv wakes its loop with such writes.
 */
#ifndef TESTS_SUPPORT_FAILING_DISK_H
#define TESTS_SUPPORT_FAILING_DISK_H
#include <stdatomic.h>

extern int disk_writes_left, disk_syncs_left; /* calls until they fail; -1: they never fail */
extern atomic_int disk_sync_hangs;            /* fdatasync does not return while this is set */
extern _Thread_local int disk_exempt;         /* writes of this thread do not fail */

#endif
