/*
 * judge.h - a thread that reads the allow-list and decides on keys, so that a disk that hangs under
 * the list does not hang the server.
 *
 * It touches no socket. Questions go in and come back by two bounded queues; `wake` is signalled
 * when one came back. A judge that hangs is given up (judge_give_up) and another started: what the
 * old one still says is thrown away.
 *
 * Thread: every function is for the loop's thread.
 */
#ifndef SERVER_AUTH_JUDGE_H
#define SERVER_AUTH_JUDGE_H
#include <stdint.h>
#include <uv.h>
#include "common/allow.h"
#include "common/err.h"

#define JUDGE_ID_BYTES      8
#define JUDGE_REQUEST_BYTES 255
#define JUDGE_ADDRESS_BYTES 64

/* How a list is read: allow_read, or a test's. */
typedef int judge_read_fn(struct allow **out, const char *path, struct err *e);

/* One thing to do; freed by who holds it. */
struct question {
	int reload;         /* 1: read the list again; 0: judge `key` */
	char key[KEY_TEXT]; /* as the handshake proved it */
	enum key_role role; /* out */
	struct allow *list; /* out of reload: the new list, or NULL and */
	struct err why;     /* ... why not */
	/* where the answer goes: the loop's business */
	unsigned char peer[JUDGE_ID_BYTES], request[JUDGE_REQUEST_BYTES];
	size_t peer_bytes, request_bytes;
	char address[JUDGE_ADDRESS_BYTES];
};

struct judge; /* opaque, see judge.c */

/* Start one that knows `list` (copied) and reads `path`. PS_ENOMEM. */
int judge_start(struct judge **out, const struct allow *list, const char *path, judge_read_fn *read,
	uv_async_t *wake) PS_MUST_CHECK;
/* Hand *q over and null it. PS_EAGAIN: too many wait. */
int judge_ask(struct judge *j, struct question **q) PS_MUST_CHECK;
/* The oldest that came back, the caller's now; NULL: none. */
struct question *judge_answer(struct judge *j);
/* It hangs: it will be heard no more, nor touch `wake`. What it has not begun goes to `heir`, as
 * far as there is room; how many questions those are. */
size_t judge_give_up(struct judge *j, struct judge *heir);
/* Has a judge that was given up come to its end? */
int judge_ended(const struct judge *j);
/* End it and null it. One that hangs still is left as it is: its thread ends with the process. */
void judge_stop(struct judge **j);
void question_free(struct question **q);

#endif
