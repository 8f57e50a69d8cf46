/*
 * server.h - the shell around the core: a libuv loop that turns packets, time, signals and written
 * files into events, and effects into packets, files and log lines.
 *
 * Life: server_start (bind, resume or begin, first checkpoint) -> server_run (until EFFECT_FINISH or
 * a deadline) -> server_stop (result, exit code). All state is in struct server, which main owns.
 *
 * Invariants:
 * (1) no message is read before the term of this start is on disk;
 * (2) events reach the core one at a time, and all effects of one are carried out before the next;
 * (3) every wait has a deadline: the session close, a drain, a disk that fails at the end;
 * (4) with the write-ahead log, a reply that promises something leaves after its event is on disk.
 * Thread: main, which is the loop.
 */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H
#include <stdint.h>
#include <uv.h>
#include "common/clock.h"
#include "common/endpoint.h"
#include "common/err.h"
#include "server/net/clients.h"
#include "server/durability/wal.h"
#include "server/auth/auth.h"
#include "server/monitor/membership.h"
#include "server/monitor/http.h"
#include "server/net/net.h"
#include "server/config/options.h"
#include "server/monitor/progress.h"
#include "server/durability/startup.h"
#include "server/durability/checkpointer.h"
#include "server/durability/disk_wait.h"
#include "server/net/transfers.h"
#include "server/monitor/waiting.h"
#include "server/monitor/warnings.h"

#define SERVER_SIGNALS 4

struct server {
	const struct options *options;
	uv_loop_t loop;
	uv_timer_t tick, memory_check;
	uv_signal_t signal[SERVER_SIGNALS];
	struct startup state;
	char bind[ENDPOINT_TEXT]; /* --bind, with an address instead of a name */
	struct auth *auth;        /* NULL: no keys */
	struct router *router;
	struct checkpointer *checkpointer; /* NULL: no checkpoints */
	struct wal *wal;                   /* NULL: no write-ahead log */
	uint64_t committed_lsn;            /* of the newest event that a message may report */
	struct disk_wait disk;
	uint64_t asked_ms;   /* newest request for a snapshot that the log needs */
	struct http *http;   /* NULL: off */
	uint64_t unsaved_ms; /* since then the last checkpoint of a drain fails; 0: it does not */
	int data_logged;     /* the log has the run's data set */
	struct membership membership;
	struct transfers transfers;
	struct labels *labels;
	struct admission admission;
	struct awake awake; /* the time that counts: dispatch_now */
	struct progress progress;
	struct warnings warnings;
	struct waiting waiting;
	struct observers observers;

	int status;           /* PS_E*: how the run ended; 0: it has not */
	uint64_t finish_ms;   /* when it did */
	int draining;         /* by a signal */
	uint64_t deadline_ms; /* of the end of the run; 0: none */

	uint64_t memory_bytes; /* limit of this process */
	uint64_t closed_ms;    /* when all connections were closed to free memory; 0: not lately */
};

/* *s is released when this fails. */
int server_start(struct server *s, const struct options *o, struct err *e) PS_MUST_CHECK;
void server_run(struct server *s);
/* Close the network, print the result on stdout and release everything; returns the exit code.
 * *hung: a file operation hangs on a thread of the pool, and no memory was released: end by _exit. */
int server_stop(struct server *s, int *hung);

#endif
