/*
 * assert.h - assertions about our own invariants. They stay in release builds: a process that is
 * wrong about itself stops before it acknowledges or saves anything, and its checkpoint, its log
 * and the workers' retained pushes bring the run back.
 *
 * Never for input: what a peer or a file sent is checked and refused.
 * Thread: any.
 */
#ifndef COMMON_ASSERT_H
#define COMMON_ASSERT_H

/* "FILE:LINE: assertion failed: CONDITION" on stderr, then abort. */
_Noreturn void ps_assert_failed(const char *file, int line, const char *condition);

#define PS_ASSERT(condition)                                                                       \
	((condition) ? (void)0 : ps_assert_failed(__FILE__, __LINE__, #condition))

#endif
