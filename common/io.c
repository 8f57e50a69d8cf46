/* io.c - see io.h. */
#include "common/io.h"
#include <errno.h>
#include <unistd.h>

int io_write_all(int fd, const void *data, size_t size)
{
	const char *at = data;

	while (size > 0) {
		ssize_t done = write(fd, at, size);

		if (done < 0 && errno == EINTR)
			continue;
		if (done == 0)
			errno = EIO;
		if (done <= 0)
			return -1;
		at += done;
		size -= (size_t)done;
	}
	return 0;
}
