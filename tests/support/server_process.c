/* server_process.c - see server_process.h. */
#include "tests/support/server_process.h"
#include "tests/support/client_calls.h"

#define MAX_SERVERS 4
#define MAX_ARGV    64

static struct server_process server_processes[MAX_SERVERS];
char server_dir[64];

int server_set_up(void **state)
{
	(void)state;
	signal(SIGPIPE, SIG_IGN);
	memset(server_processes, 0, sizeof(server_processes));
	temp_dir_make(server_dir);
	return 0;
}

int server_tear_down(void **state)
{
	(void)state;
	for (size_t i = 0; i < MAX_SERVERS; i++) {
		if (server_processes[i].pid) {
			kill(server_processes[i].pid, SIGKILL);
			waitpid(server_processes[i].pid, NULL, 0);
		}
		if (server_processes[i].out)
			close(server_processes[i].out);
		if (server_processes[i].err)
			close(server_processes[i].err);
	}
	temp_dir_remove(server_dir);
	return 0;
}

/* ---- processes --------------------------------------------------------------------------- */

/* Returns the path of the server under test: build/<flavour>/cnn-ps if this test program is
 * build/<flavour>/tests/unit/test_X. */
static const char *path_of_server(void)
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

	snprintf(text, sizeof(text), "%s;%s", path_of_server(), line);
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

struct server_process *server_start(const char *line)
{
	struct server_process *s = server_processes;
	int out[2], err[2];

	while (s->pid || s->out)
		s++;
	assert_true(s < server_processes + MAX_SERVERS);
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

struct server_process *server_start_here(const char *more)
{
	char line[1024];

	snprintf(line, sizeof(line), "--checkpoint-dir;%s;--bind;tcp://127.0.0.1:0;%s", server_dir,
		more);
	return server_start(line);
}

int server_read(struct server_process *s, int ms)
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

const char *server_await(struct server_process *s, const char *words)
{
	static char value[256];
	const uint64_t end = clock_ms() + SERVER_DEADLINE_MS;
	const char *at;

	while (!(at = strstr(s->said, words)) || !strchr(at, '\n')) {
		if (clock_ms() >= end || !server_read(s, 100))
			fail_msg("no \"%s\" in:\n%s%s", words, s->said, s->result);
	}
	at += strlen(words);
	snprintf(value, sizeof(value), "%.*s", (int)strcspn(at, " \n"), at);
	return value;
}

int server_wait(struct server_process *s)
{
	const uint64_t end = clock_ms() + SERVER_DEADLINE_MS;
	int status;

	while (server_read(s, 100))
		if (clock_ms() >= end)
			fail_msg("still running:\n%s", s->said);
	assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
	s->pid = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void server_kill(struct server_process *s)
{
	kill(s->pid, SIGKILL);
	assert_int_equal(server_wait(s), 128 + SIGKILL);
}

void server_endpoint(struct server_process *s, char url[256])
{
	snprintf(url, 256, "%s", server_await(s, "msg=\"net listening\" endpoint="));
}

json_t *server_result(struct server_process *s)
{
	json_error_t e;
	json_t *o = json_loads(s->result, 0, &e);

	if (!o || count_lines(s->result) != 1)
		fail_msg("not one line of JSON: \"%s\"\n%s", s->result, s->said);
	return o;
}

void server_expect_status(struct server_process *s, const char *status)
{
	json_t *o = server_result(s);

	assert_string_equal(json_string_value(json_object_get(o, "status")), status);
	json_decref(o);
}

void server_limit_files(const struct server_process *s, rlim_t bytes)
{
	const struct rlimit limit = {bytes, RLIM_INFINITY};

	assert_int_equal(prlimit(s->pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

/* ---- HTTP ----------------------------------------------------------------------------------- */

int server_get(struct server_process *s, const char *path, char *body, size_t size)
{
	const char *colon = strrchr(server_await(s, "msg=\"http listening\" url=http://"), ':');
	struct sockaddr_in at = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10)),
		.sin_addr = {htonl(INADDR_LOOPBACK)}};
	char text[1 << 16];
	size_t n = 0;
	ssize_t got;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	int length = snprintf(text, sizeof(text),
		"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
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

void server_await_health(struct server_process *s, int code, char why[256])
{
	const uint64_t end = clock_ms() + SERVER_DEADLINE_MS;

	while (server_get(s, "/healthz", why, 256) != code) {
		assert_true(clock_ms() < end);
		server_read(s, 20);
	}
}

/* ---- the ledger gradient -------------------------------------------------------------------- */

struct cnnps *ledger_join(const char *url)
{
	struct cnnps_options o = {.size = sizeof(o), .server = url, .name = "ledger"};
	struct cnnps *c;

	if (cnnps_connect(&c, &o) != 0)
		fail_msg("%s", cnnps_error(c));
	return c;
}

void ledger_push(struct cnnps *c, size_t first, size_t n)
{
	const float one = 1;

	for (size_t i = first; i < first + n; i++)
		assert_int_equal(client_push_slice(c, i, &one, 1, i), 0);
}

void ledger_expect(struct cnnps *c, size_t n)
{
	float w[LEDGER_PARAMS];
	uint64_t version;

	assert_int_equal(client_pull_all(c, w, &version), 0);
	assert_int_equal(version, n);
	for (size_t i = 0; i < LEDGER_PARAMS; i++)
		assert_true(w[i] == (i < n ? -1.0f : 0.0f));
}
