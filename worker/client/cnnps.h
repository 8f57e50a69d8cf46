/*
 * cnnps.h - libcnnps: makes any program a worker of a cnn-ps parameter server.
 *
 * A worker connects, pulls weights, computes a gradient and pushes it. The library retains every
 * push until the server has stored it on disk, and sends it again after a crash of the server or a
 * loss of the connection. The server decides each push, that is, accepts or rejects it. If
 * cnnps_push returned 0 and the program keeps the connection open, the server decides the push
 * exactly once. cnnps_flush waits for the decisions. A background thread sends heartbeats and
 * maintains the connection between the calls.
 *
 *     struct cnnps_options options = {.size = sizeof(options), .server = "tcp://10.0.0.1:5555"};
 *     struct cnnps *c;
 *     if (cnnps_connect(&c, &options)) { fprintf(stderr, "%s\n", cnnps_error(c)); ... }
 *
 * Statuses: a call that can fail returns 0 (CNNPS_OK) or a negative CNNPS_E* status.
 * cnnps_error(c) then has the reason in one line. A call whose connection, struct or required
 * pointer is NULL, or whose size or enumerator is out of range, returns CNNPS_EUSAGE and does
 * nothing else. When a session ends, a waiting call and all later calls that need the server return
 * the reason as a status, such as CNNPS_EDONE, CNNPS_EUNREACHABLE or CNNPS_EFENCED. The program can
 * then only close the connection.
 *
 * Structs: every struct that a call reads or fills begins with `size`. Set `size` to the sizeof of
 * the struct and all other fields to zero (an initialiser does both). Later versions of the library
 * may append fields; a new field that is zero keeps the earlier behaviour. A program that was built
 * with an older header, from 0.3.0 on, works with a newer library: fields that its struct lacks
 * count as zero, and the library does not write them. A program that was built with a newer header
 * works with an older library if all fields that the older library lacks are zero. If such a field
 * is not zero, the call returns CNNPS_EUSAGE. struct cnnps_data and struct cnnps_work, which are
 * parts of other structs, never change. The library allocates struct cnnps_info, and later versions
 * may append fields to it. An older library lacks the appended fields, so check cnnps_version
 * before you read them.
 *
 * Threads: the log callback is the only global state of the library. Any thread may use a
 * connection, but only one thread at a time, except for cnnps_alive and cnnps_stats. The library
 * may call a callback from threads of its own. A callback can make only cnnps_alive and cnnps_stats
 * on the connection that calls it, and `log` cannot call the library at all, because the library
 * has locked its log.
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
#define CNNPS_VERSION_MINOR 3
#define CNNPS_VERSION_PATCH 0

/* Returns the version of the library that the program runs with, such as "0.3.0". Between two
 * releases, the version is that of the next release with "-dev" after it. */
const char *cnnps_version(void);

/* The statuses of all calls. The numbers are those of the protocol and never change. */
enum cnnps_code {
	CNNPS_OK = 0,
	/* an argument or option is wrong, or a key file is missing, unreadable or malformed */
	CNNPS_EUSAGE = -1,
	CNNPS_ENOMEM = -2, /* out of memory */
	CNNPS_EIO = -3,    /* the server has a disk error */
	/* no contact with the server for connect_timeout_ms or disconnect_timeout_ms */
	CNNPS_EUNREACHABLE = -4,
	CNNPS_EWRONGRUN = -5,   /* the server at this address now serves another run */
	CNNPS_EFENCED = -6,     /* another process took this worker's place; connect again */
	CNNPS_EDATA = -7,       /* a data file is malformed */
	CNNPS_EWRONGDATA = -8,  /* the data set of this worker (`data`) differs from the run's */
	CNNPS_ECHECKPOINT = -9, /* the server refused a checkpoint */
	CNNPS_ELOCKED = -10,    /* another server has locked the directory of the server */
	CNNPS_EAUTH = -11,      /* the server does not accept this key */
	/* a malformed message, or weights with a wrong checksum three times in a row */
	CNNPS_EPROTO = -12,
	/* this library and the server have no common protocol version, or one of them lacks a
	 * feature that the other requires */
	CNNPS_EVERSION = -13,
	/* the server has restarted; the library handles this case, and no call returns this
	 * status */
	CNNPS_ETERM = -14,
	/* a push is missing; the library handles this case, and no call returns this status */
	CNNPS_EGAP = -15,
	CNNPS_ESTATE = -16,      /* a message that is not allowed in this state of the session */
	CNNPS_EFULL = -17,       /* the server has no free worker slot */
	CNNPS_EROLLEDBACK = -18, /* the server lost pushes that it had reported as durable */
	CNNPS_ESHUTDOWN = -19,   /* the server shuts down, or `stop` returned nonzero */
	CNNPS_EDONE = -20,       /* training is done */
	CNNPS_EAGAIN = -21,      /* not possible now; the comment of the call says why */
	CNNPS_EDEVICE = -22,     /* error of the compute device; this library never returns it */
	CNNPS_ETOOBIG = -23,     /* the data exceed a size limit of the server */
	CNNPS_EQUARANTINE = -24, /* this worker is excluded or in quarantine */
	CNNPS_EDIVERGED = -25,   /* training diverged: the run has ended */
	CNNPS_ENET = -26         /* network library error */
};

/* Returns one line about the failure of the newest call on `c`, which may be cnnps_connect, or ""
 * if this call succeeded. The text is valid until the next call on `c`. If c is NULL, the text says
 * "out of memory". */
const char *cnnps_error(const struct cnnps *c);
/* Returns the meaning of a status, for example "server unreachable". The text is static. */
const char *cnnps_strerror(int status);

/* ---- connect --------------------------------------------------------------------------------- */

/* The training data of this worker. All fields are zero for a model without a data set
 * (vector:N). */
struct cnnps_data {
	uint32_t n_train, n_test, rows, cols, classes;
	uint32_t channels; /* channels of an image; 0 means 1 */
	/* fingerprint (proto/WIRE.md), or another hash that is equal in all workers */
	uint64_t xxh3;
};

enum cnnps_log_level { CNNPS_LOG_ERROR, CNNPS_LOG_WARN, CNNPS_LOG_INFO, CNNPS_LOG_DEBUG };

/* How gradients and weights travel to and from a server on the same host. With AUTO, they travel in
 * shared memory if possible, else over the connection. With TCP, they travel over the connection.
 * With SHM, they travel in shared memory, and cnnps_connect fails with CNNPS_EUSAGE if this is not
 * possible. */
enum cnnps_lane { CNNPS_LANE_AUTO, CNNPS_LANE_TCP, CNNPS_LANE_SHM };

/* The format of gradients and weights on the connection. BF16 halves the bytes: each pushed value
 * is rounded to bfloat16, and its rounding error is added to the same value of the next push;
 * pulled weights are rounded, except those of CNNPS_PULL_EVAL. Shared memory always carries
 * float32. */
enum cnnps_wire { CNNPS_WIRE_FP32, CNNPS_WIRE_BF16 };

/* defaults of the options below, and of the options of cnn-worker with these names */
#define CNNPS_CONNECT_TIMEOUT_MS    30000
#define CNNPS_DISCONNECT_TIMEOUT_MS 600000
#define CNNPS_BATCH_TIMEOUT_MS      60000
#define CNNPS_REPLAY_MIB            256

/* The options of a connection. The library copies the strings. The callbacks must stay valid until
 * cnnps_close, and `log` until another connection sets it. */
struct cnnps_options {
	size_t size;
	const char *server; /* ZeroMQ endpoint, "tcp://127.0.0.1:5555" */
	/* Files made by cnn-ctl keygen: the secret key of this program and the public key of the
	 * server. If `key` is NULL, the connection is not encrypted. If `server_key` is NULL, the
	 * library reads the file server.pub beside `key`. */
	const char *key, *server_key;
	/* The name of this worker. A worker that connects again with the same name gets its slot
	 * back. If the name is NULL or "", the server assigns a slot. */
	const char *name;
	const char *device; /* name of the device, for display, or NULL */
	struct cnnps_data data;
	/* 1 if this program is an observer, which uses no worker slot. An observer can pull,
	 * observe and operate, as far as the role of its key permits (docs/security.md, "Keys and
	 * roles"). cnnps_lease, cnnps_push and cnnps_result return CNNPS_EUSAGE. */
	int observer;
	/* The library gives up if the server has not accepted this program within this time; 0
	 * means CNNPS_CONNECT_TIMEOUT_MS */
	uint32_t connect_timeout_ms;
	/* The library gives up after this time without contact; 0 means CNNPS_DISCONNECT_TIMEOUT_MS
	 */
	uint32_t disconnect_timeout_ms;
	/* The library stops the heartbeats after this time without a call of the program, so that
	 * the server detects a program that hangs; 0 means CNNPS_BATCH_TIMEOUT_MS */
	uint32_t batch_timeout_ms;
	/* maximum memory for pushes that are not durable yet; 0 means CNNPS_REPLAY_MIB MiB */
	uint64_t replay_bytes;
	/* NULL, or a function that the library calls ten times a second, from any thread. If it
	 * returns nonzero, the current wait and all later waits end with CNNPS_ESHUTDOWN. A push, a
	 * result and a flush can each wait for up to 5 s more, and so can cnnps_close. */
	int (*stop)(void *arg);
	void *stop_arg;
	/* The allocator for gradients and received weights, for example one for pinned memory of a
	 * GPU. Set both functions or neither. allocate returns zeroed memory aligned to 64 bytes,
	 * or NULL. The library calls both functions from any thread. */
	void *(*allocate)(size_t bytes);
	void (*release)(void *memory);
	/* A function that the library calls with one line for a person when a wait for the server
	 * or for work takes longer than 1.5 s, and again at growing intervals. If it is NULL, the
	 * library logs the line. */
	void (*report)(void *arg, const char *line);
	void *report_arg;
	/* A function that the library calls with each line of its log up to `log_level`, without a
	 * newline, and with the CNNPS_LOG_* level of the line. The whole process has one log: the
	 * newest connection that sets `log` sets it for all connections. If `log` is NULL, the log
	 * stays as it is. Before the first connection that sets `log`, the log is silent. */
	void (*log)(void *arg, int level, const char *line);
	void *log_arg;
	enum cnnps_log_level log_level;
	enum cnnps_lane lane;
	/* The metrics that this program evaluates besides the loss, separated by commas:
	 * "accuracy", and up to four other names of the characters a-z, 0-9 and _. "none" means
	 * only the loss, and NULL means accuracy. The server refuses a worker whose metrics differ
	 * from its --metrics. */
	const char *metrics;
	/* 1 if this program does not train with the cnnps_info.validate training images that are
	 * held back for validation. If it is 0, cnnps_connect fails with CNNPS_EUSAGE for a run
	 * with --validate. */
	int validates;
	/* NULL, or the tensors that make up vector:N, for exports: one line per tensor, as
	 * proto/WIRE.md, "Tensors", specifies. The server refuses a worker whose list differs from
	 * the run's. */
	const char *tensors;
	/* BF16: cnnps_connect fails with CNNPS_EVERSION if the server is too old for bfloat16, and
	 * with CNNPS_EUSAGE if the run needs exact gradients (--optimizer lbfgs) or `lane` is
	 * SHM */
	enum cnnps_wire wire;
	/* The number of connections over which large gradients and weights travel, 1 to 4; 0 means
	 * 1. The server permits at most as many as its --connections says (docs/connections.md) */
	uint64_t connections;
};

/* How the server combines the gradients of several workers. proto/WIRE.md, "Modes", specifies the
 * steps of a worker in each mode. */
enum cnnps_mode { CNNPS_DOWNPOUR = 1, CNNPS_SSP, CNNPS_SYNC, CNNPS_SANDBLASTER, CNNPS_EASGD };

/* The run and this worker's session. */
struct cnnps_info {
	const char *model; /* canonical text */
	uint64_t n_params, seed;
	uint32_t batch;  /* images per batch */
	uint32_t epochs; /* number of epochs; 0 if the run has no data set */
	uint32_t worker, incarnation;
	uint64_t term;
	enum cnnps_mode mode;
	/* n_push: number of batches per push; n_fetch: number of batches per pull; each is at least
	 * 1 */
	uint32_t n_push, n_fetch;
	int push_sum; /* a push is the sum (1) or the mean (0) of its gradients */
	int prefetch; /* 1 if the worker must pull while it computes */
	/* learning rate and momentum of the worker's local steps; a momentum of 0 means no
	 * momentum */
	double local_rate, momentum;
	/* number of training images that are held back for validation (proto/WIRE.md, "Images of
	 * validation"), or 0. The batches of TRAIN leases consist of the other training images. The
	 * image numbers of EVAL leases are those among the held-back images */
	uint32_t validate;
	/* for an observer, the tensors that make up vector:N (cnnps_options.tensors), or "" if they
	 * are unknown; for a worker, always "" */
	const char *tensors;
};

/* Connects and waits until the server accepts this worker or observer. After a failure, *c is NULL
 * if there was no memory; otherwise use *c only for cnnps_error and cnnps_close. Errors:
 * CNNPS_EUSAGE, CNNPS_ENOMEM, CNNPS_EIO, CNNPS_EUNREACHABLE, CNNPS_EAUTH, CNNPS_EVERSION,
 * CNNPS_EFULL, CNNPS_EWRONGDATA, CNNPS_EQUARANTINE, CNNPS_EDONE, CNNPS_EDIVERGED, CNNPS_ESHUTDOWN,
 * CNNPS_ENET. */
int cnnps_connect(struct cnnps **c, const struct cnnps_options *options);
/* Returns the data of the run and of this worker's session, which belong to the library and are
 * valid until cnnps_close. If c is NULL, returns NULL; after a failure of cnnps_connect, the data
 * are unspecified. */
const struct cnnps_info *cnnps_info(const struct cnnps *c);
/* Waits until the server has decided the pushes and has confirmed that this worker leaves. The wait
 * takes at most 5 s in total, or 0.5 s if all pushes are decided and there is no connection to the
 * server. Then joins the background thread, frees everything and sets *c to NULL; `c` and *c may be
 * NULL. These limits are fixed, so that the end of a program has a known duration. Pushes that are
 * undecided after this time are lost unless the server has received them. To wait for longer, and
 * to learn whether all pushes are decided, call cnnps_flush first. A program that must end at once
 * can end with _exit instead: the server then gives the unfinished batches to other workers, as
 * after a crash. */
void cnnps_close(struct cnnps **c);

/* ---- train ----------------------------------------------------------------------------------- */

enum { CNNPS_TRAIN = 1, CNNPS_EVAL = 2 };

struct cnnps_lease {
	size_t size;
	int kind;              /* CNNPS_TRAIN or CNNPS_EVAL */
	uint32_t epoch;        /* TRAIN: from 0; determines the order of the images */
	uint32_t first, count; /* TRAIN: batches; EVAL: images */
	uint64_t eval_id;
	/* In a TRAIN lease, 1 if one push must cover the whole lease, with a gradient computed at
	 * the weights of `version` in `term` */
	int exact;
	uint64_t version, term;
};

/* Waits for work: blocks until the server grants a lease. The call gives the unfinished part of the
 * previous lease back to the server. CNNPS_EDONE: training is over. CNNPS_EUSAGE: the run has no
 * data set (cnnps_info.epochs is 0), so it has no leases; the call returns this status after one
 * second. */
int cnnps_lease(struct cnnps *c, struct cnnps_lease *lease);

enum {
	/* Start the transfer of the newest weights and return at once. The next pull without flags
	 * returns these weights; they do not include pushes made after this call. */
	CNNPS_PULL_START = 1,
	/* Wait until the weights for the next pull without flags have arrived. Only the next pull
	 * verifies their checksum. If the program pushes between this call and the next pull, the
	 * library sends the push while that pull verifies the checksum. */
	CNNPS_PULL_WAIT = 2,
	/* Pull the weights that the EVAL lease evaluates; `into` is required. CNNPS_EAGAIN: other
	 * workers have completed this evaluation. */
	CNNPS_PULL_EVAL = 4
};

/* The weights that the server has after `version` updates in its term `term`. */
struct cnnps_pull {
	size_t size;
	uint32_t flags; /* 0, or one value of the enum above */
	/* n_params floats, to which the call copies the weights. If `into` is NULL, `weights`
	 * points to memory of the library, which stays valid and unchanged until the next pull with
	 * `into` NULL and flags 0, or until cnnps_close. */
	float *into;
	/* The fields below are results. CNNPS_PULL_START and CNNPS_PULL_WAIT do not set them: */
	const float *weights; /* n_params floats: `into`, or memory of the library */
	uint64_t version, term;
	/* in mode EASGD, the fraction of their distance by which worker and centre each move
	 * towards the other */
	double elastic;
};

/* Gets the newest weights. Blocks unless `flags` is CNNPS_PULL_START. CNNPS_EPROTO: the weights
 * arrived with a wrong checksum three times. */
int cnnps_pull(struct cnnps *c, struct cnnps_pull *pull);

/* The batches that a push covers. */
struct cnnps_work {
	/* `count` batches of a lease from batch `first` on. In a run without a data set
	 * (cnnps_info.epochs is 0) there are no leases, and `count` must be 0. In a run with a data
	 * set, cnnps_push returns CNNPS_EUSAGE if `count` is 0 */
	uint32_t epoch, first, count;
	uint32_t images;
	float loss; /* mean loss of the images in these batches */
};

struct cnnps_push {
	size_t size;
	/* The values [offset, offset + count) of the gradient. All other values count as zero. If
	 * `count` is 0, the push has all n_params values. The library copies the values, except
	 * those of a whole buffer of cnnps_gradient: it takes over such a buffer. */
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
 * the buffer instead of copying it, so call cnnps_gradient again for the next gradient. Until a
 * push has taken over the buffer, each call returns the same buffer. The buffer belongs to the
 * library, is valid until cnnps_close, and contains zeros or an earlier gradient of this program.
 * Returns NULL if there is no memory or no connection; cnnps_error has no text for this. */
float *cnnps_gradient(struct cnnps *c);
/* The result of an EVAL lease: sums over its images. */
struct cnnps_evaluation {
	size_t size;
	uint32_t correct; /* correct answers; 0 if accuracy is not one of the metrics */
	double loss_sum;
	/* sums of the metrics in cnnps_options.metrics, in the same order and without accuracy;
	 * finite unless loss_sum is not */
	double metric_sum[4];
};

/* Sends the result of an EVAL lease. */
int cnnps_result(struct cnnps *c, const struct cnnps_lease *lease,
	const struct cnnps_evaluation *evaluation);
/* Waits until the server has decided every push and, if `durable` is not 0, has stored every push
 * on disk. CNNPS_EAGAIN: after timeout_ms, some pushes were still undecided or, if `durable` is not
 * 0, not on disk. */
int cnnps_flush(struct cnnps *c, int durable, uint32_t timeout_ms);
/* Reports that the program makes progress. A program needs this call if it may make no other call
 * for longer than batch_timeout_ms. The call takes almost no time. Any thread may make this call at
 * any time. */
void cnnps_alive(struct cnnps *c);

/* ---- observe and operate --------------------------------------------------------------------- */

struct cnnps_stats {
	size_t size;
	uint64_t pushed, acked, rejected, durable; /* numbers of pushes */
	uint64_t last_version;                     /* newest version that the server reported */
	uint64_t reconnects, replayed;
	/* number of pushes that came too late: another worker was first, or the step was over */
	uint64_t superseded;
	/* How the program has spent its time, in microseconds: outside of this library, waiting for
	 * weights, sending pushes, waiting for leases, and in the library's checksums and copies.
	 * The server's status shows these times. */
	uint64_t compute_us, weights_us, push_us, lease_us, copy_us;
};

/* Writes the counters since cnnps_connect to *stats. Any thread may make this call at any time.
 * Another thread may use the connection at the same time, so this call sets no text for
 * cnnps_error. */
int cnnps_stats(const struct cnnps *c, struct cnnps_stats *stats);
/* Writes the server's status to `json` as JSON, at most size - 1 bytes and a NUL. A longer text is
 * cut off; 65536 bytes are always enough. If a run has more workers than fit in one reply of the
 * server, the text lacks some of them, and its field "workers_left_out" has their number. When the
 * run ends, an observer that has called cnnps_status in the last 10 s gets one final status, whose
 * JSON has the field "ending" (such as "done"). The next call returns CNNPS_EDONE. */
int cnnps_status(struct cnnps *c, char *json, size_t size);
/* Makes the server write a checkpoint now. Sets *generation to the number of the checkpoint;
 * `generation` may be NULL. If the server has keys, this call and those below need a key with the
 * role admin. With another key, such a call returns CNNPS_EAUTH and ends the session, so that every
 * later call returns CNNPS_EAUTH, too. */
int cnnps_checkpoint(struct cnnps *c, uint64_t *generation);
/* Makes the server write a last checkpoint and exit. */
int cnnps_drain(struct cnnps *c);
/* Sets the server's log level until its next start: "error", "warn", "info" or "debug". */
int cnnps_log_level(struct cnnps *c, const char *level);
/* Ends the quarantine of a worker. `worker`: the name or the key of the worker, as the status shows
 * them, or at least the first 8 characters of the key. CNNPS_EUSAGE: no worker in quarantine has
 * this name or key. */
int cnnps_release(struct cnnps *c, const char *worker);

#ifdef __cplusplus
}
#endif
#endif
