/*
 * main.c - cnn-worker: data set, connection, trainer, and the exit code.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/keys.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/zepoll.h"
#include "worker/client/cnnps.h"
#include "worker/data/dataset.h"
#include "worker/options.h"
#include "worker/trainer.h"
#include "worker/watchdog.h"

/* The worker gives up after this number of sessions in a row that the server has ended as fenced
 * (PS_EFENCED), and in which it has acknowledged no push */
#define MAX_FENCED   10
#define EXIT_STOPPED 12 /* exit status if the worker ends before the training is done */

/* Time of the signal that stops this worker, by clock_ms, or 0 before the signal. The variable is
 * global, because a signal handler sets it, and a handler receives only the number of its
 * signal. */
static atomic_uint_least64_t stopped_ms;
/* 1: a session is open, and the worker must give its work back before it ends. 0: a signal ends the
 * process at once */
static atomic_int has_session;
static uint64_t grace_ms;

static void note_stop_signal(int number)
{
	uint64_t none = 0;

	(void)number;
	if (!atomic_load(&has_session))
		_exit(EXIT_STOPPED);
	atomic_compare_exchange_strong(&stopped_ms, &none, clock_ms());
}

/* Returns 1 after a stop signal. When the grace time is over, the function ends the process, and
 * the server then gives the unfinished batches to other workers. The threads of libcnnps call this
 * function ten times a second, even while the trainer computes. */
static int is_stopped(void *arg)
{
	uint64_t since = atomic_load(&stopped_ms);

	(void)arg;
	if (since && clock_ms() - since >= grace_ms) {
		log_warn("worker", "stopped", "reason=\"--grace-ms %llu is over\"",
			(unsigned long long)grace_ms);
		_exit(EXIT_STOPPED);
	}
	return since != 0;
}

/* Installs the signal handlers. SIGTERM, SIGINT and SIGUSR1 (Slurm's warning) end the worker after
 * its current batch, or at once if it has no session. A second SIGTERM, or a second SIGINT, kills
 * the worker at once. docs/operations.md has a table of all signals. */
static void catch_signals(void)
{
	struct sigaction a;

	memset(&a, 0, sizeof(a));
	a.sa_handler = note_stop_signal;
	a.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &a, NULL);
	a.sa_flags = (int)SA_RESETHAND | SA_RESTART;
	sigaction(SIGTERM, &a, NULL);
	sigaction(SIGINT, &a, NULL);
	signal(SIGUSR2, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
}

/* Logs why the worker waits for the server, and removes the progress bar, because its images/s are
 * out of date. The trainer draws the bar again at the next batch. */
static void report_wait(void *arg, const char *line)
{
	(void)arg;
	log_progress(NULL);
	log_info("net", "waiting", "reason=\"%s\"", line);
}

/* Returns the options of libcnnps that correspond to the options of the program. */
static struct cnnps_options connection(
	const struct worker_options *o, const struct data_id *d, const char *device)
{
	return (struct cnnps_options){.size = sizeof(struct cnnps_options),
		.server = o->server,
		.key = o->key,
		.server_key = o->server_key,
		.name = o->name,
		.device = device,
		.data = {.n_train = d->n_train,
			.n_test = d->n_test,
			.rows = d->rows,
			.cols = d->cols,
			.classes = d->classes,
			.xxh3 = d->xxh3,
			.channels = d->channels},
		.connect_timeout_ms = (uint32_t)o->connect_timeout_ms,
		.disconnect_timeout_ms = (uint32_t)o->disconnect_timeout_ms,
		.batch_timeout_ms = (uint32_t)o->batch_timeout_ms,
		.replay_bytes = (uint64_t)o->replay_mb << 20,
		.lane = (enum cnnps_lane)o->lane,
		.wire = (enum cnnps_wire)o->wire,
		.connections = (uint32_t)o->connections,
		.validates = 1,
		.stop = is_stopped,
		.report = report_wait};
}

static void log_done(const struct cnnps *c, const struct trainer_work *w)
{
	struct cnnps_stats s = {.size = sizeof(s)};

	(void)cnnps_stats(c, &s);
	log_info("worker", "done",
		"images=%llu batches=%llu evaluated=%llu compute_s=%.2f rejected=%llu "
		"superseded=%llu reconnects=%llu replayed=%llu",
		(unsigned long long)w->images, (unsigned long long)w->batches,
		(unsigned long long)w->evaluated, w->seconds, (unsigned long long)s.rejected,
		(unsigned long long)s.superseded, (unsigned long long)s.reconnects,
		(unsigned long long)s.replayed);
}

/* Connects, trains and closes the session. Sets *acked to the number of pushes that the server has
 * acknowledged in this session. */
static int run_session(struct cnnps_options *o, const struct trainer_config *t, struct data *d,
	uint64_t *acked, struct err *e)
{
	struct trainer_work work = {0};
	struct cnnps_stats s = {.size = sizeof(s)};
	struct cnnps *c;
	int rc = cnnps_connect(&c, o);

	*acked = 0;
	if (rc) {
		err_set(e, rc, "%s", cnnps_error(c));
		cnnps_close(&c);
		return rc;
	}
	log_info("worker", "connected", "server=%s worker=%u incarnation=%u", o->server,
		cnnps_info(c)->worker, cnnps_info(c)->incarnation);
	rc = data_hold_back(d, cnnps_info(c)->validate, e);
	if (!rc)
		rc = trainer_run(c, t, &work, e);
	log_done(c, &work);
	(void)cnnps_stats(c, &s);
	*acked = s.acked;
	cnnps_close(&c);
	return rc;
}

/* Runs sessions one after the other. If the server has ended a session as fenced, because it
 * considered the worker dead, the worker connects again as a new worker. A worker with --name must
 * exit instead, because another worker with the same name may have replaced it. */
static int run_sessions(
	struct cnnps_options *o, const struct trainer_config *t, struct data *d, struct err *e)
{
	int named = o->name[0] != '\0', fruitless = 0, rc;
	uint64_t acked;

	while ((rc = run_session(o, t, d, &acked, e)) == PS_EFENCED && !named) {
		fruitless = acked ? 0 : fruitless + 1;
		if (fruitless == MAX_FENCED || is_stopped(NULL))
			break;
		log_warn("worker", "fenced", "reason=\"%s\" action=\"connect anew\"", e->text);
	}
	/* report a stop if the signal came while the session ended */
	return rc == PS_EFENCED && !named && is_stopped(NULL) ? PS_ESHUTDOWN : rc;
}

static int load_data(const struct worker_options *o, struct data *d, struct err *e)
{
	return o->data_mb ? data_load_within(d, o->data, (uint64_t)o->data_mb << 20, e)
			  : data_load(d, o->data, e);
}

static int run_worker(const struct worker_options *o, struct data *d, struct err *e)
{
	struct trainer_config t = {.data = d,
		.device = o->device,
		.threads = (int)o->threads,
		.precision = o->precision,
		.kernels = o->kernels,
		.memory = o->memory_mb ? (uint64_t)o->memory_mb << 20 : mem_of_machine() / 2,
		.stop = is_stopped};
	struct cnnps_options c;
	struct trainer_device device;
	int rc = trainer_probe(&t, &device, e);

	if (rc)
		return rc;
	/* All sessions begin with the same device. If its memory is too small for the model of a
	 * session, this session chooses another device. */
	t.device = device.option;
	t.precision = device.precision; /* fp32 if auto has chosen the CPU */
	t.otherwise = strcmp(o->device, device.option) == 0 ? NULL : o->device;
	if ((rc = load_data(o, d, e)))
		return rc;
	log_info("worker", "data",
		"dir=\"%s\" train=%u test=%u images=%zux%zux%zu classes=%u data_id=%016llx",
		d->files.dir, d->id.n_train, d->id.n_test, d->shape.c, d->shape.h, d->shape.w,
		d->id.classes, (unsigned long long)d->id.xxh3);
	c = connection(o, &d->id, device.name);
	if (device.memory->special) {
		c.allocate = device.memory->allocate;
		c.release = device.memory->release;
	}
	grace_ms = (uint64_t)o->grace_ms;
	atomic_store(&has_session, 1);
	return run_sessions(&c, &t, d, e);
}

static int print_data_id(const struct worker_options *o, struct data *d, struct err *e)
{
	int rc = load_data(o, d, e);

	if (!rc)
		printf("%016llx:%u:%u\n", (unsigned long long)d->id.xxh3, d->id.n_train,
			d->id.n_test);
	return rc;
}

/* Returns the exit code of the process, which is 0 only if the training is done. A supervisor that
 * restarts failed processes therefore restarts a worker that ended too early. */
static int exit_code(int rc)
{
	return rc == PS_ESHUTDOWN ? EXIT_STOPPED : err_exit_code(rc);
}

int main(int argc, char **argv)
{
	static struct data data; /* static, because it is too large for a stack */
	struct worker_options o;
	struct err e = {0};
	int rc;

	zepoll_use();
	catch_signals();
	log_set_level(LOG_INFO);
	rc = worker_options_parse(&o, argc, argv);
	if (rc)
		return rc == OPT_EXIT ? 0 : err_exit_code(rc);
	mem_keep();
	watchdog_init((uint64_t)o.device_timeout_ms);
	if (o.key)
		key_protect_process();
	rc = o.print_data_id ? print_data_id(&o, &data, &e) : run_worker(&o, &data, &e);
	data_release(&data);
	if (o.print_data_id && !rc)
		return 0;
	if (is_stopped(NULL) && rc == PS_ESHUTDOWN)
		log_info("worker", "stopped", "reason=\"asked to\"");
	else if (err_exit_code(rc) == 0)
		log_info("worker", "end", "reason=\"%s\"", e.text);
	else
		log_error("worker", "end", "code=%s reason=\"%s\"", err_name(rc), e.text);
	return exit_code(rc);
}
