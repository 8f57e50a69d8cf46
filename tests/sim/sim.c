/*
 * sim.c - the simulator's loop and main: seeds in, verdicts out.
 *
 *   sim --seeds 1..20000      run them all; stops at the first violation, prints its replay
 * command; exit 1 sim --seed 17 --trace     one run with everything that happened
 */
#include "tests/sim/sim.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"
#include "common/opt.h"

#define DEADLINE_MS 120000 /* virtual; every fault ends long before */

void sim_violation(struct sim *s, const char *fmt, ...)
{
	va_list ap;

	if (s->violation[0])
		return; /* the first one is the cause */
	va_start(ap, fmt);
	vsnprintf(s->violation, sizeof(s->violation), fmt, ap);
	va_end(ap);
}

void sim_trace(struct sim *s, const char *fmt, ...)
{
	va_list ap;

	if (!s->trace)
		return;
	printf("%8llu ", (unsigned long long)s->net.now_ms);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
}

/* ---- what a seed decides ----------------------------------------------------------------------
 */

static uint32_t between(struct sim *s, uint32_t low, uint32_t high)
{
	return low + (uint32_t)net_below(&s->net, high - low + 1);
}

struct sim_version *sim_version(struct sim *s, uint64_t epoch, uint64_t version)
{
	return &s->versions[(version + 61 * epoch) % SIM_VERSIONS];
}

uint32_t sim_images(const struct sim *s, uint32_t first, uint32_t count)
{
	uint32_t from = first * s->cfg.batch, to = from + count * s->cfg.batch;

	return (to < s->n_train ? to : s->n_train) - from;
}

/* Rate 1 and sums, so that whatever is counted once moves its coordinate by one. */
static void choose_mode(struct sim *s)
{
	struct core_config *c = &s->cfg;
	int mode = s->mode ? s->mode : (int)between(s, SIM_DOWNPOUR, SIM_LBFGS);

	c->mode = mode == SIM_LBFGS ? MODE_SANDBLASTER : (enum mode)mode;
	c->push_sum = 1;
	c->ssp_bound = between(s, 0, 5);
	c->sync_spares = between(s, 0, 2);
	c->batch_images = net_chance(&s->net, 500) ? 0 : between(s, 1, s->n_train);
	if (mode != SIM_LBFGS)
		return;
	c->n_params = (s->n_train + c->batch - 1) / c->batch;
	c->optim.kind = OPTIM_LBFGS;
	c->push_sum = 0;
	c->batch_images = 0;
	c->lbfgs_history = between(s, 1, 6);
	c->lbfgs_trials = 20;
	c->lbfgs_armijo = 1e-4;
	c->lbfgs_wolfe = 0.9;
	memset(s->versions, 0, SIM_VERSIONS * sizeof(*s->versions));
}

static void choose_config(struct sim *s)
{
	struct core_config *c = &s->cfg;

	memset(c, 0, sizeof(*c));
	c->run = (struct run_id){s->seed + 1, 7};
	c->model[0] = 'v';
	c->lr = 1;
	c->n_push = c->n_fetch = 1;
	c->batch = between(s, 1, 7);
	c->n_params = SIM_COORDINATES;
	s->training = s->mode > SIM_DOWNPOUR || net_chance(&s->net, 500);
	s->n_train = between(s, 5, 60);
	if (s->training) {
		c->epochs = between(s, 1, 3);
		c->n_params = (size_t)c->epochs * ((s->n_train + c->batch - 1) / c->batch);
	}
	c->mode = MODE_DOWNPOUR;
	if (s->training)
		choose_mode(s);
	c->stale_rate = STALE_CONSTANT;
	c->max_staleness = net_chance(&s->net, 500) ? 1000000 : between(s, 1, 10);
	c->warm_updates = net_chance(&s->net, 300) ? between(s, 1, 10) : 0;
	c->lease_batches = between(s, 1, 6);
	c->eval_images = between(s, 1, 7);
	c->min_workers = between(s, 1, s->n_workers);
	c->max_workers = SIM_WORKERS + 3;
	c->push_window = between(s, 1, 8);
	c->replay_window = between(s, 8, 40);
	c->beat_ms = 100;
	c->suspect_ms = 350;
	c->dead_ms = 1500;
	c->forget_ms = 20000;
	c->recovery_ms = between(s, 0, 1000);
	c->checkpoint_ms = between(s, 10, 600);
	c->durable = 1;
}

static void choose_weather(struct sim *s)
{
	struct net *n = &s->net;
	int calm = net_chance(n, 200);

	n->delay_ms = between(s, 0, 20);
	n->jitter_ms = between(s, 0, calm ? 5 : 60);
	n->in_order = calm || net_chance(n, 400);
	n->drop = calm ? 0 : between(s, 0, 80);
	n->twice = calm ? 0 : between(s, 0, 80);
	s->faults_end_ms = 1000 + net_below(n, 4000);
	s->save_ms = between(s, 1, 120);
	s->save_fails = net_chance(n, 300) ? 300 : 0;
	s->compute_ms = between(s, 5, 60);
	s->tell_lost_links = net_chance(n, 500);
}

/* Crashes and pauses at moments of their own, so that no phase of a run is spared. */
static void choose_faults(struct sim *s)
{
	uint32_t n = between(s, 0, 4);

	for (uint32_t i = 0; i < n; i++)
		net_at(&s->net, net_below(&s->net, s->faults_end_ms),
			(struct item){.what = HAPPEN_CRASH, .node = SIM_SERVER});
	n = between(s, 0, 4);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t node = between(s, 1, s->n_workers);
		enum happening what = net_chance(&s->net, 300) ? HAPPEN_PAUSE : HAPPEN_CRASH;

		net_at(&s->net, net_below(&s->net, s->faults_end_ms),
			(struct item){.what = what, .node = node});
	}
}

/* ---- the loop ---------------------------------------------------------------------------------
 */

static void happen_server(struct sim *s, struct item *it)
{
	struct event ev = {.kind = EVENT_TICK};

	if (it->what == HAPPEN_CRASH)
		server_crash(s);
	else if (it->what == HAPPEN_START)
		server_start(s);
	else if (it->life != s->server.life || !s->server.core)
		return; /* it was for an earlier life */
	else if (it->what == HAPPEN_SAVED)
		server_saved(s, it);
	else if (it->what == HAPPEN_TICK) {
		net_at(&s->net, s->net.now_ms + 50, *it);
		server_event(s, &ev);
	} else {
		ev = (struct event){.kind = EVENT_MESSAGE, .peer = it->link, .msg = it->msg};
		server_event(s, &ev);
	}
}

static void happen_worker(struct sim *s, struct item *it)
{
	struct sim_worker *w = &s->worker[it->node - 1];

	if (it->what == HAPPEN_START) {
		worker_start(s, it->node);
	} else if (it->what == HAPPEN_CRASH) {
		worker_crash(s, it->node);
	} else if (it->what == HAPPEN_PAUSE) {
		if (!w->session)
			return;
		w->paused = 1;
		net_at(&s->net, s->net.now_ms + 100 + net_below(&s->net, 4000),
			(struct item){.what = HAPPEN_RESUME, .node = it->node, .life = w->life});
	} else if (!w->session || it->life != w->life) {
		return;
	} else if (it->what == HAPPEN_RESUME) {
		w->paused = 0;
	} else if (w->paused) { /* SIGSTOP: it all waits in the kernel */
		net_at(&s->net, s->net.now_ms + 50, *it);
		it->msg = NULL;
	} else if (it->what == HAPPEN_MESSAGE) {
		worker_message(s, it->node, it->msg);
	} else if (it->what == HAPPEN_TICK) {
		worker_tick(s, it->node);
	} else if (it->what == HAPPEN_COMPUTED) {
		worker_computed(s, it->node);
	}
}

static int all_done(const struct sim *s)
{
	for (uint32_t i = 0; i < s->n_workers; i++)
		if (!s->worker[i].session || !s->worker[i].done ||
			session_phase(s->worker[i].session) != PHASE_END)
			return 0;
	return 1;
}

static void run(struct sim *s)
{
	struct item it;
	int drained = 0;

	while (!s->violation[0] && !s->server.finished && net_next(&s->net, &it)) {
		if (s->net.now_ms > DEADLINE_MS) {
			sim_violation(s, "hang: not finished after %d virtual seconds",
				DEADLINE_MS / 1000);
		} else if (s->net.now_ms > s->faults_end_ms) {
			s->net.drop = s->net.twice = 0;
			s->net.in_order = 1;
		}
		if (it.node == SIM_SERVER)
			happen_server(s, &it);
		else
			happen_worker(s, &it);
		net_done(&s->net, &it);
		if (!s->training && s->server.core && all_done(s) &&
			s->net.now_ms > s->faults_end_ms && !drained) {
			drained = 1;
			server_event(s, &(struct event){.kind = EVENT_DRAIN});
		}
		if (!s->server.core)
			drained = 0;
	}
	if (!s->violation[0] && !s->server.finished)
		sim_violation(s, "nothing is left to happen, and the run is not finished");
}

int sim_run(struct sim *s, uint64_t seed, int trace)
{
	void *memory = s->server.memory;
	unsigned char *saving = s->server.saving;

	s->seed = seed;
	s->trace = trace;
	net_reset(&s->net, rng_seed(seed, RNG_SIM, 0));
	s->server = (struct sim_server){.memory = memory, .saving = saving};
	s->disk.generation = 0;
	memset(s->worker, 0, sizeof(s->worker));
	s->lives = s->links = s->n_coordinates = s->crashes = s->worker_crashes = 0;
	s->violation[0] = '\0';
	s->n_workers = between(s, 1, SIM_WORKERS);
	choose_config(s);
	choose_weather(s);
	server_start(s);
	for (uint32_t node = 1; node <= s->n_workers; node++) {
		s->worker[node - 1].to_push = between(s, 1, 40);
		s->worker[node - 1].named = net_chance(&s->net, 300);
		net_at(&s->net, net_below(&s->net, 500),
			(struct item){.what = HAPPEN_START, .node = node});
	}
	choose_faults(s);
	run(s);
	if (!s->violation[0])
		server_verdict(s);
	for (uint32_t i = 0; i < SIM_WORKERS; i++)
		session_free(&s->worker[i].session);
	return s->violation[0] != '\0';
}

void sim_init(struct sim *s)
{
	struct core_config largest = {.n_params = SIM_COORDINATES,
		.mode = MODE_SANDBLASTER,
		.optim = {.kind = OPTIM_LBFGS},
		.lbfgs_history = 6,
		.max_workers = SIM_WORKERS + 3,
		.replay_window = 40,
		.epochs = 3};

	memset(s, 0, sizeof(*s));
	net_init(&s->net);
	s->room = core_bytes(&largest);
	s->server.memory = mem_must(1, s->room, "the simulated server");
	s->server.saving = mem_must(1, s->room, "an image");
	s->disk.image = mem_must(1, s->room, "the simulated disk");
	s->versions = mem_must(SIM_VERSIONS, sizeof(*s->versions), "the weights there were");
}

void sim_release(struct sim *s)
{
	net_release(&s->net);
	free(s->server.memory);
	free(s->server.saving);
	free(s->disk.image);
	free(s->versions);
}

/* ---- main -------------------------------------------------------------------------------------
 */

static int parse_range(const char *text, uint64_t *from, uint64_t *to)
{
	char *end;

	*from = strtoull(text, &end, 10);
	if (end == text || strncmp(end, "..", 2) != 0)
		return 0;
	text = end + 2;
	*to = strtoull(text, &end, 10);
	return end != text && *end == '\0' && *from <= *to;
}

static const char *mode_name(int mode)
{
	const char *name = SIM_MODE_NAMES;

	while (mode-- > 0)
		name = strchr(name, '|') + 1;
	return name;
}

static int failed(struct sim *s, const char *program, uint64_t seed)
{
	printf("FAIL seed=%llu: %s\nreplay: %s --seed %llu --mode %.*s --trace\n",
		(unsigned long long)seed, s->violation, program, (unsigned long long)seed,
		(int)strcspn(mode_name(s->mode), "|"), mode_name(s->mode));
	return 1;
}

int main(int argc, char **argv)
{
	const char *seeds = "1..1000", *args[2];
	int64_t seed = -1;
	int trace = 0, mode = 0, n_args = 0, rc;
	const struct opt opts[] = {
		{.name = "seeds",
			.type = OPT_TEXT,
			.dest = &seeds,
			.def = "1..1000",
			.min = 4,
			.max = 41,
			.arg = "FROM..TO",
			.help = "run these seeds"},
		{.name = "seed",
			.type = OPT_INT,
			.dest = &seed,
			.min = 0,
			.max = 9e18,
			.arg = "N",
			.help = "run one seed"},
		{.name = "mode",
			.type = OPT_ENUM,
			.dest = &mode,
			.def = "any",
			.values = SIM_MODE_NAMES,
			.arg = "MODE",
			.help = "only runs of this mode"},
		{.name = "trace",
			.type = OPT_FLAG,
			.dest = &trace,
			.def = "0",
			.help = "print all that happens in it"},
		{0},
	};
	const struct opt_program program = {.name = "sim",
		.usage = "[OPTION...]",
		.about = "Whole runs of the server core and its workers under seeded faults, in "
			 "virtual time.",
		.opts = opts};
	uint64_t from, to, crashes = 0, deaths = 0, messages = 0;
	static struct sim s;
	double start;

	rc = opt_parse(&program, argc, argv, args, &n_args);
	if (rc != OPT_RUN)
		return rc == OPT_EXIT ? 0 : err_exit_code(rc);
	if (!parse_range(seeds, &from, &to)) {
		fprintf(stderr, "sim: --seeds: \"%s\" is not FROM..TO, as in 1..1000\n", seeds);
		return err_exit_code(PS_EUSAGE);
	}
	if (seed >= 0)
		from = to = (uint64_t)seed;
	sim_init(&s);
	s.mode = mode;
	start = clock_seconds();
	for (uint64_t i = from; i <= to; i++) {
		if (sim_run(&s, i, trace))
			return failed(&s, argv[0], i);
		crashes += s.crashes;
		deaths += s.worker_crashes;
		messages += s.net.sent;
	}
	printf("sim: %llu seeds clean, %.0f seeds/s, %llu messages, %llu server crashes, %llu "
	       "worker crashes\n",
		(unsigned long long)(to - from + 1),
		(double)(to - from + 1) / (clock_seconds() - start), (unsigned long long)messages,
		(unsigned long long)crashes, (unsigned long long)deaths);
	sim_release(&s);
	return 0;
}
