/*
 * transport.c - how fast weights and gradients travel: push + pull pairs per second over loopback.
 *
 *   transport [--server-binary PATH] [--seconds S] [--bytes N] [--workers N] [--mode cnn-ps|zmq]
 *
 * Prints CSV. mode cnn-ps: a real server (vector:N, plain SGD) and worker processes that push a
 * full gradient and pull the full weights with libcnnps, all checks on: checksums, finite values,
 * exactly-once. mode zmq: the same bytes between a bare ROUTER and bare DEALERs that neither copy
 * nor look at anything, the ceiling. A pair is one push and the pull after it; p50 and p99 are of
 * one pair; CPU seconds are user + system of server and workers, per 10^9 bytes moved in either
 * direction.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>
#include "common/mem.h"
#include "worker/cnnps.h"

#define MAX_WORKERS 16
#define MAX_PAIRS   (1 << 20) /* latencies kept per worker */
#define WARM_UP     20        /* pairs before the clock starts */

/* Shared by all processes of one measurement. */
struct shared {
	char endpoint[64];
	int ready[MAX_WORKERS]; /* the worker is connected and warm */
	int go;                 /* the clock runs */
	struct {
		uint64_t pairs;
		double seconds, cpu;
		float us[MAX_PAIRS];
	} worker[MAX_WORKERS];
};

struct options {
	const char *server_binary, *mode;
	double seconds;
	size_t bytes, workers; /* 0: all the usual ones */
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what)
{
	fprintf(stderr, "transport: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double cpu_of_self(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* User + system seconds of a process so far, from /proc. */
static double cpu_of(pid_t pid)
{
	char path[64], text[1024];
	unsigned long user = 0, sys = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
	if (f)
		fclose(f);
	text[n] = 0;
	char *at = strrchr(text, ')'); /* ends field 2; user and system are fields 14 and 15 */
	for (int i = 2; at && i < 14; i++)
		at = strchr(at + 1, ' ');
	if (at) {
		user = strtoul(at + 1, &at, 10);
		sys = strtoul(at, NULL, 10);
	}
	return (double)(user + sys) / (double)sysconf(_SC_CLK_TCK);
}

/* ---- the loop of every worker ------------------------------------------------------------------
 */

/* One pair; 0, or nonzero to stop. */
typedef int pair_fn(void *arg);

static void measure(struct shared *s, size_t index, double seconds, pair_fn *pair, void *arg)
{
	for (int i = 0; i < WARM_UP; i++)
		if (pair(arg))
			exit(1);
	__atomic_store_n(&s->ready[index], 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&s->go, __ATOMIC_ACQUIRE))
		usleep(100);
	double start = now(), cpu = cpu_of_self(), t = start;
	uint64_t n = 0;
	while (t - start < seconds) {
		if (pair(arg))
			exit(1);
		double after = now();
		if (n < MAX_PAIRS)
			s->worker[index].us[n] = (float)((after - t) * 1e6);
		n++;
		t = after;
	}
	s->worker[index].pairs = n;
	s->worker[index].seconds = t - start;
	s->worker[index].cpu = cpu_of_self() - cpu;
}

/* ---- mode cnn-ps -------------------------------------------------------------------------------
 */

struct cnnps_pair {
	struct cnnps *c;
	size_t n;
	uint64_t version;
};

/* As cnn-worker does it: gradients are made in the library's buffers, weights are read where they
 * came. A buffer that comes back still has its values: making a gradient costs nothing here. */
static int cnnps_pair(void *arg)
{
	struct cnnps_pair *p = arg;
	float *g = cnnps_gradient(p->c);
	struct cnnps_weights w = {.version = p->version};

	if (!g)
		die("memory");
	for (size_t i = 0; g[p->n - 1] == 0 && i < p->n; i++)
		g[i] = 1e-6f * (float)(i % 100 + 1);
	int rc = cnnps_push_view(p->c, g, p->n, p->version, NULL, &w);
	p->version = w.version;
	if (rc)
		fprintf(stderr, "transport: %s\n", cnnps_strerror(rc));
	return rc;
}

static void cnnps_worker(struct shared *s, size_t index, size_t bytes, double seconds)
{
	struct cnnps_options o = {.server = s->endpoint, .device = "bench"};
	struct cnnps_pair p = {.n = bytes / sizeof(float)};
	struct cnnps_stats stats;

	if (cnnps_connect(&p.c, &o)) {
		fprintf(stderr, "transport: %s\n", o.why);
		exit(1);
	}
	measure(s, index, seconds, cnnps_pair, &p);
	if (cnnps_flush(p.c, 0, 10000))
		exit(1);
	cnnps_stats(p.c, &stats);
	if (stats.rejected || stats.reconnects || stats.acked != stats.pushed) {
		fprintf(stderr, "transport: pushed %llu acked %llu rejected %llu reconnects %llu\n",
			(unsigned long long)stats.pushed, (unsigned long long)stats.acked,
			(unsigned long long)stats.rejected, (unsigned long long)stats.reconnects);
		exit(1);
	}
	cnnps_close(&p.c);
}

/* Start cnn-ps and read its endpoint from the log. */
static pid_t cnnps_server(const struct options *o, struct shared *s, size_t bytes, size_t workers)
{
	char model[32], max[16], line[512];
	int fd[2];
	pid_t pid = -1;

	(void)workers;
	snprintf(model, sizeof(model), "vector:%zu", bytes / sizeof(float));
	snprintf(max, sizeof(max), "%d", MAX_WORKERS);
	if (pipe(fd) || (pid = fork()) < 0)
		die("fork");
	if (pid == 0) {
		dup2(fd[1], 2);
		close(fd[0]);
		close(fd[1]);
		execl(o->server_binary, "cnn-ps", "--bind", "tcp://127.0.0.1:0", "--http", "",
			"--model", model, "--optimizer", "sgd", "--lr", "0.001", "--warm-updates",
			"0", "--max-staleness", "1000000000", "--max-workers", max, (char *)NULL);
		die(o->server_binary);
	}
	close(fd[1]);
	FILE *log = fdopen(fd[0], "r");
	while (log && fgets(line, sizeof(line), log)) {
		const char *at = strstr(line, "endpoint=");
		if (at) {
			at += strlen("endpoint=");
			snprintf(s->endpoint, sizeof(s->endpoint), "%.*s", (int)strcspn(at, " \n"),
				at);
			return pid; /* the pipe stays open: the server may go on logging */
		}
	}
	fprintf(stderr, "transport: the server did not come up: %s\n", line);
	exit(1);
}

/* ---- mode zmq ----------------------------------------------------------------------------------
 */

struct zmq_pair {
	void *socket;
	zmq_msg_t gradient; /* sent again and again */
};

static void new_message(zmq_msg_t *m, size_t bytes)
{
	if (zmq_msg_init_size(m, bytes))
		die("memory");
	memset(zmq_msg_data(m), 1, bytes);
}

static int zmq_pair(void *arg)
{
	struct zmq_pair *p = arg;
	zmq_msg_t m;

	zmq_msg_init(&m);
	zmq_msg_copy(&m, &p->gradient);
	if (zmq_msg_send(&m, p->socket, 0) < 0 || zmq_msg_recv(&m, p->socket, 0) < 0)
		return 1;
	return zmq_msg_close(&m);
}

static void zmq_worker(struct shared *s, size_t index, size_t bytes, double seconds)
{
	struct zmq_pair p;
	void *context = zmq_ctx_new();
	int linger = 0;

	new_message(&p.gradient, bytes);
	p.socket = zmq_socket(context, ZMQ_DEALER);
	if (!p.socket || zmq_connect(p.socket, s->endpoint))
		die("zmq worker");
	measure(s, index, seconds, zmq_pair, &p);
	zmq_setsockopt(p.socket, ZMQ_LINGER, &linger, sizeof(linger));
	zmq_close(p.socket);
	zmq_msg_close(&p.gradient);
	zmq_ctx_term(context);
}

/* Takes a message, answers with as many bytes; never ends. */
static void zmq_serve(void *router, size_t bytes)
{
	zmq_msg_t weights;

	new_message(&weights, bytes);
	for (;;) {
		zmq_msg_t id, m;
		zmq_msg_init(&id);
		zmq_msg_init(&m);
		if (zmq_msg_recv(&id, router, 0) < 0 || zmq_msg_recv(&m, router, 0) < 0)
			die("recv");
		zmq_msg_copy(&m, &weights);
		if (zmq_msg_send(&id, router, ZMQ_SNDMORE) < 0 || zmq_msg_send(&m, router, 0) < 0)
			die("send");
	}
}

static pid_t zmq_server(const struct options *o, struct shared *s, size_t bytes, size_t workers)
{
	pid_t pid = fork();

	(void)o;
	(void)workers;
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		void *router = zmq_socket(zmq_ctx_new(), ZMQ_ROUTER);
		size_t n = sizeof(s->endpoint);
		char endpoint[sizeof(s->endpoint)];
		if (!router || zmq_bind(router, "tcp://127.0.0.1:*") ||
			zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &n))
			die("bind");
		memcpy(s->endpoint + 1, endpoint + 1, sizeof(endpoint) - 1);
		__atomic_store_n(&s->endpoint[0], endpoint[0], __ATOMIC_RELEASE);
		zmq_serve(router, bytes);
	}
	while (!__atomic_load_n(&s->endpoint[0], __ATOMIC_ACQUIRE))
		usleep(1000);
	return pid;
}

/* ---- one row -----------------------------------------------------------------------------------
 */

struct mode {
	const char *name;
	pid_t (*server)(const struct options *o, struct shared *s, size_t bytes, size_t workers);
	void (*worker)(struct shared *s, size_t index, size_t bytes, double seconds);
};

static const struct mode modes[] = {
	{"zmq", zmq_server, zmq_worker},
	{"cnn-ps", cnnps_server, cnnps_worker},
};

static int by_size(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static void print_row(
	const struct mode *m, struct shared *s, size_t bytes, size_t workers, double server_cpu)
{
	static float us[MAX_WORKERS * (size_t)MAX_PAIRS];
	double rate = 0, cpu = server_cpu;
	uint64_t pairs = 0;
	size_t n = 0;

	for (size_t i = 0; i < workers; i++) {
		size_t kept = s->worker[i].pairs < MAX_PAIRS ? s->worker[i].pairs : MAX_PAIRS;
		memcpy(us + n, s->worker[i].us, kept * sizeof(float));
		n += kept;
		pairs += s->worker[i].pairs;
		rate += (double)s->worker[i].pairs / s->worker[i].seconds;
		cpu += s->worker[i].cpu;
	}
	qsort(us, n, sizeof(float), by_size);
	double gb = 2 * (double)bytes * 1e-9;
	printf("%s,%zu,%zu,%.0f,%.3f,%.0f,%.0f,%.3f\n", m->name, bytes, workers, rate, rate * gb,
		(double)us[n / 2], (double)us[n * 99 / 100], cpu / ((double)pairs * gb));
	fflush(stdout);
}

static void start_clock(struct shared *s, size_t workers)
{
	for (size_t i = 0; i < workers; i++)
		while (!__atomic_load_n(&s->ready[i], __ATOMIC_ACQUIRE)) {
			if (waitpid(-1, NULL, WNOHANG) > 0) {
				fprintf(stderr, "transport: a process died early\n");
				exit(1);
			}
			usleep(1000);
		}
	__atomic_store_n(&s->go, 1, __ATOMIC_RELEASE);
}

static void run(const struct options *o, const struct mode *m, size_t bytes, size_t workers)
{
	struct shared *s =
		mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t worker[MAX_WORKERS];
	int status, failed = 0;

	if (s == MAP_FAILED)
		die("mmap");
	pid_t server = m->server(o, s, bytes, workers);
	for (size_t i = 0; i < workers; i++) {
		worker[i] = fork();
		if (worker[i] < 0)
			die("fork");
		if (worker[i] == 0) {
			m->worker(s, i, bytes, o->seconds);
			_exit(0);
		}
	}
	start_clock(s, workers);
	double cpu = cpu_of(server);
	for (size_t i = 0; i < workers; i++) {
		if (waitpid(worker[i], &status, 0) != worker[i] || status)
			failed = 1;
	}
	cpu = cpu_of(server) - cpu;
	kill(server, SIGKILL);
	waitpid(server, &status, 0);
	if (failed) {
		fprintf(stderr, "transport: a worker failed\n");
		exit(1);
	}
	print_row(m, s, bytes, workers, cpu);
	munmap(s, sizeof(*s));
}

static void run_all(const struct options *o)
{
	static const size_t sizes[] = {26000, 440000, 1740000, 16000000}, crews[] = {1, 2, 4};

	for (size_t b = 0; b < 4; b++)
		for (size_t k = 0; k < 3; k++)
			for (size_t m = 0; m < 2; m++)
				if ((!o->bytes || o->bytes == sizes[b]) &&
					(!o->workers || o->workers == crews[k]) &&
					(!o->mode || strcmp(o->mode, modes[m].name) == 0))
					run(o, &modes[m], sizes[b], crews[k]);
}

/* cnn-ps of the same build: ours is <build>/tests/bench/transport. */
static const char *server_beside(const char *argv0)
{
	static char path[4096];
	const char *slash = strrchr(argv0, '/');
	int n = slash ? (int)(slash - argv0) : 1;

	snprintf(path, sizeof(path), "%.*s/../../cnn-ps", n, slash ? argv0 : ".");
	return path;
}

int main(int argc, char **argv)
{
	static const struct option long_options[] = {
		{"server-binary", required_argument, NULL, 'b'},
		{"seconds", required_argument, NULL, 's'}, {"bytes", required_argument, NULL, 'n'},
		{"workers", required_argument, NULL, 'w'}, {"mode", required_argument, NULL, 'm'},
		{NULL, 0, NULL, 0}};
	struct options o = {.server_binary = server_beside(argv[0]), .seconds = 3};
	int c;

	mem_keep(); /* as cnn-worker does; both modes */

	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		if (c == 'b')
			o.server_binary = optarg;
		else if (c == 's')
			o.seconds = strtod(optarg, NULL);
		else if (c == 'n')
			o.bytes = strtoul(optarg, NULL, 10);
		else if (c == 'w')
			o.workers = strtoul(optarg, NULL, 10);
		else if (c == 'm')
			o.mode = optarg;
		else
			return 2;
	}
	printf("mode,bytes,workers,pairs_per_s,gb_per_s,p50_us,p99_us,cpu_s_per_gb\n");
	fflush(stdout);
	run_all(&o);
	return 0;
}
