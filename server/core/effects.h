/*
 * effects.h - what a step says: effects, messages, and the text of refusals, which is put
 * together without stdio because the core is pure. Text that does not fit is cut off.
 *
 * Invariant: no effect is lost. The array has room for the worst step (layout.c), and an effect
 * beyond it stops the process.
 */
#ifndef SERVER_CORE_EFFECTS_H
#define SERVER_CORE_EFFECTS_H
#include "server/core/core.h"

struct worker;

struct effect *effects_add(struct core *c, enum effect_kind kind, uint32_t peer);
void effects_add_epoch(struct core *c, enum effect_kind kind, uint32_t epoch);
void effects_add_worker(struct core *c, const struct worker *w, enum worker_change change);
/* Work is given out, or a push of a run without a data set is decided. */
void effects_begin(struct core *c);
/* A message that leaves at once. */
struct msg *effects_send(struct core *c, uint32_t peer, enum msg_type type);
/* A message that leaves when all that was committed is durable, this event too if it commits. */
struct msg *effects_send_committed(struct core *c, uint32_t peer, enum msg_type type);
/* A message that follows from this event: the event is committed first. */
struct msg *effects_send_decided(struct core *c, uint32_t peer, enum msg_type type);
void effects_refuse(struct core *c, uint32_t peer, int status, uint64_t expected, const char *text);

#define SAY_BYTES 256 /* workers show 255 characters of a refusal */

struct say {
	char text[SAY_BYTES];
	size_t n; /* characters; a NUL follows */
};

void say_begin(struct say *s, const char *text);
void say_text(struct say *s, const char *text);
void say_number(struct say *s, uint64_t n);
void say_hex(struct say *s, uint64_t n);               /* 16 hexadecimal digits */
void say_run(struct say *s, const struct run_id *run); /* 32 hexadecimal digits */

#endif
