/*
 * Proves the promises of server/core/dataset.c: the first accepted push or --data-id fixes the data
 * set of a run. A HELLO never fixes the data set, so that a misconfigured machine cannot lock the
 * other workers out.
 * Covers attack A14 of docs/faults.md.
 */
#include <math.h>
#include "server/core/view.h"
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

static const struct data_id other_data = {
	.n_train = 20, .n_test = 3, .rows = 5, .cols = 5, .classes = 3, .xxh3 = 0xabcdef};

static struct core_config training_of(uint32_t min_workers)
{
	struct core_config cfg = fixture_training();

	cfg.durable = 0;
	cfg.leases.min_workers = min_workers;
	cfg.sessions.max_workers = 8;
	return cfg;
}

static void hello_with_data(struct core_fixture *f, uint32_t peer, const struct data_id *d)
{
	struct msg m = fixture_hello("");

	m.hello.data = *d;
	fixture_message(f, peer, &m);
}

static struct stamp join_with_data(struct core_fixture *f, uint32_t peer, const struct data_id *d)
{
	hello_with_data(f, peer, d);
	assert_non_null(fixture_sent(f, peer, MSG_WELCOME));
	return fixture_sent(f, peer, MSG_WELCOME)->welcome.stamp;
}

static void assert_wrong_data(const struct core_fixture *f, uint32_t peer)
{
	fixture_refused(f, peer, PS_EWRONGDATA);
}

static void push_batch_from(
	struct core_fixture *f, uint32_t peer, struct stamp s, uint64_t seq, uint32_t i)
{
	struct msg m = fixture_batch(s, seq, 0, i, 1);

	fixture_applied(f, peer, &m);
}

TEST(a_hello_fixes_nothing)
{
	struct core_fixture f;

	fixture_open(&f, training_of(1));
	struct stamp wrong = join_with_data(&f, 9, &other_data);
	fixture_lease(&f, 9, wrong, 1); /* this worker has a grant, but has delivered nothing */
	fixture_bye(&f, 9, wrong);
	struct stamp right = join_with_data(&f, 8, &fixture_data);
	struct msg_grant g = fixture_train(&f, 8, right, 1);
	assert_int_equal(core_data(f.core)->xxh3, fixture_data.xxh3);
	assert_int_equal(f.core->leases.n_batches, 4);
	push_batch_from(&f, 8, right, 1, g.work.first);
	fixture_close(&f);
}

TEST(a_hello_fixes_nothing_on_disk)
{
	struct core_fixture f;

	fixture_open(&f, training_of(1));
	struct stamp wrong = join_with_data(&f, 9, &other_data);
	fixture_lease(&f, 9, wrong, 1);
	fixture_restart(&f);
	f.now_ms += f.cfg.sessions.recovery_ms + 1;
	struct stamp right = join_with_data(&f, 8, &fixture_data);
	fixture_tick(&f, f.cfg.sessions.recovery_ms + 1);
	fixture_train(&f, 8, right, 1);
	assert_int_equal(core_data(f.core)->xxh3, fixture_data.xxh3);
	fixture_close(&f);
}

/* The first worker that joins has the wrong data set. No worker gets work until --min-workers (3)
 * workers with the same data set have joined. As soon as three such workers have joined, the run
 * uses their data set. */
TEST(most_live_workers_decide)
{
	struct core_fixture f;
	struct stamp s[3];

	fixture_open(&f, training_of(3));
	struct stamp wrong = join_with_data(&f, 9, &other_data);
	fixture_lease(&f, 9, wrong, 1);
	for (uint32_t i = 0; i < 2; i++) {
		s[i] = join_with_data(&f, 1 + i, &fixture_data);
		fixture_lease(&f, 1 + i, s[i], 1);
		assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	}
	/* before this worker joined, only two workers had the same data, which is not enough */
	s[2] = join_with_data(&f, 3, &fixture_data);
	assert_non_null(fixture_granted(&f, 1));
	assert_non_null(fixture_granted(&f, 2));
	assert_null(fixture_granted(&f, 9));
	assert_int_equal(f.core->leases.n_batches, 4);
	push_batch_from(&f, 1, s[0], 1, 0);
	fixture_lease(&f, 9, wrong, 1);
	assert_null(fixture_granted(&f, 9));
	fixture_close(&f);
}

static struct stamp join_with_key(
	struct core_fixture *f, uint32_t peer, const char *key, const struct data_id *d)
{
	struct msg m = fixture_hello("");

	memcpy(m.hello.owner, key, strlen(key));
	m.hello.data = *d;
	fixture_message(f, peer, &m);
	assert_non_null(fixture_sent(f, peer, MSG_WELCOME));
	return fixture_sent(f, peer, MSG_WELCOME)->welcome.stamp;
}

static uint64_t data_of_run(const struct core_fixture *f)
{
	return core_data(f->core)->xxh3;
}

/* Five workers of one key have another data set than two workers with keys of their own. */
TEST(a_key_with_many_workers_has_one_vote_on_the_data_set)
{
	struct core_fixture f;

	fixture_open(&f, training_of(5));
	join_with_key(&f, 1, "honest", &fixture_data);
	join_with_key(&f, 2, "other", &fixture_data);
	for (uint32_t i = 0; i < 5; i++) {
		struct stamp s = join_with_key(&f, 10 + i, "greedy", &other_data);

		fixture_lease(&f, 10 + i, s, 1);
		assert_null(fixture_granted(&f, 10 + i));
	}
	assert_int_equal(data_of_run(&f), fixture_data.xxh3);
	fixture_close(&f);
}

/* If all machines have the same key, the data set that most of them have becomes that of the run. A
 * key votes for the data set that most of its workers have, so one machine with other files does
 * not take the vote from the rest. */
TEST(most_workers_of_a_key_decide_its_vote)
{
	struct core_fixture f;

	fixture_open(&f, training_of(8));
	join_with_key(&f, 1, "fleet", &other_data);
	assert_int_equal(data_of_run(&f), other_data.xxh3);
	join_with_key(&f, 2, "fleet", &fixture_data);
	assert_int_equal(data_of_run(&f), other_data.xxh3);
	join_with_key(&f, 3, "fleet", &fixture_data);
	assert_int_equal(data_of_run(&f), fixture_data.xxh3);
	/* with this worker, each data set has one vote */
	join_with_key(&f, 4, "second", &other_data);
	assert_int_equal(data_of_run(&f), fixture_data.xxh3);
	join_with_key(&f, 5, "third", &other_data);
	assert_int_equal(data_of_run(&f), other_data.xxh3);
	fixture_close(&f);
}

static struct core_config with_option(uint32_t n_train, uint32_t n_test)
{
	struct core_config cfg = training_of(1);

	cfg.data_id_given = 1;
	cfg.data_id = fixture_data.xxh3;
	cfg.data_train = n_train;
	cfg.data_test = n_test;
	return cfg;
}

/* If --data-id has the numbers of images, a worker cannot claim other numbers. The text of the
 * refusal contains both values. */
TEST(the_option_can_fix_the_numbers_of_images)
{
	struct core_fixture f;

	fixture_open(&f, with_option(35, 7));
	for (uint32_t k = 0; k < 3; k++) {
		struct data_id d = fixture_data;

		d.n_train -= k == 0;
		d.n_test -= k == 1;
		d.xxh3 ^= k == 2;
		hello_with_data(&f, 9, &d);
		assert_wrong_data(&f, 9);
	}
	hello_with_data(&f, 9, &(struct data_id){.n_train = 34, .n_test = 7, .xxh3 = 99});
	const char *text = fixture_sent(&f, 9, MSG_ERROR)->error.text;

	assert_non_null(strstr(text, "(34 train, 7 test, "));
	assert_non_null(strstr(text, "is not the server's --data-id 0000000000000063:35:7: "));
	join_with_data(&f, 8, &fixture_data);
	fixture_close(&f);
}

/* The configuration in a snapshot has the numbers, because the write-ahead log is replayed with
 * it. */
TEST(a_snapshot_keeps_the_numbers_of_the_option)
{
	for (uint32_t n = 0; n < 2; n++) {
		struct core_config cfg = {0};
		struct core_fixture f;

		fixture_open(&f, with_option(n * 35, n * 7));
		struct core_snapshot s = fixture_save(&f);
		assert_int_equal(
			snapshot_config(s.data[SNAPSHOT_SESSIONS], s.size[SNAPSHOT_SESSIONS], &cfg),
			PS_OK);
		assert_true(cfg.data_id_given && cfg.data_id == 99);
		assert_int_equal(cfg.data_train, n * 35);
		assert_int_equal(cfg.data_test, n * 7);
		fixture_drop(&s);
		fixture_close(&f);
	}
}

/* A run can continue only with the data set with which it began. A server cannot continue the run
 * if its --data-id differs from this data set, even if only the numbers of images differ. */
TEST(a_run_with_other_numbers_does_not_go_on)
{
	const char *why = NULL;
	struct core_fixture f;

	fixture_open(&f, with_option(0, 0));
	struct stamp w = join_with_data(&f, 8, &fixture_data);
	push_batch_from(&f, 8, w, 1, fixture_train(&f, 8, w, 1).work.first);
	struct core_snapshot s = fixture_save(&f);

	fixture_close(&f);
	assert_int_equal(fixture_read(&f, with_option(35, 8), &s, &why), PS_EUSAGE);
	assert_string_equal(why, "its data set is not that of --data-id");
	fixture_close(&f);
	assert_int_equal(fixture_read(&f, with_option(35, 7), &s, &why), PS_OK);
	fixture_drop(&s);
	fixture_close(&f);
}

/* This test shows a limit of --data-id: if the option has only a fingerprint, a worker can claim a
 * false number of images, because the server has no images to count. */
TEST(with_only_a_fingerprint_the_number_of_images_is_a_claim)
{
	struct core_config cfg = training_of(1);
	struct data_id small = fixture_data;
	struct core_fixture f;

	small.n_train = small.n_test = 1;
	cfg.data_id_given = 1;
	cfg.data_id = fixture_data.xxh3;
	fixture_open(&f, cfg);
	hello_with_data(&f, 9, &other_data);
	assert_wrong_data(&f, 9);
	join_with_data(&f, 8, &small);
	assert_int_equal(core_data(f.core)->n_train, 1);
	fixture_close(&f);
}

/* A worker that got work but delivers nothing by the deadline is stalled. While another live worker
 * is not stalled, a stalled worker has no vote on the data set of the run, even if it was the first
 * worker with work. */
TEST(a_stalled_worker_has_no_vote)
{
	struct core_config cfg = training_of(1);
	struct core_fixture f;

	cfg.leases.first_deadline_ms = 1000;
	fixture_open(&f, cfg);
	struct stamp wrong = join_with_data(&f, 9, &other_data);
	fixture_train(&f, 9, wrong, 1);
	struct stamp right = join_with_data(&f, 8, &fixture_data);
	fixture_lease(&f, 8, right, 1);
	/* as many workers have the other data set, and they have work, so the data set does not
	 * change */
	assert_null(fixture_granted(&f, 8));
	for (int i = 0; i < 50 && !fixture_granted(&f, 8); i++) {
		fixture_heartbeat(&f, 9, wrong);
		fixture_heartbeat(&f, 8, right);
		fixture_tick(&f, 100);
	}
	assert_non_null(fixture_granted(&f, 8));
	assert_int_equal(core_data(f.core)->xxh3, fixture_data.xxh3);
	push_batch_from(&f, 8, right, 1, fixture_granted(&f, 8)->work.first);
	fixture_close(&f);
}

/* Worker 9 has another data set and hangs during its first grant. Worker 8 has the data set
 * `right`, which the run then uses. */
static void outvote_a_stalled_worker(
	struct core_fixture *f, struct stamp *wrong, struct stamp *right)
{
	struct core_config cfg = training_of(1);

	cfg.leases.first_deadline_ms = 1000;
	fixture_open(f, cfg);
	*wrong = join_with_data(f, 9, &other_data);
	fixture_train(f, 9, *wrong, 1);
	*right = join_with_data(f, 8, &fixture_data);
	fixture_lease(f, 8, *right, 1);
	for (int i = 0; i < 50 && !fixture_granted(f, 8); i++) {
		fixture_heartbeat(f, 9, *wrong);
		fixture_heartbeat(f, 8, *right);
		fixture_tick(f, 100);
	}
	assert_int_equal(core_data(f->core)->xxh3, fixture_data.xxh3);
	assert_true(fixture_worker(f, 1).stalled);
}

/* The worker with the right data leaves. When only the stalled worker is left, its vote counts, and
 * so does its late work. */
TEST(stalled_workers_vote_if_all_live_workers_are_stalled)
{
	struct stamp wrong, right;
	struct core_fixture f;

	outvote_a_stalled_worker(&f, &wrong, &right);
	fixture_bye(&f, 8, right);
	assert_int_equal(core_data(f.core)->xxh3, other_data.xxh3);
	push_batch_from(&f, 9, wrong, 1, 0);
	assert_false(fixture_worker(&f, 1).stalled);
	struct msg_grant g = fixture_train(&f, 9, wrong, 2);
	push_batch_from(&f, 9, wrong, 2, g.work.first);
	assert_int_equal(core_epoch(f.core, 0)->images, 20);
	fixture_close(&f);
}

/* The grant of the stalled worker ended when the run changed to the other data set. Therefore its
 * next LEASE is a new request and not a repetition: the worker is not stalled any more, and its
 * vote counts. */
TEST(an_outvoted_worker_counts_again_when_it_asks)
{
	struct stamp wrong, right;
	struct core_fixture f;

	outvote_a_stalled_worker(&f, &wrong, &right);
	fixture_lease(&f, 9, wrong, 2);
	/* no grant: each data set has one vote, so the run keeps its data set */
	assert_null(fixture_granted(&f, 9));
	assert_false(fixture_worker(&f, 1).stalled);
	fixture_bye(&f, 8, right);
	assert_non_null(fixture_granted(&f, 9));
	for (int i = 0; i < 3; i++) { /* a time of less than the deadline */
		fixture_heartbeat(&f, 9, wrong);
		fixture_tick(&f, 300);
	}
	assert_false(fixture_worker(&f, 1).stalled);
	fixture_close(&f);
}

/* Workers that only send heartbeats lose their votes, and with them their majority. */
TEST(a_worker_that_never_asks_for_work_loses_its_vote)
{
	struct core_config cfg = training_of(1);
	struct stamp wrong[2];
	struct core_fixture f;

	cfg.leases.first_deadline_ms = 1000;
	fixture_open(&f, cfg);
	for (uint32_t i = 0; i < 2; i++)
		wrong[i] = join_with_data(&f, 1 + i, &other_data);
	struct stamp right = join_with_data(&f, 8, &fixture_data);
	fixture_lease(&f, 8, right, 1);
	for (int i = 0; i < 40 && !fixture_granted(&f, 8); i++) {
		assert_int_equal(core_data(f.core)->xxh3, other_data.xxh3);
		for (uint32_t j = 0; j < 2; j++)
			fixture_heartbeat(&f, 1 + j, wrong[j]);
		fixture_heartbeat(&f, 8, right);
		fixture_tick(&f, 100);
	}
	assert_non_null(fixture_granted(&f, 8));
	assert_int_equal(core_data(f.core)->xxh3, fixture_data.xxh3);
	fixture_close(&f);
}

TEST(the_first_push_that_counts_fixes_it)
{
	struct core_fixture f;

	fixture_open(&f, training_of(1));
	struct stamp right = join_with_data(&f, 8, &fixture_data);
	fixture_train(&f, 8, right, 1);
	/* the worker may join, because the data set is not fixed yet */
	struct stamp wrong = join_with_data(&f, 9, &other_data);
	push_batch_from(&f, 8, right, 1, 0);
	assert_int_equal(fixture_count(&f, EFFECT_DATA_FIXED), 1);
	fixture_heartbeat(&f, 9, wrong);
	fixture_refused(&f, 9, PS_ESTATE);
	struct msg m = fixture_resume(wrong, 0, 0);
	m.hello.data = other_data;
	fixture_message(&f, 9, &m);
	assert_wrong_data(&f, 9);
	hello_with_data(&f, 7, &other_data);
	assert_wrong_data(&f, 7);
	push_batch_from(&f, 8, right, 2, 1);
	assert_int_equal(fixture_count(&f, EFFECT_DATA_FIXED), 0);
	fixture_restart(&f); /* after the restart the data set is fixed */
	hello_with_data(&f, 7, &other_data);
	assert_wrong_data(&f, 7);
	fixture_close(&f);
}

TEST(the_refusal_shows_both_and_the_remedy)
{
	static const char *const parts[] = {"0000000000abcdef", "0000000000000063", "20 train",
		"35 train", "5x5", "2x3", "--data", "--data-id"};
	struct core_fixture f;

	fixture_open(&f, training_of(1));
	struct stamp right = join_with_data(&f, 8, &fixture_data);
	push_batch_from(&f, 8, right, 1, 0);
	hello_with_data(&f, 7, &other_data);
	const char *text = fixture_sent(&f, 7, MSG_ERROR)->error.text;
	assert_true(strlen(text) < 256);
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		if (!strstr(text, parts[i]))
			fail_msg("\"%s\" lacks \"%s\"", text, parts[i]);
	fixture_close(&f);
}

/* While a push was in transit, the majority of the workers changed to another data set. The push
 * does not count and fixes no data set. */
TEST(a_push_of_the_other_data_is_rejected)
{
	struct core_fixture f;

	fixture_open(&f, training_of(1));
	struct stamp wrong = join_with_data(&f, 9, &other_data);
	fixture_train(&f, 9, wrong, 1);
	struct stamp right = join_with_data(&f, 8, &fixture_data);
	/* each data set has one vote, so the data set of the first worker stays */
	assert_int_equal(core_data(f.core)->xxh3, other_data.xxh3);
	join_with_data(&f, 7, &fixture_data);
	assert_int_equal(core_data(f.core)->xxh3, fixture_data.xxh3);
	struct msg m = fixture_push_ones(wrong, 1);
	m.push.work = (struct work){0, 0, 1};
	m.push.images = 10; /* the number of images in a batch of the right data set */
	fixture_rejected(&f, 9, &m, REJECT_WORK);
	assert_int_equal(fixture_sent(&f, 9, MSG_ACK)->ack.superseded, 0);
	fixture_train(&f, 8, right, 1);
	push_batch_from(&f, 8, right, 1, 0);
	assert_int_equal(core_stats(f.core)->accepted, 1);
	fixture_close(&f);
}

/* The ACK of a superseded push contains the reason. If a superseded push is repeated or replayed,
 * or if a checkpoint contains it, its ACK contains the reason, too. The worker and the server
 * therefore count the same superseded pushes. */
TEST(an_ack_says_what_is_superseded)
{
	struct core_fixture f;

	fixture_open(&f, training_of(1));
	struct stamp first = join_with_data(&f, 8, &fixture_data),
		     second = join_with_data(&f, 7, &fixture_data);
	fixture_train(&f, 8, first, 1);
	push_batch_from(&f, 8, first, 1, 0);
	struct msg late = fixture_batch(second, 1, 0, 0, 1);
	for (int duplicate = 0; duplicate < 2; duplicate++) {
		struct msg_ack a = fixture_acked(&f, 7, &late);

		assert_int_equal(a.reject, REJECT_WORK);
		assert_int_equal(a.duplicate, duplicate);
		assert_int_equal(a.superseded, 1);
	}
	assert_int_equal(core_stats(f.core)->superseded, 1);
	assert_int_equal(core_stats(f.core)->rejected[REJECT_WORK], 0);
	fixture_restart(&f);
	struct msg m = fixture_resume(second, 3, 0);
	fixture_message(&f, 7, &m);
	second = fixture_sent(&f, 7, MSG_WELCOME)->welcome.stamp;
	late.push.stamp = second;
	assert_int_equal(fixture_acked(&f, 7, &late).superseded, 1);
	/* two replays of pushes that the server had decided before the crash */
	for (uint32_t superseded = 0; superseded < 2; superseded++) {
		m = fixture_batch(second, 2 + superseded, 0, 1, 1);
		m.push.verdict = VERDICT_REJECTED;
		m.push.reject = REJECT_WORK;
		m.push.superseded = superseded;
		assert_int_equal(fixture_acked(&f, 7, &m).superseded, superseded);
	}
	fixture_close(&f);
}

/* Opens a server that has lost the first push, which it had acknowledged. The worker of this push
 * sends it again after two workers with another data set have joined. */
static void replay_the_first_push(struct core_fixture *f, struct core_config cfg)
{
	fixture_open(f, cfg);
	struct stamp right = join_with_data(f, 8, &fixture_data);
	fixture_train(f, 8, right, 1);
	fixture_restart(f);
	join_with_data(f, 6, &other_data);
	join_with_data(f, 7, &other_data);
	struct msg m = fixture_resume(right, 1, 0);
	fixture_message(f, 8, &m);
	assert_non_null(fixture_sent(f, 8, MSG_WELCOME));
	right = fixture_sent(f, 8, MSG_WELCOME)->welcome.stamp;
	m = fixture_batch(right, 1, 0, 0, 1);
	m.push.verdict = VERDICT_OK;
	fixture_applied(f, 8, &m);
}

/* The snapshot does not contain the first push, although the push was acknowledged. The replay of
 * this push fixes the data set again. */
TEST(a_replay_fixes_what_it_had_fixed)
{
	struct core_fixture f;

	replay_the_first_push(&f, training_of(1));
	assert_int_equal(core_data(f.core)->xxh3, fixture_data.xxh3);
	hello_with_data(&f, 5, &other_data);
	assert_wrong_data(&f, 5);
	fixture_close(&f);
}

/* With three workers, a replay counts as a gradient that is two versions old. The two workers with
 * the other data set leave because of this replay, but they count for its rate: the core has
 * checked the values with this rate (invariant 3 of store.c, which the fixture checks). */
TEST(a_replay_that_fixes_the_data_set_has_the_rate_of_the_check)
{
	struct core_config cfg = training_of(1);
	struct core_fixture one, three;

	cfg.rate.staleness_scaling = STALE_CONSTANT;
	cfg.rate.scaling = LR_SCALING_NONE;
	replay_the_first_push(&one, cfg);
	cfg.rate.scaling = LR_SCALING_LINEAR;
	replay_the_first_push(&three, cfg);
	assert_true(core_weights(one.core)[0] != 0);
	assert_float_equal(3 * core_weights(three.core)[0], core_weights(one.core)[0], 1e-6);
	fixture_close(&one);
	fixture_close(&three);
}

/* A rejected push does not fix the data set, so the next push may come from another data set. */
TEST(a_push_that_is_rejected_fixes_nothing)
{
	static const float wild[FIXTURE_PARAMS] = {1, 1, 1, NAN, 1, 1, 1, 1};
	struct core_config cfg = training_of(1);
	struct core_fixture f;
	uint64_t seq = 0;

	cfg.limits.reject_norm = 1;
	cfg.training.mode = MODE_SYNC; /* in mode sync, a push of a later version is stale */
	fixture_open(&f, cfg);
	struct stamp wrong = join_with_data(&f, 9, &other_data);
	fixture_train(&f, 9, wrong, 1);
	for (enum reject why = REJECT_SHAPE; why <= REJECT_STALE; why++) {
		struct msg m = why == REJECT_NONFINITE ? fixture_push(wrong, ++seq)
						       : fixture_batch(wrong, ++seq, 0, 0, 1);

		fixture_work(&m, 0, 0, 1);
		m.push.base_term = f.cfg.term;
		m.push.base_version = why == REJECT_STALE ? 7 : 0;
		m.push.images += why == REJECT_SHAPE;
		if (why == REJECT_NONFINITE)
			fixture_slice(&m, 0, FIXTURE_PARAMS, wild);
		fixture_rejected(&f, 9, &m, why);
		assert_false(core_data_is_fixed(f.core));
	}
	fixture_restart(&f);
	fixture_tick(&f, f.cfg.sessions.recovery_ms + 1);
	fixture_tick(&f, f.cfg.sessions.recovery_ms + 1);
	struct stamp right = join_with_data(&f, 8, &fixture_data);
	fixture_train(&f, 8, right, 1);
	assert_int_equal(core_data(f.core)->xxh3, fixture_data.xxh3);
	fixture_close(&f);
}

/* Until --min-workers workers have joined, the server grants no work, and no push counts. */
TEST(before_the_run_begins_no_push_counts)
{
	struct stamp s[3];
	struct core_fixture f;

	fixture_open(&f, training_of(3));
	struct stamp wrong = join_with_data(&f, 9, &other_data);
	struct msg m = fixture_batch(wrong, 1, 0, 0, 1);
	fixture_rejected(&f, 9, &m, REJECT_WORK);
	assert_int_equal(core_stats(f.core)->rejected[REJECT_WORK], 1);
	assert_int_equal(core_stats(f.core)->accepted, 0);
	for (uint32_t i = 0; i < 3; i++)
		s[i] = join_with_data(&f, 1 + i, &fixture_data);
	fixture_train(&f, 1, s[0], 1);
	push_batch_from(&f, 1, s[0], 1, 0);
	fixture_close(&f);
}

/* Workers with another data set cannot train, so they do not count for --min-workers. */
TEST(workers_with_other_data_do_not_count_and_are_named)
{
	struct hold_up_view v;
	struct core_fixture f;

	fixture_open(&f, training_of(2));
	join_with_data(&f, 9, &fixture_data);
	core_hold_up(f.core, &v);
	assert_int_equal(v.others, 0);
	join_with_data(&f, 8, &other_data);
	core_hold_up(f.core, &v);
	assert_int_equal(v.kind, HOLD_UP_WORKERS);
	assert_int_equal(v.live, 1);
	assert_int_equal(v.needed, 2);
	assert_int_equal(v.others, 1);
	assert_int_equal(v.other_data, other_data.xxh3);
	join_with_data(
		/* enough workers for the training, so the server no longer waits for the worker
		 * with other data */
		&f, 7, &fixture_data);
	core_hold_up(f.core, &v);
	assert_int_equal(v.kind, HOLD_UP_NONE);
	assert_int_equal(v.others, 1);
	fixture_close(&f);
}

/* The first push that counted excluded the data set of a second worker. From then on, the second
 * worker gets no work. The second worker receives the reason only at the end of the run. */
TEST(after_the_end_a_worker_learns_why_it_had_no_work)
{
	struct core_fixture f;

	fixture_open(&f, training_of(1));
	struct stamp right = join_with_data(&f, 8, &fixture_data),
		     wrong = join_with_data(&f, 9, &other_data);
	fixture_train(&f, 8, right, 1);
	push_batch_from(&f, 8, right, 1, 0);
	fixture_step(&f, &(struct event){.kind = EVENT_DRAIN});
	assert_non_null(fixture_effect(&f, EFFECT_FINISH));
	assert_non_null(fixture_sent(&f, 8, MSG_BYE));
	fixture_heartbeat(&f, 9, wrong);
	fixture_refused(&f, 9, PS_ESTATE);
	struct msg m = fixture_resume(wrong, 0, 0);
	m.hello.data = other_data;
	fixture_message(&f, 9, &m);
	assert_wrong_data(&f, 9);
	fixture_close(&f);
}

/* ---- the image shape and the classes of the model -------------------------------------------- */

static struct core_config image_training(void)
{
	struct core_config cfg = training_of(1);

	cfg.images = (struct images){3, 5, 5, 20, 1};
	return cfg;
}

TEST(images_that_do_not_fit_the_model_are_refused_with_both_shapes)
{
	const struct {
		uint32_t channels, rows, cols, classes;
		/* the worker's shape in the text of the refusal; NULL: the server accepts the
		 * worker */
		const char *theirs;
	} row[] = {
		{3, 5, 5, 20, NULL},
		{3, 5, 5, 3, NULL}, /* accepted: a data set may lack some classes of the model */
		{3, 0, 0, 0,
			/* accepted: a program that makes its own images reports 0 rows and
			 * columns */
			NULL},
		{0, 5, 5, 20, "1x5x5, 20 classes"}, /* channels: 0 means one channel */
		{1, 5, 5, 20, "1x5x5, 20 classes"},
		{3, 6, 5, 20, "3x6x5, 20 classes"},
		{3, 5, 6, 20, "3x5x6, 20 classes"},
		{3, 5, 5, 21, "3x5x5, 21 classes"},
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct core_fixture f;
		struct data_id d = other_data;

		fixture_open(&f, image_training());
		d.channels = row[i].channels;
		d.rows = row[i].rows;
		d.cols = row[i].cols;
		d.classes = row[i].classes;
		hello_with_data(&f, 9, &d);
		if (!row[i].theirs) {
			assert_non_null(fixture_sent(&f, 9, MSG_WELCOME));
			assert_int_equal(fixture_sent(&f, 9, MSG_WELCOME)->welcome.needs_images, 1);
		} else {
			const char *text;

			assert_wrong_data(&f, 9);
			text = fixture_sent(&f, 9, MSG_ERROR)->error.text;
			assert_non_null(strstr(text, row[i].theirs));
			assert_non_null(strstr(text, "images of 3x5x5, 20 classes"));
		}
		fixture_close(&f);
	}
}

/* If the model text has no words about images, older workers without the feature "images" can
 * join. */
TEST(only_image_words_need_the_feature)
{
	struct core_fixture f;

	fixture_open(&f, training_of(1));
	join_with_data(&f, 8, &fixture_data);
	assert_int_equal(fixture_sent(&f, 8, MSG_WELCOME)->welcome.needs_images, 0);
	fixture_close(&f);
}

/* If the run holds back images, a worker must support this. Observers do not train, so they may
 * join even if they do not support held-back images. */
TEST(a_worker_learns_how_many_images_are_held_back)
{
	struct core_config c = training_of(1);
	struct core_fixture f;

	c.training.validate = fixture_data.n_train - 1;
	fixture_open(&f, c);
	join_with_data(&f, 8, &fixture_data);
	assert_int_equal(fixture_sent(&f, 8, MSG_WELCOME)->welcome.validate, c.training.validate);
	assert_int_equal(core_train_images(f.core), 1);
	assert_int_equal(core_eval_images(f.core), c.training.validate);
	fixture_close(&f);
	c.training.validate = fixture_data.n_train;
	fixture_open(&f, c);
	hello_with_data(&f, 9, &fixture_data);
	assert_wrong_data(&f, 9);
	assert_non_null(strstr(fixture_sent(&f, 9, MSG_ERROR)->error.text, "leaves none of the"));
	fixture_close(&f);
}

TEST(a_snapshot_keeps_the_channels)
{
	struct core_fixture f;
	struct data_id d = other_data;

	d.channels = 3;
	fixture_open(&f, training_of(1));
	struct stamp s = join_with_data(&f, 8, &d);
	fixture_train(&f, 8, s, 1);
	push_batch_from(&f, 8, s, 1, 0);
	fixture_restart(&f);
	assert_int_equal(core_data(f.core)->channels, 3);
	hello_with_data(&f, 9, &other_data); /* only the number of channels differs */
	assert_wrong_data(&f, 9);
	join_with_data(&f, 8, &d);
	fixture_close(&f);
}
