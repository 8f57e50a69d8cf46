/* gradients.c - see gradients.h. */
#include "tests/support/gradients.h"
#include <stdatomic.h>
#include "tests/support/parallel.h"

void skip_under_tsan(void)
{
	if (IS_TSAN)
		skip();
}

const struct odd_model odd_models[N_ODD_MODELS] = {
	{{1, 1, 1}, "fc:2"},
	{{1, 28, 28}, "fc:400 relu fc:700 fc:3"},
	{{1, 12, 12}, "conv:33:3 relu fc:97 relu fc:5"},
	{{1, 1, 1}, "conv:1:1 relu pool:1 fc:2"},
	{{1, 7, 5}, "fc:3"},
	{{3, 5, 3}, "fc:17 relu fc:11"},
	{{2, 3, 7}, "fc:33 relu fc:31 relu fc:5"},
	{{1, 7, 5}, "conv:3:3 fc:3"},
	{{1, 8, 8}, "conv:5:3 relu pool:2 fc:10"},
	{{1, 8, 8}, "conv:7:3 pool:2 relu fc:4"},
	{{1, 10, 10}, "conv:33:3 relu pool:2 fc:3"},
	{{1, 11, 9}, "conv:16:3 pool:3:pad=auto fc:3"},
	{{1, 9, 13}, "conv:17:5:pad=same relu pool:3:pad=auto fc:3"},
	{{3, 11, 7}, "conv:5:3:stride=2 relu conv:7:2 relu fc:4"},
	{{2, 10, 13}, "conv:4:4:stride=3 fc:3"},
	{{1, 7, 7}, "conv:3:1:stride=3 relu conv:5:2 fc:3"},
	{{1, 12, 12}, "conv:6:5 relu pool:2 conv:19:3 relu pool:2 fc:13 relu fc:10"},
	{{2, 6, 5}, "conv:18:3:pad=same relu conv:35:3:pad=1 relu pool:5:pad=auto fc:3"},
	{{1, 9, 9}, "conv:8:3:pad=auto:stride=2 relu conv:9:3:pad=same relu fc:3"},
	{{1, 6, 6}, "conv:31:3:pad=2 relu pool:2 conv:3:4 fc:2"},
	{{1, 8, 6}, "pool:2 conv:3:3 relu fc:3"},
	{{5, 8, 6}, "conv:3:3:pad=same pool:2 pool:2:pad=auto relu fc:3"},
	{{2, 5, 5}, "relu conv:4:2 relu relu pool:4 relu fc:3"},
	{{1, 7, 7}, "conv:3:2 relu pool:6 fc:7 conv:4:1 relu fc:2"},
	{{1, 7, 7}, "conv:6:2 dropout:0.3 relu pool:2 dropout:0.5 fc:7 relu dropout:0.25 fc:3"},
	{{1, 6, 6}, "dropout:0.2 conv:5:3 relu dropout:0.5 dropout:0.1 pool:2 fc:3"},
	{{1, 6, 5}, "conv:4:3:pad=same relu dropout:0.4 conv:9:3:pad=1 relu fc:3"},
	{{3, 4, 2}, "fc:7 relu fc:1001"},
	{{3, 6, 5}, "conv:5:3 relu fc:389"},
	{{3, 8, 7}, "norm:0.4914,0.4822,0.4465:0.247,0.2435,0.2616 conv:9:3:pad=1 relu fc:3"},
	{{1, 28, 28}, "norm:0.1307:0.3081 conv:16:3 relu pool:2 fc:10"},
};

const struct odd_model layer_models[N_LAYER_MODELS] = {
	{{1, 7, 5}, "tanh fc:4 sigmoid fc:3"},
	{{2, 5, 5}, "conv:3:2 tanh conv:5:2 sigmoid fc:3"},
	{{1, 8, 8}, "conv:5:3 sigmoid pool:2 tanh fc:10"},
	{{1, 9, 9}, "conv:7:3 relu pool:3:stride=2 fc:4"},
	{{3, 9, 7}, "pool:3:stride=2 conv:9:2 pool:2:stride=1 fc:3"},
	{{1, 6, 8}, "conv:9:3:pad=same relu pool:3:stride=2:pad=same relu fc:3"},
	{{2, 6, 5}, "conv:3:3:pad=1 pool:3:stride=1:pad=1 dropout:0.3 fc:3"},
	{{1, 8, 8}, "conv:33:3 relu pool:2:pad=1 fc:3"},
	{{1, 8, 8}, "conv:5:3 relu avgpool:2 fc:10"},
	{{2, 7, 9}, "avgpool:3:stride=2 conv:3:2:pad=auto avgpool:2:stride=1:pad=1 fc:3"},
	{{1, 5, 8}, "conv:18:2 avgpool:3:pad=auto relu avgpool:2:pad=same fc:3"},
	{{3, 4, 7}, "conv:6:3:pad=1 relu avgpool:global fc:3"},
	{{2, 3, 5}, "avgpool:global fc:7 relu avgpool:global fc:3"},
	{{4, 6, 5}, "conv:6:3:groups=2 relu fc:3"},
	{{6, 7, 7}, "conv:6:3:pad=1:groups=6 conv:32:1:groups=2 relu pool:7 fc:3"},
	{{3, 9, 9}, "conv:33:3:stride=2:groups=3 tanh conv:66:2:groups=33 pool:3 fc:3"},
	{{1, 12, 12}, "conv:16:5 relu pool:2 conv:32:3:pad=1:groups=2 relu pool:2 fc:13 fc:10"},
	{{7, 3, 2}, "lrn:3:alpha=0.5:k=1 fc:3"},
	{{1, 6, 7}, "conv:9:3 relu lrn:5:alpha=0.3:beta=0.6 pool:2:stride=1 fc:3"},
	{{2, 5, 5}, "conv:33:2 lrn:4:alpha=2:beta=1.5:k=0.5 conv:3:2 lrn:8:alpha=1 fc:3"},
	{{1, 5, 4}, "conv:1:2 lrn fc:7 tanh lrn:2:alpha=1:beta=1 fc:3"},
	{{1, 4, 4}, "conv:9:2 lrn:100:alpha=1 fc:300 tanh lrn:70:alpha=1 fc:3"},
	{{1, 4, 4}, "conv:9:2 lrn:300:alpha=1 fc:3"},
	{{1, 6, 5}, "conv:5:3:pad=1 relu skip conv:5:3:pad=1 relu add relu fc:3"},
	{{3, 5, 7}, "skip skip conv:3:1 tanh add conv:4:3:stride=2:pad=same add tanh fc:3"},
	{{2, 7, 6}, "conv:5:2 skip dropout:0.3 relu skip conv:17:3:stride=3:pad=auto add tanh "
		    "conv:6:1 add fc:5 skip relu fc:5 add fc:3"},
	{{1, 4, 4}, "skip relu add skip add conv:3:2 fc:3"},
	{{3, 4, 5}, "batchnorm fc:3"},
	{{1, 6, 8}, "conv:5:3 batchnorm relu pool:2 fc:7 batchnorm tanh fc:3"},
	{{2, 5, 5}, "conv:17:2 relu batchnorm dropout:0.3 conv:3:2 batchnorm batchnorm fc:3"},
	{{1, 7, 7},
		"conv:6:3:pad=1 batchnorm relu skip conv:6:3:pad=1 batchnorm relu conv:6:3:pad=1 "
		"batchnorm add relu skip conv:9:3:stride=2:pad=same batchnorm add relu "
		"avgpool:global fc:3"},
};

void subject_random(struct subject *s, const struct odd_model *o, size_t n)
{
	struct err e = {0};
	struct rng r = rng_seed(7, RNG_SIM, n);

	*s = (struct subject){.batch = n, .dropout_seed = 99};
	if (model_parse(&s->model, o->text, o->input, &e))
		fail_msg("%s: %s", o->text, e.text);
	size_t values = shape_count(o->input);
	s->pixels = mem_must(n, values, "test");
	s->labels = mem_must(n, sizeof(*s->labels), "test");
	s->index = mem_must(n, sizeof(*s->index), "test");
	for (size_t i = 0; i < n * values; i++)
		s->pixels[i] = (uint8_t)rng_below(&r, 256);
	for (size_t i = 0; i < n; i++) {
		s->labels[i] = (uint16_t)rng_below(&r, s->model.classes);
		s->index[i] = (uint32_t)(i * 7 % n);
	}
	s->images = (struct kx_images){s->pixels, s->labels, n};
	s->params = mem_must(s->model.n_params, sizeof(float), "test");
	s->grad = mem_must(s->model.n_params, sizeof(float), "test");
	model_init(&s->model, 3, s->params);
}

void subject_open(struct subject *s, const char *device, int threads)
{
	struct err e = {0};
	struct backend_options o = {.device = device, .threads = threads, .max_batch = s->batch};

	backend_free(&s->backend);
	if (backend_new(&s->backend, &s->model, &o, &e) || backend_use(s->backend, &s->images, &e))
		fail_msg("%s on %s: %s", s->model.text, device, e.text);
}

void subject_release(struct subject *s)
{
	backend_free(&s->backend);
	free(s->pixels);
	free(s->labels);
	free(s->index);
	free(s->params);
	free(s->grad);
}

void subject_step(struct subject *s)
{
	for (size_t i = 0; i < s->model.n_params; i++)
		s->grad[i] = NAN;
	s->loss = NAN;
	assert_int_equal(backend_gradient(s->backend, s->params, s->index, s->batch,
				 s->dropout_seed, s->grad, &s->loss),
		PS_OK);
}

double gradient_distance(const float *a, const float *b, size_t n)
{
	double difference = 0, norm = 0;

	for (size_t i = 0; i < n; i++) {
		double d = (double)a[i] - (double)b[i];

		difference += d * d;
		norm += (double)b[i] * (double)b[i];
	}
	return difference == 0 ? 0 : sqrt(difference / norm);
}

float *params_nearby(const struct subject *s, double rounding, uint64_t round)
{
	const size_t n = s->model.n_params;
	float *nearby = mem_must(n, sizeof(*nearby), "test");
	struct rng r = rng_seed(round, RNG_SIM, 0);

	for (size_t i = 0; i < n; i++)
		nearby[i] = (float)((double)s->params[i] * (1 + rounding * (2 * rng_unit(&r) - 1)));
	return nearby;
}

/* A search among weights near those of `s`. The search makes NEARBY vectors of weights, which
 * differ from those of `s` by relative amounts of up to `rounding`. At each vector, the search
 * computes the exact gradient, and the distance of this gradient from the gradient `from`. The
 * search ends as soon as a distance is at most `near` or at least `far`. */
struct nearby {
	const struct subject *s;
	const float *from;
	double rounding, near, far;
	double distance[NEARBY];
	atomic_int found;
};

static void nearby_distance(void *context, size_t round)
{
	struct nearby *all = context;
	struct subject there = *all->s;
	const size_t n = there.model.n_params;

	if (atomic_load(&all->found))
		return;
	there.backend = NULL;
	there.params = params_nearby(all->s, all->rounding, round);
	there.grad = mem_must(n, sizeof(float), "test");
	subject_open(&there, "cpu-ref", 1);
	subject_step(&there);
	const double d = gradient_distance(there.grad, all->from, n);
	all->distance[round] = d;
	if (d <= all->near || d >= all->far)
		atomic_store(&all->found, 1);
	backend_free(&there.backend);
	free(there.params);
	free(there.grad);
}

/* Fills in all->distance: NAN for each round that the search has not computed before it ended. */
static void search_nearby(struct nearby *all)
{
	atomic_init(&all->found, 0);
	for (size_t round = 0; round < NEARBY; round++)
		all->distance[round] = NAN;
	parallel(NEARBY, nearby_distance, all);
}

double gradient_jump(const struct subject *s, const float *right, double rounding, double enough)
{
	struct nearby all = {
		.s = s, .from = right, .rounding = rounding, .near = -1, .far = enough};
	double max = 0;

	search_nearby(&all);
	for (size_t round = 0; round < NEARBY; round++)
		max = all.distance[round] > max ? all.distance[round] : max;
	return max;
}

double gradient_backward_error(const struct subject *s, const float *grad, double max, double bound,
	double *distance_there)
{
	for (double rounding = 0x1p-24; rounding <= max; rounding *= 2) {
		struct nearby all = {
			.s = s, .from = grad, .rounding = rounding, .near = bound, .far = INFINITY};

		search_nearby(&all);
		*distance_there = INFINITY;
		for (size_t round = 0; round < NEARBY; round++)
			if (all.distance[round] < *distance_there)
				*distance_there = all.distance[round];
		if (*distance_there <= bound)
			return rounding;
	}
	return 0;
}

/* Returns the loss at params + t * direction. `direction` has n floats, for the parameters from
 * `offset` on. */
static double loss_along(
	struct subject *s, size_t offset, const float *direction, size_t n, float t)
{
	float *kept = mem_must(n, sizeof(*kept), "test");

	memcpy(kept, s->params + offset, n * sizeof(*kept));
	for (size_t i = 0; i < n; i++)
		s->params[offset + i] += t * direction[i];
	subject_step(s);
	memcpy(s->params + offset, kept, n * sizeof(*kept));
	free(kept);
	return s->loss;
}

/*
 * Compare the gradient of one tensor with the slope of the loss, along the gradient itself (scaled
 * to length 1) and along a random direction. The logits are floats, so a loss has an error of about
 * 1e-7, and a slope over two steps of 1e-4 has an error of about 5e-4. In addition, some ReLUs and
 * argmaxes flip within these two steps. The tolerance of 2 % of the tensor's gradient plus 1e-3
 * allows for both. A wrong factor or index gives an error of about 100 %. The tests that compare
 * gradients with cpu-ref are much stricter.
 */
static void check_slope(struct subject *s, const float *grad, const struct tensor *t)
{
	struct rng r = rng_seed(5, RNG_SIM, t->offset);
	const float step = 1e-4f;
	float *direction = mem_must(t->count, sizeof(*direction), "test");
	double norm = 0, length, projected, measured;

	for (size_t i = 0; i < t->count; i++)
		norm += (double)grad[t->offset + i] * (double)grad[t->offset + i];
	norm = sqrt(norm);
	for (int round = 0; round < 2; round++) {
		length = projected = 0;
		for (size_t i = 0; i < t->count; i++) {
			direction[i] = round == 0 && norm > 0 ? grad[t->offset + i]
							      : (float)rng_unit(&r) - 0.5f;
			length += (double)direction[i] * (double)direction[i];
		}
		for (size_t i = 0; i < t->count; i++) {
			direction[i] = (float)(direction[i] / sqrt(length));
			projected += (double)direction[i] * (double)grad[t->offset + i];
		}
		measured = (loss_along(s, t->offset, direction, t->count, step) -
				   loss_along(s, t->offset, direction, t->count, -step)) /
			   (2 * (double)step);
		if (!(fabs(measured - projected) <= 0.02 * norm + 1e-3))
			fail_msg("%s %s on %s: slope %g, gradient says %g", s->model.text, t->name,
				backend_name(s->backend), measured, projected);
	}
	free(direction);
}

void check_slopes(struct subject *s)
{
	subject_step(s);
	size_t bytes = s->model.n_params * sizeof(float);
	float *grad = mem_must(bytes, 1, "test");
	memcpy(grad, s->grad, bytes);
	for (size_t t = 0; t < s->model.n_tensors; t++)
		if (s->model.tensor[t].offset < s->model.n_trained)
			check_slope(s, grad, &s->model.tensor[t]);
	free(grad);
}
