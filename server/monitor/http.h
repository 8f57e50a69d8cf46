/*
 * http.h - HTTP pages and streams of events, served by the loop.
 *
 * libmicrohttpd runs without a thread of its own. The event loop watches libmicrohttpd's epoll
 * descriptor, and a timer runs its time-outs. The server answers only GET and HEAD, except for the
 * form that sends the token by POST, the only request whose body it reads. The number of
 * connections, their memory and their idle time are bounded. A stream is a connection to /events
 * that receives the events of http_send. If a client does not read its events, the server closes
 * its stream.
 *
 * If the server requires a token, a client must send the token with every request except for
 * /healthz and /livez: in the header `Authorization: Bearer TOKEN`, or in a cookie, which the form
 * sets. Thread: the loop's.
 */
#ifndef SERVER_MONITOR_HTTP_H
#define SERVER_MONITOR_HTTP_H
#include <uv.h>
#include "common/err.h"

#define HTTP_TOKEN 257 /* bytes of a token, its NUL included */

struct http_page {
	unsigned code;    /* HTTP status; 0: no such page */
	const char *type; /* Content-Type, static */
	/* memory of malloc, which the server frees; NULL: the server answers with status 503 */
	char *text;
	/* if not NULL, fixed_bytes constant bytes, which the server sends instead of `text` */
	const void *fixed;
	size_t fixed_bytes;
};

/* Fills `page` with the answer to a request for `path`. */
typedef void http_page_fn(void *arg, const char *path, struct http_page *page);

struct http; /* opaque, see http.c */

/* Listens on `address`, which is "HOST:PORT", or "PORT" for a port of 127.0.0.1. Port 0 means any
 * free port. PS_EUSAGE, PS_ENOMEM. */
int http_new(struct http **out, uv_loop_t *loop, const char *address, http_page_fn *page, void *arg,
	struct err *e) PS_MUST_CHECK;
/* From now on, every client must send `token`, which must outlive `h`. If `token` is NULL, clients
 * need no token. */
void http_require(struct http *h, const char *token);
/* Reads a token from a file: 16 to 256 letters, digits, `-`, `.`, `_` and `~`. A newline may
 * follow. The file must have the owner and mode of a secret key's file (common/keys.h).
 * PS_EUSAGE. */
int http_read_token(const char *path, char token[HTTP_TOKEN], struct err *e) PS_MUST_CHECK;
/* Returns the number of streams. `h` may be NULL. */
unsigned http_watchers(const struct http *h);
/* Sends the one line `text` to all streams as an event called `name`. */
void http_send(struct http *h, const char *name, const char *text);
/* Returns the URL, such as "http://127.0.0.1:8080", with the actual port. */
const char *http_url(const struct http *h);
/* Returns 1 if the address is loopback, so that only this machine can connect. */
int http_is_loopback(const struct http *h);
/* Closes all connections and handles; the loop must run once more before http_free. Before that,
 * the function waits at most 1 s until the streams have sent their remaining events. */
void http_stop(struct http *h);
/* Frees *h and sets it to NULL; *h may be NULL. */
void http_free(struct http **h);

#endif
