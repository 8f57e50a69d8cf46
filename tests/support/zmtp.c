/* zmtp.c - see zmtp.h. */
#include "tests/support/zmtp.h"
#include <sys/socket.h>

#define GREETING_BYTES 64

void zmtp_greet(int fd)
{
	static const unsigned char greeting[GREETING_BYTES] = {
		0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
	static const unsigned char ready[] = "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
					     "DEALER";

	(void)!send(fd, greeting, sizeof(greeting), MSG_NOSIGNAL);
	(void)!send(fd, ready, sizeof(ready) - 1, MSG_NOSIGNAL);
}

void zmtp_greet_curve(int fd)
{
	static const unsigned char greeting[GREETING_BYTES] = {
		0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'C', 'U', 'R', 'V', 'E'};

	(void)!send(fd, greeting, sizeof(greeting), MSG_NOSIGNAL);
}
