/* test_trainer_modes.c - compares the pushes of a worker in the modes with exact grants, and in
 * easgd, with those of a serial reference. A fake server receives the pushes. */
#include "tests/support/trainer_fixture.h"
#include "tests/support/test.h"

/* ---- exact grants ---------------------------------------------------------------------------- */

static void reference_exact(const struct msg_grant *grant, int pulls)
{
	double sum[TRAINER_PARAMS] = {0};
	struct fake_push of = {.images = 0};
	float w[TRAINER_PARAMS], g[TRAINER_PARAMS];

	trainer_ref.pulls += pulls;
	reference_weights(w);
	for (uint32_t i = 0; i < grant->work.count; i++) {
		uint32_t before = of.images;

		reference_gradient(
			w, (struct work){grant->work.epoch, grant->work.first + i, 1}, g, &of);
		for (int j = 0; j < TRAINER_PARAMS; j++)
			sum[j] += (double)(of.images - before) * (double)g[j];
	}
	for (int j = 0; j < TRAINER_PARAMS; j++)
		g[j] = (float)(sum[j] / of.images);
	reference_push(&of, g, (uint64_t)trainer_ref.n);
}

static struct msg_grant exact_grant(uint32_t first, uint32_t count, uint64_t version)
{
	return (struct msg_grant){
		.kind = GRANT_TRAIN, .work = {0, first, count}, .exact = 1, .version = version};
}

TEST_IN(an_exact_lease_is_one_mean_over_its_images, trainer_set_up, trainer_tear_down)
{
	const struct msg_grant grants[] = {
		exact_grant(4, 3, 0), exact_grant(0, 1, 1), exact_grant(1, 3, 2)};

	trainer_server_how.mode = MODE_SANDBLASTER;
	trainer_server_how.n_push = 2; /* must have no effect in mode sandblaster */
	trainer_server_how.prefetch = 1;
	trainer_train(grants, 3);
	for (int i = 0; i < 3; i++)
		reference_exact(&grants[i], 1);
	trainer_expect_reference();
	assert_int_equal(fake_read_seen(&trainer_server).made[0].images, 13);
}

TEST_IN(a_lease_of_a_finished_step_is_left_and_weights_in_hand_are_used, trainer_set_up,
	trainer_tear_down)
{
	const struct msg_grant grants[] = {{.kind = GRANT_TRAIN, .work = {0, 0, 2}},
		exact_grant(2, 2, 0), exact_grant(2, 2, 2)};

	trainer_train(grants, 3);
	reference_downpour(&grants[0].work);
	trainer_ref.pulls++; /* the worker pulls version 2, which is too new for the second lease */
	reference_exact(&grants[2], 0);
	trainer_expect_reference();
	assert_int_equal(fake_read_seen(&trainer_server).leases, 4);
}

static int two_leases(const struct fake *f)
{
	return f->seen.leases >= 2;
}

static void *restart_at_the_second_lease(void *arg)
{
	(void)arg;
	fake_wait(&trainer_server, two_leases, "a second lease");
	fake_set(&trainer_server, &trainer_server.how.mute_leases, 0);
	fake_hang_up(&trainer_server, 1);
	return NULL;
}

/* The worker has the weights of version 0 of the previous term. A grant for version 0 of the new
 * term needs other weights, so the worker must pull again. */
TEST_IN(weights_of_before_a_restart_are_not_exact_after_it, trainer_set_up, trainer_tear_down)
{
	const struct msg_grant grants[] = {exact_grant(0, 2, 99), exact_grant(0, 2, 0)};
	pthread_t thread;
	struct fake_seen seen;

	trainer_server_how.mode = MODE_SYNC;
	trainer_server_how.mute_leases_after = 1;
	assert_int_equal(pthread_create(&thread, NULL, restart_at_the_second_lease, NULL), 0);
	trainer_train(grants, 2);
	pthread_join(thread, NULL);
	seen = fake_read_seen(&trainer_server);
	assert_int_equal(seen.pulls, 2);
	assert_int_equal(seen.last_seq, 1);
	assert_int_equal(seen.made[0].base_term, 2);
	assert_int_equal(seen.made[0].base_version, 0);
}

/* ---- easgd ----------------------------------------------------------------------------------- */

/* The weights and the velocity of the reference worker. */
static float x[TRAINER_PARAMS], v[TRAINER_PARAMS];

/* Compute one lease of EASGD (Zhang 2015, algorithm 2): v = m v - rate g(x + m v), x += v. After
 * this the weights of worker and centre each move by a fraction of their distance. The fraction is
 * the member `elastic` of PARAMS. */
static void reference_easgd(const struct work *lease)
{
	float rate = (float)trainer_server_how.local_rate, m = (float)trainer_server_how.momentum,
	      g[TRAINER_PARAMS], centre[TRAINER_PARAMS];
	struct fake_push of = {.images = 0};

	for (uint32_t i = 0; i < lease->count; i++) {
		for (int j = 0; j < TRAINER_PARAMS; j++)
			x[j] += m * v[j];
		reference_gradient(x, (struct work){lease->epoch, lease->first + i, 1}, g, &of);
		for (int j = 0; j < TRAINER_PARAMS; j++) {
			x[j] -= rate * g[j];
			v[j] = m * v[j] - rate * g[j];
		}
		if (of.work.count < trainer_server_how.n_push && i + 1 < lease->count)
			continue;
		reference_weights(centre);
		float part = (float)(trainer_server_how.elastic / (1 + ++trainer_ref.pulls % 3));
		for (int j = 0; j < TRAINER_PARAMS; j++) {
			float e = part * (x[j] - centre[j]);

			g[j] = -e;
			x[j] -= e;
		}
		reference_push(&of, g, (uint64_t)trainer_ref.n);
	}
}

TEST(easgd_ties_its_own_weights_to_the_centre)
{
	for (uint32_t i = 0; i < 4; i++) {
		trainer_start();
		trainer_server_how.mode = MODE_EASGD;
		trainer_server_how.n_push = 2;
		trainer_server_how.local_rate = 0.5;
		trainer_server_how.elastic = 0.6;
		trainer_server_how.momentum = i & 2 ? 0.7 : 0;
		trainer_server_how.prefetch = i & 1;
		trainer_train(trainer_two_grants, 2);
		reference_weights(x);
		memset(v, 0, sizeof(v));
		trainer_ref.pulls++;
		reference_easgd(&trainer_two_grants[0].work);
		reference_easgd(&trainer_two_grants[1].work);
		trainer_expect_reference();
		/* 4 pushes: those of the first lease have 2 batches and 1 batch, those of the
		 * second 2 and 2 */
		assert_int_equal(trainer_ref.n, 4);
		fake_stop(&trainer_server);
	}
}

TEST_GROUP(trainer_set_up_all, trainer_tear_down_all)
