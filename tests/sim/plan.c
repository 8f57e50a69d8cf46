/*
 * plan.c - draws the plan of a run from its seed, before the run begins: the configuration, the
 * fault rates of links and disks, and the schedule of faults. The code draws the plan without the
 * limits of sim_limits, and then reduces it to these limits. The faults of a shrunk case are
 * therefore some of the original faults.
 */
#include <string.h>
#include "tests/sim/sim.h"

/* no faults before this time in resume runs: the worker joins before the first fault */
#define EXACT_FROM_MS 1000

static uint32_t between(struct sim *s, uint32_t low, uint32_t high)
{
	return low + (uint32_t)rng_below(&s->plan, high - low + 1);
}

static int plan_chance(struct sim *s, uint32_t per_mille)
{
	return rng_below(&s->plan, 1000) < per_mille;
}

static uint32_t at_most(uint32_t value, uint32_t limit)
{
	return limit && value > limit ? limit : value;
}

/* ---- the configuration ----------------------------------------------------------------------- */

static enum mode core_mode(int mode)
{
	static const enum mode of[SIM_MODES] = {
		[SIM_LEDGER] = MODE_DOWNPOUR,
		[SIM_DOWNPOUR] = MODE_DOWNPOUR,
		[SIM_SSP] = MODE_SSP,
		[SIM_SYNC] = MODE_SYNC,
		[SIM_SANDBLASTER] = MODE_SANDBLASTER,
		[SIM_LBFGS] = MODE_SANDBLASTER,
		[SIM_EASGD] = MODE_EASGD,
	};

	return of[mode];
}

static void choose_lbfgs(struct sim *s)
{
	struct core_config *c = &s->cfg;

	c->n_params = (s->n_train + c->training.batch_size - 1) / c->training.batch_size;
	c->optim.kind = OPTIM_LBFGS;
	c->push.sum = 0;
	c->sandblaster.step_images = 0;
	c->lbfgs.history = between(s, 1, 6);
	c->lbfgs.trials = 20;
	c->lbfgs.armijo = 1e-4;
	c->lbfgs.wolfe = 0.9;
}

/* Chooses a real optimizer for resume runs. In these runs the gradients depend on every bit of the
 * weights, so a restart that loses one bit of the state changes the final weights. */
static void choose_exact(struct sim *s)
{
	struct core_config *c = &s->cfg;
	enum optim_kind kind = (enum optim_kind)between(s, OPTIM_SGD, OPTIM_ADAM);
	int dc = plan_chance(s, 300), adaptive = plan_chance(s, 500);

	if (s->mode == SIM_LBFGS)
		return;
	c->n_params = SIM_PORTIONS;
	c->push.sum = 0;
	c->rate.lr = 0.2;
	if (s->mode == SIM_EASGD)
		return;
	c->optim = (struct optim){.kind = kind,
		.eps = 1e-8,
		.momentum = 0.9,
		.beta1 = 0.9,
		.beta2 = 0.99,
		.rmsprop_alpha = 0.99,
		.clip_norm = 3};
	if (dc && (s->mode == SIM_DOWNPOUR || s->mode == SIM_SSP))
		c->dc.kind = adaptive ? DC_ADAPTIVE : DC_CONSTANT;
	c->dc.lambda = 0.1;
}

/* Sets a learning rate and a staleness scaling that elastic moves must not use. If an elastic move
 * used one of them by mistake, the result would change, and the simulator would report a
 * violation. */
static void choose_easgd(struct sim *s)
{
	struct core_config *c = &s->cfg;

	c->rate.lr = 0.25;
	c->rate.staleness_scaling = STALE_INVERSE;
	c->easgd.beta = 0.9;
	c->push.local_lr = 0.125;
	if (!s->exact)
		c->n_params = SIM_COORDINATES;
}

/* Forgets all versions of the weights. A worker reads the weights of an entry only if the entry has
 * the required term and version. Here every entry gets term 0, which no server has, and version 0.
 * Only a worker that has pulled nothing requires these, and it looks in the first entry. So only
 * the weights of the first entry are cleared. */
static void forget_versions(struct sim *s)
{
	memset(s->versions, 0, sizeof(*s->versions));
	for (uint32_t i = 1; i < SIM_VERSIONS; i++)
		s->versions[i].epoch = s->versions[i].version = 0;
}

/* Chooses the learning rate 1 and --push sum, so that each counted batch changes its coordinate by
 * exactly 1. */
static void choose_training(struct sim *s)
{
	struct core_config *c = &s->cfg;

	c->training.epochs = between(s, 1, 3);
	c->push.sum = 1;
	c->ssp.bound = between(s, 0, 5);
	c->sync.backup_workers = between(s, 0, 2);
	c->sandblaster.step_images = plan_chance(s, 500) ? 0 : between(s, 1, s->n_train);
	c->training.epochs = at_most(c->training.epochs, s->limits.steps);
	s->n_train = at_most(s->n_train, s->limits.steps * c->training.batch_size);
	c->n_params = (size_t)c->training.epochs *
		      ((s->n_train + c->training.batch_size - 1) / c->training.batch_size);
	if (s->mode == SIM_LBFGS)
		choose_lbfgs(s);
	if (s->exact)
		choose_exact(s);
	if (s->mode == SIM_EASGD)
		choose_easgd(s);
	if (s->exact || s->mode == SIM_LBFGS || s->mode == SIM_EASGD)
		forget_versions(s);
}

static void choose_times(struct sim *s)
{
	struct core_config *c = &s->cfg;

	c->limits.max_staleness = plan_chance(s, 500) ? 1000000 : between(s, 1, 10);
	c->leases.warm_start_updates = plan_chance(s, 300) ? between(s, 1, 10) : 0;
	c->leases.max_batches = between(s, 1, 6);
	c->leases.eval_images = between(s, 1, 7);
	c->leases.min_workers = between(s, 1, SIM_WORKERS);
	if (c->leases.min_workers > s->n_workers)
		c->leases.min_workers = s->n_workers;
	c->sessions.max_workers = s->limits.hostile ? SIM_SLOTS : SIM_WORKERS + 3;
	c->sessions.push_window = between(s, 1, 8);
	c->sessions.replay_window = between(s, 8, 40);
	c->sessions.heartbeat_ms = 100;
	c->sessions.suspect_ms = 350;
	c->sessions.dead_ms = 1500;
	c->sessions.ttl_ms = 20000;
	c->sessions.recovery_ms = between(s, 0, 1000);
	c->checkpoint.interval_ms = between(s, 10, 600);
	c->durable = 1;
}

static void choose_config(struct sim *s)
{
	struct core_config *c = &s->cfg;

	memset(c, 0, sizeof(*c));
	memcpy(c->model, "vector", 7);
	c->rate.lr = 1;
	c->optim.eps = 1e-8;
	c->schedule.every_epochs = 1;
	c->push.buffer_size = 1;
	c->dc.lambda = 0.1;
	c->easgd.beta = 0.9;
	c->lbfgs = (struct lbfgs_options){.history = 1, .trials = 1, .armijo = 1e-4, .wolfe = 0.9};
	c->leases.first_deadline_ms = 30000;
	c->push.n_push = c->push.n_fetch = 1;
	c->training.batch_size = between(s, 1, 7);
	c->n_params = SIM_COORDINATES;
	c->training.mode = core_mode(s->mode);
	c->rate.staleness_scaling = STALE_CONSTANT;
	s->n_train = between(s, 5, 60);
	choose_times(s);
	if (s->training)
		choose_training(s);
}

/* Fills the fields of struct options that a start of the server reads. */
static void fill_options(struct sim *s)
{
	struct options *o = &s->options;

	o->core = s->cfg;
	o->checkpoint_dir = DISK_DIRECTORY;
	o->model.n_params = s->cfg.n_params;
	o->model.n_tensors = 1;
	o->model.tensor[0].count = s->cfg.n_params;
	snprintf(s->tensors, sizeof(s->tensors), "w F32 %zu\n", s->cfg.n_params);
}

/* ---- faults of links and disks --------------------------------------------------------------- */

static void choose_fault_rates(struct sim *s)
{
	struct net *n = &s->net;
	int calm = plan_chance(s, 200) || s->exact;

	n->delay_ms = between(s, 0, 20);
	n->jitter_ms = between(s, 0, calm ? 5 : 60);
	n->in_order = plan_chance(s, 400) || calm;
	n->drop = between(s, 0, 80);
	n->twice = between(s, 0, 80);
	if (calm)
		n->drop = n->twice = 0;
	if (s->limits.calm) {
		n->in_order = 1;
		n->jitter_ms = 0;
	}
	n->strikes_from = s->limits.strikes_from;
	n->strikes_to = s->limits.strikes_to;
	s->save_ms = between(s, 1, 120);
	s->compute_ms = between(s, 5, 60);
	s->reports_lost_links = plan_chance(s, 500);
	s->shorts = plan_chance(s, 300) ? 300 : 0;
	s->forgets = plan_chance(s, 30) && !s->exact ? between(s, 20, 300) : 0;
	s->faults_end_ms = 1000 + rng_below(&s->plan, 4000) + (s->exact ? EXACT_FROM_MS : 0);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void choose_victim(struct sim *s, struct fault *f)
{
	/* draw from SIM_WORKERS, not from n_workers, so that a limit on the workers does not change
	 * the other faults */
	f->node = between(s, 1, SIM_WORKERS);
	switch (f->kind) {
	case FAULT_KILL:
	case FAULT_STOP:
	case FAULT_LEAP:
		if (plan_chance(s, 400))
			f->node = SIM_SERVER;
		break;
	case FAULT_CUT:
	case FAULT_SLOW:
	case FAULT_LEAVE:
	case FAULT_NAN:
	case FAULT_TWIN:
		break;
	default:
		f->node = SIM_SERVER;
	}
}

static struct fault draw_fault(struct sim *s)
{
	static const enum fault_kind often[] = {FAULT_KILL, FAULT_KILL, FAULT_KILL, FAULT_KILL,
		FAULT_POWER, FAULT_POWER, FAULT_DRAIN, FAULT_STOP, FAULT_STOP, FAULT_LEAP,
		FAULT_CUT, FAULT_CUT, FAULT_SLOW, FAULT_DISK, FAULT_LEAVE, FAULT_TWIN, FAULT_TWIN};
	struct fault f = {.kind = often[between(s, 0, sizeof(often) / sizeof(often[0]) - 1)]};

	f.at_ms = rng_below(&s->plan, s->faults_end_ms);
	choose_victim(s, &f);
	f.ms = 50 + between(s, 0, plan_chance(s, 200) ? 4000 : 600);
	if (f.kind == FAULT_LEAP && plan_chance(s, 500))
		f.ms = 1000 * between(s, 1, 7200);
	f.way = between(s, 1, 3);
	f.moment = (enum moment)between(s, AT_ONCE, AT_OPERATION);
	f.in = between(s, 0, 20);
	if (f.kind == FAULT_SLOW)
		f.in = between(s, 20, 400);
	return f;
}

/* Returns 1 if a resume run must not have this fault. Such a fault could make the worker return
 * with another worker id. The run without faults, with which the simulator compares this run, has
 * only one id. */
static int breaks_exactness(const struct fault *f)
{
	switch (f->kind) {
	case FAULT_KILL:
		return f->node != SIM_SERVER;
	case FAULT_DRAIN:
	case FAULT_CUT:
	case FAULT_LEAVE:
	case FAULT_LEAP:
	case FAULT_NAN:
	case FAULT_TWIN:
		return 1;
	default:
		return 0;
	}
}

static void choose_faults(struct sim *s)
{
	uint32_t n = between(s, 0, 8);
	int rot = plan_chance(s, 10);

	s->n_faults = n;
	for (uint32_t i = 0; i < n; i++) {
		struct fault *f = &s->fault[i];

		*f = draw_fault(s);
		if (rot && i == n - 1)
			*f = (struct fault){.kind = FAULT_ROT, .at_ms = f->at_ms};
		/* a fault before the worker has joined would make it return as a new worker */
		if (s->exact)
			f->at_ms += EXACT_FROM_MS;
		if (!(s->limits.faults >> i & 1) || (s->exact && breaks_exactness(f)))
			f->at_ms = UINT64_MAX; /* so that this fault never happens */
	}
}

/* Chooses a FAULT_HANG: the program of a worker hangs, while its session still sends heartbeats. */
static void choose_hang(struct sim *s)
{
	struct fault f = {.kind = FAULT_HANG, .node = between(s, 1, SIM_WORKERS)};
	uint32_t i = s->n_faults;

	f.at_ms = rng_below(&s->plan, s->faults_end_ms) + (s->exact ? EXACT_FROM_MS : 0);
	f.ms = 100 + between(s, 0, 12000);
	f.way = between(s, 1, 2);
	/* in hostile runs, an honest worker that hangs would make the deadlines of the hostile ones
	 * longer than the run */
	if (!plan_chance(s, 150) || !(s->limits.faults >> i & 1) || s->limits.hostile)
		f.at_ms = UINT64_MAX;
	s->fault[i] = f;
	s->n_faults++;
}

/* Chooses whether the run uses --durability always. The code draws this choice after the older
 * choices, so that the older choices of a given seed do not change. */
static void choose_durability(struct sim *s)
{
	s->cfg.checkpoint.wal = (enum durability)plan_chance(s, 125);
	s->options.wal_bytes = 4096u << between(s, 0, 6);
	s->cfg.leases.backup_copies = s->options.core.leases.backup_copies =
		(enum backup_copies)between(s, BACKUP_LATE, BACKUP_NONE);
	s->cfg.leases.first_deadline_ms = s->options.core.leases.first_deadline_ms =
		between(s, 300, 8000);
	choose_hang(s);
}

/* Chooses the number of batches between two pulls. Resume runs compute several batches with the
 * same weights, so that all gradients except the first are stale. A worker of EASGD computes
 * several batches between two exchanges with the centre. The code draws this choice after the older
 * choices, too. */
static void choose_schedule(struct sim *s)
{
	uint32_t n_fetch = between(s, 1, 4), ramp = between(s, 0, 4);

	s->cfg.leases.warm_start_ramp = ramp;
	if (s->mode == SIM_EASGD) {
		s->cfg.push.n_push = n_fetch;
		s->cfg.easgd.momentum = n_fetch % 2 ? 0.5 : 0;
	}
	if (!s->exact || (s->mode != SIM_DOWNPOUR && s->mode != SIM_SSP))
		return;
	s->cfg.push.n_fetch = n_fetch;
	/* the server must reject no push for its staleness: a rejection would change the weights */
	s->cfg.limits.max_staleness = 1000000;
}

/* Chooses the buffer size, and the number N of gradients of a step of sync. The code draws these
 * choices after the older ones, so that the older choices of a given seed do not change. Some runs
 * of sync (`ordered`) have only network faults, so that they show whether the weights depend on the
 * order in which gradients arrive. */
static void choose_steps(struct sim *s)
{
	uint32_t workers = between(s, 1, 4), buffer = between(s, 2, 6);
	int given = plan_chance(s, 300), ordered = plan_chance(s, 250),
	    buffered = plan_chance(s, 400);

	if (s->mode == SIM_LEDGER || s->mode == SIM_DOWNPOUR || s->mode == SIM_SSP)
		s->cfg.push.buffer_size = buffered ? buffer : 1;
	if (s->mode == SIM_LEDGER)
		s->cfg.push.sum = 1; /* a mean would count each gradient of a buffer only in part */
	s->ordered = s->mode == SIM_SYNC && s->n_workers > 1 && ordered && !s->limits.hostile;
	s->cfg.sync.workers = given ? workers : 0;
	if (s->ordered) {
		s->exact = 1;
		/* no sync may be lost, because the run could lose its final weights, which are
		 * compared */
		s->forgets = 0;
		s->cfg.sync.workers = s->cfg.sync.backup_workers = 0;
		s->cfg.leases.min_workers = s->n_workers;
		choose_exact(s);
		forget_versions(s);
		for (uint32_t i = 0; i < s->n_faults; i++)
			s->fault[i].at_ms = UINT64_MAX; /* so that this fault never happens */
	}
	fill_options(s);
}

/* Lets the device of one worker break in some runs. The code draws this fault after the older
 * choices, too, so that the older choices of a given seed do not change. */
static void choose_break(struct sim *s)
{
	int breaks = plan_chance(s, 150);
	struct fault f = {.kind = FAULT_NAN, .at_ms = rng_below(&s->plan, s->faults_end_ms)};

	f.node = between(s, 1, SIM_WORKERS);
	f.way = 1 + (uint32_t)(f.at_ms % 4);
	if (!breaks || s->n_faults == SIM_FAULTS || s->limits.hostile)
		return;
	if (!(s->limits.faults >> s->n_faults & 1) || s->exact)
		f.at_ms = UINT64_MAX;
	s->fault[s->n_faults++] = f;
}

/* Lets one worker begin with another data set in some runs. The worker with the other data set is
 * often the first one to join. */
static void choose_foreign(struct sim *s)
{
	int comes = plan_chance(s, 100);
	uint32_t node = between(s, 1, SIM_WORKERS), ms = between(s, 100, 3000);

	s->foreign = comes && s->training && !s->exact && s->n_workers > 1 ? node : 0;
	s->foreign_ms = ms;
}

/* In half of the runs that have a data set and are not compared with another run, other workers
 * compute some portions of each evaluation again. In some of these runs one worker reports false
 * results of evaluations: a false number of correct images, or a false loss. The portions of such a
 * run have four images or more, except for the last portion, so that the lie is far enough from the
 * truth to count as a difference. */
static void choose_checks(struct sim *s)
{
	int checked = plan_chance(s, 500), lies = plan_chance(s, 300);
	uint32_t checks = between(s, 1, 7), node = between(s, 1, SIM_WORKERS);
	int fits = checked && s->training && !s->exact;

	s->liar = fits && lies && node <= s->n_workers && !s->limits.hostile ? node : 0;
	s->cfg.leases.eval_checks = s->options.core.leases.eval_checks = fits ? checks : 0;
	s->lies_in_loss = checks % 2 != 0;
	s->liar_starts = 0;
	if (s->liar)
		s->cfg.leases.eval_images = s->options.core.leases.eval_images = 4 + checks % 4;
}

/* Gives the disk space for only three checkpoints in some runs. */
static void choose_space(struct sim *s)
{
	s->tight = plan_chance(s, 100) && !s->cfg.checkpoint.wal;
}

/* Lets the server offer shared-memory lanes in most runs. Exact runs have no torn copies, because
 * they must lose no message. */
static void choose_lanes(struct sim *s)
{
	s->has_lanes = plan_chance(s, 700);
	s->net.tear = between(s, 0, 80);
	if (s->exact || s->limits.calm)
		s->net.tear = 0;
}

/* In half of the runs, the engine divides vectors into several blocks and runs these blocks in
 * another order. An exact run is compared with a serial run, which runs the same blocks in
 * ascending order. The function draws nothing from s->plan, so the other choices of a given seed do
 * not change. */
static void choose_engine(struct sim *s)
{
	const uint64_t hash = s->seed * 0x9e3779b97f4a7c15u; /* Fibonacci hashing */
	int shuffled = (int)(hash >> 63);
	size_t block = 1 + s->cfg.n_params / (1 + (hash >> 32) % 9);

	shuffled_engine_init(&s->engine, block, 0);
	shuffled_engine_init(&s->serial_engine, block, 1);
	if (shuffled)
		s->cfg.engine = s->options.core.engine = &s->engine.engine;
}

/* Chooses the hostile workers. In half of the runs with a single hostile worker, the server
 * compares norms. It compares the norms of three workers or more, so the honest workers are a
 * majority. In runs without a data set, it has the default ratio of such runs; their pushes are
 * parts of gradients, which it must not scale. */
static void choose_hostile(struct sim *s)
{
	s->n_hostile = 0;
	if (!s->training)
		s->cfg.limits.norm_ratio = s->options.core.limits.norm_ratio = 100;
	if (!s->limits.hostile)
		return;
	s->n_hostile = between(s, 1, SIM_HOSTILE);
	for (uint32_t i = 0; i < s->n_hostile; i++)
		s->hostile[i].kind = (enum hostile_kind)between(s, 0, HOSTILE_KINDS - 1);
	if (plan_chance(s, 500) && s->n_hostile == 1 && s->n_workers > 1 && s->training &&
		s->mode != SIM_EASGD && s->mode != SIM_LBFGS)
		s->cfg.limits.norm_ratio = s->options.core.limits.norm_ratio = 4;
}

/* Gives the buffer a robust rule in some runs. A robust rule does not count every gradient exactly
 * once, so in these runs only the number of counted images shows whether each batch was counted
 * once. The function draws nothing from s->plan, so the other choices of a given seed do not
 * change. */
static void choose_rule(struct sim *s)
{
	const uint64_t hash = s->seed * 0xc2b2ae3d27d4eb4fu;
	enum aggregate_rule rule = (enum aggregate_rule)(AGGREGATE_MEDIAN + (hash >> 32) % 3);
	int has_batches = (s->mode == SIM_DOWNPOUR || s->mode == SIM_SSP) && !s->exact;

	if (!has_batches || s->cfg.push.buffer_size < 2 || hash >> 63)
		return;
	s->cfg.push.aggregate = s->options.core.push.aggregate = rule;
	s->cfg.push.bad_workers = s->options.core.push.bad_workers = 1;
}

/* ---- the whole plan -------------------------------------------------------------------------- */

void plan_run(struct sim *s)
{
	uint32_t others = SIM_MODES - 1;

	s->mode = s->limits.mode ? s->limits.mode : 1 + (int)(s->seed % others);
	s->training = s->mode != SIM_LEDGER;
	s->n_workers = plan_chance(s, 150) ? 1 : between(s, 1, SIM_WORKERS);
	s->exact = plan_chance(s, 500) && s->n_workers == 1 && s->training && !s->limits.hostile;
	s->n_workers = at_most(s->n_workers, s->limits.workers);
	choose_config(s);
	choose_fault_rates(s);
	choose_faults(s);
	choose_durability(s);
	choose_schedule(s);
	choose_steps(s);
	choose_break(s);
	choose_foreign(s);
	choose_space(s);
	choose_lanes(s);
	choose_checks(s);
	choose_engine(s);
	choose_hostile(s);
	choose_rule(s);
}
