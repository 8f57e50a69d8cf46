/*
 * choose.h - the choice of the GPU for --device cuda, cuda:N and auto.
 *
 * The CUDA runtime numbers the visible GPUs (CUDA_VISIBLE_DEVICES) from 0. "cuda:N" is the visible
 * GPU with number N. If Slurm has set SLURM_LOCALID, "cuda" is number SLURM_LOCALID modulo the
 * number of visible GPUs. Without SLURM_LOCALID, "cuda" tries the GPUs in the order of the memory
 * in use, the least first (ties: the lowest number first), until one of them works and has enough
 * memory. Workers that start at the same time do not see each other's memory yet. So they choose
 * one after the other, and a process keeps the lock of the GPU that it tries; other processes leave
 * out this GPU. If other processes keep all locks for 30 s, a process logs this and chooses without
 * locks.
 *
 * Thread: any. The lock is an abstract Unix socket, which disappears when the process ends.
 */
#ifndef KERNELS_CUDA_CHOOSE_H
#define KERNELS_CUDA_CHOOSE_H
#include "common/err.h"

/* Allocates the memory of a device on GPU number `gpu`, which is the current one. On failure it
 * must release everything that it has allocated. */
typedef int gpu_opener(void *arg, int gpu, struct err *e);

/*
 * Makes a GPU the current one and calls `open` for it. If "cuda" may take several GPUs, the
 * function skips each GPU that does not start, or for which `open` returns PS_ENOMEM or PS_EDEVICE.
 * It logs the reason and tries the next GPU. PS_EUSAGE: a bad `device`. PS_EDEVICE: no GPU starts.
 * Otherwise the function returns the status and the text of the last call of `open`.
 */
int gpu_open_usable(const char *device, gpu_opener *open, void *arg, struct err *e) PS_MUST_CHECK;

#endif
