/*
 * cnnps.h - libcnnps: makes any program a worker of a cnn-ps parameter server.
 *
 * A worker connects, pulls weights, computes a gradient and pushes it. The library retains every
 * push until the server has stored it on disk, and sends it again after a crash of the server or a
 * loss of the connection. A push that returned 0 is applied exactly once, provided that this
 * process stays alive. A background thread sends heartbeats and maintains the connection between
 * the calls.
 *
 *     struct cnnps_options options = {.size = sizeof(options), .server = "tcp://10.0.0.1:5555"};
 *     struct cnnps *c;
 *     if (cnnps_connect(&c, &options)) { fprintf(stderr, "%s\n", cnnps_error(c)); ... }
 *
 * Statuses: a call that can fail returns 0 (CNNPS_OK) or a negative CNNPS_E* status.
 * cnnps_error(c) then has the reason in one line.
 *
 * Structs: every struct that a call reads or fills begins with `size`. Set `size` to the sizeof of
 * the struct and all other fields to zero (an initialiser does both). Later versions of the library
 * may append fields; a new field that is zero keeps the earlier behaviour. A program works with a
 * newer library. A program works with an older library if all fields that the older library lacks
 * are zero; otherwise the call returns CNNPS_EUSAGE.
 *
 * Threads: the log callback is the only global state of the library. Any thread may use a
 * connection, but only one thread at a time. Callbacks may come from the library's threads.
 *
 * Forks: a connection does not survive fork() in the child. A child may exit or exec, or make
 * connections of its own; it must not use or close a connection of its parent.
 */
#ifndef CNNPS_H
#define CNNPS_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cnnps; /* a connection: opaque */

/* ---- versions and errors --------------------------------------------------------------------- */

#define CNNPS_VERSION_MAJOR 0
#define CNNPS_VERSION_MINOR 2
#define CNNPS_VERSION_PATCH 0

/* Returns the version of the library that the program runs with, "0.2.0". */
const char *cnnps_version(void);

/* The statuses of all calls. The numbers are those of the protocol and never change. */
enum cnnps_code {
	CNNPS_OK = 0,
	CNNPS_EUSAGE = -1, /* an argument or option is wrong */
	CNNPS_ENOMEM = -2, /* out of memory */
	CNNPS_EIO = -3,    /* a key file cannot be read, or the server has a disk error */
	/* no contact with the server for connect_timeout_ms or disconnect_timeout_ms */
	CNNPS_EUNREACHABLE = -4,
	CNNPS_EWRONGRUN = -5,   /* the server at this address is in another run now */
	CNNPS_EFENCED = -6,     /* another process took this worker's place; connect again */
	CNNPS_EDATA = -7,       /* a data file is malformed */
	CNNPS_EWRONGDATA = -8,  /* the data set of this worker (`data`) differs from the run's */
	CNNPS_ECHECKPOINT = -9, /* the server refused a checkpoint */
	CNNPS_ELOCKED = -10,    /* another server has locked the directory of the server */
	CNNPS_EAUTH = -11,      /* the server does not accept this key */
	CNNPS_EPROTO = -12,     /* malformed message, or a wrong checksum three times */
	/* the server has no common protocol version, or lacks a required feature */
	CNNPS_EVERSION = -13,
	CNNPS_ETERM = -14,       /* the server has restarted; the library handles it */
	CNNPS_EGAP = -15,        /* a sequence number is missing; the library handles it */
	CNNPS_ESTATE = -16,      /* message not allowed in this state of the session */
	CNNPS_EFULL = -17,       /* the server has no free worker slot */
	CNNPS_EROLLEDBACK = -18, /* the server lost pushes that it had reported as durable */
	CNNPS_ESHUTDOWN = -19,   /* the server shuts down, or `stop` returned nonzero */
	CNNPS_EDONE = -20,       /* training is done */
	CNNPS_EAGAIN = -21,      /* not possible now; the comment of the call says why */
	CNNPS_EDEVICE = -22,     /* error of the compute device; this library never returns it */
	CNNPS_ETOOBIG = -23,     /* the data exceed a size limit of the server */
	CNNPS_EQUARANTINE = -24, /* too many gradients of this worker were not finite */
	CNNPS_EDIVERGED = -25,   /* training diverged: the run has ended */
	CNNPS_ENET = -26         /* network library error */
};

/* Returns one line about the newest call on `c` that failed, or about the failure of cnnps_connect
 * if it set `c` and failed. The text is valid until the next call on `c`. If c is NULL, the text
 * says "out of memory". */
const char *cnnps_error(const struct cnnps *c);
/* Returns the meaning of a status, for example "server unreachable". The text is static. */
const char *cnnps_strerror(int status);

/* ---- connect --------------------------------------------------------------------------------- */

/* The training data of this worker. All fields are zero for a model without a data set
 * (vector:N). */
struct cnnps_data {
	uint32_t n_train, n_test, rows, cols, classes;
	uint32_t channels; /* channels of an image; 0 means 1 */
	uint64_t xxh3;     /* fingerprint, see proto/WIRE.md; any hash that all workers agree on */
};

enum cnnps_log_level { CNNPS_LOG_ERROR, CNNPS_LOG_WARN, CNNPS_LOG_INFO, CNNPS_LOG_DEBUG };

/* How gradients and weights travel to and from a server on the same host. AUTO: in shared memory if
 * possible, else over the connection. TCP: over the connection. SHM: in shared memory; if this is
 * not possible, cnnps_connect fails with CNNPS_EUSAGE. */
enum cnnps_lane { CNNPS_LANE_AUTO, CNNPS_LANE_TCP, CNNPS_LANE_SHM };

/* The options of a connection. The library copies the strings. The callbacks must stay valid until
 * cnnps_close. */
struct cnnps_options {
	size_t size;
	const char *server; /* ZeroMQ endpoint, "tcp://127.0.0.1:5555" */
	/* Files made by cnn-ctl keygen: the secret key of this program and the public key of the
	 * server. key NULL: no encryption. server_key NULL: server.pub beside `key`. */
	const char *key, *server_key;
	/* The name of this worker. A worker that connects again with the same name gets its slot
	 * back. NULL or "": the server assigns a slot. */
	const char *name;
	const char *device; /* for display; NULL: none */
	struct cnnps_data data;
	int observer; /* 1: pull and status only; uses no worker slot */
	/* Give up without a WELCOME after this time. 0: 30000 */
	uint32_t connect_timeout_ms;
	/* Give up after this time without contact. 0: 600000 */
	uint32_t disconnect_timeout_ms;
	/* Stop the heartbeats after this time without a call of the program, so that the server
	 * detects a program that hangs. 0: 60000 */
	uint32_t batch_timeout_ms;
	/* Maximum memory for pushes that are not durable yet. 0: 256 MiB */
	uint64_t replay_bytes;
	/* NULL, or a function that the library calls ten times a second, from any thread. If it
	 * returns nonzero, the current wait and all later waits end with CNNPS_ESHUTDOWN. A push, a
	 * result and a flush can each wait for up to 5 s more. */
	int (*stop)(void *arg);
	void *stop_arg;
	/* NULL, or the allocator for gradients and received weights, for example of pinned memory
	 * for a GPU. allocate returns zeroed memory aligned to 64 bytes, or NULL. Any thread calls
	 * allocate and release. */
	void *(*allocate)(size_t bytes);
	void (*release)(void *memory);
	/* A function that the library calls with one line for a person when a wait for the server
	 * or for work takes longer than 1.5 s, and again at growing intervals. NULL: the library
	 * logs the line. */
	void (*report)(void *arg, const char *line);
	void *report_arg;
	/* A function that the library calls with each line of its log up to `log_level`, without a
	 * newline, and with the CNNPS_LOG_* level of the line. The whole process has one log: the
	 * newest connection that sets `log` sets it for all connections. NULL: the log stays as it
	 * is; at first it is silent. */
	void (*log)(void *arg, int level, const char *line);
	void *log_arg;
	enum cnnps_log_level log_level;
	enum cnnps_lane lane;
	/* The metrics that this program evaluates besides the loss, separated by commas:
	 * "accuracy", and up to four other names of the characters a-z, 0-9 and _. "none": only the
	 * loss. NULL: accuracy. The server refuses a worker whose metrics differ from its
	 * --metrics. */
	const char *metrics;
	/* 1: this program holds back cnnps_info.validate training images. 0: it does not, and
	 * cnnps_connect fails with CNNPS_EUSAGE if the run has --validate. */
	int validates;
	/* NULL, or the tensors that make up vector:N, for exports: one line per tensor, as
	 * proto/WIRE.md, "Tensors", specifies. The server refuses a worker whose list differs from
	 * the run's. */
	const char *tensors;
};

/* How the server combines the gradients of several workers. proto/WIRE.md, "Modes", specifies the
 * steps of a worker in each mode. */
enum cnnps_mode { CNNPS_DOWNPOUR = 1, CNNPS_SSP, CNNPS_SYNC, CNNPS_SANDBLASTER, CNNPS_EASGD };

/* The run and this worker's session. The library allocates it; later versions may append fields. */
struct cnnps_info {
	const char *model; /* canonical text */
	uint64_t n_params, seed;
	uint32_t batch;  /* images per batch */
	uint32_t epochs; /* 0: the run has no data set */
	uint32_t worker, incarnation;
	uint64_t term;
	enum cnnps_mode mode;
	uint32_t n_push, n_fetch; /* batches per push, and per pull; at least 1 */
	int push_sum;             /* a push is the sum (1) or the mean (0) of its gradients */
	int prefetch;             /* 1: pull while computing */
	/* learning rate and momentum of the worker's local steps; momentum 0: none */
	double local_rate, momentum;
	/* number of training images that are held back for validation (proto/WIRE.md, "Images of
	 * validation"); 0: none. The batches of TRAIN leases consist of the other training images,
	 * and EVAL leases count only held-back images */
	uint32_t validate;
	/* for an observer, the tensors that make up vector:N (cnnps_options.tensors), or "" if they
	 * are unknown; for a worker, always "" */
	const char *tensors;
};

/* Connects and waits until the server accepts this worker. After a failure, *c is NULL if there was
 * no memory; otherwise use *c only for cnnps_error and cnnps_close. Errors: CNNPS_EUSAGE,
 * CNNPS_ENOMEM, CNNPS_EIO, CNNPS_EUNREACHABLE, CNNPS_EAUTH, CNNPS_EVERSION, CNNPS_EFULL,
 * CNNPS_EWRONGDATA, CNNPS_EDONE, CNNPS_ESHUTDOWN. */
int cnnps_connect(struct cnnps **c, const struct cnnps_options *options);
/* Returns the data of the run and of this worker's session, which are valid until cnnps_close. */
const struct cnnps_info *cnnps_info(const struct cnnps *c);
/* Waits up to 5 s for the server's decisions on the pushes, sends BYE, joins the background thread,
 * frees everything and sets *c to NULL; *c may be NULL. */
void cnnps_close(struct cnnps **c);

/* ---- train ----------------------------------------------------------------------------------- */

enum { CNNPS_TRAIN = 1, CNNPS_EVAL = 2 };

struct cnnps_lease {
	size_t size;
	int kind;              /* CNNPS_TRAIN or CNNPS_EVAL */
	uint32_t epoch;        /* TRAIN: from 0; determines the order of the images */
	uint32_t first, count; /* TRAIN: batches; EVAL: images */
	uint64_t eval_id;
	/* TRAIN: 1: one push must cover the whole lease, with a gradient computed at the weights
	 * of `version` in `term` */
	int exact;
	uint64_t version, term;
};

/* Waits for work: blocks until the server grants a lease. The call gives the unfinished part of the
 * previous lease back to the server. CNNPS_EDONE: training is over. */
int cnnps_lease(struct cnnps *c, struct cnnps_lease *lease);

enum {
	/* Start the transfer of the newest weights and return at once. The next pull without flags
	 * returns these weights; they do not include pushes made after this call. */
	CNNPS_PULL_START = 1,
	/* Wait until the weights for the next pull without flags have arrived. The next pull
	 * verifies their checksum, which takes time. A push that the program makes before the next
	 * pull is sent during this time. */
	CNNPS_PULL_WAIT = 2,
	/* Pull the weights that the EVAL lease evaluates; `into` is required. CNNPS_EAGAIN: other
	 * workers have completed this evaluation. */
	CNNPS_PULL_EVAL = 4
};

/* The weights that the server has after `version` updates in its term `term`. */
struct cnnps_pull {
	size_t size;
	uint32_t flags; /* 0, or one of the above */
	/* n_params floats, to which the call copies the weights. NULL: `weights` points to memory
	 * of the library, which stays valid and unchanged until the next pull with `into` NULL and
	 * flags 0, or until cnnps_close. */
	float *into;
	/* results, which CNNPS_PULL_START and CNNPS_PULL_WAIT do not set: */
	const float *weights; /* n_params floats, `into` if it is given */
	uint64_t version, term;
	/* mode EASGD: the fraction of their distance by which worker and centre each move towards
	 * the other */
	double elastic;
};

/* Gets the newest weights. Blocks unless `flags` is CNNPS_PULL_START. CNNPS_EPROTO: the weights
 * arrived with a wrong checksum three times. */
int cnnps_pull(struct cnnps *c, struct cnnps_pull *pull);

/* The batches that a push covers. */
struct cnnps_work {
	uint32_t epoch, first, count; /* batches of a lease; count 0: none */
	uint32_t images;
	float loss; /* mean over the images */
};

struct cnnps_push {
	size_t size;
	/* The values [offset, offset + count) of the gradient. All other values count as zero.
	 * count 0: all n_params values. The library copies the values, except those of a whole
	 * buffer of cnnps_gradient: it takes over such a buffer. */
	const float *gradient;
	uint64_t offset, count;
	uint64_t version; /* the version of the weights at which the gradient was computed */
	struct cnnps_work work;
	/* NULL, or a pull without flags. The server then carries out the push and after it the pull
	 * in one request, which halves the number of round trips. If only the pull fails,
	 * cnnps_stats still counts the push. */
	struct cnnps_pull *then;
};

/* Pushes a gradient. Returns at once unless the window of pushes is full or `then` is set. After
 * the result 0, the server will decide this push exactly once; cnnps_stats counts the decisions. */
int cnnps_push(struct cnnps *c, const struct cnnps_push *push);
/* Returns a buffer of n_params floats for the next gradient. A push of the whole buffer takes over
 * the buffer instead of copying it, so call cnnps_gradient again for the next gradient. The buffer
 * contains zeros or an earlier gradient of this program. Returns NULL if there is no memory. */
float *cnnps_gradient(struct cnnps *c);
/* The result of an EVAL lease: sums over its images. */
struct cnnps_evaluation {
	size_t size;
	uint32_t correct; /* correct answers; 0 if accuracy is not one of the metrics */
	double loss_sum;
	/* sums of the metrics in cnnps_options.metrics, in the same order and without accuracy */
	double metric_sum[4];
};

/* Sends the result of an EVAL lease. */
int cnnps_result(struct cnnps *c, const struct cnnps_lease *lease,
	const struct cnnps_evaluation *evaluation);
/* Waits until the server has decided every push and, if `durable` is not 0, has stored every push
 * on disk. CNNPS_EAGAIN: some pushes were still open after timeout_ms. */
int cnnps_flush(struct cnnps *c, int durable, uint32_t timeout_ms);
/* Reports that the program makes progress. Call it if the program may make no other call for longer
 * than batch_timeout_ms. The call takes almost no time. Any thread may call it at any time. */
void cnnps_alive(struct cnnps *c);

/* ---- observe and operate --------------------------------------------------------------------- */

struct cnnps_stats {
	size_t size;
	uint64_t pushed, acked, rejected, durable; /* pushes */
	uint64_t last_version;                     /* newest version that the server reported */
	uint64_t reconnects, replayed;
	/* pushes without effect: another worker was first, or the step was over */
	uint64_t superseded;
	/* How the program has spent its time, in microseconds: outside of this library, waiting for
	 * weights, sending pushes, waiting for leases, and in the library's checksums and copies.
	 * The server's status shows these times. */
	uint64_t compute_us, weights_us, push_us, lease_us, copy_us;
};

/* Writes the counters since cnnps_connect to *stats. Any thread may call it at any time. */
int cnnps_stats(const struct cnnps *c, struct cnnps_stats *stats);
/* Writes the server's status to `json` as JSON, at most size - 1 bytes and a NUL. When the run
 * ends, an observer that has called cnnps_status in the last 10 s gets one final status, which has
 * "ending" (such as "done"). The next call returns CNNPS_EDONE. */
int cnnps_status(struct cnnps *c, char *json, size_t size);
/* Makes the server write a checkpoint now. Sets *generation to the number of the checkpoint;
 * `generation` may be NULL. */
int cnnps_checkpoint(struct cnnps *c, uint64_t *generation);
/* Makes the server write a last checkpoint and exit. */
int cnnps_drain(struct cnnps *c);
/* Sets the server's log level until its next start: "error", "warn", "info" or "debug". */
int cnnps_log_level(struct cnnps *c, const char *level);
/* Ends the quarantine of a worker. `worker`: its name or key as in the status, or at least the first
 * 8 characters of the key. CNNPS_EUSAGE: no worker in quarantine has this name or key. */
int cnnps_release(struct cnnps *c, const char *worker);

#ifdef __cplusplus
}
#endif
#endif
