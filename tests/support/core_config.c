/* core_config.c - see core_config.h. */
#include "tests/support/core_config.h"

struct core_config fixture_config(void)
{
	return (struct core_config){.run = {11, 22},
		.term = 5,
		.model = "vector:8",
		.model_fingerprint = 77,
		.n_params = FIXTURE_PARAMS,
		.training.seed = 3,
		.training.batch_size = 10,
		.optim = {.kind = OPTIM_SGD,
			.eps = 1e-8,
			.momentum = 0.9,
			.beta1 = 0.9,
			.beta2 = 0.999,
			.rmsprop_alpha = 0.999},
		.training.mode = MODE_DOWNPOUR,
		.schedule = {.every_epochs = 1},
		.push.buffer_size = 1,
		.dc.lambda = 0.1,
		.easgd.beta = 0.9,
		.lbfgs = {.history = 1, .trials = 1, .armijo = 1e-4, .wolfe = 0.9},
		.push.n_push = 1,
		.push.n_fetch = 1,
		.rate.lr = 1,
		.rate.staleness_scaling = STALE_CONSTANT,
		.limits.max_staleness = 1000,
		.leases.max_batches = 2,
		.leases.first_deadline_ms = 30000,
		.leases.eval_images = 3,
		.leases.min_workers = 1,
		.sessions.max_workers = 4,
		.sessions.push_window = 4,
		.sessions.replay_window = 64,
		.sessions.heartbeat_ms = 100,
		.sessions.suspect_ms = 300,
		.sessions.dead_ms = 1000,
		.sessions.ttl_ms = 5000,
		.sessions.recovery_ms = 500,
		.checkpoint.interval_ms = 100000,
		.durable = 1};
}

struct core_config fixture_training(void)
{
	struct core_config cfg = fixture_config();

	cfg.training.epochs = 2;
	return cfg;
}
