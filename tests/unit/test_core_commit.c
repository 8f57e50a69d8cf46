/* Proves the promises of core.h about EFFECT_COMMIT and durable_first. */
#include <math.h>
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

/* Returns 1 if the core has made EFFECT_COMMIT for the last event. If the core committed an event,
 * EFFECT_COMMIT must be the first effect of the event. */
static int commits(const struct core_fixture *f)
{
	size_t n = fixture_count(f, EFFECT_COMMIT);

	assert_true(n == 0 || (n == 1 && core_effect(f->core, 0)->kind == EFFECT_COMMIT));
	return n == 1;
}

/* Returns 1 if the message of this type that the last event sent waits for the disk, 0 if it does
 * not wait, and -1 if no such message was sent. */
static int waits_for_disk(const struct core_fixture *f, enum msg_type type)
{
	for (size_t i = 0; core_effect(f->core, i); i++) {
		const struct effect *e = core_effect(f->core, i);

		if (e->kind == EFFECT_SEND && e->msg.type == type)
			return e->durable_first;
	}
	return -1;
}

/* A reply to a request that changes nothing waits only for earlier events. */
TEST(a_query_commits_nothing_and_a_push_commits)
{
	struct msg hello = fixture_hello(""), admin = {.type = MSG_ADMIN};
	struct msg status = {.type = MSG_STATUS};
	struct core_fixture f;

	fixture_open(&f, fixture_config());
	struct stamp s = fixture_join(&f, 9, "");
	/* committed, because the core must not assign the same incarnation again after a crash */
	assert_true(commits(&f));
	assert_int_equal(waits_for_disk(&f, MSG_WELCOME), 1);
	hello.hello.role = ROLE_OBSERVER;
	fixture_message(&f, 8, &hello);
	assert_int_equal(waits_for_disk(&f, MSG_WELCOME), 0);
	assert_false(commits(&f));
	/* a reply with weights waits until the event that changed them is on the disk */
	fixture_pull(&f, 9, s, WEIGHTS_CURRENT);
	assert_int_equal(waits_for_disk(&f, MSG_PARAMS), 1);
	assert_false(commits(&f));
	fixture_heartbeat(&f, 10, s);
	assert_int_equal(waits_for_disk(&f, MSG_HEARTBEAT), 0);
	assert_false(commits(&f));
	fixture_message(&f, 8, &status);
	assert_false(commits(&f));
	struct msg push = fixture_push_ones(s, 1);
	fixture_message(&f, 9, &push);
	assert_int_equal(waits_for_disk(&f, MSG_ACK), 1);
	assert_true(commits(&f));
	push.push.seq = 2;
	push.push.loss = NAN;
	fixture_message(&f, 9, &push); /* committed, although the core rejects the push */
	assert_int_equal(waits_for_disk(&f, MSG_ACK), 1);
	assert_true(commits(&f));
	push.push.seq = 9;
	fixture_message(&f, 9, &push);
	assert_int_equal(waits_for_disk(&f, MSG_ERROR), 0);
	assert_false(commits(&f));
	admin.admin.verb = ADMIN_DRAIN;
	fixture_message(&f, 8, &admin);
	assert_int_equal(waits_for_disk(&f, MSG_ADMIN), 0);
	assert_false(commits(&f));
	fixture_close(&f);
}

/* A step of sync can end at a tick, without a message. The next weights depend on this tick, so the
 * core must commit the tick. */
TEST(new_weights_commit_without_a_message)
{
	struct core_config cfg = fixture_training();
	struct cluster k;

	cfg.training.mode = MODE_SYNC;
	cfg.leases.min_workers = 2;
	cluster_open(&k, cfg, 2, 400, cluster_ones);
	cluster_request(&k, 0);
	cluster_request(&k, 1);
	assert_int_equal(cluster_push(&k, 0), REJECT_NONE);
	uint64_t version = core_stats(k.f.core)->version;
	for (int i = 0; i < 100 && core_stats(k.f.core)->version == version;
		i++) /* both workers send nothing, until the step ends without them */
		fixture_tick(&k.f, 50);
	assert_int_equal(fixture_count(&k.f, EFFECT_SEND), 0);
	assert_true(commits(&k.f));
	cluster_close(&k);
}
