/* run.c - see run.h. */
#include "server/core/run.h"
#include "server/core/batch_ledger.h"
#include "server/core/checkpoints.h"
#include "server/core/core_state.h"
#include "server/core/workers.h"

int run_has_begun(const struct core *c)
{
	return c->run.begun || c->cfg.training.epochs == 0;
}

void run_end(struct core *c, int status)
{
	if (c->run.ending != END_NOT)
		return;
	c->run.ending = END_SNAPSHOT;
	c->run.end_status = status;
	/* take the last snapshot without delay, even if an earlier one has failed */
	c->checkpoints.failing = 0;
}

void run_drain(struct core *c, int rule_met)
{
	run_end(c, PS_ESHUTDOWN);
	if (c->run.end_status == PS_ESHUTDOWN)
		c->run.rule_met |= rule_met;
}

/* During a drain, the core decides pushes until it takes the last snapshot. In a run that is
 * complete or has diverged, the core decides no further push. */
int run_is_closed(const struct core *c)
{
	return c->run.ending >= END_SAVING ||
	       (c->run.ending == END_SNAPSHOT && c->run.end_status != PS_ESHUTDOWN);
}

int run_gives_work(struct core *c)
{
	if (!c->run.begun && workers_of_run(c) >= c->cfg.leases.min_workers)
		c->run.begun = 1;
	return c->run.begun && !c->run.recovering && c->run.ending == END_NOT &&
	       c->leases.n_batches;
}
