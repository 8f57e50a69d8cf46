/*
 * workers.h - the table of worker slots, and simple functions on slots.
 */
#ifndef SERVER_CORE_WORKERS_H
#define SERVER_CORE_WORKERS_H
#include "server/core/backups.h"
#include "server/core/departure.h"
#include "server/core/leases.h"
#include "server/core/ledger.h"
#include "server/core/norms.h"
#include "server/core/pace.h"
#include "server/core/sessions.h"
#include "server/core/ssp.h"
#include "server/core/sync.h"

/* This struct is a worker slot. The worker id is the index of the slot plus 1. Each member has the
 * fields of one module. The header of the module defines this member, and says which of its fields
 * a snapshot contains. */
struct worker {
	struct worker_session session;
	struct worker_ledger ledger;
	struct worker_lease lease;
	struct worker_ssp ssp;
	struct worker_sync sync;
	struct worker_backups backups;
	struct worker_quarantine quarantine;
	struct worker_norms norms;
	struct pace pace;
	struct worker_counts counts; /* no snapshot contains it */
};

uint32_t worker_id(const struct core *c, const struct worker *w);
/* returns NULL if there is no such slot */
struct worker *worker_find(const struct core *c, uint32_t id);
/* returns the stamp of an observer if `w` is NULL */
struct stamp worker_stamp(const struct core *c, const struct worker *w);
/* Returns the newest seq of worker `w` that is durable at the time when the shell sends the replies
 * of this step. */
uint64_t worker_durable_seq(const struct core *c, const struct worker *w);
/* Returns 1 if w may retain pushes that the server acknowledged before a crash and that w has not
 * replayed yet. */
int worker_may_return(const struct worker *w);
/* Returns 1 if w is live and not stalled, so other workers may wait for it. */
int worker_is_active(const struct worker *w);
int worker_is_of_run(const struct core *c, const struct worker *w);
/* Returns the number of live workers that have the run's data set and are not stalled. */
uint32_t workers_of_run(const struct core *c);
/* Forgets the decisions on all earlier pushes of worker `w`. From now on, a duplicate of such a
 * push gets REJECT_UNKNOWN. */
void worker_forget_decisions(struct core *c, struct worker *w);
/* Returns 1 if `a` and `b` are the same key. The text "" is no key, and never equals another key,
 * because without keys the server cannot tell which workers belong together. */
int workers_same_key(const char *a, const char *b);
/* Returns 1 if `a` and `b` are two different keys, neither of them "". */
int workers_differ_in_key(const char *a, const char *b);
/* Returns the number of keys of the workers that `counts` selects. A worker without a key counts as
 * a key of its own. */
uint32_t workers_count_keys(
	const struct core *c, int (*counts)(const struct core *, const struct worker *));
/* Returns 1 if the workers that `counts` selects have at least `n` keys, counted as by
 * workers_count_keys. */
int workers_have_keys(const struct core *c, uint32_t n,
	int (*counts)(const struct core *, const struct worker *));
uint32_t data_channels(const struct data_id *d);
int workers_same_data(const struct data_id *a, const struct data_id *b);

#endif
