/*
 * verdict.c - what the run has come to: a start from the disk as it is, after one more power cut,
 * against all ledgers.
 */
#include <math.h>
#include <string.h>
#include "tests/sim/sim.h"

/* Where the disk has said that something is safe and lied, things may be missing: nothing that we
 * write could mend that. Twice they may never be. */
static void ledger_gradient(struct sim *s, const float *w)
{
	for (uint32_t i = 0; i < s->n_coordinates; i++) {
		int once = w[i] == -1.0f, never = w[i] == 0.0f;

		if (!once && !never)
			sim_violation(s, "push %u was applied %g times", i, (double)-w[i]);
		else if (s->fate[i] == FATE_MUST && !once && !s->disk.broken)
			sim_violation(s, "push %u is lost", i);
		else if (s->fate[i] == FATE_REJECTED && !never)
			sim_violation(s, "push %u was applied though rejected", i);
	}
}

static void images_ledger(struct sim *s, const struct core *c)
{
	for (uint32_t e = 0; e < s->cfg.epochs; e++)
		if (core_epoch(c, e)->images != s->n_train || core_epoch(c, e)->eval_done != 7)
			sim_violation(s, "epoch %u has %llu images of %u, %u evaluated of 7", e,
				(unsigned long long)core_epoch(c, e)->images, s->n_train,
				core_epoch(c, e)->eval_done);
}

static void batch_ledger(struct sim *s, const float *w)
{
	for (uint32_t i = 0; i < s->cfg.n_params; i++)
		if (w[i] != -1.0f && !(s->disk.broken && w[i] == 0.0f))
			sim_violation(s, "batch %u was counted %g times", i, (double)-w[i]);
}

/* As a run without faults ends, but for the order of the sums. */
static void portion_ledger(struct sim *s, const float *w)
{
	float expected[SIM_PORTIONS];

	serial_run(s, expected);
	for (uint32_t i = 0; i < s->cfg.n_params; i++)
		if (!(fabs((double)w[i] - (double)expected[i]) <= 2e-4 * (1 + fabs((double)w[i]))))
			sim_violation(s, "weight %u is %.9g; without faults it is %.9g", i,
				(double)w[i], (double)expected[i]);
}

void verdict(struct sim *s)
{
	struct restored r;
	const struct core *c;

	disk_killed(&s->disk);
	if (net_chance(&s->net, 500))
		disk_power_cut(&s->disk);
	s->disk.fails = s->disk.shorts = s->disk.forgets = 0;
	c = server_restore(s, &r);
	if (!c)
		return;
	memcpy(s->final, core_weights(c), s->cfg.n_params * sizeof(float));
	if (s->training && !s->disk.broken)
		images_ledger(s, c);
	restore_release(&r);
	disk_killed(&s->disk);
	if (s->mode == SIM_LBFGS && s->disk.broken)
		return;
	if (s->mode == SIM_LBFGS)
		portion_ledger(s, s->final);
	else if (!s->training)
		ledger_gradient(s, s->final);
	else if (!s->exact)
		batch_ledger(s, s->final);
}
