/*
 * resume_check.h - lists the options that have other values at this start than in the run of the
 * checkpoint directory, with both values.
 *
 * The function has no side effects. Only the main thread calls it, at start-up.
 */
#ifndef SERVER_CONFIG_RESUME_CHECK_H
#define SERVER_CONFIG_RESUME_CHECK_H
#include <stddef.h>
#include "server/core/core.h"

#define RESUME_REMEDY "give the run's own value, or another --checkpoint-dir for a new run"

/*
 * Writes to `out` a list of the options that differ between the run and this start. "--mode
 * downpour, not sync" means that the run has downpour and this start has sync. Returns the number
 * of listed options. `then` and `data` are the options and the data set of the run, `now` are the
 * options of this start, and `why` is the core's error text. An option that may change when a run
 * is resumed, such as --epochs, is listed only if `why` names it. If the list contains --mode, it
 * does not contain options whose defaults depend on --mode.
 */
int resume_differences(const struct core_config *then, const struct data_id *data,
	const struct core_config *now, const char *why, char *out, size_t size);

#endif
