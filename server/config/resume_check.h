/*
 * resume_check.h - which options keep a run from being continued: each with the run's value and the
 * value of this start.
 *
 * Pure. Thread: main, at start-up.
 */
#ifndef SERVER_CONFIG_RESUME_CHECK_H
#define SERVER_CONFIG_RESUME_CHECK_H
#include <stddef.h>
#include "server/core/core.h"

#define RESUME_REMEDY "give the run's own value, or another --checkpoint-dir for a new run"

/*
 * "--mode downpour, not sync" and so on into `out`; returns how many options. `why`: the core's
 * sentence about the refusal: an option that may change otherwise, such as --epochs, is listed if
 * it is named there. `data`: the run's data set. Options whose defaults follow from --mode are not
 * listed beside it.
 */
int resume_differences(const struct core_config *then, const struct data_id *data,
	const struct core_config *now, const char *why, char *out, size_t size);

#endif
