/* watchdog.c - see watchdog.h. */
#include "worker/watchdog.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static uint64_t limit_ms; /* time limit of a call of the device; 0: there is none */
static char line[160];    /* the message that the signal handler prints */
static size_t line_length;

static void end_process(int number)
{
	ssize_t n = write(STDERR_FILENO, line, line_length);

	(void)number;
	(void)n;
	_exit(WATCHDOG_EXIT);
}

static void set_timer(uint64_t ms)
{
	struct itimerval t = {.it_value = {.tv_sec = (time_t)(ms / 1000),
				      .tv_usec = (suseconds_t)(ms % 1000 * 1000)}};

	if (limit_ms)
		setitimer(ITIMER_REAL, &t, NULL);
}

void watchdog_init(uint64_t ms)
{
	struct sigaction a;

	memset(&a, 0, sizeof(a));
	a.sa_handler = end_process;
	sigaction(SIGALRM, &a, NULL);
	limit_ms = ms;
	line_length = (size_t)snprintf(line, sizeof(line),
		"cnn-worker: the device has not answered for %llu ms (--device-timeout-ms)\n",
		(unsigned long long)ms);
}

void watchdog_begin(void)
{
	set_timer(limit_ms);
}

int watchdog_end(int rc)
{
	set_timer(0);
	return rc;
}
