/* net.c - launches the kernels of a planned model. See net.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "kernels/cuda/net.h"

/* Collects the layers with weights from step *step on, at most KX_LAYERS, and advances *step. */
static struct kx_layers layers_from(const struct net *n, int *step, size_t images)
{
	struct kx_layers all = {.n = 0};

	for (; *step < n->n_steps && all.n < KX_LAYERS; ++*step) {
		const struct net_step *s = &n->step[*step];

		if (s->kind == NET_BATCHNORM && !cuda_batchnorm_append(&s->batchnorm, &all))
			break;
		if (s->w.taps == 0)
			continue;
		all.layer[all.n] = s->own;
		all.layer[all.n++].slices = net_slices(s, images);
	}
	return all;
}

/*
 * fprop_math and backward_math return the format in which the kernels multiply values. TF32 and
 * BF16 are used where most of the work is: in dgrad and wgrad of convolutions. In fprop they would
 * change the argmax of pools and the mask of ReLUs: in measurements on the MNIST networks, the
 * gradient then had an error of 1 to 3 %. The gradient of an fc layer needs 3xTF32, because it is a
 * sum of terms that nearly cancel.
 */
static enum kx_math fprop_math(const struct net *n)
{
	return n->precision == KX_FP32 ? KX_MATH_FFMA : KX_MATH_3XTF32;
}

static enum kx_math backward_math(const struct net *n, const struct net_step *s)
{
	if (n->precision == KX_FP32 || s->layer->kind == LAYER_FC)
		return fprop_math(n);
	return n->precision == KX_BF16 ? KX_MATH_BF16 : KX_MATH_TF32;
}

static void net_path_kernel(const void *self, size_t layer, size_t batch, char *text, size_t size)
{
	static const char *const names[] = {[KX_MATH_FFMA] = "ffma",
		[KX_MATH_3XTF32] = "3xtf32",
		[KX_MATH_TF32] = "tf32",
		[KX_MATH_BF16] = "bf16"};
	const struct net *n = self;

	(void)batch;
	for (int i = 0; i < n->n_steps; i++) {
		const struct net_step *s = &n->step[i];

		if (s->number != layer)
			continue;
		if (s->kind != NET_WEIGHTS || (n->has_classifier && i >= n->n_steps - 2))
			snprintf(text, size, "fused");
		else
			snprintf(text, size, "%s:%s/%s/%s",
				fprop_math(n) == KX_MATH_FFMA ? "general" : "mma",
				names[fprop_math(n)], names[backward_math(n, s)],
				s->needs_dx ? names[backward_math(n, s)] : "none");
	}
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Returns the number of steps in front of the classifier head. */
static int body_steps(const struct net *n)
{
	return n->n_steps - (n->has_classifier ? 2 : 0);
}

static int weights_fprop(
	const struct net *n, const struct net_step *s, int images, cudaStream_t stream)
{
	const struct kx_tensor *in = &n->tensor[s->in].value;
	const struct kx_tensor *out = &n->tensor[s->out].value;
	struct kx_conv g = {.a = in->value,
		.b = s->own.value,
		.bias = net_biases(s),
		.d = out->value,
		.k_runs = s->fprop_runs.device,
		.pixels = s->fprop_pixels.device,
		.a_image = in->image,
		.d_image = out->image,
		.n_pixels = (int)s->fprop_pixels.n,
		.n = s->w.f_pad,
		.run_length = s->run_length,
		.relu = s->relu,
		.images = images};

	return kx_conv_fprop(g, fprop_math(n), stream);
}

/* Returns the values of the tensor s->other or, if `grad`, their gradients. */
static struct kx_tensor other_of(const struct net *n, const struct net_step *s, int grad)
{
	struct kx_tensor t = {.value = NULL};

	if (s->other >= 0)
		t = n->tensor[s->other].value;
	if (s->other >= 0 && grad)
		t.value = n->tensor[s->other].grad;
	return t;
}

static int step_fprop(const struct net *n, const struct net_step *s, const struct kx_batch *batch,
	cudaStream_t stream)
{
	const struct layer *l = s->layer;
	struct kx_tensor in = n->tensor[s->in].value, out = n->tensor[s->out].value;

	switch (s->kind) {
	case NET_CONV1:
		return kx_conv1_fprop(s->conv1, *batch, stream);
	case NET_WEIGHTS:
		return weights_fprop(n, s, batch->images, stream);
	case NET_CONV2:
		return kx_conv2_fprop(s->conv2, batch->images, stream);
	case NET_POOL:
		return kx_pool_fprop(in, out, (int)l->size, (int)l->pad_top, (int)l->pad_left,
			batch->images, stream);
	case NET_DROPOUT:
		return kx_dropout(in, out, s->drop, NULL, *batch, 0, stream);
	case NET_BATCHNORM:
		return kx_batchnorm(
			s->batchnorm.kernel, in, out, batch->images, batch->training, 0, stream);
	case NET_PLAIN:
		return cuda_plain_fprop(&(struct plain_layer){.layer = l,
						.x = in,
						.y = out,
						.other = other_of(n, s, 0),
						.images = batch->images},
			stream);
	}
	return PS_EDEVICE;
}

struct kx_norm cuda_norm(const struct model *m)
{
	struct kx_norm norm = {.n = (int)m->preprocess.n_norm};

	_Static_assert(sizeof(norm.mean) == sizeof(m->preprocess.mean), "one number of channels");
	memcpy(norm.mean, m->preprocess.mean, sizeof(norm.mean));
	memcpy(norm.deviation, m->preprocess.deviation, sizeof(norm.deviation));
	return norm;
}

/* Runs the forward pass up to the hidden layer of the classifier head or, without a classifier
 * head, up to the logits. */
static int body_fprop(const struct net *n, const struct kx_batch *batch, cudaStream_t stream)
{
	int rc = PS_OK;

	if (n->step[0].kind != NET_CONV1)
		rc = kx_load(*batch, (int)n->model->input.c, cuda_norm(n->model),
			n->tensor[0].value, stream);

	for (int i = 0; i < body_steps(n) && !rc; i++)
		rc = step_fprop(n, &n->step[i], batch, stream);
	if (n->has_classifier && !rc)
		rc = kx_classifier_hidden(n->classifier, batch->images, stream);
	return rc;
}

static int net_path_forward(void *self, struct kx_batch batch, cudaStream_t stream)
{
	const struct net *n = self;
	int rc = body_fprop(n, &batch, stream);

	return rc || !n->has_classifier ? rc
					: kx_classifier_logits(n->classifier, batch.images, stream);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Returns the gradient of a tensor, which has the layout of the tensor's values. */
static struct kx_tensor grad_of(const struct net_tensor *p)
{
	struct kx_tensor e = p->value;

	e.value = p->grad;
	return e;
}

static struct kx_conv_wgrad wgrad_of(const struct net *n, const struct net_step *s, int images)
{
	const struct net_tensor *in = &n->tensor[s->in], *out = &n->tensor[s->out];

	return (struct kx_conv_wgrad){.a = in->value.value,
		.b = out->grad,
		.workspace = s->own.workspace,
		.positions = s->wgrad_positions.device,
		.a_image = in->value.image,
		.b_image = out->value.image,
		.n_positions = (int)s->wgrad_positions.n,
		.m = s->w.taps * s->w.c_pad,
		.n = s->w.f_pad,
		.run_length = s->run_length,
		.row = in->value.row,
		.slices = net_slices(s, (size_t)images),
		.images = images};
}

static int weights_wgrad(
	const struct net *n, const struct net_step *s, int images, cudaStream_t stream)
{
	const struct kx_conv_wgrad none = {.slices = 0};

	return kx_conv_wgrad(wgrad_of(n, s, images), none, backward_math(n, s), stream);
}

/* Runs wgrad of both fc layers of the classifier head. */
static int classifier_wgrad(const struct net *n, int images, cudaStream_t stream)
{
	const struct net_step *s = &n->step[body_steps(n)];

	return kx_conv_wgrad(wgrad_of(n, &s[0], images), wgrad_of(n, &s[1], images),
		backward_math(n, s), stream);
}

static int weights_dgrad(const struct net *n, const struct net_step *s, const float *mask,
	int images, cudaStream_t stream)
{
	const struct net_tensor *in = &n->tensor[s->in], *out = &n->tensor[s->out];
	struct kx_conv g = {.a = out->grad,
		.b = s->own.dgrad,
		.mask = mask,
		.d = in->grad,
		.k_runs = s->dgrad_runs.device,
		.pixels = s->dgrad_pixels.device,
		.a_image = out->value.image,
		.d_image = in->value.image,
		.n_pixels = (int)s->dgrad_pixels.n,
		.n = s->dgrad_pixels.n == 1 && s->layer->kind == LAYER_FC ? (int)in->value.image
									  : s->w.c_pad,
		.run_length = s->w.f_pad,
		.images = images};

	return kx_conv_dgrad(g, backward_math(n, s), stream);
}

/* Computes the gradients of the step NET_CONV2 and of the step NET_CONV1 in front of it. */
static int conv2_backward(
	const struct net_step *s, const struct kx_batch *batch, cudaStream_t stream)
{
	int rc = kx_conv2_dgrad(s->conv2, *batch, s[-1].own.workspace, stream);

	return rc ? rc : kx_conv2_wgrad(s->conv2, s->own.workspace, batch->images, stream);
}

static int net_step_backward(const struct net *n, const struct net_step *s,
	const struct kx_batch *batch, cudaStream_t stream)
{
	const struct layer *l = s->layer;
	const struct net_tensor *in = &n->tensor[s->in];
	const float *mask = in->relu ? in->value.value : NULL;
	struct kx_tensor dx = grad_of(in), dy = grad_of(&n->tensor[s->out]);
	int rc = PS_OK;

	if (s->kind == NET_WEIGHTS)
		rc = weights_wgrad(n, s, batch->images, stream);
	if (s->kind == NET_CONV2)
		rc = conv2_backward(s, batch, stream);
	if (s->kind == NET_BATCHNORM)
		return kx_batchnorm_backward(s->batchnorm.kernel, in->value,
			s->needs_dx ? dx : (struct kx_tensor){.value = NULL}, dy, mask,
			batch->images, 0, stream);
	if (s->kind == NET_CONV1 && !s->before_conv2)
		rc = kx_conv1_wgrad(s->conv1, *batch, stream);
	if (rc || !s->needs_dx)
		return rc;
	switch (s->kind) {
	case NET_CONV1:
	case NET_CONV2:
	case NET_BATCHNORM:
		return PS_OK;
	case NET_WEIGHTS:
		return weights_dgrad(n, s, mask, batch->images, stream);
	case NET_POOL:
		return kx_pool_dgrad(in->value, dx, dy, (int)l->size, (int)l->pad_top,
			(int)l->pad_left, mask, batch->images, stream);
	case NET_DROPOUT:
		return kx_dropout(dy, dx, s->drop, mask, *batch, 0, stream);
	case NET_PLAIN:
		return cuda_plain_dgrad(&(struct plain_layer){.layer = l,
						.x = in->value,
						.y = n->tensor[s->out].value,
						.dx = dx,
						.dy = dy,
						.other = other_of(n, s, 1),
						.other_stride = s->other_stride,
						.mask = mask,
						.images = batch->images},
			stream);
	}
	return PS_EDEVICE;
}

/* Computes the loss and the backward pass of the classifier head. */
static int loss_backward(const struct net *n, struct kx_batch batch, cudaStream_t stream)
{
	const struct net_tensor *last = &n->tensor[n->n_tensors - 1];
	int rc;

	if (!n->has_classifier)
		return kx_loss(last->value.value, last->grad, n->loss, (int)n->model->classes,
			(int)last->value.image, batch, stream);
	rc = kx_classifier_dgrad(n->classifier, batch, stream);
	return rc ? rc : classifier_wgrad(n, batch.images, stream);
}

/* Runs the forward and the backward pass, from the pixels to the split-K slices of the gradient. */
static int net_forward_backward(const struct net *n, struct kx_batch batch, cudaStream_t stream)
{
	int rc = body_fprop(n, &batch, stream);

	if (!rc)
		rc = loss_backward(n, batch, stream);
	for (int i = body_steps(n); i-- > 0 && !rc;)
		rc = net_step_backward(n, &n->step[i], &batch, stream);
	return rc;
}

static int net_path_gradient(
	void *self, struct kx_batch batch, float *grad, double *loss, cudaStream_t stream)
{
	const struct net *n = self;
	struct kx_losses losses = {.loss = n->loss, .sum = loss, .images = batch.images};
	int rc = net_forward_backward(n, batch, stream);

	for (int i = 0; i < n->n_steps && !rc; losses.loss = NULL)
		rc = kx_reduce_gradient(
			layers_from(n, &i, (size_t)batch.images), losses, grad, stream);
	return rc;
}

/* ---- local training -------------------------------------------------------------------------- */

static int net_path_load(void *self, const float *params, cudaStream_t stream)
{
	const struct net *n = self;
	int rc = PS_OK;

	for (int i = 0; i < n->n_steps && !rc;)
		rc = kx_pack(layers_from(n, &i, 1), params, stream);
	return rc;
}

static int net_path_start(void *self, cudaStream_t stream)
{
	const struct net *n = self;

	return cudaMemsetAsync(n->sums, 0, n->n_sums * sizeof(float), stream) ? PS_EDEVICE : PS_OK;
}

static int net_sgd_step(const struct net *n, struct kx_batch batch, struct kx_now *now,
	double *loss, cudaStream_t stream)
{
	struct kx_losses losses = {.loss = n->loss, .sum = loss, .images = batch.images, .add = 1};
	int rc = PS_OK;

	for (int i = 0; i < n->n_steps && !rc; losses.loss = NULL)
		rc = kx_sgd_step(layers_from(n, &i, (size_t)batch.images), losses, now, stream);
	return rc;
}

static int net_path_train(void *self, struct kx_batch batch, struct kx_now *now, int steps,
	double *loss, cudaStream_t stream)
{
	int rc = PS_OK;

	for (int i = 0; i < steps && !rc; i++) {
		rc = net_forward_backward(self, batch, stream);
		if (!rc)
			rc = net_sgd_step(self, batch, now, loss, stream);
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

static int net_path_save(void *self, float *params, float *sum, cudaStream_t stream)
{
	int rc = save_one(self, 0, params, stream);

	return rc ? rc : save_one(self, 1, sum, stream);
}

/* ---- struct cuda_path ------------------------------------------------------------------------ */

static int net_path_fits(const struct model *m, const struct path_options *o)
{
	(void)m;
	(void)o;
	return 1;
}

static int net_path_open(
	void **self, const struct model *m, const struct path_options *o, struct err *e)
{
	struct net *n = mem_try(1, sizeof(*n));
	int rc;

	*self = NULL;
	if (!n)
		return err_set(e, PS_ENOMEM, "no memory for model \"%s\"", m->text);
	if ((rc = net_plan(n, m, o, e))) {
		net_release(n);
		free(n);
		return rc;
	}
	*self = n;
	return PS_OK;
}

static void net_path_close(void *self)
{
	net_release(self);
	free(self);
}

static int net_path_may_fail(const void *self)
{
	const struct net *n = self;

	for (int i = 0; i < n->n_steps; i++)
		if (n->step[i].kind == NET_CONV2)
			return 1;
	return 0;
}

static void net_path_place(void *self, struct cuda_arena *a, uint32_t *trouble)
{
	struct net *n = self;

	n->trouble = trouble;
	net_place(n, a);
}

static int net_path_fill(void *self, cudaStream_t stream)
{
	return net_fill(self, stream);
}

static const float *net_path_logits(const void *self, size_t *width)
{
	const struct net *n = self;
	const struct kx_tensor *last = &n->tensor[n->n_tensors - 1].value;

	*width = last->image;
	return last->value;
}

const struct cuda_path cuda_net = {
	.fits = net_path_fits,
	.open = net_path_open,
	.close = net_path_close,
	.may_fail = net_path_may_fail,
	.place = net_path_place,
	.fill = net_path_fill,
	.load = net_path_load,
	.kernel = net_path_kernel,
	.forward = net_path_forward,
	.logits = net_path_logits,
	.gradient = net_path_gradient,
	.start = net_path_start,
	.train = net_path_train,
	.save = net_path_save,
};
