/*
 * Proves the invariants numbered in server/core/sessions.c and the order of refusals: which
 * messages the server accepts, when it sends WELCOME, and which worker has which slot.
 * (test_core_resume.c tests how a session resumes.)
 */
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

/* ---- WELCOME -------------------------------------------------------------------------------- */

TEST(welcome_comes_when_the_incarnation_is_on_disk_and_not_before)
{
	struct core_fixture f, other;
	struct core_snapshot img;
	struct msg m = fixture_hello("anna");
	const struct msg_welcome *w;

	fixture_open(&f, fixture_config());
	fixture_message(&f, 9, &m);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	assert_int_equal(fixture_count(&f, EFFECT_SNAPSHOT), 1);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_JOINING);
	img = fixture_save(&f); /* as the shell does, encode the snapshot before the next tick */
	fixture_tick(&f, 50);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	fixture_durable(&f);
	assert_non_null(fixture_sent(&f, 9, MSG_WELCOME));
	w = &fixture_sent(&f, 9, MSG_WELCOME)->welcome;
	assert_int_equal(w->stamp.worker, 1);
	assert_int_equal(w->stamp.incarnation, 1);
	assert_int_equal(w->stamp.term, f.cfg.term);
	assert_memory_equal(&w->stamp.run, &f.cfg.run, sizeof(w->stamp.run));
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_LIVE);
	fixture_load(&other, f.cfg, &img); /* the checkpoint contains the worker */
	assert_int_equal(fixture_worker(&other, 1).incarnation, 1);
	assert_string_equal(fixture_worker(&other, 1).name, "anna");
	fixture_close(&other);
	fixture_drop(&img);
	fixture_close(&f);
}

TEST(welcome_tells_all_that_a_worker_needs)
{
	struct core_config cfg = fixture_training();
	struct core_fixture f;
	struct msg m = fixture_hello("");
	const struct msg_welcome *w;

	fixture_open(&f, cfg);
	fixture_message(&f, 9, &m);
	fixture_durable(&f);
	w = &fixture_sent(&f, 9, MSG_WELCOME)->welcome;
	assert_string_equal(w->model, cfg.model);
	assert_int_equal(w->model_fingerprint, cfg.model_fingerprint);
	assert_int_equal(w->n_params, cfg.n_params);
	assert_int_equal(w->seed, cfg.training.seed);
	assert_int_equal(w->batch, cfg.training.batch_size);
	assert_int_equal(w->epochs, cfg.training.epochs);
	assert_int_equal(w->push_window, cfg.sessions.push_window);
	assert_int_equal(w->replay_window, cfg.sessions.replay_window);
	assert_int_equal(w->heartbeat_ms, cfg.sessions.heartbeat_ms);
	assert_int_equal(w->dead_ms, cfg.sessions.dead_ms);
	assert_int_equal(w->session_ttl_ms, cfg.sessions.ttl_ms);
	assert_int_equal(w->last_seq, 0);
	fixture_close(&f);
}

TEST(a_snapshot_begun_before_the_hello_welcomes_nobody)
{
	struct core_fixture f;
	struct msg m = fixture_hello("");

	fixture_open(&f, fixture_config());
	fixture_message(&f, 9, &m);
	/* this HELLO arrives while the first snapshot is in progress */
	fixture_message(&f, 10, &m);
	fixture_durable(&f);
	assert_non_null(fixture_sent(&f, 9, MSG_WELCOME));
	assert_null(fixture_sent(&f, 10, MSG_WELCOME));
	assert_int_not_equal(f.saving, 0); /* the next snapshot follows at once */
	fixture_durable(&f);
	assert_non_null(fixture_sent(&f, 10, MSG_WELCOME));
	assert_int_equal(fixture_sent(&f, 10, MSG_WELCOME)->welcome.stamp.worker, 2);
	fixture_close(&f);
}

TEST(without_a_disk_welcome_comes_at_once)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct msg m = fixture_hello("");

	cfg.durable = 0;
	fixture_open(&f, cfg);
	fixture_message(&f, 9, &m);
	assert_non_null(fixture_sent(&f, 9, MSG_WELCOME));
	assert_int_equal(fixture_count(&f, EFFECT_SNAPSHOT), 0);
	fixture_close(&f);
}

TEST(the_same_hello_again_is_answered_by_the_same_welcome)
{
	struct core_fixture f;
	struct msg m = fixture_hello("");

	fixture_open(&f, fixture_config());
	fixture_message(&f, 9, &m);
	fixture_message(&f, 9, &m); /* a repeated HELLO while the worker is joining */
	fixture_durable(&f);
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 1);
	assert_int_equal(f.saving, 0);
	fixture_message(&f, 9, &m); /* a repeated HELLO, as if the WELCOME had been lost */
	assert_int_equal(fixture_sent(&f, 9, MSG_WELCOME)->welcome.stamp.worker, 1);
	fixture_tick(&f, f.cfg.sessions.suspect_ms + 1);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_SUSPECT);
	/* HELLO again while the worker is suspect, because it has sent only HELLO */
	fixture_message(&f, 9, &m);
	assert_non_null(fixture_sent(&f, 9, MSG_WELCOME));
	assert_int_equal(fixture_sent(&f, 9, MSG_WELCOME)->welcome.stamp.worker, 1);
	assert_int_equal(fixture_sent(&f, 9, MSG_WELCOME)->welcome.stamp.incarnation, 1);
	assert_int_equal(fixture_worker(&f, 2).state, SESSION_FREE);
	fixture_close(&f);
}

TEST(nobody_is_welcomed_on_a_connection_that_is_gone)
{
	struct core_fixture f;
	struct msg m = fixture_hello("anna");

	fixture_open(&f, fixture_config());
	fixture_message(&f, 9, &m);
	fixture_gone(&f, 9);
	fixture_durable(&f); /* the fixture fails if the core sends a message to peer 0 */
	assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	assert_int_equal(fixture_join(&f, 10, "anna").incarnation, 2);
	fixture_close(&f);
}

TEST(messages_that_only_a_server_sends_are_refused)
{
	const enum msg_type types[] = {MSG_WELCOME, MSG_PARAMS, MSG_ACK, MSG_GRANT, MSG_ERROR};
	struct core_fixture f;

	fixture_open(&f, fixture_config());
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		struct msg m = {.type = types[i]};

		fixture_message(&f, 9, &m);
		fixture_refused(&f, 9, PS_EPROTO);
	}
	assert_int_equal(core_stats(f.core)->refused, 5);
	fixture_close(&f);
}

/* ---- refusals ------------------------------------------------------------------------------- */

static const enum msg_type stamped[] = {
	MSG_PULL, MSG_PUSH, MSG_LEASE, MSG_RESULT, MSG_HEARTBEAT, MSG_BYE};
#define STAMPED (sizeof(stamped) / sizeof(stamped[0]))

/* Returns a message of this type that would change the state of the server if its stamp were
 * valid. */
static struct msg message_of_worker(enum msg_type type, struct stamp s)
{
	struct msg m = fixture_push_ones(s, 1);

	fixture_work(&m, 0, 0, 1);
	m.type = type;
	switch (type) {
	case MSG_PULL:
		m.pull = (struct msg_pull){.stamp = s, .request = 1, .which = WEIGHTS_CURRENT};
		break;
	case MSG_LEASE:
		m.lease = (struct msg_lease){.stamp = s, .request = 1};
		break;
	case MSG_RESULT:
		m.result = (struct msg_result){.stamp = s, .eval_id = 1};
		break;
	case MSG_HEARTBEAT:
		m.heartbeat = (struct msg_heartbeat){.stamp = s};
		break;
	case MSG_BYE:
		m.bye = (struct msg_bye){.stamp = s};
		break;
	default:
		break;
	}
	return m;
}

/* Check that the server refuses the message with this status, and that only the counter of refusals
 * changes in its state. */
static void refused_and_harmless(
	struct core_fixture *f, enum msg_type type, const struct stamp *s, int status)
{
	struct core_snapshot before = fixture_save(f), after;
	struct msg m = message_of_worker(type, *s);
	uint64_t n = core_stats(f->core)->refused;

	fixture_message(f, 13, &m);
	fixture_refused(f, 13, status);
	assert_int_equal(core_stats(f->core)->refused, n + 1);
	f->core->stats.refused = n;
	after = fixture_save(f);
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++)
		assert_memory_equal(before.data[i], after.data[i], before.size[i]);
	fixture_drop(&before);
	fixture_drop(&after);
}

TEST(a_stamp_is_refused_for_its_run_then_incarnation_then_term_then_state)
{
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, fixture_training());
	fixture_join(&f, 9, "anna");
	s = fixture_join(&f, 10, "anna"); /* this process is incarnation 2 */
	assert_int_equal(s.incarnation, 2);
	fixture_tick(&f, f.cfg.sessions.dead_ms + 1);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_DEAD);
	for (size_t i = 0; i < STAMPED; i++) {
		struct stamp bad = s;

		bad.run.lo++;
		bad.term--;
		bad.incarnation--;
		refused_and_harmless(&f, stamped[i], &bad, PS_EWRONGRUN);
		bad.run.lo--;
		bad.run.hi++;
		refused_and_harmless(&f, stamped[i], &bad, PS_EWRONGRUN);
		bad.run.hi--;
		refused_and_harmless(&f, stamped[i], &bad, PS_EFENCED);
		bad.incarnation++;
		refused_and_harmless(&f, stamped[i], &bad, PS_ETERM);
		bad.term += 2;
		refused_and_harmless(&f, stamped[i], &bad, PS_ETERM);
		bad.term--;
		refused_and_harmless(&f, stamped[i], &bad, PS_ESTATE);
	}
	fixture_close(&f);
}

TEST(unknown_workers_and_incarnations_never_given_must_say_hello)
{
	struct core_fixture f;
	struct stamp s;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	for (size_t i = 0; i < STAMPED; i++) {
		const uint32_t ids[] = {2, 4, 5, UINT32_MAX};
		struct stamp bad = s;

		bad.incarnation = 2;
		refused_and_harmless(&f, stamped[i], &bad, PS_ESTATE);
		for (size_t k = 0; k < 4; k++) {
			bad.worker = ids[k];
			refused_and_harmless(&f, stamped[i], &bad, PS_ESTATE);
		}
		if (stamped[i] == MSG_PULL)
			continue; /* observers may pull */
		bad.worker = bad.incarnation = 0;
		refused_and_harmless(&f, stamped[i], &bad, PS_ESTATE);
	}
	fixture_close(&f);
}

TEST(messages_of_a_joining_worker_are_refused)
{
	struct core_fixture f;
	struct msg m = fixture_hello("");

	fixture_open(&f, fixture_training());
	fixture_message(&f, 9, &m);
	for (size_t i = 0; i < STAMPED; i++) {
		struct stamp guess = {f.cfg.run, f.cfg.term, 1, 1};

		refused_and_harmless(&f, stamped[i], &guess, PS_ESTATE);
	}
	fixture_close(&f);
}

TEST(observers_see_and_pull_without_a_slot)
{
	struct core_fixture f;
	struct msg m = fixture_hello("");
	struct stamp nobody = {{0, 0}, 0, 0, 0};

	fixture_open(&f, fixture_training());
	fixture_pull(&f, 8, nobody, WEIGHTS_CURRENT); /* an observer may pull without HELLO */
	assert_non_null(fixture_sent(&f, 8, MSG_PARAMS));
	m.hello.role = ROLE_OBSERVER;
	fixture_message(&f, 8, &m);
	assert_int_equal(fixture_sent(&f, 8, MSG_WELCOME)->welcome.stamp.worker, 0);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_FREE);
	/* the data set of an observer does not become the run's data set */
	assert_int_equal(core_data(f.core)->n_train, 0);
	assert_int_equal(core_live_workers(f.core), 0);
	fixture_close(&f);
}

/* ---- data sets ------------------------------------------------------------------------------ */

TEST(another_data_set_is_refused_by_every_field)
{
	struct core_fixture f;

	fixture_open(&f, fixture_training());
	struct msg first = fixture_push_ones(fixture_join(&f, 9, ""), 1);
	fixture_work(&first, 0, 0, 1);
	fixture_applied(&f, 9, &first); /* this push fixes the data set */
	for (int field = 0; field < 6; field++) {
		struct msg m = fixture_hello("");
		struct data_id *d = &m.hello.data;
		uint32_t *const u[] = {&d->n_train, &d->n_test, &d->rows, &d->cols, &d->classes};

		if (field < 5)
			++*u[field];
		else
			d->xxh3++;
		fixture_message(&f, 10, &m);
		fixture_refused(&f, 10, PS_EWRONGDATA);
		m.hello.resume = (struct stamp){f.cfg.run, f.cfg.term, 1, 1};
		fixture_message(&f, 10, &m);
		fixture_refused(&f, 10, PS_EWRONGDATA);
	}
	assert_int_equal(fixture_worker(&f, 2).state, SESSION_FREE);
	fixture_close(&f);
}

TEST(a_training_run_needs_a_data_set_that_fits)
{
	const struct data_id bad[] = {{0}, {.n_train = 35}, {.n_test = 7},
		{.n_train = 10 * WIRE_MAX_BATCHES + 1, .n_test = 7}};
	struct core_fixture f;
	struct msg m;

	fixture_open(&f, fixture_training());
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		m = fixture_hello("");
		m.hello.data = bad[i];
		fixture_message(&f, 9, &m);
		fixture_refused(&f, 9, PS_EWRONGDATA);
		assert_int_equal(core_data(f.core)->n_train, 0);
	}
	m.hello.data.n_train--; /* exactly 2^20 batches */
	fixture_message(&f, 9, &m);
	fixture_durable(&f);
	assert_non_null(fixture_sent(&f, 9, MSG_WELCOME));
	fixture_close(&f);
	/* in a run with 0 epochs the size of the data set is not checked */
	fixture_open(&f, fixture_config());
	m = fixture_hello("");
	m.hello.data = bad[0];
	fixture_message(&f, 9, &m);
	fixture_durable(&f);
	assert_non_null(fixture_sent(&f, 9, MSG_WELCOME));
	fixture_close(&f);
}

/* ---- silence -------------------------------------------------------------------------------- */

TEST(silence_makes_suspect_then_dead_and_a_message_makes_live)
{
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	fixture_open(&f, fixture_training());
	s = fixture_join(&f, 9, "");
	for (size_t i = 0; i + 1 < STAMPED; i++) { /* for each message type except BYE */
		fixture_tick(&f, f.cfg.sessions.suspect_ms);
		assert_int_equal(fixture_worker(&f, 1).state, SESSION_LIVE);
		fixture_tick(&f, 1);
		assert_int_equal(fixture_worker(&f, 1).state, SESSION_SUSPECT);
		assert_int_equal(core_live_workers(f.core), 0);
		m = message_of_worker(stamped[i], s);
		fixture_message(&f, 9, &m);
		assert_int_equal(fixture_worker(&f, 1).state, SESSION_LIVE);
	}
	fixture_tick(&f, f.cfg.sessions.dead_ms);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_SUSPECT);
	fixture_tick(&f, 1);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_DEAD);
	assert_int_equal(core_stats(f.core)->deaths, 1);
	fixture_heartbeat(&f, 12, s);
	fixture_refused(&f, 12, PS_ESTATE);
	fixture_close(&f);
}
