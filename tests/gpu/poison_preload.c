/* poison_preload.c - poison.so, for LD_PRELOAD: it calls poison() when the program receives
 * SIGRTMIN. */
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include "tests/gpu/poison.h"

/* The signal handler posts this semaphore. The semaphore is static, because a signal handler gets
 * no pointer to it. */
static sem_t requested;

static void on_signal(int number)
{
	(void)number;
	sem_post(&requested);
}

static void *wait_for_signal(void *unused)
{
	(void)unused;
	while (sem_wait(&requested))
		;
	fprintf(stderr, "poison: %d\n", poison());
	return NULL;
}

__attribute__((constructor)) static void start_thread_for_signal(void)
{
	struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESTART};
	pthread_t thread;

	if (sem_init(&requested, 0, 0) || sigaction(SIGRTMIN, &a, NULL) ||
		pthread_create(&thread, NULL, wait_for_signal, NULL))
		fprintf(stderr, "poison: no thread\n");
}
