/*
 * disk_wait.h - how long the server waits for its disk: with a log, for how long the replies that it
 * holds back have got no further; and which write is overdue, because it has neither succeeded nor
 * failed.
 *
 * It looks once a tick, with the time that leaves out a stopped process. Thread: the loop's.
 */
#ifndef SERVER_DURABILITY_DISK_WAIT_H
#define SERVER_DURABILITY_DISK_WAIT_H
#include <stdint.h>

struct checkpointer;
struct wal;

/* A write under way. */
struct disk_write {
	uint64_t number, since_ms; /* since_ms 0: there is none */
};

struct disk_wait {
	uint64_t now_ms, flushed_lsn; /* at the last tick */
	int held;                     /* replies waited then */
	uint64_t held_ms;             /* since the tick before, no reply that waited could leave */
	uint64_t stuck_ms;            /* the sum, without a pause */
	int notice_due;               /* workers should be told, now */
	struct disk_write log, checkpoint;
	uint64_t checkpoint_bytes;
	char why[128]; /* what is overdue; "": nothing */
};

/* A tick. `bound_lsn`: the newest LSN that a reply may need. NULL: no log, no checkpoints. */
void disk_wait_tick(struct disk_wait *d, const struct wal *w, const struct checkpointer *c,
	uint64_t bound_lsn, uint64_t now_ms);
/* How much longer a checkpoint of the newest one's size may take than a small one. */
uint64_t disk_wait_allowance_ms(const struct disk_wait *d);
/* A write has taken longer than `ms`; a checkpoint: than `ms` and its allowance. */
int disk_wait_hangs(const struct disk_wait *d, uint64_t ms);
/* For how long the oldest write has been under way; 0: there is none. */
uint64_t disk_wait_write_ms(const struct disk_wait *d);
/* The same in words, into `out`. */
void disk_wait_describe(const struct disk_wait *d, char *out, unsigned size);

#endif
