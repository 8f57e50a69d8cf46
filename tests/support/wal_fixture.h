/*
 * wal_fixture.h - a server's core and write-ahead log without sockets. The log is in a temporary
 * directory, and the disk can fail (failing_disk.h). The test runs the event loop.
 */
#ifndef TESTS_SUPPORT_WAL_FIXTURE_H
#define TESTS_SUPPORT_WAL_FIXTURE_H
#include "tests/support/capture.h"
#include "common/checkpoint.h"
#include "common/generation.h"
#include "common/keys.h"
#include "server/durability/wal.h"
#include "tests/support/core_fixture.h"
#include "tests/support/failing_disk.h"
#include "tests/support/temp_dir.h"

struct wal_fixture {
	char dir[64];
	uv_loop_t loop;
	struct core_fixture f;
	struct wal *wal;
	struct wire *wire;
	struct stamp stamp; /* the stamp of the only worker */
	/* seq: the seq of the worker's newest push; newest: the LSN of the newest record of the
	 * log */
	uint64_t seq, newest;
	unsigned done;      /* how often the log has called wal_config.done */
	char key[KEY_TEXT]; /* the key of the connections; "": the server has no keys */
};

extern struct wal_fixture wal;

/* Start a run that has one worker and checkpoint 1. */
int wal_set_up(void **state);
int wal_tear_down(void **state);
/* A callback for wal_config.done that counts its calls. */
void wal_on_done(void *arg);

/* ---- events --------------------------------------------------------------------------------- */

/* Append an event to the log, and give it to the core. If the event is a message, `f` has the
 * frames of this message; otherwise `f` is NULL. */
void wal_event(const struct event *ev, struct frames *f);
/* Do the same as wal_event, for the message `m` from `peer`. The fixture encodes and decodes the
 * message, as the network does. */
void wal_receive(uint32_t peer, const struct msg *m);
/* Receive `n` pushes from the worker, each with a gradient of 1 at every coordinate. */
void wal_push(int n);
void wal_tick(void);
/* Flush the log, and wait until the thread pool has finished all writes. */
void wal_settle(void);

/* ---- checkpoints ---------------------------------------------------------------------------- */

/* Write a checkpoint of the core. The write must succeed. */
void wal_save(uint64_t generation);
/* Make the core begin a snapshot. */
void wal_begin_snapshot(void);
/* Report the end of the snapshot to the core and the log. ok = 1: the checkpoint of the snapshot is
 * durable; 0: the checkpoint has failed. */
void wal_saved(int ok);
/* Begin a snapshot, write its checkpoint, and report it as durable. */
void wal_snapshot(void);
/* Make `n` snapshots whose checkpoints fail, and pushes between these snapshots. */
void wal_failing_snapshots(int n);

/* ---- the directory -------------------------------------------------------------------------- */

/* Check that a start from the directory restores the current state of the core. accept_loss = 1:
 * start with --accept-rollback. */
void wal_assert_recovers(int accept_loss);
/* Start a server from the directory. Returns the number of pushes that the restored weights
 * contain, and writes the status of the start to *rc. */
int wal_recovered_pushes(int accept_loss, int *rc);
unsigned wal_count_files(void);

#endif
