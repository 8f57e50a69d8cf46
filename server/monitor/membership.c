/* membership.c - see membership.h. */
#include "server/monitor/membership.h"
#include <inttypes.h>
#include <stdio.h>
#include "common/log.h"
#include "server/core/view.h"
#include "server/net/clients.h"
#include "server/net/line_budget.h"

void membership_init(struct membership *m, const struct core *c, struct line_budget *lines)
{
	*m = (struct membership){
		.lines = lines, .short_at = core_stats(c)->steps_short + 1, .left_out_at = 1};
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

void membership_log(struct membership *m, const struct effect *e, const struct core *c,
	const struct labels *labels)
{
	const struct label *l = labels_of(labels, e->worker);
	struct worker_view v;

	core_worker(c, e->worker - 1, &v);
	/* quarantine limits these lines, but only with keys */
	int is_exclusion = e->change == WORKER_EXCLUDED || e->change == WORKER_QUARANTINED;
	int is_needed = is_exclusion && v.owner[0];

	if (!is_needed && !line_budget_take(m->lines, e->worker))
		return;
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

/* Logs that lines about workers were left out. */
static void check_left_out(struct membership *m)
{
	const uint64_t total = m->lines->left_out;

	if (total < m->left_out_at)
		return;
	m->left_out_at = 2 * total;
	log_warn("worker", "changes_not_logged",
		"total=%llu reason=\"workers join, leave or open connections too often\"",
		(unsigned long long)total);
}

/* Logs that some live workers have another data set than the run. */
static void check_data(struct membership *m, const struct core *c)
{
	struct hold_up_view v;

	core_hold_up(c, &v);
	if (v.others > m->others && line_budget_take(m->lines, 0))
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
	check_data(m, c);
	check_left_out(m);
}
