/* mode_options.c - see mode_options.h. */
#include "server/mode_options.h"
#include "server/core/lbfgs.h"

#define EASGD_PUSH 4 /* batches between two meetings with the centre */
#define EASGD_RATE 0.2
#define SYNC_RATE  0.1 /* with momentum, 2 to 8 workers of 100 images each */
#define LOCAL_RATE 0.1 /* suits MNIST with the demo's model (docs/modes.md) */

static enum mode mode_of(const struct mode_raw *r)
{
	return (enum mode)(r->mode + 1);
}

enum optim_kind mode_optimizer(const struct mode_raw *r)
{
	switch (mode_of(r)) {
	case MODE_SYNC:
		return OPTIM_MOMENTUM;
	case MODE_SANDBLASTER:
		return OPTIM_LBFGS;
	case MODE_EASGD:
		return OPTIM_SGD;
	default:
		return OPTIM_ADAGRAD;
	}
}

double mode_rate(const struct mode_raw *r, enum optim_kind optim, double usual)
{
	/* a step's gradient is the mean of several workers': less noise allows a larger rate */
	if (mode_of(r) == MODE_SYNC && (optim == OPTIM_MOMENTUM || optim == OPTIM_NESTEROV))
		return SYNC_RATE;
	return usual;
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
	if (r->lbfgs_armijo >= r->lbfgs_wolfe)
		return "--lbfgs-armijo: not less than --lbfgs-wolfe";
	return NULL;
}

static uint32_t given(int64_t value, uint32_t otherwise)
{
	return value > 0 ? (uint32_t)value : otherwise;
}

void mode_fill(struct core_config *c, const struct mode_raw *r)
{
	int easgd = mode_of(r) == MODE_EASGD;

	c->mode = mode_of(r);
	c->n_push = given(r->n_push, easgd ? EASGD_PUSH : 1);
	c->n_fetch = given(r->n_fetch, 1);
	c->push_sum = r->push;
	c->prefetch = r->prefetch;
	c->local_rate = r->local_rate >= 0 ? r->local_rate : easgd ? EASGD_RATE : LOCAL_RATE;
	c->elastic = r->elastic;
	c->dc_lambda = r->delay == 0      ? 0
		       : r->dc_lambda > 0 ? r->dc_lambda
		       : r->delay == 1    ? 0.04
					  : 2;
	c->dc_adaptive = r->delay == 2;
	c->ssp_bound = (uint32_t)r->ssp_bound;
	c->sync_spares = (uint32_t)r->sync_spares;
	c->batch_images = (uint32_t)r->batch_images;
	c->lbfgs_history = (uint32_t)r->lbfgs_history;
	c->lbfgs_trials = (uint32_t)r->lbfgs_trials;
	c->lbfgs_armijo = r->lbfgs_armijo;
	c->lbfgs_wolfe = r->lbfgs_wolfe;
	if (easgd)
		c->warm_updates = 0; /* an update is many batches, and nobody's steps are wild */
	if (c->lease_batches < c->n_push)
		c->lease_batches = c->n_push; /* a push lies inside one lease */
}
