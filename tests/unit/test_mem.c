/* Proves the promises of common/mem.h. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "common/mem.h"
#include "common/log.h"
#include "tests/support/capture.h"
#include "tests/support/test.h"

/* This test requests sizes that cannot be allocated. With allocator_may_return_null, the malloc of
 * a sanitizer returns NULL for such a size instead of ending the program. */
const char *__asan_default_options(void);
const char *__tsan_default_options(void);
const char *__asan_default_options(void)
{
	return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void)
{
	return "allocator_may_return_null=1";
}

TEST(a_limit_bounds_all_blocks_of_a_thread)
{
	mem_limit(1000);
	free(mem_try(1, 600));
	/* refused, because mem_try counts all allocations so far, also those that were freed */
	assert_null(mem_try(1, 600));
	assert_null(mem_huge(1, 600));
	void *p = mem_try(100, 4);
	assert_non_null(p);
	free(p);
	assert_int_equal(mem_unlimit(), 1);

	p = mem_try(1, 2000);
	assert_non_null(p);
	free(p);
	mem_limit(1000);
	assert_int_equal(mem_unlimit(), 0);
}

TEST(blocks_are_zeroed_and_aligned_to_64_bytes)
{
	for (size_t n = 1; n < 5000; n = n * 3 + 1)
		for (int again = 0; again < 3; again++) {
			unsigned char *p = mem_try(n, 3);

			assert_non_null(p);
			assert_int_equal((uintptr_t)p % 64, 0);
			for (size_t i = 0; i < 3 * n; i++)
				assert_int_equal(p[i], 0);
			/* the next block may get the same memory, and must be zeroed again */
			memset(p, 0xee, 3 * n);
			free(p);
		}
}

TEST(large_blocks_of_mem_huge_begin_with_a_huge_page)
{
	static const size_t sizes[] = {0, 1, 1000, 1 << 20, (5 << 20) + 1};

	for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
		for (int again = 0; again < 2; again++) {
			unsigned char *p = mem_huge(sizes[k], 1);

			assert_non_null(p);
			assert_int_equal((uintptr_t)p % (sizes[k] >= 1 << 20 ? 2 << 20 : 64), 0);
			for (size_t i = 0; i < sizes[k]; i++)
				assert_int_equal(p[i], 0);
			memset(p, 0xee, sizes[k]);
			free(p);
		}
	assert_null(mem_huge(SIZE_MAX, 2));
	assert_null(mem_huge(1, PTRDIFF_MAX));
	assert_null(mem_huge(1, SIZE_MAX - 62));
	assert_null(mem_huge((size_t)1 << 60, 1));
}

TEST(a_block_of_no_bytes_is_a_valid_pointer)
{
	void *a = mem_try(0, 8), *b = mem_must(8, 0, "test");

	assert_non_null(a);
	assert_non_null(b);
	assert_ptr_not_equal(a, b);
	free(a);
	free(b);
}

TEST(a_product_that_overflows_is_refused)
{
	const size_t half = (size_t)1 << 32;

	assert_null(mem_try(half, half));
	assert_null(mem_try(SIZE_MAX, 1));
	assert_null(mem_try(SIZE_MAX, SIZE_MAX));
	/* refused, because rounding this size up would overflow */
	assert_null(mem_try(1, SIZE_MAX - 62));
	assert_null(mem_try(1, PTRDIFF_MAX));
	/* refused, although the product overflows to 2 */
	assert_null(mem_try(2, (SIZE_MAX >> 1) + 2));
}

TEST(memory_that_is_not_there_is_refused)
{
	assert_null(mem_try((size_t)1 << 60, 1));
}

/* Returns the resident set size of this process, in pages. */
static size_t resident(void)
{
	char text[128] = "";
	FILE *f = fopen("/proc/self/statm", "re");

	assert_non_null(f);
	assert_non_null(fgets(text, sizeof(text), f));
	fclose(f);
	return strtoull(strchr(text, ' '), NULL, 10);
}

TEST(a_lazy_block_takes_the_pages_that_are_touched)
{
	const size_t bytes = (size_t)1 << 36, page = 4096;
	size_t before = resident();
	unsigned char *p = mem_lazy(bytes);

	assert_non_null(p);
	assert_int_equal((uintptr_t)p % 64, 0);
	for (size_t i = 0; i < 100; i++) {
		assert_int_equal(p[bytes / 100 * i], 0);
		p[bytes / 100 * i] = 1;
	}
	assert_true(resident() < before + (64 << 20) / page);
	mem_lazy_free(p, bytes);
	mem_lazy_free(NULL, bytes);
	assert_null(mem_lazy(SIZE_MAX / 2));
}

TEST(mem_must_dies_with_one_line_that_says_who_and_how_much)
{
	static struct capture c;

	capture_begin(&c, 2);
	pid_t child = fork();
	if (child == 0) {
		void *p = mem_must((size_t)1 << 60, 4, "ledger of workers");

		_exit(p ? 77 : 78);
	}
	int status = 0;
	waitpid(child, &status, 0);
	const char *text = capture_log(&c);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 1);
	assert_non_null(
		strstr(text, "level=error msg=\"mem out_of_memory\" owner=\"ledger of workers\" "
			     "elements=1152921504606846976 bytes_each=4\n"));
}

TEST_GROUP(capture_info, NULL)
