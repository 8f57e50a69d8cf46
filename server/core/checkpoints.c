/* checkpoints.c - see checkpoints.h. */
#include "server/core/checkpoints.h"
#include "server/core/core_state.h"
#include "server/core/departure.h"
#include "server/core/effects.h"
#include "server/core/run.h"
#include "server/core/sessions.h"

/* ---- requests -------------------------------------------------------------------------------- */

void checkpoints_answer(struct core *c, uint32_t peer, enum admin_verb verb, uint64_t generation)
{
	struct msg *m = effects_send(c, peer, MSG_ADMIN);

	m->admin = (struct msg_admin){.verb = verb, .reply = 1, .generation = generation};
}

void checkpoints_request(struct core *c, uint32_t peer)
{
	if (!c->cfg.durable) {
		effects_refuse(c, peer, PS_EUSAGE, 0, "this server runs without --checkpoint-dir");
		return;
	}
	if (c->run.ending >= END_SAVING) {
		effects_refuse(c, peer, c->run.end_status, 0,
			"the run is over: its last checkpoint has been taken");
		return;
	}
	for (size_t i = 0; i < CORE_MAX_ADMINS; i++) {
		if (c->checkpoints.waiting[i].peer)
			continue;
		c->checkpoints.waiting[i].peer = peer;
		c->checkpoints.waiting[i].generation = c->checkpoints.generation + 1;
		c->checkpoints.urgent = 1;
		return;
	}
	effects_refuse(c, peer, PS_EAGAIN, 0, "too many requests already wait for a checkpoint");
}

/* ---- snapshots, and the end of the run ------------------------------------------------------- */

static void finish(struct core *c)
{
	c->run.ending = END_OVER;
	departure_part_all(c);
	effects_add(c, EFFECT_FINISH, 0)->status = c->run.end_status;
}

/* Returns 1 if the core may take the last snapshot. At a drain during a recovery, the last snapshot
 * waits until the recovery is over, because workers first replay the pushes that a crash has
 * lost. */
static int ends_now(const struct core *c)
{
	return c->run.ending == END_SNAPSHOT &&
	       !(c->run.recovering && c->run.end_status == PS_ESHUTDOWN);
}

int core_ending(const struct core *c)
{
	return ends_now(c) || c->run.ending == END_SAVING ? c->run.end_status : 0;
}

static void snapshot_start(struct core *c)
{
	c->checkpoints.generation++;
	c->checkpoints.saving = 1;
	c->checkpoints.urgent = 0;
	c->checkpoints.dirty = 0;
	c->checkpoints.begin_ms = c->now_ms;
	c->stats.snapshots++;
	sessions_snapshot(c);
	effects_add(c, EFFECT_SNAPSHOT, 0)->generation = c->checkpoints.generation;
	if (ends_now(c))
		c->run.ending = END_SAVING;
}

void checkpoints_settle(struct core *c)
{
	int failed_lately = c->checkpoints.failing &&
			    c->now_ms - c->checkpoints.begin_ms < c->cfg.checkpoint.interval_ms;
	int due = c->checkpoints.urgent || ends_now(c) ||
		  (c->checkpoints.dirty &&
			  c->now_ms - c->checkpoints.begin_ms >= c->cfg.checkpoint.interval_ms);

	if (!c->cfg.durable) {
		if (c->run.ending == END_SNAPSHOT)
			finish(c);
		return;
	}
	if (due && !c->checkpoints.saving && c->run.ending != END_OVER && !failed_lately)
		snapshot_start(c);
}

void checkpoints_durable(struct core *c, uint64_t generation)
{
	c->checkpoints.saving = c->checkpoints.failing = 0;
	sessions_durable(c, generation);
	for (size_t i = 0; i < CORE_MAX_ADMINS; i++) {
		if (!c->checkpoints.waiting[i].peer ||
			c->checkpoints.waiting[i].generation > generation)
			continue;
		checkpoints_answer(c, c->checkpoints.waiting[i].peer, ADMIN_CHECKPOINT, generation);
		c->checkpoints.waiting[i].peer = 0;
	}
	if (c->run.ending == END_SAVING)
		finish(c);
}

void checkpoints_failed(struct core *c)
{
	c->checkpoints.saving = 0;
	c->checkpoints.failing = 1;
	c->checkpoints.dirty = 1;
	/* a peer that waited for this snapshot now waits for the next snapshot */
	c->checkpoints.urgent = 1;
	c->stats.save_failures++;
	sessions_save_failed(c);
	if (c->run.ending == END_SAVING)
		c->run.ending = END_SNAPSHOT;
}
