/* share.c - see share.h. */
#include "common/share.h"
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE /* a constant of Linux 5.1, which older headers lack */
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define FIXED_SIZE (F_SEAL_SHRINK | F_SEAL_GROW)
#define BACKLOG    64

/* ---- memory ---------------------------------------------------------------------------------- */

int share_new(const char *name, size_t bytes, int *fd)
{
	*fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0)
		return PS_EIO;
	if (ftruncate(*fd, (off_t)bytes) == 0 && fcntl(*fd, F_ADD_SEALS, FIXED_SIZE) == 0)
		return PS_OK;
	close(*fd);
	*fd = -1;
	return PS_EIO;
}

void *share_map(int fd, size_t bytes, int writable)
{
	void *at =
		mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);

	return at == MAP_FAILED ? NULL : at;
}

int share_freeze(int fd)
{
	return fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0 ? PS_OK : PS_EIO;
}

int share_is_sound(int fd, size_t bytes)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && (seals & FIXED_SIZE) == FIXED_SIZE && fstat(fd, &st) == 0 &&
	       (uint64_t)st.st_size >= bytes;
}

/* ---- sockets --------------------------------------------------------------------------------- */

static int new_socket(const char *path, struct sockaddr_un *at, struct err *e)
{
	size_t n = strlen(path);

	*at = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (n < 1 || n > SHARE_PATH)
		return err_set(e, PS_EUSAGE, "%.60s...: a socket's path has at most %u bytes", path,
			SHARE_PATH);
	memcpy(at->sun_path, path, n + 1);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	return fd >= 0 ? fd : err_set(e, PS_EIO, "no socket: %s", strerror(errno));
}

static int connect_to(int fd, const struct sockaddr_un *at)
{
	return connect(fd, (const struct sockaddr *)at, sizeof(*at));
}

/* Removes the file of a socket on which nobody listens. Returns PS_EUSAGE if a process listens on
 * the socket, or if the file is not a socket. */
static int remove_stale(const char *path, struct err *e)
{
	struct sockaddr_un at;
	struct stat st;

	if (lstat(path, &st) != 0)
		return PS_OK;
	if (!S_ISSOCK(st.st_mode))
		return err_set(e, PS_EUSAGE, "%.200s is not a socket", path);
	int fd = new_socket(path, &at, e);
	if (fd < 0)
		return fd;
	int refused = connect_to(fd, &at) != 0 && errno == ECONNREFUSED;
	close(fd);
	if (!refused)
		return err_set(e, PS_EUSAGE, "a process listens on %.200s", path);
	(void)unlink(path);
	return PS_OK;
}

int share_listen(const char *path, int *fd, struct err *e)
{
	struct sockaddr_un at;

	*fd = -1;
	int made = new_socket(path, &at, e);
	if (made < 0)
		return made;
	int rc = remove_stale(path, e);
	/* set the mode of the socket before bind, because the file gets this mode */
	if (!rc && (fchmod(made, 0600) != 0 ||
			   bind(made, (const struct sockaddr *)&at, sizeof(at)) != 0 ||
			   listen(made, BACKLOG) != 0))
		rc = err_set(e, PS_EUSAGE, "%.200s: %s", path, strerror(errno));
	if (rc)
		close(made);
	else
		*fd = made;
	return rc;
}

int share_connect(const char *path, int *fd, struct err *e)
{
	struct sockaddr_un at;

	*fd = -1;
	int made = new_socket(path, &at, e);
	if (made < 0)
		return made;
	if (connect_to(made, &at) != 0) {
		err_set(e, PS_EUNREACHABLE, "%.200s: %s", path, strerror(errno));
		close(made);
		return PS_EUNREACHABLE;
	}
	*fd = made;
	return PS_OK;
}

int share_send(int socket, const void *data, size_t size, const int *fds, size_t n)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(SHARE_MAX_FDS * sizeof(int))] = {0};
	struct iovec part = {.iov_len = size};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};

	/* copy the pointer to drop `const`: sendmsg does not change the bytes */
	memcpy(&part.iov_base, &data, sizeof(data));
	if (n > SHARE_MAX_FDS)
		return PS_ENET;
	if (n > 0) {
		m.msg_control = control;
		m.msg_controllen = CMSG_SPACE(n * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	}
	return sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size ? PS_OK : PS_ENET;
}

/* Gets the descriptors of a received message and returns their number. */
static size_t take_fds(struct msghdr *m, int fds[SHARE_MAX_FDS])
{
	size_t n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < here; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (n < SHARE_MAX_FDS)
				fds[n++] = fd;
			else
				close(fd);
		}
	}
	return n;
}

int share_receive(int socket, void *data, size_t size, int *fds, size_t n)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(SHARE_MAX_FDS * sizeof(int))];
	struct iovec part = {.iov_base = data, .iov_len = size};
	struct msghdr m = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	int got[SHARE_MAX_FDS];

	ssize_t bytes = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (bytes < 0)
		return errno == EAGAIN || errno == EINTR ? PS_EAGAIN : PS_EUNREACHABLE;
	size_t here = take_fds(&m, got);
	if (bytes == (ssize_t)size && here == n && !(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		for (size_t i = 0; i < n; i++) /* fds may be NULL if n is 0 */
			fds[i] = got[i];
		return PS_OK;
	}
	for (size_t i = 0; i < here; i++)
		close(got[i]);
	return bytes == 0 && here == 0 ? PS_EUNREACHABLE : PS_EPROTO;
}
