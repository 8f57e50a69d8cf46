/*
 * http.h - HTTP pages and streams of events, served by the loop.
 *
 * libmicrohttpd runs without a thread of its own. The event loop watches libmicrohttpd's epoll
 * descriptor, and a timer runs its time-outs. The server answers only GET and HEAD, and one POST:
 * the form that sends the token. It reads the body of no other request. The number of connections,
 * their memory and their idle time are bounded. A stream is a connection to /events that receives
 * the events of http_send. If a client does not read its events, the server closes its stream. The
 * bytes that clients have not read are bounded, too: connections that request the same large text
 * share it, and if there are too many bytes, the server answers a request for another large text
 * with status 503.
 *
 * If the server requires a token, a client must send the token with every request except for
 * /healthz and /livez: in the header `Authorization: Bearer TOKEN`, or in a cookie, which the form
 * sets. Only the loop's thread may call these functions.
 */
#ifndef SERVER_MONITOR_HTTP_H
#define SERVER_MONITOR_HTTP_H
#include <uv.h>
#include "common/err.h"

#define HTTP_TOKEN 257 /* size of a buffer for a token, in bytes */

struct http_page {
	unsigned code;    /* HTTP status; 0: no such page */
	const char *type; /* value of Content-Type, a static text */
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
 * free port. Errors: PS_EUSAGE, PS_ENOMEM. */
int http_new(struct http **out, uv_loop_t *loop, const char *address, http_page_fn *page, void *arg,
	struct err *e) PS_MUST_CHECK;
/* From now on, the server answers only clients that send `token` (except for /healthz and /livez).
 * The text `token` must outlive `h`. If `token` is NULL, clients need no token. */
void http_require(struct http *h, const char *token);
/* Reads a token from a file: 16 to 256 letters, digits, `-`, `.`, `_` and `~`. A newline may follow
 * the token. The file must have the owner and mode of a secret key's file (common/keys.h). Error:
 * PS_EUSAGE. */
int http_read_token(const char *path, char token[HTTP_TOKEN], struct err *e) PS_MUST_CHECK;
/* Returns the number of streams. `h` may be NULL. */
unsigned http_watchers(const struct http *h);
/* Sends the one line `text` to all streams as an event called `name`. */
void http_send(struct http *h, const char *name, const char *text);
/* Returns the bytes of the large answers, at most 12 MiB or a single answer, and of the buffers of
 * the large streams, at most 8 MiB. `h` may be NULL. */
size_t http_large_bytes(const struct http *h);
/* Closes the connections of all large answers and all large streams (http_large_bytes), and frees
 * their memory. */
void http_end_large(struct http *h);
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
