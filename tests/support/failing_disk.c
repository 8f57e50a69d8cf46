/* failing_disk.c - see failing_disk.h. */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "tests/support/failing_disk.h"

int disk_writes_left = -1, disk_syncs_left = -1;
atomic_int disk_sync_hangs;
_Thread_local int disk_exempt;

ssize_t write(int fd, const void *bytes, size_t n)
{
	if (n > 8 && !disk_exempt && disk_writes_left >= 0 && disk_writes_left-- == 0) {
		disk_writes_left = 0;
		errno = ENOSPC;
		return -1;
	}
	return syscall(SYS_write, fd, bytes, n);
}

int fdatasync(int fd)
{
	while (atomic_load(&disk_sync_hangs))
		usleep(1000);
	if (disk_syncs_left >= 0 && disk_syncs_left-- == 0) {
		disk_syncs_left = 0;
		errno = EIO;
		return -1;
	}
	return (int)syscall(SYS_fdatasync, fd);
}
