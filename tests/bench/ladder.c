/*
 * ladder.c - cnn-ladder: runs the rungs of kernels/ladder/ and prints their results as CSV.
 *
 * - `steps` prints the time of a step for each rung, network and batch size, with the columns
 *   rung,filters,batch,repetitions,ms_median,ms_min,images_per_s,copy_in_ms,kernel_ms,
 *   copy_out_ms,host_ms,error,ms_low,ms_high. With --runs N the command measures everything N
 *   times. A row then has the figures of the run with the median time, and ms_low and ms_high are
 *   the lowest and the highest ms_median of all runs. Option --phases FILE also writes the time of
 *   each phase, with the columns rung,filters,batch,kind,phase,ms.
 * - `cores` prints the time of a step of the CPU kernels of workers on 1, 2, 4, ... threads, with
 *   the columns threads,filters,batch,repetitions,ms_median,ms_low,ms_high,images_per_s,error.
 * - `train` prints the predictions of a network after given training times, with the columns
 *   rung,seconds,steps,right,image,label,prediction,probability,of_label. The column of_label has
 *   the probability that the network assigns to the right label.
 * - `memory` prints the cost of single copies, launches and loads, with the columns
 *   what,where,bytes,us,gb_per_s.
 *
 * The program compares every rung with cpu-ref before it measures it. If a result is wrong, the
 * program exits.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/log.h"
#include "common/opt.h"
#include "kernels/ladder/ladder.h"
#include "worker/data/dataset.h"

#define PROGRAM "cnn-ladder"

struct ladder_options {
	/* NULL selects: for `data` the default paths, for `rung` all rungs, for `phases` no file */
	const char *data, *rung, *phases;
	int64_t filters, batch, seed, runs;
	double seconds, rate;
};

struct job {
	const struct ladder_options *o;
	struct kx_images train, test;
	int has_gpu;
	FILE *phases; /* file of the phases; NULL: write no phases */
};

/* The pairs of sizes that `steps` measures if neither --filters nor --batch is given. */
static const struct {
	size_t filters, batch;
} sweep[] = {{256, 1000}, {256, 500}, {256, 250}, {256, 100}, {128, 1000}, {64, 1000}, {32, 1000}};

static const double marks[] = {0.01, 0.03, 0.1, 0.3, 1, 3};

/* ---- steps ----------------------------------------------------------------------------------- */

/* Returns 1 if `name` is one of the names in `list`, which commas separate. */
static int list_has_name(const char *list, const char *name)
{
	const size_t n = strlen(name);

	for (const char *at = list; at; at = strchr(at, ',')) {
		at += *at == ',';
		if (strncmp(at, name, n) == 0 && (at[n] == ',' || !at[n]))
			return 1;
	}
	return 0;
}

static int is_wanted_name(const char *list, const struct rung *r)
{
	return !list || list_has_name(list, r->name) ||
	       (r->needs_gpu && list_has_name(list, "gpu"));
}

static int wanted(const struct job *j, const struct rung *r, size_t batch)
{
	return (j->has_gpu || !r->needs_gpu) && ladder_runs(r, batch) &&
	       is_wanted_name(j->o->rung, r);
}

static double sum_of(const struct profile *p, enum phase_kind kind)
{
	double ms = 0;

	for (size_t i = 0; i < p->n; i++)
		ms += p->phase[i].kind == kind ? p->phase[i].ms : 0;
	return ms;
}

static void print_step(
	const struct rung *r, const struct ladder_task *t, const struct ladder_result *s)
{
	printf("%s,%zu,%zu,%zu,%.4f,%.4f,%.0f,%.4f,%.4f,%.4f,%.4f,%.2e,%.4f,%.4f\n", r->name,
		t->filters, t->max_batch, s->repetitions, s->median_ms, s->min_ms,
		(double)t->max_batch / s->median_ms * 1e3, sum_of(&s->profile, PHASE_COPY_IN),
		sum_of(&s->profile, PHASE_KERNEL), sum_of(&s->profile, PHASE_COPY_OUT),
		sum_of(&s->profile, PHASE_HOST), s->error, s->low_ms, s->high_ms);
	fflush(stdout);
}

static void print_phases(
	FILE *f, const struct rung *r, const struct ladder_task *t, const struct ladder_result *s)
{
	for (size_t i = 0; i < s->profile.n; i++)
		fprintf(f, "%s,%zu,%zu,%s,%s,%.4f\n", r->name, t->filters, t->max_batch,
			phase_kind_name(s->profile.phase[i].kind), s->profile.phase[i].name,
			s->profile.phase[i].ms);
}

static int run_rung(const struct job *j, const struct rung *r, const struct ladder_point *p,
	const struct ladder_truth *t, struct err *e)
{
	struct ladder_result s;
	int rc = ladder_measure(&s, r, p, t, e);

	if (rc)
		return rc;
	print_step(r, &p->task, &s);
	if (j->phases)
		print_phases(j->phases, r, &p->task, &s);
	return PS_OK;
}

static int run_point(const struct job *j, size_t filters, size_t batch, struct err *e)
{
	struct model model;
	struct ladder_point p;
	struct ladder_truth t;
	int rc = ladder_point_init(
		&p, &model, &j->train, filters, batch, (uint64_t)j->o->seed, j->o->seconds, e);

	if (rc)
		return rc;
	p.runs = (int)j->o->runs;
	rc = ladder_truth_init(&t, &p, e);
	for (size_t i = 0; !rc && i < ladder_n_rungs; i++)
		if (wanted(j, ladder_rungs[i], batch))
			rc = run_rung(j, ladder_rungs[i], &p, &t, e);
	ladder_truth_release(&t);
	ladder_point_release(&p);
	return rc;
}

static int run_points(const struct job *j, struct err *e)
{
	size_t filters = (size_t)j->o->filters, batch = (size_t)j->o->batch;
	int rc = PS_OK;

	if (filters || batch)
		return run_point(j, filters ? filters : 256, batch ? batch : 1000, e);
	for (size_t i = 0; !rc && i < sizeof(sweep) / sizeof(sweep[0]); i++)
		rc = run_point(j, sweep[i].filters, sweep[i].batch, e);
	return rc;
}

static int run_steps(struct job *j, struct err *e)
{
	if (j->o->phases) {
		j->phases = fopen(j->o->phases, "w");
		if (!j->phases)
			return err_set(e, PS_EIO, "%s: %s", j->o->phases, strerror(errno));
		fprintf(j->phases, "rung,filters,batch,kind,phase,ms\n");
	}
	printf("rung,filters,batch,repetitions,ms_median,ms_min,images_per_s,copy_in_ms,"
	       "kernel_ms,copy_out_ms,host_ms,error,ms_low,ms_high\n");
	int rc = run_points(j, e);
	if (j->phases && fclose(j->phases) && !rc)
		rc = err_set(e, PS_EIO, "%s: %s", j->o->phases, strerror(errno));
	return rc;
}

/* ---- cores ----------------------------------------------------------------------------------- */

static int run_cores_point(const struct job *j, size_t filters, size_t batch, struct err *e)
{
	const long cores = sysconf(_SC_NPROCESSORS_ONLN);
	struct ladder_result s;
	struct ladder_point p;
	struct ladder_truth t;
	struct model model;
	int rc = ladder_point_init(
		&p, &model, &j->train, filters, batch, (uint64_t)j->o->seed, j->o->seconds, e);

	if (rc)
		return rc;
	p.runs = (int)j->o->runs;
	rc = ladder_truth_init(&t, &p, e);
	for (int threads = 1; !rc && threads <= cores; threads *= 2) {
		p.task.threads = threads;
		rc = ladder_measure(&s, &ladder_cores, &p, &t, e);
		if (!rc)
			printf("%d,%zu,%zu,%zu,%.4f,%.4f,%.4f,%.0f,%.2e\n", threads, filters, batch,
				s.repetitions, s.median_ms, s.low_ms, s.high_ms,
				(double)batch / s.median_ms * 1e3, s.error);
	}
	ladder_truth_release(&t);
	ladder_point_release(&p);
	return rc;
}

static int run_cores(struct job *j, struct err *e)
{
	size_t filters = j->o->filters ? (size_t)j->o->filters : 256;

	printf("threads,filters,batch,repetitions,ms_median,ms_low,ms_high,images_per_s,error\n");
	if (j->o->batch)
		return run_cores_point(j, filters, (size_t)j->o->batch, e);
	int rc = run_cores_point(j, filters, 1000, e);
	return rc ? rc : run_cores_point(j, filters, 100, e);
}

/* ---- train and memory ------------------------------------------------------------------------ */

static int run_train(struct job *j, struct err *e)
{
	struct model model;
	struct ladder_point p;
	size_t filters = j->o->filters ? (size_t)j->o->filters : 256;
	size_t batch = j->o->batch ? (size_t)j->o->batch : 100,
	       n = sizeof(marks) / sizeof(marks[0]);
	int rc = ladder_point_init(
		&p, &model, &j->train, filters, batch, (uint64_t)j->o->seed, 0, e);

	if (rc)
		return rc;
	while (n > 1 && marks[n - 1] > j->o->seconds)
		n--;
	printf("rung,seconds,steps,right,image,label,prediction,probability,of_label\n");
	for (size_t i = 0; !rc && i < ladder_n_rungs; i++)
		if (wanted(j, ladder_rungs[i], batch))
			rc = ladder_train(ladder_rungs[i], &p, &j->test, j->o->rate, marks, n, e);
	ladder_point_release(&p);
	return rc;
}

static int run_memory(struct job *j, struct err *e)
{
	const char *why;

	if (!j->has_gpu) {
		(void)ladder_has_gpu(&why);
		return err_set(e, PS_EDEVICE, "memory: %s", why);
	}
	return ladder_memory(e);
}

static int run_rungs(struct job *j, struct err *e)
{
	(void)j;
	(void)e;
	for (size_t i = 0; i < ladder_n_rungs; i++)
		printf("%zu. %s\n   %s\n   Predicted: %s\n", i + 1, ladder_rungs[i]->name,
			ladder_rungs[i]->changes, ladder_rungs[i]->predicts);
	return PS_OK;
}

/* ---- program --------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	int needs_data;
	int (*run)(struct job *j, struct err *e);
} commands[] = {{"steps", 1, run_steps}, {"cores", 1, run_cores}, {"train", 1, run_train},
	{"memory", 0, run_memory}, {"rungs", 0, run_rungs}};

static int parse_arguments(struct ladder_options *o, const char **command, int argc, char **argv)
{
	const struct opt rows[] = {
		{.name = "data",
			.type = OPT_TEXT,
			.dest = &o->data,
			.min = 1,
			.max = 4000,
			.arg = "DIR",
			.help = "directory of the data set, with four IDX files (images and "
				"labels for training and for tests), plain or .gz",
			.unset = "data/mnist or, if it is missing, Debian's Fashion-MNIST"},
		{.name = "rung",
			.type = OPT_TEXT,
			.dest = &o->rung,
			.min = 1,
			.max = 100,
			.arg = "NAMES",
			.help = "names of the rungs to measure, separated by commas; the name "
				"gpu means all rungs that need a GPU",
			.unset = "all rungs"},
		{.name = "phases",
			.type = OPT_TEXT,
			.dest = &o->phases,
			.min = 1,
			.max = 4000,
			.arg = "FILE",
			.help = "CSV file to which the command steps also writes the time of "
				"each phase of a step",
			.unset = "no such file"},
		{.name = "filters",
			.type = OPT_INT,
			.dest = &o->filters,
			.def = "0",
			.min = 0,
			.max = 4096,
			.arg = "N",
			.help = "number of filters F of the network seed:F. 0 means 256, except "
				"for the command steps if --batch is 0, too: this command then "
				"measures several networks and batch sizes, one after the other"},
		{.name = "batch",
			.type = OPT_INT,
			.dest = &o->batch,
			.def = "0",
			.min = 0,
			.max = 60000,
			.arg = "N",
			.help = "number of images in a batch. 0 means 1000 and then 100 for the "
				"command cores, and 100 for train. For steps, 0 means 1000 or, if "
				"--filters is 0, too, several networks and batch sizes, one after "
				"the other"},
		{.name = "seconds",
			.type = OPT_REAL,
			.dest = &o->seconds,
			.def = "2",
			.min = 0,
			.max = 3600,
			.arg = "S",
			.help = "for the commands steps and cores, number of seconds that each "
				"measurement takes. The command train shows the predictions after "
				"training for 0.01, 0.03, 0.1, 0.3, 1 and 3 seconds; it leaves "
				"out the times above S, except 0.01"},
		{.name = "runs",
			.type = OPT_INT,
			.dest = &o->runs,
			.def = "1",
			.min = 1,
			.max = LADDER_MAX_RUNS,
			.arg = "N",
			.help = "for the commands steps and cores, number of times that "
				"everything is measured; the median is reported"},
		{.name = "rate",
			.type = OPT_REAL,
			.dest = &o->rate,
			.def = "0.02",
			.min = 0,
			.max = 10,
			.arg = "RATE",
			.help = "learning rate of the command train"},
		{.name = "seed",
			.type = OPT_INT,
			.dest = &o->seed,
			.def = "1",
			.min = 0,
			.max = 1e15,
			.arg = "N",
			.help = "seed of the random numbers that determine the initial weights "
				"and the order of the images"},
		{0},
	};
	const struct opt_program program = {.name = PROGRAM,
		.usage = "[OPTION...] steps|cores|train|memory|rungs",
		.about = "Measure the ladder from a sequential gradient of the network seed:F to "
			 "the\n"
			 "CUDA kernels in use. Each rung is one implementation. Prints CSV.\n"
			 "\n"
			 "Commands:\n"
			 "  steps             Measure the time of a step with each rung (the "
			 "default).\n"
			 "  cores             Measure a step of the CPU kernels on 1, 2, 4, ... "
			 "threads.\n"
			 "  train             Show what the network predicts after some training "
			 "times.\n"
			 "  memory            Measure single copies, launches and loads of a GPU.\n"
			 "  rungs             List the rungs.",
		.opts = rows,
		.max_args = 1};
	const char *args[1] = {NULL};
	int n_args;
	*o = (struct ladder_options){0};
	int rc = opt_parse(&program, argc, argv, args, &n_args);

	*command = n_args ? args[0] : "steps";
	return rc;
}

static int check_rung(const char *name, struct err *e)
{
	for (size_t i = 0; i < ladder_n_rungs; i++)
		if (is_wanted_name(name, ladder_rungs[i]))
			return PS_OK;
	if (strcmp(name, "gpu") == 0) /* a build without CUDA has no rungs for GPUs */
		return PS_OK;
	return err_set(e, PS_EUSAGE, "--rung: there is no \"%.40s\"; `%s rungs` lists them", name,
		PROGRAM);
}

/* Load the data set, and check that it has the one image size for which all rungs are written. */
static int load_images(struct job *j, struct data *d, struct err *e)
{
	int rc = data_load(d, j->o->data, e);

	if (rc)
		return rc;
	if (d->shape.c != 1 || d->shape.h != 28 || d->shape.w != 28 || d->max_label > 9)
		return err_set(e, PS_EDATA,
			"%.200s: images are %zux%zux%zu, must be 28x28; the largest label is %u, "
			"must be at most 9",
			d->files.dir, d->shape.c, d->shape.h, d->shape.w, d->max_label);
	j->train = data_train(d);
	j->test = data_test(d);
	return PS_OK;
}

static int run_ladder_command(const struct ladder_options *o, const char *name, struct err *e)
{
	static struct data data; /* static, because the struct is too large for the stack */
	const char *why = "";
	struct job j = {.o = o, .has_gpu = ladder_has_gpu(&why)};
	size_t i = 0, n = sizeof(commands) / sizeof(commands[0]);

	while (i < n && strcmp(commands[i].name, name) != 0)
		i++;
	if (i == n)
		return err_set(e, PS_EUSAGE,
			"\"%.40s\": expected steps, cores, train, memory or rungs", name);
	int rc = check_rung(o->rung, e);
	if (!rc && commands[i].needs_data)
		rc = load_images(&j, &data, e);
	if (!rc && commands[i].needs_data && !j.has_gpu)
		log_warn("ladder", "skipped", "rungs=gpu reason=\"%s\"", why);
	if (!rc)
		rc = commands[i].run(&j, e);
	data_release(&data);
	return rc;
}

int main(int argc, char **argv)
{
	struct ladder_options o;
	struct err e = {0};
	const char *command;
	int rc;

	log_set_level(LOG_INFO);
	rc = parse_arguments(&o, &command, argc, argv);
	if (rc)
		return rc == OPT_EXIT ? 0 : err_exit_code(rc);
	rc = run_ladder_command(&o, command, &e);
	if (rc)
		fprintf(stderr, "%s: %s\n", PROGRAM, e.text);
	return err_exit_code(rc);
}
