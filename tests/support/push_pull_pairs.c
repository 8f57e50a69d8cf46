/* push_pull_pairs.c - see push_pull_pairs.h. */
#include "tests/support/push_pull_pairs.h"

void *pairs_share(size_t bytes)
{
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return map == MAP_FAILED ? NULL : map;
}

static double pairs_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double pairs_cpu(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

void pairs_measure(struct pairs *s, size_t index, double seconds, pair_fn *pair, void *arg)
{
	struct pairs_worker *w = &s->worker[index];

	double begin = pairs_now();
	for (w->warm_up = 0; w->warm_up < WARM_UP; w->warm_up++) {
		if (w->warm_up >= 2 && pairs_now() - begin >= WARM_UP_SECONDS)
			break;
		if (pair(arg))
			exit(1);
	}
	__atomic_store_n(&s->ready[index], 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&s->go, __ATOMIC_ACQUIRE))
		usleep(100);
	double start = pairs_now(), cpu = pairs_cpu(), t = start;
	uint64_t n = 0;
	while (t - start < seconds) {
		if (pair(arg))
			exit(1);
		double after = pairs_now();
		if (n < MAX_PAIRS)
			w->us[n] = (float)((after - t) * 1e6);
		n++;
		t = after;
	}
	w->pairs = n;
	w->seconds = t - start;
	w->cpu = pairs_cpu() - cpu;
}

void pairs_start_clock(struct pairs *s, size_t workers)
{
	for (size_t i = 0; i < workers; i++)
		while (!__atomic_load_n(&s->ready[i], __ATOMIC_ACQUIRE)) {
			if (waitpid(-1, NULL, WNOHANG) > 0) {
				fprintf(stderr, "a process died early\n");
				exit(1);
			}
			usleep(1000);
		}
	__atomic_store_n(&s->go, 1, __ATOMIC_RELEASE);
}

static int pairs_by_size(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

void pairs_print(
	const char *mode, const struct pairs *s, size_t bytes, size_t workers, double server_cpu)
{
	static float us[MAX_WORKERS * (size_t)MAX_PAIRS];
	double rate = 0, cpu = server_cpu, gb = 2 * (double)bytes * 1e-9;
	uint64_t pairs = 0;
	size_t n = 0;

	for (size_t i = 0; i < workers; i++) {
		const struct pairs_worker *w = &s->worker[i];
		size_t kept = w->pairs < MAX_PAIRS ? w->pairs : MAX_PAIRS;

		memcpy(us + n, w->us, kept * sizeof(float));
		n += kept;
		pairs += w->pairs;
		rate += (double)w->pairs / w->seconds;
		cpu += w->cpu;
	}
	qsort(us, n, sizeof(float), pairs_by_size);
	printf("%s,%zu,%zu,%.0f,%.3f,%.0f,%.0f,%.3f\n", mode, bytes, workers, rate, rate * gb,
		(double)us[n / 2], (double)us[n * 99 / 100], cpu / ((double)pairs * gb));
	fflush(stdout);
}
