/*
 * gpu.h - what the proofs of the CUDA device share: which device that is, its precisions and how
 * close each has to come to cpu-ref, which computes in double.
 *
 * CNN_TEST_DEVICE names another device instead of "cuda", to try the proofs themselves: "cpu" has
 * fp32 alone. Without the device every test is skipped; with KX_REQUIRE_GPU=1 it fails.
 */
#ifndef TESTS_GPU_GPU_H
#define TESTS_GPU_GPU_H
#include "tests/unit/contract.h"

/*
 * The bounds on a whole gradient, |g - right| / |right|, are the project's. `rounding` is that of
 * one value: where a net has ReLUs or winners that hang on so little, `jump` of gradients.h says
 * how far the truth itself moves.
 */
static const struct precision {
	const char *name;
	enum kx_precision value;
	double bound, rounding;
} precisions[] = {
	{"fp32", KX_FP32, 1e-5, 0x1p-22},
	{"tf32", KX_TF32, 3e-3, 0x1p-11},
	{"bf16", KX_BF16, 2e-2, 0x1p-8},
};

static inline const char *gpu_device(void)
{
	const char *name = getenv("CNN_TEST_DEVICE");
	return name ? name : "cuda";
}

static inline size_t n_precisions(void)
{
	int is_gpu = strncmp(gpu_device(), "cuda", 4) == 0;
	return is_gpu ? sizeof(precisions) / sizeof(precisions[0]) : 1;
}

/* A fresh backend on the device for batches of up to max_batch images. */
static inline int gpu_try(
	struct subject *s, const struct precision *p, size_t max_batch, struct err *e)
{
	struct backend_options o = {.device = gpu_device(),
		.threads = 2,
		.precision = (int)p->value,
		.max_batch = max_batch};
	backend_free(&s->backend);
	int rc = backend_new(&s->backend, &s->model, &o, e);
	return rc ? rc : backend_use(s->backend, &s->images, e);
}

static inline void gpu_open(struct subject *s, const struct precision *p)
{
	struct err e = {0};
	if (gpu_try(s, p, s->batch, &e))
		fail_msg("%s on %s in %s: %s", s->model.text, gpu_device(), p->name, e.text);
}

/* First call of every test: skips it, or fails it, where there is no such device. */
static inline void gpu_begin(void)
{
	static const struct odd_model tiny = {{1, 1, 1}, "fc:2"};
	struct subject s;
	struct err e = {0};
	subject_random(&s, &tiny, 1);
	int rc = gpu_try(&s, &precisions[0], 1, &e);
	subject_release(&s);
	if (rc && getenv("KX_REQUIRE_GPU"))
		fail_msg("KX_REQUIRE_GPU is set, but: %s", e.text);
	if (rc)
		skip();
}

/* The gradient of cpu-ref, which the caller frees; its loss in *loss. */
static inline float *truth(struct subject *s, double *loss)
{
	subject_open(s, "cpu-ref", 1);
	subject_step(s);
	float *right = s->grad;
	*loss = s->loss;
	s->grad = mem_must(s->model.n_params, sizeof(float), "test");
	return right;
}

/* The step again must give the same bytes, whatever the first one left behind. */
static inline void gpu_repeat(struct subject *s)
{
	float *first = s->grad;
	double loss = s->loss;
	s->grad = mem_must(s->model.n_params, sizeof(float), "test");
	subject_step(s);
	if (memcmp(first, s->grad, s->model.n_params * sizeof(float)) || loss != s->loss)
		fail_msg("%s, %zu images: two equal steps differ by %g", s->model.text, s->batch,
			distance(s->grad, first, s->model.n_params));
	free(first);
}

/* Largest relative error of a single tensor: a small one that is all wrong must not hide. */
static inline double worst_tensor(const struct subject *s, const float *right)
{
	double worst = 0;
	for (size_t t = 0; t < s->model.n_tensors; t++) {
		const struct tensor *tensor = &s->model.tensor[t];
		double d =
			distance(s->grad + tensor->offset, right + tensor->offset, tensor->count);
		worst = d <= worst ? worst : d; /* also when d is no number */
	}
	return worst;
}

#endif
