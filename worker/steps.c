/* steps.c - see steps.h. */
#include "worker/steps.h"
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/clones.h"
#include "common/mem.h"
#include "common/rng.h"

/* Batches of one call: then a stop is seen, and by the server that we live. */
#define MOST_AT_ONCE 64

/* What the next push is made of. */
struct sum {
	float *g; /* libcnnps's buffer; NULL: nothing yet */
	struct cnnps_work work;
	double loss;      /* over all images */
	uint64_t version; /* of the weights that it began with */
};

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
static void divide(float *g, float divisor, size_t n)
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
		*buffer = mem_try(n, sizeof(**buffer));
	return *buffer ? PS_OK : PS_ENOMEM;
}

/* ---- pull, compute, push --------------------------------------------------------------------- */

/* Batch i of the lease: its images and its dropout seed. PS_ESHUTDOWN: it is not to be. */
static int take_batch(struct steps *s, const struct cnnps_lease *l, uint32_t i,
	const uint32_t **index, uint32_t *images, uint64_t *seed)
{
	uint32_t number = l->first + i;

	*seed = rng_seed(s->info->seed, RNG_DROPOUT, (uint64_t)l->epoch << 32 | number).state;
	if (s->cfg->stop && s->cfg->stop(s->cfg->stop_arg))
		return PS_ESHUTDOWN;
	cnnps_alive(s->c);
	return batches_get(&s->batches, l->epoch, number, index, images);
}

/* `count` batches from i on are computed, `images` of mean loss `loss`: into the push to come. */
static void note_batches(struct steps *s, const struct cnnps_lease *l, uint32_t i, uint32_t count,
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
	int rc = take_batch(s, l, i, &index, images, &seed);

	if (rc)
		return rc;
	start = clock_seconds();
	if ((rc = backend_gradient(s->backend, w, index, *images, seed, g, &loss)))
		return rc;
	s->work->seconds += clock_seconds() - start;
	note_batches(s, l, i, 1, *images, loss, sum);
	return PS_OK;
}

/* The same with the gradient added to those that wait: `*g` is where it is to be seen alone, until
 * the next. The first one needs no copy. `by_images`: it weighs as much as it has images. */
static int accumulate(struct steps *s, const struct cnnps_lease *l, uint32_t i, const float *w,
	struct sum *sum, int by_images, const float **g)
{
	size_t n = s->info->n_params;
	int first = !sum->g, rc;
	uint32_t images;
	float *to;

	if (first && !(sum->g = cnnps_gradient(s->c)))
		return PS_ENOMEM;
	if (!first && need(&s->spare, n))
		return PS_ENOMEM;
	to = first ? sum->g : s->spare;
	if ((rc = compute(s, l, i, w, to, sum, &images)))
		return rc;
	if (!first)
		add(sum->g, to, by_images ? (float)images : 1, n);
	else if (by_images)
		scale(to, (float)images, n);
	*g = to;
	return PS_OK;
}

/* Hand the sum in, divided by `divisor`, as computed at `version`. `and_fetch`: bring the weights
 * after it, in the same request. */
static int deliver(
	struct steps *s, struct sum *sum, uint64_t version, uint32_t divisor, int and_fetch)
{
	size_t n = s->info->n_params;
	int rc;

	if (divisor > 1)
		divide(sum->g, (float)divisor, n);
	sum->work.loss = (float)(sum->loss / sum->work.images);
	rc = and_fetch ? cnnps_push_view(s->c, sum->g, n, version, &sum->work, &s->held)
		       : cnnps_push_work(s->c, sum->g, n, version, &sum->work);
	s->fetched = and_fetch && !rc;
	*sum = (struct sum){.g = NULL};
	return rc;
}

/* What a push of several batches' gradients is divided by. */
static uint32_t divisor_of(const struct steps *s, const struct sum *sum)
{
	return s->info->push_sum ? 1 : sum->work.count;
}

/* The newest weights into s->held, if the push before did not bring them. */
static int hold_weights(struct steps *s)
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
	int rc = hold_weights(s);

	if (rc)
		return rc;
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
	int rc = PS_OK;

	for (uint32_t i = 0; i < l->count && !rc; i++) {
		int last = i + 1 == l->count, fetch_next = !last && (i + 1) % info->n_fetch == 0;

		if (i % info->n_fetch == 0)
			rc = fetch(s, &sum, &w);
		if (!rc && fetch_next && info->prefetch)
			rc = cnnps_prefetch(s->c);
		if (!rc)
			rc = accumulate(s, l, i, w, &sum, 0, &g);
		if (!rc && !last && !fetch_next)
			rc = step_alone(s, g, &w);
		if (!rc && (last || sum.work.count == info->n_push))
			rc = deliver(s, &sum, s->held.version, divisor_of(s, &sum),
				fetch_next && !info->prefetch);
	}
	return rc;
}

/* ---- sync, sandblaster: one push of the whole lease, of just the right weights --------------- */

static int is_held(const struct steps *s, const struct cnnps_lease *l)
{
	return s->held.w && s->held.version == l->version && s->held.term == l->term;
}

static int run_exact(struct steps *s, const struct cnnps_lease *l)
{
	int by_images = l->count > 1, rc = PS_OK;
	struct sum sum = {.g = NULL};
	const float *g;

	if (!is_held(s, l) && (rc = cnnps_view(s->c, &s->held)))
		return rc;
	if (!is_held(s, l))
		return PS_OK; /* that step is over: the next lease is of a newer one */
	for (uint32_t i = 0; i < l->count && !rc; i++)
		rc = accumulate(s, l, i, s->held.w, &sum, by_images, &g);
	return rc ? rc : deliver(s, &sum, s->held.version, by_images ? sum.work.images : 1, 0);
}

/* ---- easgd: weights of our own, tied to the centre ------------------------------------------- */

static int start_at_centre(struct steps *s)
{
	size_t n = s->info->n_params;
	int rc = need(&s->own, n);

	if (!rc)
		rc = need(&s->spare, n);
	if (!rc && s->info->momentum > 0)
		rc = need(&s->velocity, n);
	if (!rc)
		rc = cnnps_view(s->c, &s->held);
	if (!rc)
		memcpy(s->own, s->held.w, n * sizeof(*s->own));
	s->started = !rc;
	return rc;
}

static int meet_centre(struct steps *s, struct sum *sum)
{
	int rc = cnnps_view(s->c, &s->held);

	if (rc)
		return rc;
	if (!(sum->g = cnnps_gradient(s->c)))
		return PS_ENOMEM;
	attract(sum->g, s->own, s->held.w, (float)s->held.elastic, s->info->n_params);
	return deliver(s, sum, s->held.version, 1, 0);
}

/* A step of the worker's own weights. */
static int step_own(struct steps *s, const struct cnnps_lease *l, uint32_t i, struct sum *sum)
{
	const struct cnnps_info *info = s->info;
	float rate = (float)info->local_rate;
	uint32_t images;
	int rc;

	if (s->velocity)
		nesterov_look_ahead(s->own, s->velocity, (float)info->momentum, info->n_params);
	if ((rc = compute(s, l, i, s->own, s->spare, sum, &images)))
		return rc;
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
	int rc = s->started ? PS_OK : start_at_centre(s);

	for (uint32_t i = 0; i < l->count && !rc; i++) {
		int meet = i + 1 == l->count || sum.work.count + 1 == info->n_push;

		if (meet && info->prefetch)
			rc = cnnps_prefetch(s->c);
		if (!rc)
			rc = step_own(s, l, i, &sum);
		if (!rc && meet)
			rc = meet_centre(s, &sum);
	}
	return rc;
}

/* ---- bursts: the device keeps weights and sum from a pull to its push ------------------------- */

/*
 * Local steps on whole batches from i on, `left` at most; *done of them in one call. Batches lie
 * one after the other in the epoch's order. A mask of dropout has a seed for each batch: one at a
 * time.
 */
static int step_on_device(struct steps *s, const struct cnnps_lease *l, uint32_t i, uint32_t left,
	struct sum *sum, uint32_t *done)
{
	const uint32_t *index, *last;
	uint32_t images, least;
	uint64_t seed;
	double start;
	int rc = take_batch(s, l, i, &index, &images, &seed);

	*done = s->has_dropout ? 1 : left < MOST_AT_ONCE ? left : MOST_AT_ONCE;
	if (!rc && *done > 1)
		rc = batches_get(&s->batches, l->epoch, l->first + i + *done - 1, &last, &least);
	if (rc)
		return rc;
	if (*done > 1 && least != images)
		(*done)--; /* the epoch's last batch is a smaller one */
	start = clock_seconds();
	rc = backend_local_steps(
		s->backend, index, images, *done, (float)s->info->local_rate, seed);
	if (rc)
		return rc;
	s->work->seconds += clock_seconds() - start;
	note_batches(s, l, i, *done, *done * images, 0, sum);
	return PS_OK;
}

static uint32_t burst_at(const struct steps *s, const struct cnnps_lease *l, uint32_t i)
{
	return l->count - i < s->info->n_push ? l->count - i : s->info->n_push;
}

/* From a pull to its push nothing needs the host: the device keeps weights and sum. */
static int launch(
	struct steps *s, const struct cnnps_lease *l, uint32_t i, uint32_t count, struct sum *sum)
{
	int rc = hold_weights(s);
	uint32_t done;

	*sum = (struct sum){.version = s->held.version};
	if (!rc)
		rc = backend_local_start(s->backend, s->held.w);
	for (uint32_t left = count; left && !rc; left -= done)
		rc = step_on_device(s, l, i + count - left, left, sum, &done);
	return rc;
}

/* Have the sum of the burst that was launched last brought to the host. */
static int call_back(struct steps *s, struct sum *sum)
{
	sum->g = cnnps_gradient(s->c);
	return sum->g ? backend_local_finish(s->backend, NULL, sum->g) : PS_ENOMEM;
}

/* Wait for a burst that was called back. */
static int land(struct steps *s, struct sum *sum)
{
	double loss, start = clock_seconds();
	int rc = backend_local_wait(s->backend, &loss);

	if (rc)
		return rc;
	s->work->seconds += clock_seconds() - start;
	sum->loss = loss * sum->work.images;
	return PS_OK;
}

/* One after the other: the weights for the next one come with the answer to the push. */
static int run_bursts(struct steps *s, const struct cnnps_lease *l)
{
	struct sum sum;
	uint32_t count;
	int rc = PS_OK;

	for (uint32_t i = 0; i < l->count && !rc; i += count) {
		count = burst_at(s, l, i);
		rc = launch(s, l, i, count, &sum);
		if (!rc)
			rc = call_back(s, &sum);
		if (!rc)
			rc = land(s, &sum);
		if (!rc)
			rc = deliver(
				s, &sum, sum.version, divisor_of(s, &sum), i + count < l->count);
	}
	return rc;
}

/* What is to be sent next: it is divided now, for then it will be waited for. */
static int land_ahead(struct steps *s, struct sum *flying, struct sum *landed)
{
	int rc = land(s, flying);

	if (rc)
		return rc;
	if (divisor_of(s, flying) > 1)
		divide(flying->g, (float)divisor_of(s, flying), s->info->n_params);
	*landed = *flying;
	return PS_OK;
}

/*
 * With prefetch the device has a burst in hand, the sum of the one before it waits, and that of the
 * one before that is on its way, while weights for the next one come: these have none of the three.
 * Whatever is to be sent goes as soon as weights are here, before they are looked through: the way
 * to the server, what that does with a sum, and the way back are what takes longest.
 */
static int run_bursts_ahead(struct steps *s, const struct cnnps_lease *l)
{
	struct sum next, flying = {.g = NULL}, landed = {.g = NULL};
	const uint32_t *index;
	uint32_t count, images;
	uint64_t seed;
	int rc = cnnps_prefetch(s->c);

	if (!rc) /* meanwhile the order of a new epoch is made */
		rc = take_batch(s, l, 0, &index, &images, &seed);
	for (uint32_t i = 0; i < l->count && !rc; i += count) {
		count = burst_at(s, l, i);
		rc = cnnps_await(s->c);
		if (!rc && i + count < l->count)
			rc = cnnps_prefetch(s->c);
		if (!rc && landed.g)
			rc = deliver(s, &landed, landed.version, 1, 0);
		if (!rc && i)
			rc = call_back(s, &flying);
		if (!rc)
			rc = launch(s, l, i, count, &next);
		if (!rc && i)
			rc = land_ahead(s, &flying, &landed);
		flying = next;
	}
	if (!rc && landed.g)
		rc = deliver(s, &landed, landed.version, 1, 0);
	if (!rc)
		rc = call_back(s, &flying);
	if (!rc)
		rc = land_ahead(s, &flying, &landed);
	return rc ? rc : deliver(s, &landed, landed.version, 1, 0);
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
	return s->info->prefetch ? run_bursts_ahead(s, lease) : run_bursts(s, lease);
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
