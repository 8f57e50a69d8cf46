/* output.c - the standard output of the commands. */
#include <poll.h>
#include <signal.h>
#include <unistd.h>
#include "worker/ctl/ctl.h"

void ctl_end_if_unread(void)
{
	struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};

	if (poll(&out, 1, 0) == 1 && out.revents & POLLERR) {
		signal(SIGPIPE, SIG_DFL);
		raise(SIGPIPE);
	}
}
