/* cuda_net.c - see cuda_net.h: launching. cuda_plan.c makes the plan. */
#include "kernels/cuda_net.h"

const float *net_scores(const struct net *n, size_t *width)
{
	const struct kx_plane *last = &n->plane[n->n_planes - 1].value;

	*width = last->image;
	return last->value;
}

int net_pack(const struct net *n, const float *params, cudaStream_t stream)
{
	int rc = PS_OK;

	for (int i = 0; i < n->n_steps && !rc; i++) {
		const struct net_step *s = &n->step[i];
		if (s->kind == NET_WEIGHTS)
			rc = kx_pack(params, s->w, s->forward, s->learns ? s->backward : NULL,
				s->bias, stream);
	}
	return rc;
}

/* ---- forward --------------------------------------------------------------------------------- */

static int weights_forward(
	const struct net *n, const struct net_step *s, int images, cudaStream_t stream)
{
	const struct kx_plane *in = &n->plane[s->in].value, *out = &n->plane[s->out].value;
	struct kx_rows g = {.a = in->value,
		.b = s->forward,
		.bias = s->bias,
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

	return kx_rows(g, n->precision, stream);
}

static int step_forward(const struct net *n, const struct net_step *s, const struct kx_batch *batch,
	cudaStream_t stream)
{
	const struct layer *l = s->layer;
	struct kx_plane in = n->plane[s->in].value, out = n->plane[s->out].value;

	switch (s->kind) {
	case NET_WEIGHTS:
		return weights_forward(n, s, batch->images, stream);
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

int net_forward(const struct net *n, struct kx_batch batch, cudaStream_t stream)
{
	int rc = kx_load(batch, (int)n->model->input.c, n->plane[0].value, stream);

	for (int i = 0; i < n->n_steps && !rc; i++)
		rc = step_forward(n, &n->step[i], &batch, stream);
	return rc;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The plane's errors, laid out as its values. */
static struct kx_plane errors_of(const struct net_plane *p)
{
	struct kx_plane e = p->value;

	e.value = p->error;
	return e;
}

/* How many shares the sum over images and spots is cut into: enough to fill the GPU. */
int net_splits(const struct net_step *s, size_t images)
{
	const size_t enough = 264, m = (size_t)s->w.taps * (size_t)s->w.c_pad;
	size_t tiles = s->spots.n * ((images + KX_K_TILE - 1) / KX_K_TILE);
	size_t blocks = (m / KX_ROW_TILE + 1) * (((size_t)s->w.f_pad + 63) / 64);
	size_t splits = enough / blocks;

	splits = splits < tiles ? splits : tiles;
	return splits ? (int)splits : 1;
}

static int weights_gradient(
	const struct net *n, const struct net_step *s, int images, float *grad, cudaStream_t stream)
{
	const struct net_plane *in = &n->plane[s->in], *out = &n->plane[s->out];
	struct kx_outer g = {.a = in->value.value,
		.b = out->error,
		.partial = n->partial,
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
	int rc = kx_outer(g, n->precision, stream);

	return rc ? rc : kx_unpack(n->partial, g.splits, s->w, grad, stream);
}

static int weights_errors(const struct net *n, const struct net_step *s, const float *mask,
	int images, cudaStream_t stream)
{
	const struct net_plane *in = &n->plane[s->in], *out = &n->plane[s->out];
	struct kx_rows g = {.a = out->error,
		.b = s->backward,
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

	return kx_rows(g, n->precision, stream);
}

static int step_backward(const struct net *n, const struct net_step *s,
	const struct kx_batch *batch, float *grad, cudaStream_t stream)
{
	const struct layer *l = s->layer;
	const struct net_plane *in = &n->plane[s->in];
	const float *mask = in->relu ? in->value.value : NULL;
	struct kx_plane d_in = errors_of(in), d_out = errors_of(&n->plane[s->out]);
	int rc = PS_OK;

	if (s->kind == NET_WEIGHTS)
		rc = weights_gradient(n, s, batch->images, grad, stream);
	if (rc || !s->learns)
		return rc;
	switch (s->kind) {
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

int net_gradient(const struct net *n, struct kx_batch batch, float *grad, cudaStream_t stream)
{
	const struct net_plane *last = &n->plane[n->n_planes - 1];
	int rc = net_forward(n, batch, stream);

	if (!rc)
		rc = kx_loss(last->value.value, last->error, n->loss, (int)n->model->classes,
			(int)last->value.image, batch, stream);
	for (int i = n->n_steps; i-- > 0 && !rc;)
		rc = step_backward(n, &n->step[i], &batch, grad, stream);
	return rc;
}
