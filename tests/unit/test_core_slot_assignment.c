/*
 * Proves promise 1 and a part of invariant 1 of server/core/sessions.c: which slot a worker gets,
 * and that the server never assigns an incarnation twice. Also tests a part of row A5 of
 * docs/faults.md: a key cannot take the slots of other keys.
 */
#include <string.h>
#include "server/core/view.h"
#include "tests/support/core_fixture.h"
#include "tests/support/test.h"

TEST(a_full_table_refuses_until_a_worker_is_dead)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct msg m = fixture_hello("");

	cfg.sessions.max_workers = 2;
	fixture_open(&f, cfg);
	fixture_join(&f, 9, "");
	fixture_join(&f, 10, "");
	fixture_message(&f, 11, &m);
	fixture_refused(&f, 11, PS_EFULL);
	fixture_tick(&f, cfg.sessions.dead_ms);
	/* refused, because the workers of both slots are suspect, not dead */
	fixture_message(&f, 11, &m);
	fixture_refused(&f, 11, PS_EFULL);
	fixture_tick(&f, 1);
	assert_int_equal(core_stats(f.core)->deaths, 2);
	assert_int_equal(fixture_join(&f, 11, "").incarnation, 2);
	fixture_close(&f);
}

TEST(the_slots_of_a_key_are_those_in_which_a_worker_may_return)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct msg m = fixture_hello("");
	struct stamp anna, other;
	uint32_t used;

	cfg.sessions.max_workers = 4;
	fixture_open(&f, cfg);
	assert_int_equal(core_is_blank(f.core), 1);
	fixture_join(&f, 9, "");
	assert_int_equal(core_is_blank(f.core), 0);
	fixture_tick(&f, cfg.sessions.dead_ms + 1);
	assert_int_equal(core_is_blank(f.core), 1);
	anna = fixture_join(&f, 10, "anna");
	fixture_join(&f, 11, "");
	/* a HELLO of a process that has no slot yet */
	assert_int_equal(core_needs_slot(f.core, 12, &m.hello, &used), 1);
	assert_int_equal(used, 2);
	other = anna;
	other.worker = 4;
	m = fixture_resume(other, 0, 0);
	assert_int_equal(core_needs_slot(f.core, 12, &m.hello, &used), 1);
	/* the process of a slot: on its connection, with its name, and with its session */
	m = fixture_hello("");
	assert_int_equal(core_needs_slot(f.core, 11, &m.hello, &used), 0);
	m = fixture_hello("anna");
	assert_int_equal(core_needs_slot(f.core, 12, &m.hello, &used), 0);
	m = fixture_resume(anna, 0, 0);
	assert_int_equal(core_needs_slot(f.core, 12, &m.hello, &used), 0);
	/* a HELLO with the name of a slot, but another key */
	m = fixture_hello("anna");
	memset(m.hello.owner, 'k', WIRE_MAX_OWNER);
	assert_int_equal(core_needs_slot(f.core, 12, &m.hello, &used), 1);
	assert_int_equal(used, 0);
	fixture_close(&f);
}

static int needs_slot(const struct core_fixture *f, uint32_t peer, const char *name)
{
	struct msg m = fixture_hello(name);
	uint32_t used;

	return core_needs_slot(f->core, peer, &m.hello, &used);
}

/* A worker is away because it owes replays. If it sends HELLO as a new worker on its connection, it
 * gets another slot, which must count. */
TEST(a_new_process_beside_a_worker_that_is_away_needs_a_slot)
{
	struct core_fixture f;
	struct stamp away;
	struct msg m;
	uint32_t used;

	fixture_open(&f, fixture_config());
	away = fixture_join(&f, 10, "anna");
	m = fixture_resume(away, 5, 0);
	memcpy(m.hello.name, "anna", 5);
	fixture_message(&f, 10, &m);
	assert_int_equal(needs_slot(&f, 10, ""), 0);
	fixture_tick(&f, f.cfg.sessions.suspect_ms + 1);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_SUSPECT);
	assert_int_equal(needs_slot(&f, 10, ""), 0);
	fixture_tick(&f, f.cfg.sessions.dead_ms);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_AWAY);
	assert_int_equal(needs_slot(&f, 10, ""), 1);
	/* the worker itself comes back, or a new process takes its name */
	assert_int_equal(core_needs_slot(f.core, 12, &m.hello, &used), 0);
	assert_int_equal(used, 1);
	assert_int_equal(needs_slot(&f, 12, "anna"), 0);
	assert_int_equal(fixture_join(&f, 10, "").worker, 2);
	fixture_close(&f);
}

/* A process can give its slot another name when it resumes its session, so two slots can have the
 * same name. A new process with this name gets the first of them, whose worker is dead. */
TEST(a_name_of_two_slots_needs_a_slot_if_the_first_one_is_dead)
{
	struct core_fixture f;
	struct stamp first;
	struct msg m;

	fixture_open(&f, fixture_config());
	first = fixture_join(&f, 9, "anna");
	m = fixture_resume(fixture_join(&f, 10, "bert"), 0, 0);
	memcpy(m.hello.name, "anna", 5);
	fixture_message(&f, 10, &m);
	assert_int_equal(needs_slot(&f, 11, "anna"), 0);
	fixture_bye(&f, 9, first);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_DEAD);
	assert_string_equal(fixture_worker(&f, 2).name, "anna");
	assert_int_equal(needs_slot(&f, 11, "anna"), 1);
	assert_int_equal(fixture_join(&f, 11, "anna").worker, 1);
	fixture_close(&f);
}

TEST(a_dead_nameless_slot_is_taken_before_an_unused_before_a_dead_named_one)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;

	cfg.sessions.max_workers = 3;
	fixture_open(&f, cfg);
	fixture_join(&f, 9, "anna");
	fixture_join(&f, 10, "");
	fixture_tick(&f, cfg.sessions.dead_ms + 1);
	assert_int_equal(fixture_join(&f, 11, "bert").worker, 2);
	assert_int_equal(fixture_join(&f, 12, "").worker, 3);
	assert_int_equal(fixture_join(&f, 13, "carl").worker, 1);
	assert_string_equal(fixture_worker(&f, 1).name, "carl");
	fixture_close(&f);
}

TEST(a_name_gets_its_slot_again_and_fences_the_old_process)
{
	struct core_fixture f;
	struct stamp first, second;
	struct msg m;

	fixture_open(&f, fixture_config());
	fixture_join(&f, 9, "");
	first = fixture_join(&f, 10, "anna");
	assert_int_equal(fixture_effect(&f, EFFECT_WORKER)->change, WORKER_JOINED);
	m = fixture_push_ones(first, 1);
	fixture_applied(&f, 10, &m);
	second = fixture_join(&f, 11, "anna"); /* the first process of "anna" is still alive */
	assert_int_equal(fixture_effect(&f, EFFECT_WORKER)->change, WORKER_RESTARTED);
	assert_int_equal(second.worker, first.worker);
	assert_int_equal(second.incarnation, first.incarnation + 1);
	assert_int_equal(fixture_sent(&f, 11, MSG_WELCOME)->welcome.last_seq, 1);
	m = fixture_push_ones(first, 2);
	fixture_message(&f, 10, &m);
	fixture_refused(&f, 10, PS_EFENCED);
	/* the first push of the new process has seq 2, because the first process has made push 1 */
	m = fixture_push_ones(second, 2);
	fixture_applied(&f, 11, &m);
	assert_int_equal(core_stats(f.core)->rejoins, 1);
	fixture_close(&f);
}

static void assert_effect(const struct core_fixture *f, enum effect_kind kind, uint32_t peer,
	uint32_t worker, uint32_t incarnation)
{
	const struct effect *e = fixture_effect(f, kind);

	assert_int_equal(e->peer, peer);
	assert_int_equal(e->worker, worker);
	assert_int_equal(e->incarnation, incarnation);
}

/* The old process gets PS_EFENCED only when its pushes are durable. If the old process got this
 * error earlier, a crash could lose a push that the process has released. */
TEST(a_replaced_worker_is_fenced_when_its_pushes_are_durable)
{
	struct core_fixture f;
	struct stamp first;
	struct msg push, hello = fixture_hello("anna"), resume;

	fixture_open(&f, fixture_config());
	first = fixture_join(&f, 10, "anna");
	push = fixture_push_ones(first, 1);
	fixture_applied(&f, 10, &push);
	fixture_message(&f, 11, &hello);
	assert_effect(&f, EFFECT_HELLO, 11, 1, first.incarnation + 1);
	/* no WELCOME yet, because the snapshot with the new incarnation is still in progress */
	assert_null(fixture_sent(&f, 11, MSG_WELCOME));
	push = fixture_push_ones(first, 2);
	fixture_message(&f, 10, &push);
	fixture_silent(&f);
	resume = fixture_resume(first, 1, 0);
	fixture_message(&f, 12, &resume);
	fixture_silent(&f);
	assert_int_equal(fixture_worker(&f, 1).last_seq, 1);
	while (!fixture_sent(&f, 11, MSG_WELCOME))
		fixture_durable(&f);
	fixture_message(&f, 10, &push);
	fixture_refused(&f, 10, PS_EFENCED);
	fixture_message(&f, 12, &resume);
	fixture_refused(&f, 12, PS_EFENCED);
	assert_effect(&f, EFFECT_SEND, 12, 1, first.incarnation);
	fixture_close(&f);
}

/* If the new process dies before the snapshot, the old process still waits for the snapshot. */
TEST(a_worker_replaced_by_a_dead_process_waits_for_the_snapshot_too)
{
	struct core_fixture f;
	struct stamp first;
	struct msg push, hello = fixture_hello("anna");

	fixture_open(&f, fixture_config());
	first = fixture_join(&f, 10, "anna");
	push = fixture_push_ones(first, 1);
	fixture_applied(&f, 10, &push);
	fixture_message(&f, 11, &hello);
	for (uint64_t ms = 0; ms <= f.cfg.sessions.dead_ms; ms += 50)
		fixture_tick(&f, 50);
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_DEAD);
	push = fixture_push_ones(first, 2);
	fixture_message(&f, 10, &push);
	fixture_silent(&f);
	while (f.saving)
		fixture_durable(&f);
	fixture_message(&f, 10, &push);
	fixture_refused(&f, 10, PS_EFENCED);
	fixture_close(&f);
}

/* A new process takes over a slot by name. The new process must inherit neither the replays that
 * the old process owes nor the old process's BYE. */
static void inherit(int leaves)
{
	struct core_fixture f;
	struct stamp s;
	struct msg m;

	fixture_open(&f, fixture_config());
	s = fixture_join(&f, 9, "anna");
	fixture_restart(&f);
	/* after HELLO this worker must replay 1 push or 4 pushes */
	m = fixture_resume(s, leaves ? 1 : 4, 0);
	memcpy(m.hello.name, "anna", 5);
	fixture_message(&f, 9, &m);
	s = fixture_sent(&f, 9, MSG_WELCOME)->welcome.stamp;
	fixture_heartbeat(&f, 19, s);
	m = fixture_push_ones(s, 1);
	fixture_applied(&f, 9, &m);
	if (leaves)
		fixture_bye(&f, 9, s); /* the answer to BYE waits for a snapshot */
	m = fixture_hello("anna");
	fixture_message(&f, 10, &m);
	if (leaves) {
		fixture_durable(&f);
		/* nothing, because the new process must not get the answer to the old process's
		 * BYE */
		assert_int_equal(fixture_count(&f, EFFECT_SEND), 0);
	}
	fixture_durable(&f);
	s = fixture_sent(&f, 10, MSG_WELCOME)->welcome.stamp;
	m = fixture_push_ones(s, 2);
	fixture_applied(&f, 10, &m);
	f.now_ms += f.cfg.checkpoint.interval_ms;
	fixture_message(&f, 10, &m);
	fixture_durable(&f);
	/* the HEARTBEAT goes to the new process, not to the old one */
	assert_non_null(fixture_sent(&f, 10, MSG_HEARTBEAT));
	fixture_tick(&f, f.cfg.sessions.dead_ms + 1);
	/* dead and not away, because no pushes of the slot have to be replayed */
	assert_int_equal(fixture_worker(&f, 1).state, SESSION_DEAD);
	fixture_close(&f);
}

TEST(a_new_process_inherits_neither_replays_nor_bye)
{
	inherit(0);
	inherit(1);
}

TEST(a_restart_storm_stays_in_the_table_and_repeats_no_incarnation)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	uint32_t newest[3] = {0};

	cfg.sessions.max_workers = 2;
	fixture_open(&f, cfg);
	for (uint32_t i = 0; i < 1000; i++) {
		struct stamp s = fixture_join(&f, 100 + i, i % 3 ? "" : "anna");

		assert_in_range(s.worker, 1, 2);
		assert_true(s.incarnation > newest[s.worker]);
		newest[s.worker] = s.incarnation;
		fixture_tick(&f, cfg.sessions.dead_ms + 1);
	}
	assert_int_equal(newest[1] + newest[2], 1000);
	fixture_close(&f);
}
