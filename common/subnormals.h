/*
 * subnormals.h - lets a thread compute with 0 instead of subnormal numbers for a while: float32
 * numbers below 1.2e-38 and doubles below 2.2e-308, operands as well as results. CPUs compute with
 * subnormal numbers many times more slowly.
 *
 * Call subnormals_are_0, compute, and pass its result to subnormals_restore in the same function.
 * The compiler moves no load or store of memory, and no operation that depends on one, out of the
 * code between these two calls or into it. On CPUs other than x86-64 and AArch64 the functions have
 * no effect.
 * Thread: any; each thread has its own setting.
 */
#ifndef COMMON_SUBNORMALS_H
#define COMMON_SUBNORMALS_H
#include <stdint.h>

/* The setting of a thread; opaque. */
struct subnormals {
	uint64_t control;
};

static inline void subnormals_restore(struct subnormals s)
{
#if defined(__x86_64__)
	uint32_t control = (uint32_t)s.control;

	__asm__ volatile("ldmxcsr %0" : : "m"(control) : "memory");
#elif defined(__aarch64__)
	__asm__ volatile("msr fpcr, %0" : : "r"(s.control) : "memory");
#else
	(void)s;
#endif
}

/* Returns the setting before the call. */
static inline struct subnormals subnormals_are_0(void)
{
	struct subnormals before = {0};

#if defined(__x86_64__)
	uint32_t control;

	__asm__ volatile("stmxcsr %0" : "=m"(control) : : "memory");
	before.control = control;
	/* FTZ: results; DAZ: operands (Intel SDM 10.2.3) */
	subnormals_restore((struct subnormals){control | 0x8000u | 0x0040u});
#elif defined(__aarch64__)
	__asm__ volatile("mrs %0, fpcr" : "=r"(before.control) : : "memory");
	subnormals_restore((struct subnormals){before.control | UINT64_C(1) << 24}); /* FZ */
#endif
	return before;
}
#endif
