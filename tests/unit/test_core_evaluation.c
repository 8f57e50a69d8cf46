/*
 * Proves invariant 2 and the promises 2 and 3 of server/core/leases.h: an epoch is evaluated in
 * portions while the next epoch trains, each portion counts once, the evaluation ends before the
 * next epoch ends, and in the asynchronous modes only one worker evaluates while the others train.
 * This file also proves promise 1 of leases.h with random workers.
 */
#include "tests/support/random_workers.h"
#include <math.h>
#include "tests/support/core_cluster.h"
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

/* Pushes all batches of `epoch` at once. */
static void push_epoch(struct core_fixture *f, struct stamp s, uint32_t epoch)
{
	struct msg m = fixture_push_ones(s, fixture_worker(f, s.worker).last_seq + 1);

	fixture_work(&m, epoch, 0, 4);
	fixture_applied(f, 9, &m);
}

static void result(struct core_fixture *f, uint32_t peer, struct stamp s, const struct msg_grant *g)
{
	struct msg m = {.type = MSG_RESULT};

	m.result = (struct msg_result){.stamp = s,
		.eval_id = g->eval_id,
		.eval_first = g->eval_first,
		.eval_count = g->eval_count,
		.correct = g->eval_count - 1 + (g->eval_count == 1),
		.loss_sum = 0.25 * g->eval_count};
	fixture_message(f, peer, &m);
}

/* ---- portions ------------------------------------------------------------------------------- */

TEST(evaluation_is_granted_in_portions_before_any_training)
{
	struct core_fixture f;
	struct stamp s;
	struct msg_grant g;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	push_epoch(&f, s, 0);
	for (uint32_t i = 0; i < 3; i++) {
		g = fixture_grant(&f, 9, s, i + 1);
		assert_int_equal(g.kind, GRANT_EVAL);
		assert_int_equal(g.eval_first, 3 * i);
		assert_int_equal(g.eval_count, i < 2 ? 3 : 1);
		assert_int_equal(g.eval_id, 1);
		result(&f, 9, s, &g);
		/* the server does not answer a RESULT */
		assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
		assert_int_equal(fixture_count(&f, EFFECT_EVALUATED), i == 2);
	}
	assert_int_equal(core_epoch(f.core, 0)->eval_done, 7);
	assert_int_equal(core_epoch(f.core, 0)->eval_correct, 2 + 2 + 1);
	assert_true(core_epoch(f.core, 0)->eval_loss_sum == 0.25 * 7);
	assert_int_equal(fixture_grant(&f, 9, s, 4).kind, GRANT_TRAIN);
	fixture_close(&f);
}

TEST(the_largest_test_set_has_room_for_its_portions)
{
	struct core_config cfg = fixture_training();
	struct msg m = fixture_hello("");
	struct core_fixture f;
	struct stamp s;

	cfg.leases.eval_images = 1;
	fixture_open(&f, cfg);
	m.hello.data.n_test = WIRE_MAX_IMAGES;
	fixture_message(&f, 9, &m);
	fixture_durable(&f);
	s = fixture_sent(&f, 9, MSG_WELCOME)->welcome.stamp;
	push_epoch(&f, s, 0);
	assert_int_equal(fixture_grant(&f, 9, s, 1).eval_count, WIRE_MAX_IMAGES / WIRE_MAX_BATCHES);
	assert_int_equal(f.core->leases.n_portions, WIRE_MAX_BATCHES);
	fixture_close(&f);
}

TEST(while_others_evaluate_the_rest_train)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s, t;

	cfg.leases.eval_images = 100; /* the whole test set is one portion */
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	t = fixture_join(&f, 10, "");
	push_epoch(&f, s, 0);
	assert_int_equal(fixture_grant(&f, 9, s, 1).eval_count, 7);
	assert_int_equal(fixture_grant(&f, 10, t, 1).kind, GRANT_TRAIN);
	fixture_close(&f);
}

TEST(weights_under_evaluation_stand_still)
{
	struct core_fixture f;
	struct stamp s;
	struct msg_grant g;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	fixture_pull(&f, 9, s, WEIGHTS_EVAL);
	fixture_refused(&f, 9, PS_EAGAIN);
	push_epoch(&f, s, 0);
	struct msg m = fixture_push_ones(s, 2);
	fixture_work(&m, 1, 0, 1);
	fixture_applied(&f, 9, &m);
	fixture_pull(&f, 9, s, WEIGHTS_EVAL);
	assert_int_equal(fixture_sent(&f, 9, MSG_PARAMS)->params.version, 1);
	assert_true(fixture_sent(&f, 9, MSG_PARAMS)->params.slices.slice[0].data[0] == -1.0f);
	fixture_pull(&f, 9, s, WEIGHTS_CURRENT);
	assert_int_equal(fixture_sent(&f, 9, MSG_PARAMS)->params.version, 2);
	assert_true(fixture_sent(&f, 9, MSG_PARAMS)->params.slices.slice[0].data[0] == -2.0f);
	fixture_restart(&f); /* a crash must not change the weights under evaluation */
	s = fixture_come_back(&f, 9, s, 2);
	fixture_pull(&f, 9, s, WEIGHTS_EVAL);
	assert_int_equal(fixture_sent(&f, 9, MSG_PARAMS)->params.version, 1);
	assert_true(fixture_sent(&f, 9, MSG_PARAMS)->params.slices.slice[0].data[0] == -1.0f);
	for (uint64_t i = 1; i <= 3; i++) {
		g = fixture_grant(&f, 9, s, i);
		result(&f, 9, s, &g);
	}
	fixture_pull(&f, 9, s, WEIGHTS_EVAL);
	fixture_refused(&f, 9, PS_EAGAIN);
	fixture_close(&f);
}

TEST(the_evaluated_weights_stand_still_in_the_step_that_ends_an_evaluation)
{
	struct core_fixture f;
	struct stamp s;
	struct msg_grant g;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	assert_null(core_evaluated_weights(f.core));
	push_epoch(&f, s, 0);
	push_epoch(&f, s, 1); /* epoch 1 is trained before epoch 0 is evaluated */
	for (uint64_t i = 1; i <= 3; i++) {
		assert_null(core_evaluated_weights(f.core)); /* epoch 0 is under evaluation */
		g = fixture_grant(&f, 9, s, i);
		assert_int_equal(g.eval_id, 1);
		result(&f, 9, s, &g);
	}
	assert_int_equal(fixture_count(&f, EFFECT_EVALUATED), 1);
	assert_true(core_evaluated_weights(f.core)[0] == -1.0f);
	fixture_tick(&f, 1); /* the evaluation of epoch 1 begins */
	assert_null(core_evaluated_weights(f.core));
	assert_int_equal(fixture_grant(&f, 9, s, 4).eval_id, 2);
	fixture_close(&f);
}

TEST(a_snapshot_after_an_evaluation_does_not_have_its_weights)
{
	struct core_fixture f;
	struct stamp s;
	struct msg_grant g;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	push_epoch(&f, s, 0);
	g = fixture_grant(&f, 9, s, 1);
	result(&f, 9, s, &g);
	fixture_restart(&f); /* in the middle of the evaluation */
	s = fixture_come_back(&f, 9, s, 1);
	for (uint64_t i = 2; i <= 3; i++) {
		g = fixture_grant(&f, 9, s, i);
		result(&f, 9, s, &g);
	}
	assert_int_equal(fixture_count(&f, EFFECT_EVALUATED), 1);
	assert_true(core_evaluated_weights(f.core)[0] == -1.0f);
	fixture_restart(&f);
	assert_null(core_evaluated_weights(f.core));
	fixture_close(&f);
}

/* ---- one worker evaluates, the others train ------------------------------------------------- */

enum { EVALUATOR, TRAINER, THIRD };

/* A run of several workers in which the evaluation of the first epoch has begun. The evaluation has
 * three portions, the EVALUATOR has the first one, and an epoch has 10 batches. */
static void begin_evaluation(struct cluster *k, struct core_config cfg, uint32_t workers)
{
	cluster_open(k, cfg, workers, 100, cluster_ones);
	while (!k->f.core->leases.evaluating)
		cluster_act(k, EVALUATOR);
	cluster_request(k, EVALUATOR);
	assert_int_equal(k->worker[EVALUATOR].grant.kind, GRANT_EVAL);
	assert_int_equal(k->worker[EVALUATOR].grant.eval_first, 0);
}

static void assert_evaluates(struct cluster *k, uint32_t i, uint32_t portion)
{
	cluster_request(k, i);
	assert_int_equal(k->worker[i].grant.request, k->worker[i].request);
	assert_int_equal(k->worker[i].grant.kind, GRANT_EVAL);
	assert_int_equal(k->worker[i].grant.eval_first, 3 * portion);
}

static void assert_trains(struct cluster *k, uint32_t i)
{
	assert_int_equal(cluster_request(k, i), 1);
}

/* Lets worker `i` deliver all batches of the epoch in training. */
static void train_the_rest(struct cluster *k, uint32_t i)
{
	while (k->f.core->leases.n_free > 0) {
		assert_trains(k, i);
		cluster_push(k, i);
	}
}

TEST(one_worker_evaluates_while_the_others_train)
{
	struct cluster k;

	begin_evaluation(&k, fixture_training(), 2);
	for (uint32_t portion = 1; portion < 3; portion++) {
		assert_trains(&k, TRAINER);
		cluster_evaluate(&k, EVALUATOR);
		/* the evaluator has not asked for the next portion yet, but it is expected to */
		cluster_push(&k, TRAINER);
		assert_trains(&k, TRAINER);
		assert_evaluates(&k, EVALUATOR, portion);
		cluster_push(&k, TRAINER);
	}
	cluster_evaluate(&k, EVALUATOR);
	assert_true(core_is_evaluated(k.f.core, 0));
	assert_trains(&k, EVALUATOR);
	cluster_close(&k);
}

/* If no batch is free, a worker that evaluates keeps nobody from training. */
TEST(workers_without_batches_evaluate_with_the_first_one)
{
	struct cluster k;

	begin_evaluation(&k, fixture_training(), 2);
	train_the_rest(&k, TRAINER);
	assert_evaluates(&k, TRAINER, 1);
	cluster_evaluate(&k, TRAINER);
	assert_evaluates(&k, TRAINER, 2);
	cluster_evaluate(&k, TRAINER);
	assert_int_equal(core_training_epoch(k.f.core), 1);
	assert_int_equal(cluster_request(&k, TRAINER), 0);
	cluster_evaluate(&k, EVALUATOR);
	assert_int_equal(core_training_epoch(k.f.core), 2);
	assert_int_equal(k.f.core->leases.evaluating, 1);
	cluster_close(&k);
}

TEST(after_the_last_epoch_all_workers_evaluate)
{
	struct core_config cfg = fixture_training();
	struct cluster k;

	cfg.training.epochs = 1;
	begin_evaluation(&k, cfg, 3);
	assert_evaluates(&k, TRAINER, 1);
	assert_evaluates(&k, THIRD, 2);
	cluster_close(&k);
}

/* Returns the number of workers, of two, that evaluate when the first epoch of a run ends. */
static uint32_t count_evaluators(struct core_config cfg)
{
	uint32_t n = 0;
	struct cluster k;

	cluster_open(&k, cfg, 2, 100, cluster_ones);
	for (uint32_t i = 0; !k.f.core->leases.evaluating; i = !i)
		cluster_act(&k, i);
	for (uint32_t i = 0; i < 2; i++) {
		if (k.worker[i].grant.kind != GRANT_EVAL && !k.worker[i].grant.work.count)
			cluster_request(&k, i);
		n += k.worker[i].grant.kind == GRANT_EVAL;
	}
	cluster_close(&k);
	return n;
}

TEST(all_workers_evaluate_if_the_others_would_wait_for_the_evaluator)
{
	const struct core_config cfg = fixture_training();

	for (enum mode mode = MODE_DOWNPOUR; mode <= MODE_EASGD; mode++) {
		struct core_config c = cfg;

		c.training.mode = mode;
		c.ssp.bound = 4;
		assert_int_equal(
			count_evaluators(c), mode == MODE_SYNC || mode == MODE_SANDBLASTER ? 2 : 1);
	}
	struct core_config robust = cfg;
	robust.push.buffer_size = 2;
	robust.push.aggregate = AGGREGATE_MEDIAN;
	assert_int_equal(count_evaluators(robust), 2);
}

/* Worker 0 trains alone during a warm start, so worker 1 can evaluate as well. */
TEST(a_worker_that_may_not_train_evaluates_too)
{
	struct core_config cfg = fixture_training();
	struct cluster k;

	cfg.leases.warm_start_updates = 1000;
	begin_evaluation(&k, cfg, 3);
	assert_trains(&k, TRAINER);
	assert_evaluates(&k, THIRD, 1);
	cluster_close(&k);
}

/* ---- another worker takes the evaluation over ------------------------------------------------ */

/* Lets `ms` milliseconds pass, in which all workers but the EVALUATOR send heartbeats. */
static void pass_without_the_evaluator(struct cluster *k, uint64_t ms)
{
	k->f.now_ms += ms;
	for (uint32_t i = TRAINER; i < k->n; i++)
		fixture_heartbeat(&k->f, k->worker[i].peer + 1, k->worker[i].s);
	fixture_tick(&k->f, 0);
}

/* Checks that the next worker that asks evaluates all portions, while another one trains. */
static void assert_taken_over(struct cluster *k)
{
	assert_evaluates(k, TRAINER, 0);
	assert_trains(k, THIRD);
	cluster_evaluate(k, TRAINER);
	assert_evaluates(k, TRAINER, 1);
	cluster_evaluate(k, TRAINER);
	assert_evaluates(k, TRAINER, 2);
	cluster_evaluate(k, TRAINER);
	assert_true(core_is_evaluated(k->f.core, 0));
}

TEST(an_evaluation_goes_on_without_a_silent_worker)
{
	struct cluster k;

	begin_evaluation(&k, fixture_training(), 3);
	pass_without_the_evaluator(&k, k.f.cfg.sessions.suspect_ms + 1);
	assert_taken_over(&k);
	cluster_close(&k);
}

TEST(an_evaluation_goes_on_without_a_worker_that_leaves)
{
	struct cluster k;

	begin_evaluation(&k, fixture_training(), 3);
	fixture_bye(&k.f, k.worker[EVALUATOR].peer, k.worker[EVALUATOR].s);
	assert_taken_over(&k);
	cluster_close(&k);
}

/* The device of the EVALUATOR is broken, and its results are not finite. */
TEST(an_evaluation_goes_on_without_an_excluded_worker)
{
	struct cluster k;

	begin_evaluation(&k, fixture_training(), 3);
	const struct cluster_worker *w = &k.worker[EVALUATOR];
	struct msg m = {.type = MSG_RESULT,
		.result = {.stamp = w->s,
			.eval_id = w->grant.eval_id,
			.eval_count = w->grant.eval_count,
			.loss_sum = (double)INFINITY}};
	for (int i = 0; !fixture_worker(&k.f, 1).excluded; i++) {
		assert_true(i < 100);
		assert_trains(&k, TRAINER);
		fixture_message(&k.f, w->peer, &m);
	}
	assert_taken_over(&k);
	cluster_close(&k);
}

TEST(an_evaluation_goes_on_without_a_worker_that_skips_its_portion)
{
	struct cluster k;

	begin_evaluation(&k, fixture_training(), 3);
	assert_trains(&k, TRAINER); /* otherwise nobody else would be at work */
	assert_trains(&k, EVALUATOR);
	assert_taken_over(&k);
	cluster_close(&k);
}

/* A hanging worker evaluates until its deadline (pace.h). */
TEST(an_evaluation_goes_on_without_a_hanging_worker)
{
	struct core_config cfg = fixture_training();
	struct cluster k;

	cfg.sessions.suspect_ms = 1000000;
	cfg.sessions.dead_ms = 2000000;
	cfg.training.epochs = 3;
	begin_evaluation(&k, cfg, 3);
	pass_without_the_evaluator(&k, cfg.leases.first_deadline_ms - 1);
	assert_trains(&k, TRAINER);
	pass_without_the_evaluator(&k, 2);
	assert_taken_over(&k);
	cluster_close(&k);
}

TEST(a_worker_that_returns_leaves_the_evaluation_to_the_next_one)
{
	struct cluster k;

	begin_evaluation(&k, fixture_training(), 3);
	pass_without_the_evaluator(&k, k.f.cfg.sessions.suspect_ms + 1);
	assert_evaluates(&k, TRAINER, 0);
	fixture_heartbeat(&k.f, k.worker[EVALUATOR].peer + 1, k.worker[EVALUATOR].s);
	cluster_evaluate(&k, EVALUATOR); /* its late result is the first one, and counts */
	assert_int_equal(core_epoch(k.f.core, 0)->eval_done, 3);
	assert_trains(&k, EVALUATOR);
	cluster_evaluate(&k, TRAINER);
	assert_evaluates(&k, TRAINER, 1);
	cluster_close(&k);
}

TEST(the_same_worker_evaluates_after_a_restart)
{
	struct cluster k;

	begin_evaluation(&k, fixture_training(), 2);
	cluster_restart(&k, 2);
	assert_trains(&k, TRAINER);
	cluster_evaluate(&k, EVALUATOR);
	assert_evaluates(&k, EVALUATOR, 1);
	cluster_close(&k);
}

/* ---- RESULT --------------------------------------------------------------------------------- */

TEST(a_result_that_was_never_granted_is_refused)
{
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	push_epoch(&f, s, 0);
	const struct msg_result good = {s, 1, 3, 3, 3, 1.0, 0, {0}};
	const struct msg_result bad[] = {{s, 1, 1, 3, 1, 1, 0, {0}}, {s, 1, 9, 3, 1, 1, 0, {0}},
		{s, 1, 7, 0, 0, 1, 0, {0}}, {s, 1, 3, 2, 1, 1, 0, {0}}, {s, 1, 3, 4, 1, 1, 0, {0}},
		{s, 1, 6, 3, 1, 1, 0, {0}}, {s, 1, 3, 3, 4, 1, 0, {0}},
		{s, 1, UINT32_MAX - 2, 3, 1, 1, 0, {0}}};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct msg m = {.type = MSG_RESULT, .result = bad[i]};

		fixture_message(&f, 9, &m);
		fixture_refused(&f, 9, PS_EPROTO);
		assert_int_equal(core_epoch(f.core, 0)->eval_done, 0);
	}
	/* this result counts although it was not granted, but it counts only once */
	for (int i = 0; i < 2; i++) {
		struct msg m = {.type = MSG_RESULT, .result = good};

		fixture_message(&f, 9, &m);
		assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
		assert_int_equal(core_epoch(f.core, 0)->eval_done, 3);
		assert_int_equal(core_epoch(f.core, 0)->eval_correct, 3);
	}
	fixture_close(&f);
}

TEST(metrics_are_summed_and_survive_a_crash)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s;

	memcpy(cfg.metrics, "bits top_5", sizeof("bits top_5"));
	fixture_open(&f, cfg);
	struct msg hello = fixture_hello("");
	/* refused, because this worker can compute no metric but the accuracy */
	fixture_message(&f, 9, &hello);
	fixture_refused(&f, 9, PS_EWRONGDATA);
	memcpy(hello.hello.metrics, cfg.metrics, sizeof(cfg.metrics));
	fixture_message(&f, 9, &hello);
	fixture_durable(&f);
	s = fixture_sent(&f, 9, MSG_WELCOME)->welcome.stamp;
	push_epoch(&f, s, 0);
	for (uint64_t i = 1; i <= 2; i++) {
		struct msg_grant g = fixture_grant(&f, 9, s, i);
		struct msg m = {.type = MSG_RESULT,
			.result = {s, g.eval_id, g.eval_first, g.eval_count, 0, 1, g.code,
				{0.5, -3, 0, 0}}};

		fixture_message(&f, 9, &m);
		if (i == 1) {
			fixture_restart(&f);
			hello = fixture_resume(s, 1, 1);
			memcpy(hello.hello.metrics, cfg.metrics, sizeof(cfg.metrics));
			fixture_message(&f, 9, &hello);
			s = fixture_sent(&f, 9, MSG_WELCOME)->welcome.stamp;
		}
	}
	assert_true(core_epoch(f.core, 0)->metric_sum[0] == 1);
	assert_true(core_epoch(f.core, 0)->metric_sum[1] == -6);
	fixture_close(&f);
}

TEST(metrics_that_are_not_finite_do_not_count)
{
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	push_epoch(&f, s, 0);
	struct msg_grant g = fixture_grant(&f, 9, s, 1);
	struct msg m = {.type = MSG_RESULT,
		.result = {s, g.eval_id, g.eval_first, g.eval_count, 0, 1, g.code,
			{0, 0, 0, (double)INFINITY}}};
	fixture_message(&f, 9, &m);
	assert_int_equal(core_epoch(f.core, 0)->eval_done, 0);
	assert_true(core_epoch(f.core, 0)->metric_sum[3] == 0);
	fixture_close(&f);
}

TEST(a_late_result_of_another_evaluation_is_ignored)
{
	struct core_fixture f;
	struct stamp s;
	struct msg_grant g = {.eval_id = 1, .eval_first = 0, .eval_count = 3};

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	result(&f, 9, s, &g); /* no evaluation is in progress */
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	push_epoch(&f, s, 0);
	g.eval_id = 2;
	result(&f, 9, s, &g);
	g.eval_id = 0;
	result(&f, 9, s, &g);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	assert_int_equal(core_epoch(f.core, 0)->eval_done, 0);
	fixture_close(&f);
}

TEST(a_portion_whose_worker_vanished_is_granted_again)
{
	struct core_fixture f;
	struct stamp s, t;
	struct msg_grant g;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	t = fixture_join(&f, 10, "");
	push_epoch(&f, s, 0);
	for (uint64_t i = 1; i <= 3; i++) {
		g = fixture_grant(&f, 9, s, i);
		if (i < 3)
			result(&f, 9, s, &g);
	}
	fixture_lease(&f, 10, t, 1);
	assert_int_equal(fixture_sent(&f, 10, MSG_GRANT)->grant.kind, GRANT_TRAIN);
	f.now_ms += f.cfg.sessions.suspect_ms + 1;
	fixture_heartbeat(&f, 10, t);
	fixture_tick(&f, 0);
	g = fixture_grant(&f, 10, t, 2);
	assert_int_equal(g.kind, GRANT_EVAL);
	assert_int_equal(g.eval_first, 6);
	result(&f, 10, t, &g);
	assert_int_equal(fixture_count(&f, EFFECT_EVALUATED), 1);
	result(&f, 9, s, &g); /* the late result of the silent worker must not count again */
	assert_int_equal(core_epoch(f.core, 0)->eval_done, 7);
	fixture_close(&f);
}

TEST(the_next_epoch_ends_only_after_the_last_ones_evaluation)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct stamp s;
	struct msg_grant g;

	cfg.training.epochs = 3;
	fixture_open(&f, cfg);
	s = fixture_join(&f, 9, "");
	push_epoch(&f, s, 0);
	push_epoch(&f, s, 1);
	assert_int_equal(fixture_count(&f, EFFECT_TRAINED), 0);
	assert_int_equal(core_training_epoch(f.core), 1);
	for (uint64_t i = 1; i <= 3; i++) {
		g = fixture_grant(&f, 9, s, i);
		assert_int_equal(g.eval_id, 1);
		result(&f, 9, s, &g);
	}
	assert_int_equal(fixture_count(&f, EFFECT_EVALUATED), 1); /* epoch 0 is evaluated */
	assert_int_equal(core_training_epoch(f.core), 1);
	fixture_tick(&f, 1);
	assert_int_equal(fixture_count(&f, EFFECT_TRAINED), 1); /* epoch 1 is trained */
	assert_int_equal(core_training_epoch(f.core), 2);
	fixture_pull(&f, 9, s, WEIGHTS_EVAL);
	assert_int_equal(fixture_sent(&f, 9, MSG_PARAMS)->params.version, 2);
	g = fixture_grant(&f, 9, s, 4);
	assert_int_equal(g.eval_id, 2);
	fixture_close(&f);
}

/* ---- random workers -------------------------------------------------------------------------- */

static void random_run(uint64_t seed)
{
	struct core_config cfg = fixture_training();
	struct random_workers k = {.r = rng_seed(seed, RNG_SIM, 0)};
	int finished = 0, steps = 0;

	cfg.leases.warm_start_updates = (uint32_t)rng_below(&k.r, 3);
	cfg.leases.max_batches = 1 + (uint32_t)rng_below(&k.r, 4);
	cfg.leases.eval_images = 1 + (uint32_t)rng_below(&k.r, 7);
	fixture_open(&k.f, cfg);
	random_join(&k);
	while (!finished && steps++ < 20000) {
		random_step(&k);
		finished = fixture_count(&k.f, EFFECT_FINISH) > 0;
	}
	assert_true(finished);
	for (uint32_t i = 0; i < 8; i++)
		assert_true(core_weights(k.f.core)[i] == -1.0f);
	for (uint32_t e = 0; e < 2; e++) {
		assert_int_equal(core_epoch(k.f.core, e)->images, 35);
		assert_int_equal(core_epoch(k.f.core, e)->eval_done, 7);
	}
	fixture_close(&k.f);
}

TEST(whatever_workers_do_each_batch_and_portion_counts_once)
{
	for (uint64_t seed = 1; seed <= 60; seed++) {
		print_message("seed %llu\r", (unsigned long long)seed);
		random_run(seed);
	}
}
