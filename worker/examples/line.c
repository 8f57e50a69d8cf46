/*
 * line.c - the shortest worker: it fits y = a x + b to noisy points, with a cnn-ps server.
 *
 *   cnn-ps --model vector:2 --optimizer sgd --lr 0.5 &
 *   line [tcp://127.0.0.1:5555]
 */
#include <math.h>
#include <stdio.h>
#include "worker/client/cnnps.h"

#define POINTS 100
#define STEPS  2000

/* The points are on y = 2 x - 1, plus a sine wave as noise. Writes the gradient of half the mean
 * squared error at the line with the slope w[0] and the offset w[1]. */
static void gradient(const float w[2], float g[2])
{
	g[0] = g[1] = 0;
	for (int i = 0; i < POINTS; i++) {
		float x = (float)i / (POINTS - 1), y = 2 * x - 1 + 0.1f * sinf(25 * x);
		float error = w[0] * x + w[1] - y;

		g[0] += error * x / POINTS;
		g[1] += error / POINTS;
	}
}

/* Pulls the weights and pushes a gradient, until the gradient is nearly zero. */
static int fit(struct cnnps *c, float w[2])
{
	float g[2] = {1, 1};
	struct cnnps_pull pull = {.size = sizeof(pull), .into = w};
	struct cnnps_push push = {.size = sizeof(push), .gradient = g};
	int rc = 0;

	for (int i = 0; i < STEPS && !rc && hypotf(g[0], g[1]) > 1e-5f; i++) {
		rc = cnnps_pull(c, &pull);
		gradient(w, g);
		push.version = pull.version;
		if (!rc)
			rc = cnnps_push(c, &push);
	}
	return rc;
}

static void print_line(void *arg, const char *line)
{
	(void)arg;
	fprintf(stderr, "line: %s\n", line);
}

int main(int argc, char **argv)
{
	struct cnnps_options o = {.size = sizeof(o),
		.server = argc > 1 ? argv[1] : "tcp://127.0.0.1:5555",
		.report = print_line};
	struct cnnps *c;
	float w[2] = {0, 0};
	int rc = cnnps_connect(&c, &o);

	if (!rc)
		rc = fit(c, w);
	if (!rc)
		printf("a=%.3f b=%.3f\n", (double)w[0], (double)w[1]);
	else
		fprintf(stderr, "line: %s\n", cnnps_error(c));
	cnnps_close(&c);
	return rc != 0;
}
