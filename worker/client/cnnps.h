/*
 * cnnps.h - libcnnps: makes any C program a worker of a cnn-ps server.
 *
 * Connect, pull weights, push gradients. The library retains every push until the server has
 * stored it on disk, and sends it again after a crash of the server or a loss of the connection.
 * A push that returned 0 is applied exactly once, provided that this process stays alive. A
 * background thread sends heartbeats and maintains the connection between the calls.
 *
 * This header includes no other header of the project. A call returns 0 or a negative CNNPS_E*
 * status (the numbers are those of common/err.h); cnnps_strerror describes one.
 *
 * Thread: one thread of the program at a time per struct cnnps.
 */
#ifndef WORKER_CLIENT_CNNPS_H
#define WORKER_CLIENT_CNNPS_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cnnps; /* opaque */

/* The training data of this worker. All zero for a model without a data set (vector:N). */
struct cnnps_data {
	uint32_t n_train, n_test, rows, cols, classes;
	uint64_t xxh3;     /* fingerprint, see proto/WIRE.md */
	uint32_t channels; /* of an image; 0: 1 */
};

struct cnnps_options {
	const char *server; /* ZeroMQ endpoint, "tcp://127.0.0.1:5555" */
	/* Files made by cnn-ctl keygen: the secret key of this program and the public key of the
	 * server. key NULL: no encryption. server_key NULL: server.pub beside `key`. */
	const char *key, *server_key;
	/* A worker that connects with the same name again gets the same slot again. NULL or "":
	 * the server assigns a slot. */
	const char *name;
	const char *device; /* for display; NULL: none */
	struct cnnps_data data;
	int observer; /* 1: pull and status only; uses no worker slot */
	/* Give up without a WELCOME after this time. 0: 30000 */
	uint32_t connect_timeout_ms;
	/* Give up after this time without contact. 0: 600000 */
	uint32_t disconnect_timeout_ms;
	/* Stop the heartbeats after this time without a call, so that the server detects a hang.
	 * 0: 60000 */
	uint32_t batch_timeout_ms;
	/* Maximum memory for pushes that are not durable yet. 0: 256 MiB */
	uint64_t replay_bytes;
	/* NULL, or called ten times a second by the thread that holds the I/O lock. Nonzero ends
	 * the current wait and all later ones with CNNPS_ESHUTDOWN; pushes and results get 5 s
	 * more. */
	int (*stop)(void *arg);
	void *stop_arg;
	/* NULL, or the allocator for gradients and received weights, for example of pinned memory
	 * for a GPU. take returns zeroed memory aligned to 64 bytes, or NULL. Both threads call
	 * take and give. */
	void *(*take)(size_t bytes);
	void (*give)(void *memory);
	/* NULL: waits are logged on stderr. Otherwise called with one line for a person when a
	 * wait for the server or for work takes longer than 1.5 s, then at growing intervals, by
	 * the thread that holds the I/O lock. */
	void (*report)(void *arg, const char *line);
	void *report_arg;
	char why[512]; /* out: after a failure, one line for a person */
};

/* How the gradients of several workers are combined. proto/WIRE.md, "Modes", specifies what a
 * worker does in each. */
enum cnnps_mode {
	CNNPS_DOWNPOUR = 1,
	CNNPS_SSP,
	CNNPS_SYNC,
	CNNPS_SANDBLASTER,
	CNNPS_EASGD,
};

struct cnnps_info {
	const char *model; /* canonical text */
	uint64_t n_params, seed;
	uint32_t batch;  /* images per batch */
	uint32_t epochs; /* 0: the run has no data set */
	uint32_t worker, incarnation;
	uint64_t term;
	enum cnnps_mode mode;
	uint32_t n_push, n_fetch;    /* batches per push, and per pull; at least 1 */
	int push_sum;                /* a push is the sum (1) or the mean (0) of its gradients */
	int prefetch;                /* 1: pull while computing */
	double local_rate, momentum; /* of the worker's local steps; momentum 0: none */
};

enum { CNNPS_TRAIN = 1, CNNPS_EVAL = 2 };

struct cnnps_lease {
	int kind;              /* CNNPS_TRAIN or CNNPS_EVAL */
	uint32_t epoch;        /* TRAIN: from 0; determines the order of the images */
	uint32_t first, count; /* TRAIN: batches; EVAL: test images */
	uint64_t eval_id;
	int exact; /* TRAIN: 1: one push for the whole lease, computed at `version` of `term` */
	uint64_t version, term;
};

/* The weights after `version` updates in term `term` of the server. */
struct cnnps_weights {
	const float *w; /* n_params floats */
	uint64_t version, term;
	/* EASGD: the fraction of their distance that worker and center each move */
	double elastic;
};

/* The batches that a push covers. */
struct cnnps_work {
	uint32_t epoch, first, count; /* batches of a lease; count 0: none */
	uint32_t images;
	float loss; /* mean over the images */
};

struct cnnps_stats {
	uint64_t pushed, acked, rejected, durable; /* pushes */
	uint64_t last_version;                     /* newest version that the server reported */
	uint64_t reconnects, replayed;
	/* pushes without effect: another worker was first, or the step was over */
	uint64_t superseded;
};

/* Connect and wait for the WELCOME. On failure *out is NULL and o->why has the reason. */
int cnnps_connect(struct cnnps **out, struct cnnps_options *o);
/* The run and this worker's session, set by cnnps_connect; valid until cnnps_close. */
const struct cnnps_info *cnnps_info(const struct cnnps *c);
/* Copy the newest weights (n == n_params floats) and their version (may be NULL). Blocks. */
int cnnps_pull(struct cnnps *c, float *w, size_t n, uint64_t *version);
/* The same without a copy: w->w stays valid and unchanged until the next cnnps_view,
 * cnnps_push_view or cnnps_close. */
int cnnps_view(struct cnnps *c, struct cnnps_weights *w);
/* Start a pull and return at once. The next cnnps_view or cnnps_pull returns its weights, which
 * do not include pushes made after this call. */
int cnnps_prefetch(struct cnnps *c);
/* Wait until the weights for the next cnnps_view or cnnps_pull have arrived. That call still
 * verifies their checksum, which takes time; requests and pushes made before it overlap with the
 * verification. */
int cnnps_await(struct cnnps *c);
/* Pull the weights that an EVAL lease evaluates. */
int cnnps_pull_eval(struct cnnps *c, float *w, size_t n, uint64_t *version);
/* Push gradient g of n == n_params floats, computed at `version`. Copies g. Returns at once unless
 * the window is full. 0: the server will decide this push exactly once; cnnps_stats counts the
 * decisions. */
int cnnps_push(struct cnnps *c, const float *g, size_t n, uint64_t version);
/* A buffer of n_params floats for the next gradient. A push of the whole buffer takes it over
 * instead of copying it; call this again for the next gradient. It contains zeros or an earlier
 * gradient of this program. NULL: no memory. */
float *cnnps_gradient(struct cnnps *c);
/* cnnps_push with the batches that it covers. */
int cnnps_push_work(
	struct cnnps *c, const float *g, size_t n, uint64_t version, const struct cnnps_work *work);
/* cnnps_push_work and the cnnps_view after it in one request: half the round trips. `work` may be
 * NULL. After a failure, cnnps_stats tells whether the push was made. */
int cnnps_push_view(struct cnnps *c, const float *g, size_t n, uint64_t version,
	const struct cnnps_work *work, struct cnnps_weights *w);
/* Push only the values [offset, offset + n); all others count as zero. */
int cnnps_push_slice(struct cnnps *c, uint64_t offset, const float *g, size_t n, uint64_t version);
/* Wait for work. Blocks until the server grants a lease. CNNPS_EDONE: training is over. Returns
 * the unfinished part of the previous lease to the server. */
int cnnps_lease(struct cnnps *c, struct cnnps_lease *lease);
/* Send the result of an EVAL lease. */
int cnnps_result(
	struct cnnps *c, const struct cnnps_lease *lease, uint32_t correct, double loss_sum);
/* Wait until every push is decided (durable != 0: and on the server's disk), for at most
 * timeout_ms. CNNPS_EAGAIN: not all are. */
int cnnps_flush(struct cnnps *c, int durable, uint32_t timeout_ms);
/* The server's status as JSON, at most size - 1 bytes and a NUL. Also for observers. When the run
 * ends, an observer that called this in the last 10 s gets one final status ("ending": "done" ...)
 * and after that CNNPS_EDONE. */
int cnnps_status(struct cnnps *c, char *json, size_t size);
/* Make the server write a checkpoint now, or drain: write a last checkpoint and exit. */
int cnnps_checkpoint(struct cnnps *c, uint64_t *generation);
int cnnps_drain(struct cnnps *c);
/* Set the server's log level until its next start: "error", "warn", "info" or "debug". */
int cnnps_log_level(struct cnnps *c, const char *level);
/* Report progress. Call it if other calls may be more than batch_timeout_ms apart. Costs
 * nothing. */
void cnnps_alive(struct cnnps *c);
void cnnps_stats(const struct cnnps *c, struct cnnps_stats *s);
/* Wait up to 5 s for decisions, send BYE, join the thread, free the struct and set *c to NULL; *c
 * may be NULL. */
void cnnps_close(struct cnnps **c);
const char *cnnps_strerror(int status);
/* The reason in one line if the newest call failed because the session ended or the server refused
 * it, else "". Valid until the next call. */
const char *cnnps_why(const struct cnnps *c);

/* The statuses that callers commonly test for. */
#define CNNPS_EUNREACHABLE (-4)
#define CNNPS_EFENCED      (-6)
#define CNNPS_EAUTH        (-11)
#define CNNPS_ESHUTDOWN    (-19)
#define CNNPS_EDONE        (-20)
#define CNNPS_EAGAIN       (-21)

#ifdef __cplusplus
}
#endif
#endif
