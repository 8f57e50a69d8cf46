/* state.c - functions for all files of the simulator: violation, trace, digest, clocks, the weights
 * of a version, and the coordinates of batches and pushes. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "common/xxh3.h"
#include "tests/sim/sim.h"

void sim_violation(struct sim *s, const char *fmt, ...)
{
	va_list ap;

	if (s->violation[0])
		return; /* keep the first violation, because it may have caused the later ones */
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

void sim_digest_add(struct sim *s, uint64_t value)
{
	s->digest = (s->digest << 29 | s->digest >> 35) ^ value * 0x9e3779b97f4a7c15u;
}

static void mix(uint64_t *sum, uint64_t value)
{
	*sum = *sum * 0x100000001b3u + value;
}

void sim_digest_event(struct sim *s, const struct item *it)
{
	uint64_t sum = it->at_ms;

	mix(&sum, it->order);
	mix(&sum, it->process);
	mix(&sum, (uint64_t)it->what);
	mix(&sum, it->node);
	mix(&sum, it->link);
	mix(&sum, it->number);
	mix(&sum, it->msg ? (uint64_t)it->msg->type : 0);
	s->events++;
	sim_digest_add(s, sum);
}

/* Adds the state at the end of the run, also that of the random generators, which depends on how
 * many numbers they have drawn. */
void sim_digest_end(struct sim *s)
{
	const uint64_t value[] = {s->plan.state, s->chance.state, s->net.rng.state,
		s->disk.rng.state, s->hostile_rng.state, s->net.sent, s->net.lost, s->disk.ops,
		s->n_coordinates, (uint64_t)s->finished, (uint64_t)s->refused, (uint64_t)s->torn,
		XXH3_64bits(s->violation, strlen(s->violation)),
		XXH3_64bits(s->expected, s->n_coordinates * sizeof(s->expected[0]))};

	for (size_t i = 0; i < sizeof(value) / sizeof(value[0]); i++)
		sim_digest_add(s, value[i]);
	for (size_t i = 0; i < s->disk.now.end; i++) {
		const struct disk_name *n = &s->disk.now.entry[i];
		const struct disk_file *f = n->file >= 0 ? &s->disk.file[n->file] : NULL;

		if (f && f->size > 0)
			sim_digest_add(s, XXH3_64bits(f->now, f->size));
	}
	s->digest = XXH3_64bits(&s->digest, sizeof(s->digest));
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
