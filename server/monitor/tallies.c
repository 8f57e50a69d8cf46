/* tallies.c - see tallies.h. */
#include "server/monitor/tallies.h"
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

/* A worker's shares are unknown if the server has received no newer heartbeat for this time plus
 * two heartbeat intervals. */
#define SHARES_MS 2000

const char *const tally_part[TALLY_PARTS] = {"compute", "weights", "push", "lease", "copy"};

uint64_t tally_part_us(const struct time_split *t, int part)
{
	const uint64_t us[TALLY_PARTS] = {
		t->compute_us, t->weights_us, t->push_us, t->lease_us, t->copy_us};

	return us[part];
}

int tallies_init(struct tallies *t, const struct core *c)
{
	*t = (struct tallies){.n = core_config(c)->sessions.max_workers};
	t->of = mem_try(t->n, sizeof(*t->of));
	if (!t->of)
		return PS_ENOMEM;
	for (uint32_t i = 0; i < t->n; i++) {
		struct worker_view v;

		core_worker(c, i, &v);
		t->of[i] = (struct tally){.staleness = -1, .images = v.images};
	}
	return PS_OK;
}

void tallies_release(struct tallies *t)
{
	free(t->of);
	*t = (struct tallies){0};
}

/* Sets t->share to the parts of the worker's time between the heartbeats `then` and `now`, as
 * fractions of their sum. If a part is smaller in `now` than in `then`, a new process of the worker
 * has begun to count from zero, so the whole value of this part in `now` is used. Returns 0 if both
 * heartbeats contain the same times. */
static int measure_shares(
	struct tally *t, const struct time_split *now, const struct time_split *then)
{
	double part[TALLY_PARTS], sum = 0;

	for (int i = 0; i < TALLY_PARTS; i++) {
		uint64_t us = tally_part_us(now, i), before = tally_part_us(then, i);

		part[i] = (double)(us >= before ? us - before : us);
		sum += part[i];
	}
	for (int i = 0; i < TALLY_PARTS && sum > 0; i++)
		t->share[i] = part[i] / sum;
	return sum > 0;
}

static void measure(struct tally *t, const struct worker_view *now, double seconds, uint64_t now_ms,
	uint64_t heartbeat_ms)
{
	const struct worker_counts *c = &now->counts, *then = &t->counts;
	uint64_t pushes = c->async_pushes - then->async_pushes;

	t->images_per_s = (double)(now->images - t->images) / seconds;
	t->staleness =
		pushes ? (double)(c->staleness_sum - then->staleness_sum) / (double)pushes : -1;
	if (measure_shares(t, &c->time, &then->time))
		t->shares_ms = now_ms;
	else if (now_ms - t->shares_ms > SHARES_MS + 2 * heartbeat_ms)
		memset(t->share, 0, sizeof(t->share));
	t->images = now->images;
	t->counts = *c;
}

void tallies_measure(struct tallies *t, const struct core *c, double seconds, uint64_t now_ms)
{
	for (uint32_t i = 0; i < t->n; i++) {
		struct worker_view v;

		core_worker(c, i, &v);
		measure(&t->of[i], &v, seconds, now_ms, core_config(c)->sessions.heartbeat_ms);
	}
}

const struct tally *tallies_of(const struct tallies *t, uint32_t worker)
{
	static const struct tally none = {.staleness = -1};

	return t && worker >= 1 && worker <= t->n ? &t->of[worker - 1] : &none;
}
