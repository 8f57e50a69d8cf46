/*
 * history.h - the history of a run, one JSON object per line, in memory and in the file
 * history.jsonl beside the checkpoints.
 *
 * Every line has "t" (milliseconds since 1970), "kind" and "term". "t" is the wall clock at the
 * start of the server plus the time since then, so steps of the wall clock do not change it. No
 * line has a lower "t" than the line before it: if the wall clock has stepped back between two
 * starts, "t" goes on from the newest line. docs/monitoring.md lists the kinds and their fields. A
 * thread of libuv's pool appends new lines to the file.
 *
 * Invariants:
 * (1) for each kind of line, the history stores the number of bytes of all lines of this kind
 *     (asserted by pack);
 * (2) the file has only lines that the history has, in their order (asserted by note_written).
 *
 * Promises:
 * (1) all lines except those of epochs have at most HISTORY_BYTES bytes together; the history
 *     always keeps the lines of epochs. When a new line would exceed this limit, the history drops
 *     half of the lines of one kind, which is the kind with the most bytes (stay_bounded). Of the
 *     samples, the history drops every second one, and doubles the interval between new samples. A
 *     restarted server keeps this interval, so that the samples are equally dense over the whole
 *     run (tests/unit/test_server_history.c). Of the changes of workers, the history drops the
 *     older half, but not the newest change of each worker. Of the starts, ends and disputes, the
 *     history drops the older half, but not the first line of the history
 *     (tests/e2e/test_history.py, test_no_epoch_is_dropped_for_changes_of_workers);
 * (2) at the start of a server, the history keeps the complete lines of this run. The history drops
 *     the line of an epoch whose evaluation the core does not have, and inserts a line for each
 *     evaluated epoch that the file lacks. The file therefore has every evaluated epoch once, in
 *     order, even after a crash of the server (tests/e2e/test_history.py,
 *     test_every_epoch_once_after_ten_kills);
 * (3) if a write fails, its lines stay in memory, and the next write includes them
 *     (tests/fault/test_disk.py, P5);
 * (4) if a server is killed before the line of its start is in the file, the next start adds a line
 *     for the earlier start. The file therefore has one line for each start, in order
 *     (tests/e2e/test_history.py, test_a_start_whose_line_was_lost_returns).
 *
 * Only the loop's thread may call these functions. Until the callback of a write, only the thread
 * of the pool that carries out the write uses its buffer.
 */
#ifndef SERVER_MONITOR_HISTORY_H
#define SERVER_MONITOR_HISTORY_H
#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "common/err.h"

#define HISTORY_FILE  "history.jsonl"
#define HISTORY_BYTES ((size_t)4 << 20)

struct status;
struct effect;
struct labels;
struct options;
struct history; /* opaque, see history.c */

/* Called with every new line, which ends with a newline. */
typedef void history_line_fn(void *arg, const char *line);

/* Reads the history in `dir`, repairs it, and adds the line of this start with the options. If
 * `dir` is NULL, the history is only in memory. If the file cannot be read, the function renames it
 * to history.jsonl.N and begins a new file. If the file cannot be renamed either, the history is
 * only in memory. In these two cases the function logs what it did. Error: PS_ENOMEM. */
int history_new(struct history **out, uv_loop_t *loop, const char *dir, const struct status *now,
	const struct options *given, int resumed, struct err *e) PS_MUST_CHECK;
/* Returns 1 if the previous server of this run ended because training had diverged. */
int history_diverged(const struct history *h);
/* Sets the label of each worker to the host that the history has for this worker. The worker's next
 * HELLO replaces the label. */
void history_labels(const struct history *h, struct labels *labels);
/* Frees *h and sets it to NULL; *h may be NULL. The caller must wait until no write is under way
 * (history_busy). */
void history_free(struct history **h);
void history_listen(struct history *h, history_line_fn *line, void *arg);
/* Adds the line for an effect that reports an evaluated epoch, a change of a worker or a
 * dispute. */
void history_effect(struct history *h, const struct status *now, const struct effect *e);
/* Adds a sample if it is due, and begins to write the new lines. Call this function about once a
 * second. */
void history_tick(struct history *h, const struct status *now);
/* Adds the last sample and the line that reports the end of the run, and begins to write. */
void history_end(struct history *h, const struct status *now);
/* Returns 1 if a write is under way. `h` may be NULL. */
int history_busy(const struct history *h);
/* Returns all lines as one text, which the caller frees. Returns NULL if there is no memory. */
char *history_text(const struct history *h);
/* Returns the lines that a page needs, as one text of less than 1 MiB, which the caller frees. If
 * the whole history is longer, the text has every n-th sample and epoch, the best epoch, the newest
 * changes of workers and starts, and the newest line of each worker. If the newest lines of the
 * workers are long, the lines of each other kind get fewer bytes. Returns NULL if there is no
 * memory. */
char *history_short(const struct history *h);

#endif
