/*
 * membership.h - log lines about the workers: what becomes of each, and what is wrong with all.
 *
 * Thread: the loop's.
 */
#ifndef SERVER_MONITOR_MEMBERSHIP_H
#define SERVER_MONITOR_MEMBERSHIP_H
#include <stdint.h>

struct core;
struct effect;
struct labels;

struct membership {
	uint64_t short_at; /* the number of short steps that is logged next */
	uint32_t others;   /* live workers of another data set than the run's */
};

void membership_init(struct membership *m, const struct core *c);
/* Log an EFFECT_WORKER. */
void membership_log(const struct effect *e, const struct core *c, const struct labels *labels);
/* Log short steps and differing data sets, when there are more than at the last call. */
void membership_check(struct membership *m, const struct core *c);

#endif
