/*
 * fake_state.h - what the fake server of fake_server.h is told, sees and consists of.
 */
#ifndef TESTS_UNIT_FAKE_STATE_H
#define TESTS_UNIT_FAKE_STATE_H
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

/* How to behave. */
struct fake_how {
	int mute_pushes; /* take no notice of PUSH, as if it had been lost */
	int mute_acks;   /* decide on a push, but say nothing */
	int joined_acks; /* of a push that pulls: in its PARAMS */
	int mute_pulls, mute_leases;
	int mute_leases_after; /* nonzero: once so many have come, mute_leases */
	int not_durable;       /* nothing gets durable */
	int garbage;           /* before each answer, a message that is none */
	int status;            /* nonzero: answer everything by an ERROR with it */
	int bye;               /* nonzero: answer LEASE by a BYE with it */
	int reject;            /* REJECT_*: the reason why every push is rejected */
	int superseded;        /* ... because another result was first */
	int two_slices;        /* weights come in two pieces */
	int damaged_pulls;     /* so many of the next ones have a bit turned over */
	int refuse_admin;
	uint32_t push_window, replay_window;
	const char *model; /* of FAKE_PARAMS parameters */
	enum mode mode;
	uint32_t n_push, n_fetch, push_sum, prefetch;
	double local_rate, momentum, elastic; /* elastic: of PARAMS number i: / (1 + i % 3) */
	float start[FAKE_PARAMS];             /* weights before the first push */
	uint32_t n_grants; /* 0, or: the answers to LEASE 1, 2, ...; then PS_EDONE */
	struct msg_grant grants[FAKE_GRANTS];
};

/* A push that was decided on. */
struct fake_push {
	uint64_t base_version, base_term;
	struct work work;
	uint32_t images;
	float loss, g[FAKE_PARAMS];
	int pulls; /* that came before it */
	int asked; /* 1: it came with one */
};

/* What has happened. */
struct fake_seen {
	int hellos, pulls, pushes, leases, results, beats, byes;
	uint64_t last_seq;                  /* newest push decided on */
	float sum[FAKE_PARAMS];             /* of the pushes decided on */
	uint64_t seq[FAKE_PUSHES];          /* of each PUSH that came, decided or not */
	uint64_t hash[FAKE_PUSHES];         /* of its tensor */
	struct fake_push made[FAKE_PUSHES]; /* by seq - 1 */
	struct msg_hello hello;             /* the newest of each */
	struct msg_push push;
	struct msg_result result;
};

struct fake {
	char url[64];
	void *context, *socket;
	struct wire *wire;
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	struct fake_how how;
	struct fake_seen seen;
	uint64_t epoch;
	int hang_up, forget, stop;
};

#endif
