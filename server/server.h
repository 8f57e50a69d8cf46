/*
 * server.h - the shell around the core. A libuv loop turns packets, timers, signals and written
 * files into events of the core, and the effects of the core into packets, files and log lines.
 *
 * The program calls server_start, which binds the ports, resumes or begins the run, and writes the
 * first checkpoint. Next, the program calls server_run, which returns after EFFECT_FINISH or at a
 * deadline. Last, the program calls server_stop, which prints the result and returns the exit code.
 * All state is in struct server, which main owns.
 *
 * Invariants:
 * (1) the server reads no message before the term of this start is on disk (asserted by
 *     dispatch_message in dispatch.c);
 * (2) the core gets one event at a time, and the server carries out all effects of an event before
 *     the next event (asserted by dispatch in dispatch.c);
 * (3) the wait for the clients to close their connections has a deadline (asserted by
 *     check_session_close);
 * (4) with the write-ahead log, the server sends a reply that reports a decision only after the
 *     events that led to the decision are on disk (asserted by replies_flush in net/net.c;
 *     test_nothing_acknowledged_is_lost_when_all_are_killed_together).
 *
 * Promises:
 * (1) the other waits at the end of the server have a deadline, too: a drain, and the wait for a
 *     disk that fails (an_end_without_disk_is_bounded, tests/fault/test_disk.py).
 *
 * Only the main thread, which runs the loop, may call these functions.
 */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H
#include <stdint.h>
#include <uv.h>
#include "common/clock.h"
#include "common/endpoint.h"
#include "common/err.h"
#include "common/pool.h"
#include "common/reminder.h"
#include "server/net/clients.h"
#include "server/net/line_budget.h"
#include "server/durability/wal.h"
#include "server/auth/auth.h"
#include "server/monitor/history.h"
#include "server/monitor/membership.h"
#include "server/monitor/http.h"
#include "server/net/net.h"
#include "server/config/options.h"
#include "server/monitor/progress.h"
#include "server/monitor/tallies.h"
#include "server/monitor/timings.h"
#include "server/durability/startup.h"
#include "server/durability/checkpointer.h"
#include "server/durability/epoch_export.h"
#include "server/durability/disk_wait.h"
#include "server/net/transfers.h"
#include "server/monitor/waiting.h"
#include "server/monitor/wall.h"
#include "server/monitor/warnings.h"

#define SERVER_SIGNALS 4

struct server {
	const struct options *options;
	uv_loop_t loop;
	uv_timer_t tick, memory_check;
	uv_signal_t signal[SERVER_SIGNALS];
	struct startup state;
	char bind[ENDPOINT_TEXT]; /* --bind, with its host name replaced by an address */
	struct auth *auth;        /* NULL: the server has no keys */
	struct router *router;
	/* page-locked memory for pushes; NULL: without --store cuda:N */
	struct pool *copies;
	/* path of the socket of shared-memory lanes; NULL: there is none */
	const char *lane_file;
	struct checkpointer *checkpointer; /* NULL: no checkpoints */
	struct wal *wal;                   /* NULL: no write-ahead log */
	/* LSN of the newest event with EFFECT_COMMIT; messages that report decisions wait for it */
	uint64_t committed_lsn;
	struct disk_wait disk;
	/* time of the newest EVENT_SAVE, which requests a snapshot for the write-ahead log */
	uint64_t request_ms;
	struct http *http; /* NULL: the server has no --http */
	char http_token[HTTP_TOKEN];
	/* time at which the last checkpoint of a drain failed for the first time; 0: it has not
	 * failed */
	uint64_t unsaved_ms;
	struct line_budget lines; /* limits the log lines about each worker */
	struct membership membership;
	struct transfers transfers;
	struct labels *labels;
	struct admission admission;
	/* the clock of dispatch_now, which does not advance while the process is stopped */
	struct awake awake;
	struct progress progress;
	struct tallies tallies;
	struct history *history;
	struct epoch_export *epoch_export; /* NULL: the run has no --keep */
	struct wall wall;
	struct timings timings;
	int dispatching; /* 1: dispatch is handling an event or carrying out its effects */
	/* results of clock_seconds and clock_thread_seconds when the loop started */
	double begin_s, begin_cpu_s;
	/* time in s that the core took, including the computation of the weights */
	double apply_s;
	struct warnings warnings;
	struct waiting waiting;
	/* dropped: number of messages that were dropped because too much waited for the disk
	 * (dispatch.c) */
	struct {
		uint64_t dropped, since_ms;
		struct reminder reminder;
	} flood;
	struct observers observers;

	int status;         /* PS_E*: how the run ended; 0: it has not ended */
	uint64_t finish_ms; /* time at which the run ended */
	int stops;          /* 1: the run is ending because of --stop-at or --patience-epochs */
	char stop_reason[STOP_TEXT]; /* why, if `stops` is 1 */
	int draining;                /* 1: a signal has begun a drain */
	/* time at which the server ends without waiting any longer; 0: the end has no deadline */
	uint64_t deadline_ms;

	/* 1: stop this server and start it again with the options `next` (--input auto) */
	int restarts;
	struct options next;

	uint64_t memory_bytes; /* limit of the memory of this process */
	/* time at which all connections were last closed to free memory; 0: the memory is below its
	 * limit again */
	uint64_t closed_ms;
};

/* Blocks the signals that the server handles until server_start has installed their handlers. A
 * signal that arrives in the meantime is handled later and does not kill the process. Call this
 * function before server_start. */
void server_hold_signals(void);
/* Starts the server: binds the ports, resumes or begins the run, writes the first checkpoint. If
 * server_start fails, it releases *s. */
int server_start(struct server *s, const struct options *o, struct err *e) PS_MUST_CHECK;
void server_run(struct server *s);
/* Called after server_run. Returns 1 if the server must start again for other images
 * (server/config/images.h). Before it returns 1, the function releases *s, and writes the options
 * of the next server_start to *o. In these options, --bind and --http name the addresses to which
 * *s was bound; the buffers `bind` and `http` hold the two texts. */
int server_restarts(
	struct server *s, struct options *o, char bind[ENDPOINT_TEXT], char http[ENDPOINT_TEXT]);
/* Closes the network, prints the result on stdout and releases everything. Returns the exit code.
 * Sets *is_blocked to 1 if a file operation hangs on a thread of the pool. If *is_blocked is 1, the
 * function has released no memory, and the caller must end the process with _exit. */
int server_stop(struct server *s, int *is_blocked);

#endif
