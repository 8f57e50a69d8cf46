/* modes.c - see modes.h. */
#include "server/core/modes.h"
#include "server/core/state.h"

const struct rules *rules_of(const struct core *c)
{
	static const struct rules *const rows[] = {
		[MODE_DOWNPOUR] = &rules_downpour,
		[MODE_SSP] = &rules_ssp,
		[MODE_SYNC] = &rules_sync,
		[MODE_SANDBLASTER] = &rules_sandblaster,
		[MODE_EASGD] = &rules_downpour,
	};

	return rows[c->cfg.training.mode];
}
