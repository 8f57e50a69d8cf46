/*
 * Proves invariant 3 of server/core/ledger.c and invariant 2 of server/core/store.c: a rejected
 * push uses up its seq and changes no other byte. (test_core_leases.c tests the rejection of
 * batches.)
 * Covers attacks A12 and A13 of docs/faults.md.
 */
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"
#include <math.h>

/* Check that all sections of the snapshots that a push can change, except the ledger, are equal. */
static void assert_same_but_ledger(const struct core_snapshot *x, const struct core_snapshot *y)
{
	for (int i = SNAPSHOT_LEASES; i < SNAPSHOT_SESSIONS; i++) {
		assert_int_equal(x->size[i], y->size[i]);
		assert_memory_equal(x->data[i], y->data[i], x->size[i]);
	}
}

/* Send `m` as the next push. The core must reject the push for the reason `why`. The push must use
 * up its seq, and must change no byte of the weights, the optimizer's state and the leases. */
static void rejected_cleanly(struct core_fixture *f, struct msg *m, enum reject why)
{
	struct core_snapshot before = fixture_save(f), after;
	uint64_t last = fixture_worker(f, 1).last_seq, images = fixture_worker(f, 1).images;
	uint64_t n = core_stats(f->core)->rejected[why], late = core_stats(f->core)->superseded;
	uint64_t version = core_stats(f->core)->version;

	m->push.seq = last + 1;
	fixture_rejected(f, 9, m, why);
	after = fixture_save(f);
	assert_same_but_ledger(&before, &after);
	assert_int_equal(fixture_worker(f, 1).last_seq, last + 1);
	assert_int_equal(fixture_worker(f, 1).images, images);
	/* REJECT_WORK: the push is superseded but correct, so the server counts it separately */
	uint64_t superseded = why == REJECT_WORK;
	assert_int_equal(core_stats(f->core)->rejected[why], n + !superseded);
	assert_int_equal(core_stats(f->core)->superseded, late + superseded);
	assert_int_equal(core_stats(f->core)->version, version);
	fixture_drop(&before);
	fixture_drop(&after);
	if (f->saving)
		fixture_durable(f);
}

TEST(wild_values_at_random_places_are_rejected)
{
	const float wild[] = {NAN, -NAN, INFINITY, -INFINITY, 1e16f, -1e16f};
	const uint64_t seed = 5;
	struct core_config cfg = fixture_config();
	struct rng r = rng_seed(seed, RNG_SIM, 0);
	static float g[1000];
	struct core_fixture f;
	struct stamp s;

	print_message("seed %llu\n", (unsigned long long)seed);
	cfg.n_params = 1000;
	cfg.optim.kind = OPTIM_ADAGRAD;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	for (size_t i = 0; i < 1000; i++)
		g[i] = 1;
	for (int i = 0; i < 90; i++) {
		/* this push is finite, because 20 more non-finite pushes than finite ones would end
		 * the run */
		struct msg good = fixture_push(s, fixture_worker(&f, 1).last_seq + 1);

		good.push.base_version = f.core->store.version;
		fixture_applied(&f, 9, &good);
		size_t at = rng_below(&r, 1000), cut = rng_below(&r, 998) + 1;
		struct msg m = fixture_push(s, 0);

		g[at] = wild[rng_below(&r, 6)];
		fixture_slice(&m, 0, cut, g);
		fixture_slice(&m, cut, 1000 - cut, g + cut);
		rejected_cleanly(&f, &m, REJECT_NONFINITE);
		g[at] = 1;
	}
	fixture_close(&f);
}

TEST(a_loss_that_is_not_finite_is_rejected)
{
	const float bad[] = {NAN, INFINITY, -INFINITY};
	struct core_fixture f;
	struct msg m;

	fixture_open(&f, fixture_config());
	m = fixture_push_ones(fixture_join(&f, 9, ""), 0);
	for (size_t i = 0; i < 3; i++) {
		m.push.loss = bad[i];
		rejected_cleanly(&f, &m, REJECT_NONFINITE);
	}
	fixture_close(&f);
}

TEST(slices_past_the_model_are_rejected)
{
	const struct {
		uint64_t offset, count;
	} bad[] = {{0, 9}, {1, 8}, {8, 1}, {7, 2}, {UINT64_MAX, 1}, {UINT64_MAX - 7, 8},
		{1, UINT64_MAX}, {UINT64_MAX, UINT64_MAX}};
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, fixture_config());
	s = fixture_join(&f, 9, "");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct msg m = fixture_push(s, 0);

		/* the valid slice of a rejected push must not be applied */
		fixture_slice(&m, 0, 1, fixture_ones);
		fixture_slice(&m, bad[i].offset, bad[i].count, fixture_ones);
		rejected_cleanly(&f, &m, REJECT_SHAPE);
	}
	fixture_close(&f);
}

TEST(a_norm_over_the_limit_is_rejected_whatever_the_slices)
{
	struct core_config cfg = fixture_config();
	const float g[FIXTURE_PARAMS] = {3, 0, 0, 0, 0, 0, 0, 4};
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	cfg.limits.reject_norm = 4.999;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	m = fixture_push(s, 0);
	fixture_slice(&m, 0, 4, g);
	fixture_slice(&m, 4, 4, g + 4);
	rejected_cleanly(&f, &m, REJECT_NORM);
	fixture_close(&f);
	cfg.limits.reject_norm = 5; /* a norm equal to the limit is allowed */
	fixture_open(&f, cfg);
	m.push.stamp = fixture_join(&f, 9, "");
	m.push.seq = 1;
	fixture_applied(&f, 9, &m);
	fixture_close(&f);
}

TEST(work_is_rejected_without_a_data_set)
{
	struct core_fixture f;
	struct msg m;

	fixture_open(&f, fixture_config());
	m = fixture_push_ones(fixture_join(&f, 9, ""), 0);
	m.push.work.count = 1;
	rejected_cleanly(&f, &m, REJECT_SHAPE);
	fixture_close(&f);
}

TEST(stale_pushes_and_counted_work_are_rejected)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	cfg.optim.kind = OPTIM_ADAGRAD;
	cfg.limits.max_staleness = 1;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	for (uint32_t i = 0; i < 2; i++) {
		m = fixture_push_ones(s, i + 1);
		m.push.base_version = i;
		fixture_work(&m, 0, i, 1);
		fixture_applied(&f, 9, &m);
	}
	fixture_work(&m, 0, 1, 1);
	rejected_cleanly(&f, &m, REJECT_WORK);
	fixture_work(&m, 0, 1, 2);
	rejected_cleanly(&f, &m, REJECT_WORK);
	fixture_work(&m, 1, 2, 1);
	rejected_cleanly(&f, &m, REJECT_SHAPE);
	fixture_work(&m, 0, 2, 1);
	m.push.base_version = 0;
	rejected_cleanly(&f, &m, REJECT_STALE);
	m.push.base_version = 1;
	m.push.seq = 7;
	fixture_applied(&f, 9, &m);
	fixture_close(&f);
}
