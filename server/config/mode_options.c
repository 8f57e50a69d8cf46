/* mode_options.c - see mode_options.h. */
#include "server/config/mode_options.h"
#include "server/core/lbfgs.h"

#define EASGD_RATE 0.13
#define SYNC_RATE  0.3 /* of one worker, with SYNC_CLIP */
#define SYNC_CLIP  0.5
/* an update is a step on the whole set (L-BFGS) or on a tenth of MNIST's */
#define SANDBLASTER_EPOCHS 30
#define SANDBLASTER_BATCH  6000
#define LOCAL_RATE         0.1 /* suits MNIST with the demo's model (docs/modes.md) */

static enum mode mode_of(const struct mode_raw *r)
{
	return (enum mode)(r->mode + 1);
}

enum optim_kind mode_optimizer(const struct mode_raw *r)
{
	switch (mode_of(r)) {
	case MODE_SYNC:
		return OPTIM_NESTEROV;
	case MODE_SANDBLASTER:
		return OPTIM_LBFGS;
	case MODE_EASGD:
		return OPTIM_SGD;
	default:
		return OPTIM_RMSPROP;
	}
}

double mode_rate(const struct mode_raw *r, enum optim_kind optim, double usual)
{
	/* a step's gradient is the mean of several workers': less noise allows a larger rate */
	if (mode_of(r) == MODE_SYNC && (optim == OPTIM_MOMENTUM || optim == OPTIM_NESTEROV))
		return SYNC_RATE;
	return usual;
}

static uint32_t given(int64_t value, uint32_t otherwise)
{
	return value > 0 ? (uint32_t)value : otherwise;
}

double mode_clip_norm(const struct mode_raw *r)
{
	return mode_of(r) == MODE_SYNC ? SYNC_CLIP : 0;
}

uint32_t mode_epochs(const struct mode_raw *r)
{
	return mode_of(r) == MODE_SANDBLASTER ? SANDBLASTER_EPOCHS : 3;
}

const char *mode_check(const struct mode_raw *r, int optim, int64_t epochs)
{
	enum mode mode = mode_of(r);

	if (epochs == 0 && mode != MODE_DOWNPOUR)
		return "--mode: without a data set (--epochs 0) there is only downpour";
	if (optim == OPTIM_LBFGS && mode != MODE_SANDBLASTER)
		return "--optimizer: lbfgs needs --mode sandblaster";
	if (mode == MODE_EASGD && optim >= 0 && optim != OPTIM_SGD)
		return "--optimizer: the centre of --mode easgd moves by itself: leave it out";
	if ((mode == MODE_SYNC || mode == MODE_SANDBLASTER) && (r->n_push > 1 || r->n_fetch > 1))
		return "--n-push, --n-fetch: of modes downpour, ssp and easgd only";
	if (r->delay > 0 && mode != MODE_DOWNPOUR && mode != MODE_SSP)
		return "--delay-compensation: of modes downpour and ssp only";
	if (r->delay > 0 && given(r->n_fetch, 1) % given(r->n_push, 1) != 0)
		return "--delay-compensation: --n-fetch must be a multiple of --n-push, so that "
		       "all gradients of a push are of one version of the weights";
	if (r->delay > 0 && r->push && given(r->n_push, 1) > 1)
		return "--delay-compensation: a sum of several gradients would be compensated too "
		       "much: use --push mean";
	if (r->buffer > 1 && mode != MODE_DOWNPOUR && mode != MODE_SSP)
		return "--buffer-size: of modes downpour and ssp only";
	if (r->push && mode == MODE_SANDBLASTER)
		return "--push: a step of --mode sandblaster is the mean over its images: use "
		       "--push mean";
	if (r->push && mode == MODE_SYNC && r->lr_scaling > 1)
		return "--lr-scaling: --push sum makes the rate of a sync step N times as large "
		       "already: leave one of them out";
	if (r->lbfgs_armijo >= r->lbfgs_wolfe)
		return "--lbfgs-armijo: not less than --lbfgs-wolfe";
	return NULL;
}

/* Measured (docs/modes.md): a step of n gradients gains from sqrt(n); a stale gradient of an
 * adaptive optimizer needs 1 / sqrt(1 + tau), of SGD and momentum 1 / (1 + tau). */
static enum lr_scaling auto_scaling(const struct mode_raw *r, enum optim_kind optim)
{
	switch (mode_of(r)) {
	case MODE_SYNC: /* a sum of n gradients is scaled by n already */
		return r->push ? LR_SCALING_NONE : LR_SCALING_SQRT;
	case MODE_DOWNPOUR:
	case MODE_SSP:
		return optim == OPTIM_ADAGRAD || optim == OPTIM_RMSPROP || optim == OPTIM_ADAM
			       ? LR_SCALING_SQRT
			       : LR_SCALING_LINEAR;
	default:
		return LR_SCALING_NONE;
	}
}

static enum lr_scaling scaling_of(const struct mode_raw *r, enum optim_kind optim)
{
	return r->lr_scaling == 0 ? auto_scaling(r, optim) : (enum lr_scaling)(r->lr_scaling - 1);
}

/* An optimizer other than L-BFGS needs more steps than one per pass. */
static uint32_t batch_images(const struct core_config *c, int64_t told)
{
	if (told >= 0)
		return (uint32_t)told;
	return c->training.mode == MODE_SANDBLASTER && c->optim.kind != OPTIM_LBFGS
		       ? SANDBLASTER_BATCH
		       : 0;
}

void mode_fill(struct core_config *c, const struct mode_raw *r)
{
	int easgd = mode_of(r) == MODE_EASGD;

	c->training.mode = mode_of(r);
	c->push.n_push = given(r->n_push, 1);
	c->push.n_fetch = given(r->n_fetch, 1);
	c->push.sum = r->push;
	c->push.prefetch = r->prefetch;
	c->push.local_lr = r->local_rate >= 0 ? r->local_rate : easgd ? EASGD_RATE : LOCAL_RATE;
	c->easgd.beta = r->easgd_beta;
	c->easgd.momentum = r->easgd_momentum;
	c->rate.scaling = scaling_of(r, c->optim.kind);
	c->rate.scaling_warmup = (uint32_t)r->lr_scaling_warmup;
	c->dc.lambda = r->delay == 0      ? 0
		       : r->dc_lambda > 0 ? r->dc_lambda
		       : r->delay == 1    ? 0.04
					  : 2;
	c->dc.adaptive = r->delay == 2;
	c->ssp.bound = (uint32_t)r->ssp_bound;
	c->push.buffer_size = (uint32_t)r->buffer;
	c->sync.workers = (uint32_t)r->sync_workers;
	c->sync.backup_workers = (uint32_t)r->backup_workers;
	c->sandblaster.step_images = batch_images(c, r->batch_images);
	c->lbfgs.history = (uint32_t)r->lbfgs_history;
	c->lbfgs.trials = (uint32_t)r->lbfgs_trials;
	c->lbfgs.armijo = r->lbfgs_armijo;
	c->lbfgs.wolfe = r->lbfgs_wolfe;
	if (easgd)
		c->leases.warm_start_updates =
			0; /* an update is many batches, and nobody's steps are wild */
	if (c->leases.max_batches < c->push.n_push)
		c->leases.max_batches = c->push.n_push; /* a push lies inside one lease */
}
