/*
 * process_lab.h - the real cnn-ps as a process of the test's: started, read, killed, asked for its
 * pages, and trained by a ledger over libcnnps.
 *
 * A header with bodies, for one test program is one file. Thread: the test's.
 */
#ifndef TESTS_UNIT_PROCESS_LAB_H
#define TESTS_UNIT_PROCESS_LAB_H
#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include "common/clock.h"
#include "tests/support/capture.h"
#include "tests/support/temp_dir.h"
#include "worker/client/cnnps.h"

#define DEADLINE_MS 30000
#define N           600u /* coordinates of the ledger */
#define LEDGER                                                                                     \
	"--model;vector:600;--optimizer;sgd;--lr;1;--lr-scaling;none;--staleness-scaling;"         \
	"constant;"                                                                                \
	"--max-staleness;"                                                                         \
	"1000000;--warm-start-updates;0;--checkpoint-ms;20;--http;127.0.0.1:0"
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

static inline int set_up(void **state)
{
	(void)state;
	signal(SIGPIPE, SIG_IGN);
	memset(servers, 0, sizeof(servers));
	temp_dir_make(dir);
	return 0;
}

static inline int tear_down(void **state)
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
	temp_dir_remove(dir);
	return 0;
}

/* ---- processes --------------------------------------------------------------------------- */

/* build/<flavour>/tests/unit/test_X -> build/<flavour>/cnn-ps */
static inline const char *binary(void)
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

static inline void exec_binary(const char *line)
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
static inline struct server *launch(const char *line)
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
static inline struct server *launch_here(const char *more)
{
	char line[1024];

	snprintf(line, sizeof(line), "--checkpoint-dir;%s;--bind;tcp://127.0.0.1:0;%s", dir, more);
	return launch(line);
}

/* Take in what it writes, at most `ms`; 0 when both pipes are closed. */
static inline int read_some(struct server *s, int ms)
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
static inline const char *awaited(struct server *s, const char *words)
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
static inline int ended(struct server *s)
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

static inline void kill_9(struct server *s)
{
	kill(s->pid, SIGKILL);
	assert_int_equal(ended(s), 128 + SIGKILL);
}

/* Where it listens. */
static inline void endpoint(struct server *s, char url[256])
{
	snprintf(url, 256, "%s", awaited(s, "msg=\"net listening\" endpoint="));
}

/* The JSON of its last line: the only one on stdout. */
static inline json_t *result(struct server *s)
{
	json_error_t e;
	json_t *o = json_loads(s->result, 0, &e);

	if (!o || count_lines(s->result) != 1)
		fail_msg("not one line of JSON: \"%s\"\n%s", s->result, s->said);
	return o;
}

static inline void expect_status(struct server *s, const char *status)
{
	json_t *o = result(s);

	assert_string_equal(json_string_value(json_object_get(o, "status")), status);
	json_decref(o);
}

/* From now on its files may have so many bytes: a full disk. */
static inline void limit_files(const struct server *s, rlim_t bytes)
{
	const struct rlimit limit = {bytes, RLIM_INFINITY};

	assert_int_equal(prlimit(s->pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

/* ---- its pages ----------------------------------------------------------------------------- */

/* The body of a page, and its status code. */
static inline int get(struct server *s, const char *path, char *body, size_t size)
{
	const char *colon = strrchr(awaited(s, "msg=\"http listening\" url=http://"), ':');
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
static inline void await_health(struct server *s, int code, char why[256])
{
	const uint64_t end = clock_ms() + DEADLINE_MS;

	while (get(s, "/healthz", why, 256) != code) {
		assert_true(clock_ms() < end);
		read_some(s, 20);
	}
}

/* ---- the ledger ---------------------------------------------------------------------------- */

static inline struct cnnps *join(const char *url)
{
	struct cnnps_options o = {.server = url, .name = "ledger"};
	struct cnnps *c;

	if (cnnps_connect(&c, &o) != 0)
		fail_msg("%s", o.why);
	return c;
}

/* Set coordinates [first, first + n) to -1, one push each. */
static inline void push(struct cnnps *c, size_t first, size_t n)
{
	const float one = 1;

	for (size_t i = first; i < first + n; i++)
		assert_int_equal(cnnps_push_slice(c, i, &one, 1, i), 0);
}

/* The first `n` coordinates are exactly -1, the others 0. */
static inline void expect_ledger(struct cnnps *c, size_t n)
{
	float w[N];
	uint64_t version;

	assert_int_equal(cnnps_pull(c, w, N, &version), 0);
	assert_int_equal(version, n);
	for (size_t i = 0; i < N; i++)
		assert_true(w[i] == (i < n ? -1.0f : 0.0f));
}

#endif
