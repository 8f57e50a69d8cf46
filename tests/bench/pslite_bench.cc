/*
 * pslite_bench.cc - makes the measurement of tests/bench/transport with ps-lite instead of cnn-ps.
 * The script tests/bench/peer_pslite runs this program.
 *
 *   pslite_bench [--bytes N] [--workers N] [--seconds S] [--ask pushpull|overlap|wait]
 *                [--reply share|copy|live]
 *
 * The program is not part of the build: tests/bench/peer_pslite explains how to compile it with a
 * copy of ps-lite. One scheduler, one server and N workers run on 127.0.0.1, each in its own
 * process. One key holds a vector of bytes/4 floats. The server's handler subtracts the learning
 * rate times a pushed gradient from the vector, and answers a pull with the whole vector. The
 * program prints the same CSV as transport: a pair is one push and the pull after it.
 *
 * --ask selects how a worker makes a pair. pushpull: the worker sends one request for both.
 * overlap: the worker sends two requests and then waits for both; the pull may overtake the push in
 * ps-lite's queue. wait: push, wait, pull, wait, as in ps-lite's own examples. --reply selects how
 * the server answers a pull. copy: the server copies the weights for each pull. share: the server
 * sends the weights without a copy; if a push arrives while ps-lite is sending them, the server
 * writes to a new buffer. live: the server sends the weights without a copy, and the next push
 * changes them while ps-lite may still be sending them. An answer of live may mix old and new
 * weights, which is not correct. The speed of live shows how much time correct answers cost in the
 * other two variants. The defaults are the fastest correct variants.
 */
#include <errno.h>
#include <getopt.h>
#include <malloc.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tests/support/push_pull_pairs.h"
#include "ps/ps.h"

#define RATE        0.001f

struct options {
	const char *ask, *reply;
	double seconds;
	size_t bytes, workers;
};

[[noreturn]] static void pslite_die(const char *what)
{
	fprintf(stderr, "pslite_bench: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Returns the CPU time (user and system) of another process so far, in seconds. */
static double pslite_cpu_seconds(pid_t pid)
{
	clockid_t clock;
	struct timespec t;

	if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t))
		pslite_die("cpu clock of the server");
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- server ------------------------------------------------------------------------------------
 */

struct server {
	char reply; /* the first letter of --reply */
	ps::SArray<float> weights;
};

/* Returns a new vector without initial values. The constructors of SArray would write zeros to
 * it. */
static ps::SArray<float> new_vector(size_t n)
{
	ps::SArray<float> a;

	a.reset(new float[n], n, [](float *p) { delete[] p; });
	return a;
}

static void apply_gradient(float *__restrict to, const float *w, const float *__restrict g, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = w[i] - RATE * g[i];
}

static void apply_in_place(float *__restrict w, const float *__restrict g, size_t n)
{
	for (size_t i = 0; i < n; i++)
		w[i] -= RATE * g[i];
}

static void apply_push(struct server *s, const ps::SArray<float> &g)
{
	size_t n = s->weights.size();

	if (g.size() != n)
		pslite_die("a gradient of another size");
	if (s->reply == 's' && s->weights.ptr().use_count() > 1) {
		ps::SArray<float> next = new_vector(n);
		apply_gradient(next.data(), s->weights.data(), g.data(), n);
		s->weights = next;
	} else {
		apply_in_place(s->weights.data(), g.data(), n);
	}
}

static void handle_request(struct server *s, const ps::KVMeta &meta, const ps::KVPairs<float> &data,
	ps::KVServer<float> *kv)
{
	ps::KVPairs<float> answer;

	if (meta.push)
		apply_push(s, data.vals);
	if (meta.pull) {
		answer.keys = data.keys;
		answer.vals = s->weights;
		if (s->reply == 'c') {
			answer.vals = new_vector(s->weights.size());
			memcpy(answer.vals.data(), s->weights.data(),
				s->weights.size() * sizeof(float));
		}
	}
	kv->Response(meta, answer);
}

/* Run the server. Does not return. */
static void serve_pslite(const struct options *o)
{
	struct server s = {o->reply[0], new_vector(o->bytes / sizeof(float))};

	memset(s.weights.data(), 0, o->bytes);
	ps::KVServer<float> kv(0);
	kv.set_request_handle([&s](const ps::KVMeta &meta, const ps::KVPairs<float> &data,
				      ps::KVServer<float> *to) { handle_request(&s, meta, data, to); });
	ps::Start(0);
	for (;;)
		pause();
}

/* ---- worker ------------------------------------------------------------------------------------
 */

struct worker {
	ps::KVWorker<float> *kv;
	char ask; /* the first letter of --ask */
	ps::SArray<ps::Key> keys;
	ps::SArray<float> gradient, weights; /* ps-lite uses these buffers without a copy */
};

static int push_and_pull(void *arg)
{
	struct worker *w = (struct worker *)arg;

	if (w->ask == 'p') {
		w->kv->Wait(w->kv->ZPushPull(w->keys, w->gradient, &w->weights));
		return 0;
	}
	int pushed = w->kv->ZPush(w->keys, w->gradient);
	if (w->ask == 'w')
		w->kv->Wait(pushed);
	int pulled = w->kv->ZPull(w->keys, &w->weights);
	w->kv->Wait(pulled);
	w->kv->Wait(pushed);
	return 0;
}

/* Check that the pulled weights contain all gradients that this worker has pushed, and, with one
 * worker, nothing else. */
static void check_first_weight(const struct options *o, const struct worker *w, uint64_t pairs)
{
	double mine = -RATE * (double)w->gradient[0] * (double)pairs;
	double got = w->weights[0] / mine;

	if (got > 0.99 && (o->workers > 1 || got < 1.01))
		return;
	fprintf(stderr, "pslite_bench: weight 0 is %g, after %llu pushes it should be %g\n",
		(double)w->weights[0], (unsigned long long)pairs, mine);
	_exit(1);
}

static void work_as_worker(const struct options *o, struct pairs *s, size_t index)
{
	size_t n = o->bytes / sizeof(float);
	struct worker w = {
		NULL, o->ask[0], ps::SArray<ps::Key>(1, 0), new_vector(n), new_vector(n)};

	for (size_t i = 0; i < n; i++)
		w.gradient[(int)i] = 1e-6f * (float)(i % 100 + 1);
	memset(w.weights.data(), 0, o->bytes);
	ps::Start(0);
	ps::KVWorker<float> kv(0, 0);
	w.kv = &kv;
	pairs_measure(s, index, o->seconds, push_and_pull, &w);
	check_first_weight(o, &w, s->worker[index].warm_up + s->worker[index].pairs);
	_exit(0); /* without ps-lite's shutdown, which takes longer than the measurement */
}

/* ---- all processes -----------------------------------------------------------------------------
 */

static int free_port(void)
{
	struct sockaddr_in a = {};
	socklen_t n = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	a.sin_family = AF_INET;
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) ||
		getsockname(fd, (struct sockaddr *)&a, &n))
		pslite_die("port");
	close(fd);
	return ntohs(a.sin_port);
}

static void set_variable(const char *name, size_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%zu", value);
	setenv(name, text, 1);
}

/* Start a child process that dies with its parent. Returns the child's process id, and 0 in the
 * child. */
static pid_t start_role(const char *role)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		pslite_die("fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		setenv("DMLC_ROLE", role, 1);
	}
	return pid;
}

static void run_pslite(const struct options *o)
{
	struct pairs *s = (struct pairs *)pairs_share(sizeof(*s));
	pid_t scheduler, server, worker[MAX_WORKERS];
	int status, failed = 0;

	if (!s)
		pslite_die("mmap");
	if ((scheduler = start_role("scheduler")) == 0) {
		ps::Start(0);
		for (;;)
			pause();
	}
	if ((server = start_role("server")) == 0)
		serve_pslite(o);
	for (size_t i = 0; i < o->workers; i++)
		if ((worker[i] = start_role("worker")) == 0)
			work_as_worker(o, s, i);
	pairs_start_clock(s, o->workers);
	double cpu = pslite_cpu_seconds(server);
	for (size_t i = 0; i < o->workers; i++)
		failed |= waitpid(worker[i], &status, 0) != worker[i] || status;
	cpu = pslite_cpu_seconds(server) - cpu;
	kill(server, SIGKILL);
	kill(scheduler, SIGKILL);
	if (failed) {
		fprintf(stderr, "pslite_bench: a worker failed\n");
		exit(1);
	}
	printf(PAIRS_HEAD "\n");
	pairs_print("ps-lite", s, o->bytes, o->workers, cpu);
}

int main(int argc, char **argv)
{
	static const struct option long_options[] = {{"seconds", required_argument, NULL, 's'},
		{"bytes", required_argument, NULL, 'n'}, {"workers", required_argument, NULL, 'w'},
		{"ask", required_argument, NULL, 'a'}, {"reply", required_argument, NULL, 'r'},
		{NULL, 0, NULL, 0}};
	struct options o = {"pushpull", "share", 3, 1740000, 1};
	int c;

	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		if (c == 's')
			o.seconds = strtod(optarg, NULL);
		else if (c == 'n')
			o.bytes = strtoul(optarg, NULL, 10);
		else if (c == 'w')
			o.workers = strtoul(optarg, NULL, 10);
		else if (c == 'a')
			o.ask = optarg;
		else if (c == 'r')
			o.reply = optarg;
		else
			return 2;
	}
	if (o.workers < 1 || o.workers > MAX_WORKERS || o.bytes < sizeof(float) || o.bytes % 4 ||
		!strchr("wop", o.ask[0]) || !strchr("scl", o.reply[0])) {
		fprintf(stderr,
			"pslite_bench: bytes: a multiple of 4; workers: 1 to %d; see the head\n",
			MAX_WORKERS);
		return 2;
	}
	/* Make malloc keep freed blocks, as transport and cnn-worker do. */
	mallopt(M_MMAP_THRESHOLD, 32 << 20);
	mallopt(M_TRIM_THRESHOLD, 256 << 20);
	setenv("DMLC_PS_ROOT_URI", "127.0.0.1", 1);
	setenv("DMLC_NODE_HOST", "127.0.0.1", 1);
	set_variable("DMLC_PS_ROOT_PORT", (size_t)free_port());
	set_variable("DMLC_NUM_SERVER", 1);
	set_variable("DMLC_NUM_WORKER", o.workers);
	run_pslite(&o);
	return 0;
}
