/*
 * core.h - the parameter server as a pure state machine: (state, event, now) -> effects.
 *
 * It opens no socket or file, reads no clock, starts no thread, draws no random number of its own,
 * and allocates nothing: all state lies in one block and one vector that the caller provides. The
 * shell (server/) turns packets into events and effects into packets; tests/sim does the same with
 * a seeded network and disk. The same events give the same effects and the same bytes of state.
 *
 * Order inside core_step: sessions (who speaks) -> ledger (exactly once) -> leases (batch ledger)
 * -> store and optim (weights) -> effects. The table at the top of core.c has a row for each
 * message type.
 *
 * Thread: the caller's; nothing locks.
 */
#ifndef SERVER_CORE_CORE_H
#define SERVER_CORE_CORE_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/msg.h"
#include "server/core/optim.h"

enum event_kind {
	EVENT_MESSAGE,     /* msg from peer; decoded, therefore well-formed */
	EVENT_PEER_GONE,   /* the shell could not reach peer */
	EVENT_TICK,        /* time passed; at least every 100 ms */
	EVENT_DURABLE,     /* snapshot `generation` is on disk */
	EVENT_SAVE_FAILED, /* it is not, and never will be: take another */
	EVENT_SAVE,        /* take a snapshot: the log is large or has failed */
	EVENT_DRAIN,       /* stop: last snapshot, tell everybody, finish */
	EVENT_PROGRESS,    /* `bytes` of peer's connection have moved since the last one, as the
			    * shell has seen, not as the peer says; after a tick of the same moment */
};

struct event {
	enum event_kind kind;
	uint32_t peer;         /* connection the message came on; never 0 */
	const struct msg *msg; /* EVENT_MESSAGE; borrowed for the call */
	uint64_t generation;   /* EVENT_DURABLE, EVENT_SAVE_FAILED */
	uint64_t bytes;        /* EVENT_PROGRESS */
	uint64_t held_ms;      /* EVENT_TICK: for so long since the last one, replies that wait for
				  the disk have got no further */
};

enum effect_kind {
	EFFECT_COMMIT, /* first of its step: the event must be durable before any message leaves
			  that says `durable_first`, of this step or of a later one */
	EFFECT_SEND,   /* msg to peer; slices point into the core's weights: encode before the next
			  step */
	EFFECT_SNAPSHOT,    /* serialise now (snapshot.h) and save as `generation`; at most one is
			    under way */
	EFFECT_STATUS,      /* answer peer's STATUS request with the shell's JSON */
	EFFECT_BEGIN,       /* the first work of this life is given out; without a data set: the
			     * first push is decided */
	EFFECT_EPOCH_BEGUN, /* first training lease of `epoch` in this life */
	EFFECT_TRAINED,     /* each batch of `epoch` is counted: its evaluation begins */
	EFFECT_EVALUATED,   /* the evaluation of `epoch` is complete */
	EFFECT_WORKER,      /* `change` of `worker`, after the messages that tell it */
	EFFECT_FINISH,      /* the run is over or drained and all is durable: `status` says how */
};

enum worker_change {
	WORKER_JOINED,
	WORKER_BACK,   /* after silence, or after a restart of the server */
	WORKER_SILENT, /* suspected */
	WORKER_GONE,
	WORKER_EXCLUDED,
	WORKER_STALLED,  /* it has not delivered, or not asked for work, for too long */
	WORKER_DELIVERS, /* it has, after all */
};

/*
 * With a log of events, what a message needs before it may leave. Most say that a push is decided,
 * that an incarnation or work was given, or that a worker may go: it would be wrong if the event
 * behind them were lost. Weights need the event that made them. The others need nothing, so an
 * operator reaches a server whose disk is full:
 *
 * - BEAT: it says what checkpoints hold;
 * - ERROR: it refuses or asks for a new HELLO, and a crash only makes its receiver ask again. A
 *   worker that ends because of one retains no push that was acknowledged: those ACKs had waited;
 * - STATUS, and the WELCOME of an observer: they show the moment, not the disk;
 * - ADMIN: of a checkpoint it comes when that is on disk; of a drain it says that it began.
 */
struct effect {
	enum effect_kind kind;
	int durable_first; /* SEND: after every event with EFFECT_COMMIT so far is durable */
	uint32_t peer;
	struct msg msg;
	uint64_t generation;
	uint32_t epoch, worker;
	enum worker_change change;
	int status; /* PS_EDONE, PS_ESHUTDOWN, PS_EDIVERGED */
};

/* What an epoch came to. */
struct epoch_record {
	uint64_t images,
		updates;    /* counted exactly once; images == n_train when the epoch has ended */
	double loss_sum;    /* of the applied pushes, per image */
	uint32_t eval_done; /* test images evaluated so far */
	uint32_t eval_correct;
	double eval_loss_sum;
	uint64_t end_ms; /* core time at which the epoch's training ended since this start; 0: not
			    in this life */
};

/* Counters for /metrics and /status; monotone within a run, saved in the snapshot. */
struct core_stats {
	uint64_t version;     /* of the weights */
	uint64_t updates;     /* steps of the optimizer; those of L-BFGS take several versions */
	uint64_t accepted;    /* pushes taken */
	uint64_t steps_short; /* sync: ended with fewer gradients than were due */
	uint64_t trials, backups;    /* points of line searches; copies of outstanding portions */
	uint64_t pushes, duplicates; /* decided, and seen again */
	uint64_t rejected[REJECT_REASONS];
	uint64_t superseded; /* results of work that another worker had delivered first, or of a
			      * step that had ended without them */
	uint64_t expired, stalls; /* grants past their deadline; workers that stalled */
	uint64_t refused;         /* messages answered by ERROR */
	uint64_t gaps;
	uint64_t images;                  /* counted, over all epochs */
	uint64_t pulls, leases, released; /* leases granted; batches given to another worker */
	uint64_t hellos, deaths, rejoins;
	uint64_t excluded;      /* workers, for pushes that were not finite */
	uint64_t recoveries;    /* starts from a snapshot */
	uint64_t uncompensated; /* delay compensation: gradients applied as they came, because
				   their weights were no longer held */
	uint64_t staleness_sum; /* over applied gradients */
	uint64_t staleness[16]; /* histogram: tau 0, 1, 2-3, 4-7, ... */
	uint64_t snapshots, save_failures;
	double loss; /* exponential mean of pushed losses, weight 0.02 */
};

enum session_state {
	SESSION_FREE,    /* slot never used */
	SESSION_JOINING, /* HELLO taken; WELCOME waits for the snapshot that holds its incarnation
			  */
	SESSION_LIVE,
	SESSION_SUSPECT, /* no beat for suspect_ms: its leases are given away, nothing else */
	SESSION_AWAY,    /* known from a snapshot, not heard of in this term; kept for
			    forget_ms */
	SESSION_DEAD,    /* no beat for dead_ms, or said BYE: the slot may be reused once all is
			    durable */
};

/* One worker, for display. */
struct worker_view {
	enum session_state state;
	int excluded; /* see quarantine.c */
	uint32_t worker, incarnation;
	const char *name, *device;
	uint64_t last_seq, durable_seq, images, last_message_ms;
	int stalled;      /* live, and has delivered nothing for longer than it may (pace.h) */
	uint32_t peer;    /* its connection; 0: none */
	uint64_t owes_ms; /* it holds work for so long, or since its last delivery */
};

/* Work for display: the counters show that of a pass or step only when it ends. */
struct work_view {
	uint64_t computed; /* images of all pushes taken since this start */
	uint64_t push_ms;  /* core time of the newest decided push since this start; 0: none */
	uint64_t images;   /* counted, with those of the pass or step under way */
	uint32_t pass;     /* sandblaster: pass of the step under way, from 1; other modes: 0 */
};

/* What holds up training, for display. */
enum hold_up {
	HOLD_UP_NONE,
	HOLD_UP_WORKERS, /* fewer workers of the run's data set than `needed` are live */
	HOLD_UP_RETURN,  /* after a restart: until `needed` workers are back, or for `left_ms` */
};
struct hold_up_view {
	enum hold_up kind;
	uint32_t live, needed;
	uint32_t joining;    /* workers whose slot is not on disk yet */
	uint32_t others;     /* live workers of another data set: they get no work */
	uint64_t other_data; /* its fingerprint, of the first of them */
	uint64_t left_ms;    /* RETURN */
};

struct core; /* opaque, see state.h */

/* Bytes of memory that core_init needs for `cfg` (n_params and max_workers decide). */
size_t core_bytes(const struct core_config *cfg);
/* A fresh run. `memory`: core_bytes. `weights`: n_params floats, the initial ones; from now on the
 * core changes them in place. Both aligned to 64, the caller's to free. */
struct core *core_init(void *memory, const struct core_config *cfg, float *weights);
/* The next gradient to be applied writes its weights to `buffer` (n_params floats, aligned to 64)
 * and leaves the present ones as they are: somebody still reads them. From then on core_weights is
 * `buffer` and the old ones are the caller's. NULL takes back a loan that was not used. */
void core_lend(struct core *c, float *buffer);
/* One event. The effects are read with core_effect before the next step. `now_ms` never goes back.
 */
void core_step(struct core *c, const struct event *ev, uint64_t now_ms);
/*
 * core_step in two parts, for a shell that processes the new weights while the caches hold them.
 * core_decide takes the event and leaves the effects. If it decided an update of the weights, their
 * values do not exist yet: call core_compute until it returns 0, before anything else but
 * core_effect. Until then the message of the event must stay as it is. core_compute computes the
 * next block, in ascending order, sets *values to its first and returns the number of its values.
 * An update of L-BFGS has no blocks: core_decide computes it.
 */
void core_decide(struct core *c, const struct event *ev, uint64_t now_ms);
size_t core_compute(struct core *c, const float **values);
/* The i-th effect of the last step, or NULL past the end. */
const struct effect *core_effect(const struct core *c, size_t i);

const struct core_config *core_config(const struct core *c);
const struct core_stats *core_stats(const struct core *c);
/* The current weights (n_params floats) and their version; valid until the next step. */
const float *core_weights(const struct core *c);
/* Epoch `e`'s record, or NULL past cfg.training.epochs. */
const struct epoch_record *core_epoch(const struct core *c, uint32_t e);
/* Epoch under way, from 0; == cfg.training.epochs when all are done. */
uint32_t core_training_epoch(const struct core *c);
/* How the run ends (PS_EDONE, PS_ESHUTDOWN, PS_EDIVERGED) when only its last snapshot is left to
 * do; 0: it trains, waits for a recovery, or is over. */
int core_ending(const struct core *c);
/* Data set of the run; all zero while no live worker has one. */
const struct data_id *core_data(const struct core *c);
/* 1: no worker can change it any more. */
int core_data_is_fixed(const struct core *c);
/* Slot i's worker (0 <= i < max_workers) into *v. */
void core_worker(const struct core *c, uint32_t i, struct worker_view *v);
/* Those that are stalled are none of them. */
uint32_t core_live_workers(const struct core *c);
/* view.c */
void core_work(const struct core *c, struct work_view *v);
void core_hold_up(const struct core *c, struct hold_up_view *v);

#endif
