/*
 * science.c - makes one training run in virtual time. tests/bench/virtual/virtual.h explains which
 * parts are real and how the clock works. This program also evaluates the weights at many times.
 * The script tests/bench/science runs this program many times and draws the figures.
 *
 *   science [--workers N] [COST MODEL...] [-- OPTIONS OF cnn-ps]
 *
 * The program prints CSV:
 *   point,label,workers,seed,seconds,images,updates,loss,test_loss,accuracy
 *       An evaluation of the current weights on all test images, which takes no virtual time. The
 *       column loss is a moving average of the losses of the pushes. The program prints such a line
 *       at virtual times that grow by the factor --eval-ratio, and at the end.
 *   end,label,workers,seed,seconds,images,updates,accuracy,staleness_mean,rejected,backups,trials,
 *   superseded,norms,reported: norms is the number of gradients that were rejected for their norm;
 *       reported is the accuracy that the server reports of the last evaluated epoch, or nan
 *   staleness,label,workers,seed,0|1|2-3|4-7|...: the number of gradients with this staleness
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "common/log.h"
#include "common/mem.h"
#include "common/opt.h"
#include "server/config/options.h"
#include "tests/bench/virtual/virtual.h"
#include "worker/data/dataset.h"

#define NEVER "1e9"

struct science {
	struct world world;
	struct options run; /* the options of cnn-ps that follow -- on the command line */
	struct data data;
	struct backend *evaluator;
	float *weights;
	const char *label, *directory, *record, *attack;
	int64_t workers, threads;
	double eval_s, eval_ratio, limit_s;
	/* 1 + the version of the weights that `correct` and `loss_sum` belong to; 0: no weights
	 * were evaluated */
	uint64_t seen;
	size_t correct;
	double loss_sum;
};

/* ---- evaluations ----------------------------------------------------------------------------- */

static int evaluate_version(struct science *s)
{
	const struct core_stats *t = core_stats(s->world.core);
	size_t n = data_test(&s->data).n;

	if (s->seen != t->version + 1) {
		int rc = backend_evaluate(
			s->evaluator, core_weights(s->world.core), 0, n, &s->correct, &s->loss_sum);

		if (rc)
			return rc;
		s->seen = t->version + 1;
	}
	printf("point,%s,%" PRId64 ",%" PRIu64 ",%.6f,%" PRIu64 ",%" PRIu64 ",%.5f,%.5f,%.4f\n",
		s->label, s->workers, s->run.core.training.seed, (double)s->world.now_ns / 1e9,
		t->images, t->updates, t->loss, s->loss_sum / (double)n,
		(double)s->correct / (double)n);
	return PS_OK;
}

/* Returns the accuracy that the server reports of the last evaluated epoch, or NaN. */
static double reported_accuracy(const struct science *s)
{
	const struct core *c = s->world.core;

	for (uint32_t e = s->run.core.training.epochs; e-- > 0;) {
		const struct epoch_record *r = core_epoch(c, e);

		if (core_is_evaluated(c, e) && r->eval_done)
			return (double)r->eval_correct / r->eval_done;
	}
	return (double)NAN;
}

static void report_science(const struct science *s)
{
	const struct core_stats *t = core_stats(s->world.core);
	uint64_t rejected = 0;

	for (size_t i = 0; i < REJECT_REASONS; i++)
		rejected += t->rejected[i];
	printf("end,%s,%" PRId64 ",%" PRIu64 ",%.6f,%" PRIu64 ",%" PRIu64 ",%.4f,%.3f,%" PRIu64
	       ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.4f\n",
		s->label, s->workers, s->run.core.training.seed, (double)s->world.now_ns / 1e9,
		t->images, t->updates, (double)s->correct / (double)data_test(&s->data).n,
		t->updates ? (double)t->staleness_sum / (double)t->updates : 0, rejected,
		t->backups, t->trials, t->superseded, t->rejected[REJECT_NORM],
		reported_accuracy(s));
	for (unsigned i = 0; i < sizeof(t->staleness) / sizeof(t->staleness[0]); i++) {
		unsigned first = i ? 1u << (i - 1) : 0, last = i ? (1u << i) - 1 : 0;

		printf("staleness,%s,%" PRId64 ",%" PRIu64 ",%u", s->label, s->workers,
			s->run.core.training.seed, first);
		if (last > first)
			printf("-%u", last);
		printf(",%" PRIu64 "\n", t->staleness[i]);
	}
}

static int watch_run(struct science *s)
{
	struct world *w = &s->world;
	double next = s->eval_s;
	int rc = evaluate_version(s);

	while (!rc && next < s->limit_s) {
		rc = world_run(w, (uint64_t)(1e9 * next));
		/* the program reports a run that has diverged as a result, not as an error */
		if (rc == PS_EDIVERGED || rc == PS_EQUARANTINE) {
			rc = PS_OK;
			break;
		}
		if (world_is_over(w))
			break;
		if (!rc) {
			w->now_ns = (uint64_t)(1e9 * next);
			rc = evaluate_version(s);
		}
		next *= s->eval_ratio;
	}
	return rc ? rc : evaluate_version(s);
}

/* clang-format off */
#define TEXT(n, to, d, a, h) \
	{.name = n, .type = OPT_TEXT, .dest = &to, .def = d, .max = 4000, .arg = a, .help = h}
#define NUMBER(t, n, to, d, min_, max_, a, h) \
	{.name = n, .type = t, .dest = &to, .def = d, .min = min_, .max = max_, .arg = a, .help = h}
#define INT(...) NUMBER(OPT_INT, __VA_ARGS__)
#define REAL(...) NUMBER(OPT_REAL, __VA_ARGS__)
/* clang-format on */

/* ---- before and after ------------------------------------------------------------------------ */

static int options(struct science *s, int argc, char **argv)
{
	struct cost *c = &s->world.cost;
	const struct opt rows[] = {
		TEXT("label", s->label, "run", "TEXT", "first column"),
		TEXT("data", s->directory, NULL, "DIR", "training images"),
		INT("workers", s->workers, "4", 1, 1000, "N", "workers"),
		INT("threads", s->threads, "2", 1, 64, "N", "really used for a gradient"),
		REAL("image-us", c->image_us, "100", 1e-3, 1e6, "US",
			"a worker computes on an image"),
		REAL("jitter", c->jitter, "0.1", 0, 2, "SIGMA",
			"spread of that from batch to batch, lognormal"),
		REAL("slow", c->slow, "1", 0.01, 1000, "TIMES", "the first worker is slower"),
		REAL("latency-us", c->latency_us, "50", 0, 1e7, "US", "of the network"),
		REAL("gbit", c->gbit, "10", 1e-4, 1e4, "GBIT/S", "of the server's link, each way"),
		REAL("message-us", c->message_us, "10", 0, 1e6, "US",
			"the server works on a message"),
		REAL("apply-ns", c->apply_ns, "1", 0, 1e6, "NS",
			"... and on each value of a gradient"),
		REAL("eval-s", s->eval_s, "0.02", 1e-6, 1e6, "S", "first evaluation"),
		REAL("eval-ratio", s->eval_ratio, "1.12", 1.001, 10, "RATIO",
			"time of an evaluation / time of the evaluation before"),
		REAL("limit-s", s->limit_s, NEVER, 1e-6, 1e9, "S", "end of virtual time"),
		TEXT("attack", s->attack, "none", "NAME",
			"the last worker misbehaves: scale, flip, noise, stale, huge, nan, empty "
			"or forge (virtual/attack.c)"),
		TEXT("record", s->record, NULL, "FILE",
			"write what the server decided there (virtual/world.c), and at the end "
			"a line weight,VALUE for each weight"),
		{0},
	};
	const struct opt_program program = {.name = "science",
		.usage = "[OPTION...] [-- OPTIONS OF cnn-ps]",
		.about = "One training run in virtual time.",
		.opts = rows,
		.max_args = -1};
	const char **args = mem_must((size_t)argc + 2, sizeof(*args), "arguments");
	int n, rc = opt_parse(&program, argc, argv, args + 1, &n);

	args[0] = "cnn-ps";
	args[n + 1] = NULL;
	return rc != OPT_RUN ? rc : options_parse(&s->run, n + 1, (char **)args);
}

static int prepare_science(struct science *s, struct err *e)
{
	struct core_config *c = &s->run.core;
	struct backend_options o = {
		.device = "cpu", .threads = (int)s->threads, .max_batch = c->training.batch_size};
	struct kx_images test;
	int attack = attack_of(s->attack);

	if (attack < 0)
		return err_set(e, PS_EUSAGE, "--attack: there is no attack \"%s\"", s->attack);
	int rc = data_load(&s->data, s->directory, e);

	if (rc || (rc = backend_new(&s->evaluator, &s->run.model, &o, e)))
		return rc;
	test = data_test(&s->data);
	if ((rc = backend_use(s->evaluator, &test, e)))
		return rc;
	c->run = (struct run_id){1, 1};
	c->term = 1;
	c->leases.min_workers = c->sessions.max_workers = (uint32_t)s->workers;
	s->weights = mem_must(c->n_params, sizeof(float), "weights");
	model_init(&s->run.model, c->training.seed, s->weights);
	s->world.trainer = (struct trainer_config){
		.data = &s->data, .device = "cpu", .threads = (int)s->threads};
	log_set_level(LOG_WARN);
	if (s->record && !(s->world.record = fopen(s->record, "we")))
		return err_set(e, PS_EIO, "--record: %s cannot be written", s->record);
	world_init(&s->world, c, s->weights, (uint32_t)s->workers);
	s->world.attacker.attack = (enum attack)attack;
	return PS_OK;
}

static int close_record(struct science *s)
{
	const float *w = core_weights(s->world.core);

	if (!s->world.record)
		return PS_OK;
	for (size_t i = 0; i < s->run.core.n_params; i++)
		fprintf(s->world.record, "weight,%.9g\n", (double)w[i]);
	return fclose(s->world.record) ? PS_EIO : PS_OK;
}

static void release_science(struct science *s)
{
	world_release(&s->world);
	free(s->weights);
	backend_free(&s->evaluator);
	data_release(&s->data);
}

int main(int argc, char **argv)
{
	struct science *s = mem_must(1, sizeof(*s), "science");
	struct err e = {0};
	int rc = options(s, argc, argv);

	if (rc != OPT_RUN)
		return rc == OPT_EXIT ? 0 : err_exit_code(rc);
	mem_keep();
	rc = prepare_science(s, &e);
	if (!rc) {
		rc = watch_run(s);
		e = s->world.error;
		rc = rc ? rc : close_record(s);
	}
	if (rc) {
		fprintf(stderr, "science: %s\n", e.text[0] ? e.text : err_text(rc));
		return 1;
	}
	report_science(s);
	release_science(s);
	free(s);
	return 0;
}
