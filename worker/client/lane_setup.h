/*
 * lane_setup.h - decides when the worker has a lane (lane.h): opens one for a new process of the
 * server, waits for the server's answer, and drops a lane that fails. While the lane is open, the
 * outbox uses it.
 *
 * Thread: the holder of the I/O lock (net.h).
 */
#ifndef WORKER_CLIENT_LANE_SETUP_H
#define WORKER_CLIENT_LANE_SETUP_H
#include <stdint.h>
#include "common/err.h"
#include "proto/msg.h"
#include "worker/client/cnnps.h"
#include "worker/client/lane.h"
#include "worker/client/outbox.h"

struct lane_setup {
	enum cnnps_lane choice;
	const char *server; /* address of the server, for the log; borrowed */
	struct outbox *out; /* the outbox that uses the lane; borrowed */
	/* a lane that is open or waits for the server's answer; NULL if there is none */
	struct lane *lane;
	uint64_t term;                    /* the term of the server that offered the lane */
	uint64_t requested_ms;            /* time at which the worker asked for the lane */
	int has_logged;                   /* 1: the log says why there is no lane in this term */
	uint64_t received;                /* what has arrived on the bulk connection (lane.h) */
	int has_gpu;                      /* 1: the server of the lane has its weights on a GPU */
	const struct lane_device *device; /* the device that offers its memory; NULL: none */
};

/* Prepares for a program that chose `choice`. `server` and `out` must outlive `s`. */
void lane_setup_init(
	struct lane_setup *s, enum cnnps_lane choice, const char *server, struct outbox *out);
/* Lets the present and all later lanes use memory of `device`, which must outlive `s`. The worker
 * offers this memory only to a server that has its weights on a GPU. */
void lane_setup_use_device(struct lane_setup *s, const struct lane_device *device);
/* Drops the reference to the lane. The memory of the lane stays mapped until the last slot and the
 * last buffer are released. */
void lane_setup_drop(struct lane_setup *s);
/* Returns 1 while the worker waits for the server's answer. */
int lane_setup_waits(const struct lane_setup *s);

/* Notes that a message has arrived on the bulk connection, and shows this to the server. */
void lane_setup_received(struct lane_setup *s);
/* Notes that this message was WELCOME `w`. */
void lane_setup_note_welcome(struct lane_setup *s, const struct msg_welcome *w);

/* Each of the following functions returns PS_EUSAGE if `choice` is CNNPS_LANE_SHM and a lane is not
 * possible. The reason is in *e, as one line. With another `choice`, a worker without a lane uses
 * its connection. */

/* Handles WELCOME `w`: opens a lane if the server offers one. If the WELCOME is from the process to
 * which the worker already has an intact lane, that lane stays in use. */
int lane_setup_welcome(struct lane_setup *s, const struct msg_welcome *w, uint64_t now_ms,
	struct err *e) PS_MUST_CHECK;
/* Reads the answer from the server's Unix socket if it has arrived. */
int lane_setup_poll(struct lane_setup *s, uint64_t now_ms, struct err *e) PS_MUST_CHECK;
/* Does the same as lane_setup_poll, and drops a lane that the server has closed. */
int lane_setup_tick(struct lane_setup *s, uint64_t now_ms, struct err *e) PS_MUST_CHECK;

#endif
