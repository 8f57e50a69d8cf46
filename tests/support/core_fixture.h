/*
 * core_fixture.h - a server core for tests, driven by one event at a time.
 *
 * The fixture fills the core's memory with 0xa5 before the core uses it, so that a test finds reads
 * of uninitialized state. After each step the fixture checks that every message has a receiver,
 * that at most one snapshot is in progress, and that the invariants of the core hold.
 */
#ifndef TESTS_SUPPORT_CORE_FIXTURE_H
#define TESTS_SUPPORT_CORE_FIXTURE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "common/rng.h"
#include "server/core/core_state.h"
#include "server/core/snapshot.h"
#include "server/core/workers.h"
#include "tests/support/core_config.h"
#include "tests/support/core_invariants.h"

/* the fingerprint of a data set of 35 training images and 7 test images */
extern const struct data_id fixture_data;
extern const float fixture_ones[FIXTURE_PARAMS]; /* a gradient of 1 at every coordinate */

struct core_fixture {
	struct core_config cfg;
	void *memory;
	struct core *core;
	uint64_t now_ms;
	uint64_t saving;           /* generation of the snapshot in progress; 0: none */
	struct core_values values; /* the weights after the last step (core_invariants.h) */
	struct core *twin;         /* a second core that receives the same events; NULL: none */
	/* the value of `next_buffer` in each event for `core`; events for `twin` have NULL there,
	 * so `twin` overwrites its weights in place */
	float *next_buffer;
};

/* ---- life cycle ----------------------------------------------------------------------------- */

/* Returns the size of the core's memory, including the weights at its end. */
size_t fixture_bytes(const struct core_config *cfg);
/* Allocate the core's memory, and fill it with 0xa5. The caller frees it. */
void *fixture_memory(const struct core_config *cfg);
float *fixture_weights(void *memory, const struct core_config *cfg);
void fixture_open(struct core_fixture *f, struct core_config cfg);
/* Open a core, join worker 1 on connection 9, and apply `n` pushes. The last durable snapshot is
 * the one before the worker's WELCOME, so no push of the worker is durable. */
struct stamp fixture_open_with_pushes(struct core_fixture *f, struct core_config cfg, uint64_t n);
void fixture_close(struct core_fixture *f);
/* Sets weight `i` between two steps. The next check of the invariants accepts this change. */
void fixture_set_weight(struct core_fixture *f, size_t i, float value);

/* ---- events --------------------------------------------------------------------------------- */

void fixture_step(struct core_fixture *f, const struct event *ev);
void fixture_message(struct core_fixture *f, uint32_t peer, const struct msg *m);
void fixture_tick(struct core_fixture *f, uint64_t ms);
void fixture_gone(struct core_fixture *f, uint32_t peer);
/* Send EVENT_DURABLE or EVENT_SAVE_FAILED for the snapshot in progress. */
void fixture_saved(struct core_fixture *f, enum event_kind kind);
void fixture_durable(struct core_fixture *f);

/* ---- effects of the last event -------------------------------------------------------------- */

size_t fixture_count(const struct core_fixture *f, enum effect_kind kind);
const struct effect *fixture_effect(const struct core_fixture *f, enum effect_kind kind);
/* Returns the first message of this type that the last event sent to `peer`, or NULL. */
const struct msg *fixture_sent(const struct core_fixture *f, uint32_t peer, enum msg_type type);
/* Check that the last event sent a single message: ERROR with `status` to `peer`. */
void fixture_refused(const struct core_fixture *f, uint32_t peer, int status);
/* Check that the last event sent no message, and that the run has not ended. */
void fixture_silent(const struct core_fixture *f);
struct worker_view fixture_worker(const struct core_fixture *f, uint32_t id);

/* ---- messages of a worker ------------------------------------------------------------------- */

struct msg fixture_hello(const char *name);
struct msg fixture_resume(struct stamp s, uint64_t last_seq, uint64_t durable_seq);
/* Send HELLO, and complete snapshots until the server sends WELCOME. Returns the worker's stamp. */
struct stamp fixture_join(struct core_fixture *f, uint32_t peer, const char *name);
/* Resume the session with the stamp `s`. The server must answer HELLO with WELCOME. Returns the
 * stamp in this WELCOME. */
struct stamp fixture_come_back(
	struct core_fixture *f, uint32_t peer, struct stamp s, uint64_t last_seq);

/* Returns a push without a batch and without any tensor, so that its gradient is zero. */
struct msg fixture_push(struct stamp s, uint64_t seq);
void fixture_slice(struct msg *m, uint64_t offset, uint64_t count, const float *g);
/* Returns a push whose gradient is 1 at every coordinate. With plain SGD, such a push decreases
 * each weight by the learning rate. */
struct msg fixture_push_ones(struct stamp s, uint64_t seq);
/* Set the batches of a push, and the number of their images in the data set of fixture_training. */
void fixture_work(struct msg *m, uint32_t epoch, uint32_t first, uint32_t count);
/* Returns the push that fixture_push_ones makes, with the batches that fixture_work sets. */
struct msg fixture_batch(
	struct stamp s, uint64_t seq, uint32_t epoch, uint32_t first, uint32_t count);
/* Send a push. The answer must be an ACK or, if the push also pulls, PARAMS that contain an ACK.
 * Returns the ACK. */
struct msg_ack fixture_acked(struct core_fixture *f, uint32_t peer, const struct msg *m);
void fixture_applied(struct core_fixture *f, uint32_t peer, const struct msg *m);
/* Send the push that fixture_push_ones makes from peer 9. The server must apply the push. */
void fixture_apply_ones(struct core_fixture *f, struct stamp s, uint64_t seq);
void fixture_rejected(struct core_fixture *f, uint32_t peer, const struct msg *m, enum reject why);

void fixture_lease(struct core_fixture *f, uint32_t peer, struct stamp s, uint64_t request);
/* Returns the grant that the last event sent to `peer`, or NULL. */
const struct msg_grant *fixture_granted(const struct core_fixture *f, uint32_t peer);
/* Request a lease. The server must answer with a grant. Returns this grant. */
struct msg_grant fixture_grant(
	struct core_fixture *f, uint32_t peer, struct stamp s, uint64_t request);
/* Does the same as fixture_grant, but the grant must be training work. */
struct msg_grant fixture_train(
	struct core_fixture *f, uint32_t peer, struct stamp s, uint64_t request);
void assert_work(const struct msg_grant *g, uint32_t epoch, uint32_t first, uint32_t count);

void fixture_heartbeat(struct core_fixture *f, uint32_t peer, struct stamp s);
void fixture_pull(struct core_fixture *f, uint32_t peer, struct stamp s, enum weights which);
void fixture_bye(struct core_fixture *f, uint32_t peer, struct stamp s);
/* Request the end of the run, as SIGTERM does. */
void fixture_drain(struct core_fixture *f);
/* Drain the run because it has met its stop rule. */
void fixture_meet_rule(struct core_fixture *f);
void fixture_admin(struct core_fixture *f, uint32_t peer, enum admin_verb verb);

/* ---- snapshots ------------------------------------------------------------------------------ */

struct core_snapshot {
	unsigned char *data[SNAPSHOT_SECTIONS];
	size_t size[SNAPSHOT_SECTIONS];
};

/* Encode the state of the core. fixture_drop frees the snapshot. */
struct core_snapshot fixture_save(const struct core_fixture *f);
void fixture_drop(struct core_snapshot *snapshot);
/* Decode a snapshot into fresh memory. Returns the status of the decoder. If the status is not
 * PS_OK, *why is the reason. */
int fixture_read(struct core_fixture *f, struct core_config cfg,
	const struct core_snapshot *snapshot, const char **why);
/* Start a server of the next term from a snapshot, which must be valid. */
void fixture_load(
	struct core_fixture *f, struct core_config cfg, const struct core_snapshot *snapshot);
/* Kill the server, and start it from a snapshot of this moment. */
void fixture_restart(struct core_fixture *f);

#endif
