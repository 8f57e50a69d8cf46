/*
 * fake_gpus.h - GPUs that do not exist, for tests of the choice of a GPU on any machine. The linker
 * (--wrap) redirects calls of the CUDA runtime, of NVML and of kx_runs_here to fake_gpus.c.
 */
#ifndef TESTS_GPU_FAKE_GPUS_H
#define TESTS_GPU_FAKE_GPUS_H

#define FAKE_GPUS 4

struct fake_gpu {
	unsigned long long used; /* bytes of memory in use */
	/* 1: the properties cannot be read; the GPU does not start; the program has no code for
	 * it */
	int unreadable, stopped, unknown;
};

extern struct fake_gpu fake_gpu[FAKE_GPUS];
extern int fake_n_gpus;      /* number of visible GPUs */
extern int fake_current_gpu; /* number of the current GPU */

/* Returns 1 if a process holds the lock of the GPU with this number. */
int fake_gpu_is_locked(int number);

#endif
