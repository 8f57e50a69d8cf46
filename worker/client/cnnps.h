/*
 * cnnps.h - libcnnps: let any C program be a worker of a cnn-ps server.
 *
 * Connect, pull weights, push gradients. The library keeps every push until the server has it on
 * disk and sends it again after a crash of the server or the network: a push that returned 0 is
 * applied exactly once as long as this process lives. Between the calls a thread of its own beats
 * and looks after the connection.
 *
 * This header stands alone: no other of the project's is needed. All calls return 0 or a negative
 * CNNPS_E* (the numbers are those of common/err.h); cnnps_strerror explains one.
 *
 * Thread: one program thread at a time per struct cnnps.
 */
#ifndef WORKER_CLIENT_CNNPS_H
#define WORKER_CLIENT_CNNPS_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cnnps; /* opaque */

/* Training data of this worker; all zero for a model without (vector:N). */
struct cnnps_data {
	uint32_t n_train, n_test, rows, cols, classes;
	uint64_t xxh3; /* fingerprint, see proto/WIRE.md */
};

struct cnnps_options {
	const char *server; /* ZeroMQ endpoint, "tcp://127.0.0.1:5555" */
	/* NULL: not encrypted. The file of this program's secret key and that of the server's
	 * public one, NULL: server.pub beside `key` (cnn-ctl keygen makes them) */
	const char *key, *server_key;
	const char *name;   /* NULL or "": the server picks a slot; else the same name gets the same
			       slot again */
	const char *device; /* NULL or text for people */
	struct cnnps_data data;
	int observer;         /* 1: pull and status only, no worker slot */
	uint32_t connect_ms;  /* 0: 30000. Give up when no welcome came by then */
	uint32_t patience_ms; /* 0: 600000. Give up so long after contact was lost */
	uint32_t hang_ms; /* 0: 60000. Without a call for so long the beats stop: the server sees a
			     hang */
	uint64_t replay_bytes; /* 0: 256 MiB. Most memory for pushes that are not durable yet */
	/* NULL, or asked ten times a second, by whichever thread is at work: nonzero ends the wait
	 * of the call under way and of each later one with CNNPS_ESHUTDOWN; pushes and results
	 * still get 5 s. */
	int (*stop)(void *arg);
	void *stop_arg;
	/* NULL, or where gradients that go and weights that come are to lie: pinned memory, say,
	 * for a GPU. take: zeroed, aligned to 64 bytes, NULL for none; called by both threads, like
	 * give. */
	void *(*take)(size_t bytes);
	void (*give)(void *memory);
	/* NULL: logged on stderr. Else a wait for the server, or for work, is reported here, in one
	 * line for a person: first after 1.5 s, then at growing intervals, by whichever thread is
	 * at work. */
	void (*report)(void *arg, const char *line);
	void *report_arg;
	char why[512]; /* out: after a failure, one line for a person */
};

/* How the gradients of several workers meet; proto/WIRE.md, "Modes", says what a worker does. */
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
	uint32_t batch, epochs; /* images per batch; epochs, 0: no data set */
	uint32_t worker, incarnation;
	uint64_t term;
	enum cnnps_mode mode;
	uint32_t n_push, n_fetch; /* batches per push, and per pull, >= 1 */
	int push_sum;             /* 1: a push is the sum of its batches' gradients, 0: the mean */
	int prefetch;             /* 1: pull while computing */
	double local_rate, momentum; /* of own steps; momentum 0: none */
};

enum { CNNPS_TRAIN = 1, CNNPS_EVAL = 2 };
struct cnnps_lease {
	int kind;              /* CNNPS_TRAIN or CNNPS_EVAL */
	uint32_t epoch;        /* TRAIN: from 0; gives the order of images */
	uint32_t first, count; /* TRAIN: batches; EVAL: test images */
	uint64_t eval_id;
	int exact; /* TRAIN: 1: one push of the whole lease, computed at `version` of that term */
	uint64_t version, term;
};

/* Weights as they are after `version` gradients of a server's life. */
struct cnnps_weights {
	const float *w; /* n_params floats */
	uint64_t version, term;
	double elastic; /* EASGD: of the distance, to be closed by either side */
};

/* What a push is the gradient of. */
struct cnnps_work {
	uint32_t epoch, first, count; /* batches of a lease; count 0: none */
	uint32_t images;
	float loss; /* mean over them */
};

struct cnnps_stats {
	uint64_t pushed, acked, rejected, durable; /* pushes */
	uint64_t last_version;                     /* newest version the server told */
	uint64_t reconnects, replayed;
};

/* Connect and wait for the welcome. On failure *out is NULL and o->why says why. */
int cnnps_connect(struct cnnps **out, struct cnnps_options *o);
/* Filled at connect; valid until cnnps_close. */
const struct cnnps_info *cnnps_info(const struct cnnps *c);
/* The newest weights (n == n_params floats) and their version (may be NULL). Blocks. */
int cnnps_pull(struct cnnps *c, float *w, size_t n, uint64_t *version);
/* The same without the copy: w->w stays as it is until the next cnnps_view or cnnps_push_view is
 * called, or cnnps_close. */
int cnnps_view(struct cnnps *c, struct cnnps_weights *w);
/* Start such a pull without waiting for it: the next cnnps_view or cnnps_pull gets what it brings,
 * which does not have the pushes made since. */
int cnnps_prefetch(struct cnnps *c);
/* Wait until the weights are here that the next of these calls gets, which looks them through: that
 * takes a while, and what is asked and pushed before it is on its way meanwhile. */
int cnnps_await(struct cnnps *c);
/* The weights under evaluation. */
int cnnps_pull_eval(struct cnnps *c, float *w, size_t n, uint64_t *version);
/* Push gradient g of n == n_params floats, computed at `version`. Copies g; returns at once unless
 * the window is full. 0: it will be decided exactly once. The decision shows in cnnps_stats. */
int cnnps_push(struct cnnps *c, const float *g, size_t n, uint64_t version);
/* A buffer of n_params floats to compute the next gradient in: a push of it (whole) takes it over
 * instead of copying it, so ask again for the one after. It holds zeros or some earlier gradient of
 * this program. NULL: no memory. */
float *cnnps_gradient(struct cnnps *c);
/* The same with the batches it covers. */
int cnnps_push_work(
	struct cnnps *c, const float *g, size_t n, uint64_t version, const struct cnnps_work *work);
/* That push and the cnnps_view after it in one request: half the round trips. `work` may be NULL.
 * When it fails, cnnps_stats says whether the push was made. */
int cnnps_push_view(struct cnnps *c, const float *g, size_t n, uint64_t version,
	const struct cnnps_work *work, struct cnnps_weights *w);
/* Push only values [offset, offset + n); the others are zero. */
int cnnps_push_slice(struct cnnps *c, uint64_t offset, const float *g, size_t n, uint64_t version);
/* Wait for work. Blocks until there is some; CNNPS_EDONE: training is over. Gives back what is
 * undone of the lease before. */
int cnnps_lease(struct cnnps *c, struct cnnps_lease *lease);
/* The outcome of an EVAL lease. */
int cnnps_result(
	struct cnnps *c, const struct cnnps_lease *lease, uint32_t correct, double loss_sum);
/* Wait until every push is decided (durable != 0: and on the server's disk), at most timeout_ms.
 * CNNPS_EAGAIN: not all. */
int cnnps_flush(struct cnnps *c, int durable, uint32_t timeout_ms);
/* The server's status as JSON; copies at most size - 1 bytes and a NUL. Observers too. An
 * observer that asked within the last 10 s gets the state in which the run ended ("ending": "done"
 * ...) once, and then CNNPS_EDONE. */
int cnnps_status(struct cnnps *c, char *json, size_t size);
/* Ask the server for a checkpoint on disk now, or to drain (final checkpoint, then it exits). */
int cnnps_checkpoint(struct cnnps *c, uint64_t *generation);
int cnnps_drain(struct cnnps *c);
/* Set the server's log level, until its next start: "error", "warn", "info" or "debug". */
int cnnps_log_level(struct cnnps *c, const char *level);
/* Say that the program is busy, where calls are more than hang_ms apart. Costs nothing. */
void cnnps_alive(struct cnnps *c);
void cnnps_stats(const struct cnnps *c, struct cnnps_stats *s);
/* Flush decisions (at most 5 s), say BYE, join the thread, free and null *c. NULL is fine. */
void cnnps_close(struct cnnps **c);
const char *cnnps_strerror(int status);
/* After a call failed because the session had ended, or the server refused: one line on why; else
 * "". Valid until the next
 * call. */
const char *cnnps_why(const struct cnnps *c);

/* The ones a caller tests for. */
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
