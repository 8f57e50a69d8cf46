/*
 * config.h - everything that a run is made of, divided by the module that it belongs to.
 *
 * The part that must not change when a run is resumed is in the checkpoint and compared there.
 * Ranges are the option table's (server/config/options.c).
 */
#ifndef SERVER_CORE_CONFIG_H
#define SERVER_CORE_CONFIG_H
#include <stddef.h>
#include <stdint.h>
#include "proto/msg.h"
#include "server/core/optim.h"

/* What a gradient that is tau versions old does to the rate (algorithms: Zhang 2016, arXiv
 * 1511.05950). */
enum staleness_scaling {
	STALE_CONSTANT, /* eta */
	STALE_RELATIVE, /* eta / max(1, tau / live workers): only gradients staler than their share
			   shrink */
	STALE_INVERSE,  /* eta / max(1, tau) */
};
#define STALENESS_SCALING_NAMES "constant|relative|inverse"

/* When an idle worker gets a copy of work that another one has. */
enum backup_copies {
	BACKUP_LATE,      /* when the other one is late, see pace.h */
	BACKUP_IMMEDIATE, /* at once (Dean 2012, Sandblaster) */
	BACKUP_NONE,
};
#define BACKUP_NAMES "late|immediate|none"

struct training_options {
	enum mode mode;
	uint64_t seed;
	uint32_t batch_size;  /* images per batch, >= 1 */
	uint32_t epochs;      /* 0: no data set, no leases; ends at max_updates or a drain */
	uint64_t max_updates; /* 0: no bound */
};

struct rate_options {
	double lr;               /* eta, > 0 */
	enum lr_scaling scaling; /* downpour, ssp, sync; the others have none */
	uint32_t scaling_warmup; /* updates */
	enum staleness_scaling staleness_scaling;
};

/* What a worker computes between two pulls: in WELCOME. */
struct push_options {
	uint32_t n_push, n_fetch; /* downpour, ssp, easgd */
	int sum, prefetch;
	double local_lr;
	uint32_t buffer_size; /* downpour, ssp: gradients of an update; 0 and 1: each by itself */
};

struct dc_options {
	double lambda; /* delay compensation (Zheng 2017); 0: none */
	int adaptive;  /* 1: lambda / sqrt(mean square of the gradient) */
};

struct easgd_options {
	double beta;     /* of the distance to the centre, all members together */
	double momentum; /* of the workers' own steps; 0: none */
};

struct ssp_options {
	uint32_t bound; /* batches that one may be ahead of the slowest */
};

struct sync_options {
	uint32_t workers;        /* gradients that make a step; 0: all live workers' but those of
				    backup_workers */
	uint32_t backup_workers; /* workers of a step that it does not wait for */
};

struct sandblaster_options {
	uint32_t step_images; /* images of a step; 0: all */
};

struct lbfgs_options {
	uint32_t history;     /* pairs kept, 1..LBFGS_MAX_HISTORY */
	uint32_t trials;      /* points that one line search evaluates at most, >= 1 */
	double armijo, wolfe; /* 0 < armijo < wolfe < 1 */
};

/* Which gradients are refused. */
struct limit_options {
	uint32_t max_staleness; /* 0: 32 times the live workers; ssp: none */
	double reject_norm;     /* a push with a larger L2 norm; 0: no limit */
};

struct lease_options {
	uint32_t warm_start_updates; /* by one worker, before the others get leases */
	uint32_t warm_start_ramp;    /* updates from one more worker to the next after that; 0: all
					start */
	uint32_t max_batches;        /* in one lease, >= 1 */
	enum backup_copies backup_copies;
	uint32_t first_deadline_ms; /* of a grant while nobody has delivered anything, >= 1 */
	uint32_t eval_images;       /* test images in one evaluation lease, >= 1 */
	uint32_t min_workers;       /* no lease before this number of workers is live, >= 1 */
};

struct session_options {
	uint32_t max_workers;                       /* slots, 1..WIRE_MAX_WORKERS */
	uint32_t push_window, replay_window;        /* see msg_welcome */
	uint32_t heartbeat_ms, suspect_ms, dead_ms; /* each less than the next */
	uint32_t ttl_ms;      /* >= dead_ms. After a restart the slot of a worker that has not come
				 back is kept for this time, because it may hold pushes that no
				 snapshot has; a worker gives up by itself first */
	uint32_t recovery_ms; /* after a restart: no new lease until every live worker is back, for
				 at most this time */
	int accept_rollback;  /* go on with workers that know of newer durable pushes than this
				 state */
};

struct checkpoint_options {
	uint32_t interval_ms; /* between snapshots, at least */
	int journal; /* every event goes to a journal before what follows from it is sent: what is
			decided is durable when a peer learns of it */
};

struct core_config {
	struct run_id run;
	uint64_t term;       /* of the server: >= 1, one more at every start */
	uint64_t generation; /* newest snapshot there is: the core's first one is generation + 1 */
	int durable; /* snapshots go to a disk; 0: there is none and ACK says durable at once */
	char model[WIRE_MAX_MODEL + 1];
	uint64_t model_fingerprint;
	size_t n_params;
	uint64_t data_id; /* fingerprint that a worker's data set must have, if data_id_given */
	int data_id_given;
	struct training_options training;
	struct optim optim;
	struct rate_options rate;
	struct schedule schedule;
	struct push_options push;
	struct dc_options dc;
	struct easgd_options easgd;
	struct ssp_options ssp;
	struct sync_options sync;
	struct sandblaster_options sandblaster;
	struct lbfgs_options lbfgs;
	struct limit_options limits;
	struct lease_options leases;
	struct session_options sessions;
	struct checkpoint_options checkpoint;
};

#endif
