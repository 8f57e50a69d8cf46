/*
 * client.c - libcnnps in virtual time. This file implements the calls of worker/client/cnnps.h that
 * a trainer makes, with the real session. A call that must wait suspends the worker's coroutine
 * (park). The scheduler resumes the coroutine after each message to the worker, each tick of its
 * session and each computation. The resumed call then returns or, if it must still wait, suspends
 * the coroutine again.
 *
 * Thread: one. The calls of a worker run on the stack of its coroutine. The effects of a session
 * run on the stack of the coroutine or of the scheduler.
 */
#include "worker/client/cnnps.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "tests/bench/virtual/virtual.h"
#include "worker/client/device.h"
#include "worker/client/info.h"
#include "worker/client/session.h"
#include "worker/client/show.h"

#define STACK_BYTES ((size_t)1 << 20)
/* the cost of an evaluation relative to a gradient; an evaluation computes only the forward pass */
#define EVAL_PART     (1.0 / 3)
#define MAX_RETAINED  WIRE_MAX_WINDOW
#define MAX_BUFFERS   (MAX_RETAINED + 2)
#define RETRY_MS      500
#define SILENCE_MS    5000
#define PATIENCE_MS   1000000000
#define JITTER_STREAM 0x7a5c

enum prefetch { PREFETCH_NONE, PREFETCH_REQUESTED, PREFETCH_HERE };

struct cnnps {
	struct world *world;
	struct session *session;
	struct cnnps_info info;
	uint32_t index;
	struct rng rng; /* draws the computation times of batches */
	ucontext_t context;
	void *stack;
	int started, over, computing;
	int ended, end_status; /* ended: 1: the session has ended with the status end_status */
	int has_grant, has_params, no_params;
	struct msg_grant grant;
	enum prefetch prefetch;
	float *arrived; /* the weights of the newest PARAMS until a call takes them, or NULL */
	uint64_t arrived_version;
	double arrived_elastic;
	/* the prefetched weights (CNNPS_PULL_WAIT) until a call takes them, or NULL */
	float *awaited;
	uint64_t awaited_version;
	double awaited_elastic;
	float *view;     /* the weights that the program reads */
	float *gradient; /* the buffer that cnnps_gradient returned last, or NULL */
	/* the gradient of each push that is not released, at index seq % MAX_RETAINED */
	float *retained[MAX_RETAINED];
	/* the seq of the newest push whose gradient buffer is free again */
	uint64_t released;
	float *spare[MAX_BUFFERS]; /* free buffers for gradients */
	size_t n_spare;
	struct trainer_work work;
};

/* ---- effects of the session ------------------------------------------------------------------ */

static void note_ready(struct cnnps *c)
{
	c->started = 1;
	c->info = info_of(session_welcome(c->session));
}

/* Record the fields of a PARAMS except for its weights, which are in c->arrived. */
static void note_params(struct cnnps *c, const struct msg_params *p)
{
	c->arrived_version = p->version;
	c->arrived_elastic = p->elastic;
	c->has_params = 1;
	if (c->prefetch == PREFETCH_REQUESTED)
		c->prefetch = PREFETCH_HERE;
}

static void release_retained(struct cnnps *c, uint64_t seq)
{
	for (; c->released < seq; c->released++)
		c->spare[c->n_spare++] = c->retained[(c->released + 1) % MAX_RETAINED];
}

static void send_retained_push(struct cnnps *c, const struct session_effect *e)
{
	struct msg m = e->msg;

	m.push.slices.n = 1;
	m.push.slices.slice[0] = (struct slice){.count = c->info.n_params,
		.encoding = ENCODING_F32,
		.data = c->retained[e->seq % MAX_RETAINED]};
	world_send(c->world, 2 * c->index + 1, &m);
}

static void carry_out_session(struct cnnps *c)
{
	const struct session_effect *e;

	for (size_t i = 0; (e = session_effect(c->session, i)); i++) {
		switch (e->kind) {
		case DO_SEND:
			world_send(c->world, 2 * c->index + 1, &e->msg);
			break;
		case DO_SEND_PUSH:
			send_retained_push(c, e);
			break;
		case DO_SEND_HEARTBEAT:
			world_send(c->world, 2 * c->index + 2, &e->msg);
			break;
		case DO_RELEASE:
			release_retained(c, e->seq);
			break;
		case NOTIFY_READY:
			note_ready(c);
			break;
		case NOTIFY_ACK:
			break;
		case NOTIFY_PARAMS:
			note_params(c, &e->msg.params);
			break;
		case NOTIFY_NO_PARAMS:
			c->no_params = e->status;
			c->prefetch = PREFETCH_NONE;
			break;
		case NOTIFY_GRANT:
			c->grant = e->msg.grant;
			c->has_grant = 1;
			break;
		case NOTIFY_END:
			c->ended = 1;
			c->end_status = e->status;
			break;
		}
	}
}

/* ---- coroutines ------------------------------------------------------------------------------ */

static void park(struct cnnps *c)
{
	swapcontext(&c->context, &c->world->scheduler);
}

static void resume_worker(struct cnnps *c)
{
	if (c->started && !c->over && !c->computing)
		swapcontext(&c->world->scheduler, &c->context);
}

/* Suspend this worker for `ns` nanoseconds of virtual time. The other workers continue. */
static void compute_for(struct cnnps *c, double ns)
{
	c->computing = 1;
	plan_add(&c->world->plan, (struct item){.at_ns = c->world->now_ns + (uint64_t)ns,
					  .what = AWAKE,
					  .peer = 2 * c->index + 1});
	park(c);
}

void client_awake(struct cnnps *c)
{
	c->computing = 0;
	resume_worker(c);
}

void client_message(struct cnnps *c, struct parcel *p)
{
	if (p->msg.type == MSG_PARAMS) {
		free(c->arrived);
		c->arrived = p->values;
		p->values = NULL;
	}
	session_message(c->session, &p->msg, world_ms(c->world));
	carry_out_session(c);
	resume_worker(c);
}

void client_tick(struct cnnps *c)
{
	session_tick(c->session, 1, world_ms(c->world));
	carry_out_session(c);
	resume_worker(c);
}

int client_is_over(const struct cnnps *c)
{
	return c->over;
}

static int attacks(const struct cnnps *c)
{
	return c->world->attacker.attack != ATTACK_NONE && c->index == c->world->n_workers - 1;
}

/* Run the coroutine of worker `index`. `high` and `low` are the two halves of the pointer to the
 * world, because makecontext passes only ints. */
static void program(unsigned high, unsigned low, unsigned index)
{
	struct world *w = (struct world *)((uintptr_t)high << 32 | low);
	struct cnnps *c = w->worker[index];
	struct err e;
	int rc = trainer_run(c, &w->trainer, &c->work, &e);

	c->over = 1;
	if (rc != PS_EDONE && !attacks(c) && w->error.text[0] == '\0')
		err_set(&w->error, rc, "worker %u: %s", index + 1, e.text);
	park(c);
}

/* ---- the calls ------------------------------------------------------------------------------- */

/* Suspend this worker until `*flag` is set or the session has ended. */
static int await_flag(struct cnnps *c, const int *flag)
{
	while (!*flag && !c->ended)
		park(c);
	return *flag ? PS_OK : c->end_status ? c->end_status : PS_ESHUTDOWN;
}

const struct cnnps_info *cnnps_info(const struct cnnps *c)
{
	return &c->info;
}

const char *cnnps_error(const struct cnnps *c)
{
	return err_text(c->end_status);
}

/* Does nothing: the trainer needs the counters only for its progress bar on a terminal. */
int cnnps_stats(const struct cnnps *c, struct cnnps_stats *stats)
{
	(void)c;
	(void)stats;
	return PS_OK;
}

/* Returns 0, because no status page requests images in virtual time. */
int cnnps_show_requested(struct cnnps *c)
{
	(void)c;
	return 0;
}

int cnnps_show(struct cnnps *c, const char *json)
{
	(void)c;
	(void)json;
	return PS_OK;
}

/* Let the next batch take its virtual time: the trainer calls cnnps_alive before each batch. */
void cnnps_alive(struct cnnps *c)
{
	const struct cost *cost = &c->world->cost;
	double u = 1 - rng_unit(&c->rng), v = rng_unit(&c->rng), s = cost->jitter;
	double normal = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
	double ns = 1e3 * cost->image_us * c->info.batch * exp(s * normal - s * s / 2);

	compute_for(c, c->index == 0 ? ns * cost->slow : ns);
}

/* Repeat `call`, a request of the session, until the session accepts it. */
#define REQUEST(c, rc, call)                                                                       \
	do {                                                                                       \
		while (((rc) = (call)) == PS_EAGAIN)                                               \
			park(c);                                                                   \
		carry_out_session(c);                                                              \
	} while (0)

int cnnps_lease(struct cnnps *c, struct cnnps_lease *lease)
{
	int rc;

	c->has_grant = 0;
	REQUEST(c, rc, session_lease(c->session, world_ms(c->world)));
	if (rc || (rc = await_flag(c, &c->has_grant)))
		return rc;
	*lease = lease_of(&c->grant, c->info.term);
	return PS_OK;
}

static int pull_now(struct cnnps *c, enum weights which)
{
	int rc = PS_OK, answered = 0;

	c->no_params = PS_OK;
	if (c->prefetch == PREFETCH_NONE) {
		c->has_params = 0;
		REQUEST(c, rc, session_pull(c->session, which, world_ms(c->world)));
	}
	c->prefetch = PREFETCH_NONE;
	while (!rc && !(answered = c->has_params || c->no_params) && !c->ended)
		park(c);
	return rc ? rc : answered ? c->no_params : c->end_status;
}

static int await_pulled_weights(struct cnnps *c)
{
	int rc = c->awaited ? PS_OK : pull_now(c, WEIGHTS_CURRENT);

	if (rc || c->awaited)
		return rc;
	c->awaited = c->arrived;
	c->awaited_version = c->arrived_version;
	c->awaited_elastic = c->arrived_elastic;
	c->arrived = NULL;
	return PS_OK;
}

static int view(struct cnnps *c, struct cnnps_pull *p)
{
	int rc = await_pulled_weights(c);

	if (rc)
		return rc;
	free(c->view);
	c->view = c->awaited;
	c->awaited = NULL;
	p->weights = c->view;
	p->version = c->awaited_version;
	p->term = c->info.term;
	p->elastic = c->awaited_elastic;
	return PS_OK;
}

static int start_prefetch(struct cnnps *c)
{
	int rc = c->prefetch ? PS_EAGAIN
			     : session_pull(c->session, WEIGHTS_CURRENT, world_ms(c->world));

	if (!rc) {
		c->has_params = 0;
		c->prefetch = PREFETCH_REQUESTED;
		carry_out_session(c);
	}
	return rc == PS_EAGAIN ? PS_OK : rc;
}

int cnnps_pull(struct cnnps *c, struct cnnps_pull *p)
{
	int rc;

	switch (p->flags) {
	case CNNPS_PULL_START:
		return start_prefetch(c);
	case CNNPS_PULL_WAIT:
		return await_pulled_weights(c);
	case CNNPS_PULL_EVAL:
		if ((rc = pull_now(c, WEIGHTS_EVAL)))
			return rc;
		memcpy(p->into, c->arrived, c->info.n_params * sizeof(*p->into));
		p->version = c->arrived_version;
		return PS_OK;
	default:
		return view(c, p);
	}
}

int cnnps_pull_unchecked(struct cnnps *c, struct cnnps_pull *p, uint64_t *xxh3)
{
	*xxh3 = 0;
	return cnnps_pull(c, p);
}

/* Does nothing, because the weights have no checksum. */
void cnnps_note_wrong_checksum(struct cnnps *c)
{
	(void)c;
}

/* Does nothing, because the CPU computes all gradients. */
void cnnps_use_device(struct cnnps *c, const struct lane_device *device)
{
	(void)c;
	(void)device;
}

void cnnps_set_checksum(struct cnnps *c, uint64_t xxh3)
{
	(void)c;
	(void)xxh3;
}

int cnnps_is_apart(const struct cnnps *c, const float *values)
{
	(void)c;
	(void)values;
	return 0;
}

void cnnps_start_pull_with_push(struct cnnps *c)
{
	(void)c;
}

float *cnnps_gradient(struct cnnps *c)
{
	if (!c->gradient)
		c->gradient = c->n_spare ? c->spare[--c->n_spare]
					 : mem_try(c->info.n_params, sizeof(float));
	return c->gradient;
}

float *cnnps_device_gradient(struct cnnps *c)
{
	return cnnps_gradient(c);
}

/* Push the gradient, which must be in the buffer that cnnps_gradient returned. A push that also
 * pulls sends two messages in the simulation, which together take the virtual time of one. */
int cnnps_push(struct cnnps *c, const struct cnnps_push *p)
{
	struct msg_push meta = {.base_version = p->version,
		.base_term = c->info.term,
		.work = {p->work.epoch, p->work.first, p->work.count},
		.images = p->work.images,
		.loss = p->work.loss};
	uint64_t seq;
	int rc;

	if (p->gradient != c->gradient || p->count || p->offset)
		return PS_EUSAGE;
	if (attacks(c))
		attack_push(&c->world->attacker, c->gradient, c->info.n_params);
	while ((rc = session_push(c->session, &meta, &seq, world_ms(c->world))) == PS_EAGAIN)
		park(c);
	if (rc)
		return rc;
	c->retained[seq % MAX_RETAINED] = c->gradient;
	c->gradient = NULL;
	carry_out_session(c);
	return p->then ? view(c, p->then) : PS_OK;
}

int cnnps_result(
	struct cnnps *c, const struct cnnps_lease *lease, const struct cnnps_evaluation *evaluation)
{
	struct msg_result r = {.eval_id = lease->eval_id,
		.eval_first = lease->first,
		.eval_count = lease->count,
		.correct = evaluation->correct,
		.loss_sum = evaluation->loss_sum};
	int rc;

	if (attacks(c))
		attack_result(&c->world->attacker, &r);
	compute_for(c, EVAL_PART * 1e3 * c->world->cost.image_us * lease->count);
	REQUEST(c, rc, session_result(c->session, &r, world_ms(c->world)));
	return rc;
}

/* ---- create and free ------------------------------------------------------------------------- */

static void make_coroutine(struct cnnps *c)
{
	uintptr_t at = (uintptr_t)c->world;

	c->stack = mem_must(1, STACK_BYTES, "a worker's stack");
	getcontext(&c->context);
	c->context.uc_stack.ss_sp = c->stack;
	c->context.uc_stack.ss_size = STACK_BYTES;
	makecontext(&c->context, (void (*)(void))program, 3, (unsigned)(at >> 32), (unsigned)at,
		c->index);
}

struct cnnps *client_new(struct world *w, uint32_t index)
{
	struct cnnps *c = mem_must(1, sizeof(*c), "a worker");
	struct session_config cfg = {.role = ROLE_WORKER,
		.data = w->trainer.data->id,
		.connect_timeout_ms = PATIENCE_MS,
		.disconnect_timeout_ms = PATIENCE_MS,
		.retry_ms = RETRY_MS,
		.silence_ms = SILENCE_MS};

	c->world = w;
	c->index = index;
	c->rng = rng_seed(w->seed, RNG_SIM, JITTER_STREAM + index);
	cfg.seed = rng_next(&c->rng);
	if (session_new(&c->session, &cfg, MAX_RETAINED))
		abort();
	make_coroutine(c);
	session_start(c->session, 0);
	session_link_up(c->session, 0);
	carry_out_session(c);
	return c;
}

void client_free(struct cnnps **client)
{
	struct cnnps *c = *client;

	/* free all retained gradients, because no message points to them any longer */
	release_retained(c, session_last_seq(c->session));
	session_free(&c->session);
	while (c->n_spare)
		free(c->spare[--c->n_spare]);
	free(c->gradient);
	free(c->arrived);
	free(c->awaited);
	free(c->view);
	free(c->stack);
	free(c);
	*client = NULL;
}
