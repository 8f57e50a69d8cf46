/*
 * curve.c - measures the cost of encryption: the number of pushes per second, with and without
 * CURVE keys. Each push sends its gradient as one tensor.
 *
 *   curve [--seconds S] [--bytes N] [--mode zmq|cnn-ps] [--keys 0|1]
 *
 * One client and one server share the CPUs on which the program may run. taskset can limit these
 * CPUs (taskset -c 0,1 curve). Mode cnn-ps starts a real server and pushes with libcnnps, so the
 * server makes all of its checks; a push counts when the server has acknowledged it. Mode zmq gives
 * the upper bound: a plain DEALER sends the same bytes to a plain ROUTER, which answers each
 * message with one byte. The program prints CSV.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>
#include "common/keys.h"
#include "common/mem.h"
#include "tests/support/client_calls.h"
#include "worker/client/cnnps.h"

#define WARM_UP 300 /* number of pushes before the clock starts; they use every buffer once */
#define WINDOW  8   /* the maximum number of messages in flight, as in cnn-ps */

struct options {
	/* mode: NULL selects both modes; keys: NULL selects runs with and without keys; build: the
	 * build directory */
	const char *mode, *keys, *build;
	double seconds;
	size_t bytes;
};

/* The server of a measurement: its process and its endpoint. */
struct server {
	pid_t pid;
	char endpoint[64], keys[64]; /* keys: a directory with key files, or "" */
};

static void curve_die(const char *what)
{
	fprintf(stderr, "curve: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The result of a measurement. */
struct rate {
	uint64_t pushes;
	/* seconds: duration; client, server: CPU seconds of the client and of the server */
	double seconds, client, server;
};

static double cpu_of_self(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static double server_cpu_seconds(pid_t pid)
{
	struct timespec t;
	clockid_t clock;

	if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t))
		curve_die("the server's CPU clock");
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void rate_start(struct rate *r, const struct server *s)
{
	r->seconds = -now();
	r->client = -cpu_of_self();
	r->server = -server_cpu_seconds(s->pid);
}

static void rate_stop(struct rate *r, const struct server *s, uint64_t pushes)
{
	r->pushes = pushes;
	r->seconds += now();
	r->client += cpu_of_self();
	r->server += server_cpu_seconds(s->pid);
}

static void in_keys(char path[128], const struct server *s, const char *name)
{
	snprintf(path, 128, "%s/%s", s->keys, name);
}

/* ---- cnn-ps --------------------------------------------------------------------------------- */

static void make_keys(const struct options *o, struct server *s)
{
	char ctl[4096];
	int status;
	pid_t pid;

	snprintf(s->keys, sizeof(s->keys), "/tmp/cnn-curve-XXXXXX");
	if (!mkdtemp(s->keys))
		curve_die(s->keys);
	snprintf(ctl, sizeof(ctl), "%s/cnn-ctl", o->build);
	pid = fork();
	if (pid == 0) {
		if (!freopen("/dev/null", "w", stdout))
			curve_die("stdout");
		execl(ctl, "cnn-ctl", "keygen", s->keys, (char *)NULL);
		curve_die(ctl);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		curve_die("keygen");
}

static void remove_keys(const struct server *s)
{
	static const char *const names[] = {"server", "worker", "admin", "observer"};
	char path[128], name[32];

	for (size_t i = 0; i < 8; i++) {
		snprintf(name, sizeof(name), "%s.%s", names[i / 2], i % 2 ? "pub" : "key");
		in_keys(path, s, name);
		(void)unlink(path);
	}
	in_keys(path, s, "authorized_keys");
	(void)unlink(path);
	(void)rmdir(s->keys);
}

static void exec_server(const struct options *o, const struct server *s, int log)
{
	char binary[4096], model[32], key[128];

	snprintf(binary, sizeof(binary), "%s/cnn-ps", o->build);
	snprintf(model, sizeof(model), "vector:%zu", o->bytes / sizeof(float));
	in_keys(key, s, "server.key");
	dup2(log, 2);
	execl(binary, "cnn-ps", "--bind", "tcp://127.0.0.1:0", "--http", "", "--model", model,
		"--optimizer", "sgd", "--lr", "0.001", "--warm-start-updates", "0",
		"--max-staleness", "1000000000", s->keys[0] ? "--key" : (char *)NULL, key,
		(char *)NULL);
	curve_die(binary);
}

static void start_cnnps(const struct options *o, struct server *s)
{
	char line[512] = "";
	int fd[2];

	if (pipe(fd) || (s->pid = fork()) < 0)
		curve_die("fork");
	if (s->pid == 0)
		exec_server(o, s, fd[1]);
	close(fd[1]);
	/* do not close the pipe, because the server may log more lines */
	FILE *log = fdopen(fd[0], "r");
	while (log && fgets(line, sizeof(line), log)) {
		const char *at = strstr(line, "endpoint=");

		if (!at)
			continue;
		at += strlen("endpoint=");
		snprintf(s->endpoint, sizeof(s->endpoint), "%.*s", (int)strcspn(at, " \n"), at);
		return;
	}
	fprintf(stderr, "curve: the server did not come up: %s\n", line);
	exit(1);
}

/* Push a gradient of `n` values. The library reuses its buffers without clearing them, so a push
 * fills only a buffer that has not been used before. */
static void push_bench_gradient(struct cnnps *c, size_t n)
{
	float *g = cnnps_gradient(c);

	if (!g)
		curve_die("memory");
	for (size_t i = 0; g[n - 1] == 0 && i < n; i++)
		g[i] = 1e-6f * (float)(i % 100 + 1);
	if (client_push_all(c, g, 0)) {
		fprintf(stderr, "curve: a push failed\n");
		exit(1);
	}
}

static void cnnps_rate(const struct options *o, const struct server *s, struct rate *r)
{
	char key[128];
	struct cnnps_options how = {.size = sizeof(how), .server = s->endpoint, .device = "bench"};
	struct cnnps_stats before, after;
	struct cnnps *c;
	size_t n = o->bytes / sizeof(float);

	in_keys(key, s, "worker.key");
	how.key = s->keys[0] ? key : NULL;
	if (cnnps_connect(&c, &how)) {
		fprintf(stderr, "curve: %s\n", cnnps_error(c));
		exit(1);
	}
	for (int i = 0; i < WARM_UP; i++)
		push_bench_gradient(c, n);
	before = client_stats(c);
	rate_start(r, s);
	for (double begun = now(); now() - begun < o->seconds;)
		push_bench_gradient(c, n);
	after = client_stats(c);
	rate_stop(r, s, after.acked - before.acked);
	if (cnnps_flush(c, 0, 10000) || after.rejected || after.reconnects)
		curve_die("not every push was taken");
	cnnps_close(&c);
}

/* ---- bare libzmq ---------------------------------------------------------------------------- */

/* Use CURVE with the key pair `own`: on the socket of a client if `server_key` is given, otherwise
 * on the socket of the server. The server has no ZAP handler, so it accepts every client. */
static void set_curve(void *socket, const struct key_pair *own, const char *server_key)
{
	int yes = 1;

	if (!own->secret_key[0])
		return;
	if (server_key)
		zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, server_key, KEY_TEXT);
	else
		zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &yes, sizeof(yes));
	if (zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, own->public_key, KEY_TEXT) ||
		zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, own->secret_key, KEY_TEXT))
		curve_die("curve");
}

static void serve_zmq(const struct key_pair *key, int out)
{
	void *router = zmq_socket(zmq_ctx_new(), ZMQ_ROUTER);
	char endpoint[64];
	size_t n = sizeof(endpoint);
	zmq_msg_t id, m;

	set_curve(router, key, NULL);
	if (zmq_bind(router, "tcp://127.0.0.1:*") ||
		zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &n) ||
		write(out, endpoint, n) != (ssize_t)n)
		curve_die("bind");
	for (;;) {
		zmq_msg_init(&id);
		zmq_msg_init(&m);
		if (zmq_msg_recv(&id, router, 0) < 0 || zmq_msg_recv(&m, router, 0) < 0)
			curve_die("recv");
		zmq_msg_close(&m);
		if (zmq_msg_send(&id, router, ZMQ_SNDMORE) < 0 || zmq_send(router, "", 1, 0) < 0)
			curve_die("send");
	}
}

static void start_zmq(const struct key_pair *key, struct server *s)
{
	int fd[2];

	if (pipe(fd) || (s->pid = fork()) < 0)
		curve_die("fork");
	if (s->pid == 0)
		serve_zmq(key, fd[1]);
	close(fd[1]);
	if (read(fd[0], s->endpoint, sizeof(s->endpoint)) <= 0)
		curve_die("server");
	close(fd[0]);
}

/* Send messages for `seconds`, with at most WINDOW unanswered messages at a time. Returns the
 * number of answers. */
static uint64_t exchange_messages(void *socket, zmq_msg_t *body, double seconds)
{
	uint64_t sent = 0, answered = 0;
	double begun = now();
	char byte;

	while (now() - begun < seconds) {
		while (sent - answered < WINDOW) {
			zmq_msg_t m;

			zmq_msg_init(&m);
			zmq_msg_copy(&m, body);
			if (zmq_msg_send(&m, socket, 0) < 0)
				curve_die("send");
			sent++;
		}
		if (zmq_recv(socket, &byte, 1, 0) < 0)
			curve_die("recv");
		answered++;
	}
	for (uint64_t rest = answered; rest < sent; rest++)
		(void)zmq_recv(socket, &byte, 1, 0);
	return answered;
}

static void zmq_rate(const struct options *o, const struct server *s, const struct key_pair *server,
	struct rate *r)
{
	void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_DEALER);
	struct key_pair own = {0};
	struct err e;
	zmq_msg_t body;

	if (server->secret_key[0] && key_random(&own, &e))
		curve_die("keys");
	set_curve(socket, &own, server->public_key);
	if (zmq_connect(socket, s->endpoint) || zmq_msg_init_size(&body, o->bytes))
		curve_die("connect");
	memset(zmq_msg_data(&body), 1, o->bytes);
	(void)exchange_messages(socket, &body, o->seconds / 10);
	rate_start(r, s);
	rate_stop(r, s, exchange_messages(socket, &body, o->seconds));
	zmq_msg_close(&body);
	zmq_close(socket);
	zmq_ctx_term(context);
}

/* ---- one row -------------------------------------------------------------------------------- */

static void run_curve(const struct options *o, const char *mode, int keys)
{
	struct server s = {0};
	struct key_pair key = {0};
	struct err e;
	struct rate r;

	if (strcmp(mode, "zmq") == 0) {
		if (keys && key_random(&key, &e))
			curve_die("keys");
		start_zmq(&key, &s);
		zmq_rate(o, &s, &key, &r);
	} else {
		if (keys)
			make_keys(o, &s);
		start_cnnps(o, &s);
		cnnps_rate(o, &s, &r);
	}
	kill(s.pid, SIGKILL);
	waitpid(s.pid, NULL, 0);
	if (s.keys[0])
		remove_keys(&s);
	printf("%s,%d,%zu,%.0f,%.2f,%.2f\n", mode, keys, o->bytes, (double)r.pushes / r.seconds,
		1e3 * r.client / (double)r.pushes, 1e3 * r.server / (double)r.pushes);
	fflush(stdout);
}

/* Returns BUILD for the path BUILD/tests/bench/curve of this program. */
static const char *build_of(const char *argv0)
{
	static char path[4096];
	const char *slash = strrchr(argv0, '/');
	int n = slash ? (int)(slash - argv0) : 1;

	snprintf(path, sizeof(path), "%.*s/../..", n, slash ? argv0 : ".");
	return path;
}

int main(int argc, char **argv)
{
	static const struct option long_options[] = {{"seconds", required_argument, NULL, 's'},
		{"bytes", required_argument, NULL, 'n'}, {"mode", required_argument, NULL, 'm'},
		{"keys", required_argument, NULL, 'k'}, {NULL, 0, NULL, 0}};
	static const char *const modes[] = {"zmq", "cnn-ps"};
	struct options o = {.build = build_of(argv[0]), .seconds = 3, .bytes = 1740000};
	int c;

	mem_keep(); /* keep freed memory, as cnn-worker does */
	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		if (c == 's')
			o.seconds = strtod(optarg, NULL);
		else if (c == 'n')
			o.bytes = strtoul(optarg, NULL, 10);
		else if (c == 'm')
			o.mode = optarg;
		else if (c == 'k')
			o.keys = optarg;
		else
			return 2;
	}
	printf("mode,keys,bytes,pushes_per_s,client_ms,server_ms\n");
	for (int m = 0; m < 2; m++)
		for (int keys = 0; keys < 2; keys++)
			if ((!o.mode || strcmp(o.mode, modes[m]) == 0) &&
				(!o.keys || (o.keys[0] == '1') == keys))
				run_curve(&o, modes[m], keys);
	return 0;
}
