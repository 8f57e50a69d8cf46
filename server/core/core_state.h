/*
 * core_state.h - defines struct core, which has the state of all modules and the fields that
 * several modules use. The state of a core is one block: struct core contains the structs of the
 * modules, so this header includes theirs. Only tests and files of server/core include this header.
 * A file that uses a module also includes the header of this module (tests/lint/modules.py).
 *
 * The caller of core_init provides one block of memory. The block holds everything except the
 * weights: struct core, then the arrays that its pointers refer to. The core allocates nothing.
 *
 * The modules form layers, which docs/architecture.md lists. A lower layer that must cause
 * something in a higher one returns a value or sets a flag, and the higher layer acts on it.
 */
#ifndef SERVER_CORE_CORE_STATE_H
#define SERVER_CORE_CORE_STATE_H
#include "server/core/accumulator.h"
#include "server/core/backups.h"
#include "server/core/batch_ledger.h"
#include "server/core/blocks.h"
#include "server/core/checkpoints.h"
#include "server/core/checks.h"
#include "server/core/core.h"
#include "server/core/dataset.h"
#include "server/core/downpour.h"
#include "server/core/effects.h"
#include "server/core/later_epochs.h"
#include "server/core/lbfgs.h"
#include "server/core/ledger.h"
#include "server/core/norms.h"
#include "server/core/pace.h"
#include "server/core/quarantine.h"
#include "server/core/run.h"
#include "server/core/sandblaster.h"
#include "server/core/store.h"
#include "server/core/sync.h"
#include "server/core/tensors.h"

struct rules;  /* defined in modes.h */
struct worker; /* defined in workers.h */

struct core {
	struct core_config cfg;
	const struct rules *rules; /* the functions of the run's mode */
	uint64_t now_ms;           /* core time of this step */
	struct core_stats stats;
	struct epoch_record *epoch; /* array with the results of each epoch */

	struct dataset dataset;
	struct tensors tensors;
	struct run run;
	struct worker *worker;
	/* the number of slots up to the last one that a worker has used; a loop that concerns no
	 * unused slot ends here */
	uint32_t n_slots;
	struct leases leases;
	struct ledger ledger;
	struct later_epochs later;
	struct blocks blocks; /* how the vector operations are divided into blocks */
	struct store store;
	struct gradient_accumulator accumulator;
	struct fleet_pace pace;
	struct downpour downpour;
	struct sandblaster sandblaster;
	struct backups backups;
	struct sync sync;
	struct lbfgs lbfgs;
	struct checkpoints checkpoints;
	struct quarantine quarantine;
	struct checks checks;
	struct effects effects;
	struct electorate *electorate;
	/* the last member, so that core_place can leave out its end when it clears struct core */
	struct fleet_norms norms;
};

#endif
