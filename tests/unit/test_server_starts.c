/*
 * test_server_starts.c - the real cnn-ps as a process: starts that are refused, and what it says of
 * itself once it runs.
 */
#include "tests/unit/process_lab.h"

/* ---- starts that are refused --------------------------------------------------------------- */

static void refused(const char *more, int code, const char *named)
{
	struct server *s = launch_here(more);

	assert_int_equal(ended(s), code);
	if (!strstr(s->said, named))
		fail_msg("no \"%s\" in: %s", named, s->said);
	assert_int_equal(s->n_result, 0);
	assert_null(strstr(s->said, "listening"));
	close(s->out);
	close(s->err);
	s->out = s->err = 0;
}

static void starts_are_refused_by_exit_code(void **state)
{
	char url[256], taken[512], pid[64];

	(void)state;
	struct server *s = launch_here(LEDGER);
	endpoint(s, url);
	snprintf(pid, sizeof(pid), "process %ld", (long)s->pid);
	refused(LEDGER, 8, pid);
	snprintf(taken, sizeof(taken), "--checkpoint-dir;;--bind;%s", url);
	struct server *second = launch(taken);
	assert_int_equal(ended(second), 2);
	assert_non_null(strstr(second->said, url));
	kill_9(s);
	refused("--model;vector:601;--optimizer;sgd", 7, "--model");
	refused("--model;vector:600;--optimizer;adagrad", 7, "--optimizer");
	refused("--model;vector:600;--optimizer;sgd;--seed;5", 7, "--seed");
	refused("--lr;nan", 2, "--lr");
}

static void a_bad_file_of_weights_is_refused(void **state)
{
	char line[512];

	(void)state;
	scratch_write(dir, "x.safetensors", "not tensors", 11);
	snprintf(line, sizeof(line), "--model;fc:10;--init;%s/x.safetensors", dir);
	refused(line, 6, "x.safetensors");
	refused("--init;/no/such/file", 2, "/no/such/file");
}

static void check_config_says_so_and_touches_nothing(void **state)
{
	char line[512];

	(void)state;
	snprintf(line, sizeof(line), "--check-config;--checkpoint-dir;%s/new;--model;fc:10", dir);
	struct server *s = launch(line);
	assert_int_equal(ended(s), 0);
	assert_non_null(strstr(s->result, "parameters=7850"));
	assert_non_null(strstr(s->said, "lr=0.04"));
	assert_null(strstr(s->said, "listening"));
	assert_false(scratch_exists(dir, "new"));
	s = launch("--check-config;--lr;-1");
	assert_int_equal(ended(s), 2);
}

/* ---- looking in ---------------------------------------------------------------------------- */

static void status_is_the_same_by_message_and_page(void **state)
{
	char url[256], page[1 << 15], text[1 << 15];
	json_error_t e;

	(void)state;
	struct server *s = launch_here(LEDGER);
	endpoint(s, url);
	struct cnnps *c = join(url);
	push(c, 0, 7);
	assert_int_equal(cnnps_flush(c, 1, DEADLINE_MS), 0);
	assert_int_equal(get(s, "/status", page, sizeof(page)), 200);
	assert_int_equal(cnnps_status(c, text, sizeof(text)), 0);
	json_t *a = json_loads(page, 0, &e), *b = json_loads(text, 0, &e);
	assert_non_null(a);
	assert_non_null(b);
	const char *key;
	json_t *value;
	assert_int_equal(json_object_size(a), json_object_size(b));
	json_object_foreach(a, key, value)
	{
		const json_t *other = json_object_get(b, key);
		assert_non_null(other);
		if (strcmp(key, "run") == 0 || strcmp(key, "updates") == 0)
			assert_true(json_equal(value, other));
	}
	assert_int_equal(json_integer_value(json_object_get(a, "updates")), 7);
	json_decref(a);
	json_decref(b);
	assert_int_equal(get(s, "/metrics", page, sizeof(page)), 200);
	assert_non_null(strstr(page, "\ncnnps_updates_total 7\n"));
	assert_non_null(strstr(page, "\ncnnps_zloop_rescues_total 0\n"));
	assert_int_equal(get(s, "/", page, sizeof(page)), 404);
	cnnps_close(&c);
}

static void without_a_directory_it_warns_once_and_refuses_checkpoints(void **state)
{
	char url[256];
	uint64_t generation;

	(void)state;
	struct server *s = launch("--bind;tcp://127.0.0.1:0;" LEDGER);
	endpoint(s, url);
	const char *warning = strstr(s->said, "warn saver off");
	assert_non_null(warning);
	assert_null(strstr(warning + 1, "warn"));
	struct cnnps *c = join(url);
	push(c, 0, 7);
	assert_int_equal(cnnps_flush(c, 1, DEADLINE_MS), 0);
	expect_ledger(c, 7);
	assert_int_not_equal(cnnps_checkpoint(c, &generation), 0);
	cnnps_close(&c);
	kill(s->pid, SIGTERM);
	assert_int_equal(ended(s), 0);
}

/* A connection is a line at level debug only. */
static void sighup_switches_the_log_level(void **state)
{
	char url[256];

	(void)state;
	struct server *s = launch_here(LEDGER);
	endpoint(s, url);
	struct cnnps *c = join(url);
	cnnps_close(&c);
	assert_null(strstr(s->said, "debug "));
	kill(s->pid, SIGHUP);
	assert_string_equal(awaited(s, "server log_level debug="), "1");
	c = join(url);
	cnnps_close(&c);
	(void)awaited(s, "debug net accepted");
	kill(s->pid, SIGHUP);
	(void)awaited(s, "server log_level debug=0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(starts_are_refused_by_exit_code, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_bad_file_of_weights_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			check_config_says_so_and_touches_nothing, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			status_is_the_same_by_message_and_page, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			without_a_directory_it_warns_once_and_refuses_checkpoints, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(sighup_switches_the_log_level, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
