/*
 * state.h - the state of the core: one struct of each module. For the files of server/core only.
 *
 * Everything but the weights lies in the one block given to core_init: the struct, then the arrays
 * that its pointers name. Nothing here is ever allocated or freed.
 *
 * The modules are layers. A file calls those above it in this list, never one below it
 * (tests/lint/symbols.sh); a lower one returns a value or sets a flag that a higher one acts on.
 *
 *   vec, optim             arithmetic
 *   workers, effects       the table of slots; what a step says
 *   run, pace, early, batch_ledger  has it begun, what is late, which batches are counted
 *   store, backups         weights, and older weights
 *   departure              how workers leave
 *   accumulator, lbfgs, downpour, ssp, sync, sandblaster
 *   leases, dataset        who computes what
 *   sessions, ledger       one message each
 *   core                   the step, pulls
 *   layout, view, snapshot birth, display, bytes
 */
#ifndef SERVER_CORE_STATE_H
#define SERVER_CORE_STATE_H
#include "server/core/accumulator.h"
#include "server/core/backups.h"
#include "server/core/batch_ledger.h"
#include "server/core/core.h"
#include "server/core/early.h"
#include "server/core/effects.h"
#include "server/core/lbfgs.h"
#include "server/core/pace.h"
#include "server/core/run.h"
#include "server/core/store.h"
#include "server/core/workers.h"

/* Sandblaster: the step under way. */
struct blaster {
	uint32_t first, end; /* its portions */
	int open;            /* passes are made */
	uint32_t pass;       /* of the step since this start, from 1; for display */
};

/* Sync: the step under way. */
struct step {
	int open;
	uint32_t first, end; /* its batches lie there; others there are done */
	uint32_t due;        /* gradients that end it */
	uint64_t begin_ms;
};

#define CORE_MAX_ADMINS 8

struct rules; /* modes.h */

struct core {
	struct core_config cfg;
	const struct rules *rules; /* of the mode */
	struct core_stats stats;
	struct data_id data;
	int data_fixed; /* by a contribution: see dataset.c */
	struct worker *worker;
	struct leases leases;
	struct early early;
	struct store store;
	struct epoch_record *epoch;
	struct gradient_accumulator accumulator;
	struct fleet_pace pace;
	struct blaster blaster;
	struct backups backups;
	struct step step;
	struct lbfgs lbfgs;

	/* snapshots */
	uint64_t generation; /* newest one started */
	int saving;
	int save_failing;     /* the newest one that ended did not reach the disk */
	int urgent;           /* one is wanted whatever checkpoint_ms says */
	int dirty;            /* something happened that the newest one does not hold */
	uint64_t snapshot_ms; /* start of the newest one */
	struct {
		uint32_t peer;
		uint64_t generation;
	} admin[CORE_MAX_ADMINS]; /* owed an answer when the generation is durable */

	/* life */
	int started;            /* min_workers have been live at once */
	int recovering;         /* from a snapshot: no new lease yet */
	uint64_t recover_by_ms; /* 0: not set yet */
	enum ending ending;
	int end_status;
	uint64_t now_ms;

	/* for display; since this start, never saved */
	uint64_t computed;      /* images of the pushes taken */
	uint64_t push_ms;       /* the newest one was decided; 0: none was */
	int begun, epoch_begun; /* EFFECT_BEGIN and EFFECT_EPOCH_BEGUN have been told */

	/* the push of this step that also pulls: its answer waits for the weights after the step */
	struct {
		struct worker *worker; /* NULL: there is none */
		uint64_t request;
		struct msg_ack ack;
	} pulling;

	struct say said; /* text of this step's refusal, if it names values */

	struct effect *effect; /* the first is the EFFECT_COMMIT */
	size_t n_effects, max_effects;
	int commits; /* this step has it */
};

/* layout.c: lay out the block and clear it; weights are the caller's to fill. */
struct core *core_place(void *memory, float *weights, const struct core_config *cfg);

#endif
