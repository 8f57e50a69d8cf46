/*
 * downpour.h - asynchronous SGD. Modes ssp and easgd use these functions, too. Rules and invariants
 * are in downpour.c.
 */
#ifndef SERVER_CORE_DOWNPOUR_H
#define SERVER_CORE_DOWNPOUR_H
#include "server/core/modes.h"

/* This struct has the staleness of a gradient, and the number of workers that compute at the same
 * time. */
struct age {
	uint64_t tau;
	uint32_t workers;
};

struct downpour {
	/* the age of the push that downpour_fits has checked. downpour_take applies the push with
	 * this age, although its acceptance can change the number of workers: the first accepted
	 * push of a run selects the data set, and workers with other data have to leave. */
	struct age age;
};

enum reject downpour_check(const struct core *c, const struct worker *w, const struct msg_push *p);
int downpour_fits(struct core *c, const struct worker *w, const struct msg_push *p);
/* Applies the buffered gradients if the buffer is full or all batches of the epoch are counted. */
void downpour_settle(struct core *c);
void downpour_take(struct core *c, struct worker *w, const struct msg_push *p);
/* Returns 1 if worker `w` must wait, because other workers already hold as many training leases as
 * the warm start or its ramp allows now. */
int downpour_holds_back(const struct core *c, const struct worker *w);
/* Returns alpha = beta / N of EASGD. At an exchange, a worker and the centre each move towards the
 * other by this part of the distance between them. */
double easgd_part(const struct core *c);

extern const struct rules rules_downpour;

#endif
