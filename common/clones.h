/*
 * clones.h - defines PS_CLONES, PS_APART and PS_UNINITIALIZED. Write PS_CLONES before a function
 * that loops over millions of values. The compiler then makes one version of the function for each
 * instruction set, and the program selects a version at its start.
 */
#ifndef COMMON_CLONES_H
#define COMMON_CLONES_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
	!defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define PS_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define PS_CLONES
#endif

/* Write PS_APART before a loop over arrays that are identical or disjoint, but never overlap
 * partially. */
#if defined(__clang__) /* clang needs no pragma: its loops check for overlap at run time */
#define PS_APART
#else
#define PS_APART _Pragma("GCC ivdep")
#endif

/* Write PS_UNINITIALIZED before a large automatic array that is written before it is read. The
 * compiler sets all other automatic variables to zero (ZERO in the Makefile). */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define PS_UNINITIALIZED __attribute__((uninitialized))
#else
#define PS_UNINITIALIZED
#endif

#endif
