/*
 * options.c - see options.h. One table has the options of the core (server/core/options.def) and of
 * the shell. The checks in this file compare several values, or depend on the state of the machine.
 */
#include "server/config/options.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/endpoint.h"
#include "common/file.h"
#include "common/opt.h"
#include "common/threads.h"
#include "server/config/fill_model.h"
#include "server/config/memory.h"
#include "server/net/address.h"

#define PROGRAM  "cnn-ps"
#define MAX_ROWS 128
/* number of image sizes for which --input auto checks the model at the start */
#define AUTO_SIDES ((size_t)512)
#define MAX_GPU    63
/* --threads 0 chooses half of the CPUs, but on a small machine up to FEW_THREADS of them */
#define FEW_THREADS  4
#define MANY_THREADS 8

/* ---- complaints about addresses and files ---------------------------------------------------- */

static void complain(int *errors, const char *fmt, ...) PS_PRINTF(2, 3);
static void complain(int *errors, const char *fmt, ...)
{
	struct err line;
	char text[sizeof(line.text)];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	err_set(&line, PS_EUSAGE, "%s", text); /* err_set replaces control characters */
	fprintf(stderr, PROGRAM ": %s\n", line.text);
	(*errors)++;
}

static int is_bind(const char *text, struct endpoint *e)
{
	return text && !endpoint_parse(text, e);
}

/* Returns 1 if `text` is HOST:PORT, or PORT alone, which means a port of the loopback address. If
 * it returns 1, *e is the address. */
static int is_http(const char *text, struct endpoint *e)
{
	return text && (!endpoint_parse_address(text, e) || !endpoint_parse_port(text, e)) &&
	       !strchr(text, '*');
}

static void check_addresses(const struct options *o, int *errors)
{
	struct endpoint e;

	if (o->bind && !is_bind(o->bind, &e))
		complain(errors, "--bind: \"%.100s\": expected tcp://HOST:PORT, PORT 0 to 65535",
			o->bind);
	if (o->http && !is_http(o->http, &e))
		complain(errors,
			"--http: \"%.100s\": expected HOST:PORT or PORT, 0 to 65535, or \"\"",
			o->http);
}

static void check_reach(
	const char *option, const char *given, const char *host, const char *remedy, int *errors)
{
	enum address_reach reach = address_reach(host);

	if (reach == ADDRESS_UNKNOWN)
		complain(errors, "%s: \"%.100s\": the host has no address", option, given);
	if (reach == ADDRESS_OPEN)
		complain(
			errors, "%s: \"%.100s\" is open to the network: %s", option, given, remedy);
}

/* Checks that --http is a loopback address, unless --http-token is set. Keys protect only --bind,
 * so without a token any client that can connect to --http can read status and metrics. */
static void check_http_reach(const struct options *o, int *errors)
{
	struct endpoint e;

	if (o->http_token && !o->http)
		complain(errors, "--http-token: needs --http");
	if (!o->http_token && is_http(o->http, &e))
		check_reach("--http", o->http, e.host,
			"anybody there may read status and metrics, with or without --key: give "
			"--http-token FILE, or 127.0.0.1:PORT",
			errors);
}

static void check_keys(const struct options *o, int *errors)
{
	struct endpoint e;
	int key = o->key != NULL;

	if (key && o->insecure)
		complain(errors, "--key, --insecure: only one of them");
	if (!key && o->authorized_keys)
		complain(errors, "--authorized-keys: needs --key");
	if (!key && !o->insecure && is_bind(o->bind, &e))
		check_reach("--bind", o->bind, e.host,
			"give --key FILE (cnn-ctl keygen DIR makes one), or --insecure", errors);
	check_http_reach(o, errors);
}

/* Checks that the directory `dir` exists and is writable, or can be created in its parent. */
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

static void check_files(const struct options *o, int *errors)
{
	struct err e;

	if (o->checkpoint_dir)
		check_directory(o->checkpoint_dir, errors);
	if (o->init && file_check_readable(o->init, "give a .safetensors file", &e))
		complain(errors, "--init: %s", e.text);
}

/* Checks that --input and --classes fit the parsed model. */
static void check_images(
	const struct options *o, const struct model *m, const struct shape *input, int *errors)
{
	if (m->n_layers == 0 && (o->input || o->classes))
		complain(errors, "--input, --classes: vector:N has no images: leave them out");
	else if (o->input &&
		 (input->c != m->input.c || input->h != m->input.h || input->w != m->input.w))
		complain(errors, "--input: %s is not the input %zux%zux%zu of --model", o->input,
			m->input.c, m->input.h, m->input.w);
	else if (o->classes && (size_t)o->classes != m->classes)
		complain(errors, "--classes: %lld, but the last layer of --model is fc:%zu",
			(long long)o->classes, m->classes);
}

static int is_auto(const struct options *o)
{
	return o->input && strcmp(o->input, "auto") == 0;
}

/* With --input auto, checks that the model fits images of at least one size. This check also finds
 * a misspelt layer in the model. */
static void check_auto_model(const struct options *o, struct model *m, int *errors)
{
	const size_t classes = o->classes ? (size_t)o->classes : MODEL_CLASSES;
	struct err e, first = {0};

	for (size_t side = 1; side <= AUTO_SIDES; side++)
		for (size_t c = 1; c <= 3; c += 2) {
			/* begin with the size of MNIST's images */
			size_t s = (side + MODEL_MNIST.h - 2) % AUTO_SIDES + 1;

			if (!model_parse_named(
				    m, o->model_text, (struct shape){c, s, s}, classes, &e)) {
				if (m->n_layers == 0 || m->input.h != s || m->input.c != c)
					complain(errors, "--input: auto, but --model names its "
							 "input or has none");
				return;
			}
			if (!first.text[0])
				first = e;
		}
	complain(errors, "--model: %s", first.text);
	m->n_params = 0;
}

static void check_model(const struct options *o, struct model *m, int *errors)
{
	struct shape input = {0, 0, 0};
	struct err e;

	m->n_params = 0;
	if (is_auto(o)) {
		if (o->model_text)
			check_auto_model(o, m, errors);
		return;
	}
	if (o->input && !shape_parse(o->input, &input)) {
		complain(errors,
			"--input: \"%.60s\": expected CHANNELSxROWSxCOLUMNS, each 1 to %zu, or "
			"auto",
			o->input, MODEL_MAX_SIDE);
		return;
	}
	if (!o->model_text)
		return;
	if (model_parse_named(m, o->model_text, input,
		    o->classes ? (size_t)o->classes : MODEL_CLASSES, &e) != 0) {
		complain(errors, "--model: %s", e.text);
		m->n_params = 0;
		return;
	}
	check_images(o, m, &input, errors);
}

/* Parses a number of images, which the character `end` must follow. Returns the position of `end`,
 * or NULL if the text has another form. */
static const char *parse_count(const char *text, char end, uint32_t *n)
{
	size_t digits = strspn(text, "0123456789");

	if (digits == 0 || digits > 10 || text[digits] != end)
		return NULL;
	unsigned long long v = strtoull(text, NULL, 10);

	*n = (uint32_t)v;
	return v > 0 && v <= WIRE_MAX_IMAGES ? text + digits : NULL;
}

/* Parses FINGERPRINT or FINGERPRINT:TRAIN:TEST. Returns 1 if `text` has one of these forms. */
static int parse_data_id(struct core_config *c, const char *text)
{
	c->data_id_given = 1;
	c->data_id = strtoull(text, NULL, 16);
	c->data_train = c->data_test = 0;
	if (strspn(text, "0123456789abcdefABCDEF") != 16)
		return 0;
	text += 16;
	if (*text == '\0')
		return 1;
	if (*text != ':')
		return 0;
	text = parse_count(text + 1, ':', &c->data_train);
	return text && parse_count(text + 1, '\0', &c->data_test);
}

static void check_data_id(struct options *o, int *errors)
{
	if (o->data_id && !parse_data_id(&o->core, o->data_id))
		complain(errors,
			"--data-id: \"%.60s\": expected 16 hexadecimal digits, or these and the "
			"numbers of training and test images, as cnn-worker --print-data-id "
			"prints them (0123456789abcdef:60000:10000)",
			o->data_id);
}

static void check_memory_limit(const struct options *o, int *errors)
{
	uint64_t min = (memory_min(o, is_auto(o) ? 0 : o->model.n_params) + (1u << 20) - 1) >> 20;

	if (o->memory_mb && (uint64_t)o->memory_mb < min)
		complain(errors, "--memory-mb: %lld is too little: the server needs at least %llu",
			(long long)o->memory_mb, (unsigned long long)min);
}

static void check_stop(const struct options *o, int *errors)
{
	struct stop_rule rule;

	if (o->stop_at && !stop_rule_parse(o->stop_at, &rule))
		complain(errors, "--stop-at: \"%.40s\": expected accuracy=X, 0 < X <= 1",
			o->stop_at);
}

static void check_keep(const struct options *o, int *errors)
{
	struct keep_rule rule;

	if (o->keep_text && !keep_rule_parse(o->keep_text, &rule))
		complain(errors,
			"--keep: \"%.40s\": expected best, every=N or best,every=N with N of at "
			"most %u",
			o->keep_text, WIRE_MAX_EPOCHS);
}

static void check_metrics(const struct options *o, struct core_config *c, int *errors)
{
	struct metric_names names;

	if (!metric_names_parse(&names, o->metrics ? o->metrics : ""))
		complain(errors,
			"--metrics: \"%.60s\": expected none, or accuracy and up to %d other names "
			"of a-z, 0-9 and _, with commas between them",
			o->metrics, MAX_METRICS);
	else
		metric_names_text(&names, c->metrics);
	if (!names.accuracy && (o->stop_at || o->patience_epochs))
		complain(errors,
			"--metrics: \"%.60s\" has no accuracy, which --stop-at and "
			"--patience-epochs compare",
			o->metrics);
}

/* Returns the number of the GPU of --store, -1 for host, or -2 if `text` is neither. */
static int store_gpu(const char *text)
{
	char *end;

	if (!text || strcmp(text, "host") == 0)
		return -1;
	if (strncmp(text, "cuda:", 5) != 0 || text[5] < '0' || text[5] > '9')
		return -2;
	long number = strtol(text + 5, &end, 10);
	return *end || number > MAX_GPU ? -2 : (int)number;
}

static void check_store(const struct options *o, int *errors)
{
	int gpu = store_gpu(o->store);

	if (gpu == -2)
		complain(errors, "--store: \"%.40s\": expected host or cuda:N, N 0 to %d", o->store,
			MAX_GPU);
	if (gpu >= 0 && o->core.optim.kind == OPTIM_LBFGS)
		complain(errors,
			"--store: %.40s: the line searches of --optimizer lbfgs need the "
			"weights on the host: leave one of them out",
			o->store);
}

/* ---- checks of several values ---------------------------------------------------------------- */

static void check_workers(const struct core_config *c, int *errors)
{
	const struct session_options *s = &c->sessions;

	if (s->replay_window < s->push_window)
		complain(errors, "--replay-window: %u is less than --push-window %u",
			s->replay_window, s->push_window);
	if (s->suspect_ms <= s->heartbeat_ms)
		complain(errors, "--suspect-ms: %u is not more than --heartbeat-ms %u",
			s->suspect_ms, s->heartbeat_ms);
	if (s->dead_ms <= s->suspect_ms)
		complain(errors, "--dead-ms: %u is not more than --suspect-ms %u", s->dead_ms,
			s->suspect_ms);
	if (s->ttl_ms < s->dead_ms)
		complain(errors, "--session-ttl-ms: %u is less than --dead-ms %u", s->ttl_ms,
			s->dead_ms);
	if (c->leases.min_workers > s->max_workers)
		complain(errors, "--min-workers: %u is more than --max-workers %u",
			c->leases.min_workers, s->max_workers);
	if (c->checkpoint.wal && !c->durable)
		complain(errors, "--durability: always needs a --checkpoint-dir");
}

static void check_rate(const struct core_config *c, const struct model *m, int *errors)
{
	if (c->rate.lr * c->optim.weight_decay > 1)
		complain(errors,
			"--weight-decay: %g times --lr %g is more than 1: weights would grow "
			"without end",
			c->optim.weight_decay, c->rate.lr);
	if ((c->schedule.kind != SCHEDULE_CONSTANT || c->schedule.warmup > 0) && m->n_params &&
		c->training.epochs == 0)
		complain(errors, "--schedule, --warmup: a run without --epochs has no known end");
	if (c->training.mode == MODE_EASGD && (c->optim.weight_decay > 0 || c->optim.clip_norm > 0))
		complain(errors, "--weight-decay, --clip-norm: the centre of --mode easgd moves by "
				 "distances, not gradients: leave them out");
}

/* Checks that the model computes the same function in each pass, because L-BFGS compares the
 * results of different passes. */
static void check_lbfgs(const struct model *m, int *errors)
{
	char layer[WORDS_MAX_BYTES + 1];

	if (preprocess_is_random(&m->preprocess))
		complain(errors, "--optimizer: lbfgs compares passes over the same images: leave "
				 "shift and flip out of --model");
	if (m->n_layers == 0 && m->n_trained < m->n_params)
		complain(errors, "--optimizer: lbfgs compares passes that must be equal: leave "
				 "\":running\" out of --model");
	for (size_t i = 0; i < m->n_layers; i++) {
		if (m->layer[i].kind != LAYER_DROPOUT && m->layer[i].kind != LAYER_BATCHNORM)
			continue;
		model_layer_text(m, i, layer);
		complain(errors,
			"--optimizer: lbfgs compares passes that must be equal: leave \"%s\" "
			"out of --model",
			layer);
		return;
	}
}

/* Returns the minimum number of gradients, each from a different worker, that a step or a buffer
 * collects while --min-workers workers are live. Ignores --max-workers, which may be smaller. */
static uint32_t gradients_requested(const struct core_config *c)
{
	uint32_t backup = c->sync.backup_workers, min = c->leases.min_workers;

	if (c->training.mode != MODE_SYNC)
		return c->push.buffer_size;
	if (c->sync.workers)
		return c->sync.workers;
	return min > backup ? min - backup : 1;
}

/* Returns the number of gradients that a robust rule can get in each step or from each buffer. The
 * rule gets at most one gradient of each worker, so it never gets more than --max-workers. */
static uint32_t gradients_of_step(const struct core_config *c)
{
	uint32_t n = gradients_requested(c), max = c->sessions.max_workers;

	return n < max ? n : max;
}

static uint32_t gradients_needed(const struct push_options *p)
{
	return p->aggregate == AGGREGATE_KRUM      ? 2 * p->bad_workers + 3
	       : p->aggregate == AGGREGATE_TRIMMED ? 2 * p->bad_workers + 1
						   : 1;
}

size_t options_keys_needed(const struct core_config *c)
{
	uint32_t min = gradients_needed(&c->push);

	return c->push.aggregate == AGGREGATE_MEAN ? 0 : min < 3 ? 3 : min;
}

/* Returns an error text that names the options which limit the gradients of a step too much for
 * krum or trimmed. */
static const char *explain_too_few(const struct core_config *c)
{
	int krum = c->push.aggregate == AGGREGATE_KRUM;

	if (gradients_requested(c) >= gradients_needed(&c->push))
		return krum ? "--max-workers: --aggregate krum:F needs 2F + 3 gradients of "
			      "different workers in each step (F is 1 if it is left out)"
			    : "--max-workers: --aggregate trimmed:F needs 2F + 1 gradients of "
			      "different workers in each step (F is 1 if it is left out)";
	return krum ? "--aggregate: krum:F needs 2F + 3 gradients in each step (F is 1 if it is "
		      "left out): set --buffer-size, --sync-workers or --min-workers"
		    : "--aggregate: trimmed:F needs 2F + 1 gradients in each step (F is 1 if it is "
		      "left out): set --buffer-size, --sync-workers or --min-workers";
}

/* Returns an error text about options that contradict each other, or NULL. */
static const char *check_mode(const struct core_config *c)
{
	enum mode mode = c->training.mode;
	const struct push_options *p = &c->push;
	int asynchronous = mode == MODE_DOWNPOUR || mode == MODE_SSP;

	if (c->training.epochs == 0 && mode != MODE_DOWNPOUR)
		return "--mode: a run without a data set (--epochs 0) needs --mode downpour";
	if (c->optim.kind == OPTIM_LBFGS && mode != MODE_SANDBLASTER)
		return "--optimizer: lbfgs needs --mode sandblaster";
	if (mode == MODE_EASGD && c->optim.kind != OPTIM_SGD)
		return "--optimizer: --mode easgd uses no optimizer for its centre: leave it out";
	if ((mode == MODE_SYNC || mode == MODE_SANDBLASTER) && (p->n_push > 1 || p->n_fetch > 1))
		return "--n-push, --n-fetch: only modes downpour, ssp and easgd have these options";
	if (c->dc.kind && !asynchronous)
		return "--delay-compensation: only modes downpour and ssp have this option";
	if (c->dc.kind && p->n_fetch % p->n_push != 0)
		return "--delay-compensation: --n-fetch must be a multiple of --n-push, so that "
		       "all gradients of a push are of one version of the weights";
	if (c->dc.kind && p->sum && p->n_push > 1)
		return "--delay-compensation: a sum of several gradients would be compensated too "
		       "much: use --push mean";
	if (p->buffer_size > 1 && !asynchronous)
		return "--buffer-size: only modes downpour and ssp have this option";
	if (p->aggregate != AGGREGATE_MEAN && mode != MODE_SYNC && p->buffer_size < 2)
		return "--aggregate: only mode sync, and modes downpour and ssp with "
		       "--buffer-size K, have this option";
	if (p->aggregate != AGGREGATE_MEAN && gradients_of_step(c) < gradients_needed(p))
		return explain_too_few(c);
	if (p->sum && mode == MODE_SANDBLASTER)
		return "--push: a step of --mode sandblaster is the mean over its images: use "
		       "--push mean";
	if (p->sum && mode == MODE_SYNC && c->rate.scaling > LR_SCALING_NONE)
		return "--lr-scaling: --push sum makes the rate of a sync step N times as large "
		       "already: leave one of them out";
	if (c->lbfgs.armijo >= c->lbfgs.wolfe)
		return "--lbfgs-armijo: must be less than --lbfgs-wolfe";
	return NULL;
}

/* Checks all options except those that check_model and check_data_id check, and prints an error for
 * each violation. Returns the number of errors. `parsed` is the result of opt_parse. */
static int check(const struct opt_program *p, struct options *o, int parsed)
{
	const struct core_config *c = &o->core;
	int errors = 0;

	check_addresses(o, &errors);
	check_files(o, &errors);
	check_keys(o, &errors);
	check_stop(o, &errors);
	check_keep(o, &errors);
	check_metrics(o, &o->core, &errors);
	check_store(o, &errors);
	/* after a parse error, some of the values that these checks compare are missing */
	if (parsed == PS_OK) {
		const char *mode = check_mode(c);

		if (mode && o->model.n_params)
			complain(&errors, "%s", mode);
		if (c->optim.kind == OPTIM_LBFGS && o->model.n_params)
			check_lbfgs(&o->model, &errors);
		/* In release 0.1.0, the option --momentum set beta1 of adam. If the server accepted
		 * --momentum with adam now, the run would use another beta1 than with release
		 * 0.1.0. */
		if (opt_given(p, "momentum") && c->optim.kind == OPTIM_ADAM)
			complain(
				&errors, "--momentum: was renamed to --beta1 for --optimizer adam");
		if (is_auto(o) && c->training.epochs == 0)
			complain(&errors, "--input: auto needs a data set: leave out --epochs 0");
		check_rate(c, &o->model, &errors);
		check_workers(c, &errors);
		check_memory_limit(o, &errors);
	}
	return errors;
}

/* ---- values that follow from the options ----------------------------------------------------- */

/* Returns the value of --lr-scaling auto, which follows measurements (docs/modes.md). For a step of
 * n gradients, sqrt(n) times the rate of one gradient is best. For a gradient that is tau versions
 * old, 1 / sqrt(1 + tau) times the rate is best with an adaptive optimizer, and 1 / (1 + tau) times
 * the rate with SGD and momentum. */
static enum lr_scaling auto_scaling(const struct core_config *c)
{
	enum optim_kind optim = c->optim.kind;

	switch (c->training.mode) {
	/* with --push sum, the gradient of a step is a sum, which is already n times as large as
	 * the mean */
	case MODE_SYNC:
		return c->push.sum ? LR_SCALING_NONE : LR_SCALING_SQRT;
	case MODE_DOWNPOUR:
	case MODE_SSP:
		return optim == OPTIM_ADAGRAD || optim == OPTIM_RMSPROP || optim == OPTIM_ADAM
			       ? LR_SCALING_SQRT
			       : LR_SCALING_LINEAR;
	default:
		return LR_SCALING_NONE;
	}
}

/* Makes the path of the Unix socket absolute, because a worker may run in another directory. If the
 * absolute path is too long for a socket, the path stays as it is. */
static void make_lane_absolute(struct options *o)
{
	char here[PATH_MAX], path[PATH_MAX + sizeof(o->lane_path)];

	if (!o->lane_path[0] || o->lane_path[0] == '/' || !getcwd(here, sizeof(here)))
		return;
	int n = snprintf(path, sizeof(path), "%s/%s", here, o->lane_path);
	if (n > 0 && (size_t)n < sizeof(o->lane_path))
		memcpy(o->lane_path, path, (size_t)n + 1);
}

/* Sets the path of the Unix socket. Sets it to "" with --lane tcp, if there is no directory for the
 * socket, or if the path is too long. */
static void choose_lane(struct options *o)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	struct endpoint at;
	int n = 0;

	o->lane_path[0] = '\0';
	o->lane_fd = -1;
	if (o->lane == LANE_TCP)
		return;
	if (o->lane_socket)
		n = snprintf(o->lane_path, sizeof(o->lane_path), "%s", o->lane_socket);
	else if (o->checkpoint_dir)
		n = snprintf(o->lane_path, sizeof(o->lane_path), "%s/lane", o->checkpoint_dir);
	else if (runtime && runtime[0] == '/' && endpoint_parse(o->bind, &at) == 0)
		n = snprintf(
			o->lane_path, sizeof(o->lane_path), "%s/cnn-ps-%u", runtime, at.number);
	if (n < 0 || (size_t)n >= sizeof(o->lane_path))
		o->lane_path[0] = '\0';
	make_lane_absolute(o);
}

static void fill_core(struct core_config *c, const struct options *o)
{
	fill_model(c, &o->model);
	if (c->rate.scaling == LR_SCALING_AUTO)
		c->rate.scaling = auto_scaling(c);
	if (c->training.mode == MODE_EASGD)
		/* no warm start: no update is extreme, because each update combines many batches */
		c->leases.warm_start_updates = 0;
	if (c->leases.max_batches < c->push.n_push)
		/* a lease must contain all batches of a push */
		c->leases.max_batches = c->push.n_push;
}

/* Returns the number of CPUs on which this process may run. */
static size_t count_cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : (size_t)CPU_COUNT(&set);
}

/* Returns the number of threads for --threads. */
static size_t choose_threads(const struct options *o)
{
	if (o->threads)
		return (size_t)o->threads;
	size_t half = o->n_cpus / 2;

	if (half <= FEW_THREADS)
		return o->n_cpus < FEW_THREADS ? o->n_cpus : FEW_THREADS;
	return half < MANY_THREADS ? half : MANY_THREADS;
}

static void fill(struct options *o)
{
	fill_core(&o->core, o);
	o->auto_input = is_auto(o);
	if (o->stop_at)
		(void)stop_rule_parse(o->stop_at, &o->stop);
	o->stop.patience = (uint32_t)o->patience_epochs;
	if (o->keep_text)
		(void)keep_rule_parse(o->keep_text, &o->keep);
	o->memory_bytes = (uint64_t)o->memory_mb << 20;
	o->wal_bytes = (uint64_t)o->wal_mb << 20;
	o->n_cpus = count_cpus();
	o->n_threads = choose_threads(o);
	o->store_gpu = store_gpu(o->store);
	choose_lane(o);
	o->sides = (uint32_t)o->connections - 1;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* clang-format off */
#define TEXT(n, to, d, a, ...) \
	{.name = n, .type = OPT_TEXT, .dest = &o->to, .def = d, .arg = a, .help = __VA_ARGS__}
#define INT(n, to, d, min_, max_, a, ...) \
	{.name = n, .type = OPT_INT, .dest = &o->to, .def = d, .min = min_, .max = max_, .arg = a, \
	 .help = __VA_ARGS__}
#define ENUM(n, to, d, v, a, ...) \
	{.name = n, .type = OPT_ENUM, .dest = &o->to, .def = d, .values = v, .arg = a, \
	 .help = __VA_ARGS__}
#define FLAG(n, to, ...) \
	{.name = n, .type = OPT_FLAG, .dest = &o->to, .def = "0", .help = __VA_ARGS__}
/* clang-format on */

struct table {
	struct opt row[MAX_ROWS];
	size_t n;
};

static void add_rows(struct table *t, const struct opt *rows, size_t n)
{
	memcpy(t->row + t->n, rows, n * sizeof(*rows));
	t->n += n;
}

/* Makes the option of `row` the number in a value NAME:NUMBER of option `o`. */
static void add_suffix(struct opt *o, const struct config_row *row, struct core_config *c)
{
	o->number = (void *)((char *)c + row->offset);
	o->usual_number = (uint32_t)strtoul(row->def, NULL, 10);
	o->max_number = (uint32_t)row->max;
}

static void add_core_rows(struct table *t, struct core_config *c)
{
	static const enum opt_type types[] = {[CONFIG_U32] = OPT_U32,
		[CONFIG_U64] = OPT_U64,
		[CONFIG_REAL] = OPT_REAL,
		[CONFIG_ENUM] = OPT_ENUM,
		[CONFIG_FLAG] = OPT_FLAG};
	const char *group = NULL;

	for (size_t i = 0; i < config_n_rows; i++) {
		const struct config_row *row = &config_rows[i];

		if (row->type == CONFIG_GROUP) {
			group = row->help;
			continue;
		}
		if (row->is_suffix) {
			add_suffix(&t->row[t->n - 1], row, c);
			continue;
		}
		t->row[t->n++] = (struct opt){.name = row->name,
			.type = types[row->type],
			.dest = (char *)c + row->offset,
			.def = row->def,
			.min = row->min,
			.max = row->max,
			.values = row->values,
			.first = (int)row->min,
			.arg = row->arg,
			.help = row->help,
			.needs = row->needs,
			.was = row->was,
			.group = group};
		group = NULL;
	}
}

static void add_shell_rows(struct table *t, struct options *o)
{
	const struct opt rows[] = {
		TEXT("model", model_text, "seed:32", "MODEL",
			"network to train (docs/models.md): a name or a list of layers. The "
			"names are seed:F (F is a number of filters), lenet5, cnn99, cifar, "
			"resnet8 and alexnet. A list of layers is a text such as \"conv:32:3 "
			"relu pool:2 fc:10\". The value vector:N stands for N parameters without "
			"a network, for programs of your own that compute the gradients",
			.group = "Model and data"),
		TEXT("input", input, NULL, "CxHxW",
			"shape of an image: the numbers of its channels (C), rows (H) and "
			"columns (W), such as 3x32x32. With auto, the server takes the shape and "
			"the number of classes from the data set of the first worker",
			.unset = "the shape that --model sets, otherwise 1x28x28"),
		{.name = "classes",
			.type = OPT_INT,
			.dest = &o->classes,
			.min = 2,
			.max = (double)MODEL_MAX_CLASSES,
			.arg = "N",
			.help = "number of classes of the images, whose labels are 0 to N - 1. "
				"If --model is a name, the last layer of the network gets N "
				"units; if --model lists layers, the last layer must have N units",
			.unset = "the number of the data set with --input auto, that of units of "
				 "the last layer if --model lists layers, otherwise 10"},
		TEXT("init", init, NULL, "FILE",
			"file with the initial weights of a new run, in the .safetensors format. "
			"The file must have the tensors of --model; for vector:N, the file may "
			"have any float32 tensors with N values in total. A server that "
			"continues a run from a checkpoint does not use the file",
			.unset = "random weights"),
		TEXT("data-id", data_id, NULL, "FINGERPRINT[:TRAIN:TEST]",
			"data set of the run: its fingerprint (a hash of its files), its number "
			"of training images (TRAIN) and its number of test images (TEST), as "
			"cnn-worker --print-data-id prints them. The server refuses workers "
			"with another data set. Without TRAIN and TEST, the server compares "
			"only the fingerprint",
			.unset = "the data set of the first worker whose push is accepted"),
		TEXT("metrics", metrics, "accuracy", "NAMES",
			"names of the metrics that the workers evaluate in addition to the loss, "
			"separated by commas; none means only the loss. The program cnn-worker "
			"evaluates the accuracy, so any other value needs a worker program of "
			"your own (docs/python.md)"),
		TEXT("bind", bind, "tcp://127.0.0.1:5555", "URL",
			"address at which the server accepts connections of workers and of "
			"cnn-ctl; if the port is 0, the server chooses a free port and logs its "
			"number",
			.group = "Network and keys"),
		TEXT("key", key, NULL, "FILE",
			"file with the secret key of the server, made by cnn-ctl keygen. With a "
			"key, the server encrypts its connections and accepts only clients whose "
			"public key is in the file --authorized-keys",
			.unset = "no encryption, and --bind must be a loopback address unless "
				 "--insecure is given"),
		TEXT("authorized-keys", authorized_keys, NULL, "FILE",
			"file with the public keys of the clients that the server accepts; each "
			"key has a role, which determines what the client may do "
			"(docs/security.md). At the signal SIGHUP, the server reads the file "
			"again. The option needs --key",
			.unset = "\"authorized_keys\" in the directory of the file --key",
			.was = "allow"),
		FLAG("insecure", insecure,
			"permit a --bind address that is not loopback although the server has no "
			"--key; anyone who can connect to this address can then train, stop and "
			"copy the run"),
		INT("connections", connections, "1", 1, WIRE_MAX_CONNECTIONS, "N",
			"maximum number of connections over which each worker may send and "
			"receive large tensors (docs/connections.md); a worker uses as many as "
			"its own --connections asks for, but at most N"),
		TEXT("http", http, NULL, "[HOST:]PORT",
			"address at which the server offers web pages: a page about the run, "
			"/metrics, /status, /history, /healthz and /livez; without HOST, the "
			"host is 127.0.0.1",
			.unset = "no HTTP server"),
		TEXT("http-token", http_token, NULL, "FILE",
			"file with a token of at least 16 characters. An HTTP client must send "
			"this token to get any page except /healthz and /livez. With a token, "
			"the address of --http need not be a loopback address",
			.unset = "no token, and --http must be a loopback address"),
		TEXT("stop-at", stop_at, NULL, "accuracy=X",
			"accuracy that ends the run early, as a fraction X above 0 and at most "
			"1. After the first epoch with an accuracy of X or more on the test "
			"images (with --validate: on the validation images), the server writes a "
			"last checkpoint if it has --checkpoint-dir, ends the workers, and "
			"exits. From this checkpoint, a server without --stop-at or with a "
			"higher X can continue the run",
			.unset = "the run trains all epochs", .needs = "epochs!=0",
			.group = "Early end"),
		INT("patience-epochs", patience_epochs, "0", 0, WIRE_MAX_EPOCHS, "N",
			"number of epochs in a row without a new best accuracy after which the "
			"run ends early, in the same way as with --stop-at; 0 means that the run "
			"does not end for this reason",
			.needs = "epochs!=0"),
		TEXT("checkpoint-dir", checkpoint_dir, NULL, "DIR",
			"directory to which the server writes its checkpoints; if the directory "
			"already has checkpoints of a run, the server continues this run",
			.unset = "no checkpoints, so that a crash loses the run",
			.group = "Checkpoints and resources"),
		TEXT("keep", keep_text, NULL, "RULES",
			"files with weights that the server writes beside the checkpoints in "
			"--checkpoint-dir: \"best\" writes best.safetensors with the weights of "
			"the best epoch so far; \"every=N\" writes a file such as "
			"epoch-000010.safetensors after every N-th epoch; \"best,every=N\" does "
			"both. The best epoch is the one with the highest accuracy or, if "
			"--metrics has no accuracy, the smallest loss in the evaluation",
			.unset = "only the checkpoints", .needs = "checkpoint-dir epochs!=0"),
		ENUM("sandbox", sandbox, "auto", "auto|require|off", "WHEN",
			"whether the server gives up rights that it does not need, such as the "
			"right to start programs (docs/operations.md): auto gives up as many of "
			"these rights as the system permits; require gives up all of them, and "
			"the server exits if the system does not permit that; off gives up none"),
		INT("threads", threads, "0", 0, MAX_THREADS, "N",
			"number of threads, including the main thread, that compute the updates "
			"of a large model and check its gradients. 0 means half of the CPUs that "
			"the server may use, but at least 4 and at most 8; if the server may use "
			"fewer than 4 CPUs, 0 means all of them"),
		TEXT("store", store, "host", "WHERE",
			"where the server keeps the weights and the state of the optimizer, and "
			"computes the updates (docs/store.md): host means the main memory and "
			"the CPU; cuda:N means GPU number N of this machine. The optimizer lbfgs "
			"needs host"),
		INT("memory-mb", memory_mb, "0", 0, 1 << 24, "MIB",
			"maximum memory of the server, in MiB, not counting the shared memory of "
			"--lane. If the server uses more, it closes all connections to free "
			"memory, and the workers connect again. 0 means 80 % of the memory of "
			"the machine or container"),
		ENUM("lane", lane, "auto", LANE_NAMES, "LANE",
			"whether the server offers shared memory to the workers on its host, so "
			"that weights and gradients do not have to travel over a connection "
			"(docs/lane.md): auto offers shared memory if possible; tcp does not "
			"offer it; shm offers it, and the server exits if that is not possible",
			.group = "Shared memory"),
		TEXT("lane-socket", lane_socket, NULL, "FILE",
			"path of the Unix socket through which workers on this host get the "
			"shared memory; if the path is that of a socket on which no process "
			"listens, the server replaces this socket",
			.unset = "\"lane\" in --checkpoint-dir or, without --checkpoint-dir, "
				 "\"cnn-ps-PORT\" in $XDG_RUNTIME_DIR",
			.needs = "lane=auto|shm"),
	};

	add_rows(t, rows, sizeof(rows) / sizeof(rows[0]));
}

/* Adds the rows that must follow the core's rows: --wal-mb needs --durability, which is a row of
 * the core. */
static void add_last_rows(struct table *t, struct options *o)
{
	const struct opt rows[] = {
		INT("wal-mb", wal_mb, "128", 1, 1 << 20, "MIB",
			"size of a file of the write-ahead log, in MiB, after which the server "
			"writes a checkpoint and begins another file",
			.was = "journal-mb", .needs = "durability=always"),
		ENUM("log-level", log_level, "info", LOG_LEVEL_NAMES, "LEVEL",
			"least severe level of events that the server logs on stderr; from the "
			"most to the least severe, the levels are error, warn, info and debug. "
			"The command cnn-ctl log-level changes the level of a running server",
			.group = "Log"),
		ENUM("log-format", log_format, "text", LOG_FORMAT_NAMES, "FORMAT",
			"format of a line of the log: text is logfmt (fields of the form "
			"KEY=VALUE); json is a JSON object"),
		FLAG("check-config", check_config,
			"check the options and the key files, print the values of the options, "
			"and exit without starting a run"),
	};

	add_rows(t, rows, sizeof(rows) / sizeof(rows[0]));
}

/* Sets each text option that has no default and was given as "" to NULL. */
static void unset_empty_texts(struct table *t)
{
	for (size_t i = 0; i < t->n; i++) {
		const char **text = t->row[i].dest;

		if (t->row[i].type == OPT_TEXT && !t->row[i].def && *text && !**text)
			*text = NULL;
	}
}

int options_parse(struct options *o, int argc, char **argv)
{
	struct table table = {0};
	const struct opt_program program = {.name = PROGRAM,
		.usage = "[OPTION...]",
		.about = "Train a convolutional network with the gradients that workers push.",
		.opts = table.row,
		.max_args = 0};
	const char *none;
	int n_args, errors = 0;

	memset(o, 0, sizeof(*o));
	add_shell_rows(&table, o);
	add_core_rows(&table, &o->core);
	add_last_rows(&table, o);
	int rc = opt_parse(&program, argc, argv, &none, &n_args);

	if (rc == OPT_EXIT)
		return OPT_EXIT;
	check_model(o, &o->model, &errors);
	check_data_id(o, &errors);
	/* this call follows the checks of --input and --data-id, for which "" is an error */
	unset_empty_texts(&table);
	o->core.durable = o->checkpoint_dir != NULL;
	errors += check(&program, o, rc);
	if (errors > 0 || rc != OPT_RUN)
		return PS_EUSAGE;
	fill(o);
	o->norm_ratio_given = opt_given(&program, "norm-ratio");
	o->usual_rate = opt_default(&program, "lr");
	o->usual_local_rate = opt_default(&program, "local-lr");
	log_set_format(o->log_format);
	log_set_level(o->check_config ? LOG_DEBUG : o->log_level);
	opt_check(&program, NULL);
	opt_dump(&program);
	return OPT_RUN;
}
