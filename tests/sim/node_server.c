/*
 * node_server.c - the server of the simulator: the real core, checkpointer and start-up code in a
 * simulated process. The code takes the same steps as server/server.c: it restores the state,
 * writes a checkpoint, accepts messages, carries out effects in order, and closes the sessions.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/sim/sim.h"

#define SESSION_CLOSE_MS 2000
/* a kill ends a job at a disk operation whose number is drawn below CUT_OPS; this is more than a
 * save of a checkpoint makes, so some saves are complete */
#define CUT_OPS 30u

/* ---- the process ----------------------------------------------------------------------------- */

static void start_server_again(struct sim *s, uint64_t in_ms)
{
	net_at(&s->net, s->net.now_ms + in_ms,
		&(struct item){.what = HAPPEN_START, .node = SIM_SERVER});
}

void server_release(struct sim *s)
{
	struct sim_server *v = &s->server;

	/* the functions below, which release the process's memory, must not write to the disk */
	s->disk.dead = 1;
	sim_wal_release(s);
	checkpointer_free(&v->checkpointer);
	startup_release(&v->state);
	disk_killed(&s->disk);
	v->core = NULL;
	v->process = 0;
	v->over = v->ending = 0;
	v->kill_in = DISK_NEVER;
	memset(v->job, 0, sizeof(v->job));
}

static void on_sim_saved(void *arg, uint64_t generation, int rc)
{
	const struct event ev = {
		.kind = rc ? EVENT_SAVE_FAILED : EVENT_DURABLE, .generation = generation};

	if (rc == PS_OK)
		sim_wal_durable(arg, generation);
	server_event(arg, &ev);
}

/* Restores the state and writes a checkpoint, as the server does when it starts. */
static int boot(struct sim *s, struct err *e)
{
	struct sim_server *v = &s->server;

	/* Remove the size limit of the disk during a start, because a start on a full disk would
	 * exit, which the simulator does not test. */
	s->disk.capacity = 0;
	int rc = startup(&v->state, &s->options, e);

	if (!rc)
		rc = checkpointer_new(&v->checkpointer, NULL, DISK_DIRECTORY, on_sim_saved, s);
	if (!rc)
		checkpointer_keep(v->checkpointer, v->state.sound);
	if (!rc)
		rc = checkpointer_write(
			v->checkpointer, v->state.core, core_config(v->state.core)->generation, e);
	return rc ? rc : sim_wal_open(s, e);
}

/* Handles a start that has failed. The failure is a violation, unless the process was killed or the
 * disk has failed or lost data. */
static void boot_failed(struct sim *s, int rc, const struct err *e)
{
	int killed = s->disk.dead, power = s->server.power;

	sim_trace(s, "server cannot start: %s", killed ? "killed" : e->text);
	server_release(s);
	if (killed && power) {
		disk_power_cut(&s->disk);
		s->power_cuts++;
	}
	if (killed) {
		s->crashes++;
		start_server_again(s, 50 + net_below(&s->net, 500));
	} else if (rc == PS_EIO && s->disk.fails) {
		start_server_again(s, 100);
	} else if (rc == PS_ECHECKPOINT && s->disk.broken) {
		s->refused = 1;
	} else {
		sim_violation(s, "the server cannot start: %s", e->text);
	}
}

static void spoken_to(struct sim *s)
{
	for (uint32_t node = 1; node <= s->n_workers; node++)
		if (s->reports_lost_links || net_chance(&s->net, 300))
			net_at(&s->net, s->net.now_ms,
				&(struct item){.what = HAPPEN_HEAL, .node = node});
}

void server_start(struct sim *s)
{
	struct sim_server *v = &s->server;
	struct err e = {0};
	int rc = boot(s, &e);

	if (rc) {
		boot_failed(s, rc, &e);
		return;
	}
	s->disk.ops_left = DISK_NEVER;
	v->core = v->state.core;
	s->cfg = *core_config(v->core);
	if (s->cfg.term <= v->epoch && !s->disk.broken)
		sim_violation(s, "term %llu is given twice", (unsigned long long)s->cfg.term);
	v->epoch = s->cfg.term;
	v->process = ++s->processes;
	sim_wal_check_restored(s);
	hostile_server_started(s);
	s->awake[SIM_SERVER] = (struct awake){0};
	sim_trace(s, "server starts epoch=%llu version=%llu", (unsigned long long)v->epoch,
		(unsigned long long)core_stats(v->core)->version);
	net_at(&s->net, s->net.now_ms,
		&(struct item){.what = HAPPEN_TICK, .node = SIM_SERVER, .process = v->process});
	spoken_to(s);
}

/* Called when the server is killed: runs each job of its thread pool up to a random disk operation,
 * or not at all. */
static void cut_jobs(struct sim *s)
{
	for (size_t i = 0; i < SIM_JOBS; i++) {
		struct job job = s->server.job[i];

		if (!job.work || s->server.job_ran[i])
			continue;
		s->disk.ops_left = (uint32_t)net_below(&s->net, CUT_OPS);
		if (!s->disk.dead)
			job.run(job.work);
	}
}

void server_crash(struct sim *s, int power)
{
	struct sim_server *v = &s->server;

	if (!v->core)
		return;
	sim_trace(s, "server %s version=%llu", power ? "loses its power" : "is killed",
		(unsigned long long)core_stats(v->core)->version);
	cut_jobs(s);
	server_release(s);
	if (power) {
		disk_power_cut(&s->disk);
		s->power_cuts++;
	}
	s->crashes++;
	start_server_again(s, 50 + net_below(&s->net, 1500));
}

void server_end(struct sim *s)
{
	struct sim_server *v = &s->server;
	int status = v->status;

	sim_trace(s, "server ends status=%d", status);
	server_release(s);
	if (status == PS_EDONE || s->drained)
		s->finished = 1;
	else
		start_server_again(s, 50 + net_below(&s->net, 1500));
}

/* ---- the pool -------------------------------------------------------------------------------- */

void server_take_job(void *arg, const struct job *job)
{
	struct sim *s = arg;
	struct sim_server *v = &s->server;
	uint32_t i = 0;

	while (i < SIM_JOBS && v->job[i].work)
		i++;
	if (i == SIM_JOBS) {
		sim_violation(s, "more than %u jobs for the pool at once", SIM_JOBS);
		return;
	}
	v->job[i] = *job;
	v->job_ran[i] = 0;
	net_at(&s->net, s->net.now_ms + 1 + net_below(&s->net, s->save_ms),
		&(struct item){.what = HAPPEN_JOB,
			.node = SIM_SERVER,
			.process = v->process,
			.number = i});
}

/* Runs a job of the thread pool at one moment of virtual time. A second call, a few milliseconds
 * later, reports the end of the job to the event loop. */
void server_job(struct sim *s, struct item *it)
{
	struct sim_server *v = &s->server;
	struct job job;

	if (it->number == SIM_JOBS) {
		server_end(s);
		return;
	}
	job = v->job[it->number];
	if (v->job_ran[it->number]) {
		v->job[it->number].work = NULL;
		job.after(job.work, 0);
		return;
	}
	job.run(job.work);
	v->job_ran[it->number] = 1;
	if (s->disk.dead) {
		server_crash(s, v->power);
		return;
	}
	/* without a write of the log in progress, the job was a save of a checkpoint */
	if (!s->disk.fails && !wal_busy(s->wal.log))
		bounds_disk(s);
	net_at(&s->net, s->net.now_ms + net_below(&s->net, 5), it);
}

/* ---- effects --------------------------------------------------------------------------------- */

static const char *const names[MSG_TYPES] = {"?", "HELLO", "WELCOME", "PULL", "PARAMS", "PUSH",
	"ACK", "LEASE", "GRANT", "RESULT", "HEARTBEAT", "BYE", "STATUS", "ADMIN", "ERROR"};

static void trace_send(struct sim *s, uint32_t node, const struct msg *m)
{
	if (!s->trace)
		return;
	if (m->type == MSG_ACK)
		sim_trace(s, "server -> %u ACK seq=%llu verdict=%d reject=%d dup=%u durable=%llu",
			node, (unsigned long long)m->ack.seq, m->ack.verdict, m->ack.reject,
			m->ack.duplicate, (unsigned long long)m->ack.durable_seq);
	else if (m->type == MSG_GRANT)
		sim_trace(s, "server -> %u GRANT kind=%d batches=%u+%u of %u at %llu", node,
			m->grant.kind, m->grant.work.first, m->grant.work.count,
			m->grant.work.epoch, (unsigned long long)m->grant.version);
	else
		sim_trace(s, "server -> %u %s status=%s", node, names[m->type],
			m->type == MSG_ERROR ? err_name(m->error.status) : "");
}

/* Returns the node of a connection, or 0 if the connection is closed. */
static uint32_t node_of_link(const struct sim *s, uint32_t link)
{
	uint32_t node = worker_of_link(s, link);

	return node ? node : hostile_of_link(s, link);
}

void sim_send(struct sim *s, uint32_t link, const struct msg *m)
{
	uint32_t node = node_of_link(s, link);

	trace_send(s, node, m);
	if (node)
		sim_wal_send(s,
			&(struct item){.node = node,
				.process = hostile_is(node) ? 0 : s->worker[node - 1].process,
				.link = link},
			m, 0);
}

static void send_from_server(struct sim *s, const struct effect *e, uint32_t node)
{
	const struct msg *m = &e->msg;
	struct msg params;

	trace_send(s, node, m);
	hostile_sent(s, e->peer, m);
	if (!node)
		return;
	if (m->type == MSG_WELCOME && !hostile_is(node))
		sim_lane_offer(s, node, e->peer, m->welcome.stamp.worker);
	/* send PARAMS without values: the simulated workers (program.c) read the weights from
	 * `versions` */
	if (m->type == MSG_PARAMS) {
		params.type = MSG_PARAMS;
		params.params.request = m->params.request;
		params.params.version = m->params.version;
		params.params.which = m->params.which;
		params.params.elastic = m->params.elastic;
		params.params.ack = m->params.ack;
		params.params.slices.n = 0;
		m = &params;
	}
	sim_wal_send(s,
		&(struct item){.node = node,
			.process = hostile_is(node) ? 0 : s->worker[node - 1].process,
			.link = e->peer},
		m, e->durable_first);
}

/* Stores the weights that workers can pull after this step of the core. */
static void remember_version(struct sim *s)
{
	const struct core *c = s->server.core;
	size_t n = s->cfg.n_params < SIM_PORTIONS ? s->cfg.n_params : SIM_PORTIONS;

	if (!s->exact && s->cfg.optim.kind != OPTIM_LBFGS && s->mode != SIM_EASGD)
		return;
	uint64_t version = core_stats(c)->version;
	struct sim_version *v = sim_version(s, s->cfg.term, version);
	if (v->version == version && v->epoch == s->cfg.term)
		return;
	v->version = version;
	v->epoch = s->cfg.term;
	memcpy(v->w, core_weights(c), n * sizeof(float));
}

static void finish_server(struct sim *s, int status)
{
	struct sim_server *v = &s->server;

	sim_trace(s, "server finishes status=%d", status);
	s->diverged += status == PS_EDIVERGED;
	if (status != PS_EDONE && status != PS_ESHUTDOWN && status != PS_EDIVERGED)
		sim_violation(s, "the server ends with %s", err_name(status));
	v->over = 1;
	v->status = status;
	sim_wal_finish(s);
	net_at(&s->net, s->net.now_ms + 500 + net_below(&s->net, SESSION_CLOSE_MS),
		&(struct item){.what = HAPPEN_JOB,
			.node = SIM_SERVER,
			.process = v->process,
			.number = SIM_JOBS});
}

/* If the run is `tight`, limits the disk to the space for the small files and for three checkpoints
 * as large as the newest one. */
static void limit_space(struct sim *s)
{
	if (s->tight)
		s->disk.capacity =
			checkpointer_stats(s->server.checkpointer)->bytes * 13 / 4 + 4096;
}

/* Returns 1 if two of the votes are lies. This is possible with a single liar: if a liar without a
 * name starts again, the server takes it for another worker, so the liar can confirm its own
 * lie. */
static int lies_twice(const struct dispute *d)
{
	uint32_t lies = 0;

	for (uint32_t i = 0; i < d->votes; i++)
		lies += d->correct[i] != 1 || d->loss[i] > 2 * d->count;
	return lies > 1;
}

/* Checks that honest workers are in no dispute with each other, and that no honest one is outvoted.
 * The slot of the outvoted worker may have a new process in the meantime. */
static void check_dispute(struct sim *s, const struct effect *e)
{
	char name[2] = "";
	struct worker_view v;

	if (s->liar)
		snprintf(name, sizeof(name), "%c", 'a' + (int)s->liar);
	s->disputes += !e->worker;
	s->outvoted += e->worker != 0;
	if (!s->liar && !s->n_hostile)
		sim_violation(s, "honest workers are in dispute");
	if (!e->worker)
		return;
	core_worker(s->server.core, e->worker - 1, &v);
	if (s->n_hostile) {
		if (v.incarnation == e->incarnation && !hostile_is((uint32_t)v.owner[0] - 'a'))
			sim_violation(s, "honest worker %u is outvoted", e->worker);
		return;
	}
	if (v.incarnation == e->incarnation && v.name[0] && strcmp(v.name, name) != 0 &&
		!lies_twice(&e->dispute))
		sim_violation(s, "worker %u is outvoted, but node %u lies", e->worker, s->liar);
}

static void carry_out_server_effect(struct sim *s, const struct effect *e)
{
	switch (e->kind) {
	case EFFECT_COMMIT: /* nothing to do, because sim_wal_stepped carries out this effect */
	case EFFECT_SEND:   /* server_event carries out this effect */
		break;
	case EFFECT_SNAPSHOT:
		if (checkpointer_busy(s->server.checkpointer))
			sim_violation(s, "two snapshots at once");
		checkpointer_start(s->server.checkpointer, s->server.core, e->generation);
		limit_space(s);
		sim_wal_rotate(s, e->generation);
		break;
	case EFFECT_FINISH:
		finish_server(s, e->status);
		break;
	case EFFECT_DISPUTED:
		check_dispute(s, e);
		break;
	case EFFECT_HELLO:
		hostile_assigned(s, e);
		break;
	case EFFECT_WORKER:
		bounds_note_silence(s, e);
		break;
	case EFFECT_BEGIN:
	case EFFECT_DATA_FIXED:
	case EFFECT_EPOCH_BEGUN:
	case EFFECT_TRAINED:
	case EFFECT_EVALUATED:
	case EFFECT_STATUS:
	case EFFECT_RELEASED:
		break;
	}
}

static int is_server_killed(struct sim_server *v)
{
	return v->kill_in != DISK_NEVER && v->kill_in-- == 0;
}

/* Of the two buffers of weights, returns the one that the core does not use. */
static float *next_buffer(struct sim_server *v)
{
	float *first = param_buffers_first(v->state.params);

	return core_weights(v->core) == first ? v->spare : first;
}

void server_event(struct sim *s, const struct event *ev)
{
	struct sim_server *v = &s->server;
	struct event event = *ev;
	uint32_t gone[SIM_SLOTS * 4];
	size_t n_gone = 0;
	const struct effect *e;

	if (!v->core)
		return;
	event.next_buffer = next_buffer(v);
	const struct core_stats *stats = core_stats(v->core);
	uint64_t lsn = sim_wal_event(s, ev), version = stats->version;
	bounds_before(s);
	if (s->mode == SIM_SYNC)
		steps_before(s);
	replays_before(s, ev);
	if (s->n_hostile)
		hostile_before(s);
	if (s->mode == SIM_DOWNPOUR)
		voices_before(s, ev);
	core_step(v->core, &event, sim_clock(s, SIM_SERVER));
	if (stats->version != version + core_new_versions(v->core))
		sim_violation(s, "a step goes from version %llu to %llu, and says %llu",
			(unsigned long long)version, (unsigned long long)stats->version,
			(unsigned long long)core_new_versions(v->core));
	bounds_after(s);
	if (s->mode == SIM_SYNC)
		steps_after(s, ev);
	if (s->replayer)
		replays_after(s, ev);
	if (s->n_hostile)
		hostile_after(s, ev);
	if (s->mode == SIM_DOWNPOUR)
		voices_after(s, ev);
	remember_version(s);
	sim_wal_stepped(s, lsn);
	for (size_t i = 0; (e = core_effect(v->core, i)); i++) {
		if (is_server_killed(v)) {
			server_crash(s, v->power);
			return;
		}
		if (e->kind != EFFECT_SEND) {
			carry_out_server_effect(s, e);
			continue;
		}
		uint32_t node = node_of_link(s, e->peer);
		if (!node && n_gone < sizeof(gone) / sizeof(gone[0]))
			gone[n_gone++] = e->peer;
		send_from_server(s, e, node);
	}
	while (n_gone && ev->kind != EVENT_PEER_GONE)
		server_event(s, &(struct event){.kind = EVENT_PEER_GONE, .peer = gone[--n_gone]});
}

/* ---- at the end ------------------------------------------------------------------------------ */

struct core *server_restore(struct sim *s, struct startup *r)
{
	struct err e = {0};

	if (startup(r, &s->options, &e) == 0)
		return r->core;
	if (!s->disk.broken)
		sim_violation(s, "what is on the disk at the end is refused: %s", e.text);
	return NULL;
}
