/*
 * sim.h - a whole run of cnn-ps in one thread and in virtual time. The server's core, checkpointer
 * and start-up and the workers' sessions are the real code. The simulated network is unreliable,
 * the disk gives no guarantee beyond those of POSIX, clocks leap, and processes die at any moment.
 * The seed determines all events. tests/sim/README.md describes the verdicts, and names the file
 * that checks each verdict.
 */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H
#include "common/clock.h"
#include "server/durability/disk_wait.h"
#include "server/durability/wal.h"
#include "server/auth/roles.h"
#include "server/config/options.h"
#include "server/durability/startup.h"
#include "server/durability/checkpointer.h"
#include "tests/sim/calls.h"
#include "tests/sim/disk.h"
#include "tests/sim/net.h"
#include "tests/support/core_invariants.h"
#include "tests/support/shuffled_engine.h"
#include "worker/client/session.h"

#define SIM_WORKERS 5u
/* the number of nodes for replaced processes: such a process still runs although another process,
 * its twin, has taken its name */
#define SIM_TWINS         2u
#define SIM_HOSTILE       2u /* the maximum number of hostile workers (hostile.c) */
#define SIM_FIRST_HOSTILE (SIM_WORKERS + SIM_TWINS + 1) /* first node that is a hostile worker */
#define SIM_SLOTS         16u
#define SIM_COORDINATES   2048u
#define SIM_WINDOW        64u
#define SIM_PORTIONS      64u  /* the largest number of batches of an epoch */
#define SIM_VERSIONS      512u /* the number of versions whose weights are stored */
/* number of slots of a lane; it is small, so that slots are reused often */
#define SIM_LANE_SLOTS 3u
#define SIM_ELASTIC    4u /* EASGD: the centre has coordinates 0 to 3 */
#define SIM_FAULTS     24u
#define SIM_JOBS       4u
#define SIM_HELD       1024u /* the maximum number of replies that wait for the WAL */

enum sim_mode {
	SIM_ANY,    /* the seed decides the mode */
	SIM_LEDGER, /* downpour without a data set */
	SIM_DOWNPOUR,
	SIM_SSP,
	SIM_SYNC,
	SIM_SANDBLASTER,
	SIM_LBFGS,
	SIM_EASGD,
	SIM_MODES
};
#define SIM_MODE_NAMES "any|ledger|downpour|ssp|sync|sandblaster|lbfgs|easgd"

/* The limits on a run say which parts of the seed's plan take place. A shrunk case is a seed with
 * its limits. */
struct sim_limits {
	int mode;         /* a value of enum sim_mode */
	uint32_t workers; /* the maximum number of workers; 0: the seed decides */
	/* the maximum number of pushes of a worker, or of batches of an epoch; 0: the seed
	 * decides */
	uint32_t steps;
	uint32_t faults; /* if bit i is 1, fault i of the seed may happen */
	/* only the losses and duplications with numbers in [strikes_from, strikes_to) happen
	 * (net.h) */
	uint64_t strikes_from, strikes_to;
	int calm;    /* 1: messages keep their order and all take equal time */
	int hostile; /* 1: workers have keys, and some workers are hostile */
	/* 1: each node with an even number has protocol version 6 and sends no codes of grants and
	 * decisions */
	int older;
};

enum fault_kind {
	FAULT_KILL,  /* kill -9 of the server (node 0) or of a worker */
	FAULT_POWER, /* a power cut of the server's host */
	FAULT_DRAIN, /* SIGTERM to the server, and later a new start */
	FAULT_STOP,  /* SIGSTOP to the node, and SIGCONT after `ms` */
	FAULT_LEAP,  /* the node's monotonic clock leaps ahead by `ms` */
	/* the links of the node lose every message for `ms`; way 1: messages to the server, 2:
	 * messages from the server, 3: both */
	FAULT_CUT,
	FAULT_SLOW,  /* for `ms`, each message with a tensor takes `in` ms longer */
	FAULT_DISK,  /* for `ms`, disk operations fail at random */
	FAULT_ROT,   /* one bit of the newest checkpoint flips */
	FAULT_LEAVE, /* a worker sends BYE and returns after `ms` */
	/* a worker's device breaks: the later results of its process are NaN, and so are all
	 * results of the next `way` - 1 processes of this worker */
	FAULT_NAN,
	/* a second process takes the name of a live worker; way 1: the old process is stopped for
	 * `ms`, 2: the old process is cut off from the network for `ms`, 3: it runs on */
	FAULT_TWIN,
	/* the program of a worker stops for `ms` or forever, while its session sends heartbeats */
	FAULT_HANG,
	FAULT_KINDS
};

/* A kill takes effect at one of these moments: at once, after `in` more effects, or after `in` more
 * disk operations. */
enum moment { AT_ONCE, AT_EFFECT, AT_OPERATION };

struct fault {
	enum fault_kind kind;
	uint64_t at_ms;
	uint32_t node, ms, in, way;
	enum moment moment;
};

/* How often the final weights must contain a push of the ledger gradient. */
enum expectation {
	/* exactly once: the worker lives, or died after it was notified that the push is durable */
	EXPECT_ONCE,
	EXPECT_NEVER, /* never: the server rejected the push */
	/* never or once: the worker died before it was notified that the push is durable */
	EXPECT_AT_MOST_ONCE,
};

#define SIM_NO_PUSH UINT32_MAX

struct gradient {
	uint32_t first, count;
	float value[SIM_PORTIONS];
	/* the coordinate that only this push changes; SIM_NO_PUSH: none */
	uint32_t push;
	float elastic[SIM_ELASTIC]; /* easgd: the negative change of the centre */
};

/* This struct is the shared-memory lane of a worker's process (lane.c). */
struct shm_lane {
	/* the process of the server that has opened the lane; 0: the lane is not open */
	uint64_t server_process;
	uint32_t link;   /* the connection of the newest WELCOME */
	uint32_t worker; /* the worker slot of that WELCOME */
	uint64_t newest; /* seq of the newest push that the process has sent */
	/* seq and checksum of the push in each slot; seq 0: the slot is free */
	uint64_t seq[SIM_LANE_SLOTS], xxh3[SIM_LANE_SLOTS];
	float slot[SIM_LANE_SLOTS][SIM_PORTIONS];
};

struct sim_worker {
	struct session *session; /* NULL: the process does not run */
	/* the number of the process; no other process of the run has it; 0: no process yet */
	uint64_t process;
	uint32_t bulk, heartbeat; /* the numbers of its bulk and heartbeat connections */
	uint64_t stopped_until_ms;
	/* FAULT_HANG: the program hangs until this time; UINT64_MAX: forever */
	uint64_t hangs_until_ms;
	int named;
	uint32_t key;         /* hostile runs: the node whose key the process has */
	uint64_t born_term;   /* the term in the first WELCOME of the process; 0: no WELCOME yet */
	uint64_t verdict_seq; /* seq of the newest push whose verdict the program has received */
	/* number of effects until the process is killed; DISK_NEVER: no kill */
	uint32_t kill_in;
	/* milliseconds after which a leaving worker returns; 0: the worker does not leave */
	uint32_t back_ms;
	/* the version and the term of the weights that the worker pulled last */
	uint64_t version, version_term;
	uint32_t fetched_for; /* the number of batches still to compute with these weights */
	/* ledger: the number of pushes that the processes of this node have still to make */
	uint32_t to_push;
	struct msg_grant grant; /* training: the work of the worker; count 0: no work */
	int computing, done;
	double part; /* easgd: `elastic` of the last PARAMS */
	int started; /* easgd: 1: `own` is valid */
	struct own { /* easgd: the worker's own weights and velocity */
		float x[SIM_PORTIONS], v[SIM_PORTIONS];
	} own;
	int foreign; /* 1: the worker has a wrong data set and gets no work */
	int broken;  /* 1: the worker's losses are NaN, until a new process replaces this one */
	/* number of further processes of this node that are broken from their start */
	uint32_t breaks;
	/* quarantined: 1: the worker's name was in quarantine at the newest event of the server. At
	 * that event the term was quarantine_term, and `incarnation` was that of the slot with this
	 * name */
	int quarantined, was_quarantined;
	int to_release; /* 1: an operator must release the worker */
	uint64_t quarantine_term;
	uint32_t incarnation;
	struct shm_lane lane;
	/* the retained push with number seq is at index seq % SIM_WINDOW */
	struct gradient gradient[SIM_WINDOW];
};

struct sim_server {
	struct startup state;
	struct checkpointer *checkpointer;
	struct core *core;         /* NULL: the server does not run */
	struct core_values values; /* the weights after the last step (core_invariants.h) */
	float *spare;              /* the second buffer of weights; `state` has the first */
	uint64_t process, epoch;
	uint64_t stopped_until_ms;
	uint32_t kill_in; /* number of effects until the server is killed; DISK_NEVER: no kill */
	/* what happens when kill_in or ops_left reaches 0; 1: the power of the host fails; 0: the
	 * server is killed */
	int power;
	/* 1: the run ends as diverged, and bounds.c has checked the reason */
	int ending;
	/* 1: the worker in this slot was away before the current event, and was still expected */
	int expected[SIM_SLOTS];
	/* the number of the grant that the worker in this slot had before the current event */
	uint64_t granted[SIM_SLOTS];
	int over;                 /* 1: the run has ended, and the server only closes sessions */
	int status;               /* the status with which the run ended */
	struct job job[SIM_JOBS]; /* jobs that wait for the thread pool or run */
	int job_ran[SIM_JOBS];    /* 1: job i has run, but the loop has not been notified yet */
};

enum hostile_kind {
	HOSTILE_FORGER,   /* delivers work that nobody granted, and claims decisions */
	HOSTILE_THIEF,    /* uses the names, worker ids and sessions of others */
	HOSTILE_POISONER, /* sends wild values, values that are not finite, and false results */
	HOSTILE_REPLAYER, /* sends its old pushes and results again */
	HOSTILE_HOARDER,  /* takes slots and leases, and delivers nothing */
	HOSTILE_STALLER,  /* takes leases, and answers each one slowly with stale gradients */
	HOSTILE_REJOINER, /* takes a lease, and then joins again as a new process, for ever */
	HOSTILE_KINDS
};

#define HOSTILE_SESSIONS 3u
#define HOSTILE_RETAINED 8u

/* This struct has one session of a hostile worker. */
struct hostile_session {
	uint32_t link, heartbeat; /* connections; 0: none */
	struct stamp stamp;       /* stamp of the newest WELCOME; worker 0: none */
	uint64_t seq, request, version, version_term;
	struct msg_grant grant; /* the newest grant; request 0: no grant */
	/* an old WELCOME, and pushes and results that this session has sent */
	struct stamp old_stamp;
	struct msg retained[HOSTILE_RETAINED];
	uint32_t n_retained;
	uint64_t wait_until_ms;
	uint32_t only_heartbeats; /* 1: the session sends nothing else */
	uint32_t joins;
};

struct hostile {
	enum hostile_kind kind;
	struct hostile_session session[HOSTILE_SESSIONS];
	float value[SIM_PORTIONS];
	/* 1: the server has granted this batch to the worker at some time */
	uint8_t granted[SIM_COORDINATES];
};

/* This struct has a message from the server to a worker that waits until the event with its LSN is
 * on the disk. */
struct reply {
	uint64_t lsn;
	struct item to;
	struct msg msg;
};

/* --durability always: the replies that wait for the disk, and the state that a start must
 * restore. */
struct sim_wal {
	struct wal *log;    /* NULL: the server does not run, or has --durability replay */
	struct reply *held; /* a ring of SIM_HELD replies */
	uint32_t first, n;
	uint64_t bound, request_ms;
	struct disk_wait disk_wait;
	uint64_t sent_version; /* the newest version of the weights that any worker has received */
	struct seen {
		uint64_t version, hash;
		/* hashes of the weights; that of a version is at index version % SIM_VERSIONS */
	} seen[SIM_VERSIONS];
};

/* This struct describes the current step of sync, for steps.c. */
struct sim_steps {
	int known; /* 1: `member` is valid */
	int blind; /* 1: the current step is not checked */
	uint64_t version;
	uint32_t members, left,
		/* left: the batches left in the epoch when the step began; taken: the gradients
		 * that the step has counted */
		taken;
	/* the incarnation of each member; 0: the slot is no member, or its worker has left */
	uint32_t member[SIM_SLOTS];
	int answered[SIM_SLOTS];
	int recovering; /* 1: the server was in recovery before the current event */
	uint64_t accepted;
};

/* This struct describes the current buffer of a robust rule, for voices.c. */
struct sim_voices {
	uint64_t term, updates, lost_work;
	int blind; /* 1: the current buffer is not checked */
	/* the incarnation of each worker that was at work since the previous update; 0: the slot
	 * had no such worker */
	uint32_t there[SIM_SLOTS];
	/* pushes, voices: the numbers of gradients and of voices in the buffer before the current
	 * event; keys: 1: each key is one voice; is_new: 1: the event is a push of a voice that the
	 * buffer lacked */
	uint32_t pushes, voices;
	int keys, is_new;
	uint64_t accepted;
};

/* This struct has the weights of one version, with which workers compute gradients. */
struct sim_version {
	uint64_t epoch, version;
	float w[SIM_PORTIONS];
};

struct wire; /* defined in proto/wire.h */

struct sim {
	uint64_t seed;
	struct sim_limits limits;
	int trace;
	struct rng plan, chance;
	char tensors[32]; /* the list of tensors that the workers send */
	struct net net;
	struct disk disk;
	struct core_config cfg;
	struct options options;
	struct shuffled_engine engine, serial_engine; /* see shuffled_engine.h */
	/* the mode of this run, a value of enum sim_mode */
	int mode;
	int training; /* 1: the run trains (batch ledger); 0: ledger gradient */
	/* 1: the final weights are compared with a run without faults (verdict "resume") */
	int exact;
	/* 1: the final weights are compared with a run in another order of arrival (verdict
	 * "order") */
	int ordered;
	/* an array of SIM_VERSIONS; sim_version finds a version in it */
	struct sim_version *versions;
	uint32_t n_workers, n_train;
	struct fault fault[SIM_FAULTS];
	uint32_t n_faults;
	uint64_t faults_end_ms;
	uint32_t save_ms; /* the maximum time of a save, in milliseconds */
	uint32_t compute_ms;
	uint32_t shorts, forgets; /* fault rates of the disk (disk.h) */
	int reports_lost_links;
	/* the milliseconds by which the clock of each node is ahead */
	uint64_t ahead_ms[SIM_NODES];
	/* the time that each process was awake, as the real programs measure it */
	struct awake awake[SIM_NODES];
	uint64_t disk_bad_until_ms;
	struct sim_server server;
	struct sim_wal wal;
	struct sim_steps steps;
	struct sim_voices voices;
	/* the worker whose replay is the current event; NULL: the event is no replay (replays.c) */
	const struct worker *replayer;
	int replay_is_late; /* 1: another push has counted a batch of the replayed push */
	/* worker[node - 1]; the twins come last */
	struct sim_worker worker[SIM_WORKERS + SIM_TWINS];
	uint64_t processes, links;
	uint32_t n_coordinates;
	enum expectation expected[SIM_COORDINATES];
	/* easgd: the move of the centre by each push, at the push's coordinate */
	float moved[SIM_COORDINATES][SIM_ELASTIC];
	float *final; /* the final weights */
	int finished; /* 1: the server has ended */
	int refused;  /* 1: the server could not start, because the disk lost data */
	/* 1: all pushes of a ledger run are made, and the simulator has requested a drain */
	int drained;
	int torn; /* 1: the end of this run cannot be compared with a run without faults */
	/* 1: a worker was stopped, or its link or the disk was slow, so it is no violation if the
	 * server suspects the worker */
	int suspectable;
	/* 1: the disk has space for three checkpoints, but not for four */
	int tight;
	int has_lanes;                 /* 1: workers may open shared-memory lanes */
	float lane_copy[SIM_PORTIONS]; /* the server's copy of the values of a push */
	uint64_t lane_pushes, torn_pushes;
	uint32_t foreign;     /* the node that begins with another data set; 0: none */
	uint64_t foreign_ms;  /* virtual time at which that worker gets the right data set */
	uint32_t liar;        /* the node that reports false evaluations; 0: none */
	int lies_in_loss;     /* 1: the liar reports false losses, and right numbers of images */
	uint32_t liar_starts; /* number of processes of the liar so far */
	uint32_t n_hostile;   /* number of hostile workers; 0: no worker has a key */
	/* bit i: the server lost incarnation i (modulo 64) of this slot because of its silence */
	uint64_t silenced[SIM_SLOTS];
	struct hostile hostile[SIM_HOSTILE];
	struct rng hostile_rng;
	struct wire *wire;
	struct roles *roles; /* the server's table of the owners of worker ids */
	/* for each batch: 1: a hostile worker to which the server granted it has delivered it */
	uint8_t foreign_batch[SIM_COORDINATES];
	uint64_t accepted_before;  /* number of accepted pushes before the current event */
	uint64_t hostile_messages; /* number of messages that hostile workers have sent */
	/* number of pushes of hostile workers that the server has accepted */
	uint64_t hostile_accepted;
	uint32_t disputes,
		/* number of EFFECT_DISPUTED; disputes: without, outvoted: with an accused worker */
		outvoted;
	/* the number of excluded workers, and of runs of the server that ended as diverged */
	uint32_t excluded, diverged;
	uint32_t quarantines, releases;
	uint32_t crashes, power_cuts, worker_crashes, leaps, cuts, drains, twins, hangs;
	/* the number of events, and a hash of all events and of the state at the end; both include
	 * the second run of a comparison */
	uint64_t events, digest;
	char violation[256]; /* empty: no violation */
};

void sim_init(struct sim *s);
void sim_release(struct sim *s);
/* Runs one seed. Returns 0 if the run has no violation. If it has a violation, returns 1, and
 * s->violation describes it. */
int sim_run(struct sim *s, uint64_t seed, const struct sim_limits *limits, int trace);

/* The files of the simulator share the functions below. */
/* functions of state.c */
/* Returns the entry of `versions` in which the weights of this version would be stored. The entry
 * may contain another version, which the caller must check. */
struct sim_version *sim_version(struct sim *s, uint64_t epoch, uint64_t version);
/* Returns 1 for EASGD with the elastic ledger. The vector then has, in this order, the coordinates
 * of the centre, a coordinate for each batch, and a coordinate for each push. */
int sim_has_elastic_ledger(const struct sim *s);
/* Return the first coordinate of the batches, and the first coordinate of the pushes. */
uint32_t sim_first_batch(const struct sim *s);
uint32_t sim_first_push(const struct sim *s);
/* Returns the number of images in the batches [first, first + count) of an epoch. */
uint32_t sim_images(const struct sim *s, uint32_t first, uint32_t count);
/* Returns the time that the process of a node reads from its clock, which is the time for which the
 * process was awake. */
uint64_t sim_clock(struct sim *s, uint32_t node);
static inline struct sim_worker *worker_at(struct sim *s, uint32_t node)
{
	return &s->worker[node - 1];
}
void sim_violation(struct sim *s, const char *fmt, ...) PS_PRINTF(2, 3) __attribute__((cold));
/* These functions add to s->digest: a number, an event, the state at the end of a run. */
void sim_digest_add(struct sim *s, uint64_t value);
void sim_digest_event(struct sim *s, const struct item *it);
void sim_digest_end(struct sim *s);
void sim_trace(struct sim *s, const char *fmt, ...) PS_PRINTF(2, 3);

/* plan.c: draws the plan of the run from the seed. */
void plan_run(struct sim *s);

/* functions of faults.c */
void faults_schedule(struct sim *s);
void faults_happen(struct sim *s, uint32_t number);
const char *faults_text(const struct fault *f, char *out, size_t size);

/* functions of serial.c */
/* Return the loss and the gradient of portion i at weight w, as every worker of L-BFGS computes
 * them. */
double serial_loss(uint32_t i, float w);
float serial_gradient(uint32_t i, float w);
/* Computes the final weights of a run with one worker and no faults. */
void serial_run(struct sim *s, float w[SIM_PORTIONS]);

/* functions of node_server.c */
void server_start(struct sim *s);
/* Kills the server now. If `power` is 1, the host also loses all data that were not synced. */
void server_crash(struct sim *s, int power);
void server_event(struct sim *s, const struct event *ev);
void server_job(struct sim *s, struct item *it);
/* Queues a job for the thread pool. */
void server_take_job(void *arg, const struct job *job);
/* Ends the server's process. Called when the server has closed its sessions. */
void server_end(struct sim *s);
/* Releases all memory and files of the server's process. */
void server_release(struct sim *s);
/* Sends a message from the server on this connection, if the worker of the connection is alive. */
void sim_send(struct sim *s, uint32_t link, const struct msg *m);
/* Restores the state from the disk, as a start does. Returns NULL if the start failed, which is a
 * violation unless the disk has lost data. */
struct core *server_restore(struct sim *s, struct startup *r);

/* functions of node_wal.c. Without a write-ahead log these functions only send messages. */
void sim_wal_reset(struct sim *s);
/* Creates the first write-ahead log of a start. */
int sim_wal_open(struct sim *s, struct err *e) PS_MUST_CHECK;
/* Checks that a start has restored a version that is not older than the newest version that a
 * worker has received, with the same weights. */
void sim_wal_check_restored(struct sim *s);
/* Releases the log and the replies of the server's process. */
void sim_wal_release(struct sim *s);
/* sim_wal_event logs an event before the core receives it, and returns the event's LSN, or 0
 * without a log. sim_wal_stepped records the changes of the core. */
uint64_t sim_wal_event(struct sim *s, const struct event *ev);
void sim_wal_stepped(struct sim *s, uint64_t lsn);
/* Sends a message at once or, if `durable_first` is 1, when all events on which the message depends
 * are on the disk. */
void sim_wal_send(struct sim *s, const struct item *to, const struct msg *m, int durable_first);
void sim_wal_rotate(struct sim *s, uint64_t generation);
void sim_wal_durable(struct sim *s, uint64_t generation);
void sim_wal_finish(struct sim *s);
/* Returns 1 if the log needs a snapshot now. Called at each tick. */
int sim_wal_wants_snapshot(struct sim *s);
/* Returns how long replies have waited for the disk, in milliseconds of the server's clock. Called
 * at each tick. */
uint64_t sim_wal_held_ms(struct sim *s);

/* lane.c: shared-memory lanes. The next four functions are for these events, in this order: a
 * worker has received a WELCOME; it sends a push; its pushes up to `durable` are durable; it was
 * killed. */
void sim_lane_welcomed(struct sim *s, struct sim_worker *w);
void sim_lane_push(struct sim *s, struct sim_worker *w, struct msg_push *p);
void sim_lane_release(struct sim_worker *w, uint64_t durable);
void sim_lane_killed(struct sim *s, struct sim_worker *w);
/* Called when the server sends a WELCOME of worker `slot` to the node on connection `link`. */
void sim_lane_offer(struct sim *s, uint32_t node, uint32_t link, uint32_t slot);
/* Finds the values of a push that the server has received. Returns PS_EAGAIN if the server must
 * treat the push as lost. Returns PS_ESTATE if the connection has no lane. */
int sim_lane_join(struct sim *s, const struct item *it);

/* functions of node_worker.c */
void worker_start(struct sim *s, uint32_t node);
void worker_leave(struct sim *s, uint32_t node, uint32_t back_ms);
/* Starts another process with the name of this worker after `in_ms`. Returns the node to which the
 * old process moves. Starts nothing and returns 0 if the worker has no name, does not run or is
 * ending, or if no node is free. */
uint32_t worker_twin(struct sim *s, uint32_t node, uint32_t in_ms);
void worker_message(struct sim *s, uint32_t node, const struct msg *m);
void worker_tick(struct sim *s, uint32_t node);
/* Called when the connections of the worker were lost and established again. */
void worker_relink(struct sim *s, uint32_t node);

/* functions of worker_effects.c */
/* Returns the node, from 1, of connection `link`, or 0 if the connection is closed. */
uint32_t worker_of_link(const struct sim *s, uint32_t link);
void worker_crash(struct sim *s, uint32_t node);
/* Begins to compute a gradient or an evaluation, which ends after some virtual time. */
void worker_compute(struct sim *s, uint32_t node);
/* Called when the server has rejected a replay. The worker with this connection replayed push
 * `seq`, which the server had accepted before a crash. */
void worker_lost_push(struct sim *s, uint32_t link, uint64_t seq);
void worker_run_effects(struct sim *s, uint32_t node);

/* functions of program.c: the requests, computations and pushes of a worker. */
void program_step(struct sim *s, uint32_t node);
void program_computed(struct sim *s, uint32_t node);

/* functions of verdict.c */
/* Compares the state on the disk with all ledgers at the end of the run. */
void verdict(struct sim *s);
/* steps.c: in runs of sync, these functions run before and after each step of the core. */
void steps_before(struct sim *s);
void steps_after(struct sim *s, const struct event *ev);

/* replays.c: the first function runs before each step of the core. If it sets s->replayer, the
 * second one runs after the step. */
void replays_before(struct sim *s, const struct event *ev);
void replays_after(struct sim *s, const struct event *ev);

/* voices.c: in runs of downpour, these functions run before and after each step of the core. */
void voices_before(struct sim *s, const struct event *ev);
void voices_after(struct sim *s, const struct event *ev);

/* hostile.c: runs with hostile workers. */
void hostile_begin(struct sim *s);
/* Called for each event of a hostile worker. */
void hostile_happen(struct sim *s, const struct item *it);
/* Does what the server's shell does with a message before the core gets it: checks the role of the
 * key and its share of the slots, and writes the key to a HELLO. Returns 0 if the core must not get
 * the message. */
int hostile_admit(struct sim *s, struct item *it);

/* functions of hostile_ledger.c */
/* Returns 1 if the node is that of a hostile worker. */
static inline int hostile_is(uint32_t node)
{
	return node >= SIM_FIRST_HOSTILE && node < SIM_FIRST_HOSTILE + SIM_HOSTILE;
}
int hostile_has_link(const struct hostile_session *h, uint32_t link);
/* Returns the node of the hostile worker with this connection, or 0. */
uint32_t hostile_of_link(const struct sim *s, uint32_t link);
/* Writes the key of a node to `key` (KEY_TEXT bytes). */
void hostile_key(char *key, uint32_t node);
/* Returns the number of batches of an epoch. */
uint32_t hostile_batches(const struct sim *s);
/* Called at each start of the server. */
void hostile_server_started(struct sim *s);
/* Called when the server has assigned a worker id. */
void hostile_assigned(struct sim *s, const struct effect *e);
/* Called for each message that the server sends. */
void hostile_sent(struct sim *s, uint32_t link, const struct msg *m);
/* Returns the node of the hostile worker that sent this push, or 0. */
uint32_t hostile_sender(const struct sim *s, const struct event *ev);
/* In hostile runs, these functions run before and after each step of the core. */
void hostile_before(struct sim *s);
void hostile_after(struct sim *s, const struct event *ev);
/* Returns 1 if a hostile worker has delivered the batch with this coordinate. */
int hostile_delivered(const struct sim *s, uint32_t batch);

/* functions of bounds.c */
/* Remembers, before an event of the server, which workers the server expects back, and which grants
 * the workers have. */
void bounds_before(struct sim *s);
/* Checks, after an event of the server, who evaluates (promise 3 of server/core/leases.h). */
void bounds_after(struct sim *s);
/* Checks all bounds after an event of this node. */
void bounds_check(struct sim *s, uint32_t node);
/* Prints the states of the worker slots, of the run, of the workers and of the disk. */
void bounds_trace(struct sim *s);
/* Notes an EFFECT_WORKER that reports a worker lost after a silence of dead_ms. */
void bounds_note_silence(struct sim *s, const struct effect *e);
/* Returns 1 if the server waits for --min-workers. */
int bounds_too_few(const struct sim *s);
/* Checks the number of checkpoints. Call this function after a save on a disk without faults. */
void bounds_disk(struct sim *s);

#endif
