/*
 * test_server_process.c - the real cnn-ps as a process: how it starts, survives kill -9, drains,
 * lives with a full disk, and with what exit code and last line it ends. Its client is libcnnps.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include "common/clock.h"
#include "scratch.h"
#include "worker/cnnps.h"

#define DEADLINE_MS 30000
#define N           600u /* coordinates of the ledger */
#define LEDGER                                                                                     \
	"--model;vector:600;--optimizer;sgd;--lr;1;--stale-rate;constant;--max-staleness;"         \
	"1000000;--warm-updates;0;--checkpoint-ms;20;--http;127.0.0.1:0"
#define MOST_SERVERS 4
#define MAX_ARGV     64

/* A process and what it has written so far. */
struct server {
	pid_t pid;
	int out, err; /* read ends */
	char said[1 << 16], result[1 << 14];
	size_t n_said, n_result;
	int code; /* exit status, once waited for */
};

static struct server servers[MOST_SERVERS];
static char dir[64];

static int set_up(void **state)
{
	(void)state;
	signal(SIGPIPE, SIG_IGN);
	memset(servers, 0, sizeof(servers));
	scratch_make(dir);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	for (size_t i = 0; i < MOST_SERVERS; i++) {
		if (servers[i].pid) {
			kill(servers[i].pid, SIGKILL);
			waitpid(servers[i].pid, NULL, 0);
		}
		if (servers[i].out)
			close(servers[i].out);
		if (servers[i].err)
			close(servers[i].err);
	}
	scratch_remove(dir);
	return 0;
}

/* ---- processes --------------------------------------------------------------------------- */

/* build/<flavour>/tests/unit/test_server_process -> build/<flavour>/cnn-ps */
static const char *binary(void)
{
	static char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 16);

	assert_true(n > 0);
	path[n] = '\0';
	for (int up = 0; up < 3; up++)
		*strrchr(path, '/') = '\0';
	memcpy(path + strlen(path), "/cnn-ps", sizeof("/cnn-ps"));
	return path;
}

static void exec_binary(const char *line)
{
	static char text[8192], *argv[MAX_ARGV];
	int argc = 0;

	snprintf(text, sizeof(text), "%s;%s", binary(), line);
	for (char *at = text; at && argc < MAX_ARGV - 1; argc++) {
		argv[argc] = at;
		at = strchr(at, ';');
		if (at)
			*at++ = '\0';
	}
	argv[argc] = NULL;
	execv(argv[0], argv);
	_exit(127);
}

/* Words are separated by ';'. */
static struct server *launch(const char *line)
{
	struct server *s = servers;
	int out[2], err[2];

	while (s->pid || s->out)
		s++;
	assert_true(s < servers + MOST_SERVERS);
	memset(s, 0, sizeof(*s));
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	assert_int_equal(pipe2(err, O_CLOEXEC), 0);
	s->pid = fork();
	assert_true(s->pid >= 0);
	if (s->pid == 0) {
		dup2(out[1], STDOUT_FILENO);
		dup2(err[1], STDERR_FILENO);
		exec_binary(line);
	}
	close(out[1]);
	close(err[1]);
	s->out = out[0];
	s->err = err[0];
	return s;
}

/* With the test's directory, on any port. */
static struct server *launch_here(const char *more)
{
	char line[1024];

	snprintf(line, sizeof(line), "--checkpoint-dir;%s;--bind;tcp://127.0.0.1:0;%s", dir, more);
	return launch(line);
}

/* Take in what it writes, at most `ms`; 0 when both pipes are closed. */
static int read_some(struct server *s, int ms)
{
	struct pollfd p[2] = {{.fd = s->err, .events = POLLIN}, {.fd = s->out, .events = POLLIN}};
	char *text[2] = {s->said, s->result};
	size_t *n[2] = {&s->n_said, &s->n_result};
	const size_t room[2] = {sizeof(s->said) - 1, sizeof(s->result) - 1};
	int open = 0;

	assert_true(poll(p, 2, ms) >= 0);
	for (int i = 0; i < 2; i++) {
		ssize_t got = -1;
		if (p[i].revents)
			got = read(p[i].fd, text[i] + *n[i], room[i] - *n[i]);
		if (got > 0)
			*n[i] += (size_t)got;
		open |= got != 0;
		assert_true(*n[i] < room[i]);
	}
	return open;
}

/* What follows `words` on the line where it says them, up to the next blank. */
static const char *awaited(struct server *s, const char *words)
{
	static char value[256];
	const uint64_t end = clock_ms() + DEADLINE_MS;
	const char *at;

	while (!(at = strstr(s->said, words)) || !strchr(at, '\n')) {
		if (clock_ms() >= end || !read_some(s, 100))
			fail_msg("no \"%s\" in:\n%s%s", words, s->said, s->result);
	}
	at += strlen(words);
	snprintf(value, sizeof(value), "%.*s", (int)strcspn(at, " \n"), at);
	return value;
}

/* Wait for its end; the exit code, 128 + signal for a killed one. */
static int ended(struct server *s)
{
	const uint64_t end = clock_ms() + DEADLINE_MS;
	int status;

	while (read_some(s, 100))
		if (clock_ms() >= end)
			fail_msg("still running:\n%s", s->said);
	assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
	s->pid = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void kill_9(struct server *s)
{
	kill(s->pid, SIGKILL);
	assert_int_equal(ended(s), 128 + SIGKILL);
}

/* Where it listens. */
static void endpoint(struct server *s, char url[256])
{
	snprintf(url, 256, "%s", awaited(s, "net listening endpoint="));
}

/* The JSON of its last line: the only one on stdout. */
static json_t *result(struct server *s)
{
	json_error_t e;
	json_t *o = json_loads(s->result, 0, &e);

	if (!o || count_lines(s->result) != 1)
		fail_msg("not one line of JSON: \"%s\"\n%s", s->result, s->said);
	return o;
}

static void expect_status(struct server *s, const char *status)
{
	json_t *o = result(s);

	assert_string_equal(json_string_value(json_object_get(o, "status")), status);
	json_decref(o);
}

/* From now on its files may have so many bytes: a full disk. */
static void limit_files(const struct server *s, rlim_t bytes)
{
	const struct rlimit limit = {bytes, RLIM_INFINITY};

	assert_int_equal(prlimit(s->pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

/* ---- its pages ----------------------------------------------------------------------------- */

/* The body of a page, and its status code. */
static int get(struct server *s, const char *path, char *body, size_t size)
{
	const char *colon = strrchr(awaited(s, "http listening url=http://"), ':');
	struct sockaddr_in at = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10)),
		.sin_addr = {htonl(INADDR_LOOPBACK)}};
	char text[1 << 16];
	size_t n = 0;
	ssize_t got;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	int length = snprintf(text, sizeof(text),
		"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
	assert_int_equal(send(fd, text, (size_t)length, 0), length);
	while ((got = recv(fd, text + n, sizeof(text) - 1 - n, 0)) > 0)
		n += (size_t)got;
	text[n] = '\0';
	close(fd);
	const char *blank = strstr(text, "\r\n\r\n");
	assert_non_null(blank);
	snprintf(body, size, "%s", blank + 4);
	return (int)strtol(text + strlen("HTTP/1.1 "), NULL, 10);
}

/* Wait until /healthz answers with `code`; its text is in `why`. */
static void await_health(struct server *s, int code, char why[256])
{
	const uint64_t end = clock_ms() + DEADLINE_MS;

	while (get(s, "/healthz", why, 256) != code) {
		assert_true(clock_ms() < end);
		read_some(s, 20);
	}
}

/* ---- the ledger ---------------------------------------------------------------------------- */

static struct cnnps *join(const char *url)
{
	struct cnnps_options o = {.server = url, .name = "ledger"};
	struct cnnps *c;

	if (cnnps_connect(&c, &o) != 0)
		fail_msg("%s", o.why);
	return c;
}

/* Set coordinates [first, first + n) to -1, one push each. */
static void push(struct cnnps *c, size_t first, size_t n)
{
	const float one = 1;

	for (size_t i = first; i < first + n; i++)
		assert_int_equal(cnnps_push_slice(c, i, &one, 1, i), 0);
}

/* The first `n` coordinates are exactly -1, the others 0. */
static void expect_ledger(struct cnnps *c, size_t n)
{
	float w[N];
	uint64_t version;

	assert_int_equal(cnnps_pull(c, w, N, &version), 0);
	assert_int_equal(version, n);
	for (size_t i = 0; i < N; i++)
		assert_true(w[i] == (i < n ? -1.0f : 0.0f));
}

/* ---- life ---------------------------------------------------------------------------------- */

/* cnnps_close waits for a server that cannot save: not in the test's thread. */
static void *close_client(void *arg)
{
	cnnps_close(arg);
	return NULL;
}

static void a_killed_server_goes_on_where_it_was(void **state)
{
	char url[256], line[1024];

	(void)state;
	struct server *s = launch_here(LEDGER);
	endpoint(s, url);
	snprintf(line, sizeof(line), "--checkpoint-dir;%s;--bind;%s;" LEDGER, dir, url);
	struct cnnps *c = join(url);
	for (size_t life = 0; life < 3; life++) {
		push(c, 200 * life, 150);
		kill_9(s); /* in the middle: what is not durable comes again */
		s = launch(line);
		push(c, 200 * life + 150, 50);
		assert_int_equal(strtol(awaited(s, " epoch="), NULL, 10), (long)life + 2);
	}
	assert_int_equal(cnnps_flush(c, 1, DEADLINE_MS), 0);
	expect_ledger(c, N);
	cnnps_close(&c);
	kill(s->pid, SIGTERM);
	assert_int_equal(ended(s), 0);
	expect_status(s, "drained");
	json_t *o = result(s);
	assert_int_equal(json_integer_value(json_object_get(o, "updates")), N);
	assert_int_equal(json_integer_value(json_object_get(o, "epoch")), 4);
	json_decref(o);
}

/* P10 of faults.md: final checkpoint, workers told, exit 0, quickly. */
static void a_signal_drains(void **state)
{
	static const int signals[] = {SIGTERM, SIGINT};
	char url[256];

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct server *s = launch_here(LEDGER);
		endpoint(s, url);
		struct cnnps *c = join(url);
		push(c, 100 * i, 100);
		assert_int_equal(cnnps_flush(c, 0, DEADLINE_MS), 0);
		const uint64_t begin = clock_ms();
		kill(s->pid, signals[i]);
		assert_int_equal(ended(s), 0);
		assert_true(clock_ms() - begin < 3000);
		expect_status(s, "drained");
		struct cnnps_lease lease;
		assert_int_equal(cnnps_lease(c, &lease), CNNPS_ESHUTDOWN);
		cnnps_close(&c);
	}
	struct server *s = launch_here(LEDGER);
	endpoint(s, url);
	struct cnnps *c = join(url);
	expect_ledger(c, 200);
	cnnps_close(&c);
}

static void a_drain_can_be_asked_for_by_message(void **state)
{
	char url[256];

	(void)state;
	struct server *s = launch_here(LEDGER);
	endpoint(s, url);
	struct cnnps *c = join(url);
	push(c, 0, 10);
	assert_int_equal(cnnps_flush(c, 0, DEADLINE_MS), 0);
	assert_int_equal(cnnps_drain(c), 0);
	assert_int_equal(ended(s), 0);
	expect_status(s, "drained");
	cnnps_close(&c);
}

static void enough_updates_end_a_run(void **state)
{
	char url[256];

	(void)state;
	struct server *s = launch_here(LEDGER ";--max-updates;50");
	endpoint(s, url);
	struct cnnps *c = join(url);
	push(c, 0, 50);
	assert_int_equal(ended(s), 0);
	expect_status(s, "done");
	cnnps_close(&c);
}

/* ---- disks --------------------------------------------------------------------------------- */

static void a_full_disk_degrades_and_gets_over(void **state)
{
	char url[256], why[256];
	uint64_t generation = 0;

	(void)state;
	struct server *s = launch_here(LEDGER);
	endpoint(s, url);
	struct cnnps *c = join(url);
	push(c, 0, 50);
	assert_int_equal(cnnps_flush(c, 1, DEADLINE_MS), 0);
	await_health(s, 200, why);
	assert_string_equal(why, "ok\n");
	limit_files(s, 100);
	push(c, 50, 50);
	assert_int_equal(cnnps_flush(c, 0, DEADLINE_MS), 0); /* training goes on */
	await_health(s, 503, why);
	assert_non_null(strstr(why, dir));
	assert_int_equal(cnnps_flush(c, 1, 300), CNNPS_EAGAIN);
	limit_files(s, RLIM_INFINITY);
	assert_int_equal(cnnps_flush(c, 1, DEADLINE_MS), 0);
	await_health(s, 200, why);
	expect_ledger(c, 100);
	assert_int_equal(cnnps_checkpoint(c, &generation), 0);
	assert_true(generation > 1);
	read_some(s, 0);
	const char *first = strstr(s->said, "checkpoint_failed");
	assert_non_null(first);
	assert_null(strstr(first + 1, "checkpoint_failed")); /* said once */
	cnnps_close(&c);
}

/* No space for the last checkpoint: a second signal ends it at once, patience runs out otherwise;
 * at the natural end the exit code says that it was the disk. */
static void an_end_without_disk_is_bounded(void **state)
{
	char url[3][256], other[2][128];
	struct server *s[3];
	struct cnnps *c[3];
	pthread_t closing[3];

	(void)state;
	s[0] = launch_here(LEDGER);
	for (int i = 0; i < 2; i++) {
		char line[512];
		scratch_make(other[i]);
		snprintf(line, sizeof(line), "--checkpoint-dir;%s;--bind;tcp://127.0.0.1:0;%s",
			other[i], i ? LEDGER ";--max-updates;20" : LEDGER);
		s[1 + i] = launch(line);
	}
	for (int i = 0; i < 3; i++) {
		char why[256];
		endpoint(s[i], url[i]);
		c[i] = join(url[i]);
		limit_files(s[i], 100);
		push(c[i], 0, 10);
		await_health(s[i], 503, why);
	}
	const uint64_t begin = clock_ms();
	push(c[2], 10, 10);
	assert_int_equal(cnnps_flush(c[2], 0, DEADLINE_MS), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&closing[i], NULL, close_client, &c[i]), 0);
	kill(s[0]->pid, SIGTERM);
	kill(s[1]->pid, SIGTERM);
	(void)awaited(s[0], "server draining");
	kill(s[0]->pid, SIGTERM);
	assert_int_equal(ended(s[0]), 1);
	assert_true(clock_ms() - begin < 4000);
	expect_status(s[0], "aborted");
	assert_int_equal(ended(s[1]), 1);
	assert_true(clock_ms() - begin > 8000);
	expect_status(s[1], "aborted");
	assert_int_equal(ended(s[2]), 10);
	expect_status(s[2], "aborted");
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_join(closing[i], NULL), 0);
	for (int i = 0; i < 2; i++)
		scratch_remove(other[i]);
}

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
		cmocka_unit_test_setup_teardown(
			a_killed_server_goes_on_where_it_was, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_signal_drains, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_drain_can_be_asked_for_by_message, set_up, tear_down),
		cmocka_unit_test_setup_teardown(enough_updates_end_a_run, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_full_disk_degrades_and_gets_over, set_up, tear_down),
		cmocka_unit_test_setup_teardown(an_end_without_disk_is_bounded, set_up, tear_down),
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
