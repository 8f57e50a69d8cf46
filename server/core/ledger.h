/*
 * ledger.h - every push is decided exactly once; invariants in ledger.c.
 */
#ifndef SERVER_CORE_LEDGER_H
#define SERVER_CORE_LEDGER_H
#include "server/core/core.h"

struct worker;

void ledger_on_push(struct core *c, struct worker *w, const struct event *ev);

#endif
