/*
 * cpu.c - the cpu device. Each thread of a team computes the forward and backward pass of its slice
 * of the batch and adds up its own gradients. The team then adds these sums in the order of the
 * thread numbers.
 *
 * The device uses the first entry of `instruction_sets` that the processor supports. The
 * environment variable CNN_KX_ISA=baseline|avx2|avx512 selects another instruction set, for tests
 * and measurements.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/joint.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/team.h"

struct cpu {
	char name[64];
	struct plan plan;
	struct team *team;
	size_t n_lanes;
	struct lane *lane; /* array with one lane for each thread */
	float **sum;       /* for each lane: pointer to lane.grad */
	float *packed;
	struct joint joint;
	struct kx_images set;
	struct batch batch; /* batch of the current job: the caller writes it, the team reads it */
};

/* ---- instruction set ------------------------------------------------------------------------- */

#if defined(__x86_64__)
static int has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void)
{
	return has_avx2() && __builtin_cpu_supports("avx512f") &&
	       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
	       __builtin_cpu_supports("avx512bw");
}
#endif

static int has_baseline(void)
{
	return 1;
}

/* The instruction sets, the best first. */
static const struct {
	const struct simd *simd;
	int (*has)(void);
} instruction_sets[] = {
#if defined(__x86_64__)
	{&simd_avx512, has_avx512},
	{&simd_avx2, has_avx2},
#endif
	{&simd_baseline, has_baseline},
};

static const struct simd *choose_simd(struct err *e)
{
	const char *wish = getenv("CNN_KX_ISA");

	for (size_t i = 0; i < sizeof(instruction_sets) / sizeof(instruction_sets[0]); i++)
		if (instruction_sets[i].has() &&
			(!wish || strcmp(wish, instruction_sets[i].simd->name) == 0))
			return instruction_sets[i].simd;
	err_set(e, PS_EUSAGE,
		"CNN_KX_ISA=%s: this processor and program have baseline, perhaps avx2 and avx512",
		wish);
	return NULL;
}

/* ---- life cycle ------------------------------------------------------------------------------ */

static void cpu_close(void *self)
{
	struct cpu *c = self;

	team_free(&c->team);
	for (size_t i = 0; c->lane && i < c->n_lanes; i++)
		lane_release(&c->lane[i]);
	free(c->lane);
	free(c->sum);
	free(c->packed);
	joint_release(&c->joint);
	plan_release(&c->plan);
	free(c);
}

static int cpu_allocate(struct cpu *c, size_t max_batch)
{
	size_t max = (max_batch + c->n_lanes - 1) / c->n_lanes;

	c->lane = mem_try(c->n_lanes, sizeof(*c->lane));
	c->sum = mem_try(c->n_lanes, sizeof(*c->sum));
	c->packed = mem_huge(c->plan.packed_floats, sizeof(*c->packed));
	int ok = c->lane && c->sum && c->packed;
	for (size_t i = 0; ok && i < c->n_lanes; i++) {
		ok = lane_init(&c->lane[i], &c->plan, max, c->n_lanes) == PS_OK;
		c->sum[i] = c->lane[i].grad;
	}
	return ok && (!c->plan.joint || joint_init(&c->joint, &c->plan,
						c->n_lanes * c->lane[0].block) == PS_OK);
}

static int cpu_build(struct cpu *c, const struct model *m, const struct backend_options *o,
	const struct simd *simd, struct err *e)
{
	int rc = plan_init(&c->plan, m, simd, e);

	if (rc)
		return rc;
	c->n_lanes = (size_t)o->threads;
	if (!cpu_allocate(c, o->max_batch))
		return err_set(e, PS_ENOMEM,
			"no memory for %d threads with batches of %zu images and %zu parameters",
			o->threads, o->max_batch, m->n_params);
	return team_new(&c->team, c->n_lanes, e);
}

static int cpu_open(
	void **self, const struct model *m, const struct backend_options *o, struct err *e)
{
	*self = NULL;
	const struct simd *simd = choose_simd(e);

	if (!simd)
		return PS_EUSAGE;
	struct cpu *c = mem_try(1, sizeof(*c));
	if (!c)
		return err_set(e, PS_ENOMEM, "no memory for device cpu");
	int rc = cpu_build(c, m, o, simd, e);
	if (rc) {
		cpu_close(c);
		return rc;
	}
	snprintf(c->name, sizeof(c->name), "cpu %d thread%s %s", o->threads,
		o->threads == 1 ? "" : "s", simd->name);
	*self = c;
	return PS_OK;
}

static const char *cpu_describe(const void *self)
{
	const struct cpu *c = self;

	return c->name;
}

static void cpu_kernel(const void *self, size_t layer, size_t batch, char *text, size_t size)
{
	static const char *const ways[] = {[WAY_NONE] = "none",
		[WAY_DENSE] = "dense",
		[WAY_SPARSE] = "sparse",
		[WAY_WINOGRAD] = "winograd",
		[WAY_JOINT] = "joint"};
	const struct plan *p = &((const struct cpu *)self)->plan;

	(void)batch;
	for (size_t i = 0; i < p->n_steps; i++) {
		const struct step *s = &p->step[i];

		if (s->kind == STEP_WEIGHTS && s->layer == layer)
			snprintf(text, size, "%s/%s/%s", ways[s->forward], ways[s->filter],
				ways[s->data]);
	}
}

static int cpu_use(void *self, const struct kx_images *set, struct err *e)
{
	(void)e;
	struct cpu *c = self;
	c->set = *set;
	return PS_OK;
}

/* ---- gradient and forward pass --------------------------------------------------------------- */

/* Writes the statistics of the batch to the gradient, at the offsets of the running statistics. */
static void write_moments(const struct cpu *c)
{
	for (size_t i = 0; i < c->plan.n_steps; i++) {
		const struct step *s = &c->plan.step[i];
		const struct moments *m = &c->lane[0].moments[i];
		const double n = (double)(c->batch.images * s->of->in.h * s->of->in.w);

		for (size_t f = 0; s->kind == STEP_BATCHNORM && f < s->filters; f++) {
			c->batch.grad[s->mean + f] = m->mean[f];
			c->batch.grad[s->variance + f] =
				(float)((double)m->variance[f] * n / (n > 1 ? n - 1 : 1));
		}
	}
}

static void gradient_job(void *arg, size_t member)
{
	struct cpu *c = arg;
	const struct batch *b = &c->batch;
	struct share share = {member, c->n_lanes};

	pack_params(&c->plan, share, b->params, c->packed, c->lane[member].room);
	team_barrier(c->team);
	lane_gradient(&c->lane[member], b);
	team_barrier(c->team);
	sum_gradients(&c->plan, share, c->sum, c->n_lanes);
	team_barrier(c->team);
	unpack_gradient(
		&c->plan, share, c->sum[0], 1 / (float)b->images, b->grad, c->lane[member].room);
	if (member == 0)
		write_moments(c);
}

static void forward_job(void *arg, size_t member)
{
	struct cpu *c = arg;
	struct share share = {member, c->n_lanes};

	pack_params(&c->plan, share, c->batch.params, c->packed, c->lane[member].room);
	team_barrier(c->team);
	lane_forward(&c->lane[member], &c->batch);
}

/* Returns the arguments that a gradient and a forward pass have in common. */
static struct batch make_batch(const struct cpu *c, const float *params, size_t images)
{
	return (struct batch){.set = &c->set,
		.params = params,
		.packed = c->packed,
		.team = c->team,
		.joint = &c->joint,
		.lanes = c->lane,
		.n_lanes = c->n_lanes,
		.images = images};
}

static int cpu_gradient(void *self, const float *params, const uint32_t *index, size_t batch,
	uint64_t dropout_seed, float *grad, double *loss)
{
	struct cpu *c = self;

	c->batch = make_batch(c, params, batch);
	c->batch.index = index;
	c->batch.dropout_seed = dropout_seed;
	c->batch.grad = grad;
	team_run(c->team, gradient_job, c);
	double sum = 0;
	for (size_t i = 0; i < c->n_lanes; i++)
		sum += c->lane[i].loss;
	*loss = sum / (double)batch;
	return PS_OK;
}

static int cpu_forward(void *self, const float *params, size_t first, size_t n, float *logits)
{
	struct cpu *c = self;

	c->batch = make_batch(c, params, n);
	c->batch.first = first;
	c->batch.logits = logits;
	team_run(c->team, forward_job, c);
	return PS_OK;
}

const struct device device_cpu = {
	.name = "cpu",
	.precise = 1,
	.open = cpu_open,
	.close = cpu_close,
	.describe = cpu_describe,
	.kernel = cpu_kernel,
	.use = cpu_use,
	.gradient = cpu_gradient,
	.forward = cpu_forward,
};
