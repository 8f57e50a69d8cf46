/*
 * test_server_process_start.c - the real cnn-ps as a process: starts that it refuses, and log lines
 * and status while it runs.
 */
#include "common/keys.h"
#include "tests/support/server_process.h"
#include "tests/support/test.h"

/* ---- starts that are refused --------------------------------------------------------------- */

static void end_refused(struct server_process *s, int code, const char *named)
{
	assert_int_equal(server_wait(s), code);
	if (!strstr(s->said, named))
		fail_msg("no \"%s\" in: %s", named, s->said);
	assert_int_equal(s->n_result, 0);
	assert_null(strstr(s->said, "listening"));
	/* the server must not log lines about a run that does not start */
	assert_null(strstr(s->said, "_run"));
	assert_null(strstr(s->said, "checkpointer"));
	close(s->out);
	close(s->err);
	s->out = s->err = 0;
}

static void assert_start_refused(const char *more, int code, const char *named)
{
	end_refused(server_start_here(more), code, named);
}

TEST_IN(starts_are_refused_by_exit_code, server_set_up, server_tear_down)
{
	char url[256], taken[512], pid[64];

	struct server_process *s = server_start_here(LEDGER_OPTIONS);
	server_endpoint(s, url);
	snprintf(pid, sizeof(pid), "process %ld", (long)s->pid);
	assert_start_refused(LEDGER_OPTIONS, 8, pid);
	snprintf(taken, sizeof(taken), "--checkpoint-dir;;--bind;%s", url);
	struct server_process *second = server_start(taken);
	assert_int_equal(server_wait(second), 2);
	assert_non_null(strstr(second->said, url));
	server_kill(s);
	assert_start_refused("--model;vector:601;--optimizer;sgd", 7, "--model");
	assert_start_refused("--model;vector:600;--optimizer;adagrad", 7, "--optimizer");
	assert_start_refused("--model;vector:600;--optimizer;sgd;--seed;5", 7, "--seed");
	assert_start_refused("--lr;nan", 2, "--lr");
}

/* The server must print one line with host and port, and must write no run to the directory. */
TEST_IN(an_address_in_use_is_named_before_anything_is_logged_or_written, server_set_up,
	server_tear_down)
{
	char url[256], line[512];

	struct server_process *s = server_start("--bind;tcp://127.0.0.1:0;" LEDGER_OPTIONS);
	server_endpoint(s, url);
	const char *page = server_await(s, "\"http listening\" url=http://");
	char http[256];
	snprintf(http, sizeof(http), "%s", page);
	snprintf(line, sizeof(line), "--checkpoint-dir;%s;--bind;%s", server_dir, url);
	struct server_process *second = server_start(line);
	assert_int_equal(server_wait(second), 2);
	assert_non_null(strstr(second->said, url));
	assert_int_equal(count_lines(second->said), 1);
	snprintf(line, sizeof(line), "--checkpoint-dir;%s;--bind;tcp://127.0.0.1:0;--http;%s",
		server_dir, http);
	second = server_start(line);
	assert_int_equal(server_wait(second), 2);
	assert_non_null(strstr(second->said, http));
	assert_int_equal(count_lines(second->said), 1);
	assert_false(temp_dir_exists(server_dir, "TERM"));
}

TEST_IN(localhost_is_no_open_address, server_set_up, server_tear_down)
{
	char url[256];

	struct server_process *s =
		server_start("--bind;tcp://localhost:0;--http;localhost:0;--model;vector:600");
	server_endpoint(s, url);
	struct cnnps *c = ledger_join(url);
	cnnps_close(&c);
	kill(s->pid, SIGTERM);
	assert_int_equal(server_wait(s), 0);
}

TEST_IN(a_bad_file_of_weights_is_refused, server_set_up, server_tear_down)
{
	char line[512];

	temp_dir_write(server_dir, "x.safetensors", "not tensors", 11);
	snprintf(line, sizeof(line), "--model;fc:10;--init;%s/x.safetensors", server_dir);
	assert_start_refused(line, 6, "x.safetensors");
	assert_start_refused("--init;/no/such/file", 2, "/no/such/file");
}

TEST_IN(check_config_reports_and_creates_nothing, server_set_up, server_tear_down)
{
	char line[512];

	snprintf(line, sizeof(line), "--check-config;--checkpoint-dir;%s/new;--model;fc:10",
		server_dir);
	struct server_process *s = server_start(line);
	assert_int_equal(server_wait(s), 0);
	assert_non_null(strstr(s->result, "parameters=7850"));
	assert_non_null(strstr(s->said, "name=lr value=0.009"));
	assert_null(strstr(s->said, "listening"));
	assert_false(temp_dir_exists(server_dir, "new"));
	s = server_start("--check-config;--lr;-1");
	assert_int_equal(server_wait(s), 2);
}

static void config_refused(const char *key, const char *more, const char *named)
{
	char line[512];

	snprintf(line, sizeof(line), "--check-config;--key;%s%s", key, more);
	end_refused(server_start(line), 2, named);
}

/* --check-config must refuse the files that a start of the server would refuse. */
TEST_IN(check_config_refuses_the_files_of_keys_that_a_start_refuses, server_set_up,
	server_tear_down)
{
	char key[320], public_key[KEY_TEXT];
	struct err e;
	int made;

	temp_dir_path(server_dir, "s.key", key);
	config_refused(key, "", "s.key");
	assert_int_equal(key_make_files(server_dir, "s", public_key, &made, &e), PS_OK);
	config_refused(key, "", "authorized_keys");
	temp_dir_write(server_dir, "allow", "", 0);
	config_refused(key, "", "allow: was renamed: move it to authorized_keys");
	temp_dir_write(server_dir, "authorized_keys", "worker\n", 7);
	config_refused(key, "", "authorized_keys:1");
	temp_dir_write(server_dir, "authorized_keys", "", 0);
	config_refused(key, ";--http;127.0.0.1:0;--http-token;/no/such/token", "/no/such/token");
}

/* ---- status and log level ------------------------------------------------------------------ */

TEST_IN(status_is_the_same_by_message_and_page, server_set_up, server_tear_down)
{
	char url[256], page[1 << 15], text[1 << 15];
	json_error_t e;

	struct server_process *s = server_start_here(LEDGER_OPTIONS);
	server_endpoint(s, url);
	struct cnnps *c = ledger_join(url);
	ledger_push(c, 0, 7);
	assert_int_equal(cnnps_flush(c, 1, SERVER_DEADLINE_MS), 0);
	assert_int_equal(server_get(s, "/status", page, sizeof(page)), 200);
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
	assert_int_equal(server_get(s, "/metrics", page, sizeof(page)), 200);
	assert_non_null(strstr(page, "\ncnnps_updates_total 7\n"));
	assert_non_null(strstr(page, "\ncnnps_zloop_rescues_total 0\n"));
	assert_int_equal(server_get(s, "/nothing", page, sizeof(page)), 404);
	cnnps_close(&c);
}

TEST_IN(without_a_directory_it_warns_once_and_refuses_checkpoints, server_set_up, server_tear_down)
{
	char url[256];
	uint64_t generation;

	struct server_process *s = server_start("--bind;tcp://127.0.0.1:0;" LEDGER_OPTIONS);
	server_endpoint(s, url);
	const char *warning = strstr(s->said, "level=warn msg=\"checkpoint off\"");
	assert_non_null(warning);
	assert_null(strstr(warning + 1, "level=warn"));
	struct cnnps *c = ledger_join(url);
	ledger_push(c, 0, 7);
	assert_int_equal(cnnps_flush(c, 1, SERVER_DEADLINE_MS), 0);
	ledger_expect(c, 7);
	assert_int_not_equal(cnnps_checkpoint(c, &generation), 0);
	cnnps_close(&c);
	kill(s->pid, SIGTERM);
	assert_int_equal(server_wait(s), 0);
}

/* The test recognizes the log level by the lines about connections, which the server logs only at
 * level debug. */
TEST_IN(sighup_leaves_the_log_level, server_set_up, server_tear_down)
{
	char url[256];

	struct server_process *s = server_start_here(LEDGER_OPTIONS);
	server_endpoint(s, url);
	kill(s->pid, SIGHUP);
	(void)server_await(s, "msg=\"server no_keys\"");
	struct cnnps *c = ledger_join(url);
	ledger_push(c, 0, 1);
	assert_int_equal(cnnps_flush(c, 1, SERVER_DEADLINE_MS), 0);
	cnnps_close(&c);
	kill(s->pid, SIGTERM);
	assert_int_equal(server_wait(s), 0);
	assert_null(strstr(s->said, "level=debug"));
}

TEST_IN(the_log_level_is_set_by_an_admin_message, server_set_up, server_tear_down)
{
	char url[256], json[1 << 15];

	struct server_process *s = server_start_here(LEDGER_OPTIONS);
	server_endpoint(s, url);
	struct cnnps *admin = ledger_join(url);
	assert_int_equal(cnnps_log_level(admin, "loud"), -1);
	assert_int_equal(cnnps_log_level(admin, "debug"), 0);
	assert_string_equal(server_await(s, "msg=\"server log_level\" from=info to="), "debug");
	assert_int_equal(cnnps_status(admin, json, sizeof(json)), 0);
	assert_non_null(strstr(json, "\"log_level\":\"debug\""));
	/* this client has the same name, so it replaces the first one */
	struct cnnps *c = ledger_join(url);
	(void)server_await(s, "level=debug msg=\"net accepted\"");
	assert_int_equal(cnnps_log_level(c, "error"), 0);
	assert_string_equal(server_await(s, "from=debug to="), "error");
	cnnps_close(&c);
	cnnps_close(&admin);
	kill(s->pid, SIGTERM);
	assert_int_equal(server_wait(s), 0);
	/* the line has level info, which the server does not log at level error */
	assert_null(strstr(s->said, "server draining"));
}

/* Slurm sends SIGUSR1 some time before the end of the job (sbatch --signal). */
TEST_IN(sigusr1_drains_and_sigusr2_does_nothing, server_set_up, server_tear_down)
{
	char url[256];

	struct server_process *s = server_start_here(LEDGER_OPTIONS);
	server_endpoint(s, url);
	struct cnnps *c = ledger_join(url);
	ledger_push(c, 0, 3);
	assert_int_equal(cnnps_flush(c, 1, SERVER_DEADLINE_MS), 0);
	kill(s->pid, SIGUSR2);
	kill(s->pid, SIGUSR1);
	kill(s->pid, SIGUSR1);
	(void)server_await(s, "msg=\"server draining\"");
	kill(s->pid, SIGUSR1);
	assert_int_equal(server_wait(s), 0);
	server_expect_status(s, "drained");
	cnnps_close(&c);
}
