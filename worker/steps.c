/* steps.c - see steps.h. */
#include "worker/steps_impl.h"
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/clones.h"
#include "common/mem.h"
#include "common/rng.h"

/* ---- vectors --------------------------------------------------------------------------------- */

/* to = from - rate * g; `to` may be `from`. */
PS_CLONES
static void walk(float *to, const float *from, const float *g, float rate, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++)
		to[i] = from[i] - rate * g[i];
}

PS_CLONES
static void add(float *sum, const float *g, float weight, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++)
		sum[i] += weight * g[i];
}

PS_CLONES
static void scale(float *g, float factor, size_t n)
{
	for (size_t i = 0; i < n; i++)
		g[i] *= factor;
}

PS_CLONES
void steps_divide(float *g, float divisor, size_t n)
{
	for (size_t i = 0; i < n; i++)
		g[i] /= divisor;
}

/* EAMSGD's Nesterov momentum (Zhang 2015, algorithm 2): v = m v - rate g(x + m v), x += v. First x
 * goes where the gradient is to be taken ... */
PS_CLONES
static void nesterov_look_ahead(float *x, float *v, float momentum, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		v[i] *= momentum;
		x[i] += v[i];
	}
}

/* ... and then takes the gradient's part of the step. */
PS_CLONES
static void nesterov_step(float *x, float *v, const float *g, float rate, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		v[i] -= rate * g[i];
		x[i] -= rate * g[i];
	}
}

/* The elastic force (Zhang 2015, arXiv 1412.6651): x and the centre approach each other. The server
 * subtracts g, so g is minus what the centre moves by. */
PS_CLONES
static void attract(float *g, float *x, const float *centre, float part, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		float e = part * (x[i] - centre[i]);
		x[i] -= e;
		g[i] = -e;
	}
}

static int need(float **buffer, size_t n)
{
	if (!*buffer)
		*buffer = mem_try(n, sizeof **buffer);
	return *buffer ? PS_OK : PS_ENOMEM;
}

/* ---- pull, compute, push --------------------------------------------------------------------- */

int steps_take(struct steps *s, const struct cnnps_lease *l, uint32_t i, const uint32_t **index,
	uint32_t *images, uint64_t *seed)
{
	uint32_t number = l->first + i;

	*seed = rng_seed(s->info->seed, RNG_DROPOUT, (uint64_t)l->epoch << 32 | number).state;
	if (s->cfg->stop && s->cfg->stop(s->cfg->stop_arg))
		return PS_ESHUTDOWN;
	cnnps_alive(s->c);
	return batches_get(&s->batches, l->epoch, number, index, images);
}

void steps_note(struct steps *s, const struct cnnps_lease *l, uint32_t i, uint32_t count,
	uint32_t images, double loss, struct sum *sum)
{
	s->work->images += images;
	s->work->batches += count;
	if (!sum->work.count)
		sum->work = (struct cnnps_work){.epoch = l->epoch, .first = l->first + i};
	sum->work.count += count;
	sum->work.images += images;
	sum->loss += loss * images;
}

/* The gradient of batch i of the lease at weights `w` into `g`, and its place in the push to come.
 */
static int compute(struct steps *s, const struct cnnps_lease *l, uint32_t i, const float *w,
	float *g, struct sum *sum, uint32_t *images)
{
	const uint32_t *index;
	uint64_t seed;
	double loss, start;
	int status = steps_take(s, l, i, &index, images, &seed);

	if (status)
		return status;
	start = clock_seconds();
	if ((status = backend_gradient(s->backend, w, index, *images, seed, g, &loss)))
		return status;
	s->work->seconds += clock_seconds() - start;
	steps_note(s, l, i, 1, *images, loss, sum);
	return PS_OK;
}

/* The same with the gradient added to those that wait: `*g` is where it is to be seen alone, until
 * the next. The first one needs no copy. `by_images`: it weighs as much as it has images. */
static int accumulate(struct steps *s, const struct cnnps_lease *l, uint32_t i, const float *w,
	struct sum *sum, int by_images, const float **g)
{
	size_t n = s->info->n_params;
	int first = !sum->g, status;
	uint32_t images;
	float *to;

	if (first && !(sum->g = cnnps_gradient(s->c)))
		return PS_ENOMEM;
	if (!first && need(&s->spare, n))
		return PS_ENOMEM;
	to = first ? sum->g : s->spare;
	if ((status = compute(s, l, i, w, to, sum, &images)))
		return status;
	if (!first)
		add(sum->g, to, by_images ? (float)images : 1, n);
	else if (by_images)
		scale(to, (float)images, n);
	*g = to;
	return PS_OK;
}

int steps_deliver(
	struct steps *s, struct sum *sum, uint64_t version, uint32_t divisor, int and_fetch)
{
	size_t n = s->info->n_params;
	int status;

	if (divisor > 1)
		steps_divide(sum->g, (float)divisor, n);
	sum->work.loss = (float)(sum->loss / sum->work.images);
	status = and_fetch ? cnnps_push_view(s->c, sum->g, n, version, &sum->work, &s->held)
			   : cnnps_push_work(s->c, sum->g, n, version, &sum->work);
	s->fetched = and_fetch && !status;
	*sum = (struct sum){.g = NULL};
	return status;
}

uint32_t steps_divisor(const struct steps *s, const struct sum *sum)
{
	return s->info->push_sum ? 1 : sum->work.count;
}

int steps_hold(struct steps *s)
{
	int fetched = s->fetched;

	s->fetched = 0;
	return fetched ? PS_OK : cnnps_view(s->c, &s->held);
}

/* ---- downpour, ssp: each push counts as it comes --------------------------------------------- */

/* New weights. The gradients that the server does not have yet are taken into account. */
static int fetch(struct steps *s, const struct sum *sum, const float **w)
{
	size_t n = s->info->n_params;
	int status = steps_hold(s);

	if (status)
		return status;
	*w = s->held.w;
	if (!sum->g || s->info->local_rate == 0)
		return PS_OK;
	if (need(&s->own, n))
		return PS_ENOMEM;
	walk(s->own, s->held.w, sum->g, (float)s->info->local_rate, n);
	*w = s->own;
	return PS_OK;
}

/* Between two pulls: a step of our own. */
static int step_alone(struct steps *s, const float *g, const float **w)
{
	size_t n = s->info->n_params;

	if (s->info->local_rate == 0)
		return PS_OK;
	if (need(&s->own, n))
		return PS_ENOMEM;
	walk(s->own, *w, g, (float)s->info->local_rate, n);
	*w = s->own;
	return PS_OK;
}

static int run_downpour(struct steps *s, const struct cnnps_lease *l)
{
	const struct cnnps_info *info = s->info;
	const float *w = NULL, *g;
	struct sum sum = {.g = NULL};
	int status = PS_OK;

	for (uint32_t i = 0; i < l->count && !status; i++) {
		int last = i + 1 == l->count, fetch_next = !last && (i + 1) % info->n_fetch == 0;

		if (i % info->n_fetch == 0)
			status = fetch(s, &sum, &w);
		if (!status && fetch_next && info->prefetch)
			status = cnnps_prefetch(s->c);
		if (!status)
			status = accumulate(s, l, i, w, &sum, 0, &g);
		if (!status && !last && !fetch_next)
			status = step_alone(s, g, &w);
		if (!status && (last || sum.work.count == info->n_push))
			status = steps_deliver(s, &sum, s->held.version, steps_divisor(s, &sum),
				fetch_next && !info->prefetch);
	}
	return status;
}

/* ---- sync, sandblaster: one push of the whole lease, of just the right weights --------------- */

static int is_held(const struct steps *s, const struct cnnps_lease *l)
{
	return s->held.w && s->held.version == l->version && s->held.term == l->term;
}

static int run_exact(struct steps *s, const struct cnnps_lease *l)
{
	int by_images = l->count > 1, status = PS_OK;
	struct sum sum = {.g = NULL};
	const float *g;

	if (!is_held(s, l) && (status = cnnps_view(s->c, &s->held)))
		return status;
	if (!is_held(s, l))
		return PS_OK; /* that step is over: the next lease is of a newer one */
	for (uint32_t i = 0; i < l->count && !status; i++)
		status = accumulate(s, l, i, s->held.w, &sum, by_images, &g);
	return status ? status
		      : steps_deliver(s, &sum, s->held.version, by_images ? sum.work.images : 1, 0);
}

/* ---- easgd: weights of our own, tied to the centre ------------------------------------------- */

static int start_at_centre(struct steps *s)
{
	size_t n = s->info->n_params;
	int status = need(&s->own, n);

	if (!status)
		status = need(&s->spare, n);
	if (!status && s->info->momentum > 0)
		status = need(&s->velocity, n);
	if (!status)
		status = cnnps_view(s->c, &s->held);
	if (!status)
		memcpy(s->own, s->held.w, n * sizeof *s->own);
	s->started = !status;
	return status;
}

static int meet_centre(struct steps *s, struct sum *sum)
{
	int status = cnnps_view(s->c, &s->held);

	if (status)
		return status;
	if (!(sum->g = cnnps_gradient(s->c)))
		return PS_ENOMEM;
	attract(sum->g, s->own, s->held.w, (float)s->held.elastic, s->info->n_params);
	return steps_deliver(s, sum, s->held.version, 1, 0);
}

/* A step of the worker's own weights. */
static int step_own(struct steps *s, const struct cnnps_lease *l, uint32_t i, struct sum *sum)
{
	const struct cnnps_info *info = s->info;
	float rate = (float)info->local_rate;
	uint32_t images;
	int status;

	if (s->velocity)
		nesterov_look_ahead(s->own, s->velocity, (float)info->momentum, info->n_params);
	if ((status = compute(s, l, i, s->own, s->spare, sum, &images)))
		return status;
	if (s->velocity)
		nesterov_step(s->own, s->velocity, s->spare, rate, info->n_params);
	else
		walk(s->own, s->own, s->spare, rate, info->n_params);
	return PS_OK;
}

static int run_easgd(struct steps *s, const struct cnnps_lease *l)
{
	const struct cnnps_info *info = s->info;
	struct sum sum = {.g = NULL};
	int status = s->started ? PS_OK : start_at_centre(s);

	for (uint32_t i = 0; i < l->count && !status; i++) {
		int meet = i + 1 == l->count || sum.work.count + 1 == info->n_push;

		if (meet && info->prefetch)
			status = cnnps_prefetch(s->c);
		if (!status)
			status = step_own(s, l, i, &sum);
		if (!status && meet)
			status = meet_centre(s, &sum);
	}
	return status;
}

/* ---- birth, life and death ------------------------------------------------------------------- */

int steps_run(struct steps *s, const struct cnnps_lease *lease)
{
	s->fetched = 0;
	if (lease->exact)
		return run_exact(s, lease);
	if (s->info->mode == CNNPS_EASGD)
		return run_easgd(s, lease);
	if (s->info->n_push == 1 || s->info->n_push != s->info->n_fetch)
		return run_downpour(s, lease);
	return s->info->prefetch ? bursts_run_ahead(s, lease) : bursts_run(s, lease);
}

void steps_init(struct steps *s, uint32_t n_train)
{
	s->has_dropout = strstr(s->info->model, "dropout") != NULL;
	batches_init(&s->batches, s->info->seed, n_train, s->info->batch);
}

void steps_release(struct steps *s)
{
	free(s->own);
	free(s->spare);
	free(s->velocity);
	batches_release(&s->batches);
}
