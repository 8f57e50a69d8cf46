/*
 * session_driver.h - drives a worker's session without a network.
 *
 * Each function makes one call of worker/client/session.h, checks the invariants of this header
 * against the effects of the call, and stores the effects until the next call.
 */
#ifndef TESTS_SUPPORT_SESSION_DRIVER_H
#define TESTS_SUPPORT_SESSION_DRIVER_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "worker/client/session.h"

#define DRIVER_SEQS 4096u

struct session_driver {
	struct session *s;
	uint64_t now_ms;
	struct msg_welcome welcome; /* the next WELCOME that the driver sends for the server, with
	                             * stamp and term */
	/* notified_ack: the seq of the newest NOTIFY_ACK; released: the seq of the newest
	 * DO_RELEASE */
	uint64_t notified_ack, released;
	uint64_t durable; /* the seq up to which the server has reported all pushes as durable */
	struct msg_push made[DRIVER_SEQS]; /* the arguments of session_push, indexed by seq */
	/* the verdict in the NOTIFY_ACK of each push, indexed by seq */
	uint8_t verdict[DRIVER_SEQS];
	int ended;
	char did[2048];
};

/* ---- life cycle ----------------------------------------------------------------------------- */

struct session_config driver_config(void);
/* Create a session that is connected and has sent HELLO. */
void driver_new(struct session_driver *d, struct session_config cfg, size_t replay_max);
/* Create a session as driver_new does, and answer HELLO with the WELCOME of a new run. */
void driver_open(struct session_driver *d);

/* ---- effects of the last call --------------------------------------------------------------- */

const struct session_effect *driver_effect(
	const struct session_driver *d, enum session_effect_kind kind);
/* Returns the first message of this type that the last call sent, or NULL. */
const struct msg *driver_sent(const struct session_driver *d, enum msg_type type);
/* Returns all effects of the last call in order, such as "READY push:4 push:5 lease". Words in
 * capitals are notifications for the program. */
const char *driver_did(struct session_driver *d);
#define assert_did(d, words) assert_string_equal(driver_did(d), words)

/* ---- messages from the server to the session ------------------------------------------------ */

void driver_message(struct session_driver *d, const struct msg *m);
void driver_welcome(struct session_driver *d, uint64_t last_seq, uint64_t durable_seq);
void driver_ack(struct session_driver *d, uint64_t seq, enum verdict v, uint64_t durable);
void driver_heartbeat(struct session_driver *d, uint64_t last_seq, uint64_t durable_seq);
void driver_error(struct session_driver *d, int status);
/* Send an ERROR that only explains why replies are late: they wait for the server's disk. */
void driver_notice(struct session_driver *d);
void driver_bye_from_server(struct session_driver *d, int status);
/* Restart the server: its next WELCOME will have a new term. */
void driver_crash(struct session_driver *d);

/* ---- calls of the program and of the network ------------------------------------------------ */

/* Make a push with a content that no other push has. Returns the status of session_push. */
int driver_push(struct session_driver *d);
int driver_push_pull(struct session_driver *d);
/* Make `n` pushes, which must succeed. */
void driver_push_ok(struct session_driver *d, int n);
int driver_pull(struct session_driver *d);
int driver_lease(struct session_driver *d);
void driver_bye(struct session_driver *d);
void driver_lost(struct session_driver *d);
void driver_up(struct session_driver *d);
void driver_tick(struct session_driver *d, uint64_t ms);

#endif
