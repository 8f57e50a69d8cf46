/*
 * state.h - what the core is made of; for the files of server/core only.
 *
 * Everything but the weights lies in the one block given to core_init: the struct, then the arrays
 * that its pointers name. Nothing here is ever allocated or freed.
 */
#ifndef SERVER_CORE_STATE_H
#define SERVER_CORE_STATE_H
#include "common/clones.h"
#include "server/core/core.h"
#include "server/core/lbfgs.h"
#include "server/core/modes.h"
#include "server/core/pace.h"
#include "server/core/say.h"

/* What was decided about a push, for its duplicates. */
struct decision {
	uint64_t version;
	uint8_t verdict, reject;
};

/* Delay compensation: a copy of the weights of one version, shared by all workers that hold it. */
struct backup {
	uint64_t version, made; /* made: term in which this version came about */
	uint32_t refs;          /* 0: free */
	uint32_t order;         /* while an image is written: its place there */
	double peak;            /* bound of the magnitudes in it; 0: unknown, after a restart */
};

#define BACKUPS_MAX_HELD 6 /* versions that one worker holds at most */

/* A version that a worker has pulled and may still push a gradient of. */
struct held {
	uint64_t version, sent; /* sent: term that sent it */
	uint32_t copy;          /* index in backups */
};

/* A worker slot; worker id = index + 1. The first group is in the snapshot (snapshot.c). */
struct worker {
	uint32_t incarnation;
	uint64_t born_term; /* term in which that incarnation was given */
	char name[WIRE_MAX_NAME + 1], device[WIRE_MAX_NAME + 1];
	struct data_id data;        /* of its HELLO; not in what a restart reads */
	uint64_t last_seq;          /* ledger: every seq up to here is decided */
	struct decision *decisions; /* of the newest replay_window seqs, at seq % replay_window */
	uint64_t images;            /* counted from this worker */
	uint64_t lease_request;     /* newest LEASE request seen */
	struct msg_grant grant;     /* what it holds; request 0: nothing */
	uint64_t clock;             /* ssp: batches counted from it */
	int racing;                 /* ssp: the others must not leave it behind */
	uint64_t answered;          /* sync: the step (version + 1) that holds a gradient of it */
	uint64_t member;            /* sync: the step that waits for it; 0: none does */
	struct held held[BACKUPS_MAX_HELD]; /* delay compensation: in the order of its pulls */
	uint32_t n_held;
	uint32_t bad_streak; /* pushes and evaluations in a row that were not finite */
	int excluded;        /* this incarnation, for that: see quarantine.c */
	int sound;           /* a push of this incarnation was accepted */

	enum session_state state;
	uint32_t peer, beat_peer; /* connections; 0: none */
	uint64_t heard_ms;
	uint64_t active_ms;       /* it last said something other than a beat */
	int idle;                 /* sync: no step waits for it before it does so again */
	uint64_t durable_seq;     /* in a snapshot on disk */
	uint64_t snapshot_seq;    /* in the snapshot under way */
	uint64_t replay_target;   /* last_seq that its HELLO promised to replay up to */
	uint64_t join_generation; /* the snapshot that will have this incarnation, until it is
				     durable: then JOINING is welcomed; else 0 */
	int leaving;              /* said BYE: answered once its pushes are durable */
	int overdue; /* AWAY: a recovery ended without it, so the next one does not wait for it */
	int waiting; /* asked for a lease and was not answered yet */
	struct pace pace;
};

/* SHUT: sandblaster, sync: not of the step under way. */
enum { BATCH_FREE, BATCH_LEASED, BATCH_DONE, BATCH_SHUT };

/* The batch ledger: one epoch in training, at most one in evaluation. */
struct leases {
	uint32_t epoch;     /* in training; == cfg.training.epochs: all trained */
	uint32_t n_batches; /* of an epoch; 0: no data set yet */
	uint32_t n_done, n_free;
	uint8_t *batch;  /* n_batches states, room for WIRE_MAX_BATCHES */
	uint8_t *copies; /* backup copies of each that were given out */
	int evaluating;  /* epoch - 1 is in evaluation */
	uint32_t eval_size, n_portions, n_evaluated; /* images a portion; portions; done */
	uint8_t *portion;                            /* n_portions states */
};

/* The largest magnitude in a gradient: its square is a finite float32, for adagrad. */
#define STORE_MAX_VALUE 1e15

struct store {
	size_t n;
	uint64_t version;
	uint64_t version_term; /* term in which these weights came about */
	float *weights;
	float *loan;         /* where the next version goes; NULL: in place */
	float *eval_weights; /* as they were when the epoch in evaluation ended */
	uint64_t eval_version;
	float *state[OPTIM_VECTORS]; /* the optimizer's; NULL where it has none */
	float *scratch;              /* a gradient under way inside one step of the core */
	float *dc_square;            /* adaptive delay compensation: mean squares */
	struct optim_reach reach;    /* of weights and state; see store_holds */
	struct optim_reach planned;  /* ... after the step that was found possible */
	int measured, is_planned;    /* reach and planned are valid; never saved */
};

/* Delay compensation: the copies. Memory of one is touched only while it has been used. */
struct backups {
	uint32_t n;          /* 0: no delay compensation */
	struct backup *copy; /* n */
	float *values;       /* of copy i: from i * stride on */
	size_t stride;
	uint32_t newest; /* the copy made last */
};

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

enum ending { END_NOT, END_SNAPSHOT, END_SAVING, END_OVER };

#define CORE_MAX_ADMINS 8

struct core {
	struct core_config cfg;
	struct core_stats stats;
	struct data_id data;
	int data_fixed; /* by a contribution: see dataset.c */
	struct worker *worker;
	struct leases leases;
	struct store store;
	struct epoch_record *epoch;
	struct gather gather;
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

/* core.c */
/* It is live and not stalled: the others may wait for it. */
int core_is_active(const struct worker *w);
/* So many workers as it takes have come; a run without a data set waits for nobody. */
int core_has_begun(const struct core *c);
struct effect *core_emit(struct core *c, enum effect_kind kind, uint32_t peer);
void core_emit_epoch(struct core *c, enum effect_kind kind, uint32_t epoch);
void core_emit_worker(struct core *c, const struct worker *w, enum worker_change change);
/* Work is given out, or a push of a run without a data set is decided. */
void core_begin(struct core *c);
/* A message that leaves at once. */
struct msg *core_send(struct core *c, uint32_t peer, enum msg_type type);
/* A message that leaves when all that was committed is durable, this event too if it commits. */
struct msg *core_send_committed(struct core *c, uint32_t peer, enum msg_type type);
/* A message that follows from this event: the event is committed first. */
struct msg *core_send_decided(struct core *c, uint32_t peer, enum msg_type type);
void core_refuse(struct core *c, uint32_t peer, int status, uint64_t expected, const char *text);
/* Lay out the block and clear it; weights are the caller's to fill. */
struct core *core_place(void *memory, float *weights, const struct core_config *cfg);
/* Begin to end the run: the last snapshot, then BYE to all, then EFFECT_FINISH(status). */
void core_end(struct core *c, int status);

/* sessions.c */
void sessions_on_hello(struct core *c, struct worker *w, const struct event *ev);
void sessions_on_beat(struct core *c, struct worker *w, const struct event *ev);
/* No beat for too long, or excluded. */
void sessions_die(struct core *c, struct worker *w, enum worker_change why);
/* Whoever held the slot ends when it hears this, and keeps no push any longer: so nothing is said
 * before all that it was told is taken is on disk, with its successor. */
void sessions_fence(struct core *c, const struct worker *w, uint32_t peer);
/* Beside 1 << state: it has said BYE and waits for the answer. */
#define SESSION_LEAVING (1u << 31)
/* The stamp's worker if it may speak, which depends on its state (`states`: bits); else answers
 * ERROR and returns NULL. */
struct worker *sessions_check(
	struct core *c, const struct stamp *s, uint32_t peer, uint32_t states);
void sessions_tick(struct core *c);
void sessions_peer_gone(struct core *c, uint32_t peer);
/* Snapshot `generation` is on disk: welcome those who waited for it, tell the others what is
 * durable. */
void sessions_durable(struct core *c, uint64_t generation);
/* A snapshot is not on disk: those that wait for it to be welcomed are told why they wait. */
void sessions_save_failed(struct core *c);
/* Note each ledger's position as the snapshot under way has it. */
void sessions_snapshot(struct core *c);
/* We have just started from a snapshot: the silence of its workers counts from now. */
void sessions_awaited(struct core *c);
/* The recovery is over: whoever is still away is not waited for by the next one. */
void sessions_overdue(struct core *c);
/* No worker of the snapshot is missing or still replaying. */
int sessions_all_back(const struct core *c);
struct worker *sessions_worker(struct core *c, uint32_t id);               /* NULL: no such slot */
struct stamp sessions_stamp(const struct core *c, const struct worker *w); /* NULL: observer */

/* session_close.c */
/* It may hold pushes that were acknowledged before a crash and are not replayed yet. */
int sessions_may_return(const struct worker *w);
void sessions_bye(struct core *c, const struct worker *w, uint32_t peer, int status);
void sessions_on_bye(struct core *c, struct worker *w, const struct event *ev);
/* A HELLO after the end. */
void sessions_hello_too_late(struct core *c, const struct event *ev);
/* The run is over, or this life of the server: BYE, unless the worker holds pushes that were
 * acknowledged before a crash and that we have lost; it keeps those for the next life. */
void sessions_part(struct core *c, const struct worker *w, uint32_t peer);
void sessions_part_all(struct core *c);
/* Of w's pushes all up to here are durable when the answer of this step is heard. */
uint64_t sessions_durable_seq(const struct core *c, const struct worker *w);
uint32_t sessions_id(const struct core *c, const struct worker *w);

/* ledger.c */
void ledger_on_push(struct core *c, struct worker *w, const struct event *ev);
/* No new push is decided any more, and none is answered. */
int ledger_is_closed(const struct core *c);
/* Duplicates of what w pushed so far get REJECT_UNKNOWN. */
void ledger_forget(struct core *c, struct worker *w);

/* quarantine.c */
/* A push or an evaluation of w was not finite: that may exclude w, or end the run. */
void quarantine_bad(struct core *c, struct worker *w);
/* A push of w was accepted. */
void quarantine_good(struct worker *w);
/* Tell an excluded worker, if its pushes are durable; until then nothing is said. */
void quarantine_tell(struct core *c, struct worker *w, uint32_t peer);

/* dataset.c */
/* May a worker of this data set join? If not, peer is told. */
int dataset_admits(struct core *c, const struct data_id *d, uint32_t peer);
int dataset_is_of_run(const struct core *c, const struct worker *w);
/* Live workers of the run's data set. */
uint32_t dataset_workers(const struct core *c);
/* At the end of an event: the data set that most live workers have, while none is fixed. */
void dataset_choose(struct core *c);
/* REJECT_NONE, or REJECT_WORK for a push of another data set. */
enum reject dataset_judge(struct core *c, const struct worker *w, const struct msg_push *p);
/* A push of batches was accepted. */
void dataset_contributed(struct core *c);

/* leases.c */
void leases_on_lease(struct core *c, struct worker *w, const struct event *ev);
void leases_on_result(struct core *c, struct worker *w, const struct event *ev);
/* 1: a run of this data set is within the limits. */
int leases_can_open(const struct core *c, const struct data_id *d);
/* The run is of this data set, which can be opened: the epoch begins. */
void leases_open(struct core *c, const struct data_id *d);
/* May this work be counted? REJECT_NONE, REJECT_SHAPE or REJECT_WORK. */
enum reject leases_judge(const struct core *c, const struct work *work, uint32_t images);
void leases_mark(struct core *c, const struct work *work);
/* Images whose gradients are in the weights now. */
void leases_record(struct core *c, uint64_t images, double loss_sum);
/* Batches [first, end) are free, those before are done, those behind not open yet. */
void leases_window(struct core *c, uint32_t first, uint32_t end);
/* At the end of an event: the next epoch, if this one's training is complete. */
void leases_advance(struct core *c);
/* Give back what is undone of what `w` holds. */
void leases_release(struct core *c, struct worker *w);
/* The run has begun, and new work is given out. */
int leases_may_grant(struct core *c);
/* Answer whoever waits, if there is something to give. */
void leases_grant_waiting(struct core *c);
uint32_t leases_images(const struct core *c, uint32_t first, uint32_t count);

/* backups.c: what delay compensation compares with; without it these do nothing */
/* `w` was sent the current weights. */
void backups_hold(struct core *c, struct worker *w);
/* `w` repeats pushes of a server's earlier life, whose pulls are lost: it may have these weights.
 */
void backups_hold_replayed(struct core *c, struct worker *w);
/* A push of `w` was decided: it pushes nothing of older weights any more. */
void backups_pushed(struct core *c, struct worker *w, const struct msg_push *p);
/* `w` is gone. */
void backups_release(struct core *c, struct worker *w);
/* The weights that `p` was computed at; NULL: they are not held. */
const float *backups_find(const struct core *c, const struct worker *w, const struct msg_push *p);
float *backups_values(const struct core *c, uint32_t copy);
/* A bound of the magnitudes in a copy that backups_find returned; 0: unknown, after a restart. */
double backups_peak(const struct core *c, const float *copy);
/* The lowest free copy, which becomes one of `version`, made in term `made`; n: none is free. */
uint32_t backups_take(struct core *c, uint64_t version, uint64_t made);

/* store.c */
/* Answer the push of this step if it also pulls: PARAMS with its ACK. */
void store_answer_push(struct core *c);
void store_on_pull(struct core *c, struct worker *w, const struct event *ev);
/* REJECT_NONE, REJECT_SHAPE, REJECT_NONFINITE or REJECT_NORM; reads every value once, changes
 * nothing. */
enum reject store_judge(const struct core *c, const struct slices *s);
/* The largest magnitude in a push, which store_judge has found sound. */
double store_peak(const struct slices *s);
/* 1: a step at rate `eta`, or a lower one, with a gradient of at most `peak` in magnitude leaves
 * every weight and every value of the optimizer finite. It must be asked before each step. */
int store_holds(struct core *c, double peak, double eta);
/* w -= eta * ...; the version grows by one. `s` was judged. */
void store_apply(struct core *c, const struct slices *s, double eta);
/* The same with one gradient of all values. */
void store_step(struct core *c, const float *g, double eta);
/* The rate of now: cfg.rate.lr by its schedule. */
double store_rate(const struct core *c);
/* The same for an update from `gradients` gradients that are tau versions old, by cfg.rate.scaling.
 */
double store_scaled_rate(const struct core *c, double gradients, double tau);
/* The factor alone. */
double store_scale(const struct core *c, double gradients, double tau);
/* Where the next version of the weights is to be written (may be the present one's place), and: it
 * is there. */
float *store_next(struct core *c);
void store_publish(struct core *c, float *next);
void store_freeze(struct core *c); /* weights -> eval_weights */

#endif
