/* notify.c - see notify.h. */
#include "server/monitor/notify.h"
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/log.h"

void notify_manager(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int fd;

	/* the address must be a path, or "@" and an abstract name */
	if (!path || (path[0] != '/' && path[0] != '@'))
		return;
	if (strlen(path) >= sizeof(to.sun_path)) {
		log_warn("server", "notify_failed", "reason=\"NOTIFY_SOCKET is too long\"");
		return;
	}
	memcpy(to.sun_path, path, strlen(path));
	if (to.sun_path[0] == '@')
		to.sun_path[0] = '\0';
	if ((fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) < 0)
		return;
	if (sendto(fd, state, strlen(state), MSG_DONTWAIT | MSG_NOSIGNAL,
		    (const struct sockaddr *)&to,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path))) < 0)
		log_warn("server", "notify_failed", "reason=\"%s\"", strerror(errno));
	(void)close(fd);
}
