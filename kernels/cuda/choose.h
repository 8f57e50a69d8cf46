/*
 * choose.h - the choice of the GPU for --device cuda, cuda:N and auto.
 *
 * The CUDA runtime numbers the visible GPUs (CUDA_VISIBLE_DEVICES) from 0. "cuda:N" is the visible
 * GPU with number N. If Slurm has set SLURM_LOCALID, "cuda" is number SLURM_LOCALID modulo the
 * number of visible GPUs. Without SLURM_LOCALID, "cuda" is the GPU with the least memory in use
 * (ties: the lowest number) among the GPUs that start and for which this build has code. Workers
 * that start at the same time do not see each other's memory yet. So they choose one after the
 * other, and a process keeps the lock of its GPU until gpu_settle; other processes skip this GPU.
 * If other processes keep all locks for 30 s, a process logs this and chooses without locks.
 *
 * Thread: any. The lock is an abstract Unix socket, which disappears when the process ends.
 */
#ifndef KERNELS_CUDA_CHOOSE_H
#define KERNELS_CUDA_CHOOSE_H
#include "common/err.h"

struct gpu_choice {
	int number; /* number of the GPU among the visible ones */
	int lock;   /* descriptor of the lock of the GPU; -1: none */
};

/* Chooses a GPU and makes it the current one. PS_EDEVICE: no GPU works. PS_EUSAGE: a bad
 * `device`. */
int gpu_choose(struct gpu_choice *c, const char *device, struct err *e) PS_MUST_CHECK;
/* Releases the lock, if this process holds it. Call gpu_settle when the process has allocated its
 * memory on the GPU, or has failed to. */
void gpu_settle(struct gpu_choice *c);

#endif
