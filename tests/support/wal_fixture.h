/*
 * wal_fixture.h - a server's core and write-ahead log without sockets. The log is in a temporary
 * directory, and the disk can fail (failing_disk.h). The test runs the event loop.
 */
#ifndef TESTS_SUPPORT_WAL_FIXTURE_H
#define TESTS_SUPPORT_WAL_FIXTURE_H
#include "tests/support/capture.h"
#include "common/checkpoint.h"
#include "common/generation.h"
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
	/* seq: the worker's newest push; newest: the LSN of the log's newest record */
	uint64_t seq, newest;
	unsigned done; /* the number of calls of wal_config.done */
};

extern struct wal_fixture wal;

/* The run has one worker, and checkpoint 1. */
int wal_set_up(void **state);
int wal_tear_down(void **state);
/* A callback for wal_config.done that counts its calls. */
void wal_on_done(void *arg);

/* ---- events --------------------------------------------------------------------------------- */

/* Append an event to the log, and step the core with it. `f`: the frames of its message, or
 * NULL. */
void wal_event(const struct event *ev, struct frames *f);
/* As wal_event, for a message. The message is encoded and decoded as on the network. */
void wal_receive(uint32_t peer, const struct msg *m);
/* Receive `n` pushes of ones. */
void wal_push(int n);
void wal_tick(void);
/* Flush the log, and wait until the pool is idle. */
void wal_settle(void);

/* ---- checkpoints ---------------------------------------------------------------------------- */

/* Write a checkpoint of the core. The write must succeed. */
void wal_save(uint64_t generation);
/* Let the core begin a snapshot. */
void wal_begin_snapshot(void);
/* 1: the snapshot is durable now; 0: its checkpoint has failed. */
void wal_saved(int ok);
/* Begin a snapshot, write its checkpoint, and report it as durable. */
void wal_snapshot(void);
/* Make `n` snapshots whose checkpoints fail, with pushes between them. */
void wal_failing_snapshots(int n);

/* ---- the directory -------------------------------------------------------------------------- */

/* A start from the directory must restore the state of the core. */
void wal_assert_recovers(int accept_loss);
/* Start from the directory. Returns the number of pushes in the restored weights. The status of
 * the start goes to *rc. */
int wal_recovered_pushes(int accept_loss, int *rc);
unsigned wal_count_files(void);

#endif
