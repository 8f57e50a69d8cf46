/*
 * requests.h - the request of the program that is in progress, and the answers that complete it.
 * One request is in progress at a time.
 *
 * This module decides which answer of the server belongs to which request. net.c passes a request
 * to the session or sends it, and calls this module with each answer and with the end of the
 * session.
 *
 * Thread: the holder of the I/O lock (net.h), unless a function says otherwise.
 */
#ifndef WORKER_CLIENT_REQUESTS_H
#define WORKER_CLIENT_REQUESTS_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/msg.h"
#include "proto/wire.h"

enum request_kind {
	REQUEST_CONNECT, /* wait for the first WELCOME */
	REQUEST_PUSH,
	REQUEST_PULL,
	REQUEST_PREFETCH, /* start a pull; the next PULL of WEIGHTS_CURRENT waits for its answer */
	REQUEST_LEASE,
	REQUEST_RESULT,
	REQUEST_FLUSH,
	REQUEST_STATUS,
	REQUEST_ADMIN,
	/* send the pictures that the server has requested (show.h), if the session is
	 * established */
	REQUEST_SHOW,
	REQUEST_CLOSE, /* flush, then send BYE; no request may follow */
};

/* Received weights that are not verified yet. wire_values verifies them. */
struct arrival {
	struct frames frames; /* the caller owns them if the request's status is 0 */
	struct msg_params params;
	uint64_t term;
};

struct request {
	enum request_kind kind;
	int status; /* result: 0 or PS_E* */
	/* result: one line for a person if the session has ended or the request has failed, else
	 * "" */
	char why[512];
	/* deadline of FLUSH and CLOSE, a time of clock_ms; requests of other kinds can wait until
	 * the session ends */
	uint64_t deadline_ms;
	struct {
		enum weights which;
		struct arrival got;
	} pull;
	union {
		struct msg_welcome welcome; /* CONNECT: the result */
		struct {
			struct msg_push meta; /* the push, which has exactly one slice */
			/* a successful push takes over the tensor and leaves it empty */
			zmq_msg_t tensor;
			/* 1 if the request continues as a PULL after the push, with the fields
			 * below */
			int then_pull;
			int starts_pull; /* 1 if the push also starts a pull, as PREFETCH does */
		} push;
		struct {
			struct msg_grant grant;
			uint64_t term;
		} lease; /* LEASE: the result */
		struct msg_result result;
		int durable; /* FLUSH: wait for the server's disk, not only for the decisions */
		struct {
			char *json;
			size_t size;
			/* if not 0, the report has only the workers from this number on */
			uint32_t first;
		} report;         /* STATUS: the buffer for the result */
		const char *show; /* SHOW: the pictures as JSON */
		struct {
			enum admin_verb verb;
			enum wire_log_level level;
			char worker[WIRE_MAX_NAME + 1];
			uint64_t generation;
		} admin;
	};
};

/* A pull of the current weights that was started by REQUEST_PREFETCH. */
enum prefetch {
	PREFETCH_NONE,
	PREFETCH_PENDING, /* waiting for its PARAMS */
	PREFETCH_ARRIVED, /* its PARAMS are in `prefetched` */
};

struct requests {
	struct request *current; /* the request in progress, or NULL; borrowed */
	uint64_t begun_ms;       /* time at which `current` began, by the session's clock */
	/* 1 if net.c has passed `current` to the session, or has sent it */
	int pending;
	/* time at which a STATUS or ADMIN was sent, by the session's clock */
	uint64_t sent_ms;
	enum prefetch prefetch;
	struct arrival prefetched;
	int ended;      /* 1 if the session has ended, with `end_status` and `why` */
	int end_status; /* 0 if the program itself has closed the session */
	char why[512];  /* the reason of the end in one line, or "" */
	/* the newest STATUS for which no request waited, such as the final one of the run; owned */
	char *last_status;
	/* time (clock_ms) of the program's last call or its last result */
	atomic_uint_least64_t active_ms;
};

/* Moves `from` to `to`, which must be empty. After the call `from` is empty. */
void arrival_move(struct arrival *to, struct arrival *from);

/* Frees what *q owns. The caller must not use *q any more. */
void requests_release(struct requests *q);
/* Makes `r` the request in progress. No other request may be in progress. */
void requests_begin(struct requests *q, struct request *r, uint64_t now_ms);
/* Completes the request in progress, if there is one. The request's `why` becomes the reason of the
 * session's end, or "" while the session has not ended. */
void requests_complete(struct requests *q, int status);
/* Completes the request in progress with `status` and the reason `why` of this request alone. */
void requests_fail(struct requests *q, int status, const char *why);
/* Returns the request in progress if it is of this kind, else NULL. */
struct request *requests_current(const struct requests *q, enum request_kind kind);
/* Records the end of the session and its reason. Only the first call has an effect. */
void requests_end(struct requests *q, int status, const char *why);
/* Completes the request in progress after the end of the session. A STATUS request gets the last
 * STATUS of the run, if one has come. */
void requests_answer_with_end(struct requests *q);
/* Lets the request in progress, a PULL of WEIGHTS_CURRENT, take over the pull that a prefetch has
 * started. The PARAMS of this pull may already have arrived. */
void requests_take_prefetched(struct requests *q);

/* The functions below handle the answers of the server. All except requests_status ignore an answer
 * that no request waits for. */

/* Answers the pull or the prefetch with PARAMS. If one of them waits, takes over `frames`, the
 * frames of the message. `term` is the server's term. */
void requests_params(
	struct requests *q, const struct msg_params *p, uint64_t term, struct frames *frames);
/* Ends the pull or the prefetch with `status`, which says why the server sends no PARAMS. */
void requests_no_params(struct requests *q, int status);
void requests_grant(struct requests *q, const struct msg_grant *g, uint64_t term);
/* Handles a STATUS reply. If no request waits for the reply, stores the reply as `last_status`,
 * because it can have the final status of the run. */
void requests_status(struct requests *q, const struct msg_status *s);
void requests_admin(struct requests *q, const struct msg_admin *a);
/* `e` is the newest ERROR of the server. An ERROR with PS_EUSAGE refuses an ADMIN request. */
void requests_error(struct requests *q, const struct err *e);

/* Notes that the program makes progress. Any thread may call this function. */
void requests_alive(struct requests *q);
/* Returns 1 if the program waits for a request, or has made progress in the last `timeout_ms`
 * milliseconds. */
int requests_is_alive(const struct requests *q, uint64_t timeout_ms);

#endif
