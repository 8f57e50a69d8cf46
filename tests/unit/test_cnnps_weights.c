/* test_cnnps_weights.c - which weights libcnnps returns, and which version it writes to a push,
 * with prefetched pulls and across a crash of the server. This file also tests which calls libcnnps
 * refuses. */
#include "tests/support/client_fixture.h"
#include "tests/support/test.h"
#include "worker/client/device.h"

static void connect_again(struct cnnps_options o)
{
	cnnps_close(&client);
	client_connect(&o);
}

/* Pushes a gradient that was computed at the weights of the given version. */
static void push_at(uint64_t version)
{
	assert_int_equal(client_push_all(client, client_ones, version), 0);
}

static void flush_client(void)
{
	assert_int_equal(cnnps_flush(client, 0, 10000), 0);
}

/* ---- prefetched pulls ----------------------------------------------------------------------- */

TEST_IN(a_pull_started_ahead_is_what_the_next_view_gets, client_set_up, client_tear_down)
{
	struct cnnps_pull view;

	assert_int_equal(client_prefetch(client), 0);
	/* from now on, the answer to the prefetched pull may arrive at any time */
	assert_int_equal(client_prefetch(client), 0);
	fake_wait(&client_server, fake_has_pull, "a pull that nobody waits for");
	push_at(0);
	flush_client();
	assert_int_equal(client_view(client, &view), 0);
	/* the prefetched weights, which are those before the push */
	assert_true(view.version == 0 && view.weights[0] == 0);
	assert_int_equal(fake_read_seen(&client_server).pulls, 1);
	assert_int_equal(client_view(client, &view), 0);
	assert_true(view.version == 1 && view.weights[FAKE_PARAMS - 1] == -1);
	assert_int_equal(fake_read_seen(&client_server).pulls, 2);
}

TEST_IN(a_pull_gets_it_too_and_an_evaluation_does_not, client_set_up, client_tear_down)
{
	uint64_t version = 9;
	float w[FAKE_PARAMS] = {7};

	assert_int_equal(client_prefetch(client), 0);
	fake_wait(&client_server, fake_has_pull, "the pull");
	push_at(0);
	assert_int_equal(client_pull_eval(client, w, &version), 0);
	assert_true(version == 1 && w[0] == -1);
	assert_int_equal(client_pull_all(client, w, &version), 0);
	assert_true(version == 0 && w[0] == 0 && w[FAKE_PARAMS - 1] == 0);
	assert_int_equal(fake_read_seen(&client_server).pulls, 2);
}

TEST_IN(a_view_waits_for_the_pull_that_is_under_way, client_set_up, client_tear_down)
{
	struct cnnps_pull view, old;

	assert_int_equal(client_view(client, &old), 0);
	fake_set(&client_server, &client_server.how.mute_pulls, 1);
	assert_int_equal(client_prefetch(client), 0);
	push_at(0);
	/* now the server has received the pull of client_prefetch, but has not answered it */
	flush_client();
	assert_int_equal(fake_read_seen(&client_server).pulls, 2);
	fake_set(&client_server, &client_server.how.mute_pulls, 0);
	/* on the new connection, the library sends the pull again */
	fake_hang_up(&client_server, 0);
	assert_true(old.weights[0] == 0);
	assert_int_equal(client_view(client, &view), 0);
	assert_true(view.version == 1 && view.weights[0] == -1);
	assert_int_equal(fake_read_seen(&client_server).pulls, 3);
}

/* The pull is a part of the push message. The weights that it returns must contain this push, but
 * no later push. */
TEST_IN(a_push_can_start_the_next_pull, client_set_up, client_tear_down)
{
	struct cnnps_pull view;

	cnnps_start_pull_with_push(client);
	push_at(0);
	push_at(0);
	flush_client();
	assert_int_equal(fake_read_seen(&client_server).pulls, 1);
	assert_int_equal(client_view(client, &view), 0);
	assert_true(view.version == 1 && view.weights[0] == -1);
	assert_int_equal(fake_read_seen(&client_server).pulls, 1);
	/* while a pull is under way, a push must not start another pull */
	assert_int_equal(client_prefetch(client), 0);
	cnnps_start_pull_with_push(client);
	push_at(1);
	flush_client();
	assert_int_equal(client_view(client, &view), 0);
	assert_int_equal(view.version, 2);
	assert_int_equal(fake_read_seen(&client_server).pulls, 2);
	assert_int_equal(client_view(client, &view), 0);
	assert_int_equal(view.version, 3);
	assert_int_equal(fake_read_seen(&client_server).pulls, 3);
}

TEST_IN(a_pull_of_a_push_is_sent_again_without_it, client_set_up, client_tear_down)
{
	struct cnnps_pull view;

	fake_set(&client_server, &client_server.how.mute_pulls, 1);
	cnnps_start_pull_with_push(client);
	push_at(0);
	fake_wait(&client_server, fake_has_pull, "the pull");
	fake_set(&client_server, &client_server.how.mute_pulls, 0);
	fake_hang_up(&client_server, 0);
	assert_int_equal(client_view(client, &view), 0);
	assert_true(view.version == 1 && view.weights[0] == -1);
	assert_int_equal(fake_read_seen(&client_server).pulls, 2);
}

TEST_IN(closing_drops_what_was_started_ahead, client_set_up, client_tear_down)
{
	struct cnnps_pull view;

	fake_set(&client_server, &client_server.how.two_slices, 1);
	assert_int_equal(client_prefetch(client), 0);
	fake_wait(&client_server, fake_has_pull, "the pull");
	push_at(0);
	flush_client(); /* the prefetched weights have arrived before the ACK of this push */
	connect_again(client_options());
	assert_int_equal(client_view(client, &view), 0);
	assert_int_equal(view.version, 1);
}

static int two_pulls(const struct fake *f)
{
	return f->seen.pulls >= 2;
}

/* client_await requests the newest weights and waits until they have arrived. The library then
 * keeps these weights, and the next client_view must return them. */
TEST_IN(weights_that_were_awaited_are_what_the_next_view_gets, client_set_up, client_tear_down)
{
	struct cnnps_pull view;
	float w[FAKE_PARAMS];
	uint64_t version;

	assert_int_equal(client_await(client), 0);
	/* the weights have arrived, so this call sends no request */
	assert_int_equal(client_await(client), 0);
	push_at(0);
	assert_int_equal(client_prefetch(client), 0);
	fake_wait(&client_server, two_pulls, "the pull after them");
	push_at(0);
	assert_int_equal(client_pull_eval(client, w, &version), 0);
	assert_true(version == 2 && w[0] == -2);
	assert_int_equal(client_view(client, &view), 0);
	assert_true(view.version == 0 && view.weights[0] == 0);
	assert_int_equal(client_view(client, &view), 0);
	assert_true(view.version == 1 && view.weights[FAKE_PARAMS - 1] == -1);
	assert_int_equal(fake_read_seen(&client_server).pulls, 3);
	assert_int_equal(client_await(client), 0);
	/* the view is valid until the next call of client_view */
	assert_true(view.weights[0] == -1);
	assert_int_equal(client_push_view(client, client_ones, 2, &view), 0);
	/* client_push_view has returned the awaited weights; the weights that it has requested
	 * itself are for the next view */
	assert_true(view.version == 2 && view.weights[0] == -2);
	assert_int_equal(client_await(client), 0);
	assert_int_equal(client_pull_all(client, w, &version), 0);
	assert_true(version == 3 && w[0] == -3);
	assert_int_equal(fake_read_seen(&client_server).pulls, 5);
}

TEST_IN(damaged_weights_are_as_good_as_lost, client_set_up, client_tear_down)
{
	struct cnnps_pull view;
	float w[FAKE_PARAMS];
	uint64_t version;
	int pulls = 0;

	for (int i = 0; i < 12; i++) {
		fake_set(&client_server, &client_server.how.two_slices, i % 2);
		fake_set(&client_server, &client_server.how.damaged_pulls, 2);
		if (i % 6 == 0)
			assert_int_equal(client_view(client, &view), 0);
		else if (i % 6 == 1)
			assert_int_equal(client_prefetch(client), 0);
		else if (i % 6 == 2)
			assert_int_equal(client_await(client), 0);
		else if (i % 6 == 3)
			assert_int_equal(client_pull_eval(client, w, &version), 0);
		else if (i % 6 == 4)
			assert_int_equal(client_push_view(client, client_ones, 0, &view), 0);
		assert_int_equal(client_pull_all(client, w, &version), 0);
		for (int k = 0; k < FAKE_PARAMS; k++)
			assert_true(w[k] == -(float)version);
		pulls += i % 6 == 0 || i % 6 == 3 || i % 6 == 4 ? 4 : 3;
		assert_int_equal(fake_read_seen(&client_server).pulls, pulls);
	}
}

TEST_IN(weights_that_stay_damaged_are_not_pulled_forever, client_set_up, client_tear_down)
{
	struct cnnps_pull view;
	float w[FAKE_PARAMS];

	fake_set(&client_server, &client_server.how.damaged_pulls, 6);
	assert_int_equal(client_pull_all(client, w, NULL), PS_EPROTO);
	assert_non_null(strstr(cnnps_error(client), "wrong checksum"));
	assert_int_equal(client_view(client, &view), PS_EPROTO);
	assert_int_equal(client_view(client, &view), 0);
	assert_true(view.weights[0] == 0);
}

/* ---- versions of several terms -------------------------------------------------------------- */

static int has_third_push(const struct fake *f)
{
	return f->seen.last_seq >= 3;
}

TEST_IN(a_push_names_the_term_of_its_weights, client_set_up, client_tear_down)
{
	struct cnnps_pull view;
	struct fake_seen seen;

	fake_set(&client_server, &client_server.how.not_durable, 1);
	assert_int_equal(client_view(client, &view), 0);
	assert_int_equal(view.term, 1);
	push_at(view.version);
	push_at(77); /* 77: a version that the program has never pulled */
	flush_client();
	fake_hang_up(&client_server, 1);
	/* the program still has the weights of the old term, so version 0 is that of the old
	 * term */
	push_at(0);
	fake_wait(&client_server, has_third_push, "three pushes");
	assert_int_equal(client_view(client, &view), 0);
	assert_int_equal(view.term, 2);
	assert_int_equal(view.version, 3);
	push_at(view.version);
	push_at(0);
	flush_client();
	seen = fake_read_seen(&client_server);
	assert_int_equal(seen.last_seq, 5);
	/* the push that the worker sends again to the server of term 2 still has the term of its
	 * weights */
	assert_int_equal(seen.made[0].base_term, 1);
	assert_int_equal(seen.made[0].base_version, 0);
	assert_int_equal(seen.made[1].base_term, 0);
	assert_int_equal(seen.made[1].base_version, 77);
	assert_int_equal(seen.made[2].base_term, 1);
	assert_int_equal(seen.made[3].base_term, 2);
	assert_int_equal(seen.made[4].base_term, 1);
}

TEST_IN(the_newest_pull_of_a_version_counts, client_set_up, client_tear_down)
{
	struct cnnps_pull view;
	struct fake_seen seen;
	float w[FAKE_PARAMS];

	assert_int_equal(client_view(client, &view), 0);
	fake_hang_up(&client_server, 1);
	assert_int_equal(client_pull_all(client, w, NULL), 0);
	push_at(0);
	for (int i = 0; i < 20; i++) /* all these pulls get the same version 1 */
		assert_int_equal(client_pull_all(client, w, NULL), 0);
	push_at(0);
	flush_client();
	seen = fake_read_seen(&client_server);
	assert_int_equal(seen.made[0].base_term, 2);
	assert_int_equal(seen.made[1].base_term, 2);
}

TEST_IN(a_lease_names_the_term_of_its_weights, client_set_up, client_tear_down)
{
	const struct msg_grant grant = {
		.kind = GRANT_TRAIN, .work = {1, 2, 3}, .exact = 1, .version = 44};
	struct fake_how how = client_server.how;
	struct cnnps_lease lease = {.size = sizeof(lease)};

	how.grants[0] = grant;
	how.n_grants = 1;
	fake_behave(&client_server, how);
	fake_hang_up(&client_server, 1);
	assert_int_equal(cnnps_lease(client, &lease), 0);
	assert_true(lease.exact && lease.version == 44);
	assert_int_equal(lease.term, 2);
}

TEST_IN(connecting_returns_the_mode, client_set_up, client_tear_down)
{
	struct fake_how how = client_server.how;
	const struct cnnps_info *i;

	assert_int_equal(cnnps_info(client)->mode, CNNPS_DOWNPOUR);
	how.mode = MODE_EASGD;
	how.n_push = 3;
	how.n_fetch = 4;
	how.push_sum = 1;
	how.prefetch = 1;
	how.local_rate = 0.25;
	how.momentum = 0.5;
	fake_behave(&client_server, how);
	connect_again(client_options());
	i = cnnps_info(client);
	assert_int_equal(i->mode, CNNPS_EASGD);
	assert_true(i->n_push == 3 && i->n_fetch == 4);
	assert_true(i->push_sum == 1 && i->prefetch == 1);
	assert_true(i->local_rate == 0.25 && i->momentum == 0.5);
}

/* ---- refusals and heartbeats ---------------------------------------------------------------- */

TEST_IN(a_refused_command_fails_alone, client_set_up, client_tear_down)
{
	uint64_t generation = 0;

	fake_set(&client_server, &client_server.how.refuse_admin, 1);
	assert_int_equal(cnnps_checkpoint(client, &generation), PS_EUSAGE);
	assert_string_equal(cnnps_error(client), "the fake server says so");
	push_at(0);
	flush_client();
	assert_string_equal(cnnps_error(client), "");
	fake_set(&client_server, &client_server.how.refuse_admin, 0);
	assert_int_equal(cnnps_checkpoint(client, &generation), 0);
	assert_int_equal(generation, 12);
}

static int has_eight_heartbeats_if_alive(const struct fake *f)
{
	cnnps_alive(client);
	return f->seen.heartbeats >= 8;
}

/* While a program computes, its calls of cnnps_alive() let the library send heartbeats. Without
 * these calls the library sends no heartbeats (test_cnnps_errors.c). */
TEST_IN(a_busy_program_heartbeats_on, client_set_up, client_tear_down)
{
	struct cnnps_options o = client_options();

	o.batch_timeout_ms = 300;
	connect_again(o);
	fake_wait(&client_server, has_eight_heartbeats_if_alive, "eight heartbeats without a call");
}
