/*
 * state.h - struct core: the structs of the modules, and the fields of core.c. For the files of
 * server/core only.
 *
 * The caller of core_init provides one block of memory. The block holds everything except the
 * weights: struct core, then the arrays that its pointers refer to. The core allocates nothing.
 *
 * The modules are layers: docs/architecture.md lists them. A lower layer that must cause something
 * in a higher one returns a value or sets a flag, and the higher layer acts on it.
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
#include "server/core/sandblaster.h"
#include "server/core/store.h"
#include "server/core/sync.h"
#include "server/core/workers.h"

#define CORE_MAX_ADMINS 8

struct rules; /* modes.h */

struct core {
	struct core_config cfg;
	const struct rules *rules; /* the functions of the run's mode */
	struct core_stats stats;
	struct data_id data;
	int data_fixed; /* 1: a contribution has fixed the data set (dataset.c) */
	struct worker *worker;
	struct leases leases;
	struct early early;
	struct store store;
	struct epoch_record *epoch;
	struct gradient_accumulator accumulator;
	struct fleet_pace pace;
	struct sandblaster sandblaster;
	struct backups backups;
	struct sync sync;
	struct lbfgs lbfgs;

	/* snapshots */
	uint64_t generation; /* number of the newest snapshot that was started */
	int saving;
	int save_failing;     /* 1: the newest completed attempt to save a snapshot failed */
	int urgent;           /* 1: a snapshot is due, whatever --checkpoint-ms says */
	int dirty;            /* 1: the state has changed since the newest snapshot */
	uint64_t snapshot_ms; /* time at which the newest snapshot was started */
	struct {
		uint32_t peer;
		uint64_t generation;
		/* requests that the core answers when their generation is durable */
	} admin[CORE_MAX_ADMINS];

	/* life */
	int started; /* 1: min_workers workers have been live at the same time */
	/* 1: the server has started from a snapshot and grants no lease yet */
	int recovering;
	uint64_t recover_by_ms; /* when the recovery ends at the latest; 0: not set yet */
	enum ending ending;
	int end_status;
	uint64_t now_ms;

	/* for display only: since this start of the server, and in no snapshot */
	uint64_t computed;      /* images of the accepted pushes */
	uint64_t push_ms;       /* when the newest push was decided; 0: none was */
	int begun, epoch_begun; /* 1: the core has emitted EFFECT_BEGIN, EFFECT_EPOCH_BEGUN */

	/* The push of this step that also requests weights. Its answer waits for the weights that
	 * the step makes. */
	struct {
		struct worker *worker; /* NULL: this step has no such push */
		uint64_t request;
		struct msg_ack ack;
	} pulling;

	struct say said; /* buffer for the text of this step's refusal, if numbers are inserted */

	struct effect *effect; /* effect[0] is always EFFECT_COMMIT */
	size_t n_effects, max_effects;
	int commits;       /* 1: this step emits EFFECT_COMMIT */
	int sends_weights; /* 1: this step sends the current weights */
};

/* layout.c: lays out the block and clears it. The caller fills in the weights. */
struct core *core_place(void *memory, float *weights, const struct core_config *cfg);

#endif
