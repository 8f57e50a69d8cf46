/*
 * sim.h - one whole run of cnn-ps in one thread and virtual time: the real server core, real worker
 * sessions, a hostile network, a disk that finishes late, fails or forgets, and lives that end at
 * any moment. One seed decides all.
 *
 * Verdicts (faults.md 1.4): the ledger gradient - push i sets coordinate i to 1 at rate 1, so at
 * the end each coordinate is -1 (applied once), 0 (lost) or -2 (twice) - and the batch ledger: in
 * training mode a coordinate stands for a batch of an epoch, and every one must be exactly -1. With
 * L-BFGS a coordinate stands for a portion of the set, and the run must end where the same run does
 * with one worker and no faults: no portion of any pass was lost or counted twice.
 */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H
#include "server/core/core.h"
#include "server/core/image.h"
#include "tests/sim/net.h"
#include "worker/session.h"

#define SIM_WORKERS     5u
#define SIM_COORDINATES 2048u
#define SIM_WINDOW      64u
#define SIM_PORTIONS    64u  /* most batches of an epoch */
#define SIM_VERSIONS    512u /* weights whose values are remembered */

/* Those of enum mode, and L-BFGS. */
enum sim_mode { SIM_ANY, SIM_DOWNPOUR, SIM_SSP, SIM_SYNC, SIM_SANDBLASTER, SIM_LBFGS };
#define SIM_MODE_NAMES "any|downpour|ssp|sync|sandblaster|lbfgs"

/* What became of a push of ledger mode. */
enum fate {
	FATE_MUST,     /* its worker lives or has seen it durable: exactly once, unless rejected */
	FATE_REJECTED, /* told so: never applied */
	FATE_ORPHAN,   /* its worker died before it was durable: at most once */
};

struct sim_worker {
	struct session *session; /* NULL: dead */
	uint64_t life;           /* unique over the run; 0: none yet */
	uint32_t bulk, beat;     /* link numbers */
	int paused;
	int named;
	uint64_t version, version_epoch; /* of the weights pulled last */
	uint32_t to_push;                /* ledger mode: pushes still to make, over all lives */
	struct gradient {
		uint32_t first, count;
		float value[SIM_PORTIONS];
	} gradient[SIM_WINDOW]; /* of the kept pushes, at seq % SIM_WINDOW */
	struct msg_grant grant; /* training mode: what it works on; count 0: nothing */
	int computing, done;
};

struct sim_server {
	void *memory;
	_Alignas(64) float weights[2][SIM_COORDINATES]; /* one is the core's, the other is lent */
	struct core *core;                              /* NULL: down */
	uint64_t life, epoch;
	int finished;
	unsigned char *saving; /* the image under way, at image offsets */
	size_t saving_size[IMAGE_SECTIONS];
	uint64_t saving_generation;
	int save_will_fail;
	int written; /* on disk, but the core was not told yet */
};

/* L-BFGS: what the weights were, for the workers to compute at. */
struct sim_version {
	uint64_t epoch, version;
	float w[SIM_PORTIONS];
};

struct sim_disk {
	unsigned char *image; /* newest durable image, sections one after the other; size 0: none */
	size_t size[IMAGE_SECTIONS];
	uint64_t generation;
};

struct sim {
	uint64_t seed;
	int trace;
	struct net net;
	struct core_config cfg;
	int training;                 /* batch ledger; else ledger gradient */
	int mode;                     /* enum sim_mode: only this one */
	struct sim_version *versions; /* SIM_VERSIONS, by version */
	uint32_t n_workers, n_train;
	uint64_t faults_end_ms;
	uint32_t save_ms, save_fails; /* most time a save takes; failures per 1000 */
	uint32_t compute_ms;
	int tell_lost_links;
	size_t room; /* bytes of core memory and of an image */
	struct sim_server server;
	struct sim_disk disk;
	struct sim_worker worker[SIM_WORKERS];
	uint64_t lives, links;
	uint32_t n_coordinates;
	enum fate fate[SIM_COORDINATES];
	uint32_t crashes, worker_crashes;
	char violation[256]; /* empty: none */
};

void sim_init(struct sim *s);
void sim_release(struct sim *s);
/* One run. 0: clean; 1: s->violation says what broke. */
int sim_run(struct sim *s, uint64_t seed, int trace);

/* shared by the files of the simulator */
/* The place of these weights among the remembered ones. */
struct sim_version *sim_version(struct sim *s, uint64_t epoch, uint64_t version);
/* Images of batches [first, first + count) of an epoch. */
uint32_t sim_images(const struct sim *s, uint32_t first, uint32_t count);
void sim_violation(struct sim *s, const char *fmt, ...) PS_PRINTF(2, 3);
void sim_trace(struct sim *s, const char *fmt, ...) PS_PRINTF(2, 3);

/* serial.c */
/* Loss and gradient of portion i at w, as every worker of L-BFGS computes it. */
double serial_loss(uint32_t i, float w);
float serial_gradient(uint32_t i, float w);
/* The weights that one worker and no fault end with; `memory` as sim.room. */
void serial_run(struct sim *s, void *memory, float w[SIM_PORTIONS]);

/* node_server.c */
void server_start(struct sim *s);
void server_crash(struct sim *s);
void server_event(struct sim *s, const struct event *ev);
void server_saved(struct sim *s, const struct item *it);
/* The final image on disk against both ledgers. */
void server_verdict(struct sim *s);

/* node_worker.c */
void worker_start(struct sim *s, uint32_t node);
void worker_crash(struct sim *s, uint32_t node);
void worker_message(struct sim *s, uint32_t node, const struct msg *m);
void worker_tick(struct sim *s, uint32_t node);
void worker_computed(struct sim *s, uint32_t node);
/* Its connections broke and were made again. */
void worker_relink(struct sim *s, uint32_t node);
/* Node (1..) whose connection `link` is; 0: nobody's any more. */
uint32_t worker_of_link(const struct sim *s, uint32_t link);

#endif
