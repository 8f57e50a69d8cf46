/*
 * http.h - read-only HTTP pages, served by the loop.
 *
 * libmicrohttpd runs without a thread of its own. The event loop watches libmicrohttpd's epoll
 * descriptor, and a timer runs its time-outs. The server answers only GET and HEAD. The number of
 * connections, their memory and their idle time are bounded, and the server does not read the body
 * of a request. Thread: the loop's.
 */
#ifndef SERVER_MONITOR_HTTP_H
#define SERVER_MONITOR_HTTP_H
#include <uv.h>
#include "common/err.h"

struct http_page {
	unsigned code;    /* HTTP status; 0: no such page */
	const char *type; /* Content-Type, static */
	char *text;       /* from malloc; the server frees it. NULL: 503 */
};

/* Fills `page` with the answer to a request for `path`. */
typedef void http_page_fn(void *arg, const char *path, struct http_page *page);

struct http; /* opaque, see http.c */

/* Listen on "HOST:PORT", or on "PORT" of 127.0.0.1 (0: any free one). PS_EUSAGE, PS_ENOMEM. */
int http_new(struct http **out, uv_loop_t *loop, const char *address, http_page_fn *page, void *arg,
	struct err *e) PS_MUST_CHECK;
/* The URL, such as "http://127.0.0.1:8080", with the actual port. */
const char *http_url(const struct http *h);
/* 1 if the address is loopback, so that only this machine can connect. */
int http_is_loopback(const struct http *h);
/* Close all connections and handles; the loop must run once more before http_free. */
void http_stop(struct http *h);
/* Frees *h and sets it to NULL; *h may be NULL. */
void http_free(struct http **h);

#endif
