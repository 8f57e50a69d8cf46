/*
 * voices.h - the voices of a buffer with a robust rule (--aggregate). A voice is a worker or, if
 * each key counts once (accumulator.h), a key. The rule protects the run only if the buffer has the
 * gradients of several voices. A worker that answers at once could deliver all batches of an epoch
 * before another worker delivers one, and the rule would get a single gradient. Therefore, while
 * the buffer lacks a voice that can still come:
 *
 * - a worker of another voice gets no more work when it has VOICE_PUSHES gradients in the buffer,
 *   each of at most --n-push batches;
 * - of the free batches, the core keeps one for each lacking voice that holds no batch, and grants
 *   it to no other voice;
 * - a worker of another voice gets no copy of work. With an old grant, it can deliver neither
 *   batches that a worker of a lacking voice holds nor the batches that are kept for lacking
 *   voices.
 *
 * A full buffer is not applied if fewer batches are left in the epoch than the next buffer needs
 * voices: the gradients of these batches then join the full buffer. An update can have fewer voices
 * than the smaller of the number of workers and --buffer-size only if the epoch has fewer batches,
 * or if workers have joined during the last batches of the epoch.
 *
 * A lacking voice can come if one of its workers is active (workers.h), and holds a batch or may
 * begin one. A worker that delivers nothing becomes stalled (pace.h), so the other workers do not
 * wait for ever. A worker does not have to wait for a voice that is less than VOICE_PUSHES times
 * slower than itself, except for the last batches of an epoch. The only worker of a run never
 * waits.
 *
 * In runs without a data set, workers have no batches, and these rules do not apply.
 *
 * Promises:
 * (1) a worker that answers at once does not fill a buffer without the others
 *     (a_worker_that_answers_at_once_does_not_fill_the_buffers_alone, tests/sim/voices.c);
 * (2) a worker that got leases of all batches cannot deliver them alone
 *     (a_worker_that_hoards_leases_does_not_fill_a_buffer_alone);
 * (3) a worker waits for a lacking voice only until the voice is stalled
 *     (the_others_wait_for_a_voice_that_hangs_until_it_is_stalled; tests/sim/sim.c).
 */
#ifndef SERVER_CORE_VOICES_H
#define SERVER_CORE_VOICES_H
#include "server/core/core.h"

struct worker;

/* maximum number of gradients of one worker in a buffer that lacks voices. A buffer waits for a
 * voice until more than half of the voices have this number of gradients each (downpour.c). So it
 * also waits for a worker that is almost 20 times slower than the others */
#define VOICE_PUSHES 20u

/* Returns 1 if the rules above apply: the run has a buffer with a robust rule, and has batches. */
int voices_matter(const struct core *c);
/* Returns 1 if the buffer has a gradient of the voice of worker `w`. */
int voices_has(const struct core *c, const struct worker *w);
/* Returns 1 if worker `w` waits for work on an open connection, or owes a delivery or a LEASE
 * request. */
int voices_is_at_work(const struct worker *w);
/* Returns the maximum number of free batches for worker `w`. If no batch is free, returns 0 if the
 * worker may not get a copy of work that another worker holds. */
uint32_t voices_limit(const struct core *c, const struct worker *w);
/* Returns 1 if worker `w` may deliver `work`, which the server has granted to it now or earlier. */
int voices_permit(const struct core *c, const struct worker *w, const struct work *work);
/* Returns 1 if the batches that are left are enough for one gradient of each voice of the next
 * buffer, or if none is left. */
int voices_can_refill(const struct core *c);

#endif
