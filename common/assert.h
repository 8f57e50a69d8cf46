/*
 * assert.h - assertions about the invariants of this code, which release builds keep. A process
 * with a broken invariant aborts before it acknowledges or saves wrong data. The run then continues
 * from the checkpoint, the write-ahead log and the workers' retained pushes.
 *
 * Never use PS_ASSERT on input: check the data of a peer or of a file with ordinary code, and
 * refuse bad data with an error. Any thread may use PS_ASSERT.
 */
#ifndef COMMON_ASSERT_H
#define COMMON_ASSERT_H

/* Writes "FILE:LINE: assertion failed: CONDITION" to stderr, then aborts. */
/* cold: the compiler moves the calls of this function away from the code that usually runs */
_Noreturn void ps_assert_failed(const char *file, int line, const char *condition)
	__attribute__((cold));

#define PS_ASSERT(condition)                                                                       \
	((condition) ? (void)0 : ps_assert_failed(__FILE__, __LINE__, #condition))

#endif
