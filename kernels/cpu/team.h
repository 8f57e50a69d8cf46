/*
 * team.h - a fixed team of threads that run one function together, job after job.
 *
 * The caller of team_run is member 0. A waiting member spins for about 50 us before it sleeps,
 * because a training loop usually starts the next job within that time.
 *
 * Thread: one thread at a time calls team_run. Inside a job, every member must call team_barrier
 * the same number of times.
 */
#ifndef KERNELS_CPU_TEAM_H
#define KERNELS_CPU_TEAM_H
#include <stddef.h>
#include "common/err.h"

struct team; /* opaque, see team.c */

typedef void team_job(void *arg, size_t member);

/* Makes a team of n >= 1 members: starts n - 1 threads, and the caller of team_run is the other
 * member. PS_ENOMEM. PS_EDEVICE: the system cannot start a thread. */
int team_new(struct team **out, size_t n, struct err *e) PS_MUST_CHECK;
/* Joins the threads, frees *t and sets it to NULL. *t may be NULL. */
void team_free(struct team **t);
/* Runs job(arg, i) for each member i = 0..n-1 on the member's thread. In a job subnormal numbers
 * count as 0 (common/subnormals.h), because the small gradients of a trained network would make the
 * CPU slow. Returns when all n calls have returned. */
void team_run(struct team *t, team_job *job, void *arg);
/* Blocks until every member has called team_barrier. */
void team_barrier(struct team *t);

#endif
