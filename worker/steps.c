/* steps.c - see steps.h. */
#include "worker/steps.h"
#include "worker/watchdog.h"
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/clock.h"
#include "common/clones.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/rng.h"
#include "worker/client/device.h"
#include "worker/client/show.h"

/* Maximum number of batches per call of the device. Between two calls the worker checks whether it
 * must stop, and reports progress. */
#define MAX_BATCHES_PER_CALL 64

/* ---- vectors --------------------------------------------------------------------------------- */

/* Computes to = from - rate * g. `to` may be `from`. */
PS_CLONES
static void sgd_step(float *to, const float *from, const float *g, float rate, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++)
		to[i] = from[i] - rate * g[i];
}

PS_CLONES
static void add_weighted(float *sum, const float *g, float weight, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++)
		sum[i] += weight * g[i];
}

PS_CLONES
static void scale_gradient(float *g, float factor, size_t n)
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

/* EAMSGD's Nesterov momentum (Zhang 2015, algorithm 2): v = m v - rate g(x + m v), x += v. This
 * function moves x to x + m v, the place at which the worker computes the gradient. nesterov_step
 * completes the step. */
PS_CLONES
static void nesterov_look_ahead(float *x, float *v, float momentum, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		v[i] *= momentum;
		x[i] += v[i];
	}
}

/* Completes a step that nesterov_look_ahead has begun, by subtracting the gradient. */
PS_CLONES
static void nesterov_step(float *x, float *v, const float *g, float rate, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		v[i] -= rate * g[i];
		x[i] -= rate * g[i];
	}
}

/* Makes an elastic update (Zhang 2015, arXiv 1412.6651), which moves x and the centre towards each
 * other. The server subtracts g from the centre, so g is the negative of the centre's move. */
PS_CLONES
static void elastic_update(float *g, float *x, const float *centre, float part, size_t n)
{
	PS_APART
	for (size_t i = 0; i < n; i++) {
		float e = part * (x[i] - centre[i]);

		x[i] -= e;
		g[i] = -e;
	}
}

static int ensure_buffer(float **buffer, size_t n)
{
	if (!*buffer)
		*buffer = mem_try(n, sizeof(**buffer));
	return *buffer ? PS_OK : PS_ENOMEM;
}

/* Pulls the newest weights into s->held. */
static int pull_held(struct steps *s)
{
	s->held = (struct cnnps_pull){.size = sizeof(s->held)};
	return cnnps_pull(s->c, &s->held);
}

/* Pulls as pull_held does, but the device checks the weights if it can: *xxh3 is the checksum that
 * the device must confirm, or 0 if the weights are already checked. */
static int pull_unchecked(struct steps *s, uint64_t *xxh3)
{
	s->held = (struct cnnps_pull){.size = sizeof(s->held)};
	return backend_hashes(s->backend) ? cnnps_pull_unchecked(s->c, &s->held, xxh3)
					  : cnnps_pull(s->c, &s->held);
}

/* Starts the pull that the next pull_held completes. */
static int start_pull(struct steps *s)
{
	return cnnps_pull(s->c,
		&(struct cnnps_pull){.size = sizeof(struct cnnps_pull), .flags = CNNPS_PULL_START});
}

static int wait_for_pull(struct steps *s)
{
	return cnnps_pull(s->c,
		&(struct cnnps_pull){.size = sizeof(struct cnnps_pull), .flags = CNNPS_PULL_WAIT});
}

/* ---- pull, batch, gradient, push: the parts that all modes use ------------------------------- */

/* Gets the newest weights into s->held, unless the last push returned them. */
static int hold_weights(struct steps *s)
{
	int has_pulled = s->has_pulled;

	s->has_pulled = 0;
	return has_pulled ? PS_OK : pull_held(s);
}

/* Requests the next batches of the lease, as many as the loader has room for. */
static int request_batches(struct steps *s, const struct cnnps_lease *l)
{
	int rc = PS_OK;

	while (!rc && s->loading.asked < l->first + l->count && loader_has_room(s->loader)) {
		struct loader_batch b = {.epoch = l->epoch, .number = s->loading.asked};

		rc = batches_get(&s->batches, l->epoch, b.number, &b.index, &b.n);
		if (!rc) {
			loader_ask(s->loader, &b);
			s->loading.asked++;
		}
	}
	return rc;
}

/* Makes the device use the images of batch `number`, which the loader has prepared. */
static int take_loaded(
	struct steps *s, const struct cnnps_lease *l, uint32_t number, struct batch *b)
{
	struct kx_images images = {0};
	int rc;

	if (s->loading.epoch != l->epoch || s->loading.next != number) {
		loader_reset(s->loader);
		s->loading.epoch = l->epoch;
		s->loading.next = s->loading.asked = number;
	}
	rc = request_batches(s, l);
	if (!rc && s->loading.asked == number)
		rc = PS_EPROTO; /* the lease has no such batch */
	if (!rc)
		rc = loader_take(s->loader, &images, s->e);
	if (!rc)
		rc = WATCHED(backend_use(s->backend, &images, s->e));
	if (rc)
		return rc;
	s->loading.next++;
	b->index = s->identity;
	b->images = (uint32_t)images.n;
	return request_batches(s, l);
}

static int take_batch(struct steps *s, const struct cnnps_lease *l, uint32_t i, struct batch *b)
{
	uint32_t number = l->first + i;

	b->i = i;
	b->dropout_seed =
		rng_seed(s->info->seed, RNG_DROPOUT, (uint64_t)l->epoch << 32 | number).state;
	if (s->cfg->stop && s->cfg->stop(s->cfg->stop_arg))
		return PS_ESHUTDOWN;
	cnnps_alive(s->c);
	if (s->held.weights && cnnps_show_requested(s->c))
		s->show(s->show_arg, s->held.weights);
	if (s->loader)
		return take_loaded(s, l, number, b);
	return batches_get(&s->batches, l->epoch, number, &b->index, &b->images);
}

/* Adds `count` batches from i on to the work of push `p`. The `count` batches have `images` images
 * with the mean loss `loss`. */
static void note_batches(struct steps *s, const struct cnnps_lease *l, uint32_t i, uint32_t count,
	uint32_t images, double loss, struct next_push *p)
{
	s->work->images += images;
	s->work->batches += count;
	if (!p->work.count)
		p->work = (struct cnnps_work){.epoch = l->epoch, .first = l->first + i};
	PS_ASSERT(p->work.first + p->work.count == l->first + i); /* invariant (1) */
	p->work.count += count;
	p->work.images += images;
	p->loss += loss * images;
}

/* Computes the gradient of batch `b` at the weights `w`, and writes it to `g`. */
static int compute_gradient(struct steps *s, const struct cnnps_lease *l, const struct batch *b,
	const float *w, float *g, struct next_push *p)
{
	double loss, start = clock_seconds();
	int rc = WATCHED(
		backend_gradient(s->backend, w, b->index, b->images, b->dropout_seed, g, &loss));

	if (rc)
		return rc;
	s->work->seconds += clock_seconds() - start;
	note_batches(s, l, b->i, 1, b->images, loss, p);
	return PS_OK;
}

/* Computes a gradient as compute_gradient does, and adds it to push `p`. Sets *g to the gradient of
 * this batch alone, which is valid until the next call. The first gradient of a push is computed in
 * the buffer of the push, without a copy. If `by_images` is 1, the gradient is multiplied by the
 * number of images of its batch. */
static int add_gradient(struct steps *s, const struct cnnps_lease *l, const struct batch *b,
	const float *w, struct next_push *p, int by_images, const float **g)
{
	size_t n = s->info->n_params;
	int is_first = !p->g, rc;
	float *to;

	if (is_first && !(p->g = cnnps_gradient(s->c)))
		return PS_ENOMEM;
	if (!is_first && ensure_buffer(&s->spare, n))
		return PS_ENOMEM;
	to = is_first ? p->g : s->spare;
	if ((rc = compute_gradient(s, l, b, w, to, p)))
		return rc;
	if (!is_first)
		add_weighted(p->g, to, by_images ? (float)b->images : 1, n);
	else if (by_images)
		scale_gradient(to, (float)b->images, n);
	*g = to;
	return PS_OK;
}

/* Returns the number by which the sum of the gradients in `p` is divided. */
static uint32_t divisor_of(const struct steps *s, const struct next_push *p)
{
	return s->info->push_sum ? 1 : p->work.count;
}

/* Divides the sum of the gradients in `p` by `divisor`. Divides the sum of the batches' running
 * statistics by the number of batches or, if `divisor` is larger, by `divisor`. `divisor` is larger
 * if it is the number of images, because the statistics of each batch were then multiplied by the
 * number of its images, too. */
static void divide_push(const struct steps *s, struct next_push *p, uint32_t divisor)
{
	size_t n = s->n_trained;
	uint32_t batches = divisor > p->work.count ? divisor : p->work.count;

	if (divisor > 1)
		divide(p->g, (float)divisor, n);
	if (batches > 1)
		divide(p->g + n, (float)batches, s->info->n_params - n);
}

/* Pushes `p`, whose gradient was computed at the weights of version `version`. If `then_pull` is 1,
 * the same request also pulls the weights after this push. */
static int deliver(struct steps *s, struct next_push *p, uint64_t version, int then_pull)
{
	int rc;

	p->work.loss = (float)(p->loss / p->work.images);
	if (p->xxh3)
		cnnps_set_checksum(s->c, p->xxh3);
	rc = cnnps_push(s->c, &(struct cnnps_push){.size = sizeof(struct cnnps_push),
				      .gradient = p->g,
				      .version = version,
				      .work = p->work,
				      .then = then_pull ? &s->held : NULL});
	s->has_pulled = then_pull && !rc;
	*p = (struct next_push){.g = NULL};
	return rc;
}

/* ---- downpour, ssp: every push is applied when it arrives ------------------------------------ */

static int is_last(const struct steps *s, uint32_t i)
{
	return i + 1 == s->lease->count;
}

/* Returns 1 if the worker must pull weights for the batch after batch i. */
static int pulls_next(const struct steps *s, uint32_t i)
{
	return !is_last(s, i) && (i + 1) % s->info->n_fetch == 0;
}

/* Makes a local step from the weights `from`, and sets s->w to the result. */
static int local_step(struct steps *s, const float *from, const float *g)
{
	if (s->info->local_rate == 0)
		return PS_OK;
	if (ensure_buffer(&s->own, s->info->n_params))
		return PS_ENOMEM;
	sgd_step(s->own, from, g, (float)s->info->local_rate, s->n_trained);
	s->w = s->own;
	return PS_OK;
}

void steps_begin(struct steps *s, const struct cnnps_lease *lease)
{
	s->lease = lease;
	s->has_pulled = 0;
	s->w = NULL;
	s->push = (struct next_push){.g = NULL};
}

int steps_pull(struct steps *s, uint32_t i)
{
	int rc = PS_OK;

	if (i % s->info->n_fetch == 0) {
		rc = hold_weights(s);
		s->w = s->held.weights;
		/* the push has gradients that the server does not have yet: apply them to the new
		 * weights */
		if (!rc && s->push.g)
			rc = local_step(s, s->held.weights, s->push.g);
	}
	if (!rc && pulls_next(s, i) && s->info->prefetch)
		rc = start_pull(s);
	return rc;
}

int steps_batch(struct steps *s, uint32_t i, struct batch *b)
{
	return take_batch(s, s->lease, i, b);
}

int steps_gradient(struct steps *s, const struct batch *b)
{
	const float *g;
	int rc = add_gradient(s, s->lease, b, s->w, &s->push, 0, &g);

	if (!rc && !is_last(s, b->i) && !pulls_next(s, b->i))
		rc = local_step(s, s->w, g);
	return rc;
}

int steps_push(struct steps *s, uint32_t i)
{
	int then_pull = pulls_next(s, i) && !s->info->prefetch;

	if (!is_last(s, i) && s->push.work.count < s->info->n_push)
		return PS_OK;
	/* divide_push does not change the gradient of one batch, so the device's checksum is
	 * right */
	if (s->push.work.count == 1)
		s->push.xxh3 = backend_sum_hash(s->backend);
	divide_push(s, &s->push, divisor_of(s, &s->push));
	return deliver(s, &s->push, s->held.version, then_pull);
}

int steps_push_rest(struct steps *s)
{
	if (!s->push.work.count)
		return PS_OK;
	divide_push(s, &s->push, divisor_of(s, &s->push));
	return deliver(s, &s->push, s->held.version, 0);
}

/* ---- sync, sandblaster: one push for the whole lease, at exactly its weights ----------------- */

static int holds_weights_of(const struct steps *s, const struct cnnps_lease *l)
{
	return s->held.weights && s->held.version == l->version && s->held.term == l->term;
}

int steps_run_exact(struct steps *s, const struct cnnps_lease *l)
{
	int by_images = l->count > 1, rc = PS_OK;
	struct next_push p = {.g = NULL};
	struct batch b;
	const float *g;

	if (!holds_weights_of(s, l) && (rc = pull_held(s)))
		return rc;
	if (!holds_weights_of(s, l))
		/* the step of this lease is over; the next lease is for a newer step */
		return PS_OK;
	for (uint32_t i = 0; i < l->count && !rc; i++) {
		rc = take_batch(s, l, i, &b);
		if (!rc)
			rc = add_gradient(s, l, &b, s->held.weights, &p, by_images, &g);
	}
	if (rc)
		return rc;
	divide_push(s, &p, by_images ? p.work.images : 1);
	return deliver(s, &p, s->held.version, 0);
}

/* ---- easgd: weights of the worker's own, tied to the centre ---------------------------------- */

static int start_at_centre(struct steps *s)
{
	size_t n = s->info->n_params;
	int rc = ensure_buffer(&s->own, n);

	if (!rc)
		rc = ensure_buffer(&s->spare, n);
	if (!rc && s->info->momentum > 0)
		rc = ensure_buffer(&s->velocity, n);
	if (!rc)
		rc = ensure_buffer(&s->statistics, n - s->n_trained + 1);
	if (!rc)
		rc = pull_held(s);
	if (!rc)
		memcpy(s->own, s->held.weights, n * sizeof(*s->own));
	s->started = !rc;
	return rc;
}

static int meet_centre(struct steps *s, struct next_push *p)
{
	const size_t n = s->n_trained, statistics = (s->info->n_params - n) * sizeof(float);
	int rc = pull_held(s);

	if (rc)
		return rc;
	if (!(p->g = cnnps_gradient(s->c)))
		return PS_ENOMEM;
	elastic_update(p->g, s->own, s->held.weights, (float)s->held.elastic, n);
	memcpy(p->g + n, s->statistics, statistics);
	memset(s->statistics, 0, statistics);
	divide_push(s, p, 1);
	return deliver(s, p, s->held.version, 0);
}

static int step_own_weights(
	struct steps *s, const struct cnnps_lease *l, uint32_t i, struct next_push *p)
{
	const struct cnnps_info *info = s->info;
	const size_t n = s->n_trained;
	float rate = (float)info->local_rate;
	struct batch b;
	int rc;

	if (s->velocity)
		nesterov_look_ahead(s->own, s->velocity, (float)info->momentum, n);
	if ((rc = take_batch(s, l, i, &b)))
		return rc;
	if ((rc = compute_gradient(s, l, &b, s->own, s->spare, p)))
		return rc;
	if (s->velocity)
		nesterov_step(s->own, s->velocity, s->spare, rate, n);
	else
		sgd_step(s->own, s->own, s->spare, rate, n);
	add_weighted(s->statistics, s->spare + n, 1, info->n_params - n);
	return PS_OK;
}

int steps_run_easgd(struct steps *s, const struct cnnps_lease *l)
{
	const struct cnnps_info *info = s->info;
	struct next_push p = {.g = NULL};
	int rc = s->started ? PS_OK : start_at_centre(s);

	for (uint32_t i = 0; i < l->count && !rc; i++) {
		int meets = i + 1 == l->count || p.work.count + 1 == info->n_push;

		if (meets && info->prefetch)
			rc = start_pull(s);
		if (!rc)
			rc = step_own_weights(s, l, i, &p);
		if (!rc && meets)
			rc = meet_centre(s, &p);
	}
	return rc;
}

/* ---- pipelined: from a pull to its push, the device keeps weights and sum -------------------- */

/*
 * Makes local steps on at most `left` whole batches from i on, in one call of the device. Sets
 * *done to the number of batches with which it has made steps. The batches are contiguous in the
 * epoch's order. Each batch has its own dropout seed, so a model with dropout takes one batch per
 * call.
 */
static int step_on_device(struct steps *s, const struct cnnps_lease *l, uint32_t i, uint32_t left,
	struct next_push *p, uint32_t *done)
{
	const uint32_t *last;
	uint32_t last_images;
	struct batch b;
	double start;
	int rc = take_batch(s, l, i, &b);

	*done = s->has_dropout ? 1 : left < MAX_BATCHES_PER_CALL ? left : MAX_BATCHES_PER_CALL;
	if (!rc && *done > 1)
		rc = batches_get(
			&s->batches, l->epoch, l->first + i + *done - 1, &last, &last_images);
	if (rc)
		return rc;
	if (*done > 1 && last_images != b.images)
		(*done)--; /* leave out the last batch of the epoch, which is smaller */
	start = clock_seconds();
	rc = WATCHED(backend_local_steps(
		s->backend, b.index, b.images, *done, (float)s->info->local_rate, b.dropout_seed));
	if (rc)
		return rc;
	s->work->seconds += clock_seconds() - start;
	note_batches(s, l, i, *done, *done * b.images, 0, p);
	return PS_OK;
}

static uint32_t push_size_at(const struct steps *s, const struct cnnps_lease *l, uint32_t i)
{
	return l->count - i < s->info->n_push ? l->count - i : s->info->n_push;
}

/* Starts the computation of the gradient of batch i at the weights s->held. Sets *images to the
 * number of images of this batch. */
static int start_gradient(
	struct steps *s, const struct cnnps_lease *l, uint32_t i, uint32_t *images)
{
	struct batch b;
	int rc = take_batch(s, l, i, &b);

	*images = b.images;
	return rc ? rc
		  : WATCHED(backend_gradient_start(
			    s->backend, s->held.weights, b.index, b.images, b.dropout_seed));
}

/* Submits the gradient of batch i to the device. */
static int submit_gradient(
	struct steps *s, const struct cnnps_lease *l, uint32_t i, struct next_push *p)
{
	uint32_t images;
	int rc = start_gradient(s, l, i, &images);

	if (!rc)
		note_batches(s, l, i, 1, images, 0, p);
	return rc;
}

/* Checks that the device has read the weights of `p`, the newest submitted gradient, without an
 * error. After an error, computes the gradient again at newer weights. `p` has the gradient of
 * batch i alone. No other round may be in flight. */
static int confirm_weights(
	struct steps *s, const struct cnnps_lease *l, uint32_t i, struct next_push *p)
{
	uint64_t xxh3;
	uint32_t images;
	int rc = p->weights_xxh3 ? WATCHED(backend_start_hash(s->backend, &xxh3)) : PS_OK;

	if (rc || !p->weights_xxh3 || xxh3 == p->weights_xxh3)
		return rc;
	cnnps_note_wrong_checksum(s->c);
	rc = WATCHED(backend_local_finish(s->backend, NULL, NULL));
	if (!rc)
		rc = WATCHED(backend_local_wait(s->backend, NULL));
	if (!rc)
		rc = pull_held(s); /* checks the weights */
	if (!rc)
		rc = start_gradient(s, l, i, &images);
	p->version = s->held.version;
	p->weights_xxh3 = 0;
	return rc;
}

/* Submits the steps of one push to the device. */
static int submit_steps(struct steps *s, const struct cnnps_lease *l, uint32_t i, uint32_t count,
	struct next_push *p)
{
	uint64_t xxh3 = 0;
	int rc = s->info->n_push == 1 ? pull_unchecked(s, &xxh3) : hold_weights(s);
	uint32_t done;

	*p = (struct next_push){.version = s->held.version, .weights_xxh3 = xxh3};
	if (!rc && s->info->n_push == 1)
		return submit_gradient(s, l, i, p);
	if (!rc)
		rc = WATCHED(backend_local_start(s->backend, s->held.weights));
	for (uint32_t left = count; left && !rc; left -= done)
		rc = step_on_device(s, l, i + count - left, left, p, &done);
	return rc;
}

/* Starts to copy the sum of the gradients of the newest submitted steps to the buffer of a push,
 * which can be in memory of the device if the CPU does not use the values. */
static int read_back(struct steps *s, struct next_push *p)
{
	p->g = s->info->n_push == 1 && backend_hashes(s->backend) ? cnnps_device_gradient(s->c)
								  : cnnps_gradient(s->c);
	return p->g ? WATCHED(backend_local_finish(s->backend, NULL, p->g)) : PS_ENOMEM;
}

/* Waits until the sum of the oldest submitted steps is on the host. */
static int complete_steps(struct steps *s, struct next_push *p)
{
	double loss, start = clock_seconds();
	int rc = WATCHED(backend_local_wait(s->backend, &loss));

	if (rc)
		return rc;
	s->work->seconds += clock_seconds() - start;
	p->loss = loss * p->work.images;
	p->xxh3 = s->info->n_push == 1 ? backend_sum_hash(s->backend) : 0;
	return PS_OK;
}

/* Makes the pushes of a lease one after the other. The answer to each push has the weights for the
 * next push. */
static int run_serially(struct steps *s, const struct cnnps_lease *l)
{
	struct next_push p;
	uint32_t count;
	int rc = PS_OK;

	for (uint32_t i = 0; i < l->count && !rc; i += count) {
		count = push_size_at(s, l, i);
		rc = submit_steps(s, l, i, count, &p);
		if (!rc)
			rc = read_back(s, &p);
		if (!rc)
			rc = complete_steps(s, &p);
		if (rc)
			break;
		divide_push(s, &p, divisor_of(s, &p));
		rc = deliver(s, &p, p.version, i + count < l->count);
	}
	return rc;
}

/* Completes the steps of a push and divides the sum of its gradients. The division is done here,
 * and not in `deliver`, so that it does not delay the push. */
static int complete_in_flight(
	struct steps *s, struct next_push *in_flight, struct next_push *completed)
{
	int rc = complete_steps(s, in_flight);

	if (rc)
		return rc;
	divide_push(s, in_flight, divisor_of(s, in_flight));
	*completed = *in_flight;
	return PS_OK;
}

/* Sends the last push of a worker that has been stopped. If a push has one batch, this push is the
 * completed gradient or, if there is none, the gradient that the device computes now. If a push has
 * several batches, pushes nothing, because the device may not have all of its steps yet. Returns
 * PS_ESHUTDOWN or an error. */
static int push_in_flight(struct steps *s, struct next_push *in_flight, struct next_push *completed)
{
	int rc = PS_OK;

	if (s->info->n_push > 1 || (!in_flight->g && !completed->g))
		return PS_ESHUTDOWN;
	if (!completed->g)
		rc = complete_in_flight(s, in_flight, completed);
	if (!rc)
		rc = deliver(s, completed, completed->version, 0);
	return rc ? rc : PS_ESHUTDOWN;
}

/* Starts the pull of the next weights if `pulls` is 1, and sends the completed push if there is
 * one. If the server reads the gradient with a GPU of its own, one message does both, and the
 * weights include the push. Otherwise the pull goes first, because the server needs longer for the
 * push. */
static int pull_and_deliver(struct steps *s, struct next_push *completed, int pulls)
{
	int rc = PS_OK;

	if (pulls && completed->g && cnnps_is_apart(s->c, completed->g))
		cnnps_start_pull_with_push(s->c);
	else if (pulls)
		rc = start_pull(s);
	return rc || !completed->g ? rc : deliver(s, completed, completed->version, 0);
}

/*
 * Makes the pushes of a lease with prefetch, so that three pushes overlap: the device computes the
 * newest push, the second push is ready to be sent, and the oldest push is on its way to the
 * server. At the same time the weights for the next push arrive. Of these three pushes, the weights
 * include only the oldest or none (pull_and_deliver). The worker sends a push as soon as new
 * weights have arrived, before it verifies them, because the transfers and the server's update take
 * more time than all other parts.
 */
static int run_overlapped(struct steps *s, const struct cnnps_lease *l)
{
	struct next_push next = {.g = NULL}, in_flight = {.g = NULL}, completed = {.g = NULL};
	struct batch b;
	uint32_t count;
	int rc = start_pull(s);

	/* take the batch while the weights arrive: if it is the first batch of an epoch, this
	 * computes the order of the epoch, which takes time */
	if (!rc)
		rc = take_batch(s, l, 0, &b);
	for (uint32_t i = 0; i < l->count && !rc; i += count) {
		count = push_size_at(s, l, i);
		rc = wait_for_pull(s);
		if (!rc)
			rc = pull_and_deliver(s, &completed, i + count < l->count);
		if (!rc && i)
			rc = read_back(s, &in_flight);
		if (!rc)
			rc = submit_steps(s, l, i, count, &next);
		if (!rc && i)
			rc = complete_in_flight(s, &in_flight, &completed);
		if (!rc)
			rc = confirm_weights(s, l, i, &next);
		if (!rc)
			in_flight = next;
	}
	if (rc == PS_ESHUTDOWN)
		return push_in_flight(s, &in_flight, &completed);
	if (!rc && completed.g)
		rc = deliver(s, &completed, completed.version, 0);
	if (!rc)
		rc = read_back(s, &in_flight);
	if (!rc)
		rc = complete_in_flight(s, &in_flight, &completed);
	return rc ? rc : deliver(s, &completed, completed.version, 0);
}

int steps_are_pipelined(const struct steps *s)
{
	int overlaps = s->info->prefetch && (s->cfg->overlaps || backend_overlaps(s->backend));

	return s->info->n_push == s->info->n_fetch && !s->loader &&
	       (s->info->n_push > 1 || overlaps);
}

int steps_run_pipelined(struct steps *s, const struct cnnps_lease *l)
{
	s->has_pulled = 0;
	return s->info->prefetch ? run_overlapped(s, l) : run_serially(s, l);
}

/* ---- life cycle ------------------------------------------------------------------------------ */

int steps_init(struct steps *s, uint32_t n_train)
{
	s->has_dropout = strstr(s->info->model, "dropout") != NULL;
	batches_init(&s->batches, s->info->seed, n_train, s->info->batch);
	if (!s->loader)
		return PS_OK;
	uint32_t max = s->info->batch < n_train ? s->info->batch : n_train;

	s->identity = mem_try(max, sizeof(*s->identity));
	for (uint32_t i = 0; s->identity && i < max; i++)
		s->identity[i] = i;
	return s->identity ? PS_OK : PS_ENOMEM;
}

void steps_release(struct steps *s)
{
	free(s->own);
	free(s->spare);
	free(s->velocity);
	free(s->statistics);
	free(s->identity);
	batches_release(&s->batches);
}
