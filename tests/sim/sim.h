/*
 * sim.h - one whole run of cnn-ps in one thread and virtual time: the real server core, real worker
 * sessions, a hostile network, a disk that finishes late, fails or forgets, and lives that end at
 * any moment. One seed decides all.
 *
 * Verdicts (faults.md 1.4): the ledger gradient - push i sets coordinate i to 1 at rate 1, so at
 * the end each coordinate is -1 (applied once), 0 (lost) or -2 (twice) - and the batch ledger: in
 * training mode a coordinate stands for a batch of an epoch, and every one must be exactly -1.
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
	uint64_t version;                /* of the weights pulled last */
	uint32_t to_push;                /* ledger mode: pushes still to make, over all lives */
	uint32_t coordinate[SIM_WINDOW]; /* of the kept pushes, at seq % SIM_WINDOW */
	struct msg_grant grant;          /* training mode: what it works on; count 0: nothing */
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
	int training; /* batch ledger; else ledger gradient */
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
void sim_violation(struct sim *s, const char *fmt, ...) PS_PRINTF(2, 3);
void sim_trace(struct sim *s, const char *fmt, ...) PS_PRINTF(2, 3);

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
