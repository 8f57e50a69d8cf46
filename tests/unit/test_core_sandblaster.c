/*
 * Proves the invariants numbered in server/core/sandblaster.c: which pushes a pass accepts, which
 * worker gets which portion, and that no portion is lost or counted twice. (test_core_lbfgs.c tests
 * L-BFGS.)
 */
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

/* Returns a configuration of plain gradient descent with portions of 10 images. The server makes
 * backup copies at once, as in the paper, unless a test changes this option. (test_core_backup.c
 * tests copies of late work.) */
static struct core_config sgd_config(void)
{
	struct core_config cfg = fixture_training();

	cfg.training.mode = MODE_SANDBLASTER;
	cfg.leases.backup_copies = BACKUP_IMMEDIATE;
	cfg.durable = 0;
	cfg.rate.lr = 0.125;
	return cfg;
}

static void sgd_open(struct cluster *k, uint32_t n, uint32_t n_train)
{
	cluster_open(k, sgd_config(), n, n_train, cluster_bowl);
}

static enum reject push_portion(struct cluster *k, uint32_t i, uint32_t first, uint32_t count)
{
	k->worker[i].grant.work = (struct work){core_training_epoch(k->f.core), first, count};
	return cluster_push(k, i);
}

static void assert_version(const struct cluster *k, uint64_t version)
{
	assert_int_equal(core_stats(k->f.core)->version, version);
}

/* Compute the reference: the mean gradient over the batches [first, end) at `w`. */
static void serial_mean(
	const struct cluster *k, uint32_t first, uint32_t end, const float *w, double *g)
{
	memset(g, 0, FIXTURE_PARAMS * sizeof(*g));
	for (uint32_t i = first; i < end; i++) {
		double one[FIXTURE_PARAMS];

		cluster_bowl(i, w, one);
		for (size_t j = 0; j < FIXTURE_PARAMS; j++)
			g[j] += cluster_images(k, i, 1) * one[j] /
				cluster_images(k, first, end - first);
	}
}

/* ---- which pushes a pass accepts ------------------------------------------------------------ */

TEST(a_portion_that_is_done_is_not_taken_again)
{
	struct cluster k;

	sgd_open(&k, 2, 80);
	cluster_request(&k, 0);
	cluster_request(&k, 1);
	assert_int_equal(push_portion(&k, 0, 2, 1), REJECT_NONE);
	assert_int_equal(push_portion(&k, 1, 2, 1), REJECT_WORK);
	assert_int_equal(k.f.core->accumulator.images, 10);
	assert_int_equal(k.f.core->accumulator.pushes, 1);
	cluster_close(&k);
}

TEST(a_sum_that_overlaps_is_refused_whole_and_nothing_is_lost)
{
	struct core_config cfg = sgd_config();
	double expected[FIXTURE_PARAMS];
	float start[CLUSTER_PARAMS];
	struct cluster k;

	cfg.leases.max_batches = 4;
	cluster_open(&k, cfg, 2, 80, cluster_bowl);
	memcpy(start, core_weights(k.f.core), sizeof(start[0]) * FIXTURE_PARAMS);
	serial_mean(&k, 0, 8, start, expected);
	cluster_request(&k, 0);
	cluster_request(&k, 1);
	assert_int_equal(push_portion(&k, 0, 3, 2), REJECT_NONE);
	double before = k.f.core->accumulator.sum[1];
	/* portion 3 is done, so portions 1 and 2 are not accepted either */
	assert_int_equal(push_portion(&k, 1, 1, 3), REJECT_WORK);
	assert_true(k.f.core->accumulator.sum[1] == before);
	assert_int_equal(k.f.core->leases.n_done, 2);
	assert_int_equal(k.f.core->leases.batch[1], BATCH_FREE);
	assert_int_equal(k.f.core->leases.batch[2], BATCH_FREE);
	while (core_stats(k.f.core)->version == 0)
		cluster_act(&k, 1);
	for (size_t j = 0; j < FIXTURE_PARAMS; j++)
		assert_float_equal(core_weights(k.f.core)[j], (float)(-0.125 * expected[j]), 1e-6);
	assert_int_equal(core_stats(k.f.core)->images, 80);
	cluster_close(&k);
}

TEST(a_sum_of_another_pass_is_refused)
{
	struct cluster k;
	struct cluster_worker late;

	sgd_open(&k, 2, 40);
	cluster_request(&k, 1);
	late = k.worker[1];
	while (core_stats(k.f.core)->version == 0)
		cluster_act(&k, 0);
	assert_true(late.grant.work.count > 0);
	/* rejected, because this push belongs to an epoch that is over */
	assert_int_equal(cluster_push(&k, 1), REJECT_WORK);
	k.worker[1].grant.work = late.grant.work;
	/* rejected as stale: the same portion in the present epoch, but at old weights */
	k.worker[1].grant.work.epoch = 1;
	assert_int_equal(cluster_push(&k, 1), REJECT_STALE);
	assert_int_equal(k.f.core->leases.n_done, 0);
	assert_int_equal(k.f.core->accumulator.pushes, 0);
	cluster_close(&k);
}

/* ---- which worker gets which portion -------------------------------------------------------- */

TEST(a_worker_gets_the_portion_next_to_its_last_one)
{
	struct core_config cfg = sgd_config();
	struct cluster k;

	cfg.leases.max_batches = 1;
	cluster_open(&k, cfg, 2, 160, cluster_bowl);
	for (uint32_t round = 0; round < 8; round++) {
		cluster_request(&k, 0);
		cluster_granted(&k, 0, round, 1);
		cluster_request(&k, 1);
		cluster_granted(&k, 1, 8 + round, 1);
		cluster_push(&k, 0);
		cluster_push(&k, 1);
	}
	assert_version(&k, 1);
	cluster_close(&k);
}

TEST(runs_of_portions_shrink_towards_the_end_of_a_pass)
{
	struct core_config cfg = sgd_config();
	uint32_t before = 16, n = 0;
	struct cluster k;

	cfg.leases.max_batches = 16;
	cluster_open(&k, cfg, 2, 1280, cluster_bowl);
	for (uint32_t left = 128; left > 0; n++) {
		assert_int_equal(cluster_request(&k, n % 2), 1);
		uint32_t count = k.worker[n % 2].grant.work.count;
		assert_in_range(count, 1, left < 8 ? 1 : left / 8 + 1);
		/* worker 1 has no known speed yet, so its first grant is one portion */
		if (n != 1) {
			assert_in_range(count, 1, before);
			before = count;
		}
		left -= count;
		cluster_push(&k, n % 2);
	}
	assert_int_equal(before, 1);
	assert_in_range(n, 16, 64);
	cluster_close(&k);
}

TEST(idle_workers_get_copies_of_portions_with_fewest_copies)
{
	struct core_config cfg = sgd_config();
	struct cluster k;

	cfg.leases.max_batches = 1;
	cluster_open(&k, cfg, 7, 30, cluster_bowl); /* the step has 3 portions for 7 workers */
	for (uint32_t i = 0; i < 7; i++)
		assert_int_equal(cluster_request(&k, i), 1);
	assert_int_equal(core_stats(k.f.core)->backups, 4);
	/* of the portions with the fewest copies, the core copies the one that it granted first */
	for (uint32_t i = 3; i < 7; i++)
		cluster_granted(&k, i, (i - 3) % 3, 1);
	/* the first result of portion 1 counts */
	assert_int_equal(cluster_push(&k, 4), REJECT_NONE);
	for (uint32_t i = 0; i < 3; i++)
		if (k.worker[i].grant.work.first == 1)
			assert_int_equal(cluster_push(&k, i), REJECT_WORK);
	assert_int_equal(core_stats(k.f.core)->superseded, 1);
	assert_int_equal(core_stats(k.f.core)->rejected[REJECT_WORK], 0);
	assert_int_equal(k.f.core->accumulator.images, 10);
	cluster_close(&k);
}

/* Advance the virtual time to now_ms, and make a tick. */
static void tick_at(struct cluster *k, uint64_t now_ms)
{
	k->f.now_ms = now_ms;
	fixture_tick(&k->f, 0);
	cluster_receive(k);
}

/* Returns the mean duration of a step in virtual milliseconds, in a run of `steps` steps. Worker i
 * takes ms[i] for a portion. */
static double step_ms(uint32_t n, const uint64_t *ms, uint32_t steps, enum backup_copies backup,
	uint64_t images[CLUSTER_WORKERS])
{
	struct core_config cfg = sgd_config();
	uint64_t ready[CLUSTER_WORKERS] = {0};
	struct cluster k;

	cfg.leases.backup_copies = backup;
	cfg.leases.max_batches = 20;
	cfg.training.epochs = steps;
	cfg.sessions.suspect_ms = 100000; /* so long that no worker becomes suspect */
	cfg.sessions.dead_ms = 200000;
	cluster_open(&k, cfg, n, 6000, cluster_bowl); /* 600 portions */
	uint64_t begin = k.f.now_ms, tick_ms = begin + 50;
	while (core_stats(k.f.core)->updates < steps) {
		uint32_t next = n;

		/* find the worker whose work is ready first */
		for (uint32_t i = 0; i < n; i++) {
			while (k.worker[i].grant.kind != GRANT_TRAIN && cluster_act(&k, i))
				ready[i] = 0;
			if (k.worker[i].grant.work.count && ready[i] == 0)
				ready[i] = k.f.now_ms + k.worker[i].grant.work.count * ms[i];
			if (k.worker[i].grant.work.count && (next == n || ready[i] < ready[next]))
				next = i;
		}
		assert_in_range(next, 0, n - 1);
		if (ready[next] >= tick_ms) {
			tick_at(&k, tick_ms);
			tick_ms += 50;
			continue;
		}
		k.f.now_ms = ready[next];
		ready[next] = 0;
		cluster_push(&k, next);
		cluster_request(&k, next);
	}
	double each = (double)(k.f.now_ms - begin) / steps;
	for (uint32_t i = 0; images && i < n; i++)
		images[i] = fixture_worker(&k.f, k.worker[i].s.worker).images;
	cluster_close(&k);
	return each;
}

TEST(backup_copies_make_up_for_a_slow_worker)
{
	const uint64_t equal[] = {10, 10, 10}, one_slow[] = {10, 10, 10, 100};

	for (int backup = BACKUP_LATE; backup <= BACKUP_IMMEDIATE; backup++) {
		double three = step_ms(3, equal, 5, (enum backup_copies)backup, NULL);
		double four = step_ms(4, one_slow, 5, (enum backup_copies)backup, NULL);

		print_message("a step: %.0f ms of three equal ones, %.0f with a slow fourth\n",
			three, four);
		assert_true(three >= 2000 && three < 2100);
		assert_true(four <= 1.25 * three);
	}
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* A slow worker gets as much work as it can deliver before other workers finish copies of this
 * work. */
TEST(a_worker_20_times_slower_contributes)
{
	static const uint64_t ms[] = {120, 120, 120, 2400};
	uint64_t images[CLUSTER_WORKERS];

	step_ms(4, ms, 4, BACKUP_LATE, images);
	assert_in_range(images[3], 10, images[0] / 10);
}

TEST(a_step_covers_its_window_and_the_last_step_the_rest)
{
	const uint32_t end[] = {3, 6, 8};
	struct core_config cfg = sgd_config();
	double w[FIXTURE_PARAMS] = {0}, g[FIXTURE_PARAMS];
	float at[FIXTURE_PARAMS];
	struct cluster k;

	cfg.sandblaster.step_images = 25; /* each step has three portions of 10 images */
	cluster_open(&k, cfg, 3, 77, cluster_bowl);
	/* rejected, because portion 3 belongs to a later step */
	assert_int_equal(push_portion(&k, 0, 3, 1), REJECT_WORK);
	for (uint32_t step = 0; step < 3; step++) {
		for (size_t j = 0; j < FIXTURE_PARAMS; j++)
			at[j] = (float)w[j];
		serial_mean(&k, step ? end[step - 1] : 0, end[step], at, g);
		for (uint32_t n = 0; core_stats(k.f.core)->version == step; n++)
			cluster_act(&k, n % 3);
		assert_int_equal(core_stats(k.f.core)->images, cluster_images(&k, 0, end[step]));
		for (size_t j = 0; j < FIXTURE_PARAMS; j++) {
			w[j] -= 0.125 * g[j];
			assert_float_equal(core_weights(k.f.core)[j], (float)w[j], 1e-5);
		}
	}
	assert_int_equal(core_training_epoch(k.f.core), 1);
	assert_int_equal(core_epoch(k.f.core, 0)->images, 77);
	assert_int_equal(core_epoch(k.f.core, 0)->updates, 3);
	cluster_close(&k);
}

/* ---- dead workers and restarts -------------------------------------------------------------- */

TEST(portions_of_a_dead_worker_are_done_by_the_others)
{
	struct core_config cfg = sgd_config();
	struct cluster k;

	cfg.leases.max_batches = 4;
	cluster_open(&k, cfg, 2, 80, cluster_bowl);
	cluster_request(&k, 1);
	push_portion(&k, 1, k.worker[1].grant.work.first, 1);
	cluster_request(&k, 1); /* the worker dies while it holds this portion */
	k.f.now_ms += 1200;
	fixture_heartbeat(&k.f, k.worker[0].peer + 1, k.worker[0].s);
	fixture_tick(&k.f, 0);
	assert_int_equal(fixture_worker(&k.f, 2).state, SESSION_DEAD);
	assert_int_equal(k.f.core->leases.n_done, 1); /* the delivered portion still counts */
	while (core_stats(k.f.core)->version == 0)
		cluster_act(&k, 0);
	assert_int_equal(core_stats(k.f.core)->images, 80);
	assert_int_equal(core_stats(k.f.core)->backups, 0);
	cluster_close(&k);
}

/* A worker holds portions and sends only heartbeats, so the server grants copies of these
 * portions. */
TEST(the_portion_of_a_hanging_worker_is_copied)
{
	struct cluster k;

	sgd_open(&k, 2, 80);
	assert_int_equal(cluster_request(&k, 1), 1);
	while (core_stats(k.f.core)->version == 0)
		cluster_act(&k, 0);
	assert_int_not_equal(core_stats(k.f.core)->backups, 0);
	assert_int_equal(core_stats(k.f.core)->images, 80);
	cluster_close(&k);
}

static int images_equal(const struct core_snapshot *a, const struct core_snapshot *b)
{
	for (int s = 0; s < SNAPSHOT_SESSIONS; s++)
		if (a->size[s] != b->size[s] || memcmp(a->data[s], b->data[s], a->size[s]) != 0)
			return 0;
	return 1;
}

/* Runs with the same gradients must end with the same bytes, no matter when the server is
 * killed. */
TEST(a_restart_in_any_moment_of_a_step_changes_no_bit)
{
	float expected[FIXTURE_PARAMS];

	for (int killed = -1; killed < 60; killed++) {
		struct core_config cfg = sgd_config();
		struct cluster k;

		cfg.sandblaster.step_images = 40;
		cfg.optim.kind = OPTIM_ADAM;
		cluster_open(&k, cfg, 1, 95, cluster_bowl);
		for (int n = 0; !fixture_count(&k.f, EFFECT_FINISH); n++) {
			cluster_act(&k, 0);
			if (n == killed)
				cluster_restart(&k, 1);
			assert_in_range(n, 0, 1000);
		}
		if (killed < 0)
			memcpy(expected, core_weights(k.f.core), sizeof(expected));
		assert_memory_equal(core_weights(k.f.core), expected, sizeof(expected));
		assert_int_equal(core_stats(k.f.core)->images, 2 * 95);
		cluster_close(&k);
	}
}

TEST(a_snapshot_in_the_middle_of_a_pass_decodes_bit_for_bit)
{
	struct core_snapshot a, b;
	struct core_config cfg;
	struct core_fixture again;
	struct cluster k;
	const char *why = NULL;

	sgd_open(&k, 2, 80);
	for (int n = 0; n < 5; n++)
		cluster_act(&k, (uint32_t)n % 2);
	assert_int_not_equal(k.f.core->accumulator.pushes, 0);
	a = fixture_save(&k.f);
	cfg = k.f.cfg;
	assert_int_equal(fixture_read(&again, cfg, &a, &why), PS_OK);
	again.core->stats.recoveries--; /* undo the only change that a restart may make */
	b = fixture_save(&again);
	assert_true(images_equal(&a, &b));
	fixture_drop(&a);
	fixture_drop(&b);
	fixture_close(&again);
	cluster_close(&k);
}

/* ---- any order ------------------------------------------------------------------------------ */

TEST(in_any_order_each_image_counts_once_per_step)
{
	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct core_config cfg = sgd_config();
		struct rng r = rng_seed(seed, RNG_SIM, 0);
		struct cluster k;

		print_message("seed %llu\n", (unsigned long long)seed);
		cfg.sandblaster.step_images = (uint32_t)rng_below(&r, 200);
		cfg.leases.max_batches = 1 + (uint32_t)rng_below(&r, 5);
		cluster_open(&k, cfg, 4, 1 + (uint32_t)rng_below(&r, 150), cluster_bowl);
		for (int n = 0; !fixture_count(&k.f, EFFECT_FINISH); n++) {
			uint32_t i = (uint32_t)rng_below(&r, 4);
			uint64_t dice = rng_below(&r, 40);

			if (dice == 0)
				cluster_restart(&k, 4);
			else if (dice == 1) /* push any portion, even one that was not granted */
				push_portion(&k, i,
					(uint32_t)rng_below(&r, k.f.core->leases.n_batches), 1);
			else if (dice == 2 && k.worker[i].grant.request == k.worker[i].request)
				/* request new work, by which the worker returns its portions */
				cluster_request(&k, i);
			else
				cluster_act(&k, i);
			assert_in_range(n, 0, 20000);
		}
		for (uint32_t e = 0; e < 2; e++)
			assert_int_equal(core_epoch(k.f.core, e)->images, k.data.n_train);
		cluster_close(&k);
	}
}
