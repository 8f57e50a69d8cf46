/* output.c - the standard output of the commands. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/plain.h"
#include "common/utf8.h"
#include "worker/ctl/ctl.h"

void ctl_end_if_unread(void)
{
	struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};

	if (poll(&out, 1, 0) == 1 && out.revents & POLLERR) {
		signal(SIGPIPE, SIG_DFL);
		raise(SIGPIPE);
	}
}

void ctl_print_plain(const char *text)
{
	char plain[1024];

	snprintf(plain, sizeof(plain), "%s", text);
	plain_text(plain, 0);
	fputs(plain, stdout);
}

json_t *ctl_json_text(const char *text)
{
	char plain[4097];
	json_t *o = json_string(text);

	if (o)
		return o;
	snprintf(plain, sizeof(plain), "%s", text);
	plain_text(plain, 0);
	return json_string(plain);
}

/* A newline stays as it is: it lies between two values, because a string of JSON has no newline.
 * All other control characters lie in strings, in which an escape sequence has the same meaning. */
int ctl_print_json(const json_t *o, size_t flags, const char *also)
{
	char *text = json_dumps(o, flags);
	const uint8_t *at = (const uint8_t *)text, *end = at ? at + strlen(text) : NULL;

	if (!text)
		return PS_ENOMEM;
	while (at < end) {
		size_t n = utf8_length(at, end);
		uint32_t c = n ? plain_code_point(at, n) : '?';

		n = n ? n : 1;
		if ((plain_is_control(c) && c != '\n') || (c < 0x80 && strchr(also, (int)c)))
			printf("\\u%04x", c);
		else if (c == '?')
			putchar('?');
		else
			fwrite(at, 1, n, stdout);
		at += n;
	}
	free(text);
	return PS_OK;
}
