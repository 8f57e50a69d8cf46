/* poison_preload.c - poison.so: poisons the program that it is loaded into at SIGUSR1. */
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include "tests/gpu/poison.h"

static void *wait_for_signal(void *set)
{
	int number;
	if (sigwait(set, &number) == 0)
		fprintf(stderr, "poison: %d\n", poison());
	return NULL;
}

/* Before main and so before any thread: all of them inherit that the signal is blocked. */
__attribute__((constructor)) static void start(void)
{
	static sigset_t set;
	pthread_t thread;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	if (pthread_sigmask(SIG_BLOCK, &set, NULL) ||
		pthread_create(&thread, NULL, wait_for_signal, &set))
		fprintf(stderr, "poison: no thread\n");
}
