/* test_parallel.c - tests that parallel() makes each requested call exactly once. */
#include "tests/support/parallel.h"
#include <stdatomic.h>
#include "tests/support/test.h"

#define CALLS 300

static void count_item(void *context, size_t i)
{
	atomic_int *calls = context;

	atomic_fetch_add(&calls[i], 1);
}

TEST(each_call_is_made_once)
{
	static const size_t sizes[] = {0, 1, 2, 3, CALLS};

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		atomic_int calls[CALLS];

		for (size_t i = 0; i < CALLS; i++)
			atomic_init(&calls[i], 0);
		parallel(sizes[s], count_item, calls);
		for (size_t i = 0; i < CALLS; i++)
			assert_int_equal(atomic_load(&calls[i]), i < sizes[s]);
	}
}

TEST_GROUP(NULL, NULL)
