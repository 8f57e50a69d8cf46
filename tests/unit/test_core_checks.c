/*
 * Proves the invariants of server/core/checks.h: a second worker computes a sample of the portions
 * of an evaluation again, a third one decides, and no evaluation waits for a check for ever.
 * Covers attack A14 of docs/faults.md.
 */
#include <math.h>
#include "server/core/checks.h"
#include "server/core/leases.h"
#include "server/core/quarantine.h"
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

enum { TRUE = 500, LIE = 900, IMAGES = 1000 };

/* Returns the configuration of a run of five epochs. Each evaluation has a single portion of 1000
 * images, which is therefore always in the sample that a second worker computes again. */
static struct core_config checked(void)
{
	struct core_config cfg = fixture_training();

	cfg.training.epochs = 5;
	cfg.leases.eval_images = IMAGES;
	cfg.leases.eval_checks = 1;
	cfg.proof_key[0] = 1;
	return cfg;
}

static struct stamp join_when_durable(
	struct core_fixture *f, uint32_t peer, const char *name, const char *key)
{
	struct msg m = fixture_hello(name);

	m.hello.data.n_test = IMAGES;
	memcpy(m.hello.owner, key, strlen(key));
	fixture_message(f, peer, &m);
	while (!fixture_sent(f, peer, MSG_WELCOME))
		fixture_durable(f);
	return fixture_sent(f, peer, MSG_WELCOME)->welcome.stamp;
}

/* Requests a lease with the next request number. Returns the grant, or NULL if the core grants
 * nothing. */
static const struct msg_grant *next_lease_of(struct core_fixture *f, uint32_t peer, struct stamp s)
{
	fixture_lease(f, peer, s, f->core->worker[s.worker - 1].lease.request + 1);
	return fixture_granted(f, peer);
}

/* Gets leases and pushes zeros until epoch `epoch` is trained. */
static void train_epoch(struct core_fixture *f, uint32_t peer, struct stamp s, uint32_t epoch)
{
	while (core_training_epoch(f->core) == epoch) {
		struct msg_grant g = *next_lease_of(f, peer, s);

		/* not answered here: a test itself sends the result of an evaluation */
		if (g.kind != GRANT_TRAIN)
			continue;
		for (uint32_t i = 0; i < g.work.count; i++) {
			struct msg m = fixture_batch(s, fixture_worker(f, s.worker).last_seq + 1,
				epoch, g.work.first + i, 1);

			fixture_applied(f, peer, &m);
		}
	}
}

/* Returns the loss that the tests report together with a number of correct images. The losses for
 * LIE and TRUE differ so little that they agree by the rule of checks.h. */
static double loss_of(uint32_t correct)
{
	return 300 + correct / 1000.0;
}

static void report_result(struct core_fixture *f, uint32_t peer, struct stamp s, uint32_t correct)
{
	const struct msg_grant g = f->core->worker[s.worker - 1].lease.grant;
	struct msg m = {.type = MSG_RESULT};

	assert_int_equal(g.kind, GRANT_EVAL);
	m.result = (struct msg_result){.stamp = s,
		.eval_id = g.eval_id,
		.eval_first = g.eval_first,
		.eval_count = g.eval_count,
		.correct = correct,
		.loss_sum = loss_of(correct),
		.code = g.code};
	fixture_message(f, peer, &m);
}

struct fleet {
	struct core_fixture f;
	struct stamp s[4]; /* s[i]: the stamp of worker i + 1, which is on connection 10 + i */
};

static void open_checked_fleet(struct fleet *t, struct core_config cfg, uint32_t n)
{
	const char *const names[] = {"a", "b", "c", "d"};

	fixture_open(&t->f, cfg);
	for (uint32_t i = 0; i < n; i++)
		t->s[i] = join_when_durable(&t->f, 10 + i, names[i], "");
}

/* Lets worker `i` request work, which must be the evaluation, and send a result with `correct`
 * correct images. */
static void vote(struct fleet *t, uint32_t i, uint32_t correct)
{
	const struct msg_grant *g = next_lease_of(&t->f, 10 + i, t->s[i]);

	assert_non_null(g);
	assert_int_equal(g->kind, GRANT_EVAL);
	report_result(&t->f, 10 + i, t->s[i], correct);
}

static const struct epoch_record *first_record(const struct fleet *t)
{
	return core_epoch(t->f.core, 0);
}

static int is_evaluated(const struct fleet *t)
{
	return fixture_count(&t->f, EFFECT_EVALUATED) == 1;
}

/* ---- decisions ------------------------------------------------------------------------------ */

TEST(two_workers_that_agree_end_the_evaluation)
{
	struct fleet t;

	open_checked_fleet(&t, checked(), 3);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote(&t, 0, TRUE);
	assert_false(is_evaluated(&t));
	assert_false(core_is_evaluated(t.f.core, 0));
	/* agrees with the first result, because they differ by only 0.5 % of the 1000 images */
	vote(&t, 1, TRUE + 5);
	assert_true(is_evaluated(&t));
	assert_true(core_is_evaluated(t.f.core, 0));
	assert_int_equal(core_check_stats(t.f.core)->agreed, 1);
	assert_int_equal(fixture_count(&t.f, EFFECT_DISPUTED), 0);
	assert_int_equal(first_record(&t)->eval_correct, TRUE);
	assert_int_equal(first_record(&t)->eval_done, IMAGES);
	fixture_close(&t.f);
}

TEST(a_third_worker_outvotes_a_first_liar_and_corrects_the_record)
{
	struct fleet t;

	open_checked_fleet(&t, checked(), 3);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote(&t, 0, LIE);
	vote(&t, 1, TRUE);
	assert_false(is_evaluated(&t));
	assert_int_equal(fixture_count(&t.f, EFFECT_DISPUTED), 0);
	vote(&t, 2, TRUE + 1);
	assert_true(is_evaluated(&t));
	assert_int_equal(fixture_effect(&t.f, EFFECT_DISPUTED)->worker, 1);
	assert_int_equal(fixture_effect(&t.f, EFFECT_DISPUTED)->dispute.votes, 3);
	assert_int_equal(first_record(&t)->eval_correct, TRUE);
	assert_true(first_record(&t)->eval_loss_sum == loss_of(TRUE));
	assert_int_equal(t.f.core->quarantine.n, 1);
	assert_string_equal(t.f.core->quarantine.entry[0].name, "a");
	/* not excluded yet, because this lie counts only as the first of three exclusions */
	assert_int_equal(fixture_worker(&t.f, 1).state, SESSION_LIVE);
	fixture_close(&t.f);
}

TEST(a_third_worker_outvotes_a_second_liar_and_keeps_the_record)
{
	struct fleet t;

	open_checked_fleet(&t, checked(), 3);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote(&t, 0, TRUE);
	vote(&t, 1, LIE);
	/* this result differs from the first one, but much less than from LIE */
	vote(&t, 2, TRUE + 6);
	assert_true(is_evaluated(&t));
	assert_int_equal(core_check_stats(t.f.core)->disputed,
		1); /* the results differ by more than 0.5 % */
	assert_int_equal(t.f.core->quarantine.n, 0);
	fixture_close(&t.f);
	open_checked_fleet(&t, checked(), 3);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote(&t, 0, TRUE);
	vote(&t, 1, LIE);
	vote(&t, 2, TRUE + 5);
	assert_int_equal(fixture_effect(&t.f, EFFECT_DISPUTED)->worker, 2);
	assert_int_equal(first_record(&t)->eval_correct, TRUE);
	assert_string_equal(t.f.core->quarantine.entry[0].name, "b");
	fixture_close(&t.f);
}

/* Lets worker i + 1 report this number of correct images and these sums for the portion of grant
 * `g`. */
static void report_sums(struct fleet *t, uint32_t i, const struct msg_grant *g, uint32_t correct,
	double loss, double metric)
{
	struct msg m = {.type = MSG_RESULT};

	m.result = (struct msg_result){.stamp = t->s[i],
		.eval_id = g->eval_id,
		.eval_first = g->eval_first,
		.eval_count = g->eval_count,
		.correct = correct,
		.loss_sum = loss,
		.metric_sum = {metric},
		.code = g->code};
	fixture_message(&t->f, 10 + i, &m);
}

/* Lets worker i + 1 request a lease, which must be a portion, and report these numbers for it. */
static void vote_sums(struct fleet *t, uint32_t i, uint32_t correct, double loss, double metric)
{
	const struct msg_grant g = *next_lease_of(&t->f, 10 + i, t->s[i]);

	assert_int_equal(g.kind, GRANT_EVAL);
	report_sums(t, i, &g, correct, loss, metric);
}

/* Lets workers 2 and 3 evaluate what they are granted, until the evaluation or a check ends. */
static void evaluate_in_turn(struct fleet *t, uint32_t correct, double loss)
{
	const uint64_t outvoted = t->f.core->checks.stats.outvoted;

	for (uint32_t n = 0; n < 20; n++) {
		const struct msg_grant *g = next_lease_of(&t->f, 11 + n % 2, t->s[1 + n % 2]);

		if (!g || g->kind != GRANT_EVAL)
			continue;
		report_sums(t, 1 + n % 2, g, correct, loss, loss);
		if (is_evaluated(t) || t->f.core->checks.stats.outvoted > outvoted)
			return;
	}
}

static void vote_loss(struct fleet *t, uint32_t i, uint32_t correct, double loss)
{
	vote_sums(t, i, correct, loss, loss);
}

/* The first worker reports the right number of correct images, and a false loss. */
TEST(a_liar_about_the_loss_is_outvoted)
{
	struct fleet t;

	open_checked_fleet(&t, checked(), 3);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote_sums(&t, 0, TRUE, 30, 7);
	vote_sums(&t, 1, TRUE, 300, 7);
	assert_false(is_evaluated(&t));
	vote_sums(&t, 2, TRUE, 301, 7);
	assert_true(is_evaluated(&t));
	assert_int_equal(fixture_effect(&t.f, EFFECT_DISPUTED)->worker, 1);
	assert_true(fixture_effect(&t.f, EFFECT_DISPUTED)->dispute.loss[0] == 30);
	assert_true(first_record(&t)->eval_loss_sum == 300);
	assert_int_equal(t.f.core->quarantine.n, 1);
	fixture_close(&t.f);
}

TEST(a_liar_about_a_metric_is_outvoted)
{
	struct fleet t;

	open_checked_fleet(&t, checked(), 3);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote_sums(&t, 0, TRUE, 300, -2000);
	vote_sums(&t, 1, TRUE, 300, 2000);
	vote_sums(&t, 2, TRUE, 300, 2000);
	assert_int_equal(fixture_effect(&t.f, EFFECT_DISPUTED)->worker, 1);
	assert_true(first_record(&t)->metric_sum[0] == 2000);
	fixture_close(&t.f);
}

/* Lets two workers report these losses for 1000 images. Returns 1 if the core takes the two results
 * as equal. */
static int losses_agree(double one, double other)
{
	struct fleet t;

	open_checked_fleet(&t, checked(), 3);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote_loss(&t, 0, TRUE, one);
	vote_loss(&t, 1, TRUE, other);
	int agreed = is_evaluated(&t);
	fixture_close(&t.f);
	return agreed;
}

/* Two sums agree if they differ by at most 0.5 % of the number of images plus 5 % of the greater
 * sum. */
TEST(losses_of_other_devices_and_precisions_agree)
{
	assert_true(losses_agree(86.5, 86.5 * 1.03));
	assert_true(losses_agree(0, 5));
	assert_true(losses_agree(110, 100));
	assert_true(losses_agree(-110, -100));
	assert_true(losses_agree(1e300, 1.04e300));
	assert_false(losses_agree(112, 100));
	assert_false(losses_agree(100, 112));
	assert_false(losses_agree(-100, 100));
	assert_false(losses_agree(-1.7e308, 1.7e308));
}

/* If the server added a loss of 1e300 and later subtracted it again, the rounding would lose the
 * losses of all other portions. (The server does not repeat this evaluation, because the number of
 * repetitions has reached its limit.) */
TEST(an_outvoted_result_leaves_no_trace_in_the_sums)
{
	struct core_config cfg = checked();
	struct fleet t;

	cfg.training.epochs = 1; /* after the last epoch all workers evaluate */
	cfg.leases.eval_images = IMAGES / 2;
	open_checked_fleet(&t, cfg, 3);
	t.f.core->checks.stats.outvoted = MAX_REPEATS;
	train_epoch(&t.f, 10, t.s[0], 0);
	if (t.f.core->checks.check[0].portion == 1)
		vote_loss(&t, 1, TRUE / 2, 3);
	vote_loss(&t, 0, LIE / 2, 1e300);
	if (t.f.core->checks.check[0].portion == 0)
		vote_loss(&t, 1, TRUE / 2, 3);
	vote_loss(&t, 1, TRUE / 2, 4);
	vote_loss(&t, 2, TRUE / 2, 4);
	assert_true(is_evaluated(&t));
	assert_int_equal(first_record(&t)->eval_correct, TRUE);
	assert_int_equal(first_record(&t)->eval_done, IMAGES);
	assert_true(first_record(&t)->eval_loss_sum == 7);
	assert_true(first_record(&t)->metric_sum[0] == 7);
	fixture_close(&t.f);
}

/* Worker 1 lies about all portions that it gets, and one of them is in the sample. When it is
 * outvoted, the server drops its results for all portions, even those that nobody has checked. */
TEST(the_unchecked_results_of_an_outvoted_worker_are_dropped)
{
	struct core_config cfg = checked();
	struct fleet t;

	cfg.leases.eval_images = IMAGES / 4;
	open_checked_fleet(&t, cfg, 3);
	train_epoch(&t.f, 10, t.s[0], 0);
	for (int i = 0; i < 4; i++)
		vote_loss(&t, 0, LIE / 4, 1e300);
	assert_int_equal(first_record(&t)->eval_correct, 3 * (LIE / 4));
	evaluate_in_turn(&t, TRUE / 4, 3);
	assert_int_equal(t.f.core->checks.stats.outvoted, 1);
	assert_int_equal(first_record(&t)->eval_done, 0);
	assert_true(first_record(&t)->eval_loss_sum == 0);
	evaluate_in_turn(&t, TRUE / 4, 3);
	assert_true(is_evaluated(&t));
	assert_int_equal(first_record(&t)->eval_correct, TRUE);
	assert_int_equal(first_record(&t)->eval_done, IMAGES);
	assert_true(first_record(&t)->eval_loss_sum == 12);
	assert_true(first_record(&t)->metric_sum[0] == 12);
	fixture_close(&t.f);
}

/* Sends results of worker 1 with the codes of these grants. */
static void report_again(struct fleet *t, const struct msg_grant *g, size_t n)
{
	for (size_t i = 0; i < n; i++)
		report_sums(t, 0, &g[i], LIE / 4, 3, 3);
}

/* Worker 1 is outvoted and then sends its results again, with the codes of its grants. The server
 * refuses them, because it has dropped the evaluation of these grants, also after a restart. A
 * portion that worker 4 was computing when the evaluation was dropped still counts. */
TEST(grants_of_a_dropped_evaluation_prove_nothing)
{
	struct core_config cfg = checked();
	struct msg_grant dropped[4];
	struct fleet t;

	cfg.training.epochs = 1; /* after the last epoch all workers evaluate */
	cfg.leases.eval_images = IMAGES / 4;
	cfg.leases.eval_checks = 2;
	open_checked_fleet(&t, cfg, 4);
	train_epoch(&t.f, 10, t.s[0], 0);
	for (int i = 0; i < 4; i++) {
		dropped[i] = *next_lease_of(&t.f, 10, t.s[0]);
		report_again(&t, &dropped[i], 1);
	}
	const struct msg_grant held = *next_lease_of(&t.f, 13, t.s[3]);
	for (uint32_t i = 1; i < 3; i++)
		vote_loss(&t, i, TRUE / 4, 3);
	assert_int_equal(t.f.core->checks.stats.outvoted, 1);
	report_again(&t, dropped, 4);
	assert_int_equal(t.f.core->leases.n_evaluated, 0);
	fixture_restart(&t.f);
	for (uint32_t i = 0; i < 4; i++) {
		struct msg m = fixture_resume(t.s[i], fixture_worker(&t.f, i + 1).last_seq, 0);

		m.hello.data.n_test = IMAGES;
		fixture_message(&t.f, 10 + i, &m);
		t.s[i] = fixture_sent(&t.f, 10 + i, MSG_WELCOME)->welcome.stamp;
	}
	report_again(&t, dropped, 4);
	assert_int_equal(t.f.core->leases.n_evaluated, 0);
	report_sums(&t, 3, &held, TRUE / 4, 3, 3);
	assert_int_equal(t.f.core->leases.n_evaluated, 1);
	evaluate_in_turn(&t, TRUE / 4, 3);
	assert_true(is_evaluated(&t));
	assert_int_equal(first_record(&t)->eval_correct, TRUE);
	fixture_close(&t.f);
}

/* A worker that joins again after each lie cannot make the server repeat evaluations without
 * end. */
TEST(an_evaluation_is_repeated_a_bounded_number_of_times)
{
	struct core_config cfg = checked();
	struct fleet t;

	cfg.leases.eval_images = IMAGES / 2;
	open_checked_fleet(&t, cfg, 3);
	t.f.core->checks.stats.outvoted = MAX_REPEATS;
	train_epoch(&t.f, 10, t.s[0], 0);
	for (int i = 0; i < 2; i++)
		vote_loss(&t, 0, LIE / 2, 3);
	vote_loss(&t, 1, TRUE / 2, 3);
	vote_loss(&t, 2, TRUE / 2, 3);
	assert_true(is_evaluated(&t));
	assert_int_equal(first_record(&t)->eval_correct, TRUE / 2 + LIE / 2);
	fixture_close(&t.f);
}

TEST(two_workers_that_disagree_accuse_nobody)
{
	struct fleet t;

	open_checked_fleet(&t, checked(), 2);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote(&t, 0, LIE);
	vote(&t, 1, TRUE);
	assert_true(is_evaluated(&t));
	assert_int_equal(fixture_effect(&t.f, EFFECT_DISPUTED)->worker, 0);
	assert_int_equal(core_check_stats(t.f.core)->disputed, 1);
	assert_int_equal(t.f.core->quarantine.n, 0);
	fixture_close(&t.f);
}

TEST(a_worker_that_is_outvoted_three_times_is_in_quarantine)
{
	struct fleet t;

	open_checked_fleet(&t, checked(), 3);
	for (uint32_t e = 0; e < 3; e++) {
		train_epoch(&t.f, 11, t.s[1], e);
		vote(&t, 0, LIE);
		vote(&t, 1, TRUE);
		vote(&t, 2, TRUE);
		assert_true(is_evaluated(&t));
	}
	assert_true(fixture_worker(&t.f, 1).quarantined);
	assert_int_equal(core_check_stats(t.f.core)->outvoted, 3);
	fixture_close(&t.f);
}

/* A worker that must still replay pushes is not excluded, because the exclusion would lose these
 * pushes. In this test, a worker claims more pushes than there are, and never sends them. */
TEST(claimed_pushes_defer_quarantine_for_a_bounded_time)
{
	struct core_config cfg = checked();
	struct fleet t;

	cfg.training.epochs = 7;
	open_checked_fleet(&t, cfg, 3);
	struct msg m = fixture_resume(t.s[0], UINT64_MAX / 4, 0);
	m.hello.data.n_test = IMAGES;
	m.hello.name[0] = 'a';
	fixture_message(&t.f, 10, &m);
	assert_int_equal(t.f.core->worker[0].ledger.replay_target, WIRE_MAX_WINDOW);
	for (uint32_t e = 0; e < 6; e++) {
		assert_false(fixture_worker(&t.f, 1).excluded);
		train_epoch(&t.f, 11, t.s[1], e);
		vote(&t, 0, LIE);
		vote(&t, 1, TRUE);
		vote(&t, 2, TRUE);
		assert_true(is_evaluated(&t));
	}
	assert_true(fixture_worker(&t.f, 1).quarantined);
	fixture_close(&t.f);
}

/* The workers of one key have only one vote, because they could confirm each other's lies. */
TEST(a_key_has_one_vote)
{
	struct fleet t;

	open_checked_fleet(&t, checked(), 0);
	for (uint32_t i = 0; i < 3; i++)
		t.s[i] = join_when_durable(
			&t.f, 10 + i, (const char[2]){(char)('a' + i)}, i < 2 ? "liar" : "honest");
	train_epoch(&t.f, 12, t.s[2], 0);
	vote(&t, 0, LIE);
	assert_int_equal(next_lease_of(&t.f, 11, t.s[1])->kind, GRANT_TRAIN);
	assert_false(is_evaluated(&t));
	vote(&t, 2, TRUE);
	/* evaluated although the results differ, because there is no third key that could decide */
	assert_true(is_evaluated(&t));
	assert_int_equal(core_check_stats(t.f.core)->disputed, 1);
	assert_int_equal(t.f.core->quarantine.n, 0);
	fixture_close(&t.f);
}

/* What a worker can see before it reports the last portion: the counters of the core, and the kind
 * of grant that another worker gets. */
struct seen {
	struct core_stats stats;
	struct check_stats checks;
	enum grant_kind granted;
};

/* Opens a run of four workers and four portions. Only portion `sample` is in the sample that two
 * workers evaluate. Worker 2 takes portion 0, and asks for other work. Worker 1 reports the
 * portions 0 to 2, and takes the last one. Then worker 2 reports portion 0, too, and worker 4 asks
 * for work. */
static struct seen evaluate_all_but_one(struct fleet *t, uint32_t sample)
{
	struct core_config cfg = checked();
	struct seen seen;

	cfg.leases.eval_images = IMAGES / 4;
	open_checked_fleet(t, cfg, 4);
	train_epoch(&t->f, 10, t->s[0], 0);
	t->f.core->checks.check[0].portion = sample;
	const struct msg_grant first = *next_lease_of(&t->f, 11, t->s[1]);
	assert_int_equal(first.kind, GRANT_EVAL);
	assert_int_equal(next_lease_of(&t->f, 11, t->s[1])->kind, GRANT_TRAIN);
	for (int i = 0; i < 3; i++)
		vote_sums(t, 0, TRUE / 4, 3, 3);
	assert_int_equal(next_lease_of(&t->f, 10, t->s[0])->kind, GRANT_EVAL);
	report_sums(t, 1, &first, TRUE / 4, 3, 3);
	seen.granted = (enum grant_kind)next_lease_of(&t->f, 13, t->s[3])->kind;
	seen.stats = *core_stats(t->f.core);
	seen.checks = *core_check_stats(t->f.core);
	return seen;
}

/* A worker that can see that its portion is not in the sample would report a false result. */
TEST(no_event_shows_the_sample_before_all_results_are_in)
{
	struct seen one, other;

	for (uint32_t sample = 0; sample < 4; sample++) {
		struct fleet t;
		struct seen *seen = sample == 0 ? &one : &other;

		*seen = evaluate_all_but_one(&t, sample);
		assert_int_equal(seen->granted, GRANT_TRAIN);
		assert_memory_equal(&seen->stats, &one.stats, sizeof(one.stats));
		assert_memory_equal(&seen->checks, &one.checks, sizeof(one.checks));
		const struct msg_grant last = t.f.core->worker[0].lease.grant;
		report_sums(&t, 0, &last, TRUE / 4, 3, 3);
		assert_false(is_evaluated(&t));
		const struct msg_grant *check = next_lease_of(&t.f, 13, t.s[3]);
		assert_int_equal(check->kind, GRANT_EVAL);
		assert_int_equal(check->eval_first, sample * IMAGES / 4);
		report_sums(&t, 3, check, TRUE / 4, 3, 3);
		assert_true(is_evaluated(&t));
		assert_int_equal(core_check_stats(t.f.core)->agreed, 1);
		fixture_close(&t.f);
	}
}

/* ---- bounds --------------------------------------------------------------------------------- */

TEST(a_lone_worker_waits_for_nobody)
{
	struct fleet t;

	open_checked_fleet(&t, checked(), 1);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote(&t, 0, TRUE);
	assert_true(is_evaluated(&t));
	assert_int_equal(core_check_stats(t.f.core)->unchecked, 1);
	fixture_close(&t.f);
}

TEST(a_worker_does_not_check_itself)
{
	struct fleet t;

	open_checked_fleet(&t, checked(), 2);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote(&t, 0, LIE);
	/* repeats the result, which must not count as a second vote */
	report_result(&t.f, 10, t.s[0], LIE);
	assert_false(is_evaluated(&t));
	assert_int_equal(next_lease_of(&t.f, 10, t.s[0])->kind, GRANT_TRAIN);
	fixture_close(&t.f);
}

TEST(a_check_delays_an_evaluation_for_a_bounded_time)
{
	struct core_config cfg = checked();
	struct fleet t;
	uint32_t ticks = 0;

	/* so long that the second worker stays live, although it sends nothing */
	cfg.sessions.suspect_ms = 1000000;
	cfg.sessions.dead_ms = 2000000;
	open_checked_fleet(&t, cfg, 2);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote(&t, 0, TRUE);
	while (!is_evaluated(&t) && ticks++ < 2 * CHECK_TICKS)
		fixture_tick(&t.f, 1);
	assert_int_equal(ticks, CHECK_TICKS);
	assert_int_equal(core_check_stats(t.f.core)->unchecked, 1);
	fixture_close(&t.f);
}

#define SLOW_TICKS (CHECK_TICKS + CHECK_TICKS / 2)

static void let_ticks_pass(struct fleet *t)
{
	for (uint32_t i = 0; i < SLOW_TICKS; i++)
		fixture_tick(&t->f, 50);
}

/* In this test, workers need longer than CHECK_TICKS ticks for each piece of work. Worker 2 is
 * still at work when the checks begin, and then computes the check. */
TEST(slow_workers_check_all_the_same)
{
	struct core_config cfg = checked();
	struct fleet t;

	cfg.sessions.suspect_ms = 1000000;
	cfg.sessions.dead_ms = 2000000;
	cfg.leases.backup_copies = BACKUP_LATE;
	cfg.leases.max_batches = 1;
	open_checked_fleet(&t, cfg, 2);
	while (core_training_epoch(t.f.core) == 0) {
		const struct msg_grant g = *next_lease_of(&t.f, 10, t.s[0]);

		let_ticks_pass(&t);
		struct msg m = fixture_batch(t.s[0], fixture_worker(&t.f, 1).last_seq + 1, 0,
			g.work.first, g.work.count);
		fixture_applied(&t.f, 10, &m);
	}
	const struct msg_grant piece = *next_lease_of(&t.f, 10, t.s[0]);
	assert_int_equal(piece.kind, GRANT_EVAL);
	let_ticks_pass(&t);
	const struct msg_grant batch = *next_lease_of(&t.f, 11, t.s[1]);
	assert_int_equal(batch.kind, GRANT_TRAIN);
	report_sums(&t, 0, &piece, TRUE, 300, 7);
	let_ticks_pass(&t);
	assert_false(is_evaluated(&t));
	struct msg m = fixture_batch(t.s[1], 1, 1, batch.work.first, batch.work.count);
	fixture_applied(&t.f, 11, &m);
	const struct msg_grant check = *next_lease_of(&t.f, 11, t.s[1]);
	assert_int_equal(check.kind, GRANT_EVAL);
	let_ticks_pass(&t);
	assert_false(is_evaluated(&t));
	report_sums(&t, 1, &check, TRUE, 300, 7);
	assert_true(is_evaluated(&t));
	assert_int_equal(core_check_stats(t.f.core)->agreed, 1);
	fixture_close(&t.f);
}

/* A worker that takes the check and does not compute it, again and again, delays the evaluation for
 * a bounded time. */
TEST(a_worker_that_never_computes_its_check_delays_an_evaluation_for_a_bounded_time)
{
	struct core_config cfg = checked();
	struct fleet t;
	uint32_t ticks = 0;

	cfg.sessions.suspect_ms = 1000000;
	cfg.sessions.dead_ms = 2000000;
	cfg.leases.backup_copies = BACKUP_LATE;
	open_checked_fleet(&t, cfg, 2);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote(&t, 0, TRUE);
	for (; !is_evaluated(&t); ticks++) {
		if (ticks % 10 == 0)
			(void)next_lease_of(&t.f, 11, t.s[1]);
		if (!is_evaluated(&t))
			fixture_tick(&t.f, 50);
		assert_true(ticks < 2 * CHECK_TICKS);
	}
	assert_int_equal(core_check_stats(t.f.core)->unchecked, 1);
	fixture_close(&t.f);
}

/* The device of worker 2 is broken. Its results are not finite, so they do not count as votes.
 * After each result, worker 2 requests work and gets the check again. */
TEST(a_check_of_a_broken_worker_delays_an_evaluation_briefly)
{
	struct core_config cfg = checked();
	struct fleet t;
	uint32_t ticks = 0;

	cfg.sessions.suspect_ms = 1000000;
	cfg.sessions.dead_ms = 2000000;
	open_checked_fleet(&t, cfg, 2);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote(&t, 0, TRUE);
	for (; !is_evaluated(&t); ticks++) {
		assert_true(ticks < 2 * CHECK_TICKS);
		const struct msg_grant g = *next_lease_of(&t.f, 11, t.s[1]);

		assert_int_equal(g.kind, GRANT_EVAL);
		fixture_tick(&t.f, 50);
		if (!is_evaluated(&t))
			report_sums(&t, 1, &g, TRUE, (double)INFINITY, 0);
	}
	assert_int_equal(core_check_stats(t.f.core)->unchecked, 1);
	fixture_close(&t.f);
}

TEST(the_last_possible_checker_leaves)
{
	struct fleet t;

	open_checked_fleet(&t, checked(), 2);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote(&t, 0, TRUE);
	assert_int_equal(next_lease_of(&t.f, 11, t.s[1])->kind, GRANT_EVAL);
	t.f.now_ms += t.f.cfg.sessions.suspect_ms + 1;
	fixture_heartbeat(&t.f, 10, t.s[0]);
	/* now the second worker is suspect, so the core no longer waits for its vote */
	fixture_tick(&t.f, 0);
	assert_true(is_evaluated(&t));
	fixture_close(&t.f);
}

TEST(without_checks_nothing_is_granted_twice)
{
	struct core_config cfg = checked();
	struct fleet t;

	cfg.leases.eval_checks = 0;
	open_checked_fleet(&t, cfg, 3);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote(&t, 0, LIE);
	assert_true(is_evaluated(&t));
	assert_int_equal(snapshot_size(t.f.core, SNAPSHOT_CHECKS), 0);
	fixture_close(&t.f);
}

/* ---- the sample, snapshots ------------------------------------------------------------------ */

TEST(the_sample_has_as_many_portions_as_the_option_says)
{
	struct core_config cfg = checked();
	uint32_t other = 0;

	cfg.leases.eval_images = 100;
	cfg.leases.eval_checks = 3;
	for (uint64_t key = 1; key <= 20; key++) {
		struct fleet t;

		cfg.proof_key[0] = key;
		open_checked_fleet(&t, cfg, 1);
		train_epoch(&t.f, 10, t.s[0], 0);
		assert_int_equal(t.f.core->checks.n, 3);
		for (uint32_t i = 0; i < 3; i++) {
			assert_true(t.f.core->checks.check[i].portion < 10);
			for (uint32_t j = 0; j < i; j++)
				assert_int_not_equal(t.f.core->checks.check[i].portion,
					t.f.core->checks.check[j].portion);
		}
		other += t.f.core->checks.check[0].portion != 0;
		fixture_close(&t.f);
	}
	assert_true(other > 5); /* the sample depends on the secret */
}

TEST(a_check_goes_on_after_a_restart)
{
	struct fleet t;

	open_checked_fleet(&t, checked(), 3);
	train_epoch(&t.f, 11, t.s[1], 0);
	vote(&t, 0, LIE);
	vote(&t, 1, TRUE);
	uint64_t seq = fixture_worker(&t.f, 2).last_seq;
	fixture_restart(&t.f);
	assert_int_equal(t.f.core->checks.n, 1);
	for (uint32_t i = 0; i < 3; i++) {
		struct msg m = fixture_resume(t.s[i], i == 1 ? seq : 0, 0);

		m.hello.data.n_test = IMAGES;
		fixture_message(&t.f, 10 + i, &m);
		t.s[i] = fixture_sent(&t.f, 10 + i, MSG_WELCOME)->welcome.stamp;
	}
	vote(&t, 2, TRUE);
	assert_true(is_evaluated(&t));
	assert_int_equal(fixture_effect(&t.f, EFFECT_DISPUTED)->worker, 1);
	assert_int_equal(first_record(&t)->eval_correct, TRUE);
	fixture_close(&t.f);
}

TEST(a_snapshot_with_two_votes_of_one_worker_is_refused)
{
	struct core_config cfg = checked();
	struct core_fixture f;
	struct fleet t;
	const char *why;

	open_checked_fleet(&t, cfg, 3);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote(&t, 0, LIE);
	struct check *check = &t.f.core->checks.check[0];
	assert_int_equal(check->n, 1);
	check->vote[check->n++] = check->vote[0];
	struct core_snapshot snapshot = fixture_save(&t.f);
	fixture_close(&t.f);
	f = t.f;
	assert_int_equal(fixture_read(&f, cfg, &snapshot, &why), PS_ECHECKPOINT);
	fixture_close(&f);
	fixture_drop(&snapshot);
}

TEST(a_snapshot_with_an_impossible_check_is_refused)
{
	struct core_config cfg = checked();
	struct core_fixture f;
	struct fleet t;
	const char *why;

	open_checked_fleet(&t, cfg, 3);
	train_epoch(&t.f, 10, t.s[0], 0);
	vote(&t, 0, LIE);
	struct core_snapshot snapshot = fixture_save(&t.f);
	unsigned char *section = snapshot.data[SNAPSHOT_CHECKS];
	/* the offsets of four values: the number of checks, the portion, the number of votes and
	 * the worker */
	const size_t bad[] = {40, 48, 56, 64};
	const unsigned char to[] = {MAX_CHECKS + 1, 1, CHECK_VOTES, 0};

	fixture_close(&t.f);
	f = t.f;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		unsigned char old = section[bad[i]];

		section[bad[i]] = to[i];
		assert_int_equal(fixture_read(&f, cfg, &snapshot, &why), PS_ECHECKPOINT);
		fixture_close(&f);
		section[bad[i]] = old;
	}
	assert_int_equal(fixture_read(&f, cfg, &snapshot, &why), PS_OK);
	fixture_close(&f);
	/* without the open check, all portions are done, but the evaluation has not ended */
	snapshot.size[SNAPSHOT_CHECKS] = 0;
	assert_int_equal(fixture_read(&f, cfg, &snapshot, &why), PS_ECHECKPOINT);
	fixture_close(&f);
	fixture_drop(&snapshot);
}
