/*
 * subnormals.h - lets a thread compute for a while with 0 in place of each operand and each result
 * that is a subnormal number. Subnormal numbers are float32 numbers below 1.2e-38 and doubles below
 * 2.2e-308 in magnitude. CPUs compute with subnormal numbers many times more slowly than with other
 * numbers.
 *
 * Call subnormals_are_0, compute, and pass the setting that subnormals_are_0 has returned to
 * subnormals_restore in the same function. The compiler moves no access to memory, and no operation
 * that depends on such an access, across either of these two calls. On CPUs other than x86-64 and
 * AArch64 the functions have no effect. Any thread may call the functions; each thread has its own
 * setting.
 */
#ifndef COMMON_SUBNORMALS_H
#define COMMON_SUBNORMALS_H
#include <stdint.h>

/* The floating-point setting of a thread; opaque. */
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

/* Makes subnormal numbers count as 0 in this thread. Returns the thread's earlier setting. */
static inline struct subnormals subnormals_are_0(void)
{
	struct subnormals before = {0};

#if defined(__x86_64__)
	uint32_t control;

	__asm__ volatile("stmxcsr %0" : "=m"(control) : : "memory");
	before.control = control;
	/* FTZ makes subnormal results 0, and DAZ subnormal operands (Intel SDM 10.2.3) */
	subnormals_restore((struct subnormals){control | 0x8000u | 0x0040u});
#elif defined(__aarch64__)
	__asm__ volatile("mrs %0, fpcr" : "=r"(before.control) : : "memory");
	subnormals_restore((struct subnormals){before.control | UINT64_C(1) << 24}); /* FZ */
#endif
	return before;
}
#endif
