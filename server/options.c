/*
 * options.c - one row per option; then the rules that need more than one value or the machine.
 */
#include "server/options.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/opt.h"

#define PROGRAM        "cnn-ps"
#define MOST_EXACT     1e15 /* whole numbers up to 2^53 are exact in a row */
#define MOST_MS        3600000
#define MOST_FORGET_MS 604800000

/* The rows' destinations, in the types that opt.h knows. */
struct raw {
	const char *bind, *http, *model, *mode, *checkpoint_dir, *init;
	int64_t epochs, batch, seed, max_updates, max_staleness, warm_updates, lease_batches;
	int64_t eval_images, min_workers, max_workers, push_window, replay_window;
	int64_t beat_ms, suspect_ms, dead_ms, forget_ms, recovery_ms, checkpoint_ms;
	double lr, adagrad_eps, adagrad_init, max_norm;
	int optimizer, stale_rate, log_level, accept_rollback, check_config;
};

static void complain(int *errors, const char *fmt, ...) PS_PRINTF(2, 3);
static void complain(int *errors, const char *fmt, ...)
{
	struct err line;
	char text[sizeof(line.text)];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	err_set(&line, PS_EUSAGE, "%s", text); /* takes control characters out */
	fprintf(stderr, PROGRAM ": %s\n", line.text);
	(*errors)++;
}

/* ---- the machine --------------------------------------------------------------------------- */

/* "0".."65535", or "*". */
static int is_port(const char *text)
{
	char *end;

	if (strcmp(text, "*") == 0)
		return 1;
	if (text[0] == '\0' || strspn(text, "0123456789") != strlen(text))
		return 0;
	errno = 0;
	return strtoul(text, &end, 10) <= 65535 && errno == 0;
}

/* HOST:PORT with something on both sides; an IPv6 host stands in brackets. */
static int is_address(const char *text)
{
	const char *colon = strrchr(text, ':');
	size_t host = colon ? (size_t)(colon - text) : 0;

	if (host == 0 || !is_port(colon + 1) || strpbrk(text, " /"))
		return 0;
	if (text[0] == '[')
		return host > 2 && colon[-1] == ']';
	return memchr(text, ':', host) == NULL;
}

static void check_addresses(const struct raw *r, int *errors)
{
	if (r->bind && (strncmp(r->bind, "tcp://", 6) != 0 || !is_address(r->bind + 6)))
		complain(errors, "--bind: \"%.100s\": expected tcp://HOST:PORT, PORT 0 to 65535",
			r->bind);
	if (r->http && r->http[0] && (!is_address(r->http) || strchr(r->http, '*')))
		complain(errors, "--http: \"%.100s\": expected HOST:PORT, PORT 0 to 65535, or \"\"",
			r->http);
}

/* The directory is there and can be written to, or its parent is and can. */
static void check_directory(const char *dir, int *errors)
{
	struct stat st;
	size_t n = strlen(dir);

	if (stat(dir, &st) == 0) {
		if (!S_ISDIR(st.st_mode))
			complain(errors, "--checkpoint-dir: %.200s is not a directory", dir);
		else if (faccessat(AT_FDCWD, dir, R_OK | W_OK | X_OK, AT_EACCESS) != 0)
			complain(errors, "--checkpoint-dir: %.200s: %s", dir, strerror(errno));
		return;
	}
	if (errno != ENOENT) {
		complain(errors, "--checkpoint-dir: %.200s: %s", dir, strerror(errno));
		return;
	}
	while (n > 1 && dir[n - 1] == '/')
		n--;
	while (n > 0 && dir[n - 1] != '/')
		n--;
	char parent[4096] = ".";
	if (n >= sizeof(parent)) {
		complain(errors, "--checkpoint-dir: %.50s... is too long", dir);
		return;
	}
	if (n > 0)
		memcpy(parent, dir, n);
	if (faccessat(AT_FDCWD, parent, W_OK | X_OK, AT_EACCESS) != 0)
		complain(errors, "--checkpoint-dir: %.200s cannot be created: %s", dir,
			strerror(errno));
}

static void check_files(const struct raw *r, int *errors)
{
	if (r->checkpoint_dir && r->checkpoint_dir[0])
		check_directory(r->checkpoint_dir, errors);
	if (r->init && r->init[0] && faccessat(AT_FDCWD, r->init, R_OK, AT_EACCESS) != 0)
		complain(errors, "--init: %.200s: %s", r->init, strerror(errno));
}

/* ---- values that depend on each other ------------------------------------------------------ */

static void check_model(const struct raw *r, struct model *m, int *errors)
{
	const struct shape mnist = {.c = 1, .h = 28, .w = 28};
	struct err e;

	m->n_params = 0;
	if (r->model && model_parse(m, r->model, mnist, &e) != 0) {
		complain(errors, "--model: %s", e.text);
		m->n_params = 0;
	}
}

static void check_mode(const struct raw *r, int *errors)
{
	if (r->mode && strcmp(r->mode, "downpour") != 0)
		complain(errors,
			"--mode: \"%.100s\" is not there: this version trains in mode downpour "
			"only",
			r->mode);
}

static void check_together(const struct raw *r, int *errors)
{
	if (r->replay_window < r->push_window)
		complain(errors, "--replay-window: %lld is less than --push-window %lld",
			(long long)r->replay_window, (long long)r->push_window);
	if (r->suspect_ms <= r->beat_ms)
		complain(errors, "--suspect-ms: %lld is not more than --beat-ms %lld",
			(long long)r->suspect_ms, (long long)r->beat_ms);
	if (r->dead_ms <= r->suspect_ms)
		complain(errors, "--dead-ms: %lld is not more than --suspect-ms %lld",
			(long long)r->dead_ms, (long long)r->suspect_ms);
	if (r->forget_ms < r->dead_ms)
		complain(errors, "--forget-ms: %lld is less than --dead-ms %lld",
			(long long)r->forget_ms, (long long)r->dead_ms);
	if (r->min_workers > r->max_workers)
		complain(errors, "--min-workers: %lld is more than --max-workers %lld",
			(long long)r->min_workers, (long long)r->max_workers);
}

/* ---- raw -> struct options ----------------------------------------------------------------- */

static const char *text_or_null(const char *text)
{
	return text && text[0] ? text : NULL;
}

static void fill_core(struct core_config *c, const struct raw *r, const struct model *m)
{
	*c = (struct core_config){.model_fingerprint = m->fingerprint,
		.n_params = m->n_params,
		.seed = (uint64_t)r->seed,
		.batch = (uint32_t)r->batch,
		.max_updates = (uint64_t)r->max_updates,
		.mode = MODE_DOWNPOUR,
		.optim = {.kind = (enum optim_kind)r->optimizer,
			.eps = r->adagrad_eps,
			.adagrad_init = r->adagrad_init,
			.momentum = 0.9,
			.decay_square = 0.999},
		.n_push = 1,
		.n_fetch = 1,
		.lr = r->lr,
		.stale_rate = (enum stale_rate)r->stale_rate,
		.max_staleness = (uint32_t)r->max_staleness,
		.max_norm = r->max_norm,
		.warm_updates = (uint32_t)r->warm_updates,
		.lease_batches = (uint32_t)r->lease_batches,
		.eval_images = (uint32_t)r->eval_images,
		.min_workers = (uint32_t)r->min_workers,
		.max_workers = (uint32_t)r->max_workers,
		.push_window = (uint32_t)r->push_window,
		.replay_window = (uint32_t)r->replay_window,
		.beat_ms = (uint32_t)r->beat_ms,
		.suspect_ms = (uint32_t)r->suspect_ms,
		.dead_ms = (uint32_t)r->dead_ms,
		.forget_ms = (uint32_t)r->forget_ms,
		.recovery_ms = (uint32_t)r->recovery_ms,
		.checkpoint_ms = (uint32_t)r->checkpoint_ms,
		.durable = text_or_null(r->checkpoint_dir) != NULL,
		.accept_rollback = r->accept_rollback};
	_Static_assert(sizeof(c->model) >= sizeof(m->text), "a model's text fits the wire");
	memcpy(c->model, m->text, sizeof(m->text));
	c->epochs = (uint32_t)(r->epochs >= 0 ? r->epochs : m->classes == 0 ? 0 : 3);
}

static void fill(struct options *o, const struct raw *r)
{
	fill_core(&o->core, r, &o->model);
	o->bind = r->bind;
	o->http = text_or_null(r->http);
	o->checkpoint_dir = text_or_null(r->checkpoint_dir);
	o->init = text_or_null(r->init);
	o->log_level = (enum log_level)r->log_level;
	o->check_config = r->check_config;
}

static int judge(struct options *o, const struct raw *r, int parsed)
{
	int errors = 0;

	check_model(r, &o->model, &errors);
	check_mode(r, &errors);
	check_addresses(r, &errors);
	check_files(r, &errors);
	if (parsed == PS_OK) /* else some of these have no value of their own */
		check_together(r, &errors);
	return errors;
}

/* ---- the table ----------------------------------------------------------------------------- */

/* clang-format off */
#define TEXT(n, to, d, a, h) \
	{.name = n, .type = OPT_TEXT, .dest = &r.to, .def = d, .arg = a, .help = h}
#define INT(n, to, d, least, most, a, h) \
	{.name = n, .type = OPT_INT, .dest = &r.to, .def = d, .min = least, .max = most, .arg = a, \
	 .help = h}
#define REAL(n, to, d, least, most, a, h) \
	{.name = n, .type = OPT_REAL, .dest = &r.to, .def = d, .min = least, .max = most, .arg = a, \
	 .help = h}
#define ENUM(n, to, d, v, a, h) \
	{.name = n, .type = OPT_ENUM, .dest = &r.to, .def = d, .values = v, .arg = a, .help = h}
#define FLAG(n, to, h) {.name = n, .type = OPT_FLAG, .dest = &r.to, .def = "0", .help = h}
/* clang-format on */

int options_parse(struct options *o, int argc, char **argv)
{
	struct raw r = {.epochs = -1};
	const struct opt rows[] = {
		TEXT("bind", bind, "tcp://127.0.0.1:5555", "URL",
			"address for workers; port 0: any free one, see the log"),
		TEXT("http", http, NULL, "HOST:PORT",
			"serve /metrics, /status and /healthz there; without it: off"),
		TEXT("model", model, "seed:32", "MODEL",
			"seed:F, lenet5, cnn99, vector:N, or layers such as \"conv:32:3 relu "
			"pool:2 fc:10\""),
		TEXT("mode", mode, "downpour", "MODE", "how gradients meet: downpour"),
		ENUM("optimizer", optimizer, "adagrad", OPTIM_NAMES, "NAME",
			"what turns gradients into updates"),
		REAL("lr", lr, "0.04", 1e-12, 1e6, "RATE", "learning rate"),
		REAL("adagrad-eps", adagrad_eps, "1e-8", 1e-30, 1, "EPS",
			"added to the root of the sum of squares"),
		REAL("adagrad-init", adagrad_init, "0", 0, 1e6, "G", "first sum of squares"),
		INT("epochs", epochs, NULL, 0, WIRE_MAX_EPOCHS, "N",
			"passes over the training images; 0: no data set, ends by --max-updates or "
			"a drain; without it 3, for vector:N 0"),
		INT("batch", batch, "100", 1, WIRE_MAX_IMAGES, "N", "images per batch"),
		INT("seed", seed, "1", 0, MOST_EXACT, "N",
			"of the first weights, the order of images and dropout"),
		TEXT("init", init, NULL, "FILE",
			"first weights of a fresh run, a .safetensors file of this model"),
		TEXT("checkpoint-dir", checkpoint_dir, NULL, "DIR",
			"keep the run there and continue it from there; without it a crash loses "
			"the run"),
		INT("checkpoint-ms", checkpoint_ms, "500", 1, MOST_MS, "MS",
			"least time between checkpoints"),
		INT("min-workers", min_workers, "1", 1, WIRE_MAX_WORKERS, "N",
			"give out no work before so many workers are there"),
		INT("max-workers", max_workers, "256", 1, WIRE_MAX_WORKERS, "N", "worker slots"),
		ENUM("stale-rate", stale_rate, "relative", STALE_RATE_NAMES, "HOW",
			"rate of a gradient that is TAU versions old: constant, / max(1, TAU / "
			"live workers), / max(1, TAU)"),
		INT("max-staleness", max_staleness, "0", 0, 1e9, "N",
			"refuse gradients that are more versions old; 0: 8 times the live workers, "
			"at least 16"),
		REAL("max-norm", max_norm, "0", 0, 1e30, "L2",
			"refuse gradients with a larger norm; 0: no limit"),
		INT("warm-updates", warm_updates, "200", 0, 1e9, "N",
			"so many first updates come from one worker alone"),
		INT("max-updates", max_updates, "0", 0, MOST_EXACT, "N",
			"end after so many updates; 0: no bound"),
		INT("lease-batches", lease_batches, "10", 1, WIRE_MAX_BATCHES, "N",
			"most batches given out at once"),
		INT("eval-images", eval_images, "1000", 1, WIRE_MAX_IMAGES, "N",
			"test images given out at once"),
		INT("push-window", push_window, "8", 1, WIRE_MAX_WINDOW, "N",
			"gradients that a worker may have unanswered"),
		INT("replay-window", replay_window, "256", 1, WIRE_MAX_WINDOW, "N",
			"gradients that a worker may have outside a checkpoint"),
		INT("beat-ms", beat_ms, "500", 10, MOST_MS, "MS", "a worker beats so often"),
		INT("suspect-ms", suspect_ms, "1500", 20, MOST_MS, "MS",
			"a worker silent for so long loses its work"),
		INT("dead-ms", dead_ms, "10000", 30, MOST_MS, "MS",
			"a worker silent for so long loses its slot"),
		INT("forget-ms", forget_ms, "600000", 30, MOST_FORGET_MS, "MS",
			"after a restart the slot of a worker that does not come back is kept so "
			"long"),
		INT("recovery-ms", recovery_ms, "3000", 0, MOST_MS, "MS",
			"after a restart wait so long for the workers to come back before new work "
			"is given out"),
		FLAG("accept-rollback", accept_rollback,
			"go on from a checkpoint older than what workers were told is safe"),
		ENUM("log-level", log_level, "info", LOG_LEVEL_NAMES, "LEVEL",
			"SIGHUP switches between debug and this"),
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
	if (judge(o, &r, rc) > 0 || rc != OPT_RUN)
		return PS_EUSAGE;
	fill(o, &r);
	log_set_level(o->check_config ? LOG_DEBUG : o->log_level);
	opt_dump(&program);
	return OPT_RUN;
}
