/*
 * dispatch.h - one turn of the server: an event into the journal and the core, its effects out.
 *
 * What an effect says leaves when the events that it follows from are on disk (wal.h);
 * without a journal at once. Thread: the loop's.
 */
#ifndef SERVER_DISPATCH_H
#define SERVER_DISPATCH_H
#include "server/server.h"
#include "server/monitor/status.h"

/* The time that counts: a server that was stopped heard nobody, and that is nobody's silence. */
uint64_t turn_now(struct server *s);
/* `f`: the frames of EVENT_MESSAGE, else NULL. Replies leave at the next router_flush. */
void turn(struct server *s, const struct event *ev, struct frames *f);
/* The functions of the router (net.h); `arg`: the struct server. */
void on_router_message(void *arg, uint32_t peer, const struct msg *m, struct frames *f);
void on_gone(void *arg, uint32_t peer);
/* An event that is no message. */
void raise_event(struct server *s, const struct event *ev);
/* More pushes wait for the disk than honest workers could have sent: let this one be lost, as the
 * network might have done. */
int turn_is_flooded(const struct server *s, const struct msg *m);
/* The server as it is now. */
void turn_look(const struct server *s, struct status *out);

#endif
