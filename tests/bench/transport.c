/*
 * transport.c - measures the transfer of weights and gradients over loopback: the number of pairs
 * per second. A pair is one push and the pull that follows this push.
 *
 *   transport [--server-binary PATH] [--seconds S] [--bytes N] [--workers N]
 *             [--mode cnn-ps|cnn-ps-bf16|cnn-ps-shm|cnn-ps-2|cnn-ps-4|zmq] [--endpoint URL]
 *             [--key FILE]
 *
 * The program prints CSV. Mode cnn-ps starts a real server (vector:N, plain SGD) and worker
 * processes. Each worker pushes full gradients and pulls the full weights with libcnnps. Server and
 * workers make all their usual checks: checksums, finite values, exactly-once. Mode cnn-ps-bf16
 * does the same with --wire bf16, and mode cnn-ps-shm with tensors in shared memory; the bytes in
 * the output are those of float32. Modes cnn-ps-2 and cnn-ps-4, which run only if --mode names
 * them, use --connections 2 and 4. With --endpoint, the workers of the modes cnn-ps* connect to a
 * server that is already running, for example on another host. With --key, they use the key in
 * FILE. Mode zmq gives the upper bound: plain DEALERs exchange the same number of bytes with a
 * plain ROUTER, and no process copies or reads the bytes. p50 and p99 are percentiles of the
 * latency of a pair. CPU seconds are the user + system time of server and workers per 10^9 bytes
 * moved, in both directions together.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>
#include "common/mem.h"
#include "tests/support/push_pull_pairs.h"
#include "tests/support/client_calls.h"
#include "worker/client/cnnps.h"

/* Memory that all processes of a measurement share. */
struct shared {
	char endpoint[64], lane[64]; /* lane: the path of the server's Unix socket */
	char key[512];               /* path of the file with the workers' secret key; "": no key */
	struct pairs pairs;
};

struct options {
	const char *server_binary, *mode, *endpoint, *key;
	double seconds;
	size_t bytes, workers; /* 0: measure with several default values of this number */
};

static void transport_die(const char *what)
{
	fprintf(stderr, "transport: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Returns the CPU time (user and system) of a process so far in seconds, from /proc. */
static double process_cpu_seconds(pid_t pid)
{
	char path[64], text[1024];
	unsigned long user = 0, sys = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
	if (f)
		fclose(f);
	text[n] = 0;
	/* ')' is the end of field 2; user and system time are fields 14 and 15 */
	char *at = strrchr(text, ')');
	for (int i = 2; at && i < 14; i++)
		at = strchr(at + 1, ' ');
	if (at) {
		user = strtoul(at + 1, &at, 10);
		sys = strtoul(at, NULL, 10);
	}
	return (double)(user + sys) / (double)sysconf(_SC_CLK_TCK);
}

/* ---- mode cnn-ps ----------------------------------------------------------------------------- */

struct cnnps_pair {
	struct cnnps *c;
	size_t n;
	uint64_t version;
};

/* Make one pair. As in cnn-worker, the gradient is in a buffer of the library, and the weights stay
 * in the buffer in which they arrived. The library reuses its buffers without clearing them, so a
 * pair writes a gradient only to a buffer that has not been used before. */
static int cnnps_pair(void *arg)
{
	struct cnnps_pair *p = arg;
	float *g = cnnps_gradient(p->c);
	struct cnnps_pull w = {.version = p->version};

	if (!g)
		transport_die("memory");
	for (size_t i = 0; g[p->n - 1] == 0 && i < p->n; i++)
		g[i] = 1e-6f * (float)(i % 100 + 1);
	int rc = client_push_view(p->c, g, p->version, &w);
	p->version = w.version;
	if (rc)
		fprintf(stderr, "transport: %s\n", cnnps_strerror(rc));
	return rc;
}

static void run_bench_worker(struct shared *s, size_t index, size_t bytes, double seconds,
	enum cnnps_lane lane, enum cnnps_wire wire, uint32_t connections)
{
	struct cnnps_options o = {.size = sizeof(o),
		.server = s->endpoint,
		.device = "bench",
		.lane = lane,
		.wire = wire,
		.connections = connections,
		.key = s->key[0] ? s->key : NULL};
	struct cnnps_pair p = {.n = bytes / sizeof(float)};
	struct cnnps_stats stats;

	if (cnnps_connect(&p.c, &o)) {
		fprintf(stderr, "transport: %s\n", cnnps_error(p.c));
		exit(1);
	}
	pairs_measure(&s->pairs, index, seconds, cnnps_pair, &p);
	if (cnnps_flush(p.c, 0, 10000))
		exit(1);
	stats = client_stats(p.c);
	if (stats.rejected || stats.reconnects || stats.acked != stats.pushed) {
		fprintf(stderr, "transport: pushed %llu acked %llu rejected %llu reconnects %llu\n",
			(unsigned long long)stats.pushed, (unsigned long long)stats.acked,
			(unsigned long long)stats.rejected, (unsigned long long)stats.reconnects);
		exit(1);
	}
	cnnps_close(&p.c);
}

static void cnnps_worker(struct shared *s, size_t index, size_t bytes, double seconds)
{
	run_bench_worker(s, index, bytes, seconds, CNNPS_LANE_TCP, CNNPS_WIRE_FP32, 1);
}

static void worker_of_2(struct shared *s, size_t index, size_t bytes, double seconds)
{
	run_bench_worker(s, index, bytes, seconds, CNNPS_LANE_TCP, CNNPS_WIRE_FP32, 2);
}

static void worker_of_4(struct shared *s, size_t index, size_t bytes, double seconds)
{
	run_bench_worker(s, index, bytes, seconds, CNNPS_LANE_TCP, CNNPS_WIRE_FP32, 4);
}

static void bf16_worker(struct shared *s, size_t index, size_t bytes, double seconds)
{
	run_bench_worker(s, index, bytes, seconds, CNNPS_LANE_TCP, CNNPS_WIRE_BF16, 1);
}

static void lane_worker(struct shared *s, size_t index, size_t bytes, double seconds)
{
	run_bench_worker(s, index, bytes, seconds, CNNPS_LANE_SHM, CNNPS_WIRE_FP32, 1);
}

/* Start cnn-ps and read its endpoint from the log. */
static pid_t cnnps_server(const struct options *o, struct shared *s, size_t bytes, size_t workers)
{
	char model[32], max[16], line[512];
	int fd[2];
	pid_t pid = -1;

	(void)workers;
	snprintf(s->lane, sizeof(s->lane), "/tmp/cnn-ps-transport-%d", (int)getpid());
	snprintf(model, sizeof(model), "vector:%zu", bytes / sizeof(float));
	snprintf(max, sizeof(max), "%d", MAX_WORKERS);
	if (pipe(fd) || (pid = fork()) < 0)
		transport_die("fork");
	if (pid == 0) {
		dup2(fd[1], 2);
		close(fd[0]);
		close(fd[1]);
		execl(o->server_binary, "cnn-ps", "--bind", "tcp://127.0.0.1:0", "--http", "",
			"--model", model, "--optimizer", "sgd", "--lr", "0.001",
			"--warm-start-updates", "0", "--max-staleness", "1000000000",
			"--max-workers", max, "--lane", "shm", "--lane-socket", s->lane,
			"--connections", "4", (char *)NULL);
		transport_die(o->server_binary);
	}
	close(fd[1]);
	FILE *log = fdopen(fd[0], "r");
	while (log && fgets(line, sizeof(line), log)) {
		const char *at = strstr(line, "endpoint=");

		if (at) {
			at += strlen("endpoint=");
			snprintf(s->endpoint, sizeof(s->endpoint), "%.*s", (int)strcspn(at, " \n"),
				at);
			return pid; /* keep the pipe open, because the server may log more lines */
		}
	}
	fprintf(stderr, "transport: the server did not come up: %s\n", line);
	exit(1);
}

/* ---- mode zmq -------------------------------------------------------------------------------- */

struct zmq_pair {
	void *socket;
	zmq_msg_t gradient; /* every push sends a copy of this message */
};

static void new_body(zmq_msg_t *m, size_t bytes)
{
	if (zmq_msg_init_size(m, bytes))
		transport_die("memory");
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

	new_body(&p.gradient, bytes);
	p.socket = zmq_socket(context, ZMQ_DEALER);
	if (!p.socket || zmq_connect(p.socket, s->endpoint))
		transport_die("zmq worker");
	pairs_measure(&s->pairs, index, seconds, zmq_pair, &p);
	zmq_setsockopt(p.socket, ZMQ_LINGER, &linger, sizeof(linger));
	zmq_close(p.socket);
	zmq_msg_close(&p.gradient);
	zmq_ctx_term(context);
}

/* Answer each message with a message of the same size. Does not return. */
static void zmq_serve(void *router, size_t bytes)
{
	zmq_msg_t weights;

	new_body(&weights, bytes);
	for (;;) {
		zmq_msg_t id, m;

		zmq_msg_init(&id);
		zmq_msg_init(&m);
		if (zmq_msg_recv(&id, router, 0) < 0 || zmq_msg_recv(&m, router, 0) < 0)
			transport_die("recv");
		zmq_msg_copy(&m, &weights);
		if (zmq_msg_send(&id, router, ZMQ_SNDMORE) < 0 || zmq_msg_send(&m, router, 0) < 0)
			transport_die("send");
	}
}

static pid_t zmq_server(const struct options *o, struct shared *s, size_t bytes, size_t workers)
{
	pid_t pid = fork();

	(void)o;
	(void)workers;
	if (pid < 0)
		transport_die("fork");
	if (pid == 0) {
		void *router = zmq_socket(zmq_ctx_new(), ZMQ_ROUTER);
		size_t n = sizeof(s->endpoint);
		char endpoint[sizeof(s->endpoint)];

		if (!router || zmq_bind(router, "tcp://127.0.0.1:*") ||
			zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &n))
			transport_die("bind");
		memcpy(s->endpoint + 1, endpoint + 1, sizeof(endpoint) - 1);
		__atomic_store_n(&s->endpoint[0], endpoint[0], __ATOMIC_RELEASE);
		zmq_serve(router, bytes);
	}
	for (int ms = 0; !__atomic_load_n(&s->endpoint[0], __ATOMIC_ACQUIRE); ms++) {
		if (ms > 10000) {
			fprintf(stderr, "transport: mode zmq has no server after 10 s\n");
			exit(1);
		}
		usleep(1000);
	}
	return pid;
}

/* ---- one row --------------------------------------------------------------------------------- */

struct mode {
	const char *name;
	pid_t (*server)(const struct options *o, struct shared *s, size_t bytes, size_t workers);
	void (*worker)(struct shared *s, size_t index, size_t bytes, double seconds);
	int only_by_name;
};

static const struct mode modes[] = {
	{"zmq", zmq_server, zmq_worker, 0},
	{"cnn-ps", cnnps_server, cnnps_worker, 0},
	{"cnn-ps-bf16", cnnps_server, bf16_worker, 0},
	{"cnn-ps-shm", cnnps_server, lane_worker, 0},
	{"cnn-ps-2", cnnps_server, worker_of_2, 1},
	{"cnn-ps-4", cnnps_server, worker_of_4, 1},
};

static void run_mode(const struct options *o, const struct mode *m, size_t bytes, size_t workers)
{
	struct shared *s = pairs_share(sizeof(*s));
	pid_t worker[MAX_WORKERS];
	int status, failed = 0;

	if (!s)
		transport_die("mmap");
	pid_t server = o->endpoint ? 0 : m->server(o, s, bytes, workers);
	if (o->endpoint)
		snprintf(s->endpoint, sizeof(s->endpoint), "%s", o->endpoint);
	if (o->key)
		snprintf(s->key, sizeof(s->key), "%s", o->key);
	for (size_t i = 0; i < workers; i++) {
		worker[i] = fork();
		if (worker[i] < 0)
			transport_die("fork");
		if (worker[i] == 0) {
			m->worker(s, i, bytes, o->seconds);
			_exit(0);
		}
	}
	pairs_start_clock(&s->pairs, workers);
	double cpu = server ? process_cpu_seconds(server) : 0;
	for (size_t i = 0; i < workers; i++) {
		if (waitpid(worker[i], &status, 0) != worker[i] || status)
			failed = 1;
	}
	if (server) {
		cpu = process_cpu_seconds(server) - cpu;
		kill(server, SIGKILL);
		waitpid(server, &status, 0);
	}
	if (s->lane[0])
		unlink(s->lane);
	if (failed) {
		fprintf(stderr, "transport: a worker failed\n");
		exit(1);
	}
	pairs_print(m->name, &s->pairs, bytes, workers, cpu);
	munmap(s, sizeof(*s));
}

static void run_all_modes(const struct options *o)
{
	static const size_t sizes[] = {26000, 440000, 1740000, 16000000, 240000000};
	static const size_t fleets[] = {1, 2, 4};

	for (size_t b = 0; b < sizeof(sizes) / sizeof(sizes[0]); b++)
		for (size_t k = 0; k < 3; k++)
			for (size_t m = 0; m < sizeof(modes) / sizeof(modes[0]); m++)
				if ((o->bytes ? o->bytes == sizes[b] : sizes[b] < 20000000) &&
					(!o->workers || o->workers == fleets[k]) &&
					(o->mode ? strcmp(o->mode, modes[m].name) == 0
						 : !modes[m].only_by_name))
					run_mode(o, &modes[m], sizes[b], fleets[k]);
}

/* Returns the path BUILD/cnn-ps for the path BUILD/tests/bench/transport of this program. */
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
		{"endpoint", required_argument, NULL, 'e'}, {"key", required_argument, NULL, 'k'},
		{NULL, 0, NULL, 0}};
	struct options o = {.server_binary = server_beside(argv[0]), .seconds = 3};
	int c;

	mem_keep(); /* keep freed memory, as cnn-worker does */

	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		if (c == 'b')
			o.server_binary = optarg;
		else if (c == 's')
			o.seconds = strtod(optarg, NULL);
		else if (c == 'n')
			o.bytes = strtoul(optarg, NULL, 10);
		else if (c == 'w')
			o.workers = strtoul(optarg, NULL, 10);
		else if (c == 'e')
			o.endpoint = optarg;
		else if (c == 'k')
			o.key = optarg;
		else if (c == 'm')
			o.mode = optarg;
		else
			return 2;
	}
	printf(PAIRS_HEAD "\n");
	fflush(stdout);
	run_all_modes(&o);
	return 0;
}
