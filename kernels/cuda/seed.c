/* seed.c - the path of path.h for seed:F on MNIST's images: four launches a step, or two,
 * or one for many steps. */
#include <stdlib.h>
#include "common/mem.h"
#include "kernels/backend.h"
#include "kernels/cuda/path.h"
#include "kernels/cuda/fused/seed.h"

struct seed {
	const struct model *model;
	size_t images;
	struct kx_seed s;
};

static int fits(const struct model *m)
{
	const struct layer *l = m->layer;

	return m->n_layers == 4 && m->input.c == 1 && m->input.h == SEED_SIDE &&
	       m->input.w == SEED_SIDE && m->classes == SEED_CLASSES && l[0].kind == LAYER_CONV &&
	       l[0].size == 3 && l[0].stride == 1 && l[0].pad_top == 0 && l[0].pad_left == 0 &&
	       l[0].pad_bottom == 0 && l[0].pad_right == 0 && l[1].kind == LAYER_RELU &&
	       l[2].kind == LAYER_POOL && l[2].size == 2 && l[3].kind == LAYER_FC &&
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

static int open(void **self, const struct model *m, int precision, size_t images, struct err *e)
{
	struct seed *d = mem_try(1, sizeof *d);

	*self = d;
	if (!d)
		return err_set(e, PS_ENOMEM, "no memory for model \"%s\"", m->text);
	d->model = m;
	d->images = images;
	d->s.f = (int)m->layer[0].out.c;
	d->s.f_pad = (d->s.f + 7) / 8 * 8;
	d->s.low = precision == KX_BF16;
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

struct parts {
	size_t score, fc, conv; /* images x parts; splits; splits x position blocks */
};

static void parts_at_least(const struct seed *d, size_t images, struct parts *p)
{
	struct seed_cut c = kx_seed_cut(d->s.f_pad, d->s.low, (int)images);
	size_t score = (size_t)c.filter_blocks * (size_t)c.ranges * images;
	size_t fc = (size_t)c.splits, conv = fc * (size_t)c.position_blocks;

	p->score = score > p->score ? score : p->score;
	p->fc = fc > p->fc ? fc : p->fc;
	p->conv = conv > p->conv ? conv : p->conv;
}

/* Smaller batches may be cut into more parts than the largest; from ENOUGH images on the only thing
 * that grows is the number of images. */
static struct parts most_parts(const struct seed *d)
{
	enum { ENOUGH = 16384 };
	struct parts p = {0, 0, 0};

	for (size_t n = 1; n <= d->images && n <= ENOUGH; n++)
		parts_at_least(d, n, &p);
	parts_at_least(d, d->images, &p);
	return p;
}

/* With room for the most blocks, one for each multiprocessor, and for the number of steps. */
static size_t exchange_words(const struct seed *d, size_t *images)
{
	const size_t most = SEED_RESIDENT_IMAGES, blocks = (size_t)d->s.multiprocessors;

	*images = d->images < most ? d->images : most;
	return *images * (blocks + 1) * SEED_SCORE_WORDS + blocks * SEED_CONV_WORDS + *images + 1;
}

static void place_exchange(struct seed *d, struct cuda_arena *a)
{
	struct seed_exchange *x = &d->s.exchange;
	size_t images, words = exchange_words(d, &images);
	size_t blocks = (size_t)d->s.multiprocessors;

	x->scores = arena_take(a, words, sizeof *x->scores);
	if (!x->scores)
		return;
	x->errors = x->scores + images * blocks * SEED_SCORE_WORDS;
	x->conv = x->errors + images * SEED_SCORE_WORDS;
	x->losses = x->conv + blocks * SEED_CONV_WORDS;
	x->steps = &x->losses[images].step;
}

static void place(void *self, struct cuda_arena *a)
{
	struct seed *d = self;
	struct kx_seed *s = &d->s;
	const struct parts most = most_parts(d);
	size_t groups = (d->images + SEED_GROUP - 1) / SEED_GROUP;

	s->params = place_params(d, a);
	s->sum = place_params(d, a);
	s->fragments = arena_take(a, kx_seed_fragments(s->f_pad), sizeof(uint32_t));
	s->winners = arena_take(a, kx_seed_winners(s->f_pad, s->low, d->images), 1);
	s->low_fragments = arena_take(a, kx_seed_low_fragments(s->f_pad), sizeof(uint32_t));
	s->low_scales = arena_take(a, (size_t)s->f_pad * 4, sizeof(float));
	s->score_parts = arena_take(a, most.score, SEED_CLASSES * sizeof(float));
	s->scores = arena_take(a, d->images, SEED_CLASSES * sizeof(float));
	s->d_scores = arena_take(a, groups * SEED_GROUP, SEED_ROW * sizeof(float));
	s->loss = arena_take(a, d->images, sizeof(float));
	s->fc_parts = arena_take(a, most.fc * SEED_POSITIONS, row_floats(d) * sizeof(float));
	s->conv_parts = arena_take(a, most.conv, row_floats(d) * sizeof(float));
	if (s->low)
		place_exchange(d, a);
}

static int fill(void *self, cudaStream_t stream)
{
	const struct seed *d = self;
	size_t winners = kx_seed_winners(d->s.f_pad, d->s.low, d->images), images;
	size_t exchange = exchange_words(d, &images) * sizeof(struct seed_word);

	/* read beyond the last position, though nothing comes of it */
	if (cudaMemsetAsync(d->s.winners, 0, winners, stream))
		return PS_EDEVICE;
	if (d->s.low && cudaMemsetAsync(d->s.exchange.scores, 0, exchange, stream))
		return PS_EDEVICE;
	return cudaStreamSynchronize(stream) ? PS_EDEVICE : PS_OK;
}

static int load(void *self, const float *params, cudaStream_t stream)
{
	return kx_seed_pack(((struct seed *)self)->s, params, stream);
}

static int scores_at(const struct kx_seed *s, struct kx_batch batch, int step, cudaStream_t stream)
{
	int rc = kx_seed_forward(*s, batch, step, stream);

	return rc ? rc : kx_seed_scores(*s, batch, step, stream);
}

/* Up to the parts of the gradient. */
static int parts_of(const struct kx_seed *s, struct kx_batch batch, int step, cudaStream_t stream)
{
	const struct seed_cut cut = kx_seed_cut(s->f_pad, s->low, batch.images);
	int rc;

	if (cut.clusters)
		return kx_seed_small(*s, batch, step, stream);
	if (!cut.low) {
		rc = scores_at(s, batch, step, stream);
		return rc ? rc : kx_seed_backward(*s, batch, step, stream);
	}
	rc = kx_seed_low_forward(*s, batch, step, stream);
	if (!rc)
		rc = kx_seed_scores(*s, batch, step, stream);
	return rc ? rc : kx_seed_low_backward(*s, batch, step, stream);
}

static int forward(void *self, struct kx_batch batch, cudaStream_t stream)
{
	return scores_at(&((struct seed *)self)->s, batch, 0, stream);
}

static const float *scores(const void *self, size_t *width)
{
	*width = SEED_CLASSES;
	return ((const struct seed *)self)->s.scores;
}

static int start(void *self, cudaStream_t stream)
{
	const struct seed *d = self;
	size_t floats = row_floats(d) * (SEED_POSITIONS + 1) + SEED_ROW;

	return cudaMemsetAsync(d->s.sum.fc, 0, floats * sizeof(float), stream) ? PS_EDEVICE : PS_OK;
}

static int gradient(
	void *self, struct kx_batch batch, float *grad, double *loss, cudaStream_t stream)
{
	const struct kx_seed *s = &((struct seed *)self)->s;
	int rc;

	if (kx_seed_resident_parts(*s, batch.images)) {
		rc = start(self, stream);
		if (!rc)
			rc = kx_seed_resident(*s, batch, NULL, 1, loss, stream);
		return rc ? rc : kx_seed_unpack(*s, s->sum, grad, stream);
	}
	rc = parts_of(s, batch, 0, stream);
	return rc ? rc : kx_seed_gradient(*s, batch.images, grad, loss, stream);
}

static int train(void *self, struct kx_batch batch, struct kx_now *now, int steps, double *loss,
	cudaStream_t stream)
{
	const struct kx_seed *s = &((struct seed *)self)->s;
	int rc = PS_OK;

	if (kx_seed_resident_parts(*s, batch.images))
		return kx_seed_resident(*s, batch, now, steps, loss, stream);
	for (int i = 0; i < steps && !rc; i++) {
		rc = parts_of(s, batch, i, stream);
		if (!rc)
			rc = kx_seed_update(
				*s, batch, now, i + 1 < steps ? 0 : steps, loss, stream);
	}
	return rc;
}

static int save(void *self, float *params, float *sum, cudaStream_t stream)
{
	const struct kx_seed *s = &((struct seed *)self)->s;
	int rc = params ? kx_seed_unpack(*s, s->params, params, stream) : PS_OK;

	return rc || !sum ? rc : kx_seed_unpack(*s, s->sum, sum, stream);
}

const struct cuda_path cuda_seed = {
	.fits = fits,
	.open = open,
	.close = free,
	.place = place,
	.fill = fill,
	.load = load,
	.forward = forward,
	.scores = scores,
	.gradient = gradient,
	.start = start,
	.train = train,
	.save = save,
};
