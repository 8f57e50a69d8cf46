/*
 * poison.h - breaks the CUDA context of this process permanently, as a faulty kernel or a failing
 * GPU would. It launches a kernel of one instruction, `trap`, through the interface of the driver.
 * Then every CUDA call of the process fails.
 *
 * The shared object poison.so in LD_PRELOAD breaks the context when the process receives SIGRTMIN,
 * which would otherwise kill the process. It is for programs that need no change for the test.
 * Threads: any thread that has no other CUDA context current.
 */
#ifndef TESTS_GPU_POISON_H
#define TESTS_GPU_POISON_H

/* Returns the driver's error number with which the context is left, never 0. Negative: the context
 * could not be broken (no driver, no device). */
int poison(void);

#endif
