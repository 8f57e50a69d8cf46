/*
 * options_impl.h - what options.c and options_check.c share: the rows' destinations. Included by
 * these alone.
 */
#ifndef SERVER_CONFIG_OPTIONS_IMPL_H
#define SERVER_CONFIG_OPTIONS_IMPL_H
#include <stdint.h>
#include "server/config/mode_options.h"
#include "server/config/options.h"

#define PROGRAM "cnn-ps"

/* The rows' destinations, in the types that opt.h knows. */
struct raw {
	const char *bind, *http, *model, *checkpoint_dir, *init, *key, *authorized_keys, *data_id;
	struct mode_raw modes;
	int64_t epochs, batch, seed, max_updates, max_staleness, warm_start_updates,
		warm_start_ramp, lease_batches;
	int64_t eval_images, min_workers, max_workers, push_window, replay_window;
	int64_t beat_ms, suspect_ms, dead_ms, forget_ms, recovery_ms, checkpoint_ms, memory_mb;
	double lr, momentum, beta1, beta2, rmsprop_alpha, eps, adagrad_init, weight_decay;
	double clip_norm, max_norm;
	double warmup, schedule_gamma, schedule_floor;
	int64_t schedule_every;
	int64_t journal_mb;
	int durability;
	int backup; /* enum backup_copies */
	int64_t first_deadline_ms;
	int optimizer, schedule, staleness_scaling, log_level, log_format, accept_rollback,
		check_config, insecure;
};

/* options.c: what holds where nothing was given. */
double options_rate(const struct raw *r);
uint32_t options_epochs(const struct raw *r, const struct model *m);
/* options_check.c: parse the model, and complain on stderr of all that is wrong with `r`, of which
 * `parsed` is opt_parse's status and `momentum_given` says that --momentum is not a default;
 * returns how much that is. */
int options_judge(const struct raw *r, struct model *m, int parsed, int momentum_given);

#endif
