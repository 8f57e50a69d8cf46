/*
 * workers.h - the table of worker slots, and what follows from a slot alone.
 */
#ifndef SERVER_CORE_WORKERS_H
#define SERVER_CORE_WORKERS_H
#include "server/core/backups.h"
#include "server/core/departure.h"
#include "server/core/leases.h"
#include "server/core/ledger.h"
#include "server/core/modes.h"
#include "server/core/pace.h"
#include "server/core/sessions.h"

/* A worker slot; worker id = index + 1. Each part belongs to the module of its header, which says
 * what of it is in the snapshot. */
struct worker {
	struct worker_session session;
	struct worker_ledger ledger;
	struct worker_lease lease;
	struct worker_ssp ssp;
	struct worker_sync sync;
	struct worker_backups backups;
	struct worker_quarantine quarantine;
	struct pace pace;
};

uint32_t worker_id(const struct core *c, const struct worker *w);
struct worker *worker_find(struct core *c, uint32_t id);                 /* NULL: no such slot */
struct stamp worker_stamp(const struct core *c, const struct worker *w); /* NULL: observer */
/* Of w's pushes all up to here are durable when the answer of this step is heard. */
uint64_t worker_durable_seq(const struct core *c, const struct worker *w);
/* It may hold pushes that were acknowledged before a crash and are not replayed yet. */
int worker_may_return(const struct worker *w);
/* It is live and not stalled: the others may wait for it. */
int worker_is_active(const struct worker *w);
int worker_is_of_run(const struct core *c, const struct worker *w);
/* Live workers of the run's data set that are not stalled. */
uint32_t workers_of_run(const struct core *c);
/* Duplicates of what w pushed so far get REJECT_UNKNOWN. */
void worker_forget_decisions(struct core *c, struct worker *w);
int workers_same_data(const struct data_id *a, const struct data_id *b);

#endif
