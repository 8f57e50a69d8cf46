/*
 * dispatch.h - messages and other events in, effects out. A message becomes an event of the core; an
 * event goes to the write-ahead log and the core; each effect is carried out before the next event.
 *
 * A message that promises something leaves when the events that it follows from are on disk
 * (wal.h); without a log at once.
 * Thread: the loop's.
 */
#ifndef SERVER_DISPATCH_H
#define SERVER_DISPATCH_H
#include "server/server.h"
#include "server/monitor/status.h"

/* The functions of the router (net.h), which flushes the replies; `arg`: the struct server. */
void dispatch_message(void *arg, uint32_t peer, const struct msg *m, struct frames *f);
void dispatch_gone(void *arg, uint32_t peer);
/* An event that is no message. Its replies leave at once. */
void dispatch_event(struct server *s, const struct event *ev);
/* One event, and its effects. `f`: the frames of EVENT_MESSAGE, else NULL. Replies leave at the next
 * router_flush. */
void dispatch(struct server *s, const struct event *ev, struct frames *f);
/* The time that counts: while the server was stopped, no worker was silent. */
uint64_t dispatch_now(struct server *s);
/* The server as it is now. */
void dispatch_status(const struct server *s, struct status *out);

#endif
