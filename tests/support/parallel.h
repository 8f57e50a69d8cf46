/* parallel.h - makes independent calls of one function in several threads. */
#ifndef TESTS_SUPPORT_PARALLEL_H
#define TESTS_SUPPORT_PARALLEL_H
#include <stddef.h>

/* Makes the calls call(context, 0) ... call(context, n - 1), in one thread for each CPU that this
 * process may use. The calls must not end a test: an assertion that fails in another thread ends
 * the program. */
void parallel(size_t n, void (*call)(void *context, size_t i), void *context);

#endif
