/*
 * ledger_worker.c - a worker that pushes the ledger gradient (docs/glossary.md): the final weights
 * show for each of its pushes whether it was applied.
 *
 *   ledger_worker SERVER INDEX PUSHES [PACE [PULL_EVERY [KEY-FILE]]]
 *
 * With CNN_WIRE=bf16 in the environment, it is a worker with --wire bf16, and with
 * CNN_CONNECTIONS=N one with --connections N.
 *
 * On a vector:N model with plain SGD and rate 1, the gradient of push n of worker INDEX is 1 in
 * coordinate INDEX * PUSHES + n and 0 elsewhere (n = 0, 1, ...). Afterwards every coordinate of the
 * weights must be exactly -1: 0 means a lost push, and -2 means a push that was applied twice. A
 * worker that is started again with the same INDEX reads its own coordinates to find the push at
 * which its predecessor ended. The new process finds the right push: before the server sends
 * WELCOME to it, the server fences the old process, and has a checkpoint with all decided pushes of
 * the old process.
 *
 * The worker waits for PACE milliseconds between two pushes. After the signal SIGURG the worker
 * pushes without pauses. The worker pulls after every PULL_EVERY pushes. The worker prints `pushed
 * K acked A` while it runs, and `done pushed=N acked=A reconnects=R replayed=P` when all its pushes
 * are on the server's disk, or `stopped ...` if it fails. Exit status: 0; 2 after wrong usage;
 * after any other failure, with one line, the status of cnn-worker for the same error, or 1.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "common/err.h"
#include "common/log.h"
#include "tests/support/client_calls.h"
#include "worker/client/cnnps.h"

#define PULL_EVERY 8      /* default: number of pushes between two pulls */
#define SAY_EVERY  10     /* number of pushes between two lines of progress */
#define FLUSH_MS   180000 /* maximum time in ms until the last pushes are durable */

static volatile sig_atomic_t hurried;

struct ledger {
	struct cnnps *c;
	float *w, *g; /* the weights and the gradient, n values each */
	size_t n;
	size_t first, pushes; /* the coordinates of this worker: [first, first + pushes) */
	size_t pace_ms, pull_every;
	uint64_t version;
};

static int parse_number(const char *text, size_t *out)
{
	char *end;

	errno = 0;
	unsigned long long v = strtoull(text, &end, 10);
	if (errno || end == text || *end || v > 1u << 28)
		return -1;
	*out = (size_t)v;
	return 0;
}

/* Returns the number of this worker's pushes that the weights contain. Earlier processes with the
 * same INDEX have made these pushes. The counted pushes are the first pushes of the worker, without
 * a gap. */
static size_t done_before(const struct ledger *l)
{
	size_t k = 0;

	while (k < l->pushes && l->w[l->first + k] < 0)
		k++;
	return k;
}

static void hurry(int number)
{
	(void)number;
	hurried = 1;
}

static void rest(const struct ledger *l)
{
	const struct timespec pace = {
		(time_t)(l->pace_ms / 1000), (long)(l->pace_ms % 1000) * 1000000};

	if (l->pace_ms && !hurried)
		nanosleep(&pace, NULL);
}

static int exit_of(int rc)
{
	int code = err_exit_code(rc);

	return code ? code : 1;
}

/* Print how many pushes of this INDEX were made, and how many were acknowledged. The two numbers
 * include the pushes of earlier processes. */
static void print_pushed(const struct ledger *l, size_t pushed)
{
	struct cnnps_stats s;

	s = client_stats(l->c);
	printf("pushed %zu acked %llu\n", pushed,
		(unsigned long long)(pushed - (s.pushed - s.acked)));
}

static int push_all(struct ledger *l)
{
	int rc = client_pull_all(l->c, l->w, &l->version);

	if (rc)
		return rc;
	size_t k = done_before(l);
	printf("resumed %zu\n", k);
	for (; k < l->pushes; k++) {
		if (k % l->pull_every == 0 && (rc = client_pull_all(l->c, l->w, &l->version)))
			return rc;
		l->g[l->first + k] = 1;
		if ((rc = client_push_all(l->c, l->g, l->version)))
			return rc;
		l->g[l->first + k] = 0;
		if ((k + 1) % SAY_EVERY == 0)
			print_pushed(l, k + 1);
		rest(l);
	}
	return cnnps_flush(l->c, 1, FLUSH_MS);
}

static int run_ledger(struct ledger *l, const struct cnnps_info *info)
{
	l->n = (size_t)info->n_params;
	if (l->first + l->pushes > l->n) {
		fprintf(stderr, "ledger_worker: the model has %zu values, %zu are needed\n", l->n,
			l->first + l->pushes);
		return 2;
	}
	l->w = calloc(l->n, sizeof(*l->w));
	l->g = calloc(l->n, sizeof(*l->g));
	if (!l->w || !l->g) {
		fprintf(stderr, "ledger_worker: no memory for %zu values\n", l->n);
		return 1;
	}
	int rc = push_all(l);
	struct cnnps_stats s;
	s = client_stats(l->c);
	printf("%s pushed=%llu acked=%llu reconnects=%llu replayed=%llu\n", rc ? "stopped" : "done",
		(unsigned long long)s.pushed, (unsigned long long)s.acked,
		(unsigned long long)s.reconnects, (unsigned long long)s.replayed);
	if (rc || s.rejected || s.superseded) {
		fprintf(stderr, "ledger_worker: %s, %llu pushes rejected\n", cnnps_strerror(rc),
			(unsigned long long)(s.rejected + s.superseded));
		return exit_of(rc);
	}
	return 0;
}

int main(int argc, char **argv)
{
	size_t index, pushes, pace = 0, pull_every = PULL_EVERY;

	if (argc < 4 || argc > 7 || parse_number(argv[2], &index) ||
		parse_number(argv[3], &pushes) || (argc > 4 && parse_number(argv[4], &pace)) ||
		(argc > 5 && (parse_number(argv[5], &pull_every) || !pull_every))) {
		fprintf(stderr, "usage: ledger_worker SERVER INDEX PUSHES [PACE [PULL_EVERY "
				"[KEY-FILE]]]\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	log_set_level(LOG_INFO);
	const struct sigaction on_hurry = {.sa_handler = hurry, .sa_flags = SA_RESTART};
	sigaction(SIGURG, &on_hurry, NULL);
	char name[32];
	snprintf(name, sizeof(name), "ledger-%zu", index);
	const char *wire = getenv("CNN_WIRE"), *connections = getenv("CNN_CONNECTIONS");
	struct cnnps_options o = {.size = sizeof(o),
		.wire = wire && !strcmp(wire, "bf16") ? CNNPS_WIRE_BF16 : CNNPS_WIRE_FP32,
		.connections = connections ? strtoul(connections, NULL, 10) : 0,
		.server = argv[1],
		.key = argc > 6 ? argv[6] : NULL,
		.name = name,
		.device = "ledger"};
	struct ledger l = {.first = index * pushes,
		.pushes = pushes,
		.pace_ms = pace,
		.pull_every = pull_every};
	int rc = cnnps_connect(&l.c, &o);
	if (rc) {
		fprintf(stderr, "ledger_worker: %s\n", cnnps_error(l.c));
		return exit_of(rc);
	}
	int code = run_ledger(&l, cnnps_info(l.c));
	cnnps_close(&l.c);
	free(l.w);
	free(l.g);
	return code;
}
