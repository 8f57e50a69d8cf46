/*
 * test_ladder.c - compares every rung of the ladder that needs a GPU with cpu-ref. The sizes are 1,
 * primes, and sizes near those of a rung's waves, blocks and chunks. Without a GPU every test is
 * skipped, or fails if KX_REQUIRE_GPU=1.
 */
#include "tests/support/rung_fixture.h"
#include "tests/support/test.h"

static void require_gpu(void)
{
	const char *why = "";

	if (ladder_has_gpu(&why))
		return;
	if (getenv("KX_REQUIRE_GPU"))
		fail_msg("KX_REQUIRE_GPU is set, but: %s", why);
	skip();
}

static void for_each_gpu_rung(void (*check)(const struct rung *r))
{
	size_t tried = 0;

	require_gpu();
	for (size_t i = 0; i < ladder_n_rungs; i++)
		if (ladder_rungs[i]->needs_gpu) {
			check(ladder_rungs[i]);
			tried++;
		}
	assert_true(tried > 0);
}

static void agrees(const struct rung *r)
{
	static const size_t filters[] = {1, 2, 7, 33, 64, 40},
			    batches[] = {1, 131, 37, 17, 133, 300};

	for (size_t i = 0; i < sizeof(filters) / sizeof(filters[0]); i++) {
		struct rung_fixture l;

		if (!ladder_runs(r, batches[i]))
			continue;
		rung_open(&l, r, filters[i], batches[i]);
		rung_agrees(&l, batches[i]);
		rung_close(&l);
	}
}

TEST(rungs_agree_with_cpu_ref)
{
	for_each_gpu_rung(agrees);
}

static void takes_the_first(const struct rung *r)
{
	struct rung_fixture l;

	rung_open(&l, r, 3, ladder_bounds(r)->min_batch - 1 + 19);
	rung_level(&l);
	rung_agrees(&l, ladder_bounds(r)->min_batch - 1 + 19);
	rung_close(&l);
}

TEST(of_equal_values_the_first_wins_on_the_gpu)
{
	for_each_gpu_rung(takes_the_first);
}

/* Alternate between complete and short batches in one state of the rung, to find values that a
 * longer batch has left in memory. */
static void changes_its_batch(const struct rung *r)
{
	static const size_t batches[] = {41, 1, 40, 5, 41};
	struct rung_fixture l;

	rung_open(&l, r, 5, ladder_bounds(r)->min_batch - 1 + 41);
	for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++)
		rung_agrees(&l, ladder_bounds(r)->min_batch - 1 + batches[i]);
	rung_close(&l);
}

TEST(a_batch_size_may_change_from_step_to_step)
{
	for_each_gpu_rung(changes_its_batch);
}

static void repeats(const struct rung *r)
{
	const size_t max = ladder_bounds(r)->max_batch, batch = max < 150 ? max : 150;
	struct rung_fixture l;

	rung_open(&l, r, 33, batch);
	size_t bytes = l.subject.model.n_params * sizeof(float);
	float *first = ladder_floats(l.subject.model.n_params);
	rung_step(&l, batch);
	memcpy(first, l.grad, bytes);
	double loss = l.loss;
	rung_step(&l, batch);
	if (memcmp(first, l.grad, bytes) != 0 || loss != l.loss)
		fail_msg("%s: two equal steps differ by %g", r->name,
			gradient_distance(l.grad, first, l.subject.model.n_params));
	free(first);
	rung_close(&l);
}

TEST(equal_steps_give_equal_bytes)
{
	for_each_gpu_rung(repeats);
}

/* Prove that training inside the rung gives the same weights as single steps. */
static void trains(const struct rung *r)
{
	struct rung_fixture l;
	struct err e = {0};
	const size_t batch = ladder_bounds(r)->min_batch - 1 + 10, steps = 3;

	if (!r->train)
		return;
	rung_open(&l, r, 7, batch * steps);
	size_t n_params = l.subject.model.n_params;
	float *trained = ladder_floats(n_params);
	memcpy(trained, l.params, n_params * sizeof(float));
	if (r->train(l.self, trained, l.subject.index, batch, steps, 0.05f, &e))
		fail_msg("%s: %s", r->name, e.text);
	for (size_t s = 0; s < steps; s++) {
		struct ladder_batch b = {l.params, l.subject.index + s * batch, batch};

		assert_int_equal(r->step(l.self, &b, l.grad, &l.loss, NULL, &e), PS_OK);
		for (size_t i = 0; i < n_params; i++)
			l.params[i] -= 0.05f * l.grad[i];
	}
	assert_true(
		gradient_distance(trained, l.params, n_params) <= ladder_bounds(r)->tolerance / 10);
	assert_true(gradient_distance(trained, l.subject.params, n_params) > 1e-4);
	free(trained);
	rung_close(&l);
}

TEST(training_on_the_device_is_step_after_step)
{
	for_each_gpu_rung(trains);
}
