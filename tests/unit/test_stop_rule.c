/* test_stop_rule.c - which texts --stop-at accepts, and after which epochs a rule ends a run. */
#include "server/config/stop_rule.h"
#include "tests/support/direct_worker.h"
#include "tests/support/test.h"

static struct options options;
static struct startup run;
static struct direct_worker worker;

static int tear_down_run(void **state)
{
	(void)state;
	startup_release(&run);
	return 0;
}

static void begin_ruled_run(void)
{
	parse_options(&options, "--model;fc:10;--epochs;9;--batch-size;100");
	start_core(&run, &options);
	worker = (struct direct_worker){.core = run.core, .peer = 5, .now_ms = 1000};
	direct_join(&worker, "", 100, 100);
}

/* Train an epoch of one batch. In its evaluation, `correct` of 100 images are right. */
static void complete_epoch(uint32_t correct)
{
	const struct work work = direct_lease(&worker)->work;

	assert_int_equal(direct_push(&worker, work, 100, 0.25f, 0.5f)->verdict, VERDICT_OK);
	assert_int_equal(direct_lease(&worker)->kind, GRANT_EVAL);
	direct_result(&worker, correct, 0.5 * 100);
}

TEST(an_accuracy_is_read)
{
	static const char *const bad[] = {"", "accuracy", "accuracy=", "accuracy=0", "accuracy=1.5",
		"accuracy=-1", "accuracy=0.9x", "accuracy= 0.5", "accuracy=nan", "loss=0.1"};
	struct stop_rule r;

	assert_true(stop_rule_parse("accuracy=0.25", &r));
	assert_true(r.accuracy == 0.25);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(stop_rule_parse(bad[i], &r));
}

TEST_IN(an_accuracy_ends_a_run, NULL, tear_down_run)
{
	const struct stop_rule r = {.accuracy = 0.5};
	char why[STOP_TEXT];

	begin_ruled_run();
	assert_false(stop_rule_is_met(&r, run.core, why));
	complete_epoch(49);
	assert_false(stop_rule_is_met(&r, run.core, why));
	complete_epoch(50);
	assert_true(stop_rule_is_met(&r, run.core, why));
	assert_string_equal(why, "the goal of --stop-at is reached: epoch 2 has accuracy 0.5000");
}

/* The rule reads the state after the newest evaluated epoch, so the answer is 1 only until a better
 * epoch follows. */
TEST_IN(epochs_in_a_row_without_a_better_accuracy_end_a_run, NULL, tear_down_run)
{
	static const struct {
		uint32_t correct;
		int met;
	} epoch[] = {{20, 0}, {10, 0}, {30, 0}, {30, 0}, {20, 1}, {31, 0}, {31, 0}, {0, 1}, {9, 1}};
	const struct stop_rule r = {.patience = 2};
	char why[STOP_TEXT];

	begin_ruled_run();
	assert_false(stop_rule_is_met(&r, run.core, why));
	for (size_t i = 0; i < sizeof(epoch) / sizeof(epoch[0]); i++) {
		complete_epoch(epoch[i].correct);
		assert_int_equal(stop_rule_is_met(&r, run.core, why), epoch[i].met);
	}
	assert_string_equal(why, "the run no longer improves (--patience-epochs): no epoch since 6 "
				 "is better than its accuracy 0.3100");
}

TEST_IN(a_run_without_a_rule_does_not_end, NULL, tear_down_run)
{
	const struct stop_rule none = {.accuracy = 0};
	char why[STOP_TEXT];

	begin_ruled_run();
	for (int i = 0; i < 3; i++)
		complete_epoch(100);
	assert_false(stop_rule_is_met(&none, run.core, why));
}
