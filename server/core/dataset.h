/*
 * dataset.h - decides which data set the run uses; rules and invariants in dataset.c.
 */
#ifndef SERVER_CORE_DATASET_H
#define SERVER_CORE_DATASET_H
#include "server/core/core.h"

struct worker;

struct dataset {
	struct data_id id;
	int fixed; /* 1: an accepted push has fixed the data set */
};

/* Returns 1 if `d` is the data set of --data-id, or if there is no --data-id. */
int dataset_suits_option(const struct core_config *c, const struct data_id *d);
/* Returns 1 if a worker with the data set and the metrics of this HELLO may join. If the worker may
 * not join, refuses `peer` with the reason. */
int dataset_admits(struct core *c, const struct msg_hello *h, uint32_t peer);
/* Chooses the data set with the most votes (rule 3 of dataset.c). The core calls this function at
 * the end of each event while no data set is fixed. */
void dataset_choose(struct core *c);
/* Checks push `p` of worker `w` if the worker's data set differs from the run's. If no data set is
 * fixed and the push is a replay of an accepted push, makes the data set of `w` the run's and
 * returns REJECT_NONE. Otherwise returns REJECT_WORK. */
enum reject dataset_check(struct core *c, const struct worker *w, const struct msg_push *p);
/* Called when the core has accepted the first push of batches: fixes the data set of the run, and
 * ends the sessions of workers with another data set. */
void dataset_contributed(struct core *c);

#endif
