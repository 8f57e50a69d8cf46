/*
 * threads.h - an engine (engine.h) that runs blocks on a fixed set of threads.
 *
 * The thread that begins a job computes blocks, too. Each thread has blocks of its own, which
 * depend only on the number of blocks and of threads. So in two jobs of the same length, a thread
 * runs the same blocks, whose values are still in the caches of its CPU. The blocks of the threads
 * alternate. The caller has fewer blocks, because it also combines the results. A thread that has
 * run its own blocks runs blocks of threads that have not started to work on the job, and after
 * about 5 us also blocks of other late threads. Therefore a job never waits for a thread that has
 * not started to work on it. A thread takes no lock, except to sleep. A job uses one thread for
 * each THREADS_GRAIN blocks, or for each THREADS_AWAKE_GRAIN blocks after threads_stay_awake, and
 * at most all threads. A job that is too short for two threads runs on the caller's thread, and
 * wakes no other thread. The engine needs 64 bytes for each block of the longest job. If it cannot
 * allocate them, the job runs on the caller's thread.
 *
 * Invariants:
 * (1) each block of a job runs exactly once, and has run when the wait for it returns (asserted by
 *     run_next and wait_for_block; each_block_runs_once);
 * (2) when the wait for the last block returns, no thread uses the job (asserted by offer_job
 *     and threads_free; no_thread_uses_a_job_after_its_end);
 * (3) the threads block all signals, so that the main thread handles them (asserted by thread_main;
 *     the_threads_have_a_name_and_no_signals).
 *
 * Only one thread at a time may use the engine.
 */
#ifndef COMMON_THREADS_H
#define COMMON_THREADS_H
#include <stddef.h>
#include "common/engine.h"
#include "common/err.h"

#define MAX_THREADS         256
#define THREADS_GRAIN       ((size_t)16)
#define THREADS_AWAKE_GRAIN ((size_t)2)

struct threads; /* opaque, see threads.c */

/* Starts n - 1 threads (1 <= n <= MAX_THREADS) and gives each the name `name`, at most 15
 * characters. With n = 1 no thread starts. Returns PS_EIO if the system cannot start a thread.
 * Other error: PS_ENOMEM. */
int threads_new(struct threads **out, size_t n, const char *name, struct err *e) PS_MUST_CHECK;
/* Ends the threads, frees *t and sets it to NULL; *t may be NULL. No job may be under way. */
void threads_free(struct threads **t);
/* From now on, a thread that has worked on a job waits for the next one for 200 us before it
 * sleeps. This makes short jobs that follow each other faster, but needs a CPU for each thread. */
void threads_stay_awake(struct threads *t);
/* Returns the engine, which is valid until threads_free. Returns NULL if the caller's thread is the
 * only one. */
const struct engine *threads_engine(const struct threads *t);

#endif
