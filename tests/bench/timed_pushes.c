/*
 * timed_pushes.c - a worker that pushes whole vectors of different values, and pulls after each
 * push.
 *
 *   timed_pushes SERVER PUSHES
 *
 * Push n has the same values in each run. For each pair of a push and a pull, the program prints
 * two times in milliseconds: from the start of the program to the beginning of the pair, and from
 * the beginning to the end of the pair. The program ends when the server has applied all pushes.
 * Exit status: 0; 1 after a failure; 2 after wrong usage.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "common/mem.h"
#include "tests/support/client_calls.h"
#include "worker/client/cnnps.h"

#define SHIFT  4099u /* push n begins at value n * SHIFT % SHIFTS of the pattern */
#define SHIFTS 65536u

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Returns n + SHIFTS values between -0.01 and 0.01. The caller frees them. */
static float *make_pattern(size_t n)
{
	float *pattern = malloc((n + SHIFTS) * sizeof(float));
	uint32_t x = 1;

	for (size_t i = 0; pattern && i < n + SHIFTS; i++) {
		x = x * 1664525u + 1013904223u;
		pattern[i] = ((float)(x >> 8) - 8388608.0f) * (0.01f / 8388608.0f);
	}
	return pattern;
}

static int push_patterns(struct cnnps *c, const float *pattern, size_t n, uint64_t pushes)
{
	const double start = now_ms();
	uint64_t version = 0;

	for (uint64_t i = 0; i < pushes; i++) {
		struct cnnps_pull w = {.version = version};
		float *g = cnnps_gradient(c);

		if (!g)
			return 1;
		memcpy(g, pattern + i * SHIFT % SHIFTS, n * sizeof(float));
		const double begin = now_ms();
		if (client_push_view(c, g, version, &w))
			return 1;
		version = w.version;
		printf("%.3f %.3f\n", begin - start, now_ms() - begin);
	}
	return cnnps_flush(c, 0, 60000) != 0;
}

int main(int argc, char **argv)
{
	struct cnnps_options o = {.size = sizeof(o), .device = "bench"};
	struct cnnps *c = NULL;

	if (argc != 3)
		return 2;
	mem_keep(); /* keep freed memory, as cnn-worker does */
	o.server = argv[1];
	if (cnnps_connect(&c, &o)) {
		fprintf(stderr, "timed_pushes: %s\n", cnnps_error(c));
		return 1;
	}
	const size_t n = (size_t)cnnps_info(c)->n_params;
	float *pattern = make_pattern(n);
	int rc = !pattern || push_patterns(c, pattern, n, strtoul(argv[2], NULL, 10));

	if (rc)
		fprintf(stderr, "timed_pushes: %s\n", cnnps_error(c));
	const struct cnnps_stats s = client_stats(c);
	cnnps_close(&c);
	free(pattern);
	return rc || s.rejected || s.reconnects;
}
