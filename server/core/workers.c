/* workers.c - see workers.h. */
#include "server/core/workers.h"
#include "server/core/core_state.h"
#include "server/core/dataset.h"
#include <string.h>

uint32_t worker_id(const struct core *c, const struct worker *w)
{
	return (uint32_t)(w - c->worker) + 1;
}

struct worker *worker_find(const struct core *c, uint32_t id)
{
	return id >= 1 && id <= c->cfg.sessions.max_workers ? &c->worker[id - 1] : NULL;
}

struct stamp worker_stamp(const struct core *c, const struct worker *w)
{
	struct stamp s = {.run = c->cfg.run, .term = c->cfg.term};

	if (w) {
		s.worker = worker_id(c, w);
		s.incarnation = w->session.incarnation;
	}
	return s;
}

uint64_t worker_durable_seq(const struct core *c, const struct worker *w)
{
	return c->cfg.checkpoint.wal ? w->ledger.last_seq : w->ledger.durable_seq;
}

int worker_may_return(const struct worker *w)
{
	return w->session.state == SESSION_AWAY || w->ledger.last_seq < w->ledger.replay_target;
}

int worker_is_active(const struct worker *w)
{
	return w->session.state == SESSION_LIVE && !w->pace.stalled;
}

uint32_t core_live_workers(const struct core *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_slots; i++)
		n += (uint32_t)worker_is_active(&c->worker[i]);
	return n;
}

uint32_t core_workers_of(const struct core *c, const char *owner, uint32_t peer)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_slots; i++) {
		const struct worker_session *s = &c->worker[i].session;
		int is_own = owner[0] ? workers_same_key(owner, s->owner) : s->peer == peer;

		n += is_own && (s->state == SESSION_LIVE || s->state == SESSION_SUSPECT);
	}
	return n;
}

int workers_same_key(const char *a, const char *b)
{
	return a[0] && strncmp(a, b, WIRE_MAX_OWNER + 1) == 0;
}

int workers_differ_in_key(const char *a, const char *b)
{
	return a[0] && b[0] && strncmp(a, b, WIRE_MAX_OWNER + 1) != 0;
}

/* Returns 1 if no earlier worker that `counts` selects has the key of worker `i`. */
static int is_first_worker_of_key(
	const struct core *c, uint32_t i, int (*counts)(const struct core *, const struct worker *))
{
	const char *owner = c->worker[i].session.owner;

	for (uint32_t k = 0; k < i && owner[0]; k++)
		if (workers_same_key(c->worker[k].session.owner, owner) && counts(c, &c->worker[k]))
			return 0;
	return 1;
}

/* Counts keys as workers_count_keys does, but not beyond `max`. */
static uint32_t count_keys_up_to(const struct core *c, uint32_t max,
	int (*counts)(const struct core *, const struct worker *))
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_slots && n < max; i++)
		n += counts(c, &c->worker[i]) && is_first_worker_of_key(c, i, counts);
	return n;
}

uint32_t workers_count_keys(
	const struct core *c, int (*counts)(const struct core *, const struct worker *))
{
	return count_keys_up_to(c, UINT32_MAX, counts);
}

int workers_have_keys(
	const struct core *c, uint32_t n, int (*counts)(const struct core *, const struct worker *))
{
	return count_keys_up_to(c, n, counts) == n;
}

uint32_t data_channels(const struct data_id *d)
{
	return d->channels ? d->channels : 1;
}

uint32_t core_train_images(const struct core *c)
{
	const uint32_t n = c->dataset.id.n_train, held_back = c->cfg.training.validate;

	return n > held_back ? n - held_back : 0;
}

uint32_t core_eval_images(const struct core *c)
{
	if (c->dataset.id.n_train == 0)
		return 0;
	return c->cfg.training.validate ? c->cfg.training.validate : c->dataset.id.n_test;
}

int workers_same_data(const struct data_id *a, const struct data_id *b)
{
	return a->n_train == b->n_train && a->n_test == b->n_test && a->rows == b->rows &&
	       a->cols == b->cols && a->classes == b->classes && a->xxh3 == b->xxh3 &&
	       data_channels(a) == data_channels(b);
}

int worker_is_of_run(const struct core *c, const struct worker *w)
{
	return c->cfg.training.epochs == 0 || workers_same_data(&w->session.data, &c->dataset.id);
}

uint32_t workers_of_run(const struct core *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_slots; i++)
		n += worker_is_active(&c->worker[i]) && worker_is_of_run(c, &c->worker[i]);
	return n;
}

void worker_forget_decisions(struct core *c, struct worker *w)
{
	memset(w->ledger.decisions, 0,
		c->cfg.sessions.replay_window * sizeof(*w->ledger.decisions));
}
