/* Proves which writes server/durability/disk_wait.h reports as overdue, and which it reports as
 * hanging. */
#include "server/durability/disk_wait.h"
#include "tests/support/test.h"
#include <stddef.h>
#include <stdint.h>

/* Returns the state in which a write of the log has been in progress for `log_ms`, and a write of a
 * checkpoint of `checkpoint_bytes` for `checkpoint_ms`. If a time is 0, no such write is in
 * progress. */
static struct disk_wait waiting(uint64_t log_ms, uint64_t checkpoint_ms, uint64_t checkpoint_bytes)
{
	const uint64_t now = 1000000;

	return (struct disk_wait){.now_ms = now,
		.log.since_ms = log_ms ? now - log_ms : 0,
		.checkpoint.since_ms = checkpoint_ms ? now - checkpoint_ms : 0,
		.checkpoint_bytes = checkpoint_bytes};
}

/* A disk that writes 20 MB per second is slow, but it does not hang. */
TEST(a_large_checkpoint_may_take_its_time)
{
	static const struct {
		uint64_t log_ms, checkpoint_ms, bytes;
		int hangs;
	} row[] = {{0, 0, 0, 0}, {9000, 0, 0, 0}, {10001, 0, 0, 1}, {0, 9000, 0, 0},
		{0, 10001, 0, 1}, {0, 10001, 400000000, 0}, {0, 29000, 400000000, 0},
		{0, 30001, 400000000, 1}, {10001, 0, 400000000, 1}, {10001, 10001, 400000000, 1}};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct disk_wait d = waiting(row[i].log_ms, row[i].checkpoint_ms, row[i].bytes);

		assert_int_equal(disk_wait_hangs(&d, 10000), row[i].hangs);
		assert_int_equal(disk_wait_allowance_ms(&d), row[i].bytes / 20000);
	}
}
