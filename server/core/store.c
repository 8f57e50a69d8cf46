/*
 * store.c - the weights and the only code that changes them.
 *
 * Invariants:
 * (1) the version grows by one with each update, which applies a gradient or the mean of several
 *     (asserted by assert_versions in ledger.c;
 *     the_version_grows_by_one_for_each_gradient_applied);
 * (2) a rejected gradient makes no version, and without a new version every byte of the weights and
 *     of the optimizer's state stays as it was: the core checks the whole push before it applies
 *     any value (asserted by assert_versions in ledger.c for the version;
 *     tests/support/core_invariants.c for the bytes, tests/unit/test_core_reject.c);
 * (3) weights and optimizer state stay finite: store_check rejects values over STORE_MAX_VALUE, and
 *     store_holds rejects a step whose result could leave the range of float32 (asserted by
 *     carry_out_plan for the bounds of all values; tests/support/core_invariants.c for the values,
 *     tests/unit/test_core_finite.c).
 */
#include "server/core/store.h"
#include "common/assert.h"
#include "common/clones.h"
#include "server/core/blocks.h"
#include "server/core/core_state.h"
#include "server/core/effects.h"
#include "server/core/optim.h"
#include "server/core/vec.h"
#include <float.h>
#include <math.h>
#include <string.h>

static uint32_t bits_of(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

PS_CLONES static uint32_t values_peak(const float *g, size_t n)
{
	uint32_t peak = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t magnitude = bits_of(g[i]) & 0x7fffffffu;

		peak = magnitude > peak ? magnitude : peak;
	}
	return peak;
}

static double magnitude_of_block(const void *arg, size_t from, size_t n)
{
	const float *g = arg;

	return values_peak(g + from, n); /* the double is exact, because it holds every uint32_t */
}

/* Returns the values of a slice, in memory that the CPU can read. */
static const float *readable_values(const struct core *c, const struct slice *s)
{
	const struct param_device *d = c->cfg.device;

	return d ? d->readable(d->self, s->data, s->count) : s->data;
}

static uint32_t slice_peak(const struct core *c, const struct slice *s)
{
	return s->peak ? s->peak
		       : (uint32_t)blocks_max(
				 &c->blocks, s->count, magnitude_of_block, readable_values(c, s));
}

double store_peak(const struct core *c, const struct slices *s)
{
	uint32_t max = 0;
	float value;

	for (uint32_t i = 0; i < s->n; i++) {
		uint32_t peak = slice_peak(c, &s->slice[i]);

		max = peak > max ? peak : max;
	}
	memcpy(&value, &max, sizeof(value));
	return (double)value;
}

/* Returns 1 if a value is too large, infinite or NaN, that is, its magnitude bits exceed those of
 * STORE_MAX_VALUE. */
static int any_wild(const struct core *c, const struct slice *s)
{
	return slice_peak(c, s) > bits_of((float)STORE_MAX_VALUE);
}

/* Returns the sum of the squares of the first `n` values of slice `p`. The code that received the
 * push may have computed this sum already, in the same order. */
static double slice_squares(const struct core *c, const struct slice *p, size_t n)
{
	if (p->squared == n && n > 0 && engine_block_values(c->blocks.engine) == ENGINE_BLOCK)
		return p->squares;
	return blocks_squares(&c->blocks, readable_values(c, p), n);
}

/* Returns the sum of the squares of the gradient in all slices, which it always adds in the same
 * order. */
static double sum_of_squares(const struct core *c, const struct slices *s)
{
	double sum = 0;

	if (s == c->store.checked)
		return c->store.squares;
	for (uint32_t i = 0; i < s->n; i++) {
		const struct slice *p = &s->slice[i];

		sum += slice_squares(c, p, (size_t)store_n_trained(c, p));
	}
	return sum;
}

double store_norm(const struct core *c, const struct slices *s)
{
	return sqrt(sum_of_squares(c, s));
}

uint64_t store_print(const struct core *c, const struct slices *s)
{
	uint64_t print = 1;

	for (uint32_t i = 0; i < s->n; i++)
		print = (print ^ s->slice[i].offset ^
				vec_print(readable_values(c, &s->slice[i]), s->slice[i].count)) *
			UINT64_C(0x9e3779b97f4a7c15);
	return print;
}

int core_reads_gradients(const struct core_config *cfg)
{
	const enum mode mode = cfg->training.mode;

	return !cfg->device || cfg->dc.kind || cfg->push.buffer_size > 1 ||
	       cfg->push.aggregate != AGGREGATE_MEAN || cfg->checkpoint.wal ||
	       (mode != MODE_DOWNPOUR && mode != MODE_SSP);
}

int store_needs_squares(const struct core_config *cfg)
{
	return cfg->limits.reject_norm > 0 || cfg->limits.norm_ratio > 0 ||
	       cfg->optim.clip_norm > 0;
}

/* Computes the sum of squares of a push once, if an option needs it. */
static void measure_push(struct core *c, const struct slices *s)
{
	struct store *st = &c->store;

	if (!store_needs_squares(&c->cfg))
		return;
	st->squares = sum_of_squares(c, s);
	st->checked = s;
}

enum reject store_check(struct core *c, const struct slices *s)
{
	for (uint32_t i = 0; i < s->n; i++) {
		const struct slice *p = &s->slice[i];

		if (p->count > c->store.n || p->offset > c->store.n - p->count)
			return REJECT_SHAPE;
		if (any_wild(c, p))
			return REJECT_NONFINITE;
	}
	measure_push(c, s);
	if (c->cfg.limits.reject_norm > 0 && store_norm(c, s) > c->cfg.limits.reject_norm)
		return REJECT_NORM;
	return REJECT_NONE;
}

/* ---- what a step could overflow -----------------------------------------------------------------
 *
 * The bounds of all magnitudes grow with each step, so most steps are checked in constant time.
 * When the bounds reach the limit, the core measures the values and checks the step again. The
 * result of the check therefore does not depend on the last time at which the core measured the
 * values. */

static void measure_values(struct core *c, const struct optim_step *step)
{
	struct store *st = &c->store;
	const float *state[OPTIM_VECTORS];

	store_fetch(c);
	memcpy(state, st->state, sizeof(state));
	optim_measure(&c->cfg.optim, step, st->weights, state, st->trained, &st->reach);
	st->measured = 1;
}

static int plan(struct core *c, const struct optim_step *step, double peak)
{
	struct store *st = &c->store;

	st->planned = st->reach;
	return optim_advance(&c->cfg.optim, step, peak, &st->planned);
}

int store_holds(struct core *c, double peak, double eta)
{
	struct store *st = &c->store;
	/* factor 1 for the gradient, because clipping never enlarges a step */
	const struct optim_step step = {c->stats.updates + 1, eta, 1};

	if (c->cfg.optim.kind == OPTIM_LBFGS) /* lbfgs.c bounds its own steps */
		return peak <= (double)FLT_MAX;
	st->is_planned = st->measured && plan(c, &step, peak);
	if (!st->is_planned) {
		measure_values(c, &step);
		st->is_planned = plan(c, &step, peak);
	}
	return st->is_planned;
}

/* Returns 1 if all values within these bounds are finite float32. */
static int is_in_range(const struct optim_reach *r)
{
	int ok = r->weight <= (double)FLT_MAX;

	for (size_t i = 0; i < OPTIM_VECTORS; i++)
		ok &= r->state[i] <= (double)FLT_MAX;
	return ok;
}

/* Called when the core takes a step: makes the bounds that store_holds planned for this step the
 * current ones. If store_holds planned no bounds, the bounds are unknown from now on. */
static void carry_out_plan(struct store *st)
{
	PS_ASSERT(!st->is_planned || is_in_range(&st->planned)); /* invariant 3 */
	st->measured = st->is_planned;
	st->reach = st->planned;
	st->is_planned = 0;
}

/* ---- applying -------------------------------------------------------------------------------- */

static size_t within(size_t x, size_t from, size_t to)
{
	return x < from ? from : x > to ? to : x;
}

/* Moves n running statistics from `from` towards the statistics of the batches. Each result lies
 * between the old value and the batch's value, so it is finite. The values in `batch` can have any
 * magnitude up to STORE_MAX_VALUE, unless running.c has limited them. */
static void move_running(float *to, const float *from, const float *batch, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = (float)((1 - RUNNING_PART) * (double)from[i] +
				RUNNING_PART * (double)batch[i]);
}

/* Computes values [from, to) of the update with slice `p` of the gradient. */
static void compute_from_slice(const struct core *c, const struct slice *p, size_t from, size_t to)
{
	const struct update *u = &c->store.update;
	const size_t trained = within(c->store.trained, from, to);
	float *state[OPTIM_VECTORS];

	move_running(
		u->to + trained, u->from + trained, p->data + (trained - p->offset), to - trained);
	to = trained;
	for (size_t i = 0; i < OPTIM_VECTORS; i++)
		state[i] = c->store.state[i] ? c->store.state[i] + from : NULL;
	optim_apply(&c->cfg.optim, &u->step, u->to + from, u->from + from,
		p->data + (from - p->offset), state, to - from);
}

/* Copies the weights [from, to), for which this push has no gradient. */
static void compute_unchanged(const struct update *u, size_t from, size_t to)
{
	if (u->to != u->from && from < to)
		memcpy(u->to + from, u->from + from, (to - from) * sizeof(float));
}

/* Returns the first value of block `block`, or the end of the vector. */
static size_t begin_of(const struct core *c, size_t block)
{
	size_t begin = block * engine_block_values(c->blocks.engine);

	return begin < c->store.n ? begin : c->store.n;
}

/* Computes block `block` of the pending update. Several threads may run this function at the same
 * time, each with another block. */
static void compute_update_block(void *arg, size_t block)
{
	const struct core *c = arg;
	const struct update *u = &c->store.update;
	size_t at = begin_of(c, block), to = begin_of(c, block + 1);

	/* the slices are in ascending order and do not overlap */
	for (uint32_t i = 0; i < u->slices.n; i++) {
		const struct slice *p = &u->slices.slice[i];
		size_t begin = within(p->offset, at, to);
		size_t end = within(p->offset + p->count, at, to);

		compute_unchanged(u, at, begin);
		if (begin < end)
			compute_from_slice(c, p, begin, end);
		at = end;
	}
	compute_unchanged(u, at, to);
}

/* Begins the pending update on the device. Before the first update, the function copies the weights
 * and the optimizer's state to the device. */
static void begin_on_device(struct core *c)
{
	const struct param_device *d = c->cfg.device;
	const struct update *u = &c->store.update;
	struct device_step step = {.rule = optim_device_rule(c->cfg.optim.kind),
		.coeff = optim_coeff(&c->cfg.optim, &u->step),
		.running = RUNNING_PART,
		.trained = c->store.trained};

	if (!c->store.on_device)
		d->load(d->self, u->from, c->store.state);
	c->store.on_device = 1;
	c->store.deferred = c->store.defers;
	d->begin(d->self, c->store.defers ? NULL : u->to);
	for (uint32_t i = 0; i < u->slices.n; i++) {
		const struct slice *p = &u->slices.slice[i];

		step.offset = p->offset;
		step.count = p->count;
		step.gradient = p->data;
		d->step(d->self, &step);
	}
}

static void begin_update(struct core *c)
{
	struct update *u = &c->store.update;

	u->job = (struct engine_job){
		compute_update_block, c, engine_blocks(c->blocks.engine, c->store.n)};
	if (c->cfg.device)
		begin_on_device(c);
	else
		engine_begin(c->blocks.engine, &u->job);
}

static void await_block(struct core *c, size_t block)
{
	const struct param_device *d = c->cfg.device;

	if (d)
		d->wait(d->self, begin_of(c, block + 1));
	else
		engine_wait(c->blocks.engine, &c->store.update.job, block);
}

void store_fetch_weights(struct core *c)
{
	const struct param_device *d = c->cfg.device;

	store_complete(c);
	if (c->store.deferred)
		d->weights(d->self, c->store.weights);
	c->store.deferred = 0;
}

void store_fetch(struct core *c)
{
	const struct param_device *d = c->cfg.device;

	store_fetch_weights(c);
	if (c->store.on_device && optim_vectors(c->cfg.optim.kind) > 0)
		d->fetch(d->self, c->store.state);
}

int store_keep(const struct core *c)
{
	const struct param_device *d = c->cfg.device;

	PS_ASSERT(!c->store.update.pending);
	return d && c->store.on_device && d->keep(d->self);
}

size_t store_compute(struct core *c, const float **values)
{
	struct update *u = &c->store.update;

	if (!u->pending)
		return 0;
	if (u->done == 0)
		begin_update(c);
	size_t block = u->done++, from = begin_of(c, block);
	await_block(c, block);
	u->pending = u->done < u->job.n;
	*values = u->to + from;
	return begin_of(c, u->done) - from;
}

size_t store_update_blocks(const struct core *c)
{
	const struct update *u = &c->store.update;

	return u->pending && u->done == 0 && !c->cfg.device
		       ? engine_blocks(c->blocks.engine, c->store.n)
		       : 0;
}

void store_compute_block(struct core *c, size_t block)
{
	compute_update_block(c, block);
}

void store_end_update(struct core *c)
{
	PS_ASSERT(c->store.update.pending && c->store.update.done == 0);
	c->store.update.pending = 0;
}

void store_complete(struct core *c)
{
	const float *values;

	while (store_compute(c, &values))
		;
}

float *store_scratch(struct core *c)
{
	store_complete(c);
	return c->store.scratch;
}

void store_apply(struct core *c, const struct slices *s, double eta, double scale)
{
	struct store *st = &c->store;
	struct update *u = &st->update;

	/* this step of the core may have decided another update before this one */
	store_complete(c);
	u->pending = 1;
	u->done = 0;
	u->from = st->weights;
	u->to = store_next(c);
	double clip =
		c->cfg.optim.clip_norm > 0 ? optim_clip(&c->cfg.optim, sum_of_squares(c, s)) : 1;

	u->step = (struct optim_step){c->stats.updates + 1, eta, vec_smaller(clip, scale)};
	u->slices.n = s->n;
	memcpy(u->slices.slice, s->slice, s->n * sizeof(s->slice[0]));
	carry_out_plan(st);
	store_publish(c, u->to);
}

void store_step(struct core *c, const float *g, double eta)
{
	PS_UNINITIALIZED struct slices s;

	s.n = 1;
	s.slice[0] = (struct slice){.count = c->store.n, .data = g};
	store_apply(c, &s, eta, 1);
}

double store_rate(const struct core *c)
{
	uint64_t total = (uint64_t)c->cfg.training.epochs * core_train_images(c);

	return c->cfg.rate.lr *
	       schedule_factor(&c->cfg.schedule, c->stats.images, total, c->cfg.training.epochs);
}

double store_scale(const struct core *c, double gradients, double tau)
{
	return lr_scaling_factor(c->cfg.rate.scaling, gradients / (1 + tau), c->stats.updates,
		c->cfg.rate.scaling_warmup);
}

double store_scaled_rate(const struct core *c, double gradients, double tau)
{
	return store_rate(c) * store_scale(c, gradients, tau);
}

float *store_next(struct core *c)
{
	return c->store.next_buffer ? c->store.next_buffer : c->store.weights;
}

void store_publish(struct core *c, float *next)
{
	struct store *st = &c->store;

	st->weights = next;
	st->next_buffer = NULL;
	st->version++;
	st->version_term = c->cfg.term;
	c->stats.version = st->version;
	effects_add_version(c);
}

uint64_t store_n_trained(const struct core *c, const struct slice *s)
{
	uint64_t n = s->offset < c->store.trained ? c->store.trained - s->offset : 0;

	return s->count < n ? s->count : n;
}

int store_is_current(const struct core *c, const struct msg_push *p)
{
	return p->base_version == c->store.version && p->base_term >= c->store.version_term &&
	       p->base_term <= c->cfg.term;
}

void store_freeze(struct core *c)
{
	store_fetch_weights(c);
	blocks_copy(&c->blocks, c->store.eval_weights, c->store.weights, c->store.n);
	c->store.eval_version = c->store.version;
	c->store.has_eval = 1;
}
