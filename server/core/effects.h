/*
 * effects.h - the effects and messages that a step produces, and the text of refusals. The text is
 * composed without stdio because the core is pure. If a text does not fit, its end is cut off.
 *
 * Invariants:
 * (1) no effect is lost: the array of effects has room for the step with the most effects (asserted
 *     by effects_add; layout.c computes the room).
 */
#ifndef SERVER_CORE_EFFECTS_H
#define SERVER_CORE_EFFECTS_H
#include "server/core/core.h"

struct worker;

#define SAY_BYTES 256 /* workers show at most 255 characters of a refusal */

struct say {
	char text[SAY_BYTES];
	size_t n; /* number of characters; a NUL follows them */
};

struct effects {
	struct effect *effect; /* effect[0] is always EFFECT_COMMIT */
	size_t n, max;
	int commits;        /* 1: this step emits EFFECT_COMMIT */
	int sends_weights;  /* 1: an effect of this step sends the current weights */
	int dropped;        /* 1: this step has dropped the message of its event */
	uint32_t requester; /* id of the worker whose LEASE request this step handles, or 0 */
	int begun;          /* 1: EFFECT_BEGIN was emitted since this start of the server */
	uint64_t versions;  /* number of versions of the weights that this step makes */
	/* buffer for the text of this step's refusal, if the text contains numbers */
	struct say said;
};

struct effect *effects_add(struct core *c, enum effect_kind kind, uint32_t peer);
void effects_add_epoch(struct core *c, enum effect_kind kind, uint32_t epoch);
void effects_add_worker(struct core *c, const struct worker *w, enum worker_change change);
/* Called when work is granted, or when a push of a run without a data set is decided. Adds
 * EFFECT_BEGIN at the first call after a start. */
void effects_begin(struct core *c);
/* Adds a message that the shell sends at once, without waiting for the disk. */
struct msg *effects_send(struct core *c, uint32_t peer, enum msg_type type);
/* Adds a message that the shell sends when all events with an EFFECT_COMMIT so far are durable. If
 * this step emits EFFECT_COMMIT, its own event must also be durable first. */
struct msg *effects_send_committed(struct core *c, uint32_t peer, enum msg_type type);
/* Adds a message that reports a decision of this event. The event is therefore committed, and must
 * be durable before the message is sent. */
struct msg *effects_send_decided(struct core *c, uint32_t peer, enum msg_type type);
void effects_refuse(struct core *c, uint32_t peer, int status, uint64_t expected, const char *text);
/* Sends ERROR to a process of `incarnation` on connection `peer`, because a newer process has taken
 * the slot of `worker`. */
void effects_refuse_fenced(struct core *c, uint32_t peer, uint32_t worker, uint32_t incarnation);

/* Counts a new version of the weights. The step then also emits EFFECT_COMMIT. */
void effects_add_version(struct core *c);
/* Counts the message of this event as dropped if `dropped` is 1. */
void effects_drop(struct core *c, int dropped);

void say_begin(struct say *s, const char *text);
void say_text(struct say *s, const char *text);
void say_number(struct say *s, uint64_t n);
void say_hex(struct say *s, uint64_t n);               /* appends `n` as 16 hexadecimal digits */
void say_run(struct say *s, const struct run_id *run); /* appends `run` as 32 hexadecimal digits */

#endif
