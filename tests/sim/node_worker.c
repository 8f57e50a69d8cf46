/* node_worker.c - the workers of the simulator: real sessions in simulated processes that start,
 * leave and return. */
#include <string.h>
#include "tests/sim/sim.h"

#define PATIENCE_MS 30000

static struct data_id data_of(const struct sim *s, const struct sim_worker *w)
{
	struct data_id d = {
		.n_train = s->n_train, .n_test = 7, .rows = 1, .cols = 1, .classes = 2, .xxh3 = 1};

	if (w->foreign)
		d = (struct data_id){
			.n_train = 3, .n_test = 1, .rows = 2, .cols = 2, .classes = 2, .xxh3 = 2};
	return s->training ? d : (struct data_id){0};
}

/* ---- faults ---------------------------------------------------------------------------------- */

void worker_leave(struct sim *s, uint32_t node, uint32_t back_ms)
{
	struct sim_worker *w = worker_at(s, node);

	if (!w->session || w->done || session_phase(w->session) == PHASE_END)
		return;
	sim_trace(s, "worker %u leaves", node);
	w->back_ms = back_ms;
	session_bye(w->session, sim_clock(s, node));
	worker_run_effects(s, node);
}

uint32_t worker_twin(struct sim *s, uint32_t node, uint32_t in_ms)
{
	struct sim_worker *w = worker_at(s, node);
	uint32_t twin = SIM_WORKERS + 1;

	while (twin <= SIM_WORKERS + SIM_TWINS && worker_at(s, twin)->session)
		twin++;
	if (!w->session || !w->named || w->done || session_phase(w->session) == PHASE_END ||
		twin > SIM_WORKERS + SIM_TWINS)
		return 0;
	sim_trace(s, "worker %u goes on as %u, another one takes its name", node, twin);
	*worker_at(s, twin) = *w;
	worker_at(s, twin)->to_push = w->to_push / 2;
	w->to_push -= w->to_push / 2;
	w->session = NULL;
	w->lane = (struct shm_lane){0};
	w->process = 0;
	s->awake[twin] = s->awake[node];
	s->ahead_ms[twin] = s->ahead_ms[node];
	memcpy(s->net.lane[twin], s->net.lane[node], sizeof(s->net.lane[node]));
	s->twins++;
	net_at(&s->net, s->net.now_ms + in_ms, &(struct item){.what = HAPPEN_START, .node = node});
	return twin;
}

/* ---- events ---------------------------------------------------------------------------------- */

void worker_message(struct sim *s, uint32_t node, const struct msg *m)
{
	/* the session receives the ACK before the PARAMS, as in worker/client/net.c */
	if (m->type == MSG_PARAMS && m->params.ack.seq) {
		struct msg ack;

		ack.type = MSG_ACK;
		ack.ack = m->params.ack;
		session_message(worker_at(s, node)->session, &ack, sim_clock(s, node));
		worker_run_effects(s, node);
		/* the worker was killed while it carried out the effects */
		if (!worker_at(s, node)->session)
			return;
	}
	session_message(worker_at(s, node)->session, m, sim_clock(s, node));
	worker_run_effects(s, node);
	program_step(s, node);
}

void worker_tick(struct sim *s, uint32_t node)
{
	struct sim_worker *w = worker_at(s, node);

	net_at(&s->net, s->net.now_ms + 100,
		&(struct item){.what = HAPPEN_TICK, .node = node, .process = w->process});
	if (w->foreign && s->net.now_ms >= s->foreign_ms) { /* an operator corrects its --data */
		worker_crash(s, node);
		return;
	}
	session_tick(w->session, 1, sim_clock(s, node));
	worker_run_effects(s, node);
	program_step(s, node);
}

static void link_up(struct sim *s, uint32_t node)
{
	struct sim_worker *w = worker_at(s, node);

	w->bulk = (uint32_t)++s->links;
	w->heartbeat = (uint32_t)++s->links;
	session_link_up(w->session, sim_clock(s, node));
	worker_run_effects(s, node);
}

void worker_relink(struct sim *s, uint32_t node)
{
	struct sim_worker *w = worker_at(s, node);

	if (session_phase(w->session) == PHASE_END)
		return;
	session_link_lost(w->session, sim_clock(s, node));
	worker_run_effects(s, node);
	if (w->session)
		link_up(s, node);
}

void worker_start(struct sim *s, uint32_t node)
{
	struct sim_worker *w = worker_at(s, node);
	struct session_config cfg = {.role = ROLE_WORKER,
		.seed = rng_next(&s->net.rng),
		.connect_timeout_ms = PATIENCE_MS,
		.disconnect_timeout_ms = PATIENCE_MS,
		.retry_ms = 150,
		.silence_ms = 500};

	if (w->session || s->finished || s->refused)
		return;
	w->foreign = node == s->foreign && s->net.now_ms < s->foreign_ms;
	cfg.data = data_of(s, w);
	cfg.tensors = s->tensors;
	if (w->named)
		cfg.name[0] = (char)('a' + node);
	w->process = ++s->processes;
	w->key = node;
	s->awake[node] = (struct awake){0};
	w->computing = w->done = 0;
	w->broken = w->breaks > 0;
	w->breaks -= (uint32_t)w->broken;
	w->stopped_until_ms = w->hangs_until_ms = 0;
	w->kill_in = DISK_NEVER;
	w->back_ms = 0;
	w->verdict_seq = w->born_term = 0;
	w->version = 0;
	w->fetched_for = 0;
	w->started = 0;
	memset(&w->grant, 0, sizeof(w->grant));
	memset(&w->lane, 0, sizeof(w->lane));
	if (session_new(&w->session, &cfg, s->cfg.sessions.replay_window) != 0) {
		sim_violation(s, "out of memory");
		return;
	}
	s->liar_starts += node == s->liar;
	sim_trace(s, "worker %u starts process=%llu", node, (unsigned long long)w->process);
	session_start(w->session, sim_clock(s, node));
	net_at(&s->net, s->net.now_ms + 100,
		&(struct item){.what = HAPPEN_TICK, .node = node, .process = w->process});
	link_up(s, node);
}
