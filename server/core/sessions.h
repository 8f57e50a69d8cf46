/*
 * sessions.h - the sessions of workers: HELLO, liveness, fencing, BYE; invariants in sessions.c.
 */
#ifndef SERVER_CORE_SESSIONS_H
#define SERVER_CORE_SESSIONS_H
#include "server/core/core.h"

struct worker;

/* How far a worker has got in leaving the run. */
enum leave {
	STAYS,
	/* the worker sent BYE, or is excluded, and gets the answer when its pushes are durable */
	LEAVES,
	HAS_LEFT /* the worker sent BYE and has the answer; its session is not resumed */
};

/* This struct has the session of a worker slot. Every snapshot contains the fields above the first
 * blank line, except `data` (snapshot.c). */
struct worker_session {
	uint32_t incarnation;
	uint64_t born_term; /* term in which the server assigned that incarnation */
	char name[WIRE_MAX_NAME + 1], device[WIRE_MAX_NAME + 1];
	char owner[WIRE_MAX_OWNER + 1]; /* the key of the worker; "": the server has no keys */
	/* data set in the worker's HELLO; only the session section of a snapshot contains it */
	struct data_id data;

	enum session_state state;
	uint32_t peer, heartbeat_peer; /* the worker's two connections; 0: none */
	uint64_t last_message_ms;
	/* in state SESSION_JOINING: number of the snapshot that will contain this incarnation. When
	 * this snapshot is durable, the server sends WELCOME and sets join_generation to 0. */
	uint64_t join_generation;
	enum leave leave;
	/* 1: a recovery ended while the worker was AWAY; the next recovery does not wait for this
	 * worker */
	int overdue;
	/* 1: the worker is AWAY, has been silent for dead_ms and is counted as lost, although it
	 * can still resume its session; the end of the session does not count it again */
	int lost;
	/* 1: the process is not the first one of the worker with this name */
	int restarted;
};

/* A set of session states is a bit mask with the bit 1 << state for each of its states. With the
 * additional bit SESSION_LEAVING, the set also contains workers that have sent BYE and wait for the
 * answer. */
#define SESSION_LEAVING (1u << 31)
void sessions_on_hello(struct core *c, struct worker *w, const struct event *ev);
void sessions_on_heartbeat(struct core *c, struct worker *w, const struct event *ev);
void sessions_on_bye(struct core *c, struct worker *w, const struct event *ev);
/* Returns the worker of stamp `s` if the worker's state is in `states` (a bit mask), and if the
 * run, the incarnation and the term in the stamp are current. Otherwise answers ERROR and returns
 * NULL. The ERROR to a fenced or excluded worker may have to wait for a checkpoint. */
struct worker *sessions_check(
	struct core *c, const struct stamp *s, uint32_t peer, uint32_t states);
void sessions_tick(struct core *c);
void sessions_peer_gone(struct core *c, uint32_t peer);
/* Called when snapshot `generation` is on disk: sends WELCOME to the workers that waited for this
 * snapshot, and reports to the other workers which of their pushes are durable. */
void sessions_durable(struct core *c, uint64_t generation);
/* Called when a snapshot could not be written: sends the reason to the workers that wait for
 * WELCOME. */
void sessions_save_failed(struct core *c);
/* Called when a snapshot is started: notes for each worker the newest seq that the snapshot
 * contains. */
void sessions_snapshot(struct core *c);
/* Called at the first step after a start from a snapshot: the time for which the snapshot's workers
 * have been silent counts from now. */
void sessions_awaited(struct core *c);
/* Called when the recovery is over: marks the workers that are still away, so that the next
 * recovery does not wait for them. */
void sessions_overdue(struct core *c);
/* Returns 1 if all workers of the snapshot are back and have replayed their pushes. Workers for
 * which an earlier recovery has waited in vain do not count. */
int sessions_all_back(const struct core *c);

#endif
