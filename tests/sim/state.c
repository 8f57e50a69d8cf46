/* state.c - functions for all files of the simulator: violation, trace, clocks, the weights of a
 * version, and the coordinates of batches and pushes. */
#include <stdarg.h>
#include <stdio.h>
#include "tests/sim/sim.h"

void sim_violation(struct sim *s, const char *fmt, ...)
{
	va_list ap;

	if (s->violation[0])
		return; /* keep the first violation, because it causes the later ones */
	va_start(ap, fmt);
	vsnprintf(s->violation, sizeof(s->violation), fmt, ap);
	va_end(ap);
}

void sim_trace(struct sim *s, const char *fmt, ...)
{
	va_list ap;

	if (!s->trace)
		return;
	printf("%8llu ", (unsigned long long)s->net.now_ms);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
}

struct sim_version *sim_version(struct sim *s, uint64_t epoch, uint64_t version)
{
	return &s->versions[(version + 61 * epoch) % SIM_VERSIONS];
}

int sim_has_elastic_ledger(const struct sim *s)
{
	return s->mode == SIM_EASGD && !s->exact;
}

uint32_t sim_first_batch(const struct sim *s)
{
	return sim_has_elastic_ledger(s) ? SIM_ELASTIC : 0;
}

uint32_t sim_first_push(const struct sim *s)
{
	uint32_t per_epoch =
		(s->n_train + s->cfg.training.batch_size - 1) / s->cfg.training.batch_size;

	return sim_has_elastic_ledger(s) ? SIM_ELASTIC + s->cfg.training.epochs * per_epoch : 0;
}

uint32_t sim_images(const struct sim *s, uint32_t first, uint32_t count)
{
	uint32_t from = first * s->cfg.training.batch_size,
		 to = from + count * s->cfg.training.batch_size;

	return (to < s->n_train ? to : s->n_train) - from;
}

uint64_t sim_clock(struct sim *s, uint32_t node)
{
	uint64_t step_ms = node == SIM_SERVER ? AWAKE_DECIDE_MS : AWAKE_HEARTBEAT_MS;

	return awake_ms(&s->awake[node], 1 + s->net.now_ms + s->ahead_ms[node], step_ms);
}

struct sim_worker *worker_at(struct sim *s, uint32_t node)
{
	return &s->worker[node - 1];
}
