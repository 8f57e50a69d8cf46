/*
 * dispatch.h - turns messages and other inputs into events of the core, and carries out the effects
 * of the core. Each event goes to the write-ahead log and to the core. The server carries out all
 * effects of an event before it takes the next event.
 *
 * With a write-ahead log, the server sends a reply that reports a decision only after the events
 * that led to the decision are on disk (wal.h). Without a log, the server sends the reply at once.
 * Only the loop's thread may call these functions.
 */
#ifndef SERVER_DISPATCH_H
#define SERVER_DISPATCH_H
#include "server/server.h"
#include "server/monitor/status.h"

/* The router calls dispatch_message for each message and dispatch_gone for each lost connection
 * (net.h), and then flushes the replies. `arg` is the struct server. */
void dispatch_message(void *arg, uint32_t peer, const struct msg *m, struct frames *f);
void dispatch_gone(void *arg, uint32_t peer);
/* Dispatches an event that is not a message, and sends the replies at once. */
void dispatch_event(struct server *s, const struct event *ev);
/* Dispatches one event and carries out its effects. `f` has the frames of the message if the event
 * is an EVENT_MESSAGE, otherwise it is NULL. The next call of router_flush sends the replies. */
void dispatch(struct server *s, const struct event *ev, struct frames *f);
/* Drains the run if it has met the rule of --stop-at or of --patience-epochs. Must be called after
 * each evaluation (stop_rule.h). The next call of router_flush sends the replies. */
void dispatch_stop_rule(struct server *s);
/* Returns the present time on the core's clock, in ms. This time does not advance while the server
 * process is stopped, so that no worker seems silent after a stop. */
uint64_t dispatch_now(struct server *s);
/* Writes the current state of the server to *out. */
void dispatch_status(const struct server *s, struct status *out);
/* Sends the status `now` to all open pages. */
void dispatch_show_status(struct server *s, const struct status *now);

#endif
