/*
 * session_impl.h - what session.c and session_ask.c share: the state behind session.h. Included by
 * these alone.
 */
#ifndef WORKER_CLIENT_SESSION_IMPL_H
#define WORKER_CLIENT_SESSION_IMPL_H
#include "worker/client/session.h"

#define MAX_IN_FLIGHT 64 /* bound on push_window, whatever the server allows */
#define MAX_EFFECTS   (MAX_IN_FLIGHT + 16)

/* A push that is not durable yet, at seq % capacity. */
struct kept {
	uint64_t base_version, base_term;
	struct work work;
	uint32_t images;
	float loss;
	enum verdict verdict; /* NONE until the first ACK */
	enum reject reject;
};

/* A request that is answered at most once: sent again after each WELCOME until then. */
struct request {
	int open, sent;
	uint64_t number;
};

struct session {
	struct session_config cfg;
	enum session_phase phase;
	struct rng jitter;
	int link_up, welcomed, leaving, bye_sent;
	int end_status; /* once phase is END */
	int full; /* the server had no slot for us: it may have one when a dead worker's is freed */
	struct msg_welcome welcome;

	uint64_t last_seq;  /* newest given */
	uint64_t acked_seq; /* all up to here were decided */
	uint64_t freed_seq; /* all up to here are durable and released */
	uint64_t sent_seq;  /* newest sent since the newest WELCOME */
	uint64_t heard_seq; /* newest acknowledged since the newest WELCOME */
	struct kept *kept;
	size_t capacity;

	struct request pull, lease, result;
	enum weights pull_which;
	uint64_t pull_with; /* the push that carries the pull; 0: none */
	struct msg_result result_msg;

	uint64_t start_ms, contact_ms; /* contact: newest message of any kind */
	uint64_t progress_ms; /* newest answer, or the moment the oldest request was made */
	uint64_t hello_ms, hello_wait_ms; /* newest HELLO, and how long to wait for its answer */
	uint64_t hello_step_ms;           /* that wait without its jitter; 0: none said yet */
	uint64_t beat_ms, leave_ms;

	struct session_effect *effect; /* MAX_EFFECTS */
	size_t n_effects;
};

/* session.c: send what may be sent, in order. */
void session_pump(struct session *s);
/* session.c: the end, once. */
void session_over(struct session *s, int status);
/* session.c: is the server to say something? */
int session_waits(const struct session *s);
struct kept *session_kept(struct session *s, uint64_t seq);

#endif
