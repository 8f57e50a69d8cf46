/*
 * msg.h - defines a plain struct for each message of the protocol.
 *
 * decode.c converts frames to these structs, and encode.c converts them to frames. Only decode.c
 * checks untrusted sizes. In a decoded struct msg every number is within the limits below and every
 * text ends with a NUL. The slices of a decoded message are sorted, do not overlap, lie in [0,
 * n_params), and have aligned float32 data with a correct checksum. No protobuf type appears
 * outside proto/. The structs own no memory: the data of a slice belong to the frame or to the
 * caller.
 */
#ifndef PROTO_MSG_H
#define PROTO_MSG_H
#include <stddef.h>
#include <stdint.h>
#include "common/metric_names.h"

/* This build supports the protocol versions from WIRE_OLDEST_PROTOCOL to WIRE_PROTOCOL (WIRE.md,
 * "Versions"). */
#define WIRE_PROTOCOL        7u
#define WIRE_OLDEST_PROTOCOL 6u
/* These texts name the features that this build has, and those that it requires of its peers, with
 * one blank between two names. */
#define WIRE_FEATURES "bf16 chunked-push images validate"
#define WIRE_REQUIRES ""
/* the feature that a WELCOME requires if its model text has words about images */
#define WIRE_REQUIRES_IMAGES "images"
/* the feature that a WELCOME requires if its field `validate` is not 0 */
#define WIRE_REQUIRES_VALIDATE "validate"
#define WIRE_REQUIRES_BOTH     "images validate"
/* the feature that a HELLO requires if its field `wire` is ENCODING_BF16 */
#define WIRE_REQUIRES_BF16 "bf16"

/* These are all limits of the protocol. Each WIRE_MAX_ is the maximum of the number that its
 * comment describes. A test compares the limits with the table in proto/WIRE.md. */
#define WIRE_MAX_HEADER      65536u       /* number of bytes of the header frame */
#define WIRE_MAX_BODY_MEMORY (256u << 10) /* bytes that protobuf-c may allocate for one header */
#ifndef WIRE_MAX_SLICES                   /* `make fuzz` defines a smaller limit */
#define WIRE_MAX_SLICES 64u               /* slices, that is tensor frames, per message */
#endif
#define WIRE_MAX_CHUNKS      7u         /* chunks of a push: tensor frames before the PUSH */
#define WIRE_MAX_PARAMS      (1u << 28) /* number of floats of a model */
#define WIRE_MAX_NAME        63u        /* bytes of a worker's name or device text */
#define WIRE_MAX_OWNER       40u        /* characters of a public key */
#define WIRE_MAX_HOST        64u        /* bytes of a host name, as in Linux */
#define WIRE_MAX_MODEL       511u       /* bytes of a model text */
#define WIRE_MAX_SOCKET      107u       /* bytes of the path of a Unix socket */
#define WIRE_MAX_CONNECTIONS 4u         /* connections for the tensors of a worker */
#define WIRE_MAX_TEXT        61439u     /* bytes of a STATUS or ERROR text */
#define WIRE_MIN_TEXT        32767u     /* bytes of a STATUS text that every client accepts */
#define WIRE_MAX_TENSORS     49152u     /* bytes of a list of tensors */
#define WIRE_MAX_IMAGES      (1u << 24) /* number of images of a data set */
#define WIRE_MAX_WORKERS     1024u      /* number of worker slots of a server */
#ifndef WIRE_MAX_BATCHES            /* `make fuzz` defines a smaller limit, for smaller tables */
#define WIRE_MAX_BATCHES (1u << 20) /* number of batches of an epoch */
#endif
#define WIRE_MAX_EPOCHS 65536u /* number of epochs of a run */
#define WIRE_MAX_WINDOW 1024u  /* number of pushes that a worker may retain */
/* maximum sequence number of a push, so that its successor cannot overflow */
#define WIRE_MAX_SEQ (1ull << 62)
/* bytes by which the largest frame may exceed the weights or the longest header */
#define WIRE_FRAME_SLACK 4096u

/* Returns the number of bytes of the largest frame of a run, which the server sets as
 * ZMQ_MAXMSGSIZE. A worker gets n_params only with the WELCOME, so it sets the number for
 * WIRE_MAX_PARAMS. */
static inline uint64_t wire_max_frame(uint64_t n_params)
{
	uint64_t weights = n_params * sizeof(float);

	return (weights > WIRE_MAX_HEADER ? weights : WIRE_MAX_HEADER) + WIRE_FRAME_SLACK;
}

/* The number of a message type is its field number in the oneof in cnnps.proto. */
enum msg_type {
	MSG_HELLO = 1,
	MSG_WELCOME = 2,
	MSG_PULL = 3,
	MSG_PARAMS = 4,
	MSG_PUSH = 5,
	MSG_ACK = 6,
	MSG_LEASE = 7,
	MSG_GRANT = 8,
	MSG_RESULT = 9,
	MSG_HEARTBEAT = 10,
	MSG_BYE = 11,
	MSG_STATUS = 12,
	MSG_ADMIN = 13,
	MSG_ERROR = 14,
	MSG_TYPES = 15,
};

struct run_id {
	uint64_t hi, lo; /* 128 random bits; both are 0 if there is no run id */
};

/* A stamp identifies the sender, the run and the term of the server. Every message of a worker has
 * a stamp; in HELLO it is the field `resume`. */
struct stamp {
	struct run_id run;
	uint64_t term;   /* grows by 1 at every start of the server */
	uint32_t worker; /* worker id, from 1; 0: the sender is no worker (cnn-ctl) */
	/* from 1; grows by 1 with each new process that gets this worker id */
	uint32_t incarnation;
};

enum role { ROLE_WORKER = 1, ROLE_OBSERVER = 2 };

/* This struct identifies the data set of a worker. All fields are zero if the worker has no data
 * set, as with vector:N. */
struct data_id {
	uint32_t n_train, n_test, rows, cols, classes;
	uint64_t xxh3;     /* fingerprint of the four decompressed files (WIRE.md) */
	uint32_t channels; /* number of channels of an image; 0 means 1 */
};

/* The format of the values in a tensor frame. NONE is only in HELLO and WELCOME, where it means
 * F32. */
enum encoding { ENCODING_NONE = 0, ENCODING_F32 = 1, ENCODING_BF16 = 2 };

/* Returns the number of bytes of a value in a tensor frame. */
static inline size_t encoding_bytes(enum encoding e)
{
	return e == ENCODING_BF16 ? sizeof(uint16_t) : sizeof(float);
}

/* This struct has the values [offset, offset + count) of the flat parameter vector. */
struct slice {
	/* offset: index of the first value; count: number of values, at least 1 */
	uint64_t offset, count;
	enum encoding encoding;
	/* XXH3-64 of the frame's bytes, which the sender computes and decode.c checks */
	uint64_t xxh3;
	/* borrowed, aligned for float; float32 values also if the frame has ENCODING_BF16 */
	const float *data;
	/* the bits of the largest magnitude in `data`, as float32; NaN counts as larger than all
	 * numbers. decode.c computes it for a PUSH. 0: unknown */
	uint32_t peak;
	/* the sum of the squares of the first `squared` values, as the core computes it
	 * (server/core/store.c); decode.c can compute it for a PUSH. 0: unknown */
	uint64_t squared;
	double squares;
};

struct slices {
	uint32_t n;
	struct slice slice[WIRE_MAX_SLICES];
};

/* This struct names the batches [first, first + count) of epoch `epoch`, which counts from 0. If
 * count is 0, there are no batches. */
struct work {
	uint32_t epoch, first, count;
};

struct msg_hello {
	enum role role;
	/* name of the slot that the worker demands; "": the server chooses a slot */
	char name[WIRE_MAX_NAME + 1];
	char device[WIRE_MAX_NAME + 1]; /* text for display, such as "cpu 2 threads avx512" */
	struct data_id data;
	struct stamp resume; /* stamp of the session to resume; all zero: the process is new */
	uint64_t last_seq;   /* newest seq of a push of this process */
	/* newest seq of a push that this process has discarded, because it is durable */
	uint64_t durable_seq;
	/* never sent: the shell of the server writes the sender's key here */
	char owner[WIRE_MAX_OWNER + 1];
	char host[WIRE_MAX_HOST + 1]; /* name of the worker's host, for display */
	uint32_t pid;                 /* process id of the worker, for display; 0: unknown */
	/* the metrics that this worker evaluates (common/metric_names.h) */
	char metrics[METRICS_TEXT];
	/* list of the tensors (common/tensor_list.h), borrowed; "" or NULL: unknown */
	const char *tensors;
	/* the encoding of this worker's pushes, and of the weights that it asks for */
	enum encoding wire;
};

/* The mode determines how the server combines gradients (WIRE.md, "Modes"). */
enum mode {
	MODE_DOWNPOUR = 1, /* the server applies each gradient on arrival */
	/* like DOWNPOUR, with a limit on how far a worker may be ahead of the slowest worker */
	MODE_SSP = 2,
	/* each update uses the mean of one gradient per worker, all at the same weights */
	MODE_SYNC = 3,
	/* each update uses the sum of gradients that cover the portions of one large batch, all at
	 * the same weights */
	MODE_SANDBLASTER = 4,
	/* the workers train weights of their own. They push a fraction of the distance between
	 * these weights and the server's */
	MODE_EASGD = 5,
};

struct msg_welcome {
	struct stamp stamp;
	uint64_t last_seq;    /* newest seq of this worker that is decided */
	uint64_t durable_seq; /* newest seq of this worker that is durable */
	char model[WIRE_MAX_MODEL + 1];
	uint64_t model_fingerprint;
	uint64_t n_params;
	uint64_t seed;
	/* batch: number of images in a batch; epochs: number of epochs, 0 if the run has no data
	 * set and no leases (vector:N) */
	uint32_t batch, epochs;
	uint32_t push_window; /* maximum number of sent pushes that are not acknowledged, >= 1 */
	/* maximum number of sent pushes that are not durable, >= push_window */
	uint32_t replay_window;
	uint32_t heartbeat_ms; /* maximum interval between the HEARTBEATs of a worker */
	/* after this silence the server counts a worker as dead: another process may get its
	 * slot */
	uint32_t dead_ms;
	/* a worker must end after this time without contact to the server */
	uint32_t session_ttl_ms;
	enum mode mode;
	/* numbers of batches between two pushes and between two pulls, >= 1 */
	uint32_t n_push, n_fetch;
	uint32_t push_sum; /* 1: a push is the sum of its batches' gradients; 0: the mean */
	uint32_t prefetch; /* 1: the worker pulls the next weights while it computes a gradient */
	double local_rate; /* learning rate of a worker's own steps between pulls, >= 0 */
	double momentum;   /* EASGD: momentum of the worker's own steps, 0..1; 0: none */
	/* number of training images that are held back for evaluation; 0: none */
	uint32_t validate;
	/* only in a message to send; 1: the receiver needs the feature "images" */
	int needs_images;
	/* for shared memory (lane.h): the path of a Unix socket ("": none), a secret that opens a
	 * lane once, and the newest ticket that the server has sent to this worker */
	char lane_path[WIRE_MAX_SOCKET + 1];
	uint64_t lane_secret_hi, lane_secret_lo, lane_ticket;
	uint32_t lane_gpu;  /* 1: the worker may offer memory of its GPU for the lane */
	uint32_t lane_ring; /* 1: the worker may ask for rings of messages in its lane */
	/* for an observer: the tensors as in HELLO, borrowed; "" or NULL: unknown */
	const char *tensors;
	/* `wire` of HELLO if the server accepts this encoding; otherwise F32 or NONE */
	enum encoding wire;
	/* for side connections (side.h): the maximum number of connections for the tensors of this
	 * worker, the bulk connection included, and a secret that opens each of them once. 0 and 1:
	 * the worker may use only the bulk connection */
	uint32_t connections;
	uint64_t side_secret_hi, side_secret_lo;
};

enum weights { WEIGHTS_CURRENT = 1, WEIGHTS_EVAL = 2 };

struct msg_pull {
	struct stamp stamp;
	uint64_t request; /* a number of the worker's choice; PARAMS returns it */
	enum weights which;
};

enum verdict { VERDICT_NONE = 0, VERDICT_OK = 1, VERDICT_REJECTED = 2 };
enum reject {
	REJECT_NONE = 0,
	REJECT_SHAPE = 1,     /* slices do not match the model, or work does not match the data */
	REJECT_NONFINITE = 2, /* a value is NaN, infinite or over 1e15 in magnitude */
	REJECT_NORM = 3,      /* --reject-norm or --norm-ratio does not permit the L2 norm */
	REJECT_STALE = 4,     /* the gradient was computed at weights that are too old */
	/* the batches of the push do not count, or no longer count (WIRE.md) */
	REJECT_WORK = 5,
	REJECT_UNKNOWN = 6, /* a duplicate of a push whose verdict the server has discarded */
	REJECT_REASONS = 7,
};

struct msg_ack {
	uint64_t seq;
	enum verdict verdict;
	enum reject reject;
	/* 1: the server had already decided on this seq; verdict and version are from that
	 * decision */
	uint32_t duplicate;
	uint64_t version;     /* version of the weights after the decision */
	uint64_t durable_seq; /* newest seq of this worker that is durable */
	/* term of the decision; a decision of an earlier term may be void after a crash */
	uint64_t term;
	/* 1: the push was rejected only because it came too late: another worker's result was
	 * first, or the step had ended */
	uint32_t superseded;
	/* with this code, the worker proves after a crash of the server that the server made this
	 * decision; 0: no proof */
	uint64_t code;
};

struct msg_params {
	uint64_t request;
	uint64_t version; /* version of these weights */
	enum weights which;
	/* mode EASGD: the weights of the worker and of the server each move towards the other by
	 * this fraction of their distance, 0..1 */
	double elastic;
	/* ACK of the push that asked for these weights; seq 0: there is no ACK in this message */
	struct msg_ack ack;
	/* if the weights are in shared memory (lane.h): the number of the hold plus 1, the ticket
	 * and the number of the buffer. lane_hold is 0 if the weights are in tensor frames */
	uint32_t lane_hold;
	uint64_t lane_ticket;
	uint32_t lane_buffer;
	/* number of parts of the tensor frame; the message has only the first part. 0: the message
	 * has the whole frame */
	uint32_t parts;
	struct slices slices; /* the slices cover [0, n_params) */
};

struct msg_push {
	struct stamp stamp;
	/* from 1; grows by 1 with each push of this worker id; a number is never reused */
	uint64_t seq;
	uint64_t base_version; /* version of the weights at which the gradient was computed */
	struct work work;      /* the batches over which the gradient was computed */
	uint32_t images;       /* number of images in these batches */
	float loss;            /* mean loss of these images */
	/* in a replay: the verdict of the push's ACK; NONE: there was no ACK */
	enum verdict verdict;
	enum reject reject;
	uint32_t superseded; /* in a replay: `superseded` in the ACK of the push */
	uint64_t code;       /* in a replay: `code` in the ACK of the push */
	/* the batches and the code of the grant that contains `work`; 0: unknown */
	uint32_t grant_first, grant_count;
	uint64_t grant_code;
	/* term in which the server sent the weights of base_version; 0: unknown */
	uint64_t base_term;
	/* nonzero: the push is also a PULL with this request number. The PARAMS that answer this
	 * PULL have the weights after the decision on the push. */
	uint64_t pull;
	/* number of tensor frames that the worker sent before this message (wire.h) */
	uint32_t chunks;
	/* if the values are in shared memory (lane.h): the number of the slot plus 1, and the
	 * number of values. lane_slot is 0 if the values are in tensor frames */
	uint32_t lane_slot;
	uint64_t lane_count;
	struct slices slices; /* values of the gradient outside the slices are zero */
};

struct msg_lease {
	struct stamp stamp;
	/* grows by 1 with each new request; the server answers a repeated number with the same
	 * grant */
	uint64_t request;
};

enum grant_kind { GRANT_TRAIN = 1, GRANT_EVAL = 2 };

struct msg_grant {
	uint64_t request;
	enum grant_kind kind;
	struct work work; /* TRAIN: the granted batches */
	/* EVAL: images of the test set, for which the worker must pull WEIGHTS_EVAL */
	uint32_t eval_first, eval_count;
	uint64_t eval_id; /* EVAL: a number that the worker returns in RESULT */
	/* TRAIN: 1: only gradients at `version` count, and one push must cover the whole grant */
	uint32_t exact;
	uint64_t version;
	/* with this code, the worker proves after a crash of the server that the server made this
	 * grant; 0: no proof */
	uint64_t code;
};

struct msg_result {
	struct stamp stamp;
	uint64_t eval_id;
	uint32_t eval_first, eval_count;
	uint32_t correct;
	double loss_sum;
	uint64_t code; /* code of the grant; 0: unknown */
	/* sums of the metrics besides accuracy over the images; 0 if there is no such metric */
	double metric_sum[MAX_METRICS];
};

/* These numbers show how a worker's program has spent its time since it connected, in
 * microseconds. */
struct time_split {
	uint64_t compute_us; /* time that the program spends outside of libcnnps */
	uint64_t weights_us; /* time of waiting for weights */
	/* sending pushes, with their checksums and the waits for ACKs or for the disk */
	uint64_t push_us;
	uint64_t lease_us; /* time of waiting for work */
	uint64_t copy_us;  /* time of checksums and copies in libcnnps */
};

/* Workers and the server send this heartbeat. The heartbeat of the server says which of the
 * worker's pushes are decided and durable. */
struct msg_heartbeat {
	struct stamp stamp;
	uint64_t last_seq, durable_seq;
	struct time_split time; /* the times of a worker; zeros in the server's heartbeat */
};

struct msg_bye {
	struct stamp stamp;
	int status; /* why the session ends: 0 (a normal end) or a PS_E* */
};

enum { STATUS_REQUEST = 0, STATUS_REPLY = 1 };
struct msg_status {
	uint32_t reply;
	const char *text; /* REPLY: JSON, at most WIRE_MAX_TEXT bytes; borrowed */
	uint32_t first;   /* REQUEST: only the workers from this number on; 0: the whole status */
	/* REQUEST: the longest text that the client accepts; see status_max_text */
	uint32_t max_text;
};

enum admin_verb {
	ADMIN_CHECKPOINT = 1,
	ADMIN_DRAIN = 2,
	ADMIN_LOG_LEVEL = 3,
	ADMIN_RELEASE = 4,
};
/* each value is 1 more than the same level in enum log_level (common/log.h) */
enum wire_log_level {
	LOG_LEVEL_NONE = 0,
	LOG_LEVEL_ERROR = 1,
	LOG_LEVEL_WARN = 2,
	LOG_LEVEL_INFO = 3,
	LOG_LEVEL_DEBUG = 4,
};
struct msg_admin {
	enum admin_verb verb;
	/* 1: the message is the server's reply after it has carried out the command */
	uint32_t reply;
	/* in the reply to CHECKPOINT: the generation of the written checkpoint */
	uint64_t generation;
	enum wire_log_level level; /* for LOG_LEVEL: the new level; for other verbs: NONE */
	/* for RELEASE: the name or key of the worker in quarantine; for other verbs: "" */
	char worker[WIRE_MAX_NAME + 1];
};

struct msg_error {
	int status;        /* the error: PS_E* */
	uint64_t expected; /* PS_EGAP: the seq that the server expects */
	const char *text;  /* one line for a person; borrowed */
	uint32_t notice;   /* 1: the message is only a notice that replies will be late */
};

struct msg {
	enum msg_type type;
	union {
		struct msg_hello hello;
		struct msg_welcome welcome;
		struct msg_pull pull;
		struct msg_params params;
		struct msg_push push;
		struct msg_ack ack;
		struct msg_lease lease;
		struct msg_grant grant;
		struct msg_result result;
		struct msg_heartbeat heartbeat;
		struct msg_bye bye;
		struct msg_status status;
		struct msg_admin admin;
		struct msg_error error;
	};
};

/* Returns the stamp of `m`, which the sender may have forged. The stamp of a HELLO is that of the
 * session to resume. Returns NULL if the type of `m` has no stamp. */
static inline const struct stamp *msg_stamp(const struct msg *m)
{
	switch (m->type) {
	case MSG_HELLO:
		return &m->hello.resume;
	case MSG_PULL:
		return &m->pull.stamp;
	case MSG_PUSH:
		return &m->push.stamp;
	case MSG_LEASE:
		return &m->lease.stamp;
	case MSG_RESULT:
		return &m->result.stamp;
	case MSG_HEARTBEAT:
		return &m->heartbeat.stamp;
	case MSG_BYE:
		return &m->bye.stamp;
	default:
		return NULL;
	}
}

#endif
