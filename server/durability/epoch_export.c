/* epoch_export.c - see epoch_export.h. */
#include "server/durability/epoch_export.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/log.h"
#include "common/mem.h"
#include "common/metric_names.h"
#include "common/safetensors.h"
#include "server/core/core.h"

#define PATH_BYTES (4096 + 32)

/* A job has the weights of one epoch, which a thread of the pool writes to one or two files. */
struct job {
	uv_work_t work;
	struct epoch_export *of;
	/* the next job, which begins when this job is done, or NULL if there is none */
	struct job *next;
	char path[2][PATH_BYTES];
	int n_paths;
	uint32_t epoch; /* number of the epoch, from 1 */
	int is_best;
	char *tensors;    /* the list of the run's tensors, owned; "" if there is none */
	char *evaluation; /* the results of the epoch as JSON, owned; NULL: no memory */
	struct err e;
	int rc;
	float w[];
};

struct epoch_export {
	uv_loop_t *loop;
	const char *dir;
	const struct model *model;
	struct keep_rule rule;
	epoch_export_done_fn *done;
	void *arg;
	char *(*results)(const struct core *c, uint32_t epoch);
	struct job *job; /* the job under way, or NULL */
	/* the job of the best epoch if its file could not be written, or NULL */
	struct job *unwritten;
};

int epoch_export_new(struct epoch_export **out, uv_loop_t *loop, const struct epoch_export_of *of,
	epoch_export_done_fn *done, void *arg)
{
	struct epoch_export *k = *out = mem_try(1, sizeof(*k));

	if (!k)
		return PS_ENOMEM;
	k->loop = loop;
	k->dir = of->dir;
	k->rule = of->rule;
	k->model = of->model;
	k->results = of->results;
	k->done = done;
	k->arg = arg;
	return PS_OK;
}

int epoch_export_busy(const struct epoch_export *k)
{
	return k && k->job;
}

static void free_job(struct job *j)
{
	if (j) {
		free(j->tensors);
		free(j->evaluation);
	}
	free(j);
}

void epoch_export_free(struct epoch_export **k)
{
	if (*k)
		free_job((*k)->unwritten);
	free(*k);
	*k = NULL;
}

/* ---- which epochs ---------------------------------------------------------------------------- */

/* Sets *score to a number that is larger for a better epoch: the number of correct answers or, if
 * the run does not measure accuracy, minus the loss. Returns 0 if the epoch is not evaluated. */
static int score_of(const struct core *c, uint32_t epoch, double *score)
{
	const struct epoch_record *r = core_epoch(c, epoch);
	struct metric_names names;

	if (!core_is_evaluated(c, epoch) || !metric_names_parse(&names, core_config(c)->metrics))
		return 0;
	*score = names.accuracy ? (double)r->eval_correct : -r->eval_loss_sum;
	return 1;
}

/* Returns the number of the newest evaluated epoch, counted from 1, or 0 if no epoch is evaluated.
 * Sets *is_best to 1 if no earlier epoch was as good. */
static uint32_t newest_epoch(const struct core *c, int *is_best)
{
	double best = 0, score;
	uint32_t newest = 0;

	*is_best = 0;
	for (uint32_t e = 0; e < core_config(c)->training.epochs; e++) {
		if (!score_of(c, e, &score))
			continue;
		*is_best = !newest || score > best;
		if (*is_best)
			best = score;
		newest = e + 1;
	}
	return newest;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Writes the files of a job. Runs on a thread of the pool. */
static void write_job(uv_work_t *work)
{
	struct job *j = work->data;

	for (int i = 0; i < j->n_paths && !j->rc; i++)
		j->rc = safetensors_write_evaluated(
			j->path[i], j->of->model, j->tensors, j->w, j->evaluation, &j->e);
}

static void log_job(const struct job *j)
{
	if (j->rc)
		log_warn("keep", "failed", "epoch=%u reason=\"%s\"", j->epoch, j->e.text);
	else
		for (int i = 0; i < j->n_paths; i++)
			log_info("keep", "written", "epoch=%u file=\"%s\"", j->epoch, j->path[i]);
}

static void on_job_written(uv_work_t *work, int status)
{
	struct job *j = work->data;
	struct epoch_export *k = j->of;

	if (status)
		j->rc = err_set(&j->e, PS_EIO, "%s", uv_strerror(status));
	log_job(j);
	k->job = j->next;
	if (j->is_best) {
		free_job(k->unwritten);
		k->unwritten = j->rc ? j : NULL;
	}
	if (j != k->unwritten)
		free_job(j);
	if (k->job)
		(void)uv_queue_work(k->loop, &k->job->work, write_job, on_job_written);
	else
		k->done(k->arg);
}

/* Begins job `j`, or appends it to the list of jobs if another job is under way. */
static void begin_job(struct epoch_export *k, struct job *j)
{
	struct job **last = &k->job;

	while (*last)
		last = &(*last)->next;
	*last = j;
	if (k->job == j)
		(void)uv_queue_work(k->loop, &j->work, write_job, on_job_written);
}

/* Returns a job for the newest evaluated epoch. Returns NULL if there is no such epoch, if the rule
 * does not keep it, if the core does not have its weights, or, after a line in the log, if there is
 * no memory. */
static struct job *job_of(struct epoch_export *k, const struct core *c)
{
	int is_best;
	uint32_t epoch = newest_epoch(c, &is_best);
	size_t n = core_config(c)->n_params;
	const float *w = core_evaluated_weights(c);

	if (!epoch || !w)
		return NULL;
	int best = k->rule.best && is_best, every = k->rule.every && epoch % k->rule.every == 0;
	if (!best && !every)
		return NULL;
	struct job *j = mem_try(1, sizeof(*j) + n * sizeof(float));
	if (!j || !(j->tensors = strdup(core_tensors(c)))) {
		free_job(j);
		log_warn("keep", "failed", "epoch=%u reason=\"no memory\"", epoch);
		return NULL;
	}
	j->work.data = j;
	j->of = k;
	j->epoch = epoch;
	j->is_best = best;
	j->evaluation = k->results(c, epoch - 1);
	if (best)
		snprintf(j->path[j->n_paths++], PATH_BYTES, "%s/best.safetensors", k->dir);
	if (every)
		snprintf(j->path[j->n_paths++], PATH_BYTES, "%s/epoch-%06u.safetensors", k->dir,
			epoch);
	memcpy(j->w, w, n * sizeof(float));
	return j;
}

/* Begins the job of the best epoch again if its file could not be written. */
static void retry(struct epoch_export *k)
{
	struct job *j = k->unwritten;

	if (!j)
		return;
	k->unwritten = NULL;
	j->rc = PS_OK;
	j->next = NULL;
	begin_job(k, j);
}

void epoch_export_evaluated(struct epoch_export *k, const struct core *c)
{
	struct job *j = job_of(k, c);

	if (!j || !j->is_best)
		retry(k);
	if (j)
		begin_job(k, j);
}
