/*
 * options_check.c - the rules of options that need more than one value, or the machine.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/endpoint.h"
#include "server/net/address.h"
#include "server/config/options_impl.h"

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

static int is_bind(const char *text, struct endpoint *e)
{
	return text && !endpoint_parse(text, e);
}

/* HOST:PORT, or a PORT of this machine alone. */
static int is_http(const char *text, struct endpoint *e)
{
	return text && (!endpoint_parse_address(text, e) || !endpoint_parse_port(text, e)) &&
	       !strchr(text, '*');
}

static void check_addresses(const struct raw *r, int *errors)
{
	struct endpoint e;

	if (r->bind && !is_bind(r->bind, &e))
		complain(errors, "--bind: \"%.100s\": expected tcp://HOST:PORT, PORT 0 to 65535",
			r->bind);
	if (r->http && r->http[0] && !is_http(r->http, &e))
		complain(errors,
			"--http: \"%.100s\": expected HOST:PORT or PORT, 0 to 65535, or \"\"",
			r->http);
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

/* Keys protect --bind alone: status and metrics are open to everybody who reaches --http. */
static void check_http_reach(const struct raw *r, int *errors)
{
	struct endpoint e;

	if (!r->insecure && is_http(r->http, &e))
		check_reach("--http", r->http, e.host,
			"anybody there may read status and metrics, with or without --key: give "
			"127.0.0.1:PORT, or --insecure",
			errors);
}

static int http_is_open(const struct raw *r)
{
	struct endpoint e;

	return is_http(r->http, &e) && address_reach(e.host) == ADDRESS_OPEN;
}

static void check_keys(const struct raw *r, int *errors)
{
	struct endpoint e;
	int key = r->key && r->key[0];

	if (key && r->insecure && !http_is_open(r))
		complain(errors, "--key, --insecure: only one of them, unless --http is open to "
				 "the network");
	if (!key && r->authorized_keys && r->authorized_keys[0])
		complain(errors, "--authorized-keys: needs --key");
	if (!key && !r->insecure && is_bind(r->bind, &e))
		check_reach("--bind", r->bind, e.host,
			"give --key FILE (cnn-ctl keygen DIR makes one), or --insecure", errors);
	check_http_reach(r, errors);
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

static void check_rate(const struct raw *r, const struct model *m, int *errors)
{
	if (options_rate(r) * r->weight_decay > 1)
		complain(errors,
			"--weight-decay: %g times --lr %g is more than 1: weights would grow "
			"without end",
			r->weight_decay, options_rate(r));
	if ((r->schedule != SCHEDULE_CONSTANT || r->warmup > 0) && m->n_params &&
		options_epochs(r, m) == 0)
		complain(errors, "--schedule, --warmup: a run without --epochs has no known end");
}

static void check_together(const struct raw *r, int *errors)
{
	if (r->modes.mode + 1 == MODE_EASGD && (r->weight_decay > 0 || r->clip_norm > 0))
		complain(errors, "--weight-decay, --clip-norm: the centre of --mode easgd moves by "
				 "distances, not gradients: leave them out");
	if (r->replay_window < r->push_window)
		complain(errors, "--replay-window: %lld is less than --push-window %lld",
			(long long)r->replay_window, (long long)r->push_window);
	if (r->suspect_ms <= r->beat_ms)
		complain(errors, "--suspect-ms: %lld is not more than --heartbeat-ms %lld",
			(long long)r->suspect_ms, (long long)r->beat_ms);
	if (r->durability && !(r->checkpoint_dir && r->checkpoint_dir[0]))
		complain(errors, "--durability: always needs a --checkpoint-dir");
	if (r->dead_ms <= r->suspect_ms)
		complain(errors, "--dead-ms: %lld is not more than --suspect-ms %lld",
			(long long)r->dead_ms, (long long)r->suspect_ms);
	if (r->forget_ms < r->dead_ms)
		complain(errors, "--session-ttl-ms: %lld is less than --dead-ms %lld",
			(long long)r->forget_ms, (long long)r->dead_ms);
	if (r->min_workers > r->max_workers)
		complain(errors, "--min-workers: %lld is more than --max-workers %lld",
			(long long)r->min_workers, (long long)r->max_workers);
}

static void check_data_id(const struct raw *r, int *errors)
{
	const char *text = r->data_id;

	if (text && (strlen(text) != 16 || strspn(text, "0123456789abcdefABCDEF") != 16))
		complain(errors,
			"--data-id: \"%.40s\": expected 16 hexadecimal digits, as cnn-worker "
			"--print-data-id prints them",
			text);
}

int options_judge(const struct raw *r, struct model *m, int parsed, int momentum_given)
{
	int errors = 0;

	check_model(r, m, &errors);
	check_addresses(r, &errors);
	check_files(r, &errors);
	check_keys(r, &errors);
	check_data_id(r, &errors);
	if (parsed == PS_OK) { /* else some of these have no value of their own */
		const char *modes = mode_check(&r->modes, r->optimizer, options_epochs(r, m));

		if (modes && m->n_params)
			complain(&errors, "%s", modes);
		/* it was beta1 until version 0.1.0: a run must not quietly train with another one */
		if (momentum_given && r->optimizer == OPTIM_ADAM)
			complain(
				&errors, "--momentum: was renamed to --beta1 for --optimizer adam");
		check_rate(r, m, &errors);
		check_together(r, &errors);
	}
	return errors;
}
