/* Proves the contract of server/durability/promise.h. */
#include "server/durability/promise.h"
#include <math.h>
#include "tests/unit/core_work.h"

static void whoever_looks_does_not_wait_for_the_disk(void **state)
{
	struct msg m = {.type = 0};

	(void)state;
	for (m.type = MSG_HELLO; m.type < MSG_TYPES; m.type++) {
		int waits = m.type != MSG_WELCOME && m.type != MSG_BEAT && m.type != MSG_STATUS &&
			    m.type != MSG_ADMIN && m.type != MSG_ERROR;

		assert_int_equal(promise_waits(&m), waits);
	}
	m = (struct msg){.type = MSG_WELCOME, .welcome = {.stamp = {.worker = 1}}};
	assert_int_equal(promise_waits(&m), 1); /* its incarnation must not be given twice */
}

/* What follows a look at the server waits for no more than what came before it. */
static void a_look_binds_nothing_and_a_push_does(void **state)
{
	struct msg hello = bench_hello(""), drain = {.type = MSG_ADMIN};
	struct bench b;

	(void)state;
	bench_open(&b, bench_config());
	struct stamp s = bench_join(&b, 9, "");
	assert_true(promise_binds(b.core, core_stats(b.core)->version)); /* it was welcomed */
	hello.hello.role = ROLE_OBSERVER;
	bench_message(&b, 8, &hello);
	assert_non_null(bench_sent(&b, 8, MSG_WELCOME));
	assert_false(promise_binds(b.core, core_stats(b.core)->version));
	bench_pull(&b, 9, s, WEIGHTS_CURRENT);
	assert_false(promise_binds(b.core, core_stats(b.core)->version));
	struct msg push = bench_push_ones(s, 1);
	uint64_t before = core_stats(b.core)->version;
	bench_message(&b, 9, &push);
	assert_true(promise_binds(b.core, before));
	push.push.seq = 2;
	push.push.loss = NAN;
	before = core_stats(b.core)->version;
	bench_message(&b, 9, &push); /* a rejection is an answer, too */
	assert_int_equal(core_stats(b.core)->version, before);
	assert_true(promise_binds(b.core, before));
	drain.admin.verb = ADMIN_DRAIN;
	bench_message(&b, 8, &drain);
	assert_non_null(bench_sent(&b, 8, MSG_ADMIN));
	assert_false(promise_binds(b.core, before));
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whoever_looks_does_not_wait_for_the_disk),
		cmocka_unit_test(a_look_binds_nothing_and_a_push_does),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
