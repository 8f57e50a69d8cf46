/*
 * sessions.h - who speaks: HELLO, liveness, fencing, BYE; invariants in sessions.c.
 */
#ifndef SERVER_CORE_SESSIONS_H
#define SERVER_CORE_SESSIONS_H
#include "server/core/core.h"

struct worker;

/* Of a worker slot. The first group is in the snapshot (snapshot.c). */
struct worker_session {
	uint32_t incarnation;
	uint64_t born_term; /* term in which that incarnation was given */
	char name[WIRE_MAX_NAME + 1], device[WIRE_MAX_NAME + 1];
	struct data_id data; /* of its HELLO; not in what a restart reads */

	enum session_state state;
	uint32_t peer, beat_peer; /* connections; 0: none */
	uint64_t last_message_ms;
	uint64_t join_generation; /* the snapshot that will have this incarnation, until it is
				     durable: then JOINING is welcomed; else 0 */
	int leaving;              /* said BYE: answered once its pushes are durable */
	int overdue; /* AWAY: a recovery ended without it, so the next one does not wait for it */
};

/* Beside 1 << state: it has said BYE and waits for the answer. */
#define SESSION_LEAVING (1u << 31)
void sessions_on_hello(struct core *c, struct worker *w, const struct event *ev);
void sessions_on_beat(struct core *c, struct worker *w, const struct event *ev);
void sessions_on_bye(struct core *c, struct worker *w, const struct event *ev);
/* The stamp's worker if it may speak, which depends on its state (`states`: bits); else answers
 * ERROR and returns NULL. */
struct worker *sessions_check(
	struct core *c, const struct stamp *s, uint32_t peer, uint32_t states);
void sessions_tick(struct core *c);
void sessions_peer_gone(struct core *c, uint32_t peer);
/* Snapshot `generation` is on disk: welcome those who waited for it, tell the others what is
 * durable. */
void sessions_durable(struct core *c, uint64_t generation);
/* A snapshot is not on disk: those that wait for it to be welcomed are told why they wait. */
void sessions_save_failed(struct core *c);
/* Note each ledger's position as the snapshot under way has it. */
void sessions_snapshot(struct core *c);
/* We have just started from a snapshot: the silence of its workers counts from now. */
void sessions_awaited(struct core *c);
/* The recovery is over: whoever is still away is not waited for by the next one. */
void sessions_overdue(struct core *c);
/* No worker of the snapshot is missing or still replaying. */
int sessions_all_back(const struct core *c);

#endif
