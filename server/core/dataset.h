/*
 * dataset.h - which data set the run is of; rules and invariants in dataset.c.
 */
#ifndef SERVER_CORE_DATASET_H
#define SERVER_CORE_DATASET_H
#include "server/core/core.h"

struct worker;

/* May a worker of this data set join? If not, peer is told. */
int dataset_admits(struct core *c, const struct data_id *d, uint32_t peer);
/* At the end of an event, while none is fixed: the data set that most live workers have. */
void dataset_choose(struct core *c);
/* A push of a worker of another data set: REJECT_WORK, or REJECT_NONE if it is a replay that fixes
 * the data set. */
enum reject dataset_check(struct core *c, const struct worker *w, const struct msg_push *p);
/* The first push of batches was accepted. */
void dataset_contributed(struct core *c);

#endif
