/*
 * clones.h - loops over millions of values, compiled once for each instruction set and chosen when
 * the program starts: write PS_CLONES before the function.
 */
#ifndef COMMON_CLONES_H
#define COMMON_CLONES_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
	!defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define PS_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define PS_CLONES
#endif

/* Before a loop over arrays that are the same or apart, but never overlap askew. */
#if defined(__clang__) /* finds out at run time whether they are */
#define PS_APART
#else
#define PS_APART _Pragma("GCC ivdep")
#endif

#endif
