/* requests.c - see requests.h. */
#include "worker/client/requests.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/assert.h"
#include "common/clock.h"

void arrival_move(struct arrival *to, struct arrival *from)
{
	frames_move(&to->frames, &from->frames);
	to->params = from->params;
	to->term = from->term;
}

void requests_release(struct requests *q)
{
	frames_release(&q->prefetched.frames);
	free(q->last_status);
}

/* ---- begin and end of a request -------------------------------------------------------------- */

void requests_alive(struct requests *q)
{
	atomic_store(&q->active_ms, clock_ms());
}

int requests_is_alive(const struct requests *q, uint64_t timeout_ms)
{
	return q->current || clock_ms() < atomic_load(&q->active_ms) + timeout_ms;
}

void requests_begin(struct requests *q, struct request *r, uint64_t now_ms)
{
	PS_ASSERT(!q->current); /* invariant 3 of net.h */
	r->why[0] = '\0';
	q->current = r;
	q->begun_ms = now_ms;
	q->pending = 0;
	requests_alive(q);
}

void requests_complete(struct requests *q, int status)
{
	struct request *r = q->current;

	if (!r)
		return;
	r->status = status;
	memcpy(r->why, q->why, sizeof(r->why));
	q->current = NULL;
	requests_alive(q);
}

void requests_fail(struct requests *q, int status, const char *why)
{
	snprintf(q->why, sizeof(q->why), "%s", why);
	requests_complete(q, status);
	q->why[0] = '\0';
}

struct request *requests_current(const struct requests *q, enum request_kind kind)
{
	return q->current && q->current->kind == kind ? q->current : NULL;
}

/* ---- the end of the session ------------------------------------------------------------------ */

void requests_end(struct requests *q, int status, const char *why)
{
	if (q->ended)
		return;
	q->ended = 1;
	q->end_status = status;
	snprintf(q->why, sizeof(q->why), "%s", why);
}

/* Answers a STATUS request with the final status of the run, and forgets this status. */
static void deliver_last_status(struct requests *q)
{
	snprintf(q->current->report.json, q->current->report.size, "%s", q->last_status);
	free(q->last_status);
	q->last_status = NULL;
	requests_complete(q, PS_OK);
}

void requests_answer_with_end(struct requests *q)
{
	if (requests_current(q, REQUEST_STATUS) && q->last_status)
		deliver_last_status(q);
	else
		requests_complete(q, q->end_status ? q->end_status : PS_ESHUTDOWN);
}

/* ---- the answers of the server --------------------------------------------------------------- */

/* Returns the request that waits for PARAMS. If it returns NULL, no request waits, so a PARAMS that
 * arrives answers a prefetch. */
static struct request *pulling(struct requests *q)
{
	return q->pending ? requests_current(q, REQUEST_PULL) : NULL;
}

void requests_params(
	struct requests *q, const struct msg_params *p, uint64_t term, struct frames *frames)
{
	struct request *r = pulling(q);
	struct arrival *a = r ? &r->pull.got : &q->prefetched;

	if (!r && q->prefetch != PREFETCH_PENDING)
		return;
	frames_move(&a->frames, frames);
	a->params = *p;
	a->term = term;
	if (r)
		requests_complete(q, PS_OK);
	else
		q->prefetch = PREFETCH_ARRIVED;
}

void requests_no_params(struct requests *q, int status)
{
	if (pulling(q))
		requests_complete(q, status);
	else if (q->prefetch == PREFETCH_PENDING)
		q->prefetch = PREFETCH_NONE;
}

void requests_take_prefetched(struct requests *q)
{
	enum prefetch was = q->prefetch;

	q->prefetch = PREFETCH_NONE;
	q->pending = was == PREFETCH_PENDING;
	if (was == PREFETCH_PENDING)
		return;
	arrival_move(&q->current->pull.got, &q->prefetched);
	requests_complete(q, PS_OK);
}

void requests_grant(struct requests *q, const struct msg_grant *g, uint64_t term)
{
	struct request *r = requests_current(q, REQUEST_LEASE);

	if (!r)
		return;
	r->lease.grant = *g;
	r->lease.term = term;
	requests_complete(q, PS_OK);
}

void requests_status(struct requests *q, const struct msg_status *s)
{
	struct request *r = requests_current(q, REQUEST_STATUS);

	if (!r) {
		free(q->last_status);
		q->last_status = strdup(s->text);
		return;
	}
	snprintf(r->report.json, r->report.size, "%s", s->text);
	requests_complete(q, PS_OK);
}

void requests_admin(struct requests *q, const struct msg_admin *a)
{
	struct request *r = requests_current(q, REQUEST_ADMIN);

	if (!r || !a->reply || a->verb != r->admin.verb)
		return;
	r->admin.generation = a->generation;
	requests_complete(q, PS_OK);
}

void requests_error(struct requests *q, const struct err *e)
{
	if (e->status == PS_EUSAGE && requests_current(q, REQUEST_ADMIN) && q->pending)
		requests_fail(q, PS_EUSAGE, e->text);
}
