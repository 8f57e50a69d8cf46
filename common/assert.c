/* assert.c - see assert.h. */
#include "common/assert.h"
#include <stdio.h>
#include <stdlib.h>

void ps_assert_failed(const char *file, int line, const char *condition)
{
	(void)fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, condition);
	abort();
}
