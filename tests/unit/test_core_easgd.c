/*
 * Proves EASGD's centre in server/core/downpour.c (Zhang 2015, arXiv 1412.6651): each PARAMS
 * carries alpha = beta / N for the N live members, and a push moves the centre by its own value,
 * independent of rate, schedule and staleness.
 */
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

#define BETA 0.9

static struct core_config easgd(void)
{
	struct core_config cfg = fixture_config();

	cfg.training.mode = MODE_EASGD;
	cfg.easgd.beta = BETA;
	cfg.sessions.max_workers = 8;
	cfg.durable = 0;
	return cfg;
}

static double alpha(struct core_fixture *f, uint32_t peer, struct stamp s)
{
	fixture_pull(f, peer, s, WEIGHTS_CURRENT);
	return fixture_sent(f, peer, MSG_PARAMS)->params.elastic;
}

static void assert_alpha(struct core_fixture *f, uint32_t peer, struct stamp s, uint32_t members)
{
	assert_true(fabs(alpha(f, peer, s) - BETA / members) < 1e-12);
}

TEST(alpha_follows_the_number_of_members)
{
	struct core_fixture f;
	struct stamp s[8];

	fixture_open(&f, easgd());
	for (uint32_t i = 0; i < 8; i++) {
		s[i] = fixture_join(&f, 10 + i, "");
		assert_alpha(&f, 10, s[0], i + 1);
	}
	fixture_bye(&f, 17, s[7]); /* the worker leaves */
	assert_alpha(&f, 10, s[0], 7);
	/* after 400 ms of silence, worker 7 still counts as a member */
	for (int ms = 0; ms < 400; ms += 100) {
		fixture_tick(&f, 100);
		for (uint32_t i = 0; i < 6; i++)
			fixture_heartbeat(&f, 10 + i, s[i]);
	}
	assert_int_equal(fixture_worker(&f, 7).state, SESSION_SUSPECT);
	assert_alpha(&f, 10, s[0], 7);
	for (int ms = 0; ms < 800; ms += 100) { /* after 800 more ms of silence, worker 7 is dead */
		fixture_tick(&f, 100);
		for (uint32_t i = 0; i < 6; i++)
			fixture_heartbeat(&f, 10 + i, s[i]);
	}
	assert_int_equal(fixture_worker(&f, 7).state, SESSION_DEAD);
	assert_alpha(&f, 13, s[3], 6);
	fixture_close(&f);
}

/* After a restart, the first worker that returns must not move the centre as if it were the only
 * worker. */
TEST(after_a_restart_members_are_expected_back)
{
	struct core_fixture f;
	struct stamp s[4];

	fixture_open(&f, easgd());
	for (uint32_t i = 0; i < 4; i++)
		s[i] = fixture_join(&f, 10 + i, "");
	fixture_restart(&f);
	s[0] = fixture_come_back(&f, 10, s[0], 0);
	assert_alpha(&f, 10, s[0], 4);
	s[1] = fixture_come_back(&f, 11, s[1], 0);
	assert_alpha(&f, 11, s[1], 4);
	fixture_tick(&f, 500); /* the recovery ends, although the other workers have not returned */
	assert_alpha(&f, 10, s[0], 2);
	s[2] = fixture_come_back(&f, 12, s[2], 0);
	assert_alpha(&f, 10, s[0], 3);
	fixture_close(&f);
}

TEST(other_modes_have_no_alpha)
{
	struct core_config cfg = easgd();
	struct core_fixture f;

	cfg.training.mode = MODE_DOWNPOUR;
	fixture_open(&f, cfg);
	assert_true(alpha(&f, 10, fixture_join(&f, 10, "")) == 0);
	fixture_close(&f);
}

TEST(a_push_moves_the_centre_by_itself)
{
	struct core_config cfg = easgd();
	struct core_fixture f;
	struct stamp s;

	cfg.rate.lr = 0.01;
	cfg.rate.staleness_scaling = STALE_INVERSE;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 10, "");
	/* base_version stays 0, so the staleness of the pushes grows */
	for (uint64_t seq = 1; seq <= 5; seq++) {
		struct msg m = fixture_push_ones(s, seq);

		fixture_applied(&f, 10, &m);
		assert_true(core_weights(f.core)[3] == -(float)seq);
	}
	fixture_close(&f);
}
