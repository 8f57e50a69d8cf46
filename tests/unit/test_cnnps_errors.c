/* test_cnnps_errors.c - which error a call of libcnnps returns if the server does not answer, and
 * how the server notices a program that hangs. */
#include <math.h>
#include "tests/support/client_fixture.h"
#include "tests/support/test.h"

/* ---- errors of a connection ----------------------------------------------------------------- */

TEST_IN(the_reason_of_the_server_is_the_error, client_set_up_unconnected, client_tear_down)
{
	struct cnnps_options o = client_options();

	fake_set(&client_server, &client_server.how.status, PS_EWRONGDATA);
	assert_int_equal(cnnps_connect(&client, &o), PS_EWRONGDATA);
	assert_string_equal(cnnps_error(client), "the fake server says so");
}

/* Attack A22 of docs/faults.md: the text of a refusal comes from the server. Programs print this
 * text, and the Python package raises it as the text of an exception, so it must not control a
 * terminal. */
TEST_IN(the_reason_of_the_server_controls_no_terminal, client_set_up_unconnected, client_tear_down)
{
	struct cnnps_options o = client_options();

	fake_set(&client_server, &client_server.how.controls, 1);
	fake_set(&client_server, &client_server.how.status, PS_EWRONGDATA);
	assert_int_equal(cnnps_connect(&client, &o), PS_EWRONGDATA);
	assert_string_equal(cnnps_error(client), "?]0;x? a?b?2J\u00e9");
}

TEST_IN(a_connection_that_failed_refuses_every_call, client_set_up_unconnected, client_tear_down)
{
	struct cnnps_options o = client_options();
	struct cnnps_lease lease = {.size = sizeof(lease)};
	struct cnnps_stats stats = {.size = sizeof(stats)};
	uint64_t generation;
	char json[64];
	float w[FAKE_PARAMS];

	fake_set(&client_server, &client_server.how.status, PS_EWRONGDATA);
	assert_int_equal(cnnps_connect(&client, &o), PS_EWRONGDATA);
	assert_int_equal(client_pull_all(client, w, NULL), PS_EUSAGE);
	assert_non_null(strstr(cnnps_error(client), "never made"));
	assert_int_equal(client_prefetch(client), PS_EUSAGE);
	assert_int_equal(client_push_all(client, client_ones, 0), PS_EUSAGE);
	assert_int_equal(cnnps_lease(client, &lease), PS_EUSAGE);
	assert_int_equal(cnnps_flush(client, 1, 10), PS_EUSAGE);
	assert_int_equal(cnnps_status(client, json, sizeof(json)), PS_EUSAGE);
	assert_int_equal(cnnps_checkpoint(client, &generation), PS_EUSAGE);
	assert_int_equal(cnnps_drain(client), PS_EUSAGE);
	assert_int_equal(cnnps_log_level(client, "info"), PS_EUSAGE);
	assert_int_equal(cnnps_stats(client, &stats), PS_EUSAGE);
	assert_null(cnnps_gradient(client));
	cnnps_alive(client);
	cnnps_close(&client);
	assert_null(client);
	cnnps_close(&client);
}

/* A run can hold back training images for the evaluation. A program that does not support held-back
 * images would train on these images, so the library refuses to connect it. */
TEST_IN(only_programs_that_hold_back_images_join_a_run_with_them, client_set_up_unconnected,
	client_tear_down)
{
	struct cnnps_options o = client_options();
	struct fake_how how = client_server.how;

	how.validate = 3;
	fake_behave(&client_server, how);
	assert_int_equal(cnnps_connect(&client, &o), PS_EUSAGE);
	assert_non_null(strstr(cnnps_error(client), "holds back 3 training images"));
	cnnps_close(&client);
	o.validates = 1;
	assert_int_equal(cnnps_connect(&client, &o), PS_OK);
	assert_int_equal(cnnps_info(client)->validate, 3);
	cnnps_close(&client);
	o.validates = 0;
	o.observer = 1;
	assert_int_equal(cnnps_connect(&client, &o), PS_OK);
}

/* The server of a run without a data set grants no lease. The library must refuse the call, which
 * would otherwise wait forever. */
TEST_IN(a_lease_in_a_run_without_a_data_set_is_refused, client_set_up_unconnected, client_tear_down)
{
	struct cnnps_options o = client_options();
	struct cnnps_lease lease = {.size = sizeof(lease)};
	struct fake_how how = client_server.how;

	how.epochs = 0;
	how.mute_leases = 1;
	fake_behave(&client_server, how);
	client_connect(&o);
	const uint64_t begin = clock_ms();
	assert_int_equal(cnnps_lease(client, &lease), CNNPS_EUSAGE);
	assert_true(clock_ms() - begin < 10000);
	assert_string_equal(cnnps_error(client),
		"the run has no data set (--epochs 0), so its server grants no leases: start "
		"cnn-ps with --epochs N");
	client_push(1, 0); /* after the refused call, the connection still works */
	client_expect_weights(-1);
	/* the server restarts with another --epochs */
	how.epochs = 2;
	how.mute_leases = 0;
	fake_behave(&client_server, how);
	fake_hang_up(&client_server, 0);
	assert_int_equal(cnnps_lease(client, &lease), CNNPS_OK);
}

/* In a run with a data set, the server would reject pushes without batches, and exclude the worker
 * after some of them. */
TEST_IN(a_push_without_batches_is_refused_in_a_run_with_a_data_set, client_set_up, client_tear_down)
{
	struct cnnps_pull then = {.size = sizeof(then)};
	struct cnnps_push push = {.size = sizeof(push), .gradient = client_ones};

	for (int i = 0; i < 2; i++) {
		assert_int_equal(cnnps_push(client, &push), CNNPS_EUSAGE);
		assert_string_equal(cnnps_error(client),
			"the run has a data set (--epochs), so a push needs the batches of a "
			"lease, but the `count` of its `work` is 0");
		push.then = &then;
	}
	assert_int_equal(client_stats(client).pushed, 0);
	client_push(1, 0); /* after the refused call, the connection still works */
	client_expect_weights(-1);
}

/* ---- structs of other versions of the library ------------------------------------------------ */

TEST_IN(a_struct_without_its_size_is_refused, client_set_up, client_tear_down)
{
	struct cnnps_pull pull = {.size = 0};
	struct cnnps_push push = {.size = sizeof(push) - 1};
	struct cnnps_lease lease = {.size = SIZE_MAX};
	struct cnnps_stats stats = {.size = 0};

	assert_int_equal(cnnps_pull(client, &pull), CNNPS_EUSAGE);
	assert_string_equal(cnnps_error(client),
		"struct cnnps_pull: its size is 0; set it to sizeof(struct cnnps_pull)");
	assert_int_equal(cnnps_push(client, &push), CNNPS_EUSAGE);
	assert_int_equal(cnnps_lease(client, &lease), CNNPS_EUSAGE);
	assert_int_equal(cnnps_stats(client, &stats), CNNPS_EUSAGE);
}

TEST_IN(fields_of_a_newer_library_must_be_zero, client_set_up, client_tear_down)
{
	float w[FAKE_PARAMS];
	struct {
		struct cnnps_pull pull;
		uint64_t added;
	} newer = {.pull = {.size = sizeof(newer), .into = w}};

	assert_int_equal(cnnps_pull(client, &newer.pull), 0);
	assert_int_equal(newer.pull.size, sizeof(newer));
	assert_ptr_equal(newer.pull.weights, w);
	newer.added = 1;
	assert_int_equal(cnnps_pull(client, &newer.pull), CNNPS_EUSAGE);
	assert_non_null(strstr(cnnps_error(client), "the fields after them must be zero"));
}

TEST_IN(flags_that_make_no_sense_are_refused, client_set_up, client_tear_down)
{
	struct cnnps_pull pull = {.size = sizeof(pull), .flags = 8}, then = pull;
	struct cnnps_push push = {.size = sizeof(push), .gradient = client_ones, .then = &then};

	assert_int_equal(cnnps_pull(client, &pull), CNNPS_EUSAGE);
	pull.flags = CNNPS_PULL_EVAL; /* refused, because this flag needs a buffer in `into` */
	assert_int_equal(cnnps_pull(client, &pull), CNNPS_EUSAGE);
	then.flags = CNNPS_PULL_START;
	assert_int_equal(cnnps_push(client, &push), CNNPS_EUSAGE);
	then = (struct cnnps_pull){.size = 1};
	assert_int_equal(cnnps_push(client, &push), CNNPS_EUSAGE);
	assert_int_equal(client_stats(client).pushed, 0);
	push = (struct cnnps_push){.size = sizeof(push), .gradient = client_ones, .offset = 1};
	assert_int_equal(cnnps_push(client, &push),
		CNNPS_EUSAGE); /* count 0 stands for all values, which do not fit after offset 1 */
}

/* ---- pointers and sizes that the program passes ---------------------------------------------- */

/* Checks that a call returned CNNPS_EUSAGE and that the reason contains `name`. */
static void expect_usage(int rc, const char *name)
{
	assert_int_equal(rc, CNNPS_EUSAGE);
	if (!strstr(cnnps_error(client), name))
		fail_msg("\"%s\" does not name %s", cnnps_error(client), name);
}

TEST_IN(every_call_refuses_null_pointers, client_set_up, client_tear_down)
{
	struct cnnps_push push = {.size = sizeof(push)};
	struct cnnps_lease lease = {.size = sizeof(lease), .kind = CNNPS_EVAL};
	struct cnnps_evaluation evaluation = {.size = sizeof(evaluation)};
	char json[64] = "old";

	expect_usage(cnnps_push(client, &push), "`gradient`");
	push.offset = push.count = 1;
	expect_usage(cnnps_push(client, &push), "`gradient`");
	expect_usage(cnnps_push(client, NULL), "cnnps_push");
	expect_usage(cnnps_pull(client, NULL), "cnnps_pull");
	expect_usage(cnnps_lease(client, NULL), "cnnps_lease");
	expect_usage(cnnps_result(client, NULL, &evaluation), "cnnps_lease");
	expect_usage(cnnps_result(client, &lease, NULL), "cnnps_evaluation");
	expect_usage(cnnps_status(client, NULL, 10), "`json`");
	expect_usage(cnnps_status(client, json, 0), "`json`");
	assert_string_equal(json, "old");
	expect_usage(cnnps_log_level(client, NULL), "level");
	expect_usage(cnnps_release(client, NULL), "worker");
	assert_int_equal(cnnps_stats(client, NULL), CNNPS_EUSAGE);
	assert_int_equal(client_stats(client).pushed, 0);
	client_push(1, 0); /* after the refused call, the connection still works */
	client_expect_weights(-1);
}

TEST_IN(every_call_refuses_a_null_connection, client_set_up_unconnected, client_tear_down)
{
	struct cnnps_push push = {.size = sizeof(push), .gradient = client_ones};
	struct cnnps_pull pull = {.size = sizeof(pull)};
	struct cnnps_lease lease = {.size = sizeof(lease)};
	struct cnnps_evaluation evaluation = {.size = sizeof(evaluation)};
	struct cnnps_stats stats = {.size = sizeof(stats)};
	struct cnnps_options o = client_options();
	uint64_t generation;
	char json[64];

	assert_int_equal(cnnps_connect(NULL, &o), CNNPS_EUSAGE);
	assert_null(cnnps_info(NULL));
	assert_int_equal(cnnps_push(NULL, &push), CNNPS_EUSAGE);
	assert_int_equal(cnnps_pull(NULL, &pull), CNNPS_EUSAGE);
	assert_null(cnnps_gradient(NULL));
	assert_int_equal(cnnps_lease(NULL, &lease), CNNPS_EUSAGE);
	assert_int_equal(cnnps_result(NULL, &lease, &evaluation), CNNPS_EUSAGE);
	assert_int_equal(cnnps_flush(NULL, 0, 1), CNNPS_EUSAGE);
	assert_int_equal(cnnps_stats(NULL, &stats), CNNPS_EUSAGE);
	assert_int_equal(cnnps_status(NULL, json, sizeof(json)), CNNPS_EUSAGE);
	assert_int_equal(cnnps_checkpoint(NULL, &generation), CNNPS_EUSAGE);
	assert_int_equal(cnnps_drain(NULL), CNNPS_EUSAGE);
	assert_int_equal(cnnps_log_level(NULL, "info"), CNNPS_EUSAGE);
	assert_int_equal(cnnps_release(NULL, "a"), CNNPS_EUSAGE);
	assert_string_not_equal(cnnps_error(NULL), "");
	cnnps_alive(NULL);
	cnnps_close(NULL);
	cnnps_close(&client); /* NULL */
	expect_usage(cnnps_connect(&client, NULL), "cnnps_options");
}

/* The server would take messages with such numbers for damaged ones, and end the session. */
TEST_IN(work_and_results_out_of_range_are_refused, client_set_up, client_tear_down)
{
	const struct cnnps_work bad[] = {
		{.first = UINT32_MAX, .count = 1}, {.count = UINT32_MAX}, {.images = UINT32_MAX}};
	struct cnnps_push push = {.size = sizeof(push), .gradient = client_ones};
	struct cnnps_lease lease = {.size = sizeof(lease), .kind = CNNPS_EVAL, .count = 3};
	struct cnnps_evaluation evaluation = {.size = sizeof(evaluation), .correct = 4};

	for (int i = 0; i < 3; i++) {
		push.work = bad[i];
		expect_usage(cnnps_push(client, &push), "`work`");
	}
	expect_usage(cnnps_result(client, &lease, &evaluation), "`correct`");
	lease.first = lease.count = UINT32_MAX;
	expect_usage(cnnps_result(client, &lease, &evaluation), "`correct`");
	client_push(1, 0);
	client_expect_weights(-1);
}

/* If the library sent such a metric, the server would report that training has diverged. Only a
 * loss that is not finite may cause this report. */
TEST_IN(a_metric_that_is_not_finite_is_refused, client_set_up, client_tear_down)
{
	struct cnnps_lease lease = {.size = sizeof(lease), .kind = CNNPS_EVAL, .count = 3};
	struct cnnps_evaluation evaluation = {sizeof(evaluation), 0, 1, {0, NAN}};

	expect_usage(cnnps_result(client, &lease, &evaluation), "`metric_sum`");
	evaluation.metric_sum[1] = INFINITY;
	expect_usage(cnnps_result(client, &lease, &evaluation), "`metric_sum`");
	evaluation.loss_sum = NAN;
	assert_int_equal(cnnps_result(client, &lease, &evaluation), CNNPS_OK);
}

static void *allocate_nothing(size_t bytes)
{
	(void)bytes;
	return NULL;
}

TEST_IN(options_out_of_range_are_refused_by_name, client_set_up_unconnected, client_tear_down)
{
	static const char *const names[] = {"cnnps_options", "cnnps_options", "`lane`",
		"`log_level`", "`release`", "server", "`wire`"};
	struct cnnps_options bad[7];

	for (int i = 0; i < 7; i++)
		bad[i] = client_options();
	bad[0].size = sizeof(bad[0]) - 1;
	bad[1].size = SIZE_MAX;
	bad[2].lane = (enum cnnps_lane)3;
	bad[3].log_level = (enum cnnps_log_level)4;
	bad[4].allocate = allocate_nothing;
	bad[5].server = NULL;
	bad[6].wire = (enum cnnps_wire)2;
	for (int i = 0; i < 7; i++) {
		expect_usage(cnnps_connect(&client, &bad[i]), names[i]);
		cnnps_close(&client);
	}
	assert_int_equal(fake_read_seen(&client_server).hellos, 0);
}

/* ---- the log --------------------------------------------------------------------------------- */

struct lines {
	atomic_int n;
	char last[256];
};

static void note_line(void *arg, int level, const char *line)
{
	struct lines *l = arg;

	assert_true(level >= CNNPS_LOG_ERROR && level <= CNNPS_LOG_DEBUG);
	snprintf(l->last, sizeof(l->last), "%s", line);
	atomic_fetch_add(&l->n, 1);
}

TEST_IN(the_log_goes_to_the_programs_function, client_set_up_unconnected, client_tear_down)
{
	struct lines lines = {.n = 0};
	struct cnnps_options o = client_options();

	o.log = note_line;
	o.log_arg = &lines;
	o.log_level = CNNPS_LOG_DEBUG;
	assert_int_equal(cnnps_connect(&client, &o), 0);
	cnnps_close(&client);
	log_set_sink(NULL, NULL);
	assert_true(atomic_load(&lines.n) > 0);
	assert_non_null(strstr(lines.last, "level="));
	assert_null(strchr(lines.last, '\n'));
}

TEST_IN(a_fenced_session_ends_every_call, client_set_up, client_tear_down)
{
	struct cnnps_lease lease = {.size = sizeof(lease)};
	float w[FAKE_PARAMS];

	assert_string_equal(cnnps_error(client), "");
	fake_set(&client_server, &client_server.how.status, PS_EFENCED);
	fake_set(&client_server, &client_server.how.mute_pulls, 1);
	assert_int_equal(client_pull_all(client, w, NULL), CNNPS_EFENCED);
	assert_string_equal(cnnps_error(client), "the fake server says so");
	assert_int_equal(cnnps_lease(client, &lease), CNNPS_EFENCED);
	client_push(1, CNNPS_EFENCED);
	assert_int_equal(cnnps_flush(client, 0, 10), CNNPS_EFENCED);
}

TEST_IN(a_server_of_another_protocol_is_left_at_once, client_set_up_unconnected, client_tear_down)
{
	struct cnnps_options o = client_options();

	fake_set(&client_server, &client_server.how.status, PS_EVERSION);
	assert_int_equal(cnnps_connect(&client, &o), PS_EVERSION);
	assert_int_equal(fake_read_seen(&client_server).hellos, 1);
}

TEST_IN(the_end_of_training_ends_the_wait_for_work, client_set_up, client_tear_down)
{
	struct cnnps_lease lease = {.size = sizeof(lease)};

	fake_set(&client_server, &client_server.how.bye, PS_EDONE);
	assert_int_equal(cnnps_lease(client, &lease), CNNPS_EDONE);
	assert_non_null(strstr(cnnps_error(client), "training is done"));
}

TEST_IN(a_server_that_is_not_there_is_given_up, client_set_up_unconnected, client_tear_down)
{
	struct cnnps_options o = client_options();

	fake_stop(&client_server); /* from now on, no program listens on the server's port */
	o.connect_timeout_ms = 300;
	assert_int_equal(cnnps_connect(&client, &o), CNNPS_EUNREACHABLE);
	assert_non_null(strstr(cnnps_error(client), client_server.url));
	assert_non_null(
		strstr(cnnps_error(client), "no contact within 300 ms: connection refused"));
	fake_start(&client_server);
}

TEST_IN(patience_ends_when_the_server_stays_away, client_set_up_unconnected, client_tear_down)
{
	struct cnnps_options o = client_options();
	float w[FAKE_PARAMS];

	o.disconnect_timeout_ms = 300;
	client_connect(&o);
	fake_stop(&client_server);
	assert_int_equal(client_pull_all(client, w, NULL), CNNPS_EUNREACHABLE);
	assert_non_null(strstr(cnnps_error(client), "contact lost for 300 ms: connection refused"));
	fake_start(&client_server);
}

/* Returns the milliseconds that it takes to close a connection whose server has gone. */
static uint64_t close_without_server(void)
{
	struct cnnps_options o = client_options();
	uint64_t begin;

	client_connect(&o);
	client_push(1, 0);
	assert_int_equal(cnnps_flush(client, 0, 10000), 0);
	fake_stop(&client_server);
	begin = clock_ms();
	cnnps_close(&client);
	begin = clock_ms() - begin;
	fake_start(&client_server);
	return begin;
}

/* Only if a push is still unanswered may cnnps_close wait, for 5 s. The test makes up to three
 * attempts: if another process takes over the port of the server, the connection seems to be alive,
 * and the attempt proves nothing. */
TEST_IN(closing_is_quick_if_the_server_is_gone_and_no_push_is_open, client_set_up_unconnected,
	client_tear_down)
{
	uint64_t ms = 5000;

	for (int i = 0; i < 3 && ms >= 4000; i++)
		ms = close_without_server();
	assert_in_range(ms, 0, 3999);
}

TEST_IN(nonsense_options_are_refused_in_words, client_set_up_unconnected, client_tear_down)
{
	char longname[100];
	struct cnnps_options bad[3] = {client_options(), client_options(), client_options()};

	memset(longname, 'x', sizeof(longname) - 1);
	longname[sizeof(longname) - 1] = '\0';
	bad[0].server = "no endpoint";
	bad[1].server = NULL;
	bad[2].name = longname;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(cnnps_connect(&client, &bad[i]), PS_EUSAGE);
		assert_string_not_equal(cnnps_error(client), "");
		if (i == 0)
			assert_non_null(strstr(cnnps_error(client), "tcp://HOST:PORT"));
		cnnps_close(&client);
	}
}

static int is_stop_set(void *arg)
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

TEST_IN(a_stopped_program_waits_no_more_but_may_push, client_set_up_unconnected, client_tear_down)
{
	struct cnnps_options o = client_options();
	struct cnnps_lease lease = {.size = sizeof(lease)};
	atomic_int stop = 0;
	pthread_t t;

	o.stop = is_stop_set;
	o.stop_arg = &stop;
	client_connect(&o);
	fake_set(&client_server, &client_server.how.mute_leases, 1);
	assert_int_equal(pthread_create(&t, NULL, stop_after_the_lease, &stop), 0);
	assert_int_equal(cnnps_lease(client, &lease), CNNPS_ESHUTDOWN);
	assert_string_equal(cnnps_error(client), "the program ended this wait");
	pthread_join(t, NULL);
	client_push(1, 0);
	assert_int_equal(cnnps_flush(client, 0, 10000), 0);
	assert_int_equal(cnnps_lease(client, &lease), CNNPS_ESHUTDOWN);
	cnnps_close(&client);
	assert_int_equal(fake_read_seen(&client_server).byes, 1);
}

/* ---- heartbeats ----------------------------------------------------------------------------- */

#define WAITS (-1)
static pthread_t program;

static int a_heartbeat(const struct fake *f)
{
	return f->seen.heartbeats >= 1;
}

static int has_eight_heartbeats(const struct fake *f)
{
	return f->seen.heartbeats >= 8;
}

TEST_IN(heartbeats_stop_when_the_program_hangs_and_go_on_when_it_calls, client_set_up_unconnected,
	client_tear_down)
{
	struct cnnps_options o = client_options();

	o.batch_timeout_ms = 300; /* allows 3 heartbeats, 100 ms apart */
	client_connect(&o);
	assert_false(fake_happens(&client_server, has_eight_heartbeats, 2));
	assert_in_range(fake_read_seen(&client_server).heartbeats, 1, 7);
	fake_set(&client_server, &client_server.how.not_durable, 1);
	client_push(1, 0);
	/* heartbeats continue, because a program that waits in a call of libcnnps counts as
	 * alive */
	assert_int_equal(cnnps_flush(client, 1, 1500), CNNPS_EAGAIN);
	assert_true(fake_happens(&client_server, has_eight_heartbeats, 2));
}

/* Sleeps on the program's thread, as if the kernel did not schedule the program in the middle of a
 * wait. */
static int does_not_run(void *arg)
{
	int *heartbeats_on = arg;

	if (pthread_equal(pthread_self(), program) && *heartbeats_on == WAITS)
		*heartbeats_on = fake_happens(&client_server, has_eight_heartbeats, 5);
	return 0;
}

TEST_IN(heartbeats_go_on_when_a_waiting_program_does_not_get_to_run, client_set_up_unconnected,
	client_tear_down)
{
	struct cnnps_options o = client_options();
	int heartbeats_on = 0;

	program = pthread_self();
	o.stop = does_not_run;
	o.stop_arg = &heartbeats_on;
	client_connect(&o);
	fake_set(&client_server, &client_server.how.not_durable, 1);
	client_push(1, 0);
	fake_wait(&client_server, a_heartbeat, "the first heartbeat");
	heartbeats_on = WAITS;
	assert_int_equal(cnnps_flush(client, 1, 300), CNNPS_EAGAIN);
	assert_int_equal(heartbeats_on, 1);
	/* close here, because libcnnps may call `stop` with &heartbeats_on until cnnps_close()
	 * returns */
	cnnps_close(&client);
}

/* Sets *arg to 1 when the server has received a HEARTBEAT that reports at least 100 ms of waiting
 * for a push. Only calls on the program's own thread count. */
static int is_wait_reported(void *arg)
{
	int *reported = arg;

	if (pthread_equal(pthread_self(), program) &&
		fake_read_seen(&client_server).time.push_us >= 100 * 1000)
		*reported = 1;
	return 0;
}

TEST_IN(a_heartbeat_reports_the_wait_that_goes_on, client_set_up_unconnected, client_tear_down)
{
	struct cnnps_options o = client_options();
	int reported = 0;

	program = pthread_self();
	o.stop = is_wait_reported;
	o.stop_arg = &reported;
	client_connect(&o);
	fake_set(&client_server, &client_server.how.not_durable, 1);
	client_push(1, 0);
	assert_int_equal(cnnps_flush(client, 1, 1000), CNNPS_EAGAIN);
	assert_int_equal(reported, 1);
	/* close here, because libcnnps may call `stop` with &reported until cnnps_close()
	 * returns */
	cnnps_close(&client);
}

TEST_IN(the_present_part_of_the_time_counts, client_set_up, client_tear_down)
{
	struct cnnps_stats before = client_stats(client);
	const struct timespec pause = {.tv_nsec = 30 * 1000 * 1000};

	nanosleep(&pause, NULL);
	assert_in_range(
		client_stats(client).compute_us - before.compute_us, 30 * 1000, 10 * 1000 * 1000);
}
