/*
 * core.h - the parameter server as a pure state machine: (state, event, now) -> effects.
 *
 * The core opens no socket or file, reads no clock, starts no thread, draws no random number of its
 * own, and allocates nothing. All its state lies in one block of memory and one vector of weights,
 * which the caller provides. With a device (core_config.device), the state of the optimizer lies in
 * the memory of the device instead. If the device defers the weights (`defers` in
 * common/param_device.h), only the device has the newest weights until the core fetches them. The
 * core calls nothing outside itself except that device and the engine (below), which the caller may
 * pass in. The shell (server/) turns packets into events, and effects into packets. tests/sim does
 * the same with a simulated network and disk, whose random choices come from a seed. Two cores that
 * get the same events have the same effects and the same bytes of state.
 *
 * Vectors of weights and gradients are processed in blocks. The caller may provide an engine
 * (core_config.engine) that runs the blocks of a vector on several threads. These threads run only
 * the code of blocks, and only during a call of a function of this header. The result has the same
 * bits for every engine.
 *
 * core_step calls the modules in this order: sessions (which worker sent the message), ledger
 * (exactly once), leases (batch ledger), store and optim (weights), effects. The table at the top
 * of core.c has a row for each message type.
 *
 * The core runs on the caller's thread, and its blocks also on the threads of the engine. The core
 * takes no locks.
 */
#ifndef SERVER_CORE_CORE_H
#define SERVER_CORE_CORE_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/msg.h"
#include "server/core/optim.h"

enum event_kind {
	/* message `msg` has arrived from `peer`; the shell has decoded it, so it is well-formed */
	EVENT_MESSAGE,
	EVENT_PEER_GONE, /* the shell has found that connection `peer` is closed */
	EVENT_TICK,      /* time has passed; the shell sends this event at least every 100 ms */
	EVENT_DURABLE,   /* snapshot `generation` is on disk */
	/* snapshot `generation` could not be written; the core takes another snapshot */
	EVENT_SAVE_FAILED,
	/* the core takes a snapshot, because the write-ahead log is large or has failed */
	EVENT_SAVE,
	/* the server shall stop: the core takes a last snapshot, sends BYE to all workers, and ends
	 * the run. The run can continue later */
	EVENT_DRAIN,
	/* `bytes` bytes of the connection of `peer` have moved since the last EVENT_PROGRESS, as
	 * measured by the shell, not as reported by the peer. The shell sends this event after the
	 * EVENT_TICK of the same moment, so that pace.c deducts no time twice */
	EVENT_PROGRESS,
};

struct event {
	enum event_kind kind;
	uint32_t peer; /* the connection on which the message arrived; never 0 */
	/* EVENT_MESSAGE; the caller owns the message, and the core uses it only during the call */
	const struct msg *msg;
	uint64_t generation; /* EVENT_DURABLE, EVENT_SAVE_FAILED: number of the snapshot */
	uint64_t bytes;      /* EVENT_PROGRESS: number of bytes that have moved */
	/* EVENT_TICK: the time since the last tick, in ms, if replies have waited for the disk
	 * during this time and the write-ahead log has made no progress; otherwise 0 */
	uint64_t held_ms;
	/* EVENT_DRAIN, 1: the run has met the rule of --stop-at or --patience-epochs, so its BYE
	 * tells the workers that training is done */
	int rule_met;
	/* NULL: an update of this step overwrites the current weights. Otherwise n_params floats,
	 * aligned to 64 bytes: the first update of this step writes its weights here and leaves the
	 * current weights unchanged, because a reader still uses them. core_weights then returns
	 * this buffer, and the old vector belongs to the caller again. If this step makes no
	 * update, the buffer still belongs to the caller. The choice of the buffer changes no
	 * effect and no value that the core computes */
	float *next_buffer;
	/* 1: after an update of this step only the device has the new weights, until the core
	 * fetches them. This choice, too, changes no effect and no value */
	int defers;
};

enum effect_kind {
	/* the event of this step must be durable before the shell sends a message with
	 * durable_first, if this step or a later one causes the message. This effect is the first
	 * one of its step */
	EFFECT_COMMIT,
	/* send `msg` to `peer`. The slices point into the core's weights, so the shell must encode
	 * the message before the next step. The members `durable_first` and `fenced` say more about
	 * the message */
	EFFECT_SEND,
	/* connection `peer` said HELLO, and its process holds the slot of `worker` as
	 * `incarnation`. The WELCOME of this process may have to wait for a snapshot */
	EFFECT_HELLO,
	/* encode the core now (snapshot.h) and save the snapshot as `generation`. The core never
	 * requests a snapshot while another one is being written */
	EFFECT_SNAPSHOT,
	/* answer the STATUS request of `peer` with the JSON that the shell makes, at most
	 * `max_text` bytes */
	EFFECT_STATUS,
	/* the core grants work for the first time since this start of the server. In a run without
	 * a data set: the core decides a push for the first time since this start */
	EFFECT_BEGIN,
	EFFECT_DATA_FIXED, /* an accepted push has fixed the data set of the run (core_data) */
	/* the core grants the first training lease of `epoch` since this start */
	EFFECT_EPOCH_BEGUN,
	/* every batch of `epoch` is counted, and the evaluation of the epoch begins */
	EFFECT_TRAINED,
	EFFECT_EVALUATED, /* the evaluation of `epoch` is complete */
	/* two workers have reported different results for the same images of the evaluation of
	 * `epoch`. If a third worker agreed with one of them, `worker` and `incarnation` are those
	 * of the other one, which is outvoted; otherwise `worker` is 0, and nobody is accused */
	EFFECT_DISPUTED,
	EFFECT_RELEASED, /* an admin has ended the quarantine of msg.admin.worker */
	/* the state of `worker` has changed, and `change` says how. In a step, this effect comes
	 * after the messages to this worker */
	EFFECT_WORKER,
	/* the run is over or drained, and everything is durable. `status` says how it ended */
	EFFECT_FINISH,
};

enum worker_change {
	/* a process has joined. It is new, or its session had ended: a worker that was declared
	 * dead and says HELLO again joins again, and is not WORKER_BACK. If it was WORKER_RESTARTED
	 * when it joined before, it is so again, unless the server was restarted since */
	WORKER_JOINED,
	WORKER_RESTARTED, /* a new process of a worker that was in this slot has joined */
	/* the worker has returned after silence or after a restart of the server, before it was
	 * declared dead: its session continues */
	WORKER_BACK,
	WORKER_SILENT, /* the worker is suspect (SESSION_SUSPECT) */
	WORKER_GONE,   /* the worker has left, or is lost: dead, or away for dead_ms */
	WORKER_EXCLUDED,
	WORKER_QUARANTINED, /* excluded, and in quarantine from now on (quarantine.h) */
	WORKER_STALLED,     /* the worker has neither delivered nor requested work for too long */
	/* a stalled worker has delivered or requested work, or its deadline turned out to be longer
	 * (pace.h) */
	WORKER_DELIVERS,
};

#define CHECK_VOTES 3u

/* This struct has the results of a portion of the test set that do not agree (checks.h). */
struct dispute {
	/* the images of this portion: `count` images from number `first` on */
	uint32_t first, count;
	uint32_t votes; /* number of results of this portion, each from another worker */
	uint32_t worker[CHECK_VOTES], correct[CHECK_VOTES];
	double loss[CHECK_VOTES]; /* each worker's sum of the losses of these images */
};

/*
 * durable_first is 1 for a message that must wait until events are on disk. With a write-ahead log,
 * the shell sends a message with durable_first only when the event that caused it is on disk. Most
 * messages have this mark, because they say that the server has decided a push, has granted an
 * incarnation or work, or lets a worker leave. Such a message would be false if a crash lost the
 * event that it reports. A message with weights is sent when the event that made these weights is
 * on disk. The following messages need no event on disk, so an operator reaches a server whose disk
 * is full:
 *
 * - HEARTBEAT: it reports only what checkpoints contain;
 * - ERROR: it refuses a request or asks for a new HELLO. After a crash, the receiver of an ERROR
 *   only repeats its request. A worker that exits because of an ERROR loses no acknowledged push,
 *   because each ACK had waited until its push was on disk;
 * - STATUS, and the WELCOME of an observer: they show the current state, not the state on disk;
 * - ADMIN: the reply to a checkpoint request is sent when the checkpoint is on disk; the reply to a
 *   drain request says that the drain has begun.
 */
struct effect {
	enum effect_kind kind;
	/* EFFECT_SEND, 1: the shell sends the message when all events with an EFFECT_COMMIT so far
	 * are durable */
	uint8_t durable_first;
	/* EFFECT_SEND, 1: the message is an ERROR for the process of `incarnation`, because a newer
	 * process has taken the slot of `worker` */
	uint8_t fenced;
	uint32_t peer;
	uint64_t generation;
	uint32_t epoch, worker, incarnation;
	/* EFFECT_STATUS: size in bytes of the longest text that the client accepts */
	uint32_t max_text;
	enum worker_change change;
	int status; /* EFFECT_FINISH: PS_EDONE, PS_ESHUTDOWN or PS_EDIVERGED */
	/* the message is 4 KB, so it comes after the small members: they then share a cache line
	 * with its beginning */
	struct msg msg;
	struct dispute dispute; /* EFFECT_DISPUTED: the results that do not agree */
};

/* This struct has the results of an epoch. */
struct epoch_record {
	/* each image and each update is counted exactly once; images == core_train_images when the
	 * epoch has ended */
	uint64_t images, updates;
	/* sum of the losses of the applied pushes, each times its number of images */
	double loss_sum;
	uint32_t eval_done; /* number of test images evaluated so far (core_eval_images) */
	uint32_t eval_correct;
	double eval_loss_sum;
	/* for each metric except accuracy, its sum over the evaluated images */
	double metric_sum[MAX_METRICS];
	/* core time at which the training of the epoch ended; 0: it has not ended since this
	 * start */
	uint64_t end_ms;
};

/* This struct has the counters for /metrics and /status. They never decrease within a run. Each
 * snapshot contains all of them except `ignored`. */
struct core_stats {
	uint64_t version; /* version of the weights */
	/* number of steps of the optimizer; a step of L-BFGS makes several versions */
	uint64_t updates;
	uint64_t accepted; /* number of accepted pushes */
	/* sync: number of steps that ended with fewer gradients than were due */
	uint64_t steps_short;
	/* trials: number of points that line searches have tried; backups: number of backup copies
	 * that the core has granted */
	uint64_t trials, backups;
	/* pushes: number of decided pushes; duplicates: number of pushes that arrived again after
	 * their decision */
	uint64_t pushes, duplicates;
	uint64_t rejected[REJECT_REASONS];
	/* number of results of work that another worker had delivered first, or of a step that had
	 * ended without these results */
	uint64_t superseded;
	/* expired: number of grants that ended at their deadline; stalls: number of times that a
	 * worker became stalled */
	uint64_t expired, stalls;
	uint64_t refused; /* number of messages that the server answered with ERROR */
	/* number of messages that the server dropped: results of work that it had not granted,
	 * repeated results, and LEASE requests and rejected pushes beyond MAX_EMPTY_LEASES. No
	 * snapshot contains this counter */
	uint64_t ignored;
	uint64_t gaps;
	uint64_t images; /* number of images counted in all epochs */
	/* leases: number of granted leases; released: number of batches and portions that were not
	 * done when a worker lost or gave up its grant of them */
	uint64_t pulls, leases, released;
	/* rejoins: number of HELLOs that gave a used slot to a new process, or with which the
	 * process of a slot returned to its session while the session was not live. A suspect
	 * worker that is back with any other message is not counted */
	uint64_t hellos, deaths, rejoins;
	/* number of exclusions of workers for bad pushes or evaluations (departure.h) */
	uint64_t excluded;
	uint64_t recoveries; /* number of starts of the server from a snapshot */
	/* delay compensation: number of gradients applied without compensation, because the server
	 * no longer had the weights with which they were computed */
	uint64_t uncompensated;
	uint64_t staleness_sum; /* sum of the staleness of all applied gradients */
	/* numbers of applied gradients whose staleness is 0, 1, 2-3, 4-7, ... */
	uint64_t staleness[16];
	uint64_t snapshots, save_failures;
	/* exponential moving mean of the losses of accepted pushes: each new loss counts with the
	 * weight 0.02, and the mean before it with 0.98 */
	double loss;
};

/* These numbers of checked portions with each outcome (checks.h) never decrease within a run. A
 * snapshot contains them. */
struct check_stats {
	uint64_t agreed;    /* two workers agreed */
	uint64_t disputed;  /* results differed, and no majority showed which one is wrong */
	uint64_t outvoted;  /* results differed, and a third worker has decided */
	uint64_t unchecked; /* no second worker delivered a result in time */
};

enum session_state {
	SESSION_FREE, /* no worker has ever used the slot */
	/* the worker's HELLO was accepted; WELCOME waits for the snapshot that contains its
	 * incarnation */
	SESSION_JOINING,
	SESSION_LIVE,
	/* the worker has sent nothing for suspect_ms: it loses its leases, and nothing else */
	SESSION_SUSPECT,
	/* the server has started from a snapshot that contains the worker, and the worker has sent
	 * nothing in this term; or the worker has sent nothing for dead_ms and may retain pushes
	 * that a crash of the server has lost. The server keeps the slot for sessions.ttl_ms, but
	 * counts the worker as lost after dead_ms */
	SESSION_AWAY,
	/* the worker has sent nothing for dead_ms, or has said BYE: the slot may be reused when all
	 * its pushes are durable */
	SESSION_DEAD,
};

/* This struct has counts of a worker slot since this start of the server, for display. */
struct worker_counts {
	/* pushes: number of decided pushes; duplicates: number of pushes that arrived again after
	 * their decision */
	uint64_t pushes, duplicates;
	uint64_t rejected; /* number of rejected pushes; superseded pushes do not count */
	uint64_t refused;  /* number of messages that the server answered with ERROR */
	/* asynchronous modes: number of accepted pushes, and the sum of their staleness */
	uint64_t async_pushes, staleness_sum;
	struct time_split time; /* the times in the worker's newest HEARTBEAT */
};

/* This struct describes the state of one worker, for display. */
struct worker_view {
	enum session_state state;
	int excluded;    /* 1: the worker is excluded, see departure.h */
	int quarantined; /* 1: the worker is also in quarantine, see quarantine.h */
	int in_session;  /* 1: the worker joins, is live or is suspect, and is not excluded */
	uint32_t worker, incarnation;
	const char *name, *device, *owner; /* owner: the key of the worker, or "" if it has none */
	uint64_t last_seq, durable_seq, images, last_message_ms;
	/* 1: the worker is live, but has delivered nothing for longer than its deadline (pace.h) */
	int stalled;
	uint32_t peer; /* the worker's connection; 0: none */
	/* time since the worker received its work or made its last delivery; 0: it owes nothing */
	uint64_t owes_ms;
	struct worker_counts counts;
};

/* This struct describes a worker in quarantine, for display. */
struct quarantine_view {
	/* the key and the name of the worker; "": the worker has no key or no name */
	const char *owner, *name;
	uint32_t exclusions;
};

struct core; /* its definition is in server/core/core_state.h */

/* Returns the number of bytes that core_init needs for `cfg`. The result depends mostly on n_params
 * and max_workers. */
size_t core_bytes(const struct core_config *cfg);
/* Returns 1 if the core needs the sum of the squares of each push. To get this sum, the core adds
 * the vec_squares of each block of ENGINE_BLOCK values, in ascending order of the blocks. If struct
 * slice already has a sum that was computed in this way, the core uses it. */
int core_needs_squares(const struct core_config *cfg);
/* Starts a new run in `memory` (core_bytes bytes). `weights` are the n_params initial weights; from
 * now on the core changes them in place. The caller aligns both blocks to 64 bytes and frees
 * them. */
struct core *core_init(void *memory, const struct core_config *cfg, float *weights);
/* Gives a new run a list of its tensors (common/tensor_list.h). Returns NULL, or the reason why the
 * core refuses the list; then *line is set as by tensor_list_check. */
const char *core_name_tensors(struct core *c, const char *list, size_t *line) PS_MUST_CHECK;
/* Takes one event. The caller reads the effects with core_effect before the next step. `now_ms`
 * never decreases. */
void core_step(struct core *c, const struct event *ev, uint64_t now_ms);
/*
 * The next two functions do the same as core_step, for a shell that processes the new weights while
 * the CPU caches hold them. core_decide takes the event and makes the effects. If the event causes
 * an update of the weights, core_decide does not compute their values yet. The caller must then
 * call core_compute until it returns 0, before any other function but core_effect. Until
 * core_compute has returned 0, the caller must not change the message of the event. core_compute
 * waits for the next block of values in ascending order, sets *values to the first value of the
 * block, and returns the number of values in the block. While the caller processes a block, the
 * engine may compute later blocks. The weights of L-BFGS need no core_compute, because core_decide
 * itself computes them.
 */
void core_decide(struct core *c, const struct event *ev, uint64_t now_ms);
size_t core_compute(struct core *c, const float **values);
/* The next three functions can replace core_compute for a shell that computes the blocks itself, on
 * several threads. core_update_blocks returns the number of blocks of the update. It returns 0 if
 * there is no update, if core_compute has returned a block of the update, or if a device computes
 * the update. In all other cases the caller has a choice: it calls core_compute as above, or it
 * calls core_compute_block once for each block, and then core_end_update. core_compute_block
 * computes block `block` of the engine's division, in any order and on any thread. */
size_t core_update_blocks(const struct core *c);
void core_compute_block(struct core *c, size_t block);
void core_end_update(struct core *c);
/* Returns 1 if the last step has dropped the message of its event (`ignored` of core_stats). */
int core_dropped(const struct core *c);
/* Returns the worker whose LEASE the last step has taken, or 0 if it has taken none. */
uint32_t core_requester(const struct core *c);
/* Returns effect `i` of the last step, or NULL if the step has no more effects. */
const struct effect *core_effect(const struct core *c, size_t i);
/* Returns the number of versions of the weights that the last step makes (`version` of core_stats).
 * The result is 0 if the step does not change the weights. */
uint64_t core_new_versions(const struct core *c);
/* Returns 1 if the last step has an effect that sends the weights which are current after this
 * step. */
int core_sends_weights(const struct core *c);

const struct core_config *core_config(const struct core *c);
const struct core_stats *core_stats(const struct core *c);
/* Returns the counters of the checked evaluations. */
const struct check_stats *core_check_stats(const struct core *c);
/* Returns the current weights (n_params floats). The pointer is valid until the next step. If the
 * device defers its weights (param_device.h), the values can be older than the current weights
 * until the caller calls core_fetch_weights. */
const float *core_weights(const struct core *c);
void core_fetch_weights(struct core *c);
/* Returns 1 if the core reads the values of an accepted gradient in the memory of the host, and not
 * only on the device. */
int core_reads_gradients(const struct core_config *cfg);
/* Returns the weights of the newest evaluation (n_params floats), which are the weights at the end
 * of the evaluated epoch. Returns NULL before the first evaluation, during an evaluation, and if
 * the core was restored from a snapshot that was taken after this evaluation, because such a
 * snapshot does not have the weights. The pointer is valid until the next step. */
const float *core_evaluated_weights(const struct core *c);
/* Returns the record of epoch `e`, or NULL if `e` is not below cfg.training.epochs. */
const struct epoch_record *core_epoch(const struct core *c, uint32_t e);
/* Returns the epoch in training, from 0; cfg.training.epochs when all epochs are trained. */
uint32_t core_training_epoch(const struct core *c);
/* If the run has ended except for its last snapshot, returns how it ended (PS_EDONE, PS_ESHUTDOWN
 * or PS_EDIVERGED). Otherwise returns 0: the run is training, waits for the end of a recovery, or
 * is over. */
int core_ending(const struct core *c);
/* Returns the data set of the run; it is all zero while no live worker has one. */
const struct data_id *core_data(const struct core *c);
/* Returns the number of images in an epoch: the training images without those that --validate holds
 * back; 0: no data set. */
uint32_t core_train_images(const struct core *c);
/* Returns the number of images on which an epoch is evaluated: those that --validate holds back, or
 * the test images; 0: no data set. */
uint32_t core_eval_images(const struct core *c);
/* Returns 1 if the evaluation of the epoch is complete, including the checks of its results
 * (checks.h). */
int core_is_evaluated(const struct core *c, uint32_t epoch);
/* Returns the list of the tensors of the run; "" means that the run has no list. Once the run has a
 * list, it never changes. */
const char *core_tensors(const struct core *c);
/* Returns 1 if no worker can change the data set of the run any more. */
int core_data_is_fixed(const struct core *c);
/* Returns 1 if the process that has sent HELLO `m` on connection `peer` would get a slot that its
 * key (m->owner) does not have yet. Sets *used to the number of slots that the key has. */
int core_needs_slot(const struct core *c, uint32_t peer, const struct msg_hello *m, uint32_t *used);
/* Writes the state of the worker in slot i (0 <= i < max_workers) to *v. */
void core_worker(const struct core *c, uint32_t i, struct worker_view *v);
/* Writes to *v worker number i, counted from 0, of the workers in quarantine. Returns 0 if at most
 * i workers are in quarantine. */
int core_quarantine(const struct core *c, uint32_t i, struct quarantine_view *v);
/* Returns the number of live or suspect workers with key `owner`. If `owner` is "", returns the
 * number of live or suspect workers whose newest message arrived on connection `peer`. */
uint32_t core_workers_of(const struct core *c, const char *owner, uint32_t peer);
/* Returns the number of live workers that are not stalled. */
uint32_t core_live_workers(const struct core *c);

#endif
