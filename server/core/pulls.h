/*
 * pulls.h - the weights go out: pulls, and pushes that also pull.
 */
#ifndef SERVER_CORE_PULLS_H
#define SERVER_CORE_PULLS_H
#include "server/core/core.h"

struct worker;

void pulls_on_pull(struct core *c, struct worker *w, const struct event *ev);
/* Answer the push of this step if it also pulls: PARAMS with its ACK. */
void pulls_answer_push(struct core *c);

#endif
