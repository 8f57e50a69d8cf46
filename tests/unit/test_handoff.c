/* Proves the contract of common/handoff.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "common/clock.h"
#include "common/handoff.h"

/* Allocations until the next one fails; < 0: none fails. Stands in for libc's aligned_alloc. */
static int allocations_left = -1;
void *aligned_alloc(size_t alignment, size_t size)
{
	void *p = NULL;
	if (allocations_left == 0)
		return NULL;
	allocations_left -= allocations_left > 0;
	return posix_memalign(&p, alignment, size) == 0 ? p : NULL;
}

static struct handoff *new_queue(size_t capacity)
{
	struct handoff *q = NULL;
	assert_int_equal(handoff_new(&q, capacity), PS_OK);
	assert_non_null(q);
	return q;
}

static void items_come_out_in_the_order_they_went_in(void **state)
{
	(void)state;
	int value[7];
	struct handoff *q = new_queue(3);
	size_t in = 0, out = 0;
	for (int round = 0; round < 50; round++) { /* past the ring's end many times */
		for (int i = 0; i < 1 + round % 3; i++) {
			void *item = &value[in++ % 7];
			assert_int_equal(handoff_put(q, &item), PS_OK);
		}
		for (int i = 0; i < 1 + round % 3; i++) {
			void *item = NULL;
			assert_int_equal(handoff_take(q, &item, 0), PS_OK);
			assert_ptr_equal(item, &value[out++ % 7]);
		}
	}
	handoff_free(&q);
	assert_null(q);
}

static void ownership_leaves_only_when_put_succeeds(void **state)
{
	(void)state;
	int a, b;
	void *item = &a, *other = &b;
	struct handoff *q = new_queue(1);
	assert_int_equal(handoff_put(q, &item), PS_OK);
	assert_null(item);
	assert_int_equal(handoff_put(q, &other), PS_EAGAIN); /* full */
	assert_ptr_equal(other, &b);
	handoff_close(q);
	assert_int_equal(handoff_put(q, &other), PS_ESHUTDOWN);
	assert_ptr_equal(other, &b);
	assert_int_equal(handoff_take(q, &item, 0), PS_OK);
	handoff_free(&q);
}

static void a_closed_queue_gives_what_it_holds_and_then_says_so(void **state)
{
	(void)state;
	int a;
	void *item = &a;
	struct handoff *q = new_queue(2);
	assert_int_equal(handoff_put(q, &item), PS_OK);
	handoff_close(q);
	assert_int_equal(handoff_take(q, &item, 1000000), PS_OK);
	assert_ptr_equal(item, &a);
	assert_int_equal(handoff_take(q, &item, UINT64_MAX), PS_ESHUTDOWN); /* does not wait */
	assert_int_equal(handoff_take(q, &item, 0), PS_ESHUTDOWN);
	handoff_free(&q);
}

static void an_empty_queue_waits_as_long_as_asked(void **state)
{
	(void)state;
	void *item = NULL;
	struct handoff *q = new_queue(2);
	uint64_t start = clock_ms();
	assert_int_equal(handoff_take(q, &item, 0), PS_EAGAIN);
	assert_int_equal(handoff_take(q, &item, 30), PS_EAGAIN);
	assert_true(clock_ms() - start >= 29);
	handoff_free(&q);
}

struct taker {
	struct handoff *q;
	void *item;
	int rc;
};

static void *take_for_ever(void *arg)
{
	struct taker *t = arg;
	t->rc = handoff_take(t->q, &t->item, UINT64_MAX);
	return NULL;
}

static void a_waiting_taker_wakes_for_an_item_and_for_the_close(void **state)
{
	(void)state;
	int a;
	void *item = &a;
	struct handoff *q = new_queue(1);
	struct taker one = {.q = q}, two = {.q = q};
	pthread_t t1, t2;
	assert_int_equal(pthread_create(&t1, NULL, take_for_ever, &one), 0);
	assert_int_equal(pthread_create(&t2, NULL, take_for_ever, &two), 0);
	assert_int_equal(handoff_put(q, &item), PS_OK);
	handoff_close(q);
	pthread_join(t1, NULL); /* the test's deadline catches a taker that sleeps on */
	pthread_join(t2, NULL);
	assert_int_equal(one.rc + two.rc, PS_OK + PS_ESHUTDOWN);
	assert_ptr_equal(one.rc == PS_OK ? one.item : two.item, &a);
	handoff_free(&q);
}

enum { TAKERS = 8 };
static atomic_int about_to_take;

static void *announce_and_take(void *arg)
{
	atomic_fetch_add(&about_to_take, 1);
	return take_for_ever(arg);
}

static void the_close_wakes_every_waiting_taker(void **state)
{
	(void)state;
	struct handoff *q = new_queue(1), *empty = new_queue(1);
	struct taker taker[TAKERS];
	pthread_t thread[TAKERS];
	void *item;
	for (size_t i = 0; i < TAKERS; i++) {
		taker[i] = (struct taker){.q = q, .rc = PS_OK};
		assert_int_equal(pthread_create(&thread[i], NULL, announce_and_take, &taker[i]), 0);
	}
	/* give all of them the time to fall asleep; one that has not yet is no error either */
	while (atomic_load(&about_to_take) < TAKERS)
		sched_yield();
	assert_int_equal(handoff_take(empty, &item, 50), PS_EAGAIN);
	handoff_close(q);
	for (size_t i = 0; i < TAKERS; i++) {
		pthread_join(thread[i], NULL);
		assert_int_equal(taker[i].rc, PS_ESHUTDOWN);
	}
	handoff_free(&q);
	handoff_free(&empty);
}

enum { THREADS = 3, PER_THREAD = 20000 };
static struct handoff *shared;
static unsigned char token[THREADS * PER_THREAD];
static atomic_uchar seen[THREADS * PER_THREAD];
static atomic_int out_of_order;

static void *put_tokens(void *arg)
{
	unsigned char *first = arg;
	for (size_t i = 0; i < PER_THREAD; i++) {
		void *item = first + i;
		int rc;
		*(unsigned char *)item = 1; /* written before, read after the hand-over */
		while ((rc = handoff_put(shared, &item)) == PS_EAGAIN)
			sched_yield();
		if (rc || item)
			atomic_fetch_add(&out_of_order, 1);
	}
	return NULL;
}

static void *take_tokens(void *arg)
{
	size_t newest[THREADS] = {0};
	void *item;
	(void)arg;
	while (handoff_take(shared, &item, 60000) == PS_OK) {
		size_t index = (size_t)((unsigned char *)item - token);
		atomic_fetch_add(&seen[index], token[index]);
		/* one putter's items reach one taker in order */
		if (index + 1 <= newest[index / PER_THREAD])
			atomic_fetch_add(&out_of_order, 1);
		newest[index / PER_THREAD] = index + 1;
	}
	return NULL;
}

static void between_many_threads_every_item_arrives_exactly_once(void **state)
{
	(void)state;
	pthread_t putter[THREADS], taker[THREADS];
	shared = new_queue(5);
	for (size_t i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_create(&taker[i], NULL, take_tokens, NULL), 0);
		assert_int_equal(
			pthread_create(&putter[i], NULL, put_tokens, token + i * PER_THREAD), 0);
	}
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(putter[i], NULL);
	handoff_close(shared);
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(taker[i], NULL);
	for (size_t i = 0; i < THREADS * PER_THREAD; i++)
		assert_int_equal(atomic_load(&seen[i]), 1);
	assert_int_equal(atomic_load(&out_of_order), 0);
	handoff_free(&shared);
}

static void birth_fails_cleanly_wherever_memory_runs_out(void **state)
{
	(void)state;
	struct handoff *q = (void *)&state;
	int rc = PS_ENOMEM;
	for (int limit = 0; limit < 2; limit++) {
		allocations_left = limit;
		rc = handoff_new(&q, 8);
		allocations_left = -1;
		assert_int_equal(rc, PS_ENOMEM);
		assert_null(q);
	}
	assert_int_equal(handoff_new(&q, 0), PS_EUSAGE);
	assert_int_equal(handoff_new(&q, SIZE_MAX / 4), PS_ENOMEM);
	assert_null(q);
	handoff_free(&q); /* NULL is fine */
	q = new_queue(8);
	handoff_free(&q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(items_come_out_in_the_order_they_went_in),
		cmocka_unit_test(ownership_leaves_only_when_put_succeeds),
		cmocka_unit_test(a_closed_queue_gives_what_it_holds_and_then_says_so),
		cmocka_unit_test(an_empty_queue_waits_as_long_as_asked),
		cmocka_unit_test(a_waiting_taker_wakes_for_an_item_and_for_the_close),
		cmocka_unit_test(the_close_wakes_every_waiting_taker),
		cmocka_unit_test(between_many_threads_every_item_arrives_exactly_once),
		cmocka_unit_test(birth_fails_cleanly_wherever_memory_runs_out),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
