/* sim.c - runs one seed: handles all events in the order of virtual time, until every process has
 * ended. */
#include "tests/sim/sim.h"
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/mem.h"
#include "proto/wire.h"

#define DEADLINE_MS 120000 /* time limit of a run in virtual time; all faults end long before it */

/* The simulation that is running. A failed assertion of the server or a worker returns to `end` and
 * counts as a violation, so that the simulator reports the seed and shrinks the case. */
static struct {
	struct sim *sim; /* NULL: no simulation is running */
	jmp_buf end;
} running;

void ps_assert_failed(const char *file, int line, const char *condition)
{
	if (!running.sim) {
		(void)fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, condition);
		abort();
	}
	sim_violation(running.sim, "%s:%d: assertion failed: %s", file, line, condition);
	longjmp(running.end, 1);
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* If SIGSTOP has stopped the process of this event, postpones the event until the process gets
 * SIGCONT, and returns 1. The events of the process that wait for SIGCONT then happen in their
 * original order. */
static int is_put_off(struct sim *s, struct item *it, uint64_t stopped_until_ms)
{
	if (s->net.now_ms >= stopped_until_ms)
		return 0;
	net_later(&s->net, stopped_until_ms, it);
	it->msg = NULL;
	return 1;
}

/* Reports the progress of slow links to the core, as the server's shell does. Each report says that
 * some bytes have moved. */
static void report_transfers(struct sim *s)
{
	for (uint32_t node = 1; node <= s->n_workers; node++) {
		const struct sim_worker *w = &s->worker[node - 1];
		struct event ev = {.kind = EVENT_PROGRESS, .peer = w->bulk};

		if (!w->session || !w->bulk || s->net.now_ms >= s->net.slow_until_ms[node])
			continue;
		ev.bytes = net_below(&s->net, 2000);
		server_event(s, &ev);
	}
}

/* Finds the values of a push that are in shared memory. Returns 0 if the core must not receive the
 * message. */
static int find_values(struct sim *s, const struct item *it)
{
	int rc = sim_lane_join(s, it);
	struct msg refusal;

	if (rc == PS_ESTATE) {
		refusal.type = MSG_ERROR;
		refusal.error = (struct msg_error){.status = PS_ESTATE, .text = ""};
		sim_send(s, it->link, &refusal);
	}
	return rc == PS_OK;
}

static void happen_server(struct sim *s, struct item *it)
{
	struct sim_server *v = &s->server;
	struct event ev = {.kind = EVENT_TICK};

	if (it->what == HAPPEN_START) {
		server_start(s);
	} else if (it->process != v->process || !v->core ||
		   is_put_off(s, it, v->stopped_until_ms)) {
		return; /* the event was for an earlier process, or waits for SIGCONT */
	} else if (it->what == HAPPEN_JOB) {
		server_job(s, it);
	} else if (it->what == HAPPEN_TICK) {
		net_at(&s->net, s->net.now_ms + 50, it);
		ev.held_ms = sim_wal_held_ms(s);
		server_event(s, &ev);
		report_transfers(s);
		if (sim_wal_wants_snapshot(s))
			server_event(s, &(struct event){.kind = EVENT_SAVE});
	} else {
		if (!find_values(s, it) || !hostile_admit(s, it))
			return;
		ev = (struct event){.kind = EVENT_MESSAGE, .peer = it->link, .msg = it->msg};
		server_event(s, &ev);
	}
}

/* Returns the node of the process to which the event belongs. The node may have changed since the
 * event was added, because an old process moves to another node when a twin takes its name. */
static uint32_t node_of(const struct sim *s, const struct item *it)
{
	for (uint32_t node = SIM_WORKERS + 1; node <= SIM_WORKERS + SIM_TWINS; node++)
		if (it->process && s->worker[node - 1].process == it->process)
			return node;
	return it->node;
}

/* Releases the worker from quarantine, as an operator does. */
static void release_worker(struct sim *s, uint32_t node)
{
	struct msg m = {.type = MSG_ADMIN, .admin = {.verb = ADMIN_RELEASE}};

	sim_trace(s, "worker %u is released from quarantine", node);
	s->worker[node - 1].to_release = 0;
	m.admin.worker[0] = (char)('a' + node);
	s->releases++;
	server_event(s, &(struct event){.kind = EVENT_MESSAGE, .peer = UINT32_MAX, .msg = &m});
}

static void happen_worker(struct sim *s, struct item *it)
{
	it->node = node_of(s, it);
	struct sim_worker *w = &s->worker[it->node - 1];

	if (it->what == HAPPEN_START) {
		worker_start(s, it->node);
		return;
	}
	if (!w->session)
		return;
	if (it->what == HAPPEN_HEAL && !is_put_off(s, it, w->stopped_until_ms))
		worker_relink(s, it->node);
	else if (it->process != w->process || is_put_off(s, it, w->stopped_until_ms))
		return;
	else if (it->what == HAPPEN_MESSAGE)
		worker_message(s, it->node, it->msg);
	else if (it->what == HAPPEN_TICK)
		worker_tick(s, it->node);
	else if (it->what == HAPPEN_COMPUTED)
		program_computed(s, it->node);
	if (w->to_release)
		release_worker(s, it->node);
}

static void sim_happen(struct sim *s, struct item *it)
{
	if (hostile_is(it->node))
		hostile_happen(s, it);
	else if (it->what == HAPPEN_FAULT)
		faults_happen(s, it->number);
	else if (it->node == SIM_SERVER)
		happen_server(s, it);
	else
		happen_worker(s, it);
}

static int all_ended(const struct sim *s)
{
	for (uint32_t i = 0; i < SIM_WORKERS + SIM_TWINS; i++)
		if (s->worker[i].session && session_phase(s->worker[i].session) != PHASE_END)
			return 0;
	return 1;
}

static int all_workers_done(const struct sim *s)
{
	for (uint32_t i = 0; i < s->n_workers; i++)
		if (!s->worker[i].session || !s->worker[i].done)
			return 0;
	return all_ended(s);
}

/* After the end of the faults, sets the fault rates of links and disks to 0. Drains the server when
 * a ledger run has made all pushes. */
static void conduct(struct sim *s)
{
	if (s->net.now_ms > s->faults_end_ms) {
		s->net.drop = s->net.twice = s->net.tear = 0;
		s->net.in_order = 1;
		s->disk.forgets = 0;
	}
	if (s->net.now_ms >= s->disk_bad_until_ms)
		s->disk.fails = 0;
	if (!s->training && s->server.core && !s->server.over && all_workers_done(s) &&
		s->net.now_ms > s->faults_end_ms && !s->drained) {
		s->drained = 1;
		server_event(s, &(struct event){.kind = EVENT_DRAIN});
	}
	if (!s->server.core && !s->finished)
		s->drained = 0;
}

/* Handles a run that has passed its deadline. A late run is a violation, unless the disk has lost
 * data or has reported success of an fsync that wrote nothing. If the last checkpoint is lost, the
 * restarted server may have work left, but too few workers to do the work. */
static void late(struct sim *s)
{
	if (s->disk.lied || (s->disk.broken && (all_ended(s) || bounds_too_few(s))))
		s->refused = 1;
	else
		sim_violation(s, "hang: not finished after %d virtual seconds", DEADLINE_MS / 1000);
}

static void run_events(struct sim *s)
{
	struct item *it;

	while (!s->violation[0] && !((s->finished || s->refused) && all_ended(s)) &&
		(it = net_next(&s->net))) {
		if (s->net.now_ms > DEADLINE_MS) {
			late(s);
			break;
		}
		sim_digest_event(s, it);
		sim_happen(s, it);
		net_done(&s->net, it);
		conduct(s);
		bounds_check(s, it->node);
	}
	if (!s->violation[0] && !s->finished && !s->refused)
		sim_violation(s, "nothing is left to happen, and the run is not finished");
}

static void run_guarded(struct sim *s)
{
	running.sim = s;
	if (setjmp(running.end) == 0)
		run_events(s);
	running.sim = NULL;
}

/* ---- one seed -------------------------------------------------------------------------------- */

static void use(struct sim *s)
{
	calls_use(&s->disk, &s->chance, server_take_job, s);
}

static void sim_begin(struct sim *s, uint64_t seed)
{
	struct sim_server *v = &s->server;

	s->seed = seed;
	s->plan = rng_seed(seed, RNG_SIM, 1);
	s->chance = rng_seed(seed, RNG_SIM, 2);
	net_reset(&s->net, rng_seed(seed, RNG_SIM, 3));
	disk_reset(&s->disk, rng_seed(seed, RNG_SIM, 4));
	*v = (struct sim_server){.spare = v->spare, .kill_in = DISK_NEVER};
	v->state.lock_fd = -1;
	/* the gradients need no clearing, because they are written before they are read */
	for (uint32_t i = 0; i < SIM_WORKERS + SIM_TWINS; i++)
		memset(&s->worker[i], 0, offsetof(struct sim_worker, gradient));
	memset(s->ahead_ms, 0, sizeof(s->ahead_ms));
	memset(s->awake, 0, sizeof(s->awake));
	s->disk_bad_until_ms = 0;
	s->processes = s->links = s->n_coordinates = 0;
	s->crashes = s->power_cuts = s->worker_crashes = s->leaps = s->cuts = s->drains = 0;
	s->twins = s->excluded = s->diverged = s->hangs = 0;
	s->quarantines = s->releases = 0;
	memset(s->silenced, 0, sizeof(s->silenced));
	s->disputes = s->outvoted = 0;
	s->lane_pushes = s->torn_pushes = 0;
	memset(&s->steps, 0, sizeof(s->steps));
	memset(&s->voices, 0, sizeof(s->voices));
	s->finished = s->refused = s->drained = s->torn = s->suspectable = 0;
	s->violation[0] = '\0';
	sim_wal_reset(s);
	plan_run(s);
	s->disk.shorts = s->shorts;
	s->disk.forgets = s->forgets;
}

static void start_workers(struct sim *s)
{
	for (uint32_t node = 1; node <= SIM_WORKERS; node++) {
		struct sim_worker *w = &s->worker[node - 1];

		uint64_t late =
			rng_below(&s->plan, 1000) < 200 && !s->exact ? s->faults_end_ms : 500;
		uint64_t at_ms = rng_below(&s->plan, late);
		uint32_t to_push = 1 + (uint32_t)rng_below(&s->plan, 40), max = s->limits.steps;

		w->to_push = max && to_push > max ? max : to_push;
		w->named = rng_below(&s->plan, 1000) < 500;
		w->kill_in = DISK_NEVER;
		if (node <= s->n_workers)
			net_at(&s->net, at_ms, &(struct item){.what = HAPPEN_START, .node = node});
	}
}

static void run_once(struct sim *s, uint64_t seed)
{
	sim_begin(s, seed);
	start_workers(s);
	hostile_begin(s);
	faults_schedule(s);
	net_at(&s->net, 0, &(struct item){.what = HAPPEN_START, .node = SIM_SERVER});
	run_guarded(s);
	if (s->violation[0])
		bounds_trace(s);
	else if (!s->refused)
		verdict(s);
	sim_digest_end(s);
	server_release(s);
	for (uint32_t i = 0; i < SIM_WORKERS + SIM_TWINS; i++)
		session_free(&s->worker[i].session);
}

/* Returns 1 if the final weights `a` and `b` of two runs differ. In sandblaster, rounding errors do
 * not count, because the server adds the gradients in another order if a crash has interrupted a
 * pass. */
static int differs(const struct sim *s, float a, float b)
{
	int sums = s->mode == SIM_SANDBLASTER || s->mode == SIM_LBFGS;

	if (sums)
		return !(fabsf(a - b) <= 1e-5f * (1 + fabsf(b)));
	return memcmp(&a, &b, sizeof(a)) != 0;
}

/* Runs the seed again without faults, and checks that both runs end with the same weights. */
static void compare_exactly(struct sim *s)
{
	struct sim_limits calm = s->limits, limits = s->limits;
	uint32_t n = (uint32_t)s->cfg.n_params, crashes = s->crashes;
	int ordered = s->ordered;
	float *end = mem_must(n, sizeof(*end), "the weights of a run");

	memcpy(end, s->final, n * sizeof(*end));
	calm.faults = 0;
	calm.calm = 1;
	s->limits = calm;
	run_once(s, s->seed);
	s->limits = limits;
	s->crashes = crashes;
	/* In the run without faults, the server suspected a worker or found it idle or stalled. A
	 * step of sync does not wait for such a worker, so the steps of the two runs can have
	 * different gradients, and the weights are not comparable. */
	if (ordered && !s->ordered) {
		free(end);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		if (differs(s, end[i], s->final[i]))
			sim_violation(s,
				"weight %u is %.9g; without faults it is %.9g: not resumed", i,
				(double)end[i], (double)s->final[i]);
	free(end);
}

int sim_run(struct sim *s, uint64_t seed, const struct sim_limits *limits, int trace)
{
	s->limits = *limits;
	s->trace = trace;
	s->events = s->digest = 0;
	use(s);
	run_once(s, seed);
	s->trace = 0;
	if (!s->violation[0] && s->exact && (s->crashes || s->ordered) && !s->disk.broken &&
		!s->torn)
		compare_exactly(s);
	return s->violation[0] != '\0';
}

void sim_init(struct sim *s)
{
	memset(s, 0, sizeof(*s));
	net_init(&s->net);
	disk_init(&s->disk);
	s->server.spare = mem_must(SIM_COORDINATES, sizeof(float), "the second weights");
	s->wal.held = mem_must(SIM_HELD, sizeof(*s->wal.held), "replies that wait");
	s->final = mem_must(SIM_COORDINATES, sizeof(float), "the last weights");
	s->versions = mem_must(SIM_VERSIONS, sizeof(*s->versions), "the weights there were");
	if (wire_new(&s->wire, SIM_COORDINATES) != PS_OK)
		abort();
}

void sim_release(struct sim *s)
{
	net_release(&s->net);
	disk_release(&s->disk);
	free(s->server.spare);
	free(s->wal.held);
	free(s->final);
	free(s->versions);
	roles_free(&s->roles);
	wire_free(&s->wire);
}
