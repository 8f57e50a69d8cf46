/*
 * status.h - the state of the server as JSON for /status and cnn-ctl, as the result line, and as
 * Prometheus text.
 *
 * The functions read only their arguments. The caller frees the texts. A function that returns a
 * text returns NULL if there is no memory. Only the loop's thread may call these functions.
 */
#ifndef SERVER_MONITOR_STATUS_H
#define SERVER_MONITOR_STATUS_H
#include <jansson.h>
#include <stdint.h>
#include "server/durability/disk_wait.h"
#include "server/durability/wal.h"
#include "server/net/net.h"
#include "server/monitor/progress.h"
#include "server/monitor/tallies.h"
#include "server/monitor/timings.h"
#include "server/durability/checkpointer.h"
#include "server/monitor/warnings.h"
#include "server/monitor/waiting.h"

struct core;
struct core_stats;
struct labels;
struct worker_view;

struct status {
	const struct core *core;
	const struct progress *progress;
	const struct labels *labels;     /* NULL: none */
	const struct waiting *waiting;   /* NULL: the status does not say why the run waits */
	const struct warnings *warnings; /* NULL: no warnings */
	const struct tallies *tallies;   /* NULL: none */
	const struct timings *timings;   /* NULL: none */
	struct router_stats net;
	const struct checkpointer_stats *checkpointer; /* NULL: no checkpoints */
	const struct wal_stats *wal;                   /* NULL: no write-ahead log */
	const struct disk_wait *disk;                  /* NULL: no checkpoint directory */
	struct auth_stats auth;                        /* all zero: the server has no keys */
	/* Three times in seconds, all since the start of the server. apply_s: time that the loop's
	 * thread has spent in steps of the core; idle_s: time outside these steps during which the
	 * thread did not run; total_s: time since the start. net.verify_s, too, counts since the
	 * start */
	double apply_s, idle_s, total_s;
	uint64_t now_ms;
	uint64_t rss_bytes;
	/* number of HELLOs that were not answered because of the rate limit (clients.h) */
	uint64_t turned_away;
	int ending;              /* PS_E*: how the run ends, if it is ending; otherwise 0 */
	const char *stop_reason; /* why --stop-at or --patience-epochs ends the run; NULL: no */
};

/* Returns the maximum size of the text for a client that requests at most `max_text` bytes. Every
 * client accepts WIRE_MIN_TEXT bytes. A client of protocol version 6, whose `max_text` is 0,
 * accepts no longer text. */
size_t status_max_text(uint32_t max_text);
/*
 * Returns the state of the run in at most `max_text` bytes, with its newest 20 epochs. If the text
 * would be longer, the function leaves out workers; "workers_left_out" is then the number of
 * workers that are not in the text.
 */
char *status_json(const struct status *s, size_t max_text);
/* Returns an object with only the fields "workers" and "workers_left_out" of the status, for the
 * workers from number `first` on, in at most `max_text` bytes. */
char *status_workers_json(const struct status *s, uint32_t first, size_t max_text);
/* Returns the status with all workers; the length of the text has no limit. */
char *status_whole_json(const struct status *s);
/* Returns the JSON line that cnn-ps prints at its end. */
char *status_result(const struct status *s);
/* Returns the state in Prometheus text format 0.0.4 (metrics.c). */
char *status_metrics(const struct status *s);
/* Returns how a run ended, in one word: "done", "drained", "diverged" or "aborted". */
const char *status_ending(int status);
/* Returns the name of an encoding as in --wire, or "" if it is NONE. */
const char *status_wire(enum encoding e);
/* Returns the reason why the server is degraded, or NULL if it is not. */
const char *status_degraded(const struct status *s);
/* Returns the state of a worker as a word: "quarantined" or "excluded" for an excluded worker,
 * "stalled" for a live worker that delivers nothing, otherwise the name of its session state, such
 * as "live" for SESSION_LIVE. */
const char *status_worker_state(const struct worker_view *w);
/* This array has the words that status_worker_state can return, except "free". */
#define STATUS_WORKER_STATES 8
extern const char *const status_worker_states[STATUS_WORKER_STATES];
/* Returns a rate in images/s with two digits after the point below 10, and as a whole number above:
 * a large network on a slow worker needs the digits, and 200 workers need short texts. */
json_t *status_rate(double images_per_s);
/* Returns how many seconds the server's main thread has spent on each activity since its start. */
json_t *status_time(const struct status *s);
/* Returns the name of a reason for which pushes are rejected (enum reject), in metrics and JSON. */
const char *status_reject_name(int reason);
/* Returns an object with the number of rejected pushes for each reason that has any. */
json_t *status_rejected_for(const struct core_stats *t);
/* Returns the resident memory of this process in bytes, without pages of files and of memory that
 * processes share. */
uint64_t status_rss(void);

#endif
