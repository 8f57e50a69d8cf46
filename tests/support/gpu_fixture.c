/* gpu_fixture.c - see gpu_fixture.h. */
#include "tests/support/gpu_fixture.h"
#include "tests/support/parallel.h"

const struct precision gpu_precisions[N_PRECISIONS] = {
	{"fp32", KX_FP32, 1e-5, 1e-5, 0x1p-22},
	{"tf32", KX_TF32, 3e-3, 0.1, 0x1p-11},
	{"bf16", KX_BF16, 2e-2, 0.25, 0x1p-8},
	{"tf32x3", KX_TF32X3, 3e-3, 3e-3, 0x1p-11},
};

const char *gpu_device(void)
{
	const char *name = getenv("CNN_TEST_DEVICE");

	return name ? name : "cuda";
}

size_t gpu_n_precisions(void)
{
	int is_gpu = strncmp(gpu_device(), "cuda", 4) == 0;

	return is_gpu ? N_PRECISIONS : 1;
}

/* Open a new backend on the device for batches of up to max_batch images. */
static int gpu_try(struct subject *s, const struct precision *p, size_t max_batch, int forward_only,
	struct err *e)
{
	const char *kernels = getenv("CNN_TEST_KERNELS");
	struct backend_options o = {.device = gpu_device(),
		.kernels = kernels && strcmp(kernels, "general") == 0 ? KX_KERNELS_GENERAL
								      : KX_KERNELS_AUTO,
		.threads = 2,
		.precision = (int)p->value,
		.max_batch = max_batch,
		.forward_only = forward_only};

	backend_free(&s->backend);
	int rc = backend_new(&s->backend, &s->model, &o, e);
	return rc ? rc : backend_use(s->backend, &s->images, e);
}

void gpu_open(struct subject *s, const struct precision *p)
{
	struct err e = {0};

	if (gpu_try(s, p, s->batch, 0, &e))
		fail_msg("%s on %s in %s: %s", s->model.text, gpu_device(), p->name, e.text);
}

void gpu_open_forward(struct subject *s, const struct precision *p)
{
	struct err e = {0};

	if (gpu_try(s, p, s->batch, 1, &e))
		fail_msg("%s on %s in %s: %s", s->model.text, gpu_device(), p->name, e.text);
}

void gpu_begin(void)
{
	static const struct odd_model tiny = {{1, 1, 1}, "fc:2"};
	struct subject s;
	struct err e = {0};

	subject_random(&s, &tiny, 1);
	int rc = gpu_try(&s, &gpu_precisions[0], 1, 0, &e);
	subject_release(&s);
	if (rc && getenv("KX_REQUIRE_GPU"))
		fail_msg("KX_REQUIRE_GPU is set, but: %s", e.text);
	if (rc)
		skip();
}

/* The gradients of the parts of a batch, which threads compute in parallel. The gradient of the
 * batch is the mean of these gradients, weighted with the numbers of images of the parts. */
#define MAX_PARTS   16
#define PART_IMAGES 4 /* minimum number of images of a part, so that a thread pays off */
struct parts {
	const struct subject *s;
	size_t n;
	float *grad[MAX_PARTS];
	double loss[MAX_PARTS];
};

static size_t part_begin(const struct parts *p, size_t i)
{
	return p->s->batch * i / p->n;
}

static double part_weight(const struct parts *p, size_t i)
{
	return (double)(part_begin(p, i + 1) - part_begin(p, i)) / (double)p->s->batch;
}

/* Returns the number of parts: 1 if the gradient of an image depends on the other images of the
 * batch, or on its place in it. */
static size_t count_parts(const struct subject *s)
{
	const size_t max = (s->batch + PART_IMAGES - 1) / PART_IMAGES;

	for (size_t i = 0; i < s->model.n_layers; i++)
		if (s->model.layer[i].kind == LAYER_BATCHNORM ||
			s->model.layer[i].kind == LAYER_DROPOUT)
			return 1;
	return max < MAX_PARTS ? max : MAX_PARTS;
}

static void part_gradient(void *context, size_t i)
{
	struct parts *p = context;
	struct subject part = *p->s;
	const size_t begin = part_begin(p, i);

	part.backend = NULL;
	part.index += begin;
	part.batch = part_begin(p, i + 1) - begin;
	part.grad = p->grad[i] = mem_must(part.model.n_params, sizeof(float), "test");
	subject_open(&part, "cpu-ref", 1);
	subject_step(&part);
	p->loss[i] = part.loss;
	backend_free(&part.backend);
}

float *gpu_reference(const struct subject *s, double *loss)
{
	struct parts p = {.s = s, .n = count_parts(s)};
	float *right = mem_must(s->model.n_params, sizeof(float), "test");

	parallel(p.n, part_gradient, &p);
	for (size_t k = 0; k < s->model.n_params; k++) {
		double sum = 0;

		for (size_t i = 0; i < p.n; i++)
			sum += part_weight(&p, i) * (double)p.grad[i][k];
		right[k] = (float)sum;
	}
	*loss = 0;
	for (size_t i = 0; i < p.n; i++) {
		*loss += part_weight(&p, i) * p.loss[i];
		free(p.grad[i]);
	}
	return right;
}

void gpu_repeat(struct subject *s)
{
	float *first = s->grad;
	double loss = s->loss;

	s->grad = mem_must(s->model.n_params, sizeof(float), "test");
	subject_step(s);
	if (memcmp(first, s->grad, s->model.n_params * sizeof(float)) != 0 || loss != s->loss)
		fail_msg("%s, %zu images: two equal steps differ by %g", s->model.text, s->batch,
			gradient_distance(s->grad, first, s->model.n_params));
	free(first);
}

double gpu_worst_tensor(const struct subject *s, const float *right)
{
	double worst = 0;

	for (size_t t = 0; t < s->model.n_tensors; t++) {
		const struct tensor *tensor = &s->model.tensor[t];
		double d = gradient_distance(
			s->grad + tensor->offset, right + tensor->offset, tensor->count);

		/* if d is NaN, the comparison is false, and `worst` becomes NaN */
		worst = d <= worst ? worst : d;
	}
	return worst;
}
