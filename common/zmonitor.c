/* zmonitor.c - see zmonitor.h. */
#include "common/zmonitor.h"
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define EVENT_BYTES 6 /* bytes of an event: u16 number and u32 value, native byte order */

void *zmonitor_open(void *context, void *socket, int events)
{
	void *monitor = zmq_socket(context, ZMQ_PAIR);
	const int none = 0, unlimited = 0;
	char name[64];

	if (!monitor)
		return NULL;
	snprintf(name, sizeof(name), "inproc://monitor-%p", socket);
	if (zmq_setsockopt(monitor, ZMQ_RCVHWM, &unlimited, sizeof(unlimited)) ||
		zmq_setsockopt(monitor, ZMQ_LINGER, &none, sizeof(none)) ||
		zmq_socket_monitor(socket, name, events) || zmq_connect(monitor, name)) {
		int first_errno = errno;

		zmonitor_close(socket, &monitor);
		errno = first_errno;
	}
	return monitor;
}

int zmonitor_next(void *monitor, struct zmonitor_event *e)
{
	unsigned char bytes[EVENT_BYTES];
	size_t size = sizeof(int);
	int more = 0, n;
	uint16_t number;

	*e = (struct zmonitor_event){0, 0};
	do
		n = zmq_recv(monitor, bytes, sizeof(bytes), ZMQ_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return 0;
	if (n == EVENT_BYTES) {
		memcpy(&number, bytes, sizeof(number));
		memcpy(&e->value, bytes + sizeof(number), sizeof(e->value));
		e->number = number;
	}
	/* discard the second frame, which has the endpoint */
	while (!zmq_getsockopt(monitor, ZMQ_RCVMORE, &more, &size) && more)
		if (zmq_recv(monitor, NULL, 0, ZMQ_DONTWAIT) < 0)
			break;
	return 1;
}

void zmonitor_close(void *socket, void **monitor)
{
	if (!*monitor)
		return;
	zmq_socket_monitor(socket, NULL, 0);
	zmq_close(*monitor);
	*monitor = NULL;
}
