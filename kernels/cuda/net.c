/* net.c - see net.h: launching. */
#include <stdlib.h>
#include "common/mem.h"
#include "kernels/backend.h"
#include "kernels/cuda/net.h"

/* What the steps from *step on have learned or shall learn, as many as a launch takes. */
static struct kx_layers layers_from(const struct net *n, int *step, size_t images)
{
	struct kx_layers all = {.n = 0};

	for (; *step < n->n_steps && all.n < KX_LAYERS; ++*step) {
		const struct net_step *s = &n->step[*step];
		if (s->w.taps == 0)
			continue;
		all.layer[all.n] = s->own;
		all.layer[all.n++].splits = net_splits(s, images);
	}
	return all;
}

/*
 * What is multiplied how. The low precisions are for what the work is in, the products behind a
 * convolution. Forward they would change which cell wins a pool and which ReLU is open (a gradient
 * 1 to 3 % off at the nets of MNIST), and an fc layer's gradient is a sum of terms that cancel.
 */
static enum kx_product forward_by(const struct net *n)
{
	return n->precision == KX_FP32 ? KX_FFMA : KX_SPLIT;
}

static enum kx_product backward_by(const struct net *n, const struct net_step *s)
{
	if (n->precision == KX_FP32 || s->layer->kind == LAYER_FC)
		return forward_by(n);
	return n->precision == KX_TF32 ? KX_BY_TF32 : KX_BY_BF16;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Steps before head.h's. */
static int body_steps(const struct net *n)
{
	return n->n_steps - (n->has_head ? 2 : 0);
}

static int weights_forward(
	const struct net *n, const struct net_step *s, int images, cudaStream_t stream)
{
	const struct kx_plane *in = &n->plane[s->in].value;
	const struct kx_plane *out = &n->plane[s->out].value;
	struct kx_rows g = {.a = in->value,
		.b = s->own.value,
		.bias = net_biases(s),
		.d = out->value,
		.taps = s->taps.device,
		.cells = s->cells.device,
		.a_image = in->image,
		.d_image = out->image,
		.n_cells = (int)s->cells.n,
		.n = s->w.f_pad,
		.run = s->run,
		.relu = s->relu,
		.images = images};

	return kx_rows(g, forward_by(n), stream);
}

static int step_forward(const struct net *n, const struct net_step *s, const struct kx_batch *batch,
	cudaStream_t stream)
{
	const struct layer *l = s->layer;
	struct kx_plane in = n->plane[s->in].value, out = n->plane[s->out].value;

	switch (s->kind) {
	case NET_FIRST:
		return kx_first_forward(s->first, *batch, stream);
	case NET_WEIGHTS:
		return weights_forward(n, s, batch->images, stream);
	case NET_SECOND:
		return kx_second_forward(s->second, batch->images, stream);
	case NET_POOL:
		return kx_pool_forward(in, out, (int)l->size, (int)l->pad_top, (int)l->pad_left,
			batch->images, stream);
	case NET_RELU:
		return kx_relu_forward(in, out, batch->images, stream);
	case NET_DROPOUT:
		return kx_dropout(in, out, s->drop, NULL, *batch, stream);
	}
	return PS_EDEVICE;
}

/* Up to what head.h does at once. */
static int body_forward(const struct net *n, const struct kx_batch *batch, cudaStream_t stream)
{
	int rc = PS_OK;

	if (n->step[0].kind != NET_FIRST)
		rc = kx_load(*batch, (int)n->model->input.c, n->plane[0].value, stream);

	for (int i = 0; i < body_steps(n) && !rc; i++)
		rc = step_forward(n, &n->step[i], batch, stream);
	if (n->has_head && !rc)
		rc = kx_head_hidden(n->head, batch->images, stream);
	return rc;
}

static int forward(void *self, struct kx_batch batch, cudaStream_t stream)
{
	const struct net *n = self;
	int rc = body_forward(n, &batch, stream);

	return rc || !n->has_head ? rc : kx_head_scores(n->head, batch.images, stream);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The plane's errors, laid out as its values. */
static struct kx_plane errors_of(const struct net_plane *p)
{
	struct kx_plane e = p->value;

	e.value = p->error;
	return e;
}

static struct kx_outer outer_of(const struct net *n, const struct net_step *s, int images)
{
	const struct net_plane *in = &n->plane[s->in], *out = &n->plane[s->out];

	return (struct kx_outer){.a = in->value.value,
		.b = out->error,
		.partial = s->own.partial,
		.spots = s->spots.device,
		.a_image = in->value.image,
		.b_image = out->value.image,
		.n_spots = (int)s->spots.n,
		.m = s->w.taps * s->w.c_pad,
		.n = s->w.f_pad,
		.run = s->run,
		.row = in->value.row,
		.splits = net_splits(s, (size_t)images),
		.images = images};
}

static int weights_gradient(
	const struct net *n, const struct net_step *s, int images, cudaStream_t stream)
{
	const struct kx_outer none = {.splits = 0};

	return kx_outer(outer_of(n, s, images), none, backward_by(n, s), stream);
}

/* Of both its layers. */
static int head_gradient(const struct net *n, int images, cudaStream_t stream)
{
	const struct net_step *s = &n->step[body_steps(n)];

	return kx_outer(
		outer_of(n, &s[0], images), outer_of(n, &s[1], images), backward_by(n, s), stream);
}

static int weights_errors(const struct net *n, const struct net_step *s, const float *mask,
	int images, cudaStream_t stream)
{
	const struct net_plane *in = &n->plane[s->in], *out = &n->plane[s->out];
	struct kx_rows g = {.a = out->error,
		.b = s->own.backward,
		.mask = mask,
		.d = in->error,
		.taps = s->back_taps.device,
		.cells = s->back_cells.device,
		.a_image = out->value.image,
		.d_image = in->value.image,
		.n_cells = (int)s->back_cells.n,
		.n = s->back_cells.n == 1 && s->layer->kind == LAYER_FC ? (int)in->value.image
									: s->w.c_pad,
		.run = s->w.f_pad,
		.images = images};

	return kx_rows(g, backward_by(n, s), stream);
}

/* The step before is NET_FIRST: this is its gradient, too. */
static int second_backward(
	const struct net_step *s, const struct kx_batch *batch, cudaStream_t stream)
{
	int rc = kx_second_errors(s->second, *batch, s[-1].own.partial, stream);

	return rc ? rc : kx_second_gradient(s->second, s->own.partial, batch->images, stream);
}

static int step_backward(const struct net *n, const struct net_step *s,
	const struct kx_batch *batch, cudaStream_t stream)
{
	const struct layer *l = s->layer;
	const struct net_plane *in = &n->plane[s->in];
	const float *mask = in->relu ? in->value.value : NULL;
	struct kx_plane d_in = errors_of(in), d_out = errors_of(&n->plane[s->out]);
	int rc = PS_OK;

	if (s->kind == NET_WEIGHTS)
		rc = weights_gradient(n, s, batch->images, stream);
	if (s->kind == NET_SECOND)
		rc = second_backward(s, batch, stream);
	if (s->kind == NET_FIRST && !s->before_second)
		rc = kx_first_gradient(s->first, *batch, stream);
	if (rc || !s->learns)
		return rc;
	switch (s->kind) {
	case NET_FIRST:
	case NET_SECOND:
		return PS_OK;
	case NET_WEIGHTS:
		return weights_errors(n, s, mask, batch->images, stream);
	case NET_POOL:
		return kx_pool_backward(in->value, d_in, d_out, (int)l->size, (int)l->pad_top,
			(int)l->pad_left, mask, batch->images, stream);
	case NET_RELU:
		return kx_relu_backward(in->value, d_in, d_out, mask, batch->images, stream);
	case NET_DROPOUT:
		return kx_dropout(d_out, d_in, s->drop, mask, *batch, stream);
	}
	return PS_EDEVICE;
}

/* Loss, and the way back to where the body begins. */
static int end_backward(const struct net *n, struct kx_batch batch, cudaStream_t stream)
{
	const struct net_plane *last = &n->plane[n->n_planes - 1];
	int rc;

	if (!n->has_head)
		return kx_loss(last->value.value, last->error, n->loss, (int)n->model->classes,
			(int)last->value.image, batch, stream);
	rc = kx_head_errors(n->head, batch, stream);
	return rc ? rc : head_gradient(n, batch.images, stream);
}

/* Up to the parts of the gradient. */
static int parts_of(const struct net *n, struct kx_batch batch, cudaStream_t stream)
{
	int rc = body_forward(n, &batch, stream);

	if (!rc)
		rc = end_backward(n, batch, stream);
	for (int i = body_steps(n); i-- > 0 && !rc;)
		rc = step_backward(n, &n->step[i], &batch, stream);
	return rc;
}

static int gradient(
	void *self, struct kx_batch batch, float *grad, double *loss, cudaStream_t stream)
{
	const struct net *n = self;
	struct kx_losses losses = {.loss = n->loss, .sum = loss, .images = batch.images};
	int rc = parts_of(n, batch, stream);

	for (int i = 0; i < n->n_steps && !rc; losses.loss = NULL)
		rc = kx_gradient(layers_from(n, &i, (size_t)batch.images), losses, grad, stream);
	return rc;
}

/* ---- local training -------------------------------------------------------------------------- */

static int load(void *self, const float *params, cudaStream_t stream)
{
	const struct net *n = self;
	int rc = PS_OK;

	for (int i = 0; i < n->n_steps && !rc;)
		rc = kx_pack(layers_from(n, &i, 1), params, stream);
	return rc;
}

static int start(void *self, cudaStream_t stream)
{
	const struct net *n = self;

	return cudaMemsetAsync(n->sums, 0, n->n_sums * sizeof(float), stream) ? PS_EDEVICE : PS_OK;
}

static int learn(const struct net *n, struct kx_batch batch, struct kx_now *now, double *loss,
	cudaStream_t stream)
{
	struct kx_losses losses = {.loss = n->loss, .sum = loss, .images = batch.images, .add = 1};
	int rc = PS_OK;

	for (int i = 0; i < n->n_steps && !rc; losses.loss = NULL)
		rc = kx_learn(layers_from(n, &i, (size_t)batch.images), losses, now, stream);
	return rc;
}

static int train(void *self, struct kx_batch batch, struct kx_now *now, int steps, double *loss,
	cudaStream_t stream)
{
	int rc = PS_OK;

	for (int i = 0; i < steps && !rc; i++) {
		rc = parts_of(self, batch, stream);
		if (!rc)
			rc = learn(self, batch, now, loss, stream);
	}
	return rc;
}

static int save_one(const struct net *n, int sums, float *to, cudaStream_t stream)
{
	int rc = PS_OK;

	for (int i = 0; i < n->n_steps && to && !rc;)
		rc = kx_unpack(layers_from(n, &i, 1), sums, to, stream);
	return rc;
}

static int save(void *self, float *params, float *sum, cudaStream_t stream)
{
	int rc = save_one(self, 0, params, stream);

	return rc ? rc : save_one(self, 1, sum, stream);
}

/* ---- the path -------------------------------------------------------------------------------- */

static int fits(const struct model *m)
{
	(void)m;
	return 1;
}

static int open(void **self, const struct model *m, int precision, size_t images, struct err *e)
{
	struct net *n = mem_try(1, sizeof *n);
	int rc;

	*self = NULL;
	if (!n)
		return err_set(e, PS_ENOMEM, "no memory for model \"%s\"", m->text);
	if ((rc = net_plan(n, m, precision, images, e))) {
		net_release(n);
		free(n);
		return rc;
	}
	*self = n;
	return PS_OK;
}

static void close(void *self)
{
	net_release(self);
	free(self);
}

static void place(void *self, struct cuda_arena *a)
{
	net_place(self, a);
}

static int fill(void *self, cudaStream_t stream)
{
	return net_fill(self, stream);
}

static const float *scores(const void *self, size_t *width)
{
	const struct net *n = self;
	const struct kx_plane *last = &n->plane[n->n_planes - 1].value;

	*width = last->image;
	return last->value;
}

const struct cuda_path cuda_net = {
	.fits = fits,
	.open = open,
	.close = close,
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
