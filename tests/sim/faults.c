/* faults.c - carries out each fault of the schedule at its time. */
#include <stdio.h>
#include "tests/sim/sim.h"

void faults_schedule(struct sim *s)
{
	for (uint32_t i = 0; i < s->n_faults; i++)
		if (s->fault[i].at_ms != UINT64_MAX)
			net_at(&s->net, s->fault[i].at_ms,
				&(struct item){.what = HAPPEN_FAULT, .number = i});
}

static struct sim_worker *victim(struct sim *s, const struct fault *f)
{
	return f->node <= s->n_workers ? &s->worker[f->node - 1] : NULL;
}

/* Kills the server at the moment that the fault demands: now, at a later effect, or in a later disk
 * operation. If the server does not run, the kill happens in a disk operation of the server's next
 * start. */
static void kill_server(struct sim *s, const struct fault *f, int power)
{
	struct sim_server *v = &s->server;

	v->power = power;
	if (!v->core || f->moment == AT_OPERATION)
		s->disk.ops_left = f->in;
	else if (f->moment == AT_EFFECT)
		v->kill_in = f->in;
	else
		server_crash(s, power);
}

static void kill_worker(struct sim *s, const struct fault *f)
{
	struct sim_worker *w = victim(s, f);

	if (w && w->session && f->moment == AT_EFFECT)
		w->kill_in = f->in;
	else if (w)
		worker_crash(s, f->node);
}

static void stop_node(struct sim *s, const struct fault *f)
{
	struct sim_worker *w = f->node == SIM_SERVER ? NULL : victim(s, f);

	if (f->node == SIM_SERVER)
		s->server.stopped_until_ms = s->net.now_ms + f->ms;
	else if (w)
		w->stopped_until_ms = s->net.now_ms + f->ms;
	if (w)
		s->suspectable = 1;
}

static void cut(struct sim *s, const struct fault *f)
{
	uint64_t until = s->net.now_ms + f->ms;

	if (f->way & 1)
		s->net.lane[f->node][1].cut_until_ms = until;
	if (f->way & 2)
		s->net.lane[f->node][0].cut_until_ms = until;
	if (f->in % 2)
		net_at(&s->net, until, &(struct item){.what = HAPPEN_HEAL, .node = f->node});
	s->cuts++;
}

static void cut_off(struct sim *s, uint32_t node, uint32_t ms)
{
	for (int way = 0; way < 2; way++)
		s->net.lane[node][way].cut_until_ms = s->net.now_ms + ms;
}

/* Starts a second process with the name of a worker, as a supervisor does if it wrongly declares
 * the worker dead. The first process may be stopped, cut off from the network, or healthy. */
static void twin(struct sim *s, const struct fault *f)
{
	uint32_t node = victim(s, f) ? worker_twin(s, f->node, 10 + 20 * f->in) : 0;

	if (node && f->way == 1)
		s->worker[node - 1].stopped_until_ms = s->net.now_ms + f->ms;
	else if (node && f->way == 2)
		cut_off(s, node, f->ms);
}

static void slow(struct sim *s, const struct fault *f)
{
	s->net.slow_until_ms[f->node] = s->net.now_ms + f->ms;
	s->net.slow_ms[f->node] = f->in;
	s->suspectable = 1;
}

/* Returns 1 if the run can continue without one worker: other workers can do its work, and the
 * training has begun or can begin without this worker. */
static int is_dispensable(const struct sim *s)
{
	const struct core *c = s->server.core;

	return s->training && s->n_workers > 1 &&
	       ((c && core_stats(c)->leases > 0) || s->n_workers > s->cfg.leases.min_workers);
}

static void hang_worker(struct sim *s, const struct fault *f)
{
	struct sim_worker *w = victim(s, f);

	if (!w)
		return;
	w->hangs_until_ms = s->net.now_ms + f->ms;
	if (f->way == 1 && is_dispensable(s))
		w->hangs_until_ms = UINT64_MAX; /* the program hangs forever */
	s->suspectable = 1;
	s->hangs++;
}

static void drain_server(struct sim *s)
{
	if (!s->server.core || s->server.over)
		return;
	s->drains++;
	server_event(s, &(struct event){.kind = EVENT_DRAIN});
}

void faults_happen(struct sim *s, uint32_t number)
{
	const struct fault *f = &s->fault[number];
	char text[128];

	if (s->trace)
		sim_trace(s, "FAULT %u: %s", number, faults_text(f, text, sizeof(text)));
	switch (f->kind) {
	case FAULT_KILL:
		if (f->node != SIM_SERVER)
			kill_worker(s, f);
		else
			kill_server(s, f, 0);
		break;
	case FAULT_POWER:
		kill_server(s, f, 1);
		break;
	case FAULT_DRAIN:
		drain_server(s);
		break;
	case FAULT_STOP:
		stop_node(s, f);
		break;
	case FAULT_LEAP:
		s->ahead_ms[f->node] += f->ms;
		s->leaps++;
		break;
	case FAULT_CUT:
		cut(s, f);
		break;
	case FAULT_SLOW:
		slow(s, f);
		break;
	case FAULT_DISK:
		s->disk.fails = 20 + 40 * f->in;
		s->disk_bad_until_ms = s->net.now_ms + f->ms;
		s->suspectable |=
			s->cfg.checkpoint.wal ==
			/* With a write-ahead log, an answer may be overdue. The worker's session
			 * then sends HELLO instead of heartbeats, and the server may suspect the
			 * worker. */
			DURABILITY_ALWAYS;
		break;
	case FAULT_ROT:
		disk_rot(&s->disk, "ckpt-");
		break;
	case FAULT_LEAVE:
		if (victim(s, f))
			worker_leave(s, f->node, f->ms);
		break;
	case FAULT_NAN:
		if (victim(s, f)) {
			victim(s, f)->broken = 1;
			victim(s, f)->breaks = f->way - 1;
		}
		break;
	case FAULT_TWIN:
		twin(s, f);
		break;
	case FAULT_HANG:
		hang_worker(s, f);
		break;
	case FAULT_KINDS:
		break;
	}
}

const char *faults_text(const struct fault *f, char *out, size_t size)
{
	static const char *const name[FAULT_KINDS] = {[FAULT_KILL] = "kill",
		[FAULT_POWER] = "power cut",
		[FAULT_DRAIN] = "drain",
		[FAULT_STOP] = "stop",
		[FAULT_LEAP] = "clock leaps",
		[FAULT_CUT] = "partition",
		[FAULT_SLOW] = "slow link",
		[FAULT_DISK] = "disk errors",
		[FAULT_ROT] = "rotten bit",
		[FAULT_LEAVE] = "leave",
		[FAULT_NAN] = "device breaks",
		[FAULT_TWIN] = "started twice",
		[FAULT_HANG] = "hangs and sends heartbeats"};
	static const char *const when[] = {"at once", "at an effect", "in a disk operation"};
	int kills = f->kind == FAULT_KILL || f->kind == FAULT_POWER;

	snprintf(out, size, "%s node=%u ms=%u in=%u way=%u %s", name[f->kind], f->node, f->ms,
		f->in, f->way, kills ? when[f->moment] : "");
	return out;
}
