/*
 * http.h - read-only HTTP pages, served by the loop.
 *
 * libmicrohttpd has no thread: the loop watches its epoll descriptor, and a timer its time-outs.
 * GET and HEAD only. The number of connections, their memory and their idle time are bounded, and
 * the body of a request is not read. Thread: the loop's.
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

/* Answer `path`. */
typedef void http_page_fn(void *arg, const char *path, struct http_page *page);

struct http; /* opaque, see http.c */

/* Listen on "HOST:PORT", or on "PORT" of 127.0.0.1 (0: any free one). PS_EUSAGE, PS_ENOMEM. */
int http_new(struct http **out, uv_loop_t *loop, const char *address, http_page_fn *page, void *arg,
	struct err *e) PS_MUST_CHECK;
/* "http://127.0.0.1:8080", with the real port. */
const char *http_url(const struct http *h);
/* 1: only this machine reaches it. */
int http_is_loopback(const struct http *h);
/* Close all connections and handles; the loop must run once more before http_free. */
void http_stop(struct http *h);
/* Frees and nulls *h; NULL is fine. */
void http_free(struct http **h);

#endif
