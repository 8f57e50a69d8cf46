/*
 * Proves that workers that join again and again do not delay other workers for ever
 * (server/core/pace.h, "Processes"): what a worker owes is a property of its slot, not of its
 * process, and free work goes to the worker that has waited longest. Time is virtual.
 * Covers attack A14 of docs/faults.md.
 */
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

#define TICK_MS  10u
#define PIECE_MS 300u /* the time that an honest worker needs for a piece of work */

static struct core_config rejoin_config(enum mode mode)
{
	struct core_config cfg = fixture_training();

	cfg.training.mode = mode;
	cfg.durable = 0;
	cfg.limits.max_staleness = 1000000;
	cfg.leases.max_batches = 1;
	cfg.leases.eval_images = 3;
	cfg.leases.backup_copies = BACKUP_LATE;
	cfg.ssp.bound = 3;
	cfg.rate.lr = 0.01;
	cfg.proof_key[0] = 1;
	return cfg;
}

/* Starts a new process of worker `i` on a new connection. If `name` is 1, the new process has the
 * name of the previous process. */
static void join_once_more(struct cluster *k, uint32_t i, int name)
{
	struct cluster_worker *h = &k->worker[i];
	uint32_t peer = h->peer + 1000;
	struct msg m = fixture_hello("");

	m.hello.name[0] = (char)(name ? 'A' + (char)i : 0);
	m.hello.data = k->data;
	*h = (struct cluster_worker){.peer = peer};
	fixture_message(&k->f, peer, &m);
	const struct msg *welcome = fixture_sent(&k->f, peer, MSG_WELCOME);
	assert_non_null(welcome);
	h->s = welcome->welcome.stamp;
	cluster_receive(k);
}

static void open_named(struct cluster *k, struct core_config cfg, uint32_t n, uint32_t n_train)
{
	cluster_open(k, cfg, 0, n_train, cluster_ones);
	k->n = n;
	for (uint32_t i = 0; i < n; i++) {
		k->worker[i].peer = 100 + 10 * i;
		join_once_more(k, i, 1);
	}
}

static void let_pass(struct cluster *k, uint64_t ms)
{
	for (uint64_t at = 0; at < ms; at += TICK_MS) {
		for (uint32_t i = 0; i < k->n; i++)
			fixture_heartbeat(&k->f, k->worker[i].peer + 1, k->worker[i].s);
		fixture_tick(&k->f, TICK_MS);
		cluster_receive(k);
	}
}

static int is_stalled(const struct cluster *k, uint32_t i)
{
	return fixture_worker(&k->f, k->worker[i].s.worker).stalled;
}

/* The first `bad` of `n` workers take turns: every `ms`, the next of them joins again and requests
 * work that it never delivers. Returns the time that the other workers need to end the run. */
static uint64_t run_with_rejoins(struct core_config cfg, uint32_t bad, uint32_t n, uint64_t ms)
{
	struct cluster k;
	uint64_t free_at[CLUSTER_WORKERS] = {0}, begin, end;
	uint32_t rejoins = 0;

	open_named(&k, cfg, n, 300);
	begin = k.f.now_ms;
	for (uint32_t i = 0; i < bad; i++)
		(void)cluster_request(&k, i);
	while (k.f.core->run.ending != END_OVER) {
		assert_true(k.f.now_ms - begin < 60000);
		for (uint32_t i = bad; i < n; i++) {
			struct cluster_worker *h = &k.worker[i];
			int waits = h->request && h->grant.request != h->request;

			if (waits)
				free_at[i] = k.f.now_ms + PIECE_MS;
			if (k.f.now_ms < free_at[i] || k.f.core->run.ending == END_OVER)
				continue;
			(void)cluster_act(&k, i);
			free_at[i] = k.f.now_ms + PIECE_MS;
		}
		if (k.f.core->run.ending == END_OVER)
			break;
		if (k.f.now_ms >= begin + (rejoins + 1) * ms) {
			uint32_t i = rejoins++ % bad;

			join_once_more(&k, i, 1);
			(void)cluster_request(&k, i);
		}
		let_pass(&k, TICK_MS);
	}
	end = k.f.now_ms - begin;
	cluster_close(&k);
	return end;
}

TEST(workers_that_join_again_and_again_hold_up_no_run)
{
	static const enum mode modes[] = {MODE_DOWNPOUR, MODE_EASGD, MODE_SSP, MODE_SYNC};

	for (size_t m = 0; m < 4; m++)
		for (uint64_t ms = 200; ms <= 3200; ms *= 2) {
			(void)run_with_rejoins(rejoin_config(modes[m]), 1, 4, ms);
			(void)run_with_rejoins(rejoin_config(modes[m]), 2, 5, ms);
		}
}

TEST(a_buffer_does_not_wait_for_a_worker_that_joins_again_and_again)
{
	for (uint32_t bad = 1; bad <= 2; bad++) {
		struct core_config cfg = rejoin_config(MODE_DOWNPOUR);

		cfg.push.aggregate = AGGREGATE_MEDIAN;
		cfg.push.buffer_size = 3 + bad;
		(void)run_with_rejoins(cfg, bad, 3 + bad, 1500);
	}
}

TEST(free_work_goes_to_the_worker_that_has_waited_longest)
{
	struct cluster k;

	open_named(&k, rejoin_config(MODE_DOWNPOUR), 3, 10);
	assert_int_equal(cluster_request(&k, 0), 1);
	assert_int_equal(cluster_request(&k, 2), 0);
	let_pass(&k, 200);
	assert_int_equal(cluster_request(&k, 1), 0);
	let_pass(&k, 200);
	join_once_more(&k, 0, 1);
	cluster_granted(&k, 2, 0, 1);
	cluster_close(&k);
}

/* Two workers: worker 0 has delivered a batch, and worker 1 has work. */
static void open_with_debtor(struct cluster *k)
{
	open_named(k, rejoin_config(MODE_DOWNPOUR), 2, 300);
	assert_int_equal(cluster_request(k, 0), 1);
	assert_int_equal(cluster_push(k, 0), REJECT_NONE);
	assert_int_equal(cluster_request(k, 1), 1);
}

TEST(a_new_process_of_a_stalled_worker_is_stalled_too)
{
	struct cluster k;

	open_with_debtor(&k);
	let_pass(&k, 20000);
	assert_int_equal(is_stalled(&k, 1), 1);
	join_once_more(&k, 1, 1);
	assert_int_equal(cluster_request(&k, 1), 1);
	assert_int_equal(is_stalled(&k, 1), 1);
	assert_int_equal(cluster_push(&k, 1), REJECT_NONE);
	assert_int_equal(is_stalled(&k, 1), 0);
	cluster_close(&k);
}

TEST(a_slot_owes_nothing_for_the_time_without_a_process)
{
	struct cluster k;

	open_with_debtor(&k);
	k.n = 1; /* from now on, worker 1 does nothing, as if it had been killed */
	let_pass(&k, 60000);
	k.n = 2;
	join_once_more(&k, 1, 1);
	assert_int_equal(cluster_request(&k, 1), 1);
	let_pass(&k, 1000);
	assert_int_equal(is_stalled(&k, 1), 0);
	cluster_close(&k);
}

TEST(a_new_process_counts_for_the_begin_of_the_run)
{
	struct core_config cfg = rejoin_config(MODE_DOWNPOUR);
	struct cluster k;

	cfg.leases.min_workers = 3;
	open_named(&k, cfg, 2, 300);
	assert_int_equal(cluster_request(&k, 0), 0);
	let_pass(&k, 120000); /* meanwhile, worker 1 requests no work */
	assert_int_equal(is_stalled(&k, 1), 1);
	join_once_more(&k, 1, 1);
	assert_int_equal(is_stalled(&k, 1), 0);
	k.n = 3;
	k.worker[2].peer = 120;
	join_once_more(&k, 2, 1);
	cluster_granted(&k, 0, 0, 1);
	cluster_close(&k);
}
