/* test_cnnps_errors.c - how calls of libcnnps end without an answer, and how the server sees a program
 * that hangs. */
#include "tests/support/client_fixture.h"

/* ---- ends --------------------------------------------------------------------------------- */

static void the_servers_words_end_up_in_why(void **state)
{
	struct cnnps_options o = client_options();

	(void)state;
	fake_set(&client_server, &client_server.how.status, PS_EWRONGDATA);
	assert_int_equal(cnnps_connect(&client, &o), PS_EWRONGDATA);
	assert_null(client);
	assert_string_equal(o.why, "the fake server says so");
}

static void a_fenced_session_ends_every_call(void **state)
{
	struct cnnps_lease lease;
	float w[FAKE_PARAMS];

	(void)state;
	assert_string_equal(cnnps_why(client), "");
	fake_set(&client_server, &client_server.how.status, PS_EFENCED);
	fake_set(&client_server, &client_server.how.mute_pulls, 1);
	assert_int_equal(cnnps_pull(client, w, FAKE_PARAMS, NULL), CNNPS_EFENCED);
	assert_string_equal(cnnps_why(client), "the fake server says so");
	assert_int_equal(cnnps_lease(client, &lease), CNNPS_EFENCED);
	client_push(1, CNNPS_EFENCED);
	assert_int_equal(cnnps_flush(client, 0, 10), CNNPS_EFENCED);
}

static void a_server_of_another_protocol_is_left_at_once(void **state)
{
	struct cnnps_options o = client_options();

	(void)state;
	fake_set(&client_server, &client_server.how.status, PS_EVERSION);
	assert_int_equal(cnnps_connect(&client, &o), PS_EVERSION);
	assert_null(client);
	assert_int_equal(fake_look(&client_server).hellos, 1);
}

static void the_end_of_training_ends_the_wait_for_work(void **state)
{
	struct cnnps_lease lease;

	(void)state;
	fake_set(&client_server, &client_server.how.bye, PS_EDONE);
	assert_int_equal(cnnps_lease(client, &lease), CNNPS_EDONE);
	assert_non_null(strstr(cnnps_why(client), "training is done"));
}

static void a_server_that_is_not_there_is_given_up(void **state)
{
	struct cnnps_options o = client_options();

	(void)state;
	fake_stop(&client_server); /* its port is free from now on */
	o.connect_timeout_ms = 300;
	assert_int_equal(cnnps_connect(&client, &o), CNNPS_EUNREACHABLE);
	assert_non_null(strstr(o.why, client_server.url));
	assert_non_null(strstr(o.why, "no contact within 300 ms: connection refused"));
	fake_start(&client_server);
}

static void patience_ends_when_the_server_stays_away(void **state)
{
	struct cnnps_options o = client_options();
	float w[FAKE_PARAMS];

	(void)state;
	o.disconnect_timeout_ms = 300;
	client_connect(&o);
	fake_stop(&client_server);
	assert_int_equal(cnnps_pull(client, w, FAKE_PARAMS, NULL), CNNPS_EUNREACHABLE);
	assert_non_null(strstr(cnnps_why(client), "contact lost for 300 ms: connection refused"));
	fake_start(&client_server);
}

static void nonsense_options_are_refused_in_words(void **state)
{
	char longname[100];
	struct cnnps_options bad[3] = {client_options(), client_options(), client_options()};

	(void)state;
	memset(longname, 'x', sizeof(longname) - 1);
	longname[sizeof(longname) - 1] = '\0';
	bad[0].server = "no endpoint";
	bad[1].server = NULL;
	bad[2].name = longname;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(cnnps_connect(&client, &bad[i]), PS_EUSAGE);
		assert_null(client);
		assert_string_not_equal(bad[i].why, "");
	}
	assert_non_null(strstr(bad[0].why, "tcp://HOST:PORT"));
}

static int is_stopped(void *arg)
{
	atomic_int *stop = arg;

	return atomic_load(stop);
}

static int one_lease(const struct fake *f)
{
	return f->seen.leases >= 1;
}

static void *stop_after_the_lease(void *arg)
{
	atomic_int *stop = arg;

	fake_wait(&client_server, one_lease, "a lease");
	atomic_store(stop, 1);
	return NULL;
}

static void a_stopped_program_waits_no_more_but_may_push(void **state)
{
	struct cnnps_options o = client_options();
	struct cnnps_lease lease;
	atomic_int stop = 0;
	pthread_t t;

	(void)state;
	o.stop = is_stopped;
	o.stop_arg = &stop;
	client_connect(&o);
	fake_set(&client_server, &client_server.how.mute_leases, 1);
	assert_int_equal(pthread_create(&t, NULL, stop_after_the_lease, &stop), 0);
	assert_int_equal(cnnps_lease(client, &lease), CNNPS_ESHUTDOWN);
	pthread_join(t, NULL);
	client_push(1, 0);
	assert_int_equal(cnnps_flush(client, 0, 10000), 0);
	assert_int_equal(cnnps_lease(client, &lease), CNNPS_ESHUTDOWN);
	cnnps_close(&client);
	assert_int_equal(fake_look(&client_server).byes, 1);
}

/* ---- beats -------------------------------------------------------------------------------- */

#define WAITS (-1)
static pthread_t program;

static int a_beat(const struct fake *f)
{
	return f->seen.beats >= 1;
}

static int eight_beats(const struct fake *f)
{
	return f->seen.beats >= 8;
}

static void beats_stop_when_the_program_hangs_and_go_on_when_it_calls(void **state)
{
	struct cnnps_options o = client_options();

	(void)state;
	o.batch_timeout_ms = 300; /* time for 3 heartbeats, 100 ms apart */
	client_connect(&o);
	assert_false(fake_happens(&client_server, eight_beats, 2));
	assert_in_range(fake_look(&client_server).beats, 1, 7);
	fake_set(&client_server, &client_server.how.not_durable, 1);
	client_push(1, 0);
	assert_int_equal(cnnps_flush(client, 1, 1500), CNNPS_EAGAIN); /* it waits, so it is alive */
	assert_true(fake_happens(&client_server, eight_beats, 2));
}

/* On the program's thread: as if the kernel had not scheduled it in the middle of a wait. */
static int does_not_run(void *arg)
{
	int *beats_on = arg;

	if (pthread_equal(pthread_self(), program) && *beats_on == WAITS)
		*beats_on = fake_happens(&client_server, eight_beats, 5);
	return 0;
}

static void beats_go_on_when_a_waiting_program_does_not_get_to_run(void **state)
{
	struct cnnps_options o = client_options();
	int beats_on = 0;

	(void)state;
	program = pthread_self();
	o.stop = does_not_run;
	o.stop_arg = &beats_on;
	client_connect(&o);
	fake_set(&client_server, &client_server.how.not_durable, 1);
	client_push(1, 0);
	fake_wait(&client_server, a_beat, "the first beat");
	beats_on = WAITS;
	assert_int_equal(cnnps_flush(client, 1, 300), CNNPS_EAGAIN);
	assert_int_equal(beats_on, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		UNCONNECTED(the_servers_words_end_up_in_why),
		UNCONNECTED(a_server_of_another_protocol_is_left_at_once),
		CONNECTED(a_fenced_session_ends_every_call),
		CONNECTED(the_end_of_training_ends_the_wait_for_work),
		UNCONNECTED(a_server_that_is_not_there_is_given_up),
		UNCONNECTED(patience_ends_when_the_server_stays_away),
		UNCONNECTED(nonsense_options_are_refused_in_words),
		UNCONNECTED(a_stopped_program_waits_no_more_but_may_push),
		UNCONNECTED(beats_stop_when_the_program_hangs_and_go_on_when_it_calls),
		UNCONNECTED(beats_go_on_when_a_waiting_program_does_not_get_to_run),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
