/* effects.c - see effects.h. */
#include "server/core/effects.h"
#include "common/assert.h"
#include "server/core/core_state.h"
#include "server/core/workers.h"

struct effect *effects_add(struct core *c, enum effect_kind kind, uint32_t peer)
{
	struct effect *e = &c->effects.effect[c->effects.n];

	PS_ASSERT(c->effects.n < c->effects.max); /* invariant 1 */
	c->effects.n++;
	e->kind = kind;
	e->durable_first = e->fenced = 0;
	e->peer = peer;
	e->generation = 0;
	e->worker = e->incarnation = 0;
	e->status = 0;
	return e;
}

void effects_add_epoch(struct core *c, enum effect_kind kind, uint32_t epoch)
{
	effects_add(c, kind, 0)->epoch = epoch;
}

void effects_add_worker(struct core *c, const struct worker *w, enum worker_change change)
{
	struct effect *e = effects_add(c, EFFECT_WORKER, 0);

	e->worker = worker_id(c, w);
	e->change = change;
}

void effects_begin(struct core *c)
{
	if (!c->effects.begun)
		(void)effects_add(c, EFFECT_BEGIN, 0);
	c->effects.begun = 1;
}

struct msg *effects_send(struct core *c, uint32_t peer, enum msg_type type)
{
	struct msg *m = &effects_add(c, EFFECT_SEND, peer)->msg;

	m->type = type;
	return m;
}

struct msg *effects_send_committed(struct core *c, uint32_t peer, enum msg_type type)
{
	struct msg *m = effects_send(c, peer, type);

	c->effects.effect[c->effects.n - 1].durable_first = 1;
	return m;
}

struct msg *effects_send_decided(struct core *c, uint32_t peer, enum msg_type type)
{
	c->effects.commits = 1;
	return effects_send_committed(c, peer, type);
}

void effects_refuse(struct core *c, uint32_t peer, int status, uint64_t expected, const char *text)
{
	struct msg *m = effects_send(c, peer, MSG_ERROR);

	m->error = (struct msg_error){.status = status, .expected = expected, .text = text};
	c->stats.refused++;
}

void effects_refuse_fenced(struct core *c, uint32_t peer, uint32_t worker, uint32_t incarnation)
{
	effects_refuse(c, peer, PS_EFENCED, 0, "a newer incarnation of this worker exists");
	struct effect *e = &c->effects.effect[c->effects.n - 1];

	e->fenced = 1;
	e->worker = worker;
	e->incarnation = incarnation;
}

void effects_add_version(struct core *c)
{
	c->effects.versions++;
	c->effects.commits = 1;
}

void effects_drop(struct core *c, int dropped)
{
	c->stats.ignored += (uint64_t)dropped;
	c->effects.dropped |= dropped;
}

int core_dropped(const struct core *c)
{
	return c->effects.dropped;
}

uint32_t core_requester(const struct core *c)
{
	return c->effects.requester;
}

uint64_t core_new_versions(const struct core *c)
{
	return c->effects.versions;
}

int core_sends_weights(const struct core *c)
{
	return c->effects.sends_weights;
}

const struct effect *core_effect(const struct core *c, size_t i)
{
	i += !c->effects.commits;
	return i < c->effects.n ? &c->effects.effect[i] : NULL;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void say_char(struct say *s, char c)
{
	if (s->n + 1 < sizeof(s->text))
		s->text[s->n++] = c;
	s->text[s->n] = '\0';
}

void say_begin(struct say *s, const char *text)
{
	s->n = 0;
	s->text[0] = '\0';
	say_text(s, text);
}

void say_text(struct say *s, const char *text)
{
	while (*text)
		say_char(s, *text++);
}

void say_number(struct say *s, uint64_t n)
{
	char digit[20];
	size_t count = 0;

	do
		digit[count++] = (char)('0' + n % 10);
	while ((n /= 10) > 0);
	while (count > 0)
		say_char(s, digit[--count]);
}

void say_hex(struct say *s, uint64_t n)
{
	for (int shift = 60; shift >= 0; shift -= 4)
		say_char(s, "0123456789abcdef"[n >> shift & 15]);
}

void say_run(struct say *s, const struct run_id *run)
{
	say_hex(s, run->hi);
	say_hex(s, run->lo);
}
