/* view.c - see view.h. */
#include "server/core/view.h"
#include "server/core/accumulator.h"
#include "server/core/core_state.h"
#include "server/core/dataset.h"
#include "server/core/ledger.h"
#include "server/core/run.h"
#include "server/core/sandblaster.h"
#include "server/core/sessions.h"
#include "server/core/store.h"
#include "server/core/workers.h"
#include <math.h>

void core_work(const struct core *c, struct work_view *v)
{
	*v = (struct work_view){.computed = c->ledger.computed,
		.push_ms = c->ledger.push_ms,
		.images = c->stats.images + c->accumulator.images,
		.pass = c->cfg.training.mode == MODE_SANDBLASTER && c->sandblaster.open
				? c->sandblaster.pass
				: 0,
		.rate = c->cfg.training.mode == MODE_EASGD || c->cfg.optim.kind == OPTIM_LBFGS
				? (double)NAN
				: store_rate(c)};
}

static uint32_t in_state(const struct core *c, enum session_state state)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++)
		n += c->worker[i].session.state == state;
	return n;
}

static uint32_t missing(const struct core *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_slots; i++)
		n += c->worker[i].session.state == SESSION_AWAY && !c->worker[i].session.overdue;
	return n;
}

static void note_others(const struct core *c, struct hold_up_view *v)
{
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];

		if (w->session.state != SESSION_LIVE || worker_is_of_run(c, w))
			continue;
		if (v->others++ == 0)
			v->other_data = w->session.data.xxh3;
	}
}

int core_is_blank(const struct core *c)
{
	uint32_t without = in_state(c, SESSION_FREE) + in_state(c, SESSION_DEAD);

	return without == c->cfg.sessions.max_workers && !c->dataset.fixed &&
	       c->stats.version == 0 && !core_ending(c);
}

void core_hold_up(const struct core *c, struct hold_up_view *v)
{
	uint32_t live = workers_of_run(c), away = missing(c);
	uint32_t needed = run_has_begun(c) ? 1 : c->cfg.leases.min_workers;

	*v = (struct hold_up_view){.live = live, .joining = in_state(c, SESSION_JOINING)};
	note_others(c, v);
	if (c->run.ending != END_NOT)
		return;
	if (c->run.recovering && away) {
		v->kind = HOLD_UP_RETURN;
		v->needed = live + away;
		v->left_ms =
			c->run.recover_by_ms > c->now_ms ? c->run.recover_by_ms - c->now_ms : 0;
	} else if (live < needed) {
		v->kind = HOLD_UP_WORKERS;
		v->needed = needed;
	}
}
