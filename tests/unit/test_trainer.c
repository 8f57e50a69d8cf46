/* test_trainer.c - compares the pushes of a worker in downpour with those of a serial reference,
 * which is written from proto/WIRE.md, "Modes". A fake server receives the pushes. Proves the
 * invariants of worker/steps.h. */
#include "tests/support/trainer_fixture.h"
#include "tests/support/test.h"

/* ---- downpour -------------------------------------------------------------------------------- */

static void downpour(uint32_t n_push, uint32_t n_fetch, uint32_t bits)
{
	trainer_start();
	trainer_server_how.n_push = n_push;
	trainer_server_how.n_fetch = n_fetch;
	trainer_server_how.push_sum = bits & 1;
	trainer_server_how.prefetch = bits >> 1 & 1;
	trainer_server_how.local_rate = bits & 4 ? 0.25 : 0;
	trainer_train(trainer_two_grants, 2);
	reference_downpour(&trainer_two_grants[0].work);
	reference_downpour(&trainer_two_grants[1].work);
	trainer_expect_reference();
	fake_stop(&trainer_server);
}

TEST_IN(one_batch_is_one_push_at_fresh_weights, trainer_set_up, trainer_tear_down)
{
	struct fake_seen seen;

	trainer_train(trainer_two_grants, 2);
	reference_downpour(&trainer_two_grants[0].work);
	reference_downpour(&trainer_two_grants[1].work);
	trainer_expect_reference();
	seen = fake_read_seen(&trainer_server);
	for (int i = 0; i < BATCHES; i++) {
		assert_int_equal(seen.made[i].work.count, 1);
		assert_int_equal(seen.made[i].base_version, i);
		assert_int_equal(seen.made[i].pulls, i + 1);
		assert_int_equal(seen.made[i].requested, i != 2 && i != BATCHES - 1);
	}
}

TEST(every_rhythm_of_pushes_and_pulls_is_the_references)
{
	static const uint32_t rhythm[][2] = {
		{1, 1}, {2, 1}, {1, 2}, {3, 2}, {2, 3}, {2, 2}, {3, 3}, {10, 10}};

	for (size_t i = 0; i < sizeof(rhythm) / sizeof(*rhythm); i++)
		for (uint32_t bits = 0; bits < 8; bits++)
			downpour(rhythm[i][0], rhythm[i][1], bits);
}

/* A worker with a GPU lets the gradients of single batches overlap, too. Its pushes must be those
 * of the reference. */
TEST(gradients_of_single_batches_overlap)
{
	static const struct msg_grant all = {.kind = GRANT_TRAIN, .work = {0, 0, 12}};

	trainer_use_images(MAX_IMAGES);
	trainer_start();
	trainer_overlaps = 1;
	trainer_server_how.prefetch = 1;
	trainer_train(&all, 1);
	reference_downpour(&all.work);
	trainer_expect_reference();
	assert_int_equal(trainer_ref.push[5].base_version, 2);
	fake_stop(&trainer_server);
	trainer_overlaps = 0;
	trainer_use_images(IMAGES);
	for (uint32_t n = 1; n <= 4; n++) { /* the first lease is shorter than the pipeline */
		const struct msg_grant grants[2] = {{.kind = GRANT_TRAIN, .work = {0, 0, n}},
			{.kind = GRANT_TRAIN, .work = {0, n, BATCHES - n}}};

		trainer_start();
		trainer_overlaps = 1;
		trainer_server_how.prefetch = 1;
		trainer_train(grants, 2);
		reference_downpour(&grants[0].work);
		reference_downpour(&grants[1].work);
		trainer_expect_reference();
		fake_stop(&trainer_server);
		trainer_overlaps = 0;
	}
}

/* The epoch of this test has enough batches for the steps in flight to reach their limit. */
TEST(many_rounds_overlap)
{
	static const struct msg_grant all = {.kind = GRANT_TRAIN, .work = {0, 0, 12}};

	trainer_use_images(MAX_IMAGES);
	for (uint32_t prefetch = 0; prefetch < 2; prefetch++) {
		trainer_start();
		trainer_server_how.n_push = trainer_server_how.n_fetch = 2;
		trainer_server_how.prefetch = prefetch;
		trainer_server_how.local_rate = 0.25;
		trainer_train(&all, 1);
		reference_downpour(&all.work);
		trainer_expect_reference();
		assert_int_equal(trainer_ref.push[5].base_version, prefetch ? 2 : 5);
		fake_stop(&trainer_server);
	}
	trainer_use_images(IMAGES);
}

/* Each batch must have its own dropout mask, even if the device computes local steps. */
TEST(every_batch_has_a_dropout_mask_of_its_own)
{
	trainer_use_model("dropout:0.5 fc:3");
	for (uint32_t bits = 0; bits < 8; bits++) {
		downpour(1, 1, bits);
		downpour(2, 1, bits);
		downpour(3, 3, bits);
	}
	trainer_use_model("fc:3");
}

/* ---- the end of training -------------------------------------------------------------------- */

static int at_the_fifth_batch(void *arg)
{
	return ++*(int *)arg == 5;
}

TEST_IN(a_stopped_worker_pushes_what_it_has_computed, trainer_set_up, trainer_tear_down)
{
	int requests = 0;

	memcpy(trainer_server_how.grants, trainer_two_grants, sizeof(trainer_two_grants));
	trainer_server_how.n_grants = 2;
	trainer_server_how.n_push = 2;
	assert_int_equal(trainer_run_worker(at_the_fifth_batch, &requests), PS_ESHUTDOWN);
	assert_int_equal(requests, 5);
	/* the pushes have 2, 1 and 1 batches; without the stop, the last one would have 2
	 * batches */
	assert_int_equal(fake_read_seen(&trainer_server).last_seq, 3);
	assert_int_equal(fake_read_seen(&trainer_server).made[2].work.count, 1);
}

static int at_the_eighth_request(void *arg)
{
	return ++*(int *)arg == 8;
}

TEST_IN(a_stopped_worker_pushes_overlapped_gradients, trainer_set_up, trainer_tear_down)
{
	int requests = 0;

	memcpy(trainer_server_how.grants, trainer_two_grants, sizeof(trainer_two_grants));
	trainer_server_how.n_grants = 2;
	trainer_server_how.prefetch = 1;
	trainer_overlaps = 1;
	assert_int_equal(trainer_run_worker(at_the_eighth_request, &requests), PS_ESHUTDOWN);
	trainer_overlaps = 0;
	/* the trainer calls the callback once before each lease and once before each batch, so the
	 * worker computes batches 0 to 4 */
	assert_int_equal(fake_read_seen(&trainer_server).last_seq, 5);
}

TEST_IN(a_lease_of_no_such_batch_is_refused, trainer_set_up, trainer_tear_down)
{
	static const struct msg_grant grant = {.kind = GRANT_TRAIN, .work = {0, BATCHES, 1}};

	trainer_server_how.grants[0] = grant;
	trainer_server_how.n_grants = 1;
	assert_int_equal(trainer_run_worker(NULL, NULL), PS_EPROTO);
	assert_int_equal(fake_read_seen(&trainer_server).pushes, 0);
}

TEST_GROUP(trainer_set_up_all, trainer_tear_down_all)
