/* membership.c - see membership.h. */
#include "server/monitor/membership.h"
#include <inttypes.h>
#include <stdio.h>
#include "common/log.h"
#include "server/core/view.h"
#include "server/net/clients.h"

void membership_init(struct membership *m, const struct core *c)
{
	*m = (struct membership){.short_at = core_stats(c)->steps_short + 1, .unlogged_at = 1};
}

/* ---- of one worker -------------------------------------------------------------------------- */

const char *membership_name(enum worker_change change)
{
	static const char *const names[] = {
		[WORKER_JOINED] = "joined",
		[WORKER_RESTARTED] = "restarted",
		[WORKER_BACK] = "back",
		[WORKER_SILENT] = "silent",
		[WORKER_GONE] = "gone",
		[WORKER_EXCLUDED] = "excluded",
		[WORKER_QUARANTINED] = "quarantined",
		[WORKER_STALLED] = "stalled",
		[WORKER_DELIVERS] = "delivers",
	};

	return names[change];
}

/* Takes one of the lines of slot `i`. Returns 0 if there is none left. */
static int take_change_line(struct membership *m, uint32_t i, uint64_t now_ms)
{
	const uint64_t passed_ms = now_ms - m->now_ms[i];

	m->spent_ms[i] -= passed_ms < m->spent_ms[i] ? (uint32_t)passed_ms : m->spent_ms[i];
	m->now_ms[i] = now_ms;
	if (m->spent_ms[i] > (CHANGES_AT_ONCE - 1) * CHANGE_MS)
		return 0;
	m->spent_ms[i] += CHANGE_MS;
	return 1;
}

void membership_log(struct membership *m, const struct effect *e, const struct core *c,
	const struct labels *labels, uint64_t now_ms)
{
	const struct label *l = labels_of(labels, e->worker);
	struct worker_view v;

	if (!take_change_line(m, e->worker - 1, now_ms) && e->change != WORKER_EXCLUDED &&
		e->change != WORKER_QUARANTINED) {
		m->unlogged++;
		return;
	}
	core_worker(c, e->worker - 1, &v);
	log_info("worker", membership_name(e->change),
		"worker=%u incarnation=%u name=\"%s\" host=\"%s\" pid=%u address=\"%s\" "
		"device=\"%s\" images=%llu",
		v.worker, v.incarnation, v.name, l->host, l->pid, l->address, v.device,
		(unsigned long long)v.images);
}

void membership_log_dispute(const struct effect *e)
{
	const struct dispute *d = &e->dispute;
	char votes[CHECK_VOTES * 72] = "";

	for (uint32_t i = 0, n = 0; i < d->votes; i++)
		n += (uint32_t)snprintf(votes + n, sizeof(votes) - n,
			"%sworker %u: %u correct, loss %.6g", i ? ", " : "", d->worker[i],
			d->correct[i], d->loss[i] / d->count);
	if (e->worker)
		log_warn("eval", "outvoted",
			"epoch=%u first=%u images=%u worker=%u results=\"%s\" reason=\"two other "
			"workers disagree with the worker\"",
			e->epoch + 1, d->first, d->count, e->worker, votes);
	else
		log_warn("eval", "disputed",
			"epoch=%u first=%u images=%u results=\"%s\" reason=\"no third worker has "
			"decided: nobody is accused\"",
			e->epoch + 1, d->first, d->count, votes);
}

/* ---- of all --------------------------------------------------------------------------------- */

void membership_log_data(const struct core *c)
{
	const struct data_id *d = core_data(c);

	log_info("server", "data_set", "data_id=%016" PRIx64 " train=%u test=%u", d->xxh3,
		d->n_train, d->n_test);
}

/* Logs that steps of mode sync ended with fewer gradients than were due. The function logs the
 * first such step, and then whenever the number of such steps has doubled. */
static void check_steps(struct membership *m, const struct core *c)
{
	const struct core_stats *t = core_stats(c);

	if (t->steps_short < m->short_at)
		return;
	m->short_at = 2 * t->steps_short;
	log_warn("sync", "steps_short", "steps=%llu of=%llu sync_workers=%u live=%u",
		(unsigned long long)t->steps_short, (unsigned long long)t->updates,
		core_config(c)->sync.workers, core_live_workers(c));
}

/* Logs that changes of workers have no line. */
static void check_unlogged(struct membership *m)
{
	if (m->unlogged < m->unlogged_at)
		return;
	m->unlogged_at = 2 * m->unlogged;
	log_warn("worker", "changes_not_logged",
		"total=%llu reason=\"workers join and leave too often\"",
		(unsigned long long)m->unlogged);
}

/* Logs that some live workers have another data set than the run. */
static void check_data(struct membership *m, const struct core *c)
{
	struct hold_up_view v;

	core_hold_up(c, &v);
	if (v.others > m->others)
		log_warn("server", "data_sets_differ",
			"workers=%u data_set=%016" PRIx64 " of_run=%016" PRIx64
			" reason=\"they get no work: give all the same --data, or the server "
			"--data-id\"",
			v.others, v.other_data, core_data(c)->xxh3);
	m->others = v.others;
}

void membership_check(struct membership *m, const struct core *c)
{
	check_steps(m, c);
	check_unlogged(m);
	check_data(m, c);
}
