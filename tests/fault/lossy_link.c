/*
 * lossy_link.c - simulates a bad network between network namespaces. The program delays, loses,
 * duplicates, reorders and corrupts IPv4 packets, and limits their rate. In two runs with equal
 * seeds and rules, the same happens to the nth packet of a direction.
 *
 *   lossy_link SEED NETNS=ADDRESS...        run, with a TUN device "wire" in each namespace
 *   lossy_link --predict SEED FROM TO COUNT [KEY=VALUE]...   print what would happen, and exit
 *
 * The program connects the namespaces (paths such as /proc/1/ns/net) like a switch: each namespace
 * is a port, and the program sends a packet to the port with the packet's destination address. The
 * program that starts lossy_link sets the addresses of the network devices. Each direction, from
 * one port to another, has its own rules. Lines on stdin change the rules:
 *
 *   FROM TO KEY=VALUE...    set these rules of the direction from port FROM to port TO; a port is
 *                           a number from 0, or * for all ports
 *   count                   print the numbers of packets so far
 *
 *   delay, jitter, hold  in microseconds; a packet waits for `delay` +- `jitter`, and packets keep
 *                        their order all the same; a packet that `reorder` selects waits `hold`
 *                        longer, so that later packets overtake it
 *   loss, dup, reorder, corrupt   how many of a million packets are lost, duplicated, reordered
 *                        or corrupted
 *   rate                 the limit in bits per second; 0: no limit
 *   queue                the number of bytes that may wait for a limited rate; a packet that does
 *                        not fit is lost
 *
 * The program prints "ready", then one "ok ..." for each line. The program ends when stdin ends.
 *
 * Invariants:
 * (1) memory is bounded: at most PACKETS packets wait, and further packets are lost (asserted by
 *     put_last).
 *
 * Promises:
 * (1) what happens to the n-th packet of a direction depends only on the seed, the direction, n and
 *     the rules (link_model; test_the_link_model_is_a_function_of_the_seed). The arrival times of
 *     packets decide only whether a packet fits in the queue.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <arpa/inet.h>
#include <time.h>
#include <unistd.h>
#include "common/assert.h"
#include "common/rng.h"

#define PORTS   18
#define MILLION 1000000

struct rules {
	uint64_t delay, jitter, hold, loss, dup, reorder, corrupt, rate, queue;
};

struct delivery {
	int lost, doubled, overtaken, corrupt;
	int64_t delay; /* the delay of a packet, in microseconds */
	/* the bit that flips if the packet is corrupt: bit % 8 of byte (bit / 8) % (size in
	 * bytes) */
	uint64_t bit;
};

static struct delivery link_model(
	uint64_t seed, int from, int to, uint64_t n, const struct rules *r)
{
	struct rng g = {
		.state = rng_mix(rng_mix(rng_mix(seed) ^ (uint64_t)(from * PORTS + to)) ^ n)};
	struct delivery f = {0};

	f.lost = rng_below(&g, MILLION) < r->loss;
	f.doubled = rng_below(&g, MILLION) < r->dup;
	f.overtaken = rng_below(&g, MILLION) < r->reorder;
	f.corrupt = rng_below(&g, MILLION) < r->corrupt;
	f.delay = (int64_t)(r->delay + rng_below(&g, 2 * r->jitter + 1)) - (int64_t)r->jitter;
	f.bit = rng_next(&g);
	if (f.delay < 0)
		f.delay = 0;
	if (f.overtaken)
		f.delay += (int64_t)r->hold;
	return f;
}

static int read_decimal(const char *text, uint64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoull(text, &end, 10);
	return errno || end == text || *end || *out > UINT32_MAX ? -1 : 0;
}

static int set_rule(struct rules *r, const char *word)
{
	const struct {
		const char *name;
		uint64_t *value;
	} row[] = {{"delay=", &r->delay}, {"jitter=", &r->jitter}, {"hold=", &r->hold},
		{"loss=", &r->loss}, {"dup=", &r->dup}, {"reorder=", &r->reorder},
		{"corrupt=", &r->corrupt}, {"rate=", &r->rate}, {"queue=", &r->queue}};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		if (!strncmp(word, row[i].name, strlen(row[i].name)))
			return read_decimal(word + strlen(row[i].name), row[i].value);
	return -1;
}

#define PACKETS 16384
#define MTU     2048 /* the largest packet, in bytes */
#define BURST   64   /* the maximum number of packets read from one port in a row */

struct direction {
	struct rules rules;
	/* numbers of packets of this direction since the start of the program */
	uint64_t seen, lost, full, doubled, overtaken, corrupt, passed;
	/* the time at which the last packet of the queue leaves, at the limited rate */
	uint64_t free_at;
	uint64_t last_due; /* the due time of the newest packet that is not reordered */
};

struct packet {
	uint64_t due, order;
	int to;
	size_t size;
	unsigned char bytes[MTU];
};

static struct {
	uint64_t seed, order;
	int ports;
	int tun[PORTS];
	uint32_t address[PORTS]; /* the IPv4 address of each port, in network byte order */
	struct direction way[PORTS][PORTS];
	/* Numbers of lost packets. strange: no port has the packet's destination address; refused:
	 * the device of the destination was down. */
	uint64_t strange, refused;
	struct packet packet[PACKETS];
	/* the first n_waiting entries are a heap by (due, order); the others are free */
	int heap[PACKETS];
	int n_waiting;
} wire;

/* ---- packets that wait --------------------------------------------------------------------- */

static uint64_t link_now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * MILLION + (uint64_t)t.tv_nsec / 1000;
}

static int before(int a, int b)
{
	const struct packet *p = &wire.packet[a], *q = &wire.packet[b];

	return p->due != q->due ? p->due < q->due : p->order < q->order;
}

static void swap(int i, int j)
{
	int t = wire.heap[i];

	wire.heap[i] = wire.heap[j];
	wire.heap[j] = t;
}

static struct packet *take_free(void)
{
	return wire.n_waiting < PACKETS ? &wire.packet[wire.heap[wire.n_waiting]] : NULL;
}

/* Add the packet that take_free returned to the heap. */
static void put_last(void)
{
	PS_ASSERT(wire.n_waiting < PACKETS); /* invariant 1 */
	for (int i = wire.n_waiting++; i > 0 && before(wire.heap[i], wire.heap[(i - 1) / 2]);
		i = (i - 1) / 2)
		swap(i, (i - 1) / 2);
}

static void remove_first(void)
{
	int i = 0, n = --wire.n_waiting;

	swap(0, n);
	for (;;) {
		int child = 2 * i + 1;

		if (child >= n)
			return;
		if (child + 1 < n && before(wire.heap[child + 1], wire.heap[child]))
			child++;
		if (!before(wire.heap[child], wire.heap[i]))
			return;
		swap(i, child);
		i = child;
	}
}

/* ---- the way of a packet from one port to another ------------------------------------------ */

/* Returns the time at which the packet leaves the queue, at the limited rate. Returns 0 if the
 * queue has no room for the packet. */
static uint64_t leave_at(struct direction *d, uint64_t now, size_t size)
{
	uint64_t rate = d->rules.rate, start = d->free_at > now ? d->free_at : now;

	if (!rate)
		return now;
	if ((start - now) * rate / 8 / MILLION + size > d->rules.queue)
		return 0;
	d->free_at = start + size * 8 * MILLION / rate;
	return d->free_at;
}

static void enqueue_packet(
	struct direction *d, int to, uint64_t due, const unsigned char *p, size_t size)
{
	struct packet *copy = take_free();

	if (!copy) {
		d->full++;
		return;
	}
	copy->due = due;
	copy->order = wire.order++;
	copy->to = to;
	copy->size = size;
	memcpy(copy->bytes, p, size);
	put_last();
}

static void carry(struct direction *d, int from, int to, unsigned char *p, size_t size)
{
	struct delivery f = link_model(wire.seed, from, to, d->seen++, &d->rules);
	uint64_t leaves = f.lost ? 0 : leave_at(d, link_now_us(), size);

	if (!leaves) {
		*(f.lost ? &d->lost : &d->full) += 1;
		return;
	}
	uint64_t due = leaves + (uint64_t)f.delay;
	if (!f.overtaken && due < d->last_due)
		due = d->last_due;
	if (!f.overtaken)
		d->last_due = due;
	if (f.corrupt)
		p[f.bit / 8 % size] ^= (unsigned char)(1u << f.bit % 8);
	enqueue_packet(d, to, due, p, size);
	if (f.doubled)
		enqueue_packet(d, to, due, p, size);
	d->passed++;
	d->doubled += (uint64_t)f.doubled;
	d->overtaken += (uint64_t)f.overtaken;
	d->corrupt += (uint64_t)f.corrupt;
}

static int port_of(const unsigned char *p, size_t size)
{
	uint32_t to;

	if (size < 20 || p[0] >> 4 != 4)
		return -1;
	memcpy(&to, p + 16, sizeof(to));
	for (int i = 0; i < wire.ports; i++)
		if (wire.address[i] == to)
			return i;
	return -1;
}

static void read_packets(int from)
{
	unsigned char p[MTU];

	for (int i = 0; i < BURST; i++) {
		ssize_t n = read(wire.tun[from], p, sizeof(p));

		if (n <= 0)
			return;
		int to = port_of(p, (size_t)n);
		if (to < 0)
			wire.strange++;
		else
			carry(&wire.way[from][to], from, to, p, (size_t)n);
	}
}

static void deliver_due(void)
{
	uint64_t now = link_now_us();

	while (wire.n_waiting && wire.packet[wire.heap[0]].due <= now) {
		struct packet *p = &wire.packet[wire.heap[0]];

		if (write(wire.tun[p->to], p->bytes, p->size) < 0)
			wire.refused++; /* the device is down */
		remove_first();
	}
}

/* ---- rules --------------------------------------------------------------------------------- */

static int set_rules(int from, int to, char **word, int n)
{
	struct rules r = wire.way[from][to].rules;

	for (int i = 0; i < n; i++)
		if (set_rule(&r, word[i]))
			return -1;
	wire.way[from][to].rules = r;
	return 0;
}

/* Parse a port number, or "*" for all ports. Returns -1 if `text` is neither. */
static int read_ports(const char *text, int *first, int *last)
{
	uint64_t n;

	*first = 0;
	*last = wire.ports - 1;
	if (!strcmp(text, "*"))
		return 0;
	if (read_decimal(text, &n) || n >= (uint64_t)wire.ports)
		return -1;
	*first = *last = (int)n;
	return 0;
}

static int change_rules(char **word, int n)
{
	int from, last_from, to, last_to, bad = 0;

	if (n < 3 || read_ports(word[0], &from, &last_from) || read_ports(word[1], &to, &last_to))
		return -1;
	for (int i = from; i <= last_from; i++)
		for (int j = to; j <= last_to; j++)
			bad |= set_rules(i, j, word + 2, n - 2);
	return bad;
}

static void print_counts(void)
{
	struct direction t = {0};

	for (int i = 0; i < wire.ports; i++)
		for (int j = 0; j < wire.ports; j++) {
			const struct direction *d = &wire.way[i][j];

			t.seen += d->seen, t.lost += d->lost, t.full += d->full;
			t.doubled += d->doubled, t.overtaken += d->overtaken;
			t.corrupt += d->corrupt, t.passed += d->passed;
		}
	printf("ok seen=%llu lost=%llu full=%llu dup=%llu reorder=%llu corrupt=%llu passed=%llu "
	       "strange=%llu refused=%llu\n",
		(unsigned long long)t.seen, (unsigned long long)t.lost, (unsigned long long)t.full,
		(unsigned long long)t.doubled, (unsigned long long)t.overtaken,
		(unsigned long long)t.corrupt, (unsigned long long)t.passed,
		(unsigned long long)wire.strange, (unsigned long long)wire.refused);
}

static void obey(char *line)
{
	char *word[16];
	int n = 0;

	for (char *w = strsep(&line, " "); w && n < 16; w = strsep(&line, " "))
		word[n++] = w;
	if (n == 1 && !strcmp(word[0], "count"))
		print_counts();
	else
		puts(change_rules(word, n) ? "bad line" : "ok");
	fflush(stdout);
}

/* Read complete lines from stdin and carry them out. Returns -1 when stdin has ended. */
static int read_commands(void)
{
	static char text[4096];
	static size_t used;
	ssize_t n = read(STDIN_FILENO, text + used, sizeof(text) - 1 - used);

	if (n <= 0)
		return n < 0 && errno == EINTR ? 0 : -1;
	used += (size_t)n;
	text[used] = '\0';
	for (char *end; (end = strchr(text, '\n'));) {
		*end = '\0';
		obey(text);
		used -= (size_t)(end + 1 - text);
		memmove(text, end + 1, used + 1);
	}
	return used == sizeof(text) - 1 ? -1 : 0;
}

/* ---- start --------------------------------------------------------------------------------- */

static int open_tun(const char *path)
{
	struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
	int space = open(path, O_RDONLY | O_CLOEXEC), fd = -1;

	snprintf(request.ifr_name, sizeof(request.ifr_name), "wire");
	if (space >= 0 && setns(space, CLONE_NEWNET) == 0)
		fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || ioctl(fd, TUNSETIFF, &request) < 0) {
		fprintf(stderr, "lossy_link: %s: %s\n", path, strerror(errno));
		return -1;
	}
	close(space);
	return fd;
}

static int open_port(char *text)
{
	char *equals = strchr(text, '=');
	int i = wire.ports;

	if (!equals || i == PORTS || inet_pton(AF_INET, equals + 1, &wire.address[i]) != 1) {
		fprintf(stderr, "lossy_link: \"%s\": expected NETNS=ADDRESS, at most %d\n", text,
			PORTS);
		return -1;
	}
	*equals = '\0';
	wire.tun[i] = open_tun(text);
	wire.ports++;
	return wire.tun[i] < 0 ? -1 : 0;
}

static int print_deliveries(int argc, char **argv)
{
	uint64_t seed, from, to, count;
	struct rules r = {0};

	if (argc < 6 || read_decimal(argv[2], &seed) || read_decimal(argv[3], &from) ||
		read_decimal(argv[4], &to) || read_decimal(argv[5], &count) || from >= PORTS ||
		to >= PORTS)
		return 2;
	for (int i = 6; i < argc; i++)
		if (set_rule(&r, argv[i]))
			return 2;
	for (uint64_t n = 0; n < count; n++) {
		struct delivery f = link_model(seed, (int)from, (int)to, n, &r);

		printf("%d %d %d %d %lld\n", f.lost, f.doubled, f.overtaken, f.corrupt,
			(long long)f.delay);
	}
	return 0;
}

/* Forward packets until stdin ends. */
static int run_link(void)
{
	struct pollfd fd[PORTS + 1] = {{.fd = STDIN_FILENO, .events = POLLIN}};

	for (int i = 0; i < wire.ports; i++)
		fd[i + 1] = (struct pollfd){.fd = wire.tun[i], .events = POLLIN};
	for (;;) {
		uint64_t now = link_now_us();
		uint64_t due = wire.n_waiting ? wire.packet[wire.heap[0]].due : now + MILLION;
		uint64_t wait = due > now ? due - now : 0;
		struct timespec t = {(time_t)(wait / MILLION), (long)(wait % MILLION) * 1000};

		if (ppoll(fd, (nfds_t)wire.ports + 1, &t, NULL) < 0 && errno != EINTR)
			return 1;
		if (fd[0].revents && read_commands())
			return 0;
		for (int i = 0; i < wire.ports; i++)
			if (fd[i + 1].revents & POLLIN)
				read_packets(i);
		deliver_due();
	}
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "--predict"))
		return print_deliveries(argc, argv);
	if (argc < 3 || read_decimal(argv[1], &wire.seed)) {
		fprintf(stderr, "usage: lossy_link SEED NETNS=ADDRESS...\n");
		return 2;
	}
	for (int i = 2; i < argc; i++)
		if (open_port(argv[i]))
			return 1;
	for (int i = 0; i < PACKETS; i++)
		wire.heap[i] = i;
	puts("ready");
	fflush(stdout);
	return run_link();
}
