/* seed.c - the path cuda_seed for seed:F on 28x28 images. A step takes two or four launches, or one
 * launch runs many steps. */
#include <stdio.h>
#include <stdlib.h>
#include "common/mem.h"
#include "kernels/cuda/path.h"
#include "kernels/cuda/fused/seed.h"

struct seed {
	const struct model *model;
	size_t images;
	int forward_only;
	struct kx_seed s;
};

uint64_t kx_seed_timeout_ns = 2000000000;

static int seed_path_fits(const struct model *m, const struct path_options *o)
{
	const struct layer *l = m->layer;

	return o->fused && m->n_layers == 4 && !m->preprocess.n_norm && m->input.c == 1 &&
	       m->input.h == SEED_SIDE && m->input.w == SEED_SIDE && m->classes == SEED_CLASSES &&
	       l[0].kind == LAYER_CONV && l[0].size == 3 && l[0].stride == 1 && l[0].pad_top == 0 &&
	       l[0].pad_left == 0 && l[0].pad_bottom == 0 && l[0].pad_right == 0 &&
	       l[1].kind == LAYER_RELU && cuda_pool_2x2(&l[2]) && l[3].kind == LAYER_FC &&
	       l[0].out.c <= 65536;
}

static int multiprocessors(int *n, struct err *e)
{
	int device;

	if (cudaGetDevice(&device) ||
		cudaDeviceGetAttribute(n, cudaDevAttrMultiProcessorCount, device))
		return err_set(
			e, PS_EDEVICE, "device cuda: %s", cudaGetErrorString(cudaGetLastError()));
	return PS_OK;
}

static int seed_path_open(
	void **self, const struct model *m, const struct path_options *o, struct err *e)
{
	struct seed *d = mem_try(1, sizeof(*d));

	*self = d;
	if (!d)
		return err_set(e, PS_ENOMEM, "no memory for model \"%s\"", m->text);
	d->model = m;
	d->images = o->images;
	d->forward_only = o->forward_only;
	d->s.f = (int)m->layer[0].out.c;
	d->s.f_pad = (d->s.f + 7) / 8 * 8;
	d->s.half = o->precision == KX_BF16;
	return multiprocessors(&d->s.multiprocessors, e);
}

static size_t row_floats(const struct seed *d)
{
	return (size_t)d->s.f_pad * SEED_ROW;
}

static struct seed_params place_params(const struct seed *d, struct cuda_arena *a)
{
	size_t conv = row_floats(d), fc = conv * SEED_POSITIONS;
	float *all = arena_take(a, fc + conv + SEED_ROW, sizeof(float));

	if (!all)
		return (struct seed_params){NULL, NULL, NULL};
	return (struct seed_params){all, all + fc, all + fc + conv};
}

struct workspace_size {
	/* number of entries: logits: filter blocks x ranges x images; fc: slices; conv: slices x
	 * position blocks */
	size_t logits, fc, conv;
};

static void workspace_at_least(const struct seed *d, size_t images, struct workspace_size *p)
{
	struct seed_tiling c = kx_seed_tiling(d->s.f_pad, d->s.half, (int)images);
	size_t logits = (size_t)c.filter_blocks * (size_t)c.ranges * images;
	size_t fc = (size_t)c.slices, conv = fc * (size_t)c.position_blocks;

	p->logits = logits > p->logits ? logits : p->logits;
	p->fc = fc > p->fc ? fc : p->fc;
	p->conv = conv > p->conv ? conv : p->conv;
}

/* Returns the workspace that is large enough for every batch. A small batch may have more slices
 * than the largest batch, so the function looks at every batch size. From ENOUGH images on, the
 * number of slices is constant. */
static struct workspace_size max_workspace(const struct seed *d)
{
	enum { ENOUGH = 16384 };
	struct workspace_size p = {0, 0, 0};

	for (size_t n = 1; n <= d->images && n <= ENOUGH; n++)
		workspace_at_least(d, n, &p);
	workspace_at_least(d, d->images, &p);
	return p;
}

/* Returns the number of lines of the exchange buffer, for the maximum number of blocks. One more
 * line has the number of steps. */
static size_t exchange_lines(const struct seed *d, size_t *images)
{
	const size_t max_images = SEED_PERSISTENT_IMAGES, blocks = SEED_PERSISTENT_BLOCKS;

	*images = d->images < max_images ? d->images : max_images;
	return *images * (blocks + 1) * SEED_LL_LOGIT_LINES + blocks * SEED_LL_CONV_LINES +
	       *images + 1;
}

static void place_exchange(struct seed *d, struct cuda_arena *a, uint32_t *trouble)
{
	struct seed_exchange *x = &d->s.exchange;
	size_t images, lines = exchange_lines(d, &images);
	const size_t blocks = SEED_PERSISTENT_BLOCKS;

	x->logits = arena_take(a, lines, sizeof(*x->logits));
	if (!x->logits)
		return;
	x->d_logits = x->logits + images * blocks * SEED_LL_LOGIT_LINES;
	x->conv = x->d_logits + images * SEED_LL_LOGIT_LINES;
	x->losses = x->conv + blocks * SEED_LL_CONV_LINES;
	x->steps = &x->losses[images].flag;
	x->trouble = trouble;
	x->timeout_ns = kx_seed_timeout_ns;
}

static void seed_path_place(void *self, struct cuda_arena *a, uint32_t *trouble)
{
	struct seed *d = self;
	struct kx_seed *s = &d->s;
	const struct workspace_size max = max_workspace(d);
	size_t groups = (d->images + SEED_GROUP - 1) / SEED_GROUP;

	s->params = place_params(d, a);
	s->fragments = arena_take(a, kx_seed_fragments(s->f_pad), sizeof(uint32_t));
	s->argmax = arena_take(a, kx_seed_argmax_bytes(s->f_pad, s->half, d->images), 1);
	s->half_fragments = arena_take(a, kx_seed_half_fragments(s->f_pad), sizeof(uint32_t));
	s->half_scales = arena_take(a, (size_t)s->f_pad * 4, sizeof(float));
	s->partial_logits = arena_take(a, max.logits, SEED_CLASSES * sizeof(float));
	s->logits = arena_take(a, d->images, SEED_CLASSES * sizeof(float));
	if (d->forward_only)
		return;
	s->sum = place_params(d, a);
	s->d_logits = arena_take(a, groups * SEED_GROUP, SEED_ROW * sizeof(float));
	s->loss = arena_take(a, d->images, sizeof(float));
	s->fc_workspace = arena_take(a, max.fc * SEED_POSITIONS, row_floats(d) * sizeof(float));
	s->conv_workspace = arena_take(a, max.conv, row_floats(d) * sizeof(float));
	if (s->half)
		place_exchange(d, a, trouble);
}

static int seed_path_fill(void *self, cudaStream_t stream)
{
	const struct seed *d = self;
	size_t argmax = kx_seed_argmax_bytes(d->s.f_pad, d->s.half, d->images), images;
	size_t exchange = exchange_lines(d, &images) * sizeof(struct ll_line);

	/* clear argmax, because kernels read (and ignore) values of it after the last position */
	if (cudaMemsetAsync(d->s.argmax, 0, argmax, stream))
		return PS_EDEVICE;
	if (d->s.half && !d->forward_only &&
		cudaMemsetAsync(d->s.exchange.logits, 0, exchange, stream))
		return PS_EDEVICE;
	return cudaStreamSynchronize(stream) ? PS_EDEVICE : PS_OK;
}

/* Writes the names of the kernels, which are the same for the conv layer and the fc layer: both run
 * in one kernel. */
static void seed_path_kernel(const void *self, size_t layer, size_t batch, char *text, size_t size)
{
	const struct kx_seed *s = &((const struct seed *)self)->s;
	const struct seed_tiling tiling = kx_seed_tiling(s->f_pad, s->half, (int)batch);

	(void)layer;
	snprintf(text, size, "%s",
		kx_seed_persistent_ranges(*s, (int)batch) ? "fused:persistent"
		: tiling.clusters                         ? "fused:cluster"
		: tiling.half                             ? "fused:half"
							  : "fused:fp32");
}

static int seed_path_load(void *self, const float *params, cudaStream_t stream)
{
	return kx_seed_pack(((struct seed *)self)->s, params, stream);
}

static int seed_fprop(const struct kx_seed *s, struct kx_batch batch, int step, cudaStream_t stream)
{
	int rc = kx_seed_fprop(*s, batch, step, stream);

	return rc ? rc : kx_seed_logits(*s, batch, step, stream);
}

/* Computes the split-K slices of the gradient from the pixels. */
static int seed_forward_backward(
	const struct kx_seed *s, struct kx_batch batch, int step, cudaStream_t stream)
{
	const struct seed_tiling tiling = kx_seed_tiling(s->f_pad, s->half, batch.images);
	int rc;

	if (tiling.clusters)
		return kx_seed_cluster(*s, batch, step, stream);
	if (!tiling.half) {
		rc = seed_fprop(s, batch, step, stream);
		return rc ? rc : kx_seed_wgrad(*s, batch, step, stream);
	}
	rc = kx_seed_half_fprop(*s, batch, step, stream);
	if (!rc)
		rc = kx_seed_logits(*s, batch, step, stream);
	return rc ? rc : kx_seed_half_wgrad(*s, batch, step, stream);
}

static int seed_path_forward(void *self, struct kx_batch batch, cudaStream_t stream)
{
	return seed_fprop(&((struct seed *)self)->s, batch, 0, stream);
}

static const float *seed_path_logits(const void *self, size_t *width)
{
	*width = SEED_CLASSES;
	return ((const struct seed *)self)->s.logits;
}

static int seed_path_start(void *self, cudaStream_t stream)
{
	const struct seed *d = self;
	size_t floats = row_floats(d) * (SEED_POSITIONS + 1) + SEED_ROW;

	return cudaMemsetAsync(d->s.sum.fc, 0, floats * sizeof(float), stream) ? PS_EDEVICE : PS_OK;
}

static int seed_path_gradient(
	void *self, struct kx_batch batch, float *grad, double *loss, cudaStream_t stream)
{
	const struct kx_seed *s = &((struct seed *)self)->s;
	int rc;

	if (kx_seed_persistent_ranges(*s, batch.images)) {
		rc = seed_path_start(self, stream);
		if (!rc)
			rc = kx_seed_persistent(*s, batch, NULL, 1, loss, stream);
		return rc ? rc : kx_seed_unpack(*s, s->sum, grad, stream);
	}
	rc = seed_forward_backward(s, batch, 0, stream);
	return rc ? rc : kx_seed_reduce_gradient(*s, batch.images, grad, loss, stream);
}

static int seed_path_train(void *self, struct kx_batch batch, struct kx_now *now, int steps,
	double *loss, cudaStream_t stream)
{
	const struct kx_seed *s = &((struct seed *)self)->s;
	int rc = PS_OK;

	if (kx_seed_persistent_ranges(*s, batch.images))
		return kx_seed_persistent(*s, batch, now, steps, loss, stream);
	for (int i = 0; i < steps && !rc; i++) {
		rc = seed_forward_backward(s, batch, i, stream);
		if (!rc)
			rc = kx_seed_sgd_step(
				*s, batch, now, i + 1 < steps ? 0 : steps, loss, stream);
	}
	return rc;
}

static int seed_path_save(void *self, float *params, float *sum, cudaStream_t stream)
{
	const struct kx_seed *s = &((struct seed *)self)->s;
	int rc = params ? kx_seed_unpack(*s, s->params, params, stream) : PS_OK;

	return rc || !sum ? rc : kx_seed_unpack(*s, s->sum, sum, stream);
}

static int seed_path_may_fail(const void *self)
{
	const struct seed *d = self;

	return !d->forward_only && kx_seed_persistent_ranges(d->s, 1) > 0;
}

const struct cuda_path cuda_seed = {
	.fits = seed_path_fits,
	.open = seed_path_open,
	.close = free,
	.may_fail = seed_path_may_fail,
	.place = seed_path_place,
	.fill = seed_path_fill,
	.load = seed_path_load,
	.kernel = seed_path_kernel,
	.forward = seed_path_forward,
	.logits = seed_path_logits,
	.gradient = seed_path_gradient,
	.start = seed_path_start,
	.train = seed_path_train,
	.save = seed_path_save,
};
