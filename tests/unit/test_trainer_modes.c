/* test_trainer_modes.c - what a worker pushes in the modes with exact grants and in easgd, against
 * a fake server and a serial reference. */
#include "tests/unit/trainer_lab.h"

/* ---- exact grants ---------------------------------------------------------------------------- */

static void reference_exact(const struct msg_grant *grant, int pulls)
{
	double sum[N] = {0};
	struct fake_push of = {.images = 0};
	float w[N], g[N];

	ref.pulls += pulls;
	server_weights(w);
	for (uint32_t i = 0; i < grant->work.count; i++) {
		uint32_t before = of.images;

		gradient_of(w, (struct work){grant->work.epoch, grant->work.first + i, 1}, g, &of);
		for (int j = 0; j < N; j++)
			sum[j] += (double)(of.images - before) * (double)g[j];
	}
	for (int j = 0; j < N; j++)
		g[j] = (float)(sum[j] / of.images);
	expect_push(&of, g, (uint64_t)ref.n);
}

static struct msg_grant exact(uint32_t first, uint32_t count, uint64_t version)
{
	return (struct msg_grant){
		.kind = GRANT_TRAIN, .work = {0, first, count}, .exact = 1, .version = version};
}

static void an_exact_lease_is_one_mean_over_its_images(void **state)
{
	const struct msg_grant grants[] = {exact(4, 3, 0), exact(0, 1, 1), exact(1, 3, 2)};

	(void)state;
	how.mode = MODE_SANDBLASTER;
	how.n_push = 2; /* of no meaning here */
	how.prefetch = 1;
	train(grants, 3);
	for (int i = 0; i < 3; i++)
		reference_exact(&grants[i], 1);
	pushes_are_the_references();
	assert_int_equal(fake_look(&fake).made[0].images, 13);
}

static void a_lease_of_a_finished_step_is_left_and_weights_in_hand_are_used(void **state)
{
	const struct msg_grant grants[] = {
		{.kind = GRANT_TRAIN, .work = {0, 0, 2}}, exact(2, 2, 0), exact(2, 2, 2)};

	(void)state;
	train(grants, 3);
	reference_downpour(&grants[0].work);
	ref.pulls++; /* sees version 2 and that the second lease is too late */
	reference_exact(&grants[2], 0);
	pushes_are_the_references();
	assert_int_equal(fake_look(&fake).leases, 4);
}

static int two_leases(const struct fake *f)
{
	return f->seen.leases >= 2;
}

static void *restart_at_the_second_lease(void *arg)
{
	(void)arg;
	fake_wait(&fake, two_leases, "a second lease");
	fake_set(&fake, &fake.how.mute_leases, 0);
	fake_hang_up(&fake, 1);
	return NULL;
}

/* Version 0 of another life of the server is not the version 0 in hand. */
static void weights_of_before_a_restart_are_not_exact_after_it(void **state)
{
	const struct msg_grant grants[] = {exact(0, 2, 99), exact(0, 2, 0)};
	pthread_t thread;
	struct fake_seen seen;

	(void)state;
	how.mode = MODE_SYNC;
	how.mute_leases_after = 1;
	assert_int_equal(pthread_create(&thread, NULL, restart_at_the_second_lease, NULL), 0);
	train(grants, 2);
	pthread_join(thread, NULL);
	seen = fake_look(&fake);
	assert_int_equal(seen.pulls, 2);
	assert_int_equal(seen.last_seq, 1);
	assert_int_equal(seen.made[0].base_term, 2);
	assert_int_equal(seen.made[0].base_version, 0);
}

/* ---- easgd ----------------------------------------------------------------------------------- */

/* Own weights and velocity of the worker that is compared with. */
static float x[N], v[N];

/* Zhang 2015, algorithm 2: v = m v - rate g(x + m v), x += v; then worker and centre close their
 * part of the distance, which each PARAMS brings along. */
static void reference_easgd(const struct work *lease)
{
	float rate = (float)how.local_rate, m = (float)how.momentum, g[N], centre[N];
	struct fake_push of = {.images = 0};

	for (uint32_t i = 0; i < lease->count; i++) {
		for (int j = 0; j < N; j++)
			x[j] += m * v[j];
		gradient_of(x, (struct work){lease->epoch, lease->first + i, 1}, g, &of);
		for (int j = 0; j < N; j++) {
			x[j] -= rate * g[j];
			v[j] = m * v[j] - rate * g[j];
		}
		if (of.work.count < how.n_push && i + 1 < lease->count)
			continue;
		server_weights(centre);
		float part = (float)(how.elastic / (1 + ++ref.pulls % 3));
		for (int j = 0; j < N; j++) {
			float e = part * (x[j] - centre[j]);

			g[j] = -e;
			x[j] -= e;
		}
		expect_push(&of, g, (uint64_t)ref.n);
	}
}

static void easgd_ties_its_own_weights_to_the_centre(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		start();
		how.mode = MODE_EASGD;
		how.n_push = 2;
		how.local_rate = 0.5;
		how.elastic = 0.6;
		how.momentum = i & 2 ? 0.7 : 0;
		how.prefetch = i & 1;
		train(all_in_two, 2);
		server_weights(x);
		memset(v, 0, sizeof(v));
		ref.pulls++;
		reference_easgd(&all_in_two[0].work);
		reference_easgd(&all_in_two[1].work);
		pushes_are_the_references();
		assert_int_equal(ref.n, 4); /* 2, 1; 2, 2 */
		fake_stop(&fake);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SERVER(an_exact_lease_is_one_mean_over_its_images),
		WITH_SERVER(a_lease_of_a_finished_step_is_left_and_weights_in_hand_are_used),
		WITH_SERVER(weights_of_before_a_restart_are_not_exact_after_it),
		cmocka_unit_test(easgd_ties_its_own_weights_to_the_centre),
	};

	return cmocka_run_group_tests(tests, set_up_all, tear_down_all);
}
