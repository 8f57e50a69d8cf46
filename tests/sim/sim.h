/*
 * sim.h - a whole run of cnn-ps in one thread and virtual time. The server core, the checkpointer,
 * start-up and the worker sessions are the real code. The network is hostile, the disk keeps only what
 * POSIX promises, clocks leap, and processes die at any moment. A seed decides everything.
 *
 * Verdicts (tests/sim/README.md lists all of them, and the file that decides each):
 *   ledger gradient  push i sets coordinate i to 1 at rate 1, so at the end each coordinate is -1
 *                    (applied once), 0 (lost) or -2 (twice).
 *   batch ledger     in training a coordinate stands for a batch of an epoch: every one must be
 *                    exactly -1, and each epoch must count every image once.
 *   portion ledger   with L-BFGS a coordinate stands for a portion of the set, and the run must
 *                    end with the weights of the same run with one worker and no faults.
 *   elastic ledger   with EASGD each push also has a coordinate of its own: the centre must be
 *                    the sum of the moves of all applied pushes.
 *   resume           one worker and a network that keeps order: the final weights equal those of
 *                    the same run without faults, bit for bit.
 *   order            sync, several workers and no fault: the final weights equal those of a run
 *                    whose messages arrive in another order, bit for bit.
 *   members          no step of sync misses a live member (steps.c).
 *   deadlines        by DEADLINE_MS of virtual time the server and every worker have finished.
 *   bounds           bounds.c, after each event.
 */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H
#include "common/clock.h"
#include "server/durability/disk_wait.h"
#include "server/durability/wal.h"
#include "server/config/options.h"
#include "server/durability/startup.h"
#include "server/durability/checkpointer.h"
#include "tests/sim/calls.h"
#include "tests/sim/disk.h"
#include "tests/sim/net.h"
#include "worker/client/session.h"

#define SIM_WORKERS     5u
#define SIM_TWINS       2u /* processes that were alive when another one took over their name */
#define SIM_SLOTS       (SIM_WORKERS + 3)
#define SIM_COORDINATES 2048u
#define SIM_WINDOW      64u
#define SIM_PORTIONS    64u  /* largest number of batches of an epoch */
#define SIM_VERSIONS    512u /* versions whose weights are stored */
#define SIM_ELASTIC     4u   /* coordinates of the centre of EASGD, the first ones */
#define SIM_FAULTS      24u
#define SIM_JOBS        4u
#define SIM_HELD        1024u /* replies that may wait for the journal */

enum sim_mode {
	SIM_ANY,    /* the seed chooses */
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

/* The parts of a seed's run that are left out. A shrunk case is a seed with limits. */
struct sim_limits {
	int mode;         /* enum sim_mode */
	uint32_t workers; /* at most; 0: the seed's number */
	uint32_t steps;   /* pushes of a worker or batches of an epoch, at most; 0: the seed's */
	uint32_t faults;  /* bit i: fault i of the seed may happen */
	uint64_t strikes_from, strikes_to; /* the losses and duplications that may happen */
	int calm;                          /* messages keep their order and take equal time */
};

enum fault_kind {
	FAULT_KILL,  /* of the server (node 0) or a worker: kill -9 */
	FAULT_POWER, /* of the server's host */
	FAULT_DRAIN, /* SIGTERM of the server, and a restart */
	FAULT_STOP,  /* SIGSTOP for `ms` */
	FAULT_LEAP,  /* the node's monotonic clock leaps ahead by `ms` */
	FAULT_CUT,   /* its links lose every message for `ms`; way: 1 to the server, 2 from it */
	FAULT_SLOW,  /* its tensors take `in` ms each, for `ms` */
	FAULT_DISK,  /* calls of the disk fail for `ms` */
	FAULT_ROT,   /* a bit of the newest checkpoint flips */
	FAULT_LEAVE, /* a worker sends BYE and returns after `ms` */
	FAULT_NAN,   /* a worker's device breaks: its results are not finite from now on */
	FAULT_TWIN, /* a worker is started again while it is alive; way: 1 stopped, 2 cut off for `ms`
		      */
	FAULT_HANG, /* a worker's program stops for `ms` or forever, while its session sends heartbeats */
	FAULT_KINDS
};

/* The moment at which a killed process stops: at once, at effect `in` from now, or in disk operation
 * `in` from now. */
enum moment { AT_ONCE, AT_EFFECT, AT_OPERATION };

struct fault {
	enum fault_kind kind;
	uint64_t at_ms;
	uint32_t node, ms, in, way;
	enum moment moment;
};

/* What the weights must contain of a push of the ledger gradient. */
enum expectation {
	EXPECT_ONCE,  /* its worker lives or knows it durable: exactly once, unless rejected */
	EXPECT_NEVER, /* it was rejected: never */
	EXPECT_AT_MOST_ONCE, /* its worker died before it was durable: at most once */
};

#define SIM_NO_PUSH UINT32_MAX

struct gradient {
	uint32_t first, count;
	float value[SIM_PORTIONS];
	uint32_t push;              /* its coordinate; SIM_NO_PUSH: none */
	float elastic[SIM_ELASTIC]; /* easgd: minus what the centre moves by */
};

struct sim_worker {
	struct session *session; /* NULL: dead */
	uint64_t life;           /* unique in the run; 0: none yet */
	uint32_t bulk, beat;     /* link numbers */
	uint64_t stopped_until_ms;
	uint64_t hung_until_ms; /* FAULT_HANG; UINT64_MAX: forever */
	int named;
	uint64_t born_term;             /* of its first WELCOME; 0: none yet */
	uint64_t told_seq;              /* newest push whose verdict the program has received */
	uint32_t kill_in;               /* effects until it is killed; DISK_NEVER */
	uint32_t back_ms;               /* it leaves, and returns after this time; 0: it stays */
	uint64_t version, version_term; /* of the weights pulled last */
	uint32_t fetched_for;           /* batches that may still be computed at these weights */
	uint32_t to_push;               /* ledger: pushes still to make, by all its processes */
	struct msg_grant grant;         /* training: its work; count 0: none */
	int computing, done;
	double part; /* easgd: PARAMS.elastic */
	int started; /* easgd: own has a history */
	struct own { /* easgd: its weights */
		float x[SIM_PORTIONS], v[SIM_PORTIONS];
	} own;
	int foreign; /* it has another data set, gets work and delivers nothing */
	int broken;  /* its losses are NaN, until another process takes over */
	struct gradient gradient[SIM_WINDOW]; /* of the retained pushes, at seq % SIM_WINDOW */
};

struct sim_server {
	struct startup state;
	struct checkpointer *checkpointer;
	struct core *core; /* NULL: down */
	float *spare;      /* the buffer of weights that is not the core's first one */
	uint64_t life, epoch;
	uint64_t stopped_until_ms;
	uint32_t kill_in;         /* effects until it is killed; DISK_NEVER */
	int power;                /* ... by a power cut of its host */
	int ending;               /* as diverged: bounds.c has seen it */
	int over;                 /* finished: it only closes sessions */
	int status;               /* why */
	struct job job[SIM_JOBS]; /* queued for the pool */
	int job_ran[SIM_JOBS];    /* done, but not yet reported to the loop */
};

/* A message of the server to a worker. */
struct reply {
	uint64_t position;
	struct item to;
	struct msg msg;
};

/* --durability always: what waits for the disk, and what a start must restore. */
struct sim_journal {
	struct wal *wal;    /* NULL: down, or --durability replay */
	struct reply *held; /* a ring of SIM_HELD */
	uint32_t first, n;
	uint64_t bound, asked_ms;
	struct disk_wait disk_wait;
	uint64_t told_version; /* the newest version that a worker has received */
	struct seen {
		uint64_t version, hash;
	} seen[SIM_VERSIONS]; /* weights, by version */
};

/* Sync: the step under way, see steps.c. */
struct sim_steps {
	int known; /* its members are */
	int blind; /* until the next step begins */
	uint64_t version;
	uint32_t members, left,
		taken;              /* batches left in the epoch when the step began; gradients */
	uint32_t member[SIM_SLOTS]; /* incarnation; 0: none, or gone */
	int answered[SIM_SLOTS];
	int recovering; /* before the event under way */
	uint64_t accepted;
};

/* The weights of a version, at which workers compute. */
struct sim_version {
	uint64_t epoch, version;
	float w[SIM_PORTIONS];
};

struct sim {
	uint64_t seed;
	struct sim_limits limits;
	int trace;
	struct rng plan, chance;
	struct net net;
	struct disk disk;
	struct core_config cfg;
	struct options options;
	int mode;                     /* enum sim_mode, of this run */
	int training;                 /* batch ledger; else ledger gradient */
	int exact;                    /* resume: the end is compared with a run without faults */
	int ordered;                  /* sync: the end is compared with another order of arrival */
	struct sim_version *versions; /* SIM_VERSIONS, by version */
	uint32_t n_workers, n_train;
	struct fault fault[SIM_FAULTS];
	uint32_t n_faults;
	uint64_t faults_end_ms;
	uint32_t save_ms; /* the longest time of a save */
	uint32_t compute_ms;
	uint32_t shorts, forgets; /* of the disk */
	int tell_lost_links;
	uint64_t ahead_ms[SIM_NODES];  /* of each node's clock, compared with virtual time */
	struct awake awake[SIM_NODES]; /* the time awake of its process, as in the shells */
	uint64_t disk_bad_until_ms;
	struct sim_server server;
	struct sim_journal journal;
	struct sim_steps steps;
	const struct worker *replayer; /* of the event under way, see replays.c */
	int replay_is_late;            /* another push has counted one of its batches */
	struct sim_worker worker[SIM_WORKERS + SIM_TWINS]; /* by node - 1; the twins last */
	uint64_t lives, links;
	uint32_t n_coordinates;
	enum expectation expected[SIM_COORDINATES];
	float moved[SIM_COORDINATES][SIM_ELASTIC]; /* easgd: by the push of that coordinate */
	float *final;                              /* the final weights */
	int finished;                              /* the server has ended */
	int refused;         /* it could not start, because the disk has broken its promises */
	int drained;         /* ledger: everything is pushed, and a drain was requested */
	int torn;            /* its end cannot be compared with a run without faults */
	int hushed;          /* a worker was stopped or its link slow, so it may become suspect */
	int tight;           /* the disk has no space for a fourth checkpoint */
	uint32_t foreign;    /* node that begins with another data set; 0: none */
	uint64_t foreign_ms; /* until then */
	uint32_t excluded, diverged; /* workers; ends of the server for that reason */
	uint32_t crashes, power_cuts, worker_crashes, leaps, cuts, drains, twins, hangs;
	char violation[256]; /* empty: none */
};

void sim_init(struct sim *s);
void sim_release(struct sim *s);
/* One run. 0: clean; 1: s->violation says what broke. */
int sim_run(struct sim *s, uint64_t seed, const struct sim_limits *limits, int trace);

/* shared by the files of the simulator */
/* The place of these weights in `versions`. */
struct sim_version *sim_version(struct sim *s, uint64_t epoch, uint64_t version);
/* EASGD with the elastic ledger: coordinates are the centre's, the batches', the pushes'. */
int sim_has_elastic_ledger(const struct sim *s);
/* The first coordinate of the batches, and that of the pushes. */
uint32_t sim_first_batch(const struct sim *s);
uint32_t sim_first_push(const struct sim *s);
/* Images of batches [first, first + count) of an epoch. */
uint32_t sim_images(const struct sim *s, uint32_t first, uint32_t count);
/* The time awake of a node's process, by its monotonic clock. */
uint64_t sim_clock(struct sim *s, uint32_t node);
void sim_violation(struct sim *s, const char *fmt, ...) PS_PRINTF(2, 3);
void sim_trace(struct sim *s, const char *fmt, ...) PS_PRINTF(2, 3);

/* plan.c: what a seed decides. */
void plan_run(struct sim *s);

/* faults.c */
void faults_schedule(struct sim *s);
void faults_happen(struct sim *s, uint32_t number);
const char *faults_text(const struct fault *f, char *out, size_t size);

/* serial.c */
/* Loss and gradient of portion i at w, as every worker of L-BFGS computes it. */
double serial_loss(uint32_t i, float w);
float serial_gradient(uint32_t i, float w);
/* The final weights of one worker without faults. */
void serial_run(struct sim *s, float w[SIM_PORTIONS]);

/* node_server.c */
void server_start(struct sim *s);
/* Kill it now. With `power` the host loses what was not synced. */
void server_crash(struct sim *s, int power);
void server_event(struct sim *s, const struct event *ev);
void server_job(struct sim *s, struct item *it);
/* Run a job of the pool. */
void server_take_job(void *arg, const struct job *job);
/* Its session is closed: the process ends. */
void server_end(struct sim *s);
/* Release everything of its process. */
void server_release(struct sim *s);
/* Read the disk as a start does. NULL: the start is refused, and s->violation has the reason. */
struct core *server_restore(struct sim *s, struct startup *r);

/* node_journal.c. Without a log these functions only send. */
void journal_reset(struct sim *s);
/* Begin the first log of a start. */
int journal_boot(struct sim *s, struct err *e) PS_MUST_CHECK;
/* The start has restored the state of before. */
void journal_found(struct sim *s);
/* Release everything of its process. */
void journal_release(struct sim *s);
/* Before a step of the core: 0 or the position of its event. And after it. */
uint64_t journal_event(struct sim *s, const struct event *ev);
void journal_stepped(struct sim *s, uint64_t position, uint64_t version_before);
/* Send now, or when the events that it depends on are on the disk. */
void journal_say(struct sim *s, const struct item *to, const struct msg *m, int durable_first);
void journal_rotate(struct sim *s, uint64_t generation);
void journal_durable(struct sim *s, uint64_t generation);
void journal_finish(struct sim *s);
void journal_tick(struct sim *s);
/* At a tick: the time since the last tick in which replies have waited for the disk. */
uint64_t journal_held_ms(struct sim *s);

/* node_worker.c */
void worker_start(struct sim *s, uint32_t node);
void worker_crash(struct sim *s, uint32_t node);
void worker_leave(struct sim *s, uint32_t node, uint32_t back_ms);
/* Another process with its name starts after `in_ms`. Returns the node of the old process; 0: there is
 * no free one. */
uint32_t worker_twin(struct sim *s, uint32_t node, uint32_t in_ms);
void worker_message(struct sim *s, uint32_t node, const struct msg *m);
void worker_tick(struct sim *s, uint32_t node);
/* Its connections broke and were established again. */
void worker_relink(struct sim *s, uint32_t node);
/* The node (1..) of connection `link`; 0: it is closed. */
uint32_t worker_of_link(const struct sim *s, uint32_t link);
void worker_run_effects(struct sim *s, uint32_t node);

/* program.c: what a worker requests, computes and pushes */
void program_step(struct sim *s, uint32_t node);
void program_computed(struct sim *s, uint32_t node);
void program_params(struct sim *s, uint32_t node, const struct msg_params *p);

/* verdict.c */
/* Compare what is on the disk at the end with all ledgers. */
void verdict(struct sim *s);
/* steps.c: around each step of the core. */
void steps_before(struct sim *s);
void steps_after(struct sim *s, const struct event *ev);

/* replays.c: around each step of the core, too. */
void replays_before(struct sim *s, const struct event *ev);
void replays_after(struct sim *s, const struct event *ev);

/* bounds.c */
/* After an event of this node. */
void bounds_check(struct sim *s, uint32_t node);
/* Describe what each node waits for. */
void bounds_trace(struct sim *s);
/* The server waits for --min-workers. */
int bounds_too_few(const struct sim *s);
/* After a save on a disk that works. */
void bounds_disk(struct sim *s);

#endif
