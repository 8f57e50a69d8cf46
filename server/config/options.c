/*
 * options.c - one row per option, and what they make of the configuration.
 */
#include <stdlib.h>
#include <string.h>
#include "common/opt.h"
#include "server/core/lbfgs.h"
#include "server/config/options_impl.h"

#define MOST_EXACT     1e15 /* whole numbers up to 2^53 are exact in a row */
#define MOST_MS        3600000
#define MOST_FORGET_MS 604800000

/* ---- what was not given -------------------------------------------------------------------- */

/* What an optimizer gets that was not told otherwise: PyTorch's constants, and rates that suit
 * MNIST with the demo's model (docs/modes.md). */
static const struct usual {
	double lr, eps;
} usual[OPTIM_KINDS] = {
	[OPTIM_SGD] = {0.2, 1e-8},
	[OPTIM_ADAGRAD] = {0.04, 1e-10},
	[OPTIM_MOMENTUM] = {0.03, 1e-8},
	[OPTIM_NESTEROV] = {0.03, 1e-8},
	[OPTIM_RMSPROP] = {0.009, 1e-8},
	[OPTIM_ADAM] = {0.002, 1e-8},
	[OPTIM_LBFGS] = {1, 1e-8},
};

/* Rows without a default hold this, which is in no row's range. */
#define NOT_GIVEN (-1)

static double given_or(double value, double otherwise)
{
	return value > NOT_GIVEN ? value : otherwise;
}

static enum optim_kind optim_of(const struct raw *r)
{
	return r->optimizer > NOT_GIVEN ? (enum optim_kind)r->optimizer : mode_optimizer(&r->modes);
}

double options_usual_rate(enum optim_kind kind)
{
	return usual[kind].lr;
}

double options_rate(const struct raw *r)
{
	enum optim_kind optim = optim_of(r);

	return given_or(r->lr, mode_rate(&r->modes, optim, usual[optim].lr));
}

uint32_t options_epochs(const struct raw *r, const struct model *m)
{
	return r->epochs > NOT_GIVEN ? (uint32_t)r->epochs
	       : m->classes == 0     ? 0
				     : mode_epochs(&r->modes);
}

/* ---- raw -> struct options ----------------------------------------------------------------- */

static const char *text_or_null(const char *text)
{
	return text && text[0] ? text : NULL;
}

static void fill_optim(struct core_config *c, const struct raw *r)
{
	const struct usual *u = &usual[optim_of(r)];

	c->rate.lr = options_rate(r);
	c->optim = (struct optim){.kind = optim_of(r),
		.eps = given_or(r->eps, u->eps),
		.momentum = optim_of(r) == OPTIM_ADAM ? r->beta1 : r->momentum,
		.decay_square = optim_of(r) == OPTIM_ADAM ? r->beta2 : r->rmsprop_alpha,
		.adagrad_init = r->adagrad_init,
		.weight_decay = r->weight_decay,
		.clip_norm = given_or(r->clip_norm, mode_clip_norm(&r->modes))};
	c->schedule = (struct schedule){.kind = (enum schedule_kind)r->schedule,
		.warmup = given_or(r->warmup, r->schedule == SCHEDULE_ONECYCLE ? 0.3 : 0),
		.gamma = r->schedule_gamma,
		.every_epochs = (uint32_t)r->schedule_every,
		.floor = r->schedule_floor};
}

static void fill_core(struct core_config *c, const struct raw *r, const struct model *m)
{
	*c = (struct core_config){.model_fingerprint = m->fingerprint,
		.n_params = m->n_params,
		.training.seed = (uint64_t)r->seed,
		.training.batch_size = (uint32_t)r->batch,
		.training.max_updates = (uint64_t)r->max_updates,
		.rate.staleness_scaling = (enum staleness_scaling)r->staleness_scaling,
		.limits.max_staleness = (uint32_t)r->max_staleness,
		.limits.reject_norm = r->max_norm,
		.leases.warm_start_updates = (uint32_t)r->warm_start_updates,
		.leases.warm_start_ramp = (uint32_t)r->warm_start_ramp,
		.leases.max_batches = (uint32_t)r->lease_batches,
		.leases.backup_copies = (enum backup_copies)r->backup,
		.leases.first_deadline_ms = (uint32_t)r->first_deadline_ms,
		.leases.eval_images = (uint32_t)r->eval_images,
		.leases.min_workers = (uint32_t)r->min_workers,
		.sessions.max_workers = (uint32_t)r->max_workers,
		.sessions.push_window = (uint32_t)r->push_window,
		.sessions.replay_window = (uint32_t)r->replay_window,
		.sessions.heartbeat_ms = (uint32_t)r->beat_ms,
		.sessions.suspect_ms = (uint32_t)r->suspect_ms,
		.sessions.dead_ms = (uint32_t)r->dead_ms,
		.sessions.ttl_ms = (uint32_t)r->forget_ms,
		.sessions.recovery_ms = (uint32_t)r->recovery_ms,
		.checkpoint.interval_ms = (uint32_t)r->checkpoint_ms,
		.durable = text_or_null(r->checkpoint_dir) != NULL,
		.checkpoint.journal = r->durability,
		.sessions.accept_rollback = r->accept_rollback};
	_Static_assert(sizeof(c->model) >= sizeof(m->text), "a model's text fits the wire");
	memcpy(c->model, m->text, sizeof(m->text));
	c->training.epochs = options_epochs(r, m);
	c->data_id_given = text_or_null(r->data_id) != NULL;
	c->data_id = c->data_id_given ? strtoull(r->data_id, NULL, 16) : 0;
	fill_optim(c, r);
	mode_fill(c, &r->modes);
}

static void fill(struct options *o, const struct raw *r)
{
	fill_core(&o->core, r, &o->model);
	o->bind = r->bind;
	o->http = text_or_null(r->http);
	o->checkpoint_dir = text_or_null(r->checkpoint_dir);
	o->journal_bytes = (uint64_t)r->journal_mb << 20;
	o->init = text_or_null(r->init);
	o->memory_bytes = (uint64_t)r->memory_mb << 20;
	o->key = text_or_null(r->key);
	o->authorized_keys = text_or_null(r->authorized_keys);
	o->insecure = r->insecure;
	o->log_level = (enum log_level)r->log_level;
	o->log_format = (enum log_format)r->log_format;
	o->usual_rate = mode_rate(&r->modes, optim_of(r), usual[optim_of(r)].lr);
	o->check_config = r->check_config;
}

/* ---- the table ----------------------------------------------------------------------------- */

/* A row ends with its help, and after that, if the row has an effect only sometimes, with
 * .needs = "mode=ssp|sync" (see struct opt): given without that, it is warned about. */
/* clang-format off */
#define TEXT(n, to, d, a, ...) \
	{.name = n, .type = OPT_TEXT, .dest = &r.to, .def = d, .arg = a, .help = __VA_ARGS__}
#define INT(n, to, d, least, most, a, ...) \
	{.name = n, .type = OPT_INT, .dest = &r.to, .def = d, .min = least, .max = most, .arg = a, \
	 .help = __VA_ARGS__}
#define REAL(n, to, d, least, most, a, ...) \
	{.name = n, .type = OPT_REAL, .dest = &r.to, .def = d, .min = least, .max = most, .arg = a, \
	 .help = __VA_ARGS__}
#define ENUM(n, to, d, v, a, ...) \
	{.name = n, .type = OPT_ENUM, .dest = &r.to, .def = d, .values = v, .arg = a, \
	 .help = __VA_ARGS__}
#define FLAG(n, to, ...) \
	{.name = n, .type = OPT_FLAG, .dest = &r.to, .def = "0", .help = __VA_ARGS__}
/* clang-format on */

int options_parse(struct options *o, int argc, char **argv)
{
	struct raw r = {.epochs = NOT_GIVEN,
		.optimizer = NOT_GIVEN,
		.modes = {.local_rate = NOT_GIVEN, .batch_images = NOT_GIVEN},
		.lr = NOT_GIVEN,
		.eps = NOT_GIVEN,
		.clip_norm = NOT_GIVEN,
		.warmup = NOT_GIVEN};
	const struct opt rows[] = {
		TEXT("bind", bind, "tcp://127.0.0.1:5555", "URL",
			"address for workers; port 0: any free one, see the log"),
		TEXT("key", key, NULL, "FILE",
			"the server's secret key (cnn-ctl keygen): traffic is encrypted, and only "
			"keys of --authorized-keys may connect; without it --bind must be "
			"loopback"),
		TEXT("authorized-keys", authorized_keys, NULL, "FILE",
			"keys that may connect, and their roles; read again on SIGHUP; without it "
			"\"authorized_keys\" beside --key",
			.was = "allow"),
		FLAG("insecure", insecure,
			"let --bind be open to the network without keys: anybody may train, stop "
			"and copy; let --http be open to it: anybody may read"),
		TEXT("http", http, NULL, "[HOST:]PORT",
			"serve /metrics, /status and /healthz there, HOST without it 127.0.0.1; "
			"without it: off; a HOST that is not loopback needs --insecure"),
		TEXT("model", model, "seed:32", "MODEL",
			"seed:F, lenet5, cnn99, vector:N, or layers such as \"conv:32:3 relu "
			"pool:2 fc:10\""),
		ENUM("mode", modes.mode, "downpour", MODE_NAMES, "MODE",
			"how gradients meet: each when it comes, the same with bounded staleness, "
			"in steps of all workers, in portions of a large batch, or workers for "
			"themselves around a centre (docs/modes.md)"),
		ENUM("optimizer", optimizer, NULL, OPTIM_NAMES, "NAME",
			"what turns gradients into updates; without it rmsprop (downpour, ssp), "
			"nesterov (sync) or lbfgs (sandblaster)"),
		INT("n-push", modes.n_push, "1", 1, WIRE_MAX_BATCHES, "N", "batches in one push"),
		ENUM("push", modes.push, "mean", PUSH_NAMES, "WHAT",
			"of its batches' gradients a push has; sync: of a step's"),
		INT("n-fetch", modes.n_fetch, "1", 1, WIRE_MAX_BATCHES, "N",
			"batches between two pulls of the weights; in between a worker takes steps "
			"of its own"),
		REAL("local-lr", modes.local_rate, NULL, 0, 1e6, "RATE",
			"of a worker's own steps; without it 0.1, for easgd 0.13",
			.was = "local-rate", .needs = "mode=downpour|ssp|easgd"),
		FLAG("prefetch", modes.prefetch,
			"pull the next weights while a gradient is computed: faster where pulls "
			"are slow, one version staler",
			.needs = "mode=downpour|ssp|easgd"),
		ENUM("delay-compensation", modes.delay, "none", DELAY_NAMES, "HOW",
			"correct late gradients by how far the weights have moved (DC-ASGD); keeps "
			"the versions of the weights that live workers compute at"),
		REAL("dc-lambda", modes.dc_lambda, "0", 0, 1e6, "LAMBDA",
			"strength of that; 0: 0.04, adaptive 2",
			.needs = "delay-compensation=constant|adaptive"),
		REAL("easgd-beta", modes.easgd_beta, "0.9", 1e-6, 1, "BETA",
			"easgd: at a meeting worker and centre each close BETA / (live workers) of "
			"the distance between them",
			.was = "elastic", .needs = "mode=easgd"),
		REAL("easgd-momentum", modes.easgd_momentum, "0.96", 0, 0.999, "PART",
			"easgd: Nesterov momentum of the workers' own steps (EAMSGD); 0: none",
			.needs = "mode=easgd"),
		INT("ssp-bound", modes.ssp_bound, "4", 0, WIRE_MAX_BATCHES, "N",
			"ssp: batches that a worker may be ahead of the slowest",
			.needs = "mode=ssp"),
		INT("buffer-size", modes.buffer, "1", 1, 1000000, "K",
			"gradients of any workers that make one update (FedBuff)", .was = "buffer",
			.needs = "mode=downpour|ssp"),
		INT("sync-workers", modes.sync_workers, "0", 0, WIRE_MAX_WORKERS, "N",
			"sync: gradients that make a step, each from another worker; 0: one from "
			"each live worker, but for --backup-workers",
			.needs = "mode=sync"),
		INT("backup-workers", modes.backup_workers, "0", 0, WIRE_MAX_WORKERS, "N",
			"sync: workers more than a step needs; it ends without the slowest",
			.was = "sync-spares", .needs = "mode=sync"),
		INT("step-images", modes.batch_images, NULL, 0, WIRE_MAX_IMAGES, "N",
			"sandblaster: images of one step; 0: all; without it 0 for lbfgs, 6000 for "
			"the other optimizers",
			.was = "batch-images", .needs = "mode=sandblaster"),
		INT("lbfgs-history", modes.lbfgs_history, "20", 1, LBFGS_MAX_HISTORY, "N",
			"pairs of steps and gradients that L-BFGS remembers",
			.needs = "optimizer=lbfgs"),
		INT("lbfgs-trials", modes.lbfgs_trials, "20", 1, 1000, "N",
			"most points that one line search looks at", .needs = "optimizer=lbfgs"),
		REAL("lbfgs-armijo", modes.lbfgs_armijo, "1e-4", 1e-12, 0.5, "PART",
			"of the slope's promise that a step must keep", .needs = "optimizer=lbfgs"),
		REAL("lbfgs-wolfe", modes.lbfgs_wolfe, "0.5", 1e-6, 0.999999, "PART",
			"of the slope that may be left after a step", .needs = "optimizer=lbfgs"),
		REAL("lr", lr, NULL, 1e-12, 1e6, "RATE",
			"learning rate of one worker (see --lr-scaling); without it sgd 0.2, "
			"adagrad 0.04, momentum and nesterov 0.03 (sync: 0.3), rmsprop 0.009, "
			"adam 0.002",
			.needs = "mode!=easgd optimizer!=lbfgs"),
		ENUM("lr-scaling", modes.lr_scaling, "auto", LR_SCALING_NAMES, "RULE",
			"multiply the rate by N (linear) or its square root: N is the number of "
			"gradients in a sync step, and 1 / (1 + staleness) of a gradient in "
			"downpour and ssp; auto: sqrt, but linear for sgd, momentum and nesterov "
			"in downpour and ssp, and none for sync with --push sum",
			.needs = "mode=downpour|ssp|sync"),
		INT("lr-scaling-warmup", modes.lr_scaling_warmup, "0", 0, 1e9, "N",
			"updates in which a factor of --lr-scaling above 1, in sync or with a "
			"--buffer-size, rises from 1",
			.needs = "mode=downpour|ssp|sync"),
		REAL("momentum", momentum, "0.9", 0, 0.999999, "PART",
			"of the last direction is kept", .needs = "optimizer=momentum|nesterov"),
		REAL("beta1", beta1, "0.9", 0, 0.999999, "BETA1",
			"adam: decay rate of the mean gradient", .needs = "optimizer=adam"),
		REAL("beta2", beta2, "0.999", 0, 0.999999, "BETA2",
			"adam: decay rate of the mean squared gradient", .was = "decay-square",
			.needs = "optimizer=adam"),
		REAL("rmsprop-alpha", rmsprop_alpha, "0.9", 0, 0.999999, "ALPHA",
			"rmsprop: decay rate of the mean squared gradient", .was = "decay-square",
			.needs = "optimizer=rmsprop"),
		REAL("eps", eps, NULL, 1e-12, 1, "EPS",
			"added to the root: adagrad, without it 1e-10; rmsprop, adam, without it "
			"1e-8",
			.needs = "optimizer=adagrad|rmsprop|adam"),
		REAL("adagrad-init", adagrad_init, "0", 0, 1e6, "G", "first sum of squares",
			.needs = "optimizer=adagrad"),
		REAL("weight-decay", weight_decay, "0", 0, 1, "PART",
			"of the weights is added to their gradient", .needs = "optimizer!=lbfgs"),
		REAL("clip-norm", clip_norm, NULL, 0, 1e30, "L2",
			"scale gradients with a larger norm down to this one; 0: never; without it "
			"0.5 (sync) or 0",
			.needs = "optimizer!=lbfgs"),
		ENUM("schedule", schedule, "constant", SCHEDULE_NAMES, "NAME",
			"how the rate changes over the run",
			.needs = "mode!=easgd optimizer!=lbfgs"),
		REAL("warmup", warmup, NULL, 0, 1, "PART",
			"of the run in which the rate rises; without it 0, for onecycle 0.3",
			.needs = "mode!=easgd optimizer!=lbfgs"),
		REAL("schedule-gamma", schedule_gamma, "0.1", 0, 1, "PART",
			"step: of the rate is left by each fall", .needs = "schedule=step"),
		INT("schedule-every", schedule_every, "1", 1, WIRE_MAX_EPOCHS, "N",
			"step: epochs between falls", .needs = "schedule=step"),
		REAL("schedule-floor", schedule_floor, "0", 0, 1, "PART",
			"cosine, onecycle: of the rate is left at the end",
			.needs = "schedule=cosine|onecycle"),
		INT("epochs", epochs, NULL, 0, WIRE_MAX_EPOCHS, "N",
			"passes over the training images; 0: no data set, ends by --max-updates or "
			"a drain; without it 3 (sandblaster: 30), for vector:N 0"),
		INT("batch-size", batch, "100", 1, WIRE_MAX_IMAGES, "N", "images per batch",
			.was = "batch"),
		INT("seed", seed, "1", 0, MOST_EXACT, "N",
			"of the first weights, the order of images and dropout"),
		TEXT("data-id", data_id, NULL, "FINGERPRINT",
			"refuse workers with another data set (cnn-worker --print-data-id prints "
			"it); without it the first accepted gradient decides"),
		TEXT("init", init, NULL, "FILE",
			"first weights of a fresh run, a .safetensors file of this model"),
		TEXT("checkpoint-dir", checkpoint_dir, NULL, "DIR",
			"keep the run there and continue it from there; without it a crash loses "
			"the run"),
		INT("checkpoint-ms", checkpoint_ms, "500", 1, MOST_MS, "MS",
			"least time between checkpoints", .needs = "checkpoint-dir"),
		ENUM("durability", durability, "replay", "replay|always", "LEVEL",
			"what a crash of everything at once may lose: replay: pushes since the "
			"last "
			"checkpoint that no living worker keeps; always: nothing that was "
			"acknowledged, for a journal (docs/durability.md)"),
		INT("journal-mb", journal_mb, "128", 1, 1 << 20, "MIB",
			"always: take a checkpoint when the journal behind the last one is larger",
			.needs = "durability=always"),
		INT("min-workers", min_workers, "1", 1, WIRE_MAX_WORKERS, "N",
			"give out no work before so many workers are there"),
		INT("max-workers", max_workers, "256", 1, WIRE_MAX_WORKERS, "N", "worker slots"),
		ENUM("staleness-scaling", staleness_scaling, "relative", STALENESS_SCALING_NAMES,
			"HOW",
			"rate of a gradient that is TAU versions old: constant, / max(1, TAU / "
			"live workers), / max(1, TAU)",
			.was = "stale-rate", .needs = "mode=downpour|ssp"),
		INT("max-staleness", max_staleness, "0", 0, 1e9, "N",
			"refuse gradients that are more versions old; 0: 32 times the live "
			"workers, ssp: any number",
			.needs = "mode=downpour|ssp|easgd"),
		REAL("reject-norm", max_norm, "0", 0, 1e30, "L2",
			"refuse gradients with a larger norm; 0: no limit", .was = "max-norm"),
		INT("warm-start-updates", warm_start_updates, "0", 0, 1e9, "N",
			"the first N updates come from one worker alone", .was = "warm-updates",
			.needs = "mode=downpour|ssp"),
		INT("warm-start-ramp", warm_start_ramp, "40", 0, 1e9, "N",
			"after --warm-start-updates one more worker starts every N updates; 0: all "
			"at "
			"once",
			.was = "warm-ramp", .needs = "mode=downpour|ssp warm-start-updates!=0"),
		INT("max-updates", max_updates, "0", 0, MOST_EXACT, "N",
			"end after so many updates; 0: no bound"),
		INT("lease-batches", lease_batches, "10", 1, WIRE_MAX_BATCHES, "N",
			"most batches given out at once",
			.needs = "mode=downpour|ssp|sandblaster|easgd"),
		ENUM("backup-copies", backup, "late", BACKUP_NAMES, "WHEN",
			"an idle worker gets a copy of work that another one has: when that one "
			"has taken twice the median time, at once, never"),
		INT("first-deadline-ms", first_deadline_ms, "30000", 1, MOST_MS, "MS",
			"time to deliver work while no worker has delivered any; later ten times "
			"the worker's median, at least 2000"),
		INT("eval-images", eval_images, "1000", 1, WIRE_MAX_IMAGES, "N",
			"test images given out at once"),
		INT("push-window", push_window, "8", 1, WIRE_MAX_WINDOW, "N",
			"gradients that a worker may have unanswered"),
		INT("replay-window", replay_window, "256", 1, WIRE_MAX_WINDOW, "N",
			"gradients that a worker may have outside a checkpoint"),
		INT("heartbeat-ms", beat_ms, "500", 10, MOST_MS, "MS",
			"interval between two heartbeats of a worker", .was = "beat-ms"),
		INT("suspect-ms", suspect_ms, "1400", 20, MOST_MS, "MS",
			"a worker silent for so long loses its work"),
		INT("dead-ms", dead_ms, "10000", 30, MOST_MS, "MS",
			"a worker silent for so long loses its slot"),
		INT("session-ttl-ms", forget_ms, "600000", 30, MOST_FORGET_MS, "MS",
			"after a restart the slot of a worker that does not come back is kept so "
			"long",
			.was = "forget-ms"),
		INT("recovery-ms", recovery_ms, "3000", 0, MOST_MS, "MS",
			"after a restart wait so long for the workers to come back before new work "
			"is given out"),
		INT("memory-mb", memory_mb, "0", 0, 1 << 24, "MB",
			"hang up on all peers, who come back, when the server uses more; 0: 80 % "
			"of the "
			"machine's or the container's memory"),
		FLAG("accept-rollback", accept_rollback,
			"go on from a checkpoint older than what workers were told is safe",
			.needs = "checkpoint-dir"),
		ENUM("log-level", log_level, "info", LOG_LEVEL_NAMES, "LEVEL",
			"log events of this level and above on stderr; \"cnn-ctl log-level\" "
			"changes it at run time"),
		ENUM("log-format", log_format, "text", LOG_FORMAT_NAMES, "FORMAT",
			"a log line is logfmt (text) or a JSON object (json)"),
		FLAG("check-config", check_config,
			"judge and print the configuration, do nothing else"),
		{0},
	};
	const struct opt_program program = {.name = PROGRAM,
		.usage = "[OPTION...]",
		.about = "Train a convolutional network with the gradients that workers push.",
		.opts = rows,
		.max_args = 0};
	const char *none;
	int n_args, rc = opt_parse(&program, argc, argv, &none, &n_args);

	if (rc == OPT_EXIT)
		return OPT_EXIT;
	if (options_judge(&r, &o->model, rc, opt_given(&program, "momentum")) > 0 || rc != OPT_RUN)
		return PS_EUSAGE;
	fill(o, &r);
	r.optimizer = (int)o->core.optim.kind; /* what was not given, for the dump */
	r.lr = o->core.rate.lr;
	r.eps = o->core.optim.eps;
	r.clip_norm = o->core.optim.clip_norm;
	r.modes.lr_scaling = (int)o->core.rate.scaling + 1;
	r.warmup = o->core.schedule.warmup;
	r.epochs = o->core.training.epochs;
	r.modes.local_rate = o->core.push.local_lr;
	r.modes.batch_images = o->core.sandblaster.step_images;
	log_set_format(o->log_format);
	log_set_level(o->check_config ? LOG_DEBUG : o->log_level);
	opt_check(&program, NULL);
	opt_dump(&program);
	return OPT_RUN;
}
