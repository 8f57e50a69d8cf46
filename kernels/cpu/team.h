/*
 * team.h - a fixed team of threads that run one function together, again and again.
 *
 * The caller of team_run is member 0. Waiting members spin for some microseconds before they sleep:
 * the next job of a training loop is usually that near.
 *
 * Thread: one caller at a time. team_barrier: from inside a job, every member.
 */
#ifndef KERNELS_CPU_TEAM_H
#define KERNELS_CPU_TEAM_H
#include <stddef.h>
#include "common/err.h"

struct team; /* opaque */

typedef void team_job(void *arg, size_t member);

/* n >= 1. PS_ENOMEM; PS_EDEVICE: the system gives no more threads. */
int team_new(struct team **out, size_t n, struct err *e) PS_MUST_CHECK;
/* Joins, frees and nulls; NULL is fine. */
void team_free(struct team **t);
/* job(arg, 0..n-1), each on its own thread; returns when all have. */
void team_run(struct team *t, team_job *job, void *arg);
/* No member goes on before all have come here. */
void team_barrier(struct team *t);

#endif
