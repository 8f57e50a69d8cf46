/*
 * msg.h - every message of the wire as plain structs, as the rest of the program sees them.
 *
 * decode.c turns frames into these, encode.c these into frames. decode.c is the only judge of
 * untrusted sizes: a struct msg that it decoded has every number inside the limits below, NUL-terminated texts, and slices
 * that are sorted, do not overlap, lie inside [0, n_params) and carry aligned float32 data with a
 * right checksum. No protobuf type appears outside proto/. Pure data: no allocation, no ownership;
 * slices borrow.
 */
#ifndef PROTO_MSG_H
#define PROTO_MSG_H
#include <stddef.h>
#include <stdint.h>

/* This build speaks the versions from WIRE_OLDEST_PROTOCOL to WIRE_PROTOCOL (WIRE.md, "Versions"). */
#define WIRE_PROTOCOL        6u
#define WIRE_OLDEST_PROTOCOL 6u
/* Features that a peer may require of this build, and that this build requires of its peers: names
 * with a blank between two. */
#define WIRE_FEATURES "chunked-push"
#define WIRE_REQUIRES ""

/* The one table of limits; proto/WIRE.md prints it and a test compares. */
#define WIRE_MAX_HEADER      65536u       /* bytes of the header frame */
#define WIRE_MAX_BODY_MEMORY (256u << 10) /* bytes protobuf-c may allocate for one header */
#define WIRE_MAX_SLICES      64u          /* slices (= tensor frames) per message */
#define WIRE_MAX_CHUNKS      7u           /* tensor frames sent before their PUSH */
#define WIRE_MAX_PARAMS      (1u << 28)   /* floats of a model */
#define WIRE_MAX_NAME        63u          /* bytes of a worker's name or device text */
#define WIRE_MAX_HOST        64u          /* bytes of a host's name: Linux's limit */
#define WIRE_MAX_MODEL       511u         /* bytes of a model text */
#define WIRE_MAX_TEXT        32767u       /* bytes of a STATUS or ERROR text */
#define WIRE_MAX_IMAGES      (1u << 24)   /* images of a data set */
#define WIRE_MAX_WORKERS     1024u        /* worker slots of a server */
#define WIRE_MAX_BATCHES     (1u << 20)   /* batches of an epoch */
#define WIRE_MAX_EPOCHS      65536u       /* epochs */
#define WIRE_MAX_WINDOW      1024u        /* pushes that a worker may keep */
#define WIRE_FRAME_SLACK     4096u        /* MAXMSGSIZE = 4 * n_params + this */

/* Message types; the numbers are the oneof field numbers of cnnps.proto. */
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
	MSG_BEAT = 10,
	MSG_BYE = 11,
	MSG_STATUS = 12,
	MSG_ADMIN = 13,
	MSG_ERROR = 14,
	MSG_TYPES = 15,
};

struct run_id {
	uint64_t hi, lo; /* 128 random bits; both zero: none */
};

/* Who speaks, and to which life of which run: every worker message but HELLO carries one. */
struct stamp {
	struct run_id run;
	uint64_t term;        /* +1 at every start of the server */
	uint32_t worker;      /* from 1; 0: not a worker (cnn-ctl) */
	uint32_t incarnation; /* from 1; life of this worker id */
};

enum role { ROLE_WORKER = 1, ROLE_OBSERVER = 2 };

/* The data set a worker holds. All zero: none (vector:N models). */
struct data_id {
	uint32_t n_train, n_test, rows, cols, classes;
	uint64_t xxh3; /* of the four decompressed files, see WIRE.md */
};

enum encoding { ENCODING_F32 = 1 };

/* Values [offset, offset + count) of the flat parameter vector. */
struct slice {
	uint64_t offset, count; /* floats; count >= 1 */
	enum encoding encoding;
	uint64_t xxh3; /* XXH3-64 of the frame's bytes; filled by the sender, checked by decode.c */
	const float *data; /* borrowed, aligned for float */
	uint32_t peak;     /* float32 bits of the largest magnitude in data, NaN above all; decode.c
			      fills it in for a PUSH. 0: not known */
};

struct slices {
	uint32_t n;
	struct slice slice[WIRE_MAX_SLICES];
};

/* Batches [first, first + count) of epoch `epoch` (from 0); count 0: none. */
struct work {
	uint32_t epoch, first, count;
};

struct msg_hello {
	enum role role;
	char name[WIRE_MAX_NAME + 1]; /* "" : the server picks a slot; else the slot of this name */
	char device[WIRE_MAX_NAME + 1]; /* for people: "cpu 2 threads avx512" */
	struct data_id data;
	struct stamp resume;          /* all zero: a new process; else the session to go on with */
	uint64_t last_seq;            /* newest seq this process has given to a push */
	uint64_t durable_seq;         /* newest seq whose bytes it has released */
	char host[WIRE_MAX_HOST + 1]; /* for people, like device: a label, which decides nothing */
	uint32_t pid;                 /* so too; 0: not told */
};

/* How gradients meet (WIRE.md, "Modes"). */
enum mode {
	MODE_DOWNPOUR = 1, /* each is applied when it comes */
	MODE_SSP = 2,      /* so too, but nobody may be more than some batches ahead */
	MODE_SYNC = 3,     /* the mean of one from each worker, all computed at the same weights */
	MODE_SANDBLASTER = 4, /* sums over portions of a large batch, all at the same weights */
	MODE_EASGD = 5,       /* workers train for themselves and push how far they are from us */
};

struct msg_welcome {
	struct stamp stamp;
	uint64_t last_seq;    /* newest seq of this worker that the server has decided on */
	uint64_t durable_seq; /* newest of those in a checkpoint on disk */
	char model[WIRE_MAX_MODEL + 1];
	uint64_t model_fingerprint;
	uint64_t n_params;
	uint64_t seed;
	uint32_t batch, epochs; /* images per batch; epochs 0: no data set, no leases (vector:N) */
	uint32_t push_window;   /* pushes that may be unacknowledged, 1.. */
	uint32_t replay_window; /* pushes that may be undurable, >= push_window */
	uint32_t beat_ms;       /* send a BEAT this often */
	uint32_t dead_ms;       /* silence after which the server gives the worker's leases away */
	uint32_t forget_ms; /* silence after which a worker must give up: its slot may be another's
			     */
	enum mode mode;
	uint32_t n_push, n_fetch; /* batches between pushes, and between pulls, >= 1 */
	uint32_t push_sum; /* 1: a push is the sum of its batches' gradients, 0: their mean */
	uint32_t prefetch; /* 1: pull the next weights while a gradient is computed */
	double local_rate; /* rate of a worker's own steps between pulls, >= 0 */
	double momentum;   /* EASGD: of those steps, 0..1; 0: none */
};

enum weights { WEIGHTS_CURRENT = 1, WEIGHTS_EVAL = 2 };

struct msg_pull {
	struct stamp stamp;
	uint64_t request; /* chosen by the worker, returned in PARAMS */
	enum weights which;
};

enum verdict { VERDICT_NONE = 0, VERDICT_OK = 1, VERDICT_REJECTED = 2 };
enum reject {
	REJECT_NONE = 0,
	REJECT_SHAPE = 1,     /* slices do not fit the model, or work does not fit the data */
	REJECT_NONFINITE = 2, /* NaN, infinity or a magnitude over 1e15 in it */
	REJECT_NORM = 3,      /* L2 norm over the limit */
	REJECT_STALE = 4,     /* computed too many versions ago */
	REJECT_WORK = 5,      /* a batch of it has already been counted */
	REJECT_UNKNOWN = 6,   /* duplicate of a push so old that its verdict is no longer kept */
	REJECT_REASONS = 7,
};

struct msg_ack {
	uint64_t seq;
	enum verdict verdict;
	enum reject reject;
	uint32_t duplicate;   /* 1: this seq had been decided before; verdict and version are the
				 original ones */
	uint64_t version;     /* after the apply */
	uint64_t durable_seq; /* newest seq of this worker in a checkpoint on disk */
	uint64_t term;        /* of the decision: one of before a crash is no longer true */
};

struct msg_params {
	uint64_t request;
	uint64_t version; /* gradients applied before these weights */
	enum weights which;
	double elastic; /* EASGD: part of the distance that worker and centre each close, 0..1 */
	struct msg_ack ack;   /* of the push that pulled them; seq 0: it comes by itself, or none */
	struct slices slices; /* covers [0, n_params) */
};

struct msg_push {
	struct stamp stamp;
	uint64_t seq;          /* from 1, +1 per push of this worker id, never reused */
	uint64_t base_version; /* version of the weights the gradient was computed at */
	struct work work;      /* the batches it covers */
	uint32_t images;       /* images in it */
	float loss;            /* mean loss over them */
	enum verdict verdict;  /* a replay: what ACK said about it before; NONE: no ACK came yet */
	enum reject reject;
	uint64_t base_term;   /* term that sent those weights */
	uint64_t pull;        /* nonzero: also a pull of the current weights, after the decision */
	uint32_t chunks;      /* tensor frames that were sent before it, see wire.h */
	struct slices slices; /* what is not covered is zero */
};

struct msg_lease {
	struct stamp stamp;
	uint64_t
		request; /* +1 per new request; a repeated number is answered with the same grant */
};

enum grant_kind { GRANT_TRAIN = 1, GRANT_EVAL = 2 };

struct msg_grant {
	uint64_t request;
	enum grant_kind kind;
	struct work work;                /* TRAIN */
	uint32_t eval_first, eval_count; /* EVAL: images of the test set; pull WEIGHTS_EVAL */
	uint64_t eval_id;                /* EVAL: returned in RESULT */
	uint32_t exact; /* TRAIN: 1: only gradients at `version` count, and one push
			   covers the whole grant */
	uint64_t version;
};

struct msg_result {
	struct stamp stamp;
	uint64_t eval_id;
	uint32_t eval_first, eval_count;
	uint32_t correct;
	double loss_sum;
};

/* Worker to server: I live. Server to worker: the same, with what it has of you. */
struct msg_beat {
	struct stamp stamp;
	uint64_t last_seq, durable_seq;
};

struct msg_bye {
	struct stamp stamp;
	int status; /* 0 or PS_E*: why */
};

enum { STATUS_REQUEST = 0, STATUS_REPLY = 1 };
struct msg_status {
	uint32_t reply;
	const char *text; /* REPLY: JSON, at most WIRE_MAX_TEXT bytes; borrowed */
};

enum admin_verb { ADMIN_CHECKPOINT = 1, ADMIN_DRAIN = 2, ADMIN_LOG_LEVEL = 3 };
/* enum log_level of common/log.h, plus 1 */
enum wire_log_level {
	LOG_LEVEL_NONE = 0,
	LOG_LEVEL_ERROR = 1,
	LOG_LEVEL_WARN = 2,
	LOG_LEVEL_INFO = 3,
	LOG_LEVEL_DEBUG = 4,
};
struct msg_admin {
	enum admin_verb verb;
	uint32_t reply;            /* 1: done */
	uint64_t generation;       /* reply to CHECKPOINT: the generation on disk */
	enum wire_log_level level; /* LOG_LEVEL: the new one; of other verbs NONE */
};

struct msg_error {
	int status;        /* PS_E* */
	uint64_t expected; /* PS_EGAP: the seq the server waits for */
	const char *text;  /* one line for a person; borrowed */
	uint32_t notice;   /* 1: it answers no request, and refuses none: replies are late */
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
		struct msg_beat beat;
		struct msg_bye bye;
		struct msg_status status;
		struct msg_admin admin;
		struct msg_error error;
	};
};

/* Whom `m` claims to come from: a HELLO the session that it resumes. NULL: a type without one. */
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
	case MSG_BEAT:
		return &m->beat.stamp;
	case MSG_BYE:
		return &m->bye.stamp;
	default:
		return NULL;
	}
}

#endif
