/*
 * test_real_batches.c - compares the CUDA device in each precision with cpu-ref, which computes in
 * double precision: whole networks on batches of real images.
 *
 * The bounds apply to the distance |g - right| / |right| of the whole gradient g from the exact
 * gradient `right`. A single tensor may have a larger distance, because one flipped argmax changes
 * the whole gradient little, but a bias much. The distance of a tensor must stay below WRONG: a
 * wrong tensor has a distance of about 1. The program prints each distance, because the documents
 * quote them.
 *
 * In fp32 a rounding error may flip an argmax or a ReLU, and then the gradient is far from the
 * exact gradient at these weights. In this case the gradient must be within the same bound of the
 * exact gradient at other weights, which differ from these weights only by a rounding error
 * (gradient_backward_error). In fp32, at most half of the batches may need this second comparison.
 */
#include "tests/support/gpu_fixture.h"
#include "tests/support/real_images.h"
#include "tests/support/test.h"

#define WRONG 0.5
#define STRIDED                                                                                    \
	"conv:12:5:stride=2:pad=auto relu conv:20:3:pad=1 relu pool:4:pad=auto fc:50 relu fc:10"
#define DROPOUT "conv:16:5 relu pool:2 dropout:0.25 fc:64 relu dropout:0.5 fc:10"

/* Prove that the gradient in s->grad is close to the exact gradient at weights that differ by a
 * rounding error. At the weights themselves, its distance `d` from the exact gradient is too
 * large. */
static void prove_tie(const struct subject *s, const struct precision *p, double d)
{
	double there = 0;
	double moved = gradient_backward_error(s, s->grad, p->rounding, p->bound, &there);

	if (moved == 0)
		fail_msg("%s, %zu images in %s: gradient off by %g, and by %g where the weights "
			 "are up to %g away",
			s->model.text, s->batch, p->name, d, there, p->rounding);
	print_message("# a tie: %.2e where the weights have moved by %.0e\n", there, moved);
}

/* Returns 1 if the device's gradient is close to the exact gradient `right`, and 0 if a flipped
 * argmax or ReLU explains the distance; otherwise the test fails. Only fp32 may return 0, because
 * the bounds of the low precisions already allow for flips. */
static int close_enough(
	struct subject *s, const struct precision *p, const float *right, double right_loss)
{
	gpu_open(s, p);
	subject_step(s);
	gpu_repeat(s);
	double d = gradient_distance(s->grad, right, s->model.n_params),
	       worst = gpu_worst_tensor(s, right);
	print_message("# %s, %zu images, %s: %.2e, worst tensor %.2e, loss %+.1e\n", s->model.text,
		s->batch, p->name, d, worst, s->loss - right_loss);
	if (!(fabs(s->loss - right_loss) <= p->bound))
		fail_msg("loss %.9g instead of %.9g", s->loss, right_loss);
	if (!(worst <= WRONG))
		fail_msg("a tensor is off by %g", worst);
	if (d <= p->loose)
		return 1;
	if (p != gpu_precisions)
		fail_msg("%s, %zu images in %s: gradient off by %g", s->model.text, s->batch,
			p->name, d);
	prove_tie(s, p, d);
	return 0;
}

static void real_batches_agree_with_ref(const char *text, size_t n)
{
	size_t close = 0;

	gpu_begin();
	for (size_t batch = 0; batch < 2; batch++) {
		struct subject s;
		double loss;

		subject_real(&s, text, batch * n, n);
		float *right = gpu_reference(&s, &loss);
		for (size_t p = 0; p < gpu_n_precisions(); p++)
			close += (size_t)close_enough(&s, &gpu_precisions[p], right, loss);
		free(right);
		subject_release(&s);
	}
	assert_in_range(close, 2 * gpu_n_precisions() - 1, 2 * gpu_n_precisions());
}

TEST(seed_32_agrees_with_cpu_ref)
{
	real_batches_agree_with_ref("seed:32", 100);
}

TEST(seed_32_in_a_large_batch_agrees_with_cpu_ref)
{
	real_batches_agree_with_ref("seed:32", 1000);
}

TEST(seed_256_agrees_with_cpu_ref)
{
	real_batches_agree_with_ref("seed:256", 100);
}

TEST(seed_256_in_a_large_batch_agrees_with_cpu_ref)
{
	real_batches_agree_with_ref("seed:256", 1000);
}

TEST(lenet5_agrees_with_cpu_ref)
{
	real_batches_agree_with_ref("lenet5", 37);
}

TEST(cnn99_agrees_with_cpu_ref)
{
	real_batches_agree_with_ref("cnn99", 100);
}

TEST(a_strided_padded_net_agrees_with_cpu_ref)
{
	real_batches_agree_with_ref(STRIDED, 101);
}

TEST(a_dropout_net_agrees_with_cpu_ref)
{
	real_batches_agree_with_ref(DROPOUT, 61);
}

TEST_GROUP(real_load, real_release)
