/*
 * test_ring.c - rings of messages in shared memory (proto/ring.h): order, limits, and peers that
 * write wrong positions and lengths. Covers attack A23 of docs/faults.md.
 */
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include "common/rng.h"
#include "proto/ring.h"
#include "tests/support/test.h"

static struct ring_memory memory;
static struct ring writer, reader;

static int set_up_ring(void **state)
{
	(void)state;
	memset(&memory, 0, sizeof(memory));
	ring_init(&writer, &memory);
	ring_init(&reader, &memory);
	return 0;
}

/* Returns the bytes of message number `i`, and sets *n to their number. */
static const unsigned char *message(uint32_t i, size_t *n)
{
	static unsigned char bytes[RING_MAX_MESSAGE];

	*n = 1 + i * 2654435761u % RING_MAX_MESSAGE;
	memset(bytes, (int)(i % 251), *n);
	bytes[*n / 2] = (unsigned char)(i >> 8);
	return bytes;
}

static int write_next(uint32_t i, int *sleeps)
{
	size_t n;
	const unsigned char *bytes = message(i, &n);

	return ring_write(&writer, bytes, n, sleeps);
}

static int read_expected(uint32_t i)
{
	unsigned char got[RING_MAX_MESSAGE];
	size_t n, size;
	int rc = ring_read(&reader, got, &size);

	if (rc != 1)
		return rc;
	const unsigned char *bytes = message(i, &n);
	assert_int_equal(size, n);
	assert_memory_equal(got, bytes, n);
	return 1;
}

TEST_IN(messages_wrap_around_the_end, set_up_ring, NULL)
{
	uint32_t written = 0, read = 0;
	int sleeps;

	/* the positions also wrap around at 2^32 */
	writer.at = reader.at = 0u - 4096;
	atomic_store(&memory.head, reader.at);
	atomic_store(&memory.tail, writer.at);
	while (read < 5000) {
		while (written - read < 9 && write_next(written, &sleeps) == PS_OK)
			written++;
		assert_true(written > read);
		assert_int_equal(read_expected(read), 1);
		read++;
	}
	while (read < written)
		assert_int_equal(read_expected(read++), 1);
	assert_int_equal(read_expected(read), 0);
}

TEST_IN(a_full_ring_takes_no_message, set_up_ring, NULL)
{
	const char byte = 7;
	unsigned char got[RING_MAX_MESSAGE];
	size_t n;
	uint32_t written = 0;
	int sleeps;

	while (ring_write(&writer, &byte, 1, &sleeps) == PS_OK)
		written++;
	assert_int_equal(written, RING_MAX_MESSAGES);
	assert_int_equal(ring_read(&reader, got, &n), 1);
	/* there is room for a message of 4 bytes, but not of 5 */
	assert_int_equal(ring_write(&writer, "five", 5, &sleeps), PS_EAGAIN);
	assert_int_equal(ring_write(&writer, "four", 4, &sleeps), PS_OK);
	for (uint32_t i = 1; i < written; i++)
		assert_int_equal(ring_read(&reader, got, &n), 1);
	assert_int_equal(ring_read(&reader, got, &n), 1);
	assert_int_equal(n, 4);
	assert_memory_equal(got, "four", 4);
	assert_int_equal(ring_read(&reader, got, &n), 0);
}

TEST_IN(a_message_of_another_size_does_not_fit, set_up_ring, NULL)
{
	static const unsigned char bytes[RING_MAX_MESSAGE + 1];
	int sleeps;

	assert_int_equal(ring_write(&writer, bytes, 0, &sleeps), PS_EAGAIN);
	assert_int_equal(ring_write(&writer, bytes, sizeof(bytes), &sleeps), PS_EAGAIN);
	assert_int_equal(ring_write(&writer, bytes, sizeof(bytes) - 1, &sleeps), PS_OK);
}

TEST_IN(a_message_is_a_private_copy, set_up_ring, NULL)
{
	unsigned char got[RING_MAX_MESSAGE];
	size_t n;
	int sleeps;

	assert_int_equal(ring_write(&writer, "before", 6, &sleeps), PS_OK);
	assert_int_equal(ring_read(&reader, got, &n), 1);
	memset(memory.bytes, 'x', sizeof(memory.bytes));
	assert_int_equal(n, 6);
	assert_memory_equal(got, "before", 6);
}

/* Let the writer announce `left` bytes, of which the first message has `length`. */
static int read_forged(uint32_t left, uint32_t length)
{
	unsigned char got[RING_MAX_MESSAGE];
	size_t n;

	set_up_ring(NULL);
	memcpy(memory.bytes, &length, sizeof(length));
	atomic_store(&memory.tail, left);
	int rc = ring_read(&reader, got, &n);
	if (rc != 1)
		assert_int_equal(reader.at, 0);
	return rc;
}

static int write_forged(uint32_t head)
{
	int sleeps;

	set_up_ring(NULL);
	atomic_store(&memory.head, head);
	int rc = ring_write(&writer, "m", 1, &sleeps);
	if (rc)
		assert_int_equal(writer.at, 0);
	return rc;
}

TEST(hostile_positions_and_lengths_are_refused)
{
	assert_int_equal(read_forged(16, 8), 1);
	assert_int_equal(read_forged(RING_BYTES, RING_MAX_MESSAGE), 1);
	assert_int_equal(read_forged(RING_BYTES + 8, 8), PS_EPROTO);
	assert_int_equal(read_forged(0u - 8, 8), PS_EPROTO);
	assert_int_equal(read_forged(12, 8), PS_EPROTO);
	assert_int_equal(read_forged(16, 0), PS_EPROTO);
	assert_int_equal(read_forged(16, 13), PS_EPROTO);
	assert_int_equal(read_forged(RING_BYTES, RING_MAX_MESSAGE + 1), PS_EPROTO);
	assert_int_equal(read_forged(RING_BYTES, UINT32_MAX), PS_EPROTO);
	assert_int_equal(read_forged(RING_BYTES, UINT32_MAX - 3), PS_EPROTO);
	assert_int_equal(write_forged(0), PS_OK);
	assert_int_equal(write_forged(8), PS_EPROTO);
	assert_int_equal(write_forged(0u - RING_BYTES), PS_EAGAIN);
	assert_int_equal(write_forged(0u - RING_BYTES - 8), PS_EPROTO);
	assert_int_equal(write_forged(0u - 12), PS_EPROTO);
}

/* A hostile writer changes every byte of the shared memory between two reads. */
TEST_IN(random_bytes_never_lead_out_of_the_ring, set_up_ring, NULL)
{
	struct rng rng = rng_seed(1, 1, 1);
	unsigned char got[RING_MAX_MESSAGE + 64];
	unsigned read = 0;
	size_t n;

	for (unsigned i = 0; i < 200000; i++) {
		const uint32_t length = (uint32_t)rng_below(&rng, 64);
		const uint32_t at = (uint32_t)rng_below(&rng, RING_BYTES / 8) * 8;

		memcpy(memory.bytes + at, &length, sizeof(length));
		atomic_store(&memory.tail, reader.at + (uint32_t)rng_below(&rng, 40) * 4);
		memset(got, 0xee, sizeof(got));
		int rc = ring_read(&reader, got, &n);
		assert_true(rc == 1 || rc == 0 || rc == PS_EPROTO);
		assert_true(n <= RING_MAX_MESSAGE);
		for (size_t j = n; j < sizeof(got); j += 61)
			assert_int_equal(got[j], 0xee);
		read += rc == 1;
	}
	assert_true(read > 1000);
}

TEST_IN(discarded_messages_are_gone, set_up_ring, NULL)
{
	int sleeps;

	assert_int_equal(write_next(0, &sleeps), PS_OK);
	assert_int_equal(write_next(1, &sleeps), PS_OK);
	uint32_t end = ring_end(&reader);
	assert_int_equal(write_next(2, &sleeps), PS_OK);
	ring_discard(&reader, end);
	assert_int_equal(read_expected(2), 1);
	assert_int_equal(ring_has_message(&reader), 0);
	/* a position out of the ring changes nothing */
	ring_discard(&reader, reader.at + RING_BYTES + 8);
	ring_discard(&reader, reader.at + 3);
	assert_int_equal(write_next(3, &sleeps), PS_OK);
	assert_int_equal(read_expected(3), 1);
}

TEST_IN(a_sleeping_reader_is_woken, set_up_ring, NULL)
{
	int sleeps;

	assert_int_equal(write_next(0, &sleeps), PS_OK);
	assert_int_equal(sleeps, 0);
	assert_int_equal(ring_may_sleep(&reader), 0);
	assert_int_equal(read_expected(0), 1);
	assert_int_equal(ring_may_sleep(&reader), 1);
	assert_int_equal(write_next(1, &sleeps), PS_OK);
	assert_int_equal(sleeps, 1);
	ring_wake(&reader);
	assert_int_equal(write_next(2, &sleeps), PS_OK);
	assert_int_equal(sleeps, 0);
}

/* ---- two threads ----------------------------------------------------------------------------- */

#define MANY 100000u

static atomic_uint bells; /* number of times that the writer has woken the reader up */

static void *write_many(void *unused)
{
	(void)unused;
	for (uint32_t i = 0; i < MANY;) {
		const uint32_t value = i * 2654435761u;
		int sleeps, rc = ring_write(&writer, &value, 1 + i % 4, &sleeps);

		assert_true(rc == PS_OK || rc == PS_EAGAIN);
		if (rc == PS_OK)
			i++;
		else
			sched_yield();
		if (sleeps)
			atomic_fetch_add(&bells, 1);
	}
	return NULL;
}

/* If the writer missed a sleeping reader, the reader would wait for ever, and the test would not
 * end. */
TEST_IN(no_message_and_no_bell_is_lost_between_two_threads, set_up_ring, NULL)
{
	pthread_t thread;
	unsigned char got[RING_MAX_MESSAGE];
	size_t n;

	assert_int_equal(pthread_create(&thread, NULL, write_many, NULL), 0);
	for (uint32_t i = 0; i < MANY;) {
		const uint32_t value = i * 2654435761u;
		unsigned before = atomic_load(&bells);
		int rc = ring_read(&reader, got, &n);

		if (rc == 0 && ring_may_sleep(&reader)) {
			while (atomic_load(&bells) == before)
				sched_yield();
			ring_wake(&reader);
		}
		if (rc == 0)
			continue;
		assert_int_equal(rc, 1);
		assert_int_equal(n, 1 + i % 4);
		assert_memory_equal(got, &value, n);
		i++;
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
}
