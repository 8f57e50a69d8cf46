/* Proves what core.h says of EFFECT_COMMIT and durable_first. */
#include <math.h>
#include "tests/unit/core_modes.h"

/* The newest step commits its event, and says so first. */
static int commits(const struct bench *b)
{
	size_t n = bench_count(b, EFFECT_COMMIT);

	assert_true(n == 0 || (n == 1 && core_effect(b->core, 0)->kind == EFFECT_COMMIT));
	return n == 1;
}

/* Does the newest step's message of this type wait for the disk? */
static int waits(const struct bench *b, enum msg_type type)
{
	for (size_t i = 0; core_effect(b->core, i); i++) {
		const struct effect *e = core_effect(b->core, i);

		if (e->kind == EFFECT_SEND && e->msg.type == type)
			return e->durable_first;
	}
	return -1;
}

/* What follows a look at the server waits for no more than what came before it. */
static void a_look_commits_nothing_and_a_push_does(void **state)
{
	struct msg hello = bench_hello(""), admin = {.type = MSG_ADMIN};
	struct msg status = {.type = MSG_STATUS};
	struct bench b;

	(void)state;
	bench_open(&b, bench_config());
	struct stamp s = bench_join(&b, 9, "");
	assert_true(commits(&b)); /* its incarnation must not be given twice */
	assert_int_equal(waits(&b, MSG_WELCOME), 1);
	hello.hello.role = ROLE_OBSERVER;
	bench_message(&b, 8, &hello);
	assert_int_equal(waits(&b, MSG_WELCOME), 0);
	assert_false(commits(&b));
	bench_pull(&b, 9, s, WEIGHTS_CURRENT); /* weights: after the event that made them */
	assert_int_equal(waits(&b, MSG_PARAMS), 1);
	assert_false(commits(&b));
	bench_beat(&b, 10, s);
	assert_int_equal(waits(&b, MSG_BEAT), 0);
	assert_false(commits(&b));
	bench_message(&b, 8, &status);
	assert_false(commits(&b));
	struct msg push = bench_push_ones(s, 1);
	bench_message(&b, 9, &push);
	assert_int_equal(waits(&b, MSG_ACK), 1);
	assert_true(commits(&b));
	push.push.seq = 2;
	push.push.loss = NAN;
	bench_message(&b, 9, &push); /* a rejection is an answer, too */
	assert_int_equal(waits(&b, MSG_ACK), 1);
	assert_true(commits(&b));
	push.push.seq = 9;
	bench_message(&b, 9, &push);
	assert_int_equal(waits(&b, MSG_ERROR), 0);
	assert_false(commits(&b));
	admin.admin.verb = ADMIN_DRAIN;
	bench_message(&b, 8, &admin);
	assert_int_equal(waits(&b, MSG_ADMIN), 0);
	assert_false(commits(&b));
	bench_close(&b);
}

/* A step of sync ends without a message: the next weights follow from that event all the same. */
static void new_weights_commit_though_nobody_is_told(void **state)
{
	struct core_config cfg = bench_training();
	struct crew k;

	(void)state;
	cfg.training.mode = MODE_SYNC;
	cfg.leases.min_workers = 2;
	crew_open(&k, cfg, 2, 400, crew_ones);
	crew_ask(&k, 0);
	crew_ask(&k, 1);
	assert_int_equal(crew_push(&k, 0), REJECT_NONE);
	uint64_t version = core_stats(k.b.core)->version;
	for (int i = 0; i < 100 && core_stats(k.b.core)->version == version;
		i++) /* both fall silent */
		bench_tick(&k.b, 50);
	assert_int_equal(bench_count(&k.b, EFFECT_SEND), 0);
	assert_true(commits(&k.b));
	crew_close(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_look_commits_nothing_and_a_push_does),
		cmocka_unit_test(new_weights_commit_though_nobody_is_told),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
