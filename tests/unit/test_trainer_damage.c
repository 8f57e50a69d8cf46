/*
 * test_trainer_damage.c - tests a worker whose device reads damaged weights while gradients
 * overlap. The Makefile links this test with backend_hashes, backend_start_hash and
 * cnnps_pull_unchecked of its own, so that cpu-ref seems to be a device that checks the weights.
 */
#include "tests/support/trainer_fixture.h"
#include "worker/client/device.h"
#include "tests/support/test.h"

#define RIGHT 7 /* the checksum that the test gives to all undamaged weights */

static struct {
	int reads;   /* the number of times that the device has checked weights */
	int damaged; /* the number, from 1, of the check that finds damage */
} hashing;

int __wrap_backend_hashes(const struct backend *b);
int __wrap_backend_hashes(const struct backend *b)
{
	(void)b;
	return 1;
}

int __wrap_backend_start_hash(struct backend *b, uint64_t *xxh3);
int __wrap_backend_start_hash(struct backend *b, uint64_t *xxh3)
{
	(void)b;
	*xxh3 = ++hashing.reads == hashing.damaged ? RIGHT + 1 : RIGHT;
	return PS_OK;
}

int __wrap_cnnps_pull_unchecked(struct cnnps *c, struct cnnps_pull *pull, uint64_t *xxh3);
int __wrap_cnnps_pull_unchecked(struct cnnps *c, struct cnnps_pull *pull, uint64_t *xxh3)
{
	*xxh3 = RIGHT;
	return cnnps_pull(c, pull);
}

static int train_with_damage(int damaged, int (*stop)(void *), void *arg)
{
	static const struct msg_grant all = {.kind = GRANT_TRAIN, .work = {0, 0, BATCHES}};

	hashing.reads = 0;
	hashing.damaged = damaged;
	trainer_overlaps = 1;
	trainer_server_how.prefetch = 1;
	trainer_server_how.grants[0] = all;
	trainer_server_how.n_grants = 1;
	int rc = trainer_run_worker(stop, arg);
	trainer_overlaps = 0;
	return rc;
}

/* Check that the first `n` pushes are those of batches 0 to n - 1, each with the gradient at the
 * weights of the version that the push names. */
static void expect_right_gradients(const struct fake_seen *seen, int n)
{
	assert_int_equal(seen->last_seq, n);
	for (int i = 0; i < n; i++) {
		const struct fake_push *p = &seen->made[i];
		float w[TRAINER_PARAMS], g[TRAINER_PARAMS];
		struct fake_push of = {.images = 0};

		assert_int_equal(p->work.first, i);
		assert_int_equal(p->work.count, 1);
		assert_true(p->base_version <= (uint64_t)i);
		memcpy(w, trainer_server_how.start, sizeof(w));
		for (uint64_t k = 0; k < p->base_version; k++)
			for (int j = 0; j < TRAINER_PARAMS; j++)
				w[j] -= seen->made[k].g[j];
		reference_gradient(w, p->work, g, &of);
		for (int j = 0; j < TRAINER_PARAMS; j++)
			assert_true(fabsf(p->g[j] - g[j]) <= 2e-6f * fmaxf(1, fabsf(g[j])));
		assert_true(fabsf(p->loss - of.loss) <= 2e-6f * fmaxf(1, of.loss));
	}
}

TEST(a_gradient_at_damaged_weights_is_computed_again)
{
	for (int damaged = 0; damaged <= BATCHES; damaged++) {
		trainer_start();
		assert_int_equal(train_with_damage(damaged, NULL, NULL), PS_EDONE);
		struct fake_seen seen = fake_read_seen(&trainer_server);
		expect_right_gradients(&seen, BATCHES);
		assert_int_equal(hashing.reads, BATCHES);
		fake_stop(&trainer_server);
	}
}

static int at_the_chosen_request(void *arg)
{
	return --*(int *)arg <= 0;
}

/* A worker that must stop after it has dropped a gradient pushes the earlier gradients. */
TEST(a_worker_that_stops_at_damaged_weights_pushes_earlier_gradients)
{
	for (int damaged = 1; damaged <= BATCHES; damaged++) {
		/* the trainer calls the callback once at the beginning of the lease, and before
		 * each gradient */
		int requests = 1 + damaged + 1;

		trainer_start();
		assert_int_equal(
			train_with_damage(damaged, at_the_chosen_request, &requests), PS_ESHUTDOWN);
		struct fake_seen seen = fake_read_seen(&trainer_server);
		assert_int_equal(hashing.reads, damaged);
		expect_right_gradients(&seen, damaged - 1);
		fake_stop(&trainer_server);
	}
}

TEST_GROUP(trainer_set_up_all, trainer_tear_down_all)
