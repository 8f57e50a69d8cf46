/* test_ladder.c - the rungs of the ladder (docs/ladder.md) that need no GPU agree with cpu-ref, and
 * ladder_measure refuses a rung that does not agree. This file also tests two structs of
 * kernels/ladder/ladder.h: the result of a measurement (struct ladder_point) and the times of the
 * phases of a step (struct profile). */
#include "tests/support/rung_fixture.h"
#include "tests/support/test.h"

TEST(rungs_without_a_gpu_agree_with_cpu_ref)
{
	static const size_t filters[] = {1, 7, 32}, batches[] = {1, 5, 13};
	size_t tried = 0;

	for (size_t r = 0; r < ladder_n_rungs; r++)
		for (size_t i = 0; i < 3 && !ladder_rungs[r]->needs_gpu; i++, tried++) {
			struct rung_fixture l;

			rung_open(&l, ladder_rungs[r], filters[i], batches[i]);
			rung_agrees(&l, batches[i]);
			rung_agrees(&l, (batches[i] + 1) / 2);
			rung_close(&l);
		}
	assert_true(tried >= 3);
}

TEST(of_equal_values_the_first_wins)
{
	struct rung_fixture l;

	rung_open(&l, ladder_rungs[0], 2, 3);
	rung_level(&l);
	rung_agrees(&l, 3);
	rung_close(&l);
}

/* ---- a rung with a wrong result ------------------------------------------------------------- */

/* A step function that computes the gradient of the sequential rung, but makes one value wrong. */
static int wrong_step(void *self, const struct ladder_batch *b, float *grad, double *loss,
	struct profile *p, struct err *e)
{
	int rc = ladder_rungs[0]->step(self, b, grad, loss, p, e);

	grad[3] += 0.01f;
	return rc;
}

/* A step function that writes the right loss, but no gradient. */
static int lazy_step(void *self, const struct ladder_batch *b, float *grad, double *loss,
	struct profile *p, struct err *e)
{
	float *elsewhere = ladder_floats(2048);
	int rc = ladder_rungs[0]->step(self, b, elsewhere, loss, p, e);

	(void)grad;
	free(elsewhere);
	return rc;
}

/* Returns the status of ladder_measure() for the sequential rung, the model seed:1 and 4 images.
 * If `step` is not NULL, it replaces the step function of the rung. */
static int measured(int (*step)(void *, const struct ladder_batch *, float *, double *,
			    struct profile *, struct err *),
	struct ladder_result *out, struct err *e)
{
	const struct odd_model o = {{1, 28, 28}, "seed:1"};
	struct subject s;
	struct model m;
	struct ladder_point p;
	struct ladder_truth t;
	struct rung rung = *ladder_rungs[0];

	rung.step = step ? step : rung.step;
	subject_random(&s, &o, 20);
	assert_int_equal(ladder_point_init(&p, &m, &s.images, 1, 4, 5, 0.001, e), PS_OK);
	assert_int_equal(ladder_truth_init(&t, &p, e), PS_OK);
	assert_true(m.n_params <= 2048);
	int rc = ladder_measure(out, &rung, &p, &t, e);
	ladder_truth_release(&t);
	ladder_point_release(&p);
	subject_release(&s);
	return rc;
}

TEST(a_wrong_gradient_is_refused)
{
	struct ladder_result result;
	struct err e = {0};

	assert_int_equal(measured(wrong_step, &result, &e), PS_EDEVICE);
	assert_non_null(strstr(e.text, "sequential"));
	assert_int_equal(measured(lazy_step, &result, &e), PS_EDEVICE);
}

TEST(a_right_rung_is_timed_and_profiled)
{
	struct ladder_result result;
	struct err e = {0};

	assert_int_equal(measured(NULL, &result, &e), PS_OK);
	assert_true(result.repetitions >= 1);
	assert_true(result.min_ms > 0 && result.min_ms <= result.median_ms);
	assert_true(result.error <= ladder_exact.tolerance);
	assert_int_equal(result.profile.n, 1);
	assert_int_equal(result.profile.phase[0].kind, PHASE_HOST);
	assert_true(result.profile.phase[0].ms > 0);
}

/* ---- points and profiles --------------------------------------------------------------------- */

TEST(points_that_do_not_exist_are_refused)
{
	const struct odd_model o = {{1, 28, 28}, "seed:1"};
	struct subject s;
	struct model m;
	struct ladder_point p;
	struct err e = {0};

	subject_random(&s, &o, 20);
	assert_int_equal(ladder_point_init(&p, &m, &s.images, 0, 4, 5, 1, &e), PS_EUSAGE);
	assert_int_equal(ladder_point_init(&p, &m, &s.images, 1, 0, 5, 1, &e), PS_EUSAGE);
	assert_int_equal(ladder_point_init(&p, &m, &s.images, 1, 21, 5, 1, &e), PS_EUSAGE);
	assert_int_equal(ladder_point_init(&p, &m, &s.images, 1, 20, 5, 1, &e), PS_OK);
	ladder_point_release(&p);
	subject_release(&s);
}

TEST(a_phase_that_comes_again_adds_its_time)
{
	struct profile p = {0};

	profile_add(&p, "a", PHASE_KERNEL, 1);
	profile_add(&p, "b", PHASE_COPY_IN, 2);
	profile_add(&p, "a", PHASE_KERNEL, 4);
	profile_add(NULL, "a", PHASE_KERNEL, 8);
	assert_int_equal(p.n, 2);
	assert_string_equal(p.phase[0].name, "a");
	assert_true(p.phase[0].ms == 5 && p.phase[1].ms == 2);
	for (int i = 0; i < 2 * MAX_PHASES; i++)
		profile_add(&p, "c", PHASE_HOST, 1);
	assert_int_equal(p.n, 3);
}

TEST(the_table_starts_with_what_any_machine_runs)
{
	assert_true(ladder_n_rungs >= 1);
	assert_false(ladder_rungs[0]->needs_gpu);
	for (size_t i = 0; i < ladder_n_rungs; i++) {
		assert_true(strlen(ladder_rungs[i]->changes) > 0);
		assert_true(strlen(ladder_rungs[i]->predicts) > 0);
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(ladder_rungs[i]->name, ladder_rungs[j]->name);
	}
}
