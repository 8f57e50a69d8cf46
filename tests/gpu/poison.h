/*
 * poison.h - break the CUDA context of this process for good, as a bad kernel or a dying GPU would:
 * a kernel of one instruction, `trap`, through the driver's own interface. From then on every CUDA
 * call of the process fails.
 *
 * As a shared object in LD_PRELOAD (poison.so) it does so when the process gets SIGRTMIN, which
 * otherwise would kill it: for programs that must not notice.
 * Thread: any that has no other CUDA context current.
 */
#ifndef TESTS_GPU_POISON_H
#define TESTS_GPU_POISON_H

/* The driver's error number that the context is left with, never 0; negative: it could not be
 * broken (no driver, no device). */
int poison(void);

#endif
