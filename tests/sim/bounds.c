/*
 * bounds.c - checks after every event that all numbers are within their bounds, and after some of
 * them that the invariants of the core hold (tests/support/core_invariants.h).
 */
#include <string.h>
#include "common/checkpoint.h"
#include "server/core/core_state.h"
#include "server/core/modes.h"
#include "server/core/voices.h"
#include "server/core/workers.h"
#include "tests/sim/sim.h"

/* A run may have at most this number of pending events. The number is enough for a few messages for
 * each push that workers retain. */
#define MAX_PENDING 8192u
/* A disk may have at most this number of files, which are the checkpoints, a new checkpoint,
 * temporary files, TERM and LOCK. After failures of the disk there may be more checkpoints, until
 * the next save removes them; bounds_disk checks their number after a save. */
#define MAX_NAMES 48u
/* number of events between two checks of the core's invariants */
#define CHECK_EVERY 32u

static void check_worker(struct sim *s, uint32_t node)
{
	const struct session *w = s->worker[node - 1].session;
	uint64_t retained = session_last_seq(w) - session_durable_seq(w);

	if (retained > s->cfg.sessions.replay_window)
		sim_violation(s, "worker %u retains %llu pushes; its window is %u", node,
			(unsigned long long)retained, s->cfg.sessions.replay_window);
}

/* Checks that the server never suspects a worker whose heartbeats the network delivers, even if the
 * server was stopped or restarted. */
static void check_trust(struct sim *s, const struct core *c)
{
	const struct session *only = s->worker[0].session;

	if (!s->exact || s->n_workers > 1 || s->suspectable || s->server.over || !only ||
		session_phase(only) == PHASE_END)
		return;
	for (uint32_t i = 0; i < c->n_slots; i++) {
		if (c->worker[i].session.state == SESSION_SUSPECT)
			sim_violation(s, "slot %u is suspected though its worker sends heartbeats",
				i + 1);
		if (c->worker[i].session.state == SESSION_LIVE && c->worker[i].pace.stalled)
			sim_violation(s, "slot %u is stalled though its worker works", i + 1);
	}
}

void bounds_before(struct sim *s)
{
	const struct core *c = s->server.core;

	memset(s->server.expected, 0, sizeof(s->server.expected));
	/* the server gives up workers that it expects back only at the end of a recovery, so
	 * `expected` is needed only during a recovery */
	for (uint32_t i = 0; i < c->n_slots && c->run.recovering; i++) {
		const struct worker_session *w = &c->worker[i].session;

		s->server.expected[i] = w->state == SESSION_AWAY && !w->overdue;
	}
	for (uint32_t i = 0; i < c->n_slots; i++)
		s->server.granted[i] = c->worker[i].lease.grant.request;
}

static uint32_t portion_of(const struct core *c, uint32_t i)
{
	return c->worker[i].lease.grant.eval_first / c->leases.eval_size;
}

static int has_portion(const struct core *c, uint32_t i)
{
	return batch_ledger_holds(c, &c->worker[i], 1, portion_of(c, i));
}

/* Checks worker `i`, which has got a portion without a result in the current event. If another
 * worker evaluated already, worker `i` must have got a copy of a portion that another worker has,
 * or no training lease was possible. */
static void check_evaluator(struct sim *s, const struct core *c, uint32_t i)
{
	int evaluators = 0, copies = 0;

	for (uint32_t k = 0; k < c->n_slots; k++) {
		if (k == i || !has_portion(c, k))
			continue;
		evaluators += worker_is_active(&c->worker[k]) &&
			      c->worker[k].lease.grant.request == s->server.granted[k];
		copies += portion_of(c, k) == portion_of(c, i);
	}
	if (evaluators && !copies && c->leases.n_free > 0 && c->rules->limit(c, &c->worker[i]) > 0)
		sim_violation(
			s, "slot %u evaluates beside another one, though it could train", i + 1);
}

void bounds_after(struct sim *s)
{
	const struct core *c = s->server.core;
	const struct leases *l = &c->leases;

	if (!l->evaluating || mode_is_exact(c->cfg.training.mode) || voices_matter(c))
		return;
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (c->worker[i].lease.grant.request != s->server.granted[i] && has_portion(c, i) &&
			l->portion[portion_of(c, i)] == BATCH_LEASED)
			check_evaluator(s, c, i);
}

/* Returns 1 if worker `i` counted when the current event ended the run as diverged. A worker that
 * the server expected back until this event counts, too: the recovery can end later in the same
 * step, after which the server expects no worker. */
static int counted(const struct sim *s, const struct core *c, uint32_t i)
{
	const struct worker_session *w = &c->worker[i].session;

	return w->state == SESSION_LIVE || w->state == SESSION_SUSPECT ||
	       (w->state == SESSION_AWAY && (!w->overdue || s->server.expected[i]));
}

/* Checks a hostile run that ended as diverged. If the workers have fewer than three keys, more than
 * half of the workers must be bad. Otherwise more than half of the keys must be bad, where a key is
 * bad if more than half of its workers are bad. */
static void check_diverged_keys(struct sim *s, const struct core *c)
{
	uint32_t all[SIM_NODES] = {0}, bad[SIM_NODES] = {0}, workers = 0, bad_workers = 0, keys = 0,
		 bad_keys = 0;

	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];
		uint32_t node = (uint32_t)w->session.owner[0] - 'a';

		if (!counted(s, c, i))
			continue;
		workers++;
		bad_workers += w->quarantine.bad >= FEW_BAD;
		if (node < SIM_NODES) {
			all[node]++;
			bad[node] += w->quarantine.bad >= FEW_BAD;
		}
	}
	for (uint32_t node = 0; node < SIM_NODES; node++) {
		keys += all[node] > 0;
		bad_keys += 2 * bad[node] > all[node];
	}
	if (keys >= 3 ? 2 * bad_keys <= keys : 2 * bad_workers <= workers)
		sim_violation(s, "the run ends as diverged for %u of %u keys, %u of %u workers",
			bad_keys, keys, bad_workers, workers);
}

/* Checks a run that has just ended as diverged: a worker with a broken device must not end the run
 * before the training has begun, or while the other workers are only silent. */
static void check_diverged(struct sim *s, const struct core *c)
{
	const struct worker *only = NULL;
	uint32_t all = 0, bad = 0;

	/* in hostile runs, with three or more keys, the majority that must be bad is one of the
	 * keys, not one of the workers */
	if (s->n_hostile) {
		check_diverged_keys(s, c);
		return;
	}
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];
		int counts = counted(s, c, i);

		all += (uint32_t)counts;
		bad += (uint32_t)(counts && w->quarantine.bad >= FEW_BAD);
		only = counts ? w : only;
	}
	if (2 * bad <= all)
		sim_violation(s, "the run ends as diverged for %u of %u workers", bad, all);
	if (s->training && !c->run.begun)
		sim_violation(s, "the run ends as diverged before it has begun");
	if (all == 1 && !only->quarantine.sound)
		sim_violation(s, "the run ends as diverged for a worker that never was sound");
}

/* Checks a run that ends as diverged, once: at the event that ends the run. After this event other
 * workers may leave, so a later check would not see them. */
static void check_ending(struct sim *s, const struct core *c)
{
	if (c->run.end_status != PS_EDIVERGED || s->server.ending)
		return;
	s->server.ending = 1;
	check_diverged(s, c);
}

/* For each node, writes to `incarnation` the incarnation of the last slot with the name of the
 * node, or 0 if no slot has this name. */
static void find_incarnations(const struct core *c, uint32_t incarnation[SIM_WORKERS + 1])
{
	memset(incarnation, 0, (SIM_WORKERS + 1) * sizeof(*incarnation));
	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker_session *w = &c->worker[i].session;
		uint32_t node = (uint32_t)w->name[0] - 'a';

		if (node >= 1 && node <= SIM_WORKERS && w->name[1] == '\0')
			incarnation[node] = w->incarnation;
	}
}

/* In hostile runs, checks that no honest worker is in quarantine. */
static void check_honest(struct sim *s, const struct core *c)
{
	for (uint32_t node = 1; node <= SIM_WORKERS && c->quarantine.n > 0; node++) {
		const char name[2] = {(char)('a' + node)};
		char key[KEY_TEXT];

		hostile_key(key, node);
		if (quarantine_has(&c->quarantine, key, name))
			sim_violation(s, "honest worker %u is in quarantine", node);
	}
}

/* Checks that a worker in quarantine gets no new incarnation. */
static void check_quarantine(struct sim *s, const struct core *c)
{
	uint32_t incarnation[SIM_WORKERS + 1];

	if (s->n_hostile) {
		check_honest(s, c);
		return;
	}
	if (c->quarantine.n == 0) {
		for (uint32_t node = 1; node <= SIM_WORKERS; node++)
			s->worker[node - 1].quarantined = 0;
		return;
	}
	find_incarnations(c, incarnation);
	for (uint32_t node = 1; node <= SIM_WORKERS; node++) {
		const char name[2] = {(char)('a' + node)};
		struct sim_worker *w = worker_at(s, node);
		int before = w->quarantined && w->quarantine_term == c->cfg.term;

		w->quarantined = quarantine_has(&c->quarantine, "", name);
		w->was_quarantined |= w->quarantined;
		w->quarantine_term = c->cfg.term;
		if (w->quarantined && !before)
			s->quarantines++;
		if (w->quarantined && before && incarnation[node] > w->incarnation)
			sim_violation(s, "worker %u joins from quarantine", node);
		w->incarnation = incarnation[node];
	}
}

/* Returns 1 if a worker has used a slot after the first n_slots. */
static int is_used_beyond(const struct core *c)
{
	const struct worker *end = c->worker + c->cfg.sessions.max_workers;
	uint32_t states = SESSION_FREE;

	_Static_assert(SESSION_FREE == 0, "all other states have a bit that is 1");
	for (const struct worker *w = c->worker + c->n_slots; w < end; w++)
		states |= (uint32_t)w->session.state;
	return states != SESSION_FREE;
}

static void check_slots(struct sim *s, const struct core *c)
{
	int ordered = 1;

	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];

		ordered &=
			(w->session.state != SESSION_SUSPECT) & !(w->sync.idle | w->pace.stalled);
	}
	s->ordered &= c->run.ending != END_NOT || ordered;
	if (is_used_beyond(c))
		sim_violation(s, "only %u slots are in use, but a later one is", c->n_slots);
}

/* Checks the invariants of the core after some events. After each event, the checks would take a
 * tenth of the simulator's time. */
static void check_invariants(struct sim *s, const struct core *c)
{
	const char *broken =
		s->events % CHECK_EVERY == 0 ? core_broken_invariant(&s->server.values, c) : NULL;

	if (broken)
		sim_violation(s, "%s", broken);
}

static void check_core(struct sim *s, const struct core *c)
{
	check_invariants(s, c);
	check_slots(s, c);
	if (c->run.recovering && c->run.recover_by_ms && c->now_ms >= c->run.recover_by_ms)
		sim_violation(s, "it recovers since %llu ms longer than it may",
			(unsigned long long)(c->now_ms - c->run.recover_by_ms));
	check_ending(s, c);
	check_quarantine(s, c);
	check_trust(s, c);
}

void bounds_check(struct sim *s, uint32_t node)
{
	if (s->net.peak > MAX_PENDING)
		sim_violation(s, "%zu things are pending", s->net.peak);
	if (s->disk.peak_names > MAX_NAMES)
		sim_violation(s, "%u files in the directory", s->disk.peak_names);
	if (node != SIM_SERVER && !hostile_is(node) && s->worker[node - 1].session)
		check_worker(s, node);
	if (s->server.core && node == SIM_SERVER)
		check_core(s, s->server.core);
}

void bounds_disk(struct sim *s)
{
	uint32_t n = disk_count(&s->disk, "ckpt-");

	if (n > CHECKPOINT_KEEP)
		sim_violation(s, "%u checkpoints are kept", n);
}

int bounds_too_few(const struct sim *s)
{
	const struct core *c = s->server.core;

	return c && !c->run.begun && core_live_workers(c) < c->cfg.leases.min_workers;
}

void bounds_note_silence(struct sim *s, const struct effect *e)
{
	const struct core *c = s->server.core;
	const struct worker *w = &c->worker[e->worker - 1];

	if (e->change == WORKER_GONE &&
		c->now_ms - w->session.last_message_ms > c->cfg.sessions.dead_ms)
		s->silenced[e->worker - 1] |= 1ull << (w->session.incarnation % 64);
}

void bounds_trace(struct sim *s)
{
	static const char *const state[] = {"free", "joining", "live", "suspect", "away", "dead"};
	const struct core *c = s->server.core;

	for (uint32_t i = 0; c && i < c->n_slots; i++) {
		const struct worker *w = &c->worker[i];

		if (w->session.state != SESSION_FREE)
			sim_trace(s,
				"slot %u.%u %s peer=%u last=%llu durable=%llu replay=%llu "
				"lease=%llu waiting=%d clock=%llu member=%llu answered=%llu",
				i + 1, w->session.incarnation, state[w->session.state],
				w->session.peer, (unsigned long long)w->ledger.last_seq,
				(unsigned long long)w->ledger.durable_seq,
				(unsigned long long)w->ledger.replay_target,
				(unsigned long long)w->lease.request, w->lease.waiting,
				(unsigned long long)w->ssp.clock,
				(unsigned long long)w->sync.member,
				(unsigned long long)w->sync.answered);
	}
	if (c)
		sim_trace(s, "started=%d recovering=%d ending=%d epoch=%u free=%u done=%u of %u",
			c->run.begun, c->run.recovering, c->run.ending, c->leases.epoch,
			c->leases.n_free, c->leases.n_done, c->leases.n_batches);
	if (c && c->cfg.training.mode == MODE_SYNC)
		sim_trace(s, "step open=%d batches=%u..%u due=%u pushes=%u of version=%llu",
			c->sync.open, c->sync.first, c->sync.end, c->sync.due,
			c->accumulator.pushes, (unsigned long long)c->store.version);
	for (uint32_t node = 1; node <= SIM_WORKERS + SIM_TWINS; node++) {
		const struct session *w = s->worker[node - 1].session;

		if (w)
			sim_trace(s, "worker %u is %u.%u phase=%d bulk=%u last=%llu acked=%llu",
				node, session_welcome(w)->stamp.worker,
				session_welcome(w)->stamp.incarnation, session_phase(w),
				s->worker[node - 1].bulk, (unsigned long long)session_last_seq(w),
				(unsigned long long)session_acked_seq(w));
	}
	sim_trace(s, "the disk %s", s->disk.broken ? "has lied" : "has kept its promises");
}
