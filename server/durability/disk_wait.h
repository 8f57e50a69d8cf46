/*
 * disk_wait.h - measures how long the server waits for its disk. The module reports how long
 * replies have waited for the write-ahead log without progress. The module also reports a write
 * that is overdue, that is, a write that has neither succeeded nor failed in time.
 *
 * The server measures at each tick. The time during which the process is suspended does not count
 * (common/clock.h). Only the loop's thread may call these functions.
 */
#ifndef SERVER_DURABILITY_DISK_WAIT_H
#define SERVER_DURABILITY_DISK_WAIT_H
#include <stdint.h>

struct checkpointer;
struct wal;

/* This struct describes a write under way. */
struct disk_write {
	/* number of the write and the time of its start; since_ms is 0 if no write is under way */
	uint64_t number, since_ms;
};

struct disk_wait {
	uint64_t now_ms, flushed_lsn; /* the time and the flushed LSN at the last tick */
	int held;                     /* 1 if replies waited for the disk at the last tick */
	/* time between the two newest ticks if a reply waited and none could leave in this time;
	 * otherwise 0 */
	uint64_t held_ms;
	/* the sum of held_ms since the last time at which a waiting reply could leave */
	uint64_t stuck_ms;
	int notice_due; /* 1 if the server must now notify the workers that the disk is slow */
	struct disk_write log, checkpoint;
	uint64_t checkpoint_bytes;
	char why[128]; /* a text that names the overdue write, or "" if no write is overdue */
};

/* Called at each tick: measures how long replies and writes have waited for the disk. `bound_lsn`
 * is the newest log sequence number for which a reply may wait. `w` is NULL without a log, and `c`
 * is NULL without checkpoints. */
void disk_wait_tick(struct disk_wait *d, const struct wal *w, const struct checkpointer *c,
	uint64_t bound_lsn, uint64_t now_ms);
/* Returns the additional time that a checkpoint may take because of its size. The function assumes
 * that the next checkpoint is as large as the newest one. */
uint64_t disk_wait_allowance_ms(const struct disk_wait *d);
/* Returns 1 if the log's write under way has taken longer than `ms`, or if the checkpoint under way
 * has taken longer than `ms` plus the result of disk_wait_allowance_ms. */
int disk_wait_hangs(const struct disk_wait *d, uint64_t ms);
/* Returns the time since the start of the oldest write under way, or 0 if no write is under way. */
uint64_t disk_wait_write_ms(const struct disk_wait *d);
/* Writes a sentence to `out` that names the oldest write under way and says how long it has
 * taken. */
void disk_wait_describe(const struct disk_wait *d, char *out, unsigned size);

#endif
