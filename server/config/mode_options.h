/*
 * mode_options.h - the options of the modes: what they mean together, and what each mode takes when
 * it is not told otherwise. The rows are in options.c's table.
 *
 * Thread: main, at start-up.
 */
#ifndef SERVER_CONFIG_MODE_OPTIONS_H
#define SERVER_CONFIG_MODE_OPTIONS_H
#include <stdint.h>
#include "server/core/core.h"

#define MODE_NAMES       "downpour|ssp|sync|sandblaster|easgd"
#define PUSH_NAMES       "mean|sum"
#define DELAY_NAMES      "none|constant|adaptive"
#define LR_SCALING_NAMES "auto|none|sqrt|linear"

/* As the table fills it; negative: not given. */
struct mode_raw {
	int mode; /* index in MODE_NAMES */
	int push, delay, prefetch;
	int lr_scaling; /* index in LR_SCALING_NAMES */
	int64_t lr_scaling_warmup;
	int64_t n_push, n_fetch, ssp_bound, buffer, sync_workers, backup_workers, batch_images,
		lbfgs_history, lbfgs_trials;
	double local_rate, easgd_beta, easgd_momentum, dc_lambda, lbfgs_armijo, lbfgs_wolfe;
};

/* A sentence about what does not fit together, or NULL. `optim`: -1: not given. */
const char *mode_check(const struct mode_raw *r, int optim, int64_t epochs);
/* The optimizer of a run that was not told which. */
enum optim_kind mode_optimizer(const struct mode_raw *r);
/* The rate of a run that was not told which; `usual`: what it is in other modes. */
double mode_rate(const struct mode_raw *r, enum optim_kind optim, double usual);
/* Passes over the data of a run that was not told how many. */
uint32_t mode_epochs(const struct mode_raw *r);
/* The clipping norm of a run that was not told which; 0: none. */
double mode_clip_norm(const struct mode_raw *r);
/* The mode's part of the configuration; after lease_batches and warm_start_updates are set. */
void mode_fill(struct core_config *c, const struct mode_raw *r);

#endif
