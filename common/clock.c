/*
 * clock.c - see clock.h.
 */
#include "common/clock.h"
#include <time.h>

uint64_t clock_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

uint64_t clock_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

uint64_t clock_boot_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

double clock_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double clock_thread_seconds(void)
{
	struct timespec t = {0};

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

uint64_t awake_ms(struct awake *a, uint64_t clock_ms, uint64_t step_ms)
{
	uint64_t passed = clock_ms - a->clock_ms;

	if (a->clock_ms == 0)
		a->now_ms = clock_ms;
	else
		a->now_ms += passed < step_ms ? passed : step_ms;
	a->clock_ms = clock_ms;
	return a->now_ms;
}
