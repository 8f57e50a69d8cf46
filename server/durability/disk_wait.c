/* disk_wait.c - see disk_wait.h. */
#include "server/durability/disk_wait.h"
#include <stdio.h>
#include "common/log.h"
#include "server/durability/checkpointer.h"
#include "server/durability/wal.h"

#define LOG_OVERDUE_MS 2000
/* time between two notices to the workers that the server waits for its disk
 * (worker/client/contact.c) */
#define NOTICE_MS             500
#define CHECKPOINT_OVERDUE_MS 10000
/* minimum speed that is assumed for writing a checkpoint: the time limits of a checkpoint grow with
 * its size divided by this number */
#define SLOWEST_BYTES_PER_MS 20000

/* Notes when the write under way began. `busy` is 1 if a write is under way. `number` is the number
 * of this write, so a change of `number` since the last call shows that another write has begun. */
static void note_write(struct disk_write *w, int busy, uint64_t number, uint64_t now_ms)
{
	if (!busy)
		w->since_ms = 0;
	else if (!w->since_ms || w->number != number)
		w->since_ms = now_ms;
	w->number = number;
}

static uint64_t age(const struct disk_wait *d, const struct disk_write *w)
{
	return w->since_ms ? d->now_ms - w->since_ms : 0;
}

static void check_replies(
	struct disk_wait *d, const struct wal *w, uint64_t bound_lsn, uint64_t now_ms)
{
	uint64_t flushed = w ? wal_flushed_lsn(w) : 0;

	d->held_ms = d->held && flushed == d->flushed_lsn ? now_ms - d->now_ms : 0;
	uint64_t before_ms = d->held_ms ? d->stuck_ms : 0;
	d->stuck_ms = before_ms + d->held_ms;
	d->notice_due = d->stuck_ms / NOTICE_MS > before_ms / NOTICE_MS;
	d->held = w && bound_lsn > flushed;
	d->flushed_lsn = flushed;
}

uint64_t disk_wait_allowance_ms(const struct disk_wait *d)
{
	return d->checkpoint_bytes / SLOWEST_BYTES_PER_MS;
}

static int takes_longer(const struct disk_wait *d, uint64_t log_ms, uint64_t checkpoint_ms)
{
	return age(d, &d->log) > log_ms ||
	       age(d, &d->checkpoint) > checkpoint_ms + disk_wait_allowance_ms(d);
}

int disk_wait_hangs(const struct disk_wait *d, uint64_t ms)
{
	return takes_longer(d, ms, ms);
}

void disk_wait_tick(struct disk_wait *d, const struct wal *w, const struct checkpointer *c,
	uint64_t bound_lsn, uint64_t now_ms)
{
	check_replies(d, w, bound_lsn, now_ms);
	d->now_ms = now_ms;
	if (w)
		note_write(&d->log, wal_busy(w), wal_stats(w)->begun, now_ms);
	if (c) {
		const struct checkpointer_stats *t = checkpointer_stats(c);

		note_write(&d->checkpoint, checkpointer_busy(c), t->saved + t->failed, now_ms);
		d->checkpoint_bytes = t->bytes;
	}
	int was = d->why[0] != '\0';
	int is = takes_longer(d, LOG_OVERDUE_MS, CHECKPOINT_OVERDUE_MS);
	d->why[0] = '\0';
	if (is)
		disk_wait_describe(d, d->why, sizeof(d->why));
	if (is && !was)
		log_error("server", "disk_overdue", "reason=\"%s\"", d->why);
	if (was && !is)
		log_info("server", "disk_answers", "reason=\"the write has ended\"");
}

uint64_t disk_wait_write_ms(const struct disk_wait *d)
{
	uint64_t log = age(d, &d->log), checkpoint = age(d, &d->checkpoint);

	return log > checkpoint ? log : checkpoint;
}

void disk_wait_describe(const struct disk_wait *d, char *out, unsigned size)
{
	const char *what =
		age(d, &d->log) >= age(d, &d->checkpoint) ? "the write-ahead log" : "a checkpoint";

	snprintf(out, size, "the disk does not answer: a write of %s has taken %.1f s", what,
		(double)disk_wait_write_ms(d) / 1000);
}
