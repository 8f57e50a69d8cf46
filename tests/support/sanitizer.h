/*
 * sanitizer.h - says whether a sanitizer checks this build, and so makes it slower. A test that
 * repeats the same code many times repeats it less often in such a build.
 */
#ifndef TESTS_SUPPORT_SANITIZER_H
#define TESTS_SUPPORT_SANITIZER_H

#if defined(__SANITIZE_THREAD__)
#define IS_TSAN 1
#elif defined(__has_feature)
#define IS_TSAN __has_feature(thread_sanitizer)
#else
#define IS_TSAN 0
#endif

#if defined(__SANITIZE_ADDRESS__)
#define IS_ASAN 1
#elif defined(__has_feature)
#define IS_ASAN __has_feature(address_sanitizer)
#else
#define IS_ASAN 0
#endif

/* `n` repetitions, or a fifth of them if a sanitizer checks this build. */
#define REPETITIONS(n) (IS_ASAN || IS_TSAN ? ((n) + 4) / 5 : (n))

#endif
