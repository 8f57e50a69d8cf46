/* world.c - the event loop of virtual.h, and its server. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "tests/bench/virtual/virtual.h"

#define TICK_NS (100 * (uint64_t)1000000)

/* ---- the server ------------------------------------------------------------------------------ */

static void discard_parcel(struct parcel *p)
{
	if (p)
		free(p->values);
	free(p);
}

/* Compute when the server will have processed this message, and add a SERVED item for that time.
 * The server processes one message at a time. */
static void queue_at_server(struct world *w, struct item it)
{
	const struct msg *m = &it.parcel->msg;
	double ns = 1e3 * w->cost.message_us;

	for (uint32_t i = 0; m->type == MSG_PUSH && i < m->push.slices.n; i++)
		ns += w->cost.apply_ns * (double)m->push.slices.slice[i].count;
	if (w->server_free_ns < w->now_ns)
		w->server_free_ns = w->now_ns;
	w->server_free_ns += (uint64_t)ns;
	it.what = SERVED;
	it.at_ns = w->server_free_ns;
	plan_add(&w->plan, it);
}

/*
 * Write a decision of the server to the file w->record, as one of these lines. WORKER is a number
 * from 0:
 *   grant,WORKER,train|eval,EPOCH,FIRST,COUNT
 *   pull,WORKER,VERSION,ELASTIC
 *   push,WORKER,BASE_VERSION,EPOCH,FIRST,COUNT,ok|rejected,VERSION
 */
static void record_effect(struct world *w, const struct event *ev, const struct effect *e)
{
	const struct msg *m = &e->msg;
	uint32_t worker = (e->peer - 1) / 2;

	if (m->type == MSG_GRANT)
		fprintf(w->record, "grant,%u,%s,%u,%u,%u\n", worker,
			m->grant.kind == GRANT_TRAIN ? "train" : "eval", m->grant.work.epoch,
			m->grant.work.first, m->grant.work.count);
	if (m->type == MSG_PARAMS && m->params.which == WEIGHTS_CURRENT)
		fprintf(w->record, "pull,%u,%" PRIu64 ",%.17g\n", worker, m->params.version,
			m->params.elastic);
	if (m->type == MSG_ACK && !m->ack.duplicate)
		fprintf(w->record, "push,%u,%" PRIu64 ",%u,%u,%u,%s,%" PRIu64 "\n", worker,
			ev->msg->push.base_version, ev->msg->push.work.epoch,
			ev->msg->push.work.first, ev->msg->push.work.count,
			m->ack.verdict == VERDICT_OK ? "ok" : "rejected", m->ack.version);
}

static void serve_event(struct world *w, const struct event *ev)
{
	const struct effect *e;

	core_step(w->core, ev, world_ms(w));
	for (size_t i = 0; (e = core_effect(w->core, i)); i++) {
		if (e->kind == EFFECT_SEND && w->record)
			record_effect(w, ev, e);
		if (e->kind == EFFECT_SEND)
			world_send_to_worker(w, e->peer, &e->msg);
		if (e->kind == EFFECT_FINISH)
			w->finished = 1;
	}
}

/* ---- time ------------------------------------------------------------------------------------ */

static void world_tick(struct world *w)
{
	serve_event(w, &(struct event){.kind = EVENT_TICK});
	for (uint32_t i = 0; i < w->n_workers; i++)
		client_tick(w->worker[i]);
	plan_add(&w->plan, (struct item){.at_ns = w->now_ns + TICK_NS, .what = TICK});
}

static void world_happen(struct world *w, struct item *it)
{
	struct cnnps *worker = it->peer ? w->worker[(it->peer - 1) / 2] : NULL;

	switch (it->what) {
	case AT_SERVER:
		queue_at_server(w, *it);
		/* queue_at_server() has passed the parcel on to the SERVED item */
		it->parcel = NULL;
		break;
	case SERVED:
		serve_event(w,
			&(struct event){
				.kind = EVENT_MESSAGE, .peer = it->peer, .msg = &it->parcel->msg});
		break;
	case AT_WORKER:
		client_message(worker, it->parcel);
		break;
	case AWAKE:
		client_awake(worker);
		break;
	case TICK:
		world_tick(w);
		break;
	}
	discard_parcel(it->parcel);
}

int world_is_over(const struct world *w)
{
	for (uint32_t i = 0; i < w->n_workers; i++)
		if (!client_is_over(w->worker[i]))
			return 0;
	return w->finished;
}

int world_run(struct world *w, uint64_t until_ns)
{
	while (!world_is_over(w) && w->error.text[0] == '\0' && w->plan.heap[0].at_ns <= until_ns) {
		struct item it = plan_take(&w->plan);

		w->now_ns = it.at_ns;
		world_happen(w, &it);
	}
	return w->error.text[0] ? w->error.status : PS_OK;
}

void world_init(struct world *w, const struct core_config *cfg, float *weights, uint32_t n_workers)
{
	w->memory = mem_must(1, core_bytes(cfg), "the core");
	w->core = core_init(w->memory, cfg, weights);
	w->seed = cfg->training.seed;
	w->n_workers = n_workers;
	w->worker = mem_must(n_workers, sizeof(struct cnnps *), "workers");
	plan_add(&w->plan, (struct item){.at_ns = 0, .what = TICK});
	for (uint32_t i = 0; i < n_workers; i++)
		w->worker[i] = client_new(w, i);
}

void world_release(struct world *w)
{
	for (uint32_t i = 0; i < w->n_workers; i++)
		client_free(&w->worker[i]);
	free(w->worker);
	while (w->plan.n)
		discard_parcel(plan_take(&w->plan).parcel);
	free(w->plan.heap);
	free(w->memory);
	attack_release(&w->attacker);
}
