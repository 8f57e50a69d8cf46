/*
 * poison.h - breaks the CUDA context of this process permanently, as a faulty kernel or a failing
 * GPU would. Through the CUDA driver API, it launches a kernel of one instruction, `trap`. After
 * this kernel, every CUDA call of the process fails.
 *
 * The shared object poison.so in LD_PRELOAD breaks the context when the process receives SIGRTMIN,
 * which would otherwise kill the process. So a test can break the GPU of a program without changing
 * the program. Threads: poison() may be called in any thread that has no current CUDA context of
 * its own.
 */
#ifndef TESTS_GPU_POISON_H
#define TESTS_GPU_POISON_H

/* Returns the driver's error number of the broken context, which is never 0, or a negative number
 * if the context could not be broken (no driver, no device). */
int poison(void);

#endif
