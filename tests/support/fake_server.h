/*
 * fake_server.h - a parameter server for tests of libcnnps.
 *
 * The fake server answers every message as proto/WIRE.md requires, except where the test has
 * changed its behaviour (struct fake_how). The fake server records the messages that it receives.
 * Threads: the server runs in its own thread; the test's thread calls the functions below.
 */
#ifndef TESTS_SUPPORT_FAKE_SERVER_H
#define TESTS_SUPPORT_FAKE_SERVER_H
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <zmq.h>
#include <cmocka.h>
#include "proto/wire.h"

#define FAKE_PARAMS 6
#define FAKE_PUSHES 64
#define FAKE_GRANTS 4
#define FAKE_JSON   "{\"fake\": true}"

struct fake_how {
	int mute_pushes; /* 1: ignore PUSH, as if it had been lost */
	int mute_acks;   /* 1: apply or reject each push, but send no ACK */
	int joined_acks; /* 1: send the ACK of a push that also pulls in the PARAMS */
	int mute_pulls, mute_leases;
	/* after this number of LEASE messages, set mute_leases to 1; 0: never */
	int mute_leases_after;
	int not_durable; /* 1: no push becomes durable */
	int garbage;     /* 1: before each reply, send bytes that are not a message */
	int status;      /* answer every message with an ERROR of this status; 0: no ERROR */
	/* 1: the text of this ERROR has characters that control a terminal */
	int controls;
	int bye;           /* answer each LEASE with a BYE of this status; 0: no BYE */
	int reject;        /* REJECT_*: reject every push for this reason; 0: accept every push */
	int superseded;    /* each ACK reports this number of superseded results */
	int two_slices;    /* 1: send the weights as two tensors */
	int damaged_pulls; /* the server flips a bit in this many of the next PARAMS */
	int refuse_admin;
	int only_fp32; /* 1: the WELCOME permits only float32, not bfloat16 */
	uint32_t push_window, replay_window;
	const char *model; /* a model text; the model has FAKE_PARAMS parameters */
	uint32_t epochs;   /* number of epochs of the run; 0: the run has no data set */
	enum mode mode;
	uint32_t n_push, n_fetch, push_sum, prefetch, validate;
	double local_rate, momentum, elastic;
	float start[FAKE_PARAMS]; /* the weights before the first push */
	/* Nonzero: the server answers the first n_grants LEASEs with `grants`, and each later LEASE
	 * with PS_EDONE. */
	uint32_t n_grants;
	struct msg_grant grants[FAKE_GRANTS];
};

/* A push that the server has applied or rejected. */
struct fake_push {
	uint64_t base_version, base_term;
	struct work work;
	uint32_t images;
	float loss, g[FAKE_PARAMS];
	int pulls;     /* number of PULL messages that arrived before this push */
	int requested; /* 1: the push also requested the weights */
};

/* A record of the messages that the server has received. */
struct fake_seen {
	int hellos, pulls, pushes, leases, results, heartbeats, byes;
	/* the seq of the newest push that the server has decided */
	uint64_t last_seq;
	/* the sum of the gradients of the pushes that the server has decided */
	float sum[FAKE_PARAMS];
	uint64_t seq[FAKE_PUSHES];  /* the seq of each PUSH, decided or not */
	uint64_t hash[FAKE_PUSHES]; /* the hash of the tensor of each PUSH */
	/* the decided pushes; the push with number seq is at index seq - 1 */
	struct fake_push made[FAKE_PUSHES];
	/* hello, push, result: the newest message of this type */
	struct msg_hello hello;
	struct msg_push push;
	struct msg_result result;
	struct time_split time; /* the field `time` of the newest HEARTBEAT */
};

struct fake {
	char url[64];
	void *context, *socket;
	struct wire *wire;
	pthread_t thread;
	pthread_mutex_t mutex; /* protects the members below */
	pthread_cond_t changed;
	struct fake_how how;
	struct fake_seen seen;
	uint64_t term;
	int hang_up, forget, stop;
};

/* Bind a free port of 127.0.0.1, and start the thread of the fake server. */
void fake_start(struct fake *f);
void fake_stop(struct fake *f);
/* Wait for at most `seconds` until `enough(f)` is true. Returns 1 if `enough(f)` became true within
 * `seconds`, else 0. */
int fake_happens(struct fake *f, int (*enough)(const struct fake *), int seconds);
/* Wait for at most 20 s until `enough(f)` is true. If `enough(f)` is still false then, the test
 * fails with the text `what`. */
void fake_wait(struct fake *f, int (*enough)(const struct fake *), const char *what);
/* Returns 1 if the worker has sent a PULL. For fake_wait. */
int fake_has_pull(const struct fake *f);

/* fake_set changes one member of f->how; fake_behave replaces all members. */
void fake_set(struct fake *f, int *how, int value);
void fake_behave(struct fake *f, struct fake_how how);
struct fake_seen fake_read_seen(struct fake *f);
/* Close every connection, and then bind the same port again. With `forget`, the server also begins
 * a new term and loses all pushes, as after a crash without a checkpoint. */
void fake_hang_up(struct fake *f, int forget);

#endif
