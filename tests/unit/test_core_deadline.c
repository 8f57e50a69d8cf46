/*
 * test_core_deadline.c - runs in which a worker sends heartbeats and delivers nothing. The run goes
 * on without this worker, no matter what work it holds. Time is virtual, with a tick every 50 ms.
 * (test_core_backup.c tests copies of late work.) Covers attack A14 of docs/faults.md.
 */
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

#define HANGS UINT64_MAX

/* A fleet of simulated workers, and the time in milliseconds that each worker needs for a batch. */
struct fleet {
	struct cluster k;
	uint64_t ms[CLUSTER_WORKERS], ready_ms[CLUSTER_WORKERS];
	/* if `claims` is 1, worker 0 claims in each push that its weights have version `claim` */
	int claims;
	uint64_t claim;
	uint32_t pushed[CLUSTER_WORKERS], taken[CLUSTER_WORKERS];
};

static struct core_config deadline_config(enum mode mode)
{
	struct core_config cfg = fixture_training();

	cfg.training.mode = mode;
	cfg.ssp.bound = 2;
	cfg.leases.max_batches = 4;
	cfg.durable = 0;
	cfg.rate.lr = 0.01;
	return cfg;
}

static void fleet_open(
	struct fleet *f, struct core_config cfg, uint32_t n, uint32_t n_train, uint64_t each_ms)
{
	memset(f, 0, sizeof(*f));
	cluster_open(&f->k, cfg, n, n_train, cluster_ones);
	for (uint32_t i = 0; i < n; i++)
		f->ms[i] = each_ms;
}

/* Returns the number of batches in the next push of worker i. */
static uint32_t next_batches(const struct fleet *f, uint32_t i)
{
	const struct cluster_worker *h = &f->k.worker[i];
	uint32_t max = h->grant.exact ? h->grant.work.count : f->k.f.cfg.push.n_push;

	if (h->grant.kind != GRANT_TRAIN)
		return 1;
	return h->grant.work.count < max ? h->grant.work.count : max;
}

/* Set the time at which the next push of worker i is ready. Worker i must have just received a
 * grant. */
static void begin_batches(struct fleet *f, uint32_t i)
{
	if (f->ready_ms[i] == 0 && f->ms[i] != HANGS)
		f->ready_ms[i] = f->k.f.now_ms + f->ms[i] * next_batches(f, i);
}

/* Make the first push of a grant that needs several pushes. */
static void push_first(struct fleet *f, uint32_t i)
{
	struct cluster_worker *h = &f->k.worker[i];
	struct msg_grant rest = h->grant;
	uint32_t n = next_batches(f, i);

	h->grant.work.count = n;
	if (f->claims && i == 0)
		h->version = f->claim;
	f->pushed[i]++;
	f->taken[i] += cluster_push(&f->k, i) == REJECT_NONE;
	if (rest.exact || h->grant.work.count)
		return;
	h->grant = rest;
	h->grant.work.first += n;
	h->grant.work.count -= n;
	h->version = core_stats(f->k.f.core)->version;
	memcpy(h->w, core_weights(f->k.f.core), f->k.f.cfg.n_params * sizeof(float));
}

static int has_work(const struct cluster_worker *h)
{
	return h->grant.request == h->request && h->request &&
	       (h->grant.kind == GRANT_EVAL || h->grant.work.count);
}

static void act_in_time(struct fleet *f, uint32_t i)
{
	struct cluster_worker *h = &f->k.worker[i];
	int waits = h->request && h->grant.request != h->request;

	if (!waits && !has_work(h)) {
		f->ready_ms[i] = 0;
		cluster_request(&f->k, i);
	}
	if (!has_work(h))
		return;
	begin_batches(f, i);
	if (f->ready_ms[i] == 0 || f->k.f.now_ms < f->ready_ms[i])
		return;
	f->ready_ms[i] = 0;
	if (h->grant.kind == GRANT_EVAL)
		cluster_evaluate(&f->k, i);
	else
		push_first(f, i);
}

static int fleet_is_over(const struct fleet *f)
{
	return f->k.f.core->run.ending == END_OVER;
}

/* Let all workers send heartbeats and work until the run is over, or for `ms` milliseconds. */
static void fleet_run(struct fleet *f, uint64_t ms)
{
	uint64_t end = f->k.f.now_ms + ms;

	while (f->k.f.now_ms < end && !fleet_is_over(f)) {
		for (uint32_t i = 0; i < f->k.n && !fleet_is_over(f); i++) {
			act_in_time(f, i);
			fixture_heartbeat(&f->k.f, f->k.worker[i].peer + 1, f->k.worker[i].s);
		}
		fixture_tick(&f->k.f, 10);
		cluster_receive(&f->k);
	}
}

/* Worker 0 gets work and delivers nothing. The other workers must finish the run without worker
 * 0. */
static void a_hanging_worker_holds_up_no_worker(struct core_config cfg)
{
	struct fleet f;

	fleet_open(&f, cfg, 3, 200, 30);
	f.ms[0] = HANGS;
	fleet_run(&f, 120000);
	assert_true(fleet_is_over(&f));
	for (uint32_t e = 0; e < cfg.training.epochs; e++) {
		assert_int_equal(core_epoch(f.k.f.core, e)->images, 200);
		assert_int_equal(core_epoch(f.k.f.core, e)->eval_done, 7);
	}
	cluster_close(&f.k);
}

TEST(the_warm_start_does_not_wait_for_a_hanging_worker)
{
	struct core_config cfg = deadline_config(MODE_DOWNPOUR);

	cfg.leases.warm_start_updates = 10;
	a_hanging_worker_holds_up_no_worker(cfg);
}

TEST(a_sync_step_does_not_wait_for_a_hanging_worker)
{
	a_hanging_worker_holds_up_no_worker(deadline_config(MODE_SYNC));
}

/* The first worker stalls during its first grant. The second worker joins later, sends heartbeats
 * and never requests work, so it is idle, but not stalled yet. While the second worker is idle, the
 * server calls the first worker, which requests work again. */
TEST(a_stalled_worker_is_called_when_the_others_are_idle)
{
	struct core_config cfg = deadline_config(MODE_SYNC);
	struct fleet f;

	cfg.leases.first_deadline_ms = 900;
	cfg.sessions.suspect_ms = 200;
	cfg.sessions.dead_ms = 250;
	fleet_open(&f, cfg, 1, 200, HANGS);
	fleet_run(&f, 850);
	f.k.n = 2;
	cluster_join(&f.k, 1);
	/* so that act() takes this worker for one that waits for an answer, and sends no request */
	f.k.worker[1].request = 1000;
	fleet_run(&f, 500);
	assert_true(fixture_worker(&f.k.f, 1).stalled);
	assert_false(fixture_worker(&f.k.f, 2).stalled);
	f.k.worker[0].grant = (struct msg_grant){.request = f.k.worker[0].request};
	f.ms[0] = 30;
	fleet_run(&f, 50);
	/* not stalled any more, because it has delivered a push */
	assert_false(fixture_worker(&f.k.f, 1).stalled);
	fleet_run(&f, 120000);
	assert_true(fleet_is_over(&f));
	assert_int_equal(core_epoch(f.k.f.core, 1)->images, 200);
	cluster_close(&f.k);
}

TEST(ssp_does_not_wait_for_the_clock_of_a_hanging_worker)
{
	a_hanging_worker_holds_up_no_worker(deadline_config(MODE_SSP));
}

TEST(a_pass_does_not_wait_for_a_hanging_worker)
{
	a_hanging_worker_holds_up_no_worker(deadline_config(MODE_SANDBLASTER));
}

/* In this test a worker trains, but hangs when the server grants it a portion of the test set. */
TEST(an_evaluation_does_not_wait_for_a_hanging_worker)
{
	struct core_config cfg = deadline_config(MODE_DOWNPOUR);
	struct fleet f;

	fleet_open(&f, cfg, 3, 200, 30);
	while (f.k.worker[0].grant.kind != GRANT_EVAL && !fleet_is_over(&f))
		fleet_run(&f, 10);
	f.ms[0] = HANGS;
	f.ready_ms[0] = 0;
	fleet_run(&f, 120000);
	assert_true(fleet_is_over(&f));
	assert_int_equal(core_epoch(f.k.f.core, 1)->eval_done, 7);
	cluster_close(&f.k);
}

/* Worker 0 takes work and pushes a gradient of each batch in time, but claims weights of a version
 * that the server has never had, or of a version that is long past. The server rejects these
 * gradients as stale, so worker 0 delivers nothing. It must hold up the other workers no longer
 * than a worker that hangs. */
static void stale_pushes_hold_up_no_worker(struct core_config cfg, uint64_t claim)
{
	struct fleet f;

	cfg.limits.max_staleness = 1;
	fleet_open(&f, cfg, 3, 400, 30);
	f.ms[0] = 1000;
	f.claims = 1;
	f.claim = claim;
	fleet_run(&f, 120000);
	assert_true(f.pushed[0] > 0);
	assert_true(fleet_is_over(&f));
	assert_int_equal(core_epoch(f.k.f.core, cfg.training.epochs - 1)->images, 400);
	assert_false(fixture_worker(&f.k.f, 1).excluded);
	cluster_close(&f.k);
}

TEST(a_worker_whose_pushes_are_all_stale_holds_up_no_worker)
{
	static const enum mode modes[] = {MODE_DOWNPOUR, MODE_SSP, MODE_SYNC};

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		struct core_config cfg = deadline_config(modes[i]);

		if (modes[i] == MODE_DOWNPOUR)
			cfg.leases.warm_start_updates = 10;
		cfg.leases.first_deadline_ms = 5000;
		stale_pushes_hold_up_no_worker(cfg, 1ull << 40);
		stale_pushes_hold_up_no_worker(cfg, 0);
	}
}

/* In each step of sync, worker 0 holds its batch until the others have gone on without it. Its
 * gradient therefore comes too late for the step. None of its pushes has ever counted, so it holds
 * up the steps only once. */
TEST(late_work_alone_ends_no_stall)
{
	struct core_config cfg = deadline_config(MODE_SYNC);
	struct fleet f;

	cfg.leases.min_workers = 3;
	fleet_open(&f, cfg, 3, 20000, 30);
	f.ms[0] = 10000;
	fleet_run(&f, 60000);
	assert_true(f.pushed[0] > 2 && f.taken[0] == 0);
	assert_int_equal(core_stats(f.k.f.core)->stalls, 1);
	assert_true(fixture_worker(&f.k.f, 1).stalled);
	assert_true(core_stats(f.k.f.core)->version > 1000);
	cluster_close(&f.k);
}

/* Worker 0 contributes once, and then holds each batch until the others have gone on without it.
 * The time that it takes for such late work is no reason to wait longer for its next batch. */
TEST(late_work_does_not_extend_the_deadline_without_end)
{
	struct core_config cfg = deadline_config(MODE_SYNC);
	struct fleet f;

	cfg.leases.min_workers = 3;
	fleet_open(&f, cfg, 3, 20000, 30);
	fleet_run(&f, 40);
	assert_int_equal(f.taken[0], 1);
	f.ms[0] = 10000;
	fleet_run(&f, 200000);
	assert_true(core_stats(f.k.f.core)->stalls > 5);
	cluster_close(&f.k);
}

/* Each step of sync ends without worker 0, which is slow: its gradients come too late and are
 * rejected as stale. It has done its work, so it is not stalled, and a step still counts one
 * gradient less than it has members. */
TEST(a_worker_whose_steps_end_without_it_is_not_stalled)
{
	struct core_config cfg = deadline_config(MODE_SYNC);
	struct fleet f;

	cfg.sync.backup_workers = 1;
	cfg.rate.lr = 0.0001;
	fleet_open(&f, cfg, 3, 20000, 30);
	f.ms[0] = 300;
	fleet_run(&f, 20000);
	assert_false(fleet_is_over(&f));
	assert_true(f.pushed[0] > 30 && f.taken[0] <= 1);
	assert_int_equal(core_stats(f.k.f.core)->stalls, 0);
	assert_int_equal(core_stats(f.k.f.core)->steps_short, 0);
	assert_int_equal(core_stats(f.k.f.core)->superseded, f.pushed[0] - f.taken[0]);
	cluster_close(&f.k);
}

/* Each step of sync ends with the gradient of worker 1. The later gradients of worker 0 do not
 * count, and the server computes the deadlines of the other workers without the time that these
 * gradients took. Otherwise worker 0 could extend these deadlines. */
TEST(work_that_does_not_count_extends_no_other_deadline)
{
	struct core_config cfg = deadline_config(MODE_SYNC);
	const struct recent *fleet, *own;
	uint32_t slow = 0;
	struct fleet f;

	cfg.sync.backup_workers = 1;
	cfg.rate.lr = 0.0001;
	fleet_open(&f, cfg, 2, 20000, 100);
	f.ms[0] = 190;
	fleet_run(&f, 1500);
	assert_true(f.pushed[0] > 3 && f.taken[0] <= 1);
	own = &f.k.f.core->worker[0].pace.recent[0];
	assert_true(own->median_us >= 190000);
	fleet = &f.k.f.core->pace.recent[0];
	for (uint32_t i = 0; i < fleet->n; i++)
		slow += fleet->us[i] >= 190000;
	assert_true(slow <= f.taken[0]);
	cluster_close(&f.k);
}

/* As in the test above, but worker 0 delivers once, and then nothing. The others wait for it for
 * ten times the time of this delivery, but at least for 6 s. They do not wait three times as long,
 * although worker 0 has delivered fewer than PACE_OWN times. */
TEST(a_single_slow_delivery_does_not_triple_the_deadline)
{
	struct core_config cfg = deadline_config(MODE_SYNC);
	struct fleet f;

	cfg.sync.backup_workers = 1;
	cfg.rate.lr = 0.0001;
	fleet_open(&f, cfg, 2, 20000, 30);
	f.ms[0] = 500;
	fleet_run(&f, 600);
	assert_int_equal(f.pushed[0], 1);
	f.ms[0] = HANGS;
	f.ready_ms[0] = 0;
	fleet_run(&f, 7000);
	assert_int_equal(fixture_worker(&f.k.f, 1).stalled, 1);
	cluster_close(&f.k);
}

TEST(without_copies_the_deadline_is_enough)
{
	struct core_config cfg = deadline_config(MODE_SANDBLASTER);

	cfg.leases.backup_copies = BACKUP_NONE;
	a_hanging_worker_holds_up_no_worker(cfg);
	cfg = deadline_config(MODE_DOWNPOUR);
	cfg.leases.backup_copies = BACKUP_NONE;
	a_hanging_worker_holds_up_no_worker(cfg);
}

/* In this test a worker has delivered all its work, and hangs before its next request. */
static void a_worker_that_does_not_ask_again_holds_up_no_worker(enum mode mode)
{
	struct fleet f;

	fleet_open(&f, deadline_config(mode), 3, 200, 30);
	for (int i = 0; i < 1000 && f.k.f.core->worker[0].pace.left == 0; i++)
		fleet_run(&f, 10);
	while (f.k.f.core->worker[0].pace.left) {
		/* the other workers hang until worker 0 has delivered all its work */
		f.ms[1] = f.ms[2] = HANGS;
		f.ready_ms[1] = f.ready_ms[2] = 0;
		fleet_run(&f, 10);
	}
	f.ms[1] = f.ms[2] = 30;
	f.k.worker[0].grant = (struct msg_grant){.request = f.k.worker[0].request};
	/* so that act() takes this worker for one that waits for an answer, and sends no request */
	f.k.worker[0].request += 1000;
	fleet_run(&f, 120000);
	assert_true(fleet_is_over(&f));
	assert_int_equal(core_epoch(f.k.f.core, 1)->images, 200);
	cluster_close(&f.k);
}

TEST(a_worker_that_does_not_ask_again_is_stalled)
{
	a_worker_that_does_not_ask_again_holds_up_no_worker(MODE_SSP);
	a_worker_that_does_not_ask_again_holds_up_no_worker(MODE_SYNC);
	a_worker_that_does_not_ask_again_holds_up_no_worker(MODE_DOWNPOUR);
}

/* ---- slow workers --------------------------------------------------------------------------- */

/* Returns a configuration with the defaults of cnn-ps (server/core/options.def) that matter for
 * slow workers. */
static struct core_config defaults(enum mode mode)
{
	struct core_config cfg = deadline_config(mode);

	cfg.limits.max_staleness = 0;
	cfg.rate.staleness_scaling = STALE_RELATIVE;
	cfg.leases.max_batches = 10;
	cfg.ssp.bound = 4;
	cfg.leases.warm_start_ramp = 40;
	cfg.sessions.suspect_ms = 2000;
	cfg.sessions.dead_ms = 6000;
	cfg.easgd.beta = 0.9;
	return cfg;
}

static void assert_at_work(const struct fleet *f)
{
	for (uint32_t i = 0; i < f->k.n; i++) {
		struct worker_view v = fixture_worker(&f->k.f, i + 1);

		assert_false(v.stalled);
		assert_false(v.excluded);
		assert_true(v.state == SESSION_LIVE);
	}
}

/* Train an epoch of 600 batches. Two workers need `each_ms` for a batch, and one worker needs 20
 * times as long. The slow worker must deliver some of the batches. */
static void a_slow_worker_contributes(enum mode mode, uint64_t each_ms)
{
	struct core_config cfg = defaults(mode);
	struct fleet f;

	cfg.rate.lr = 0.0001;
	fleet_open(&f, cfg, 3, 6000, each_ms);
	f.ms[0] = 20 * each_ms;
	for (int i = 0; i < 40000 && !fleet_is_over(&f); i++) {
		fleet_run(&f, each_ms);
		if (!fleet_is_over(&f))
			assert_at_work(&f);
	}
	assert_true(fleet_is_over(&f));
	print_message("mode %d: %u of %u pushes of the slow one count, %llu were stale\n", mode,
		f.taken[0], f.pushed[0],
		(unsigned long long)core_stats(f.k.f.core)->rejected[REJECT_STALE]);
	assert_true(f.pushed[0] >= 2);
	assert_true(2 * f.taken[0] > f.pushed[0]);
	assert_int_equal(core_stats(f.k.f.core)->rejected[REJECT_STALE], 0);
	assert_int_equal(core_stats(f.k.f.core)->stalls, 0);
	cluster_close(&f.k);
}

TEST(a_worker_20_times_slower_contributes_and_is_never_stalled)
{
	static const enum mode modes[] = {MODE_DOWNPOUR, MODE_SSP, MODE_SYNC, MODE_EASGD};

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		a_slow_worker_contributes(modes[i], 50);
		a_slow_worker_contributes(modes[i], 500);
	}
}

/* Worker 0 takes the first work of the run and delivers nothing. Before each deadline, worker 0
 * requests work again. The other workers wait for this work for --first-deadline-ms, but only once
 * in the run. */
TEST(the_first_work_of_a_run_is_waited_for_once)
{
	static const enum mode modes[] = {MODE_DOWNPOUR, MODE_SSP, MODE_SYNC};

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		struct core_config cfg = deadline_config(modes[i]);
		struct fleet f;

		if (modes[i] != MODE_SYNC)
			cfg.leases.warm_start_updates = 10;
		fleet_open(&f, cfg, 3, 20000, 30);
		f.ms[0] = HANGS;
		for (int s = 0; s < 36; s += 4) {
			fleet_run(&f, 4000);
			cluster_request(&f.k, 0);
		}
		assert_true(fixture_worker(&f.k.f, 1).stalled);
		assert_true(core_stats(f.k.f.core)->version > 50);
		cluster_close(&f.k);
	}
}

/* All workers need longer for their first work than --first-deadline-ms, so all are stalled. The
 * first delivery shows the server how long such work usually takes. Therefore the other workers are
 * not stalled any more, although their gradients come too late for the first step. */
TEST(the_first_delivery_ends_the_stalls_of_workers_that_are_as_slow)
{
	struct core_config cfg = deadline_config(MODE_SYNC);
	struct fleet f;

	cfg.leases.first_deadline_ms = 300;
	fleet_open(&f, cfg, 3, 400, 1000);
	f.ms[1] = 1100;
	f.ms[2] = 1200;
	fleet_run(&f, 900);
	assert_int_equal(core_stats(f.k.f.core)->stalls, 3);
	fleet_run(&f, 200);
	assert_int_equal(core_stats(f.k.f.core)->version, 1);
	assert_at_work(&f);
	fleet_run(&f, 10000);
	assert_at_work(&f);
	assert_int_equal(core_stats(f.k.f.core)->stalls, 3);
	assert_true(f.taken[1] > 3 && f.taken[2] > 3);
	cluster_close(&f.k);
}

/* ---- one worker, step by step ---------------------------------------------------------------- */

static void tick_with_heartbeats(struct cluster *k, uint64_t ms)
{
	for (uint32_t i = 0; i < k->n; i++)
		fixture_heartbeat(&k->f, k->worker[i].peer + 1, k->worker[i].s);
	fixture_tick(&k->f, ms);
	cluster_receive(k);
}

static void pass(struct cluster *k, uint64_t ms)
{
	for (; ms >= 100; ms -= 100)
		tick_with_heartbeats(k, 100);
	tick_with_heartbeats(k, ms);
}

/* Open a core with one worker. The worker has delivered `n` batches, each after `ms` milliseconds,
 * and holds one of the last two batches of the epoch. */
static void open_after(struct cluster *k, uint32_t n, uint64_t ms)
{
	struct core_config cfg = deadline_config(MODE_DOWNPOUR);

	cfg.leases.max_batches = 1;
	cfg.leases.backup_copies = BACKUP_NONE;
	cluster_open(k, cfg, 1, 10 * (n + 2), cluster_ones);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(cluster_request(k, 0), 1);
		pass(k, ms);
		assert_int_equal(cluster_push(k, 0), REJECT_NONE);
	}
	assert_int_equal(cluster_request(k, 0), 1);
	assert_int_equal(k->f.core->leases.n_free, 1);
}

TEST(a_grant_ends_after_ten_times_its_workers_median)
{
	struct cluster k;

	open_after(&k, 4, 700);
	pass(&k, 7000);
	assert_int_equal(k.f.core->leases.n_free, 1);
	assert_false(fixture_worker(&k.f, 1).stalled);
	pass(&k, 100);
	assert_int_equal(k.f.core->leases.n_free, 2);
	assert_int_equal(core_stats(k.f.core)->expired, 1);
	cluster_close(&k);
}

TEST(a_grant_lasts_two_seconds_at_least)
{
	struct cluster k;

	open_after(&k, 4, 5);
	pass(&k, 2000);
	assert_int_equal(k.f.core->leases.n_free, 1);
	pass(&k, 100);
	assert_int_equal(k.f.core->leases.n_free, 2);
	cluster_close(&k);
}

TEST(before_any_delivery_the_first_deadline_holds)
{
	struct cluster k;

	open_after(&k, 0, 0);
	pass(&k, 30000);
	assert_int_equal(k.f.core->leases.n_free, 1);
	pass(&k, 100);
	assert_int_equal(k.f.core->leases.n_free, 2);
	cluster_close(&k);
}

TEST(a_late_first_result_counts)
{
	struct cluster k;

	open_after(&k, 4, 5);
	pass(&k, 2500);
	assert_int_equal(core_stats(k.f.core)->expired, 1);
	assert_int_equal(cluster_push(&k, 0), REJECT_NONE);
	assert_int_equal(k.f.core->leases.n_done, 5);
	assert_int_equal(k.f.core->leases.n_free, 1);
	cluster_close(&k);
}

TEST(a_worker_that_never_delivers_is_stalled_until_it_delivers)
{
	struct cluster k;

	open_after(&k, 4, 5);
	pass(&k, 6000);
	assert_false(fixture_worker(&k.f, 1).stalled);
	pass(&k, 100);
	assert_true(fixture_worker(&k.f, 1).stalled);
	assert_int_equal(fixture_worker(&k.f, 1).state, SESSION_LIVE);
	assert_int_equal(core_live_workers(k.f.core), 0);
	assert_int_equal(core_stats(k.f.core)->stalls, 1);
	pass(&k, 60000); /* for 60 s worker 0 sends heartbeats and delivers nothing */
	assert_true(fixture_worker(&k.f, 1).stalled);
	cluster_push(&k, 0);
	assert_false(fixture_worker(&k.f, 1).stalled);
	assert_int_equal(core_live_workers(k.f.core), 1);
	cluster_close(&k);
}

/* A worker that only sends LEASE, HELLO or PULL delivers nothing, so it becomes stalled. */
TEST(a_worker_that_only_sends_requests_is_stalled)
{
	struct cluster k;

	open_after(&k, 4, 5);
	for (int i = 0; i < 9; i++) {
		struct msg m = fixture_resume(k.worker[0].s, k.worker[0].seq, k.worker[0].seq);

		m.hello.data = k.data;
		pass(&k, 900);
		fixture_message(&k.f, k.worker[0].peer, &m);
		fixture_pull(&k.f, k.worker[0].peer, k.worker[0].s, WEIGHTS_CURRENT);
		cluster_request(&k, 0);
	}
	assert_true(fixture_worker(&k.f, 1).stalled);
	cluster_close(&k);
}

/* A worker that has joined, or that has delivered all its work, must request a lease in time. */
TEST(a_worker_that_never_asks_is_stalled_until_it_asks)
{
	struct core_config cfg = deadline_config(MODE_DOWNPOUR);
	struct cluster k;

	cfg.leases.min_workers = 2;
	cluster_open(&k, cfg, 1, 60, cluster_ones);
	pass(&k, 30000); /* --first-deadline-ms */
	assert_false(fixture_worker(&k.f, 1).stalled);
	assert_int_equal(core_live_workers(k.f.core), 1);
	pass(&k, 100);
	assert_true(fixture_worker(&k.f, 1).stalled);
	assert_int_equal(core_live_workers(k.f.core), 0);
	cluster_join(&k, k.n++);
	/* the server grants nothing, because the stalled worker does not count for --min-workers */
	assert_int_equal(cluster_request(&k, 1), 0);
	assert_int_equal(cluster_request(&k, 0), 1);
	assert_false(fixture_worker(&k.f, 1).stalled);
	assert_int_equal(core_live_workers(k.f.core), 2);
	assert_true(has_work(&k.worker[1]));
	cluster_close(&k);
}

TEST(waiting_for_work_or_pushing_without_leases_is_no_stall)
{
	struct core_config cfg = deadline_config(MODE_DOWNPOUR);
	struct cluster k;
	struct core_fixture f;

	cfg.leases.min_workers = 2;
	cluster_open(&k, cfg, 1, 6000, cluster_ones);
	assert_int_equal(cluster_request(&k, 0), 0);
	pass(&k, 200000);
	assert_false(fixture_worker(&k.f, 1).stalled);
	cluster_join(&k, k.n++); /* this worker pushes batches without a lease */
	for (uint32_t i = 0; i < 20; i++) {
		k.worker[1].grant =
			(struct msg_grant){.kind = GRANT_TRAIN, .work = {0, 500 + i, 1}};
		assert_int_equal(cluster_push(&k, 1), REJECT_NONE);
		pass(&k, 5000);
	}
	assert_false(fixture_worker(&k.f, 2).stalled);
	cluster_close(&k);

	cfg = fixture_config(); /* the run has no data set, so it has no leases */
	fixture_open(&f, cfg);
	struct stamp s = fixture_join(&f, 9, "");
	for (int i = 0; i < 2000; i++) {
		fixture_heartbeat(&f, 9, s);
		fixture_tick(&f, 100);
	}
	assert_false(fixture_worker(&f, 1).stalled);
	fixture_close(&f);
}

/* A stalled worker that requests work gets a shadow grant: other workers may get the same work. */
TEST(a_stalled_worker_gets_work_that_others_get_too)
{
	struct cluster k;

	open_after(&k, 4, 5);
	pass(&k, 7000);
	assert_int_equal(cluster_request(&k, 0), 1);
	assert_int_equal(k.f.core->leases.n_free, 2);
	cluster_join(&k, k.n++);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(cluster_request(&k, 1), 1);
		assert_int_equal(cluster_push(&k, 1), REJECT_NONE);
	}
	assert_int_equal(core_epoch(k.f.core, 0)->images, 60);
	assert_int_equal(cluster_push(&k, 0), REJECT_WORK);
	assert_int_equal(core_stats(k.f.core)->superseded, 1);
	assert_false(fixture_worker(&k.f, 1).stalled);
	cluster_close(&k);
}

/* A worker that sends the results of two done batches again makes no progress with its current
 * grant. */
TEST(the_same_result_again_is_no_delivery)
{
	struct cluster k;

	open_after(&k, 4, 5);
	for (int i = 0; i < 7; i++) {
		pass(&k, 1000);
		struct msg_grant own = k.worker[0].grant;
		k.worker[0].grant.work.first = own.work.first ? 0 : 1;
		assert_int_equal(cluster_push(&k, 0), REJECT_WORK);
		k.worker[0].grant = own;
	}
	assert_true(fixture_worker(&k.f, 1).stalled);
	cluster_close(&k);
}

/* A result that the server rejects does not count as a delivery. In this test worker 0 requests the
 * same portion again and again, and gets it, because worker 1 has not asked for work yet. */
TEST(a_result_that_is_not_finite_is_no_delivery)
{
	struct core_config cfg = deadline_config(MODE_DOWNPOUR);
	struct cluster k;

	cfg.leases.eval_images = 7; /* the test set has one portion */
	cfg.leases.first_deadline_ms = 300;
	cfg.training.epochs = 1;
	cluster_open(&k, cfg, 2, 10, cluster_ones);
	assert_int_equal(cluster_request(&k, 0), 1);
	pass(&k, 50);
	cluster_push(&k, 0);
	cluster_request(&k, 0);
	for (int i = 0; i < 20 && !fixture_worker(&k.f, 1).stalled; i++) {
		struct cluster_worker *h = &k.worker[0];
		struct msg m = {.type = MSG_RESULT};

		assert_int_equal(h->grant.kind, GRANT_EVAL);
		m.result = (struct msg_result){.stamp = h->s,
			.eval_id = h->grant.eval_id,
			.eval_count = h->grant.eval_count,
			.loss_sum = (double)INFINITY};
		pass(&k, 100);
		fixture_message(&k.f, h->peer, &m);
		cluster_request(&k, 0);
	}
	assert_true(fixture_worker(&k.f, 1).stalled);
	cluster_request(&k, 1);
	assert_int_equal(k.worker[1].grant.kind, GRANT_EVAL);
	cluster_evaluate(&k, 1);
	assert_int_equal(core_epoch(k.f.core, 0)->eval_done, 7);
	cluster_close(&k);
}

/* ---- transfers ------------------------------------------------------------------------------- */

static void report_progress(struct cluster *k, uint64_t bytes)
{
	fixture_step(&k->f,
		&(struct event){.kind = EVENT_PROGRESS, .peer = k->worker[0].peer, .bytes = bytes});
}

/* Let `ms` milliseconds pass, while `bytes` bytes move on the worker's connection in each tenth of
 * a second. */
static void transfer(struct cluster *k, uint64_t ms, uint64_t bytes)
{
	for (; ms; ms -= 100) {
		tick_with_heartbeats(k, 100);
		report_progress(k, bytes);
	}
}

/* Over 1 Mbit/s, 1.7 MB of weights take 14 s, and a gradient of the same size takes 14 s, too.
 * During these 28 s the worker must keep its grant, although the deadline is only 2 s. */
TEST(a_transfer_that_progresses_is_not_cut)
{
	struct core_config cfg = deadline_config(MODE_DOWNPOUR);
	struct cluster k = {.n = 1};

	cfg.n_params = 425000;
	cfg.leases.first_deadline_ms = 2000;
	fixture_open(&k.f, cfg);
	k.worker[0].peer = 9;
	k.worker[0].s = fixture_join(&k.f, 9, "");
	fixture_lease(&k.f, 9, k.worker[0].s, 1);
	k.worker[0].request = 1;
	/* with n = 0, cluster_receive ignores grants: its workers have no room for weights of this
	 * size */
	k.n = 0;
	for (uint64_t ms = 0; ms < 28000; ms += 100) {
		fixture_heartbeat(&k.f, 10, k.worker[0].s);
		tick_with_heartbeats(&k, 100);
		report_progress(&k, 12500);
	}
	assert_int_equal(core_stats(k.f.core)->expired, 0);
	for (uint64_t ms = 0; ms < 2200; ms += 100) {
		fixture_heartbeat(&k.f, 10, k.worker[0].s);
		tick_with_heartbeats(&k, 100); /* the worker hangs */
	}
	assert_int_equal(core_stats(k.f.core)->expired, 1);
	cluster_close(&k);
}

TEST(a_trickle_does_not_hold_a_grant)
{
	struct cluster k;

	open_after(&k, 4, 5);
	/* the bytes move at a tenth of the rate that would extend the deadline by the time of the
	 * transfer */
	transfer(&k, 3000, 80);
	assert_int_equal(core_stats(k.f.core)->expired, 1);
	cluster_close(&k);
}

/* Transferred bytes extend the deadline only up to the number of bytes that the work needs, no
 * matter how fast they move. */
TEST(bytes_without_end_do_not_hold_a_grant)
{
	struct cluster k;

	open_after(&k, 4, 5);
	transfer(&k, 20000, 100000);
	assert_int_equal(core_stats(k.f.core)->expired, 1);
	assert_true(fixture_worker(&k.f, 1).stalled);
	cluster_close(&k);
}

/* A worker asks for work again and again, moves the bytes of a delivery each time, and delivers
 * nothing. The bytes that move under all these grants extend the deadline only once. */
TEST(bytes_of_many_grants_without_a_delivery_hold_up_nobody)
{
	struct cluster k;

	open_after(&k, 4, 5);
	for (int i = 0; i < 80; i++) {
		for (int ms = 0; ms < 500; ms += 100)
			transfer(&k, 100, 1000);
		(void)cluster_request(&k, 0);
	}
	assert_true(fixture_worker(&k.f, 1).stalled);
	cluster_close(&k);
}

/* While a worker waits for the server's disk, the deadline of its work does not advance. */
TEST(a_worker_that_waits_for_our_disk_is_not_stalled)
{
	struct core_config cfg = deadline_config(MODE_DOWNPOUR);
	struct cluster k;

	cfg.leases.max_batches = 100;
	cfg.sessions.replay_window = 4;
	cfg.durable = 1;
	cluster_open(&k, cfg, 1, 100, cluster_ones);
	assert_int_equal(cluster_request(&k, 0), 1);
	for (uint32_t i = 0; i < 4; i++) {
		pass(&k, 10);
		k.worker[0].grant.work = (struct work){0, i, 1};
		assert_int_equal(cluster_push(&k, 0), REJECT_NONE);
	}
	pass(&k, 20000); /* for 20 s, the snapshot does not become durable */
	assert_int_equal(core_stats(k.f.core)->expired, 0);
	fixture_durable(&k.f);
	pass(&k, 2200);
	assert_int_equal(core_stats(k.f.core)->expired, 1);
	cluster_close(&k);
}

/* After a restart, the server has ended the grant of a worker that did not return in time. The
 * worker may still compute the batches of this grant. But if the worker delivers nothing for too
 * long, it counts as stalled. */
TEST(a_worker_that_comes_back_and_never_asks_is_stalled)
{
	struct core_config cfg = deadline_config(MODE_DOWNPOUR);
	struct cluster k;

	cfg.durable = 1;
	cfg.leases.first_deadline_ms = 300;
	cluster_open(&k, cfg, 1, 100, cluster_ones);
	assert_int_equal(cluster_request(&k, 0), 1);
	fixture_restart(&k.f);
	for (int i = 0; i < 20; i++)
		/* all ticks together last longer than dead_ms, so the grant ends */
		fixture_tick(&k.f, 100);
	struct msg m = fixture_resume(k.worker[0].s, 0, 0);
	m.hello.data = k.data;
	fixture_message(&k.f, k.worker[0].peer, &m);
	k.worker[0].s = fixture_sent(&k.f, k.worker[0].peer, MSG_WELCOME)->welcome.stamp;
	pass(&k, 10000);
	assert_false(fixture_worker(&k.f, 1).stalled);
	pass(&k, 1000);
	assert_true(fixture_worker(&k.f, 1).stalled);
	cluster_close(&k);
}

/* A worker that pushes only work that it was not granted does not wait for the disk, although it
 * has pushed as much as it may retain. */
TEST(a_worker_whose_pushes_are_all_rejected_is_stalled)
{
	struct core_config cfg = deadline_config(MODE_DOWNPOUR);
	struct cluster k;

	cfg.leases.first_deadline_ms = 1000;
	cfg.sessions.replay_window = 4;
	cfg.durable = 1;
	cluster_open(&k, cfg, 1, 100, cluster_ones);
	for (uint64_t seq = 1; seq <= 40; seq++) {
		struct msg m = fixture_push(k.worker[0].s, seq);

		m.push.work = (struct work){0, 100, 1};
		fixture_rejected(&k.f, k.worker[0].peer, &m, REJECT_SHAPE);
		pass(&k, 100);
	}
	assert_true(fixture_worker(&k.f, 1).stalled);
	cluster_close(&k);
}

/* A worker sends many pushes, but all of them are stale. They do not make a stalled worker active,
 * and they do not stop its clock, because the worker does not wait for the disk. */
TEST(stale_pushes_end_no_stall_and_stop_no_clock)
{
	struct core_config cfg = deadline_config(MODE_DOWNPOUR);
	struct cluster k;

	cfg.leases.first_deadline_ms = 1000;
	cfg.sessions.replay_window = 4;
	cfg.durable = 1;
	cluster_open(&k, cfg, 1, 100, cluster_ones);
	for (uint64_t request = 1; request <= 80; request++) {
		assert_int_equal(cluster_request(&k, 0), 1);
		k.worker[0].version = 1ull << 40;
		assert_int_equal(cluster_push(&k, 0), REJECT_STALE);
		pass(&k, 50);
	}
	assert_true(fixture_worker(&k.f, 1).stalled);
	assert_false(fixture_worker(&k.f, 1).excluded);
	assert_int_equal(cluster_request(&k, 0), 1);
	assert_int_equal(cluster_push(&k, 0), REJECT_NONE);
	assert_false(fixture_worker(&k.f, 1).stalled);
	cluster_close(&k);
}

/* After a restart, the server withdraws the grant of a worker that has not returned. Later the
 * worker returns, and computes its old grant. */
TEST(the_time_that_a_worker_needs_to_come_back_is_not_owed)
{
	struct core_config cfg = deadline_config(MODE_DOWNPOUR);
	struct cluster k;

	cfg.durable = 1;
	cfg.leases.first_deadline_ms = 900;
	cluster_open(&k, cfg, 1, 100, cluster_ones);
	assert_int_equal(cluster_request(&k, 0), 1);
	fixture_restart(&k.f);
	for (int i = 0; i < 20; i++)
		/* all ticks together are longer than dead_ms and than the deadline */
		fixture_tick(&k.f, 100);
	struct msg m = fixture_resume(k.worker[0].s, 0, 0);
	m.hello.data = k.data;
	fixture_message(&k.f, k.worker[0].peer, &m);
	k.worker[0].s = fixture_sent(&k.f, k.worker[0].peer, MSG_WELCOME)->welcome.stamp;
	pass(&k, 1000); /* meanwhile, the worker computes its old grant */
	assert_false(fixture_worker(&k.f, 1).stalled);
	assert_int_equal(fixture_worker(&k.f, 1).owes_ms, 0);
	assert_int_equal(core_stats(k.f.core)->stalls, 0);
	assert_int_equal(cluster_request(&k, 0), 1);
	pass(&k, 800);
	assert_false(fixture_worker(&k.f, 1).stalled);
	pass(&k, 200);
	assert_true(fixture_worker(&k.f, 1).stalled);
	cluster_close(&k);
}

/* Let all workers send heartbeats for `ms` milliseconds without replies: in each 10 ms, replies
 * wait for the disk during `held_ms`. */
static void fleet_hold(struct fleet *f, uint64_t ms, uint64_t held_ms)
{
	for (uint64_t end = f->k.f.now_ms + ms; f->k.f.now_ms < end;) {
		for (uint32_t i = 0; i < f->k.n; i++)
			fixture_heartbeat(&f->k.f, f->k.worker[i].peer + 1, f->k.worker[i].s);
		f->k.f.now_ms += 10;
		fixture_step(&f->k.f, &(struct event){.kind = EVENT_TICK, .held_ms = held_ms});
	}
}

TEST(time_in_which_replies_wait_for_the_disk_does_not_count)
{
	const struct core_stats *t;
	struct fleet f;

	fleet_open(&f, deadline_config(MODE_SYNC), 3, 20000, 30);
	fleet_run(&f, 1000);
	t = core_stats(f.k.f.core);
	uint64_t steps_short = t->steps_short;
	fleet_hold(&f, 60000, 10);
	assert_true(t->expired == 0 && t->stalls == 0);
	/* any value of held_ms must be safe, because it can come from a write-ahead log */
	fleet_hold(&f, 10000, UINT64_MAX);
	assert_true(t->expired == 0 && t->stalls == 0);
	fleet_run(&f, 1000);
	assert_true(t->expired == 0 && t->stalls == 0 && t->steps_short == steps_short);
	fleet_hold(&f, 3000, 8); /* only a fifth of these 3 s counts */
	assert_true(t->expired == 0 && t->stalls == 0);
	fleet_hold(&f, 60000, 8);
	assert_int_equal(t->stalls, 3);
	cluster_close(&f.k);
}

/* Bytes of the worker move while replies wait for the disk, and the shell reports these bytes every
 * `ticks` ticks. The core must extend the deadline once for the time in which replies wait and
 * bytes move, not twice. */
TEST(held_time_is_not_counted_as_a_transfer_too)
{
	for (uint64_t ticks = 1; ticks <= 5; ticks += 4) {
		struct cluster k;

		open_after(&k, 4, 5);
		pass(&k, 1000);
		report_progress(
			&k, 1); /* from now on, the core measures the time until the next report */
		for (uint64_t i = 1; i <= 20; i++) {
			fixture_heartbeat(&k.f, k.worker[0].peer + 1, k.worker[0].s);
			k.f.now_ms += 100;
			fixture_step(&k.f, &(struct event){.kind = EVENT_TICK, .held_ms = 100});
			if (i % ticks == 0)
				report_progress(&k, 900 * ticks);
		}
		assert_int_equal(fixture_worker(&k.f, 1).owes_ms, 1000);
		pass(&k, 1000);
		assert_int_equal(core_stats(k.f.core)->expired, 0);
		pass(&k, 100);
		assert_int_equal(core_stats(k.f.core)->expired, 1);
		cluster_close(&k);
	}
}

/* ---- the first evaluation -------------------------------------------------------------------- */

/* Opens a run of two workers whose test set is one portion. Both workers train the first epoch and
 * need 10 ms per batch. */
static void open_trained(struct fleet *f)
{
	struct core_config cfg = deadline_config(MODE_DOWNPOUR);

	cfg.leases.eval_images = 7;
	fleet_open(f, cfg, 2, 40, 10);
	for (uint32_t i = 0; core_training_epoch(f->k.f.core) == 0; i = !i) {
		if (!has_work(&f->k.worker[i]))
			cluster_request(&f->k, i);
		fixture_tick(&f->k.f, 10);
		if (has_work(&f->k.worker[i]))
			push_first(f, i);
	}
}

/* A worker takes the only piece of the test set again and again, and reports no result. Each time
 * the core must grant the piece to the other worker next. */
TEST(a_piece_that_was_given_back_goes_to_another_worker)
{
	struct fleet f;

	open_trained(&f);
	for (int n = 0; n < 3; n++) {
		cluster_request(&f.k, 0);
		assert_int_equal(f.k.worker[0].grant.kind, GRANT_EVAL);
		cluster_request(&f.k, 0);
		assert_int_equal(f.k.worker[0].grant.kind, GRANT_TRAIN);
		assert_int_equal(f.k.f.core->leases.portion[0], BATCH_FREE);
	}
	cluster_request(&f.k, 1);
	assert_int_equal(f.k.worker[1].grant.kind, GRANT_EVAL);
	cluster_evaluate(&f.k, 1);
	assert_true(core_is_evaluated(f.k.f.core, 0));
	cluster_close(&f.k);
}

/* No worker has evaluated before, so the time of training shows that the piece is late. */
TEST(the_first_piece_is_late_after_the_time_of_training)
{
	struct fleet f;
	uint64_t begin;

	open_trained(&f);
	cluster_request(&f.k, 0);
	assert_int_equal(f.k.worker[0].grant.kind, GRANT_EVAL);
	begin = f.k.f.now_ms;
	do {
		for (uint32_t i = 0; i < 2; i++)
			fixture_heartbeat(&f.k.f, f.k.worker[i].peer + 1, f.k.worker[i].s);
		fixture_tick(&f.k.f, 10);
		cluster_request(&f.k, 1);
	} while (f.k.worker[1].grant.kind != GRANT_EVAL);
	assert_in_range(f.k.f.now_ms - begin, 2000, 2100);
	cluster_close(&f.k);
}
