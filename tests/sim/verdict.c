/*
 * verdict.c - compares the result of a run with all ledgers. The result is the state that a start
 * of the server finds on the disk. In half of the runs, there is a power cut before this start.
 */
#include <math.h>
#include <string.h>
#include "common/xxh3.h"
#include "server/core/core_state.h"
#include "tests/sim/sim.h"

/* Checks the ledger gradient. If the disk has reported success of an fsync that wrote nothing,
 * pushes may be missing, because no server can prevent this. Even in this case, no push may count
 * twice. */
static void ledger_gradient(struct sim *s, const float *pushes)
{
	const float *w = pushes;

	for (uint32_t i = 0; i < s->n_coordinates; i++) {
		int once = w[i] == -1.0f, never = w[i] == 0.0f;

		if (!once && !never)
			sim_violation(s, "push %u was applied %g times", i, (double)-w[i]);
		else if (s->expected[i] == EXPECT_ONCE && !once && !s->disk.broken)
			sim_violation(s, "push %u is lost", i);
		else if (s->expected[i] == EXPECT_NEVER && !never)
			sim_violation(s, "push %u was applied though rejected", i);
	}
}

/* Returns 1 if two workers have agreed on each evaluation result of the run. Two processes of one
 * liar do not count here, although the server can take them for two workers. */
static int is_checked(const struct sim *s, const struct core *c)
{
	const struct check_stats *k = core_check_stats(c);
	uint32_t size = s->cfg.leases.eval_images;

	return s->liar_starts < 2 && size && s->cfg.leases.eval_checks * size >= 7 &&
	       !k->disputed && !k->unchecked;
}

static void images_ledger(struct sim *s, const struct core *c)
{
	for (uint32_t e = 0; e < s->cfg.training.epochs; e++)
		if (core_epoch(c, e)->images != s->n_train || core_epoch(c, e)->eval_done != 7)
			sim_violation(s, "epoch %u has %llu images of %u, %u evaluated of 7", e,
				(unsigned long long)core_epoch(c, e)->images, s->n_train,
				core_epoch(c, e)->eval_done);
		else if (!isfinite(core_epoch(c, e)->eval_loss_sum))
			sim_violation(s, "the loss of epoch %u is not finite", e);
		else if (is_checked(s, c) && fabs(core_epoch(c, e)->eval_loss_sum - 7) > 1)
			sim_violation(s, "the loss of epoch %u is %g, and two workers agree on it",
				e, core_epoch(c, e)->eval_loss_sum);
}

static void batch_ledger(struct sim *s, const float *batches)
{
	const float *w = batches;
	uint32_t n = sim_has_elastic_ledger(s) ? sim_first_push(s) - sim_first_batch(s)
					       : (uint32_t)s->cfg.n_params;

	for (uint32_t i = 0; i < n; i++)
		if (w[i] != -1.0f && !(s->disk.broken && w[i] == 0.0f) && !hostile_delivered(s, i))
			sim_violation(s, "batch %u was counted %g times", i, (double)-w[i]);
}

/* Checks that each applied push has moved the centre exactly once, by -e (program.c), and that
 * nothing else has moved the centre. */
static void elastic_ledger(struct sim *s, const float *w)
{
	const float *pushes = w + sim_first_push(s);

	ledger_gradient(s, pushes);
	for (uint32_t i = 0; i < SIM_ELASTIC; i++) {
		double sum = 0, way = 0;

		for (uint32_t p = 0; p < s->n_coordinates; p++) {
			sum += pushes[p] == -1.0f ? (double)s->moved[p][i] : 0;
			way += fabs((double)s->moved[p][i]);
		}
		if (!(fabs((double)w[i] - sum) <= 1e-5 * (1 + way)))
			sim_violation(s,
				"the centre is at %.9g; the moves of its pushes add to %.9g",
				(double)w[i], sum);
	}
}

/* Checks that the weights equal those of a run without faults, except for rounding errors: a crash
 * may change the order of the additions. */
static void portion_ledger(struct sim *s, const float *w)
{
	float expected[SIM_PORTIONS];

	serial_run(s, expected);
	for (uint32_t i = 0; i < s->cfg.n_params; i++)
		if (!(fabs((double)w[i] - (double)expected[i]) <= 2e-4 * (1 + fabs((double)w[i]))))
			sim_violation(s, "weight %u is %.9g; without faults it is %.9g", i,
				(double)w[i], (double)expected[i]);
}

/*
 * Returns 1 if the final weights cannot be compared with a run without faults, for one of these
 * reasons.
 *
 * - A push was rejected because the server, after a crash, had not reached the epoch of the push
 *   again. A worker computes its batches again, with other weights: with EASGD the worker has moved
 *   its own weights meanwhile; with several batches for each pull, the first computation used older
 *   weights.
 * - The run uses delay compensation, and the server stopped waiting for the worker and discarded
 *   the copy of the weights with which the worker had computed its next push.
 */
static int is_torn(const struct sim *s, const struct core *c)
{
	uint64_t rejected = 0;

	for (int i = 0; i < REJECT_REASONS; i++)
		rejected += core_stats(c)->rejected[i];
	return ((s->mode == SIM_EASGD || s->cfg.push.n_fetch > 1) && rejected > 0) ||
	       (s->cfg.dc.kind && core_stats(c)->deaths > 0);
}

/* Applies the gradients in the buffer to the final weights, because a server that is drained leaves
 * these gradients to the next term. */
static void add_buffer(struct sim *s, const struct core *c)
{
	for (uint32_t i = 0; c->accumulator.sum && c->accumulator.pushes && i < s->cfg.n_params;
		i++)
		s->final[i] -= (float)c->accumulator.sum[i];
}

void verdict(struct sim *s)
{
	struct startup r;
	const struct core *c;

	disk_killed(&s->disk);
	if (net_chance(&s->net, 500))
		disk_power_cut(&s->disk);
	s->disk.fails = s->disk.shorts = s->disk.forgets = 0;
	/* Remove the size limit of the disk, as boot() does, because the simulator does not test a
	 * start on a full disk. */
	s->disk.capacity = 0;
	c = server_restore(s, &r);
	if (!c)
		return;
	memcpy(s->final, core_weights(c), s->cfg.n_params * sizeof(float));
	s->torn = is_torn(s, c);
	if (!s->training)
		add_buffer(s, c);
	sim_digest_add(s, XXH3_64bits(s->final, s->cfg.n_params * sizeof(float)));
	if (s->training && !s->disk.broken)
		images_ledger(s, c);
	startup_release(&r);
	disk_killed(&s->disk);
	if (s->mode == SIM_LBFGS && s->disk.broken)
		return;
	if (s->mode == SIM_LBFGS)
		portion_ledger(s, s->final);
	else if (!s->training)
		ledger_gradient(s, s->final);
	else if (!s->exact && s->cfg.push.aggregate == AGGREGATE_MEAN)
		batch_ledger(s, s->final + sim_first_batch(s));
	if (sim_has_elastic_ledger(s))
		elastic_ledger(s, s->final);
}
