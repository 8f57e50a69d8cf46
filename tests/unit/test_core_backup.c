/*
 * test_core_backup.c - backup copies of late work, of all work, or of no work. A batch counts once,
 * even if its copy is delivered, too. Two other files have related tests: immediate copies in
 * sandblaster (test_core_sandblaster.c), and a worker that never delivers (test_core_deadline.c).
 */
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

static struct core_config backup_copy_config(enum mode mode)
{
	struct core_config cfg = fixture_training();

	cfg.training.mode = mode;
	cfg.leases.backup_copies = BACKUP_IMMEDIATE;
	cfg.ssp.bound = 100;
	cfg.leases.max_batches = 1;
	/* so long that no worker becomes suspect and only backup copies can help */
	cfg.sessions.suspect_ms = 100000;
	cfg.sessions.dead_ms = 200000;
	cfg.durable = 0;
	return cfg;
}

/* A single worker computes the batches of an epoch in order, even if the server rejects some of its
 * pushes. */
TEST(a_batch_whose_push_was_rejected_is_granted_to_its_worker_again)
{
	struct core_config cfg = backup_copy_config(MODE_SYNC);
	struct cluster k;
	float g[CLUSTER_PARAMS];

	cluster_open(&k, cfg, 1, 80, cluster_bowl);
	assert_int_equal(cluster_request(&k, 0), 1);
	assert_int_equal(cluster_push(&k, 0), REJECT_NONE);
	assert_int_equal(cluster_request(&k, 0), 1);
	cluster_granted(&k, 0, 1, 1);
	struct msg m = cluster_gradient(&k, 0, g);
	m.push.base_version = 0;
	assert_int_equal(fixture_acked(&k.f, k.worker[0].peer, &m).reject, REJECT_STALE);
	k.worker[0].seq++;
	assert_int_equal(cluster_request(&k, 0), 1);
	cluster_granted(&k, 0, 1, 1);
	cluster_close(&k);
}

static void no_worker_waits_for_a_stopped_worker(enum mode mode)
{
	struct cluster k;

	cluster_open(&k, backup_copy_config(mode), 3, 80, cluster_bowl);
	assert_int_equal(cluster_request(&k, 2), 1); /* worker 2 never sends another message */
	for (int i = 0; i < 1000 && core_training_epoch(k.f.core) < 2; i++)
		cluster_act(&k, (uint32_t)i % 2);
	assert_int_equal(core_training_epoch(k.f.core), 2);
	for (uint32_t e = 0; e < 2; e++)
		assert_int_equal(core_epoch(k.f.core, e)->images, 80);
	assert_true(core_stats(k.f.core)->backups > 0);
	cluster_close(&k);
}

TEST(downpour_waits_for_no_stopped_worker)
{
	no_worker_waits_for_a_stopped_worker(MODE_DOWNPOUR);
}

TEST(ssp_waits_for_no_stopped_worker)
{
	no_worker_waits_for_a_stopped_worker(MODE_SSP);
}

TEST(the_first_result_counts_and_the_second_is_superseded)
{
	struct cluster k;

	cluster_open(&k, backup_copy_config(MODE_DOWNPOUR), 2, 10, cluster_ones);
	assert_int_equal(cluster_request(&k, 0), 1);
	assert_int_equal(cluster_request(&k, 1), 1);
	cluster_granted(&k, 1, 0, 1);
	assert_int_equal(cluster_push(&k, 1), REJECT_NONE);
	/* the late push of the batch is superseded, and its ACK says REJECT_WORK */
	assert_int_equal(cluster_push(&k, 0), REJECT_WORK);
	assert_int_equal(core_stats(k.f.core)->superseded, 1);
	assert_int_equal(core_stats(k.f.core)->rejected[REJECT_WORK], 0);
	assert_int_equal(core_stats(k.f.core)->images, 10);
	assert_true(core_weights(k.f.core)[0] == -1);
	cluster_close(&k);
}

/* A batch with several holders becomes free only when the last holder returns it. */
TEST(a_copy_given_back_leaves_the_batch_to_its_other_holder)
{
	struct cluster k;

	cluster_open(&k, backup_copy_config(MODE_DOWNPOUR), 3, 20, cluster_ones);
	assert_int_equal(cluster_request(&k, 0), 1); /* the first batch */
	assert_int_equal(cluster_request(&k, 1), 1); /* the second batch */
	assert_int_equal(cluster_request(&k, 2), 1); /* a copy of the first batch */
	cluster_granted(&k, 2, 0, 1);
	/* worker 2 has returned the first copy, and gets another one */
	assert_int_equal(cluster_request(&k, 2), 1);
	assert_int_equal(k.f.core->leases.n_free, 0);
	assert_int_equal(core_stats(k.f.core)->backups, 2);
	fixture_bye(&k.f, k.worker[2].peer, k.worker[2].s);
	assert_int_equal(k.f.core->leases.n_free, 0);
	fixture_bye(&k.f, k.worker[0].peer, k.worker[0].s);
	assert_int_equal(k.f.core->leases.n_free, 1);
	cluster_close(&k);
}

/* A single worker gets no backup copies of its own work. */
TEST(one_worker_gets_no_copies)
{
	struct cluster k;

	cluster_open(&k, backup_copy_config(MODE_DOWNPOUR), 1, 80, cluster_bowl);
	cluster_run(&k, 1, NULL);
	assert_int_equal(core_stats(k.f.core)->backups, 0);
	assert_int_equal(core_stats(k.f.core)->rejected[REJECT_WORK], 0);
	cluster_close(&k);
}

/* ---- late work ------------------------------------------------------------------------------ */

static struct core_config late_config(enum mode mode)
{
	struct core_config cfg = backup_copy_config(mode);

	cfg.leases.backup_copies = BACKUP_LATE;
	return cfg;
}

static void tick_cluster(struct cluster *k, uint64_t ms)
{
	fixture_tick(&k->f, ms);
	cluster_receive(k);
}

/* After `ms` milliseconds, let worker i deliver its work and request more work. Returns 1 if the
 * server grants this request at once. */
static int push_and_request(struct cluster *k, uint32_t i, uint64_t ms)
{
	tick_cluster(k, ms);
	assert_int_equal(cluster_push(k, i), REJECT_NONE);
	return cluster_request(k, i);
}

/* Open a core with two workers. Worker 0 has delivered `n` batches, one every 100 ms, and holds the
 * last batch of the epoch. Worker 1 waits for a grant. */
static void open_with_one_idle(struct cluster *k, struct core_config cfg, uint32_t n)
{
	cluster_open(k, cfg, 2, 10 * (n + 1), cluster_ones);
	assert_int_equal(cluster_request(k, 0), 1);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(push_and_request(k, 0, 100), 1);
	assert_int_equal(k->f.core->leases.n_free, 0);
	cluster_request(k, 1);
}

static void an_idle_worker_gets_a_copy_of_late_work(enum mode mode)
{
	struct cluster k;

	open_with_one_idle(&k, late_config(mode), 3);
	/* no copy yet, because the last batch is not late */
	assert_int_equal(k.worker[1].grant.work.count, 0);
	tick_cluster(&k, 200);
	assert_int_equal(k.worker[1].grant.work.count, 0);
	tick_cluster(&k, 50);
	cluster_granted(&k, 1, 3, 1);
	assert_int_equal(core_stats(k.f.core)->backups, 1);
	cluster_close(&k);
}

TEST(a_late_batch_is_copied_and_no_other)
{
	an_idle_worker_gets_a_copy_of_late_work(MODE_DOWNPOUR);
	an_idle_worker_gets_a_copy_of_late_work(MODE_SSP);
	an_idle_worker_gets_a_copy_of_late_work(MODE_EASGD);
}

/* In this test each step has two batches, but the last step of the epoch has only one. */
TEST(the_late_batch_of_a_short_step_is_copied)
{
	struct core_config cfg = late_config(MODE_SYNC);
	struct cluster k;

	cfg.leases.min_workers = 2;
	cluster_open(&k, cfg, 2, 10 * 7, cluster_ones);
	assert_int_equal(cluster_request(&k, 0) + cluster_request(&k, 1), 2);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(push_and_request(&k, 0, 100), 0);
		assert_int_equal(push_and_request(&k, 1, 0), i < 2);
	}
	assert_int_equal(k.worker[0].grant.work.first, 6);
	tick_cluster(&k, 200);
	/* no copy yet, because the last batch is not late */
	assert_int_equal(k.worker[1].grant.work.count, 0);
	tick_cluster(&k, 50);
	cluster_granted(&k, 1, 6, 1);
	assert_int_equal(core_stats(k.f.core)->backups, 1);
	cluster_close(&k);
}

TEST(a_late_portion_is_copied_and_no_other)
{
	struct core_config cfg = late_config(MODE_SANDBLASTER);

	an_idle_worker_gets_a_copy_of_late_work(cfg.training.mode);
}

/* When a worker requests work, the core grants a copy of a late batch at once, without waiting for
 * the next tick. */
TEST(a_request_after_the_batch_is_late_gets_a_copy_at_once)
{
	struct cluster k;

	open_with_one_idle(&k, late_config(MODE_DOWNPOUR), 3);
	fixture_bye(&k.f, k.worker[1].peer, k.worker[1].s);
	k.f.now_ms += 250;
	cluster_join(&k, 1);
	assert_int_equal(cluster_request(&k, 1), 1);
	cluster_granted(&k, 1, 3, 1);
	cluster_close(&k);
}

/* The core grants one copy of a late batch, and a second copy only when the first copy is late,
 * too. */
TEST(a_batch_with_a_timely_copy_is_not_copied_again)
{
	struct cluster k;

	open_with_one_idle(&k, late_config(MODE_DOWNPOUR), 3);
	cluster_join(&k, k.n++);
	cluster_request(&k, 2);
	tick_cluster(&k, 250);
	cluster_granted(&k, 1, 3, 1);
	assert_int_equal(k.worker[2].grant.work.count, 0);
	tick_cluster(&k, 150);
	assert_int_equal(k.worker[2].grant.work.count, 0);
	tick_cluster(&k, 100);
	cluster_granted(&k, 2, 3, 1);
	cluster_close(&k);
}

/* A lease of several batches is late when the time since its newest delivery is too long. The core
 * first copies the last batch of the lease. */
TEST(a_lease_is_late_by_its_newest_delivery)
{
	struct core_config cfg = late_config(MODE_DOWNPOUR);
	struct cluster k;

	cfg.leases.max_batches = 4;
	cluster_open(&k, cfg, 2, 40, cluster_ones);
	/* worker 0 is now alone, so its lease has all batches */
	fixture_bye(&k.f, k.worker[1].peer, k.worker[1].s);
	assert_int_equal(cluster_request(&k, 0), 1);
	cluster_granted(&k, 0, 0, 4);
	for (uint32_t i = 0; i < 2; i++) {
		tick_cluster(&k, 100);
		k.worker[0].grant.work = (struct work){0, i, 1};
		assert_int_equal(cluster_push(&k, 0), REJECT_NONE);
	}
	cluster_join(&k, 1);
	cluster_request(&k, 1);
	tick_cluster(&k,
		/* now 390 ms have passed since the grant, and 190 ms since the newest delivery */
		190);
	assert_int_equal(k.worker[1].grant.work.count, 0);
	tick_cluster(&k, 20);
	cluster_granted(&k, 1, 3, 1);
	cluster_close(&k);
}

/* Worker 0 holds the last portion of the test set without a result. Worker 1 waits for work. */
static void a_late_portion_of_the_test_set_is_copied(struct core_config cfg)
{
	struct cluster k;

	cfg.leases.eval_images = 4; /* the test set has two portions */
	cfg.training.epochs = 1;
	cluster_open(&k, cfg, 2, 10, cluster_ones);
	assert_int_equal(cluster_request(&k, 0), 1);
	tick_cluster(&k, 100);
	cluster_push(&k, 0);
	cluster_request(&k, 1);
	assert_int_equal(k.worker[1].grant.kind, GRANT_EVAL);
	cluster_request(&k, 0);
	assert_int_equal(k.worker[0].grant.kind, GRANT_EVAL);
	tick_cluster(&k, 100);
	cluster_evaluate(&k, 1);
	cluster_request(&k, 1);
	assert_int_not_equal(k.worker[1].grant.kind, GRANT_EVAL);
	tick_cluster(&k, 90);
	assert_int_not_equal(k.worker[1].grant.kind, GRANT_EVAL);
	tick_cluster(&k, 20);
	assert_int_equal(k.worker[1].grant.kind, GRANT_EVAL);
	assert_int_equal(k.worker[1].grant.eval_first, k.worker[0].grant.eval_first);
	assert_int_equal(core_stats(k.f.core)->backups, 1);
	cluster_evaluate(&k, 1);
	assert_int_equal(core_epoch(k.f.core, 0)->eval_done, 7);
	cluster_close(&k);
}

TEST(a_late_piece_of_the_test_set_is_copied)
{
	a_late_portion_of_the_test_set_is_copied(late_config(MODE_DOWNPOUR));
}

/* With --backup-copies immediate, a piece of the test set is not copied before it is late. */
TEST(immediate_copies_of_the_test_set_are_of_late_pieces)
{
	a_late_portion_of_the_test_set_is_copied(backup_copy_config(MODE_DOWNPOUR));
}

static uint64_t all_rejected(const struct cluster *k)
{
	uint64_t n = 0;

	for (int i = 0; i < REJECT_REASONS; i++)
		n += core_stats(k->f.core)->rejected[i];
	return n;
}

/* A copy of a portion has completed the pass, and the line search has begun a new pass over the
 * same portions. The late result of the first holder is stale, and counts as superseded. */
TEST(a_portion_that_comes_after_its_pass_is_superseded)
{
	struct core_config cfg = late_config(MODE_SANDBLASTER);
	struct cluster k;

	cfg.optim.kind = OPTIM_LBFGS;
	cfg.lbfgs.history = 4;
	cfg.lbfgs.trials = 20;
	cfg.lbfgs.armijo = 1e-4;
	cfg.lbfgs.wolfe = 0.5;
	open_with_one_idle(&k, cfg, 3);
	tick_cluster(&k, 250);
	assert_int_equal(cluster_push(&k, 1), REJECT_NONE);
	assert_int_equal(core_stats(k.f.core)->version, 1);
	assert_int_equal(cluster_push(&k, 0), REJECT_STALE);
	assert_int_equal(core_stats(k.f.core)->superseded, 1);
	assert_int_equal(all_rejected(&k), 0);
	cluster_close(&k);
}

/* All workers need 100 ms for a batch, and time advances in steps of 10 ms. Under these conditions
 * the core must make no copies. */
static void equal_workers_make_no_copies(enum mode mode)
{
	struct core_config cfg = late_config(mode);
	uint64_t ready_ms[4] = {0};
	struct cluster k;

	cfg.training.epochs = 3;
	cfg.sandblaster.step_images = 80;
	cfg.sessions.suspect_ms = cfg.sessions.dead_ms = 1000000;
	cluster_open(&k, cfg, 4, 200, cluster_ones);
	for (int i = 0; i < 4000 && k.f.core->run.ending == END_NOT; i++) {
		for (uint32_t n = 0; n < 4 && k.f.core->run.ending == END_NOT; n++) {
			struct cluster_worker *h = &k.worker[n];
			int has = h->grant.kind == GRANT_EVAL || h->grant.work.count;

			if (has && ready_ms[n] == 0)
				ready_ms[n] = k.f.now_ms + 100;
			if (has && k.f.now_ms < ready_ms[n])
				continue;
			ready_ms[n] = 0;
			cluster_act(&k, n);
		}
		tick_cluster(&k, 10);
	}
	assert_int_equal(core_training_epoch(k.f.core), 3);
	assert_int_equal(core_stats(k.f.core)->backups, 0);
	assert_int_equal(all_rejected(&k), 0);
	cluster_close(&k);
}

TEST(a_healthy_run_makes_no_copies_and_rejects_nothing)
{
	equal_workers_make_no_copies(MODE_DOWNPOUR);
	equal_workers_make_no_copies(MODE_SSP);
	equal_workers_make_no_copies(MODE_SANDBLASTER);
}

TEST(without_copies_an_idle_worker_waits)
{
	struct core_config cfg = late_config(MODE_DOWNPOUR);
	struct cluster k;

	cfg.leases.backup_copies = BACKUP_NONE;
	open_with_one_idle(&k, cfg, 3);
	tick_cluster(&k, 900);
	assert_int_equal(k.worker[1].grant.work.count, 0);
	assert_int_equal(core_stats(k.f.core)->backups, 0);
	cluster_close(&k);
}
