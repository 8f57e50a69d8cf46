/* layout.c - see layout.h. */
#include "server/core/layout.h"
#include "common/tensor_list.h"
#include "server/core/accumulator.h"
#include "server/core/backups.h"
#include "server/core/batch_ledger.h"
#include "server/core/blocks.h"
#include "server/core/checkpoints.h"
#include "server/core/checks.h"
#include "server/core/core_state.h"
#include "server/core/downpour.h"
#include "server/core/effects.h"
#include "server/core/later_epochs.h"
#include "server/core/lbfgs.h"
#include "server/core/ledger.h"
#include "server/core/modes.h"
#include "server/core/norms.h"
#include "server/core/optim.h"
#include "server/core/sandblaster.h"
#include "server/core/ssp.h"
#include "server/core/store.h"
#include "server/core/sync.h"
#include "server/core/tensors.h"
#include "server/core/workers.h"
#include <string.h>

struct layout {
	size_t core, workers, decisions, epochs, effects, batches, copies, portions, later, eval,
		scratch, running, sum, parts, kept, square, lbfgs, copies_of, backups, tensors,
		results, electorate, voters, values, newest, end;
	size_t state[OPTIM_VECTORS];
};

static size_t place(size_t *at, size_t n, size_t size)
{
	size_t here = *at;

	*at += (n * size + 63) / 64 * 64;
	return here;
}

/* Returns the number of effects in the worst step. In this step the core answers every worker,
 * grants it work, sends it BYE, reports its change and asks it for pushes that waited. In the same
 * step the core answers every waiting ADMIN request and reports every disputed result. */
static size_t max_effects(const struct core_config *cfg)
{
	return 5 * (size_t)cfg->sessions.max_workers + CORE_MAX_ADMINS + MAX_CHECKS + 16;
}

static int sums(const struct core_config *cfg)
{
	int is_async = cfg->training.mode == MODE_DOWNPOUR || cfg->training.mode == MODE_SSP;

	return cfg->training.mode == MODE_SANDBLASTER ||
	       (is_async && cfg->push.buffer_size > 1 && cfg->push.aggregate == AGGREGATE_MEAN);
}

/* Returns the number of gradients that are kept apart until a step ends or a buffer is full. */
static uint32_t room(const struct core_config *cfg)
{
	int apart = cfg->push.buffer_size > 1 && cfg->push.aggregate != AGGREGATE_MEAN;

	return cfg->training.mode == MODE_SYNC || apart ? cfg->sessions.max_workers : 0;
}

static size_t max_backups(const struct core_config *cfg)
{
	return cfg->dc.kind ? (size_t)BACKUPS_MAX_HELD * cfg->sessions.max_workers : 0;
}

/* In an array of vectors, returns the distance, in floats, from the start of a vector to the start
 * of the next one. */
static size_t stride(const struct core_config *cfg)
{
	return (cfg->n_params + 15) / 16 * 16;
}

/* Returns the number of places of the hash table of keys, in which at least half of the places stay
 * free. */
static uint32_t places_of_keys(const struct core_config *cfg)
{
	uint32_t n = 2;

	while (n < 2 * cfg->sessions.max_workers)
		n *= 2;
	return n;
}

static struct layout layout_of(const struct core_config *cfg)
{
	struct layout l = {0};
	size_t batches = cfg->training.epochs ? WIRE_MAX_BATCHES : 0, n = stride(cfg);
	int dc = cfg->dc.kind != DC_NONE, search = cfg->optim.kind == OPTIM_LBFGS;

	l.core = place(&l.end, 1, sizeof(struct core));
	l.workers = place(&l.end, cfg->sessions.max_workers, sizeof(struct worker));
	l.decisions = place(&l.end, (size_t)cfg->sessions.max_workers * cfg->sessions.replay_window,
		sizeof(struct decision));
	l.epochs = place(&l.end, cfg->training.epochs, sizeof(struct epoch_record));
	l.effects = place(&l.end, max_effects(cfg), sizeof(struct effect));
	l.batches = place(&l.end, batches, 1);
	l.copies = place(&l.end, batches, 1);
	l.portions = place(&l.end, batches, 1);
	l.later = place(&l.end, batches ? MAX_LATER_EPOCHS : 0, sizeof(struct work));
	l.eval = place(&l.end, cfg->training.epochs ? n : 0, sizeof(float));
	l.scratch = place(&l.end, sums(cfg) || room(cfg) || dc ? n : 0, sizeof(float));
	l.running = place(&l.end, cfg->n_running, sizeof(float));
	l.sum = place(&l.end, sums(cfg) ? n : 0, sizeof(double));
	l.parts = place(&l.end, room(cfg), sizeof(struct part));
	l.kept = place(&l.end, room(cfg) * n, sizeof(float));
	l.square = place(&l.end, dc && cfg->dc.kind == DC_ADAPTIVE ? n : 0, sizeof(float));
	l.lbfgs = place(&l.end, search ? n * lbfgs_vectors(cfg->lbfgs.history) : 0, sizeof(float));
	for (size_t i = 0; i < optim_vectors(cfg->optim.kind); i++)
		l.state[i] = place(&l.end, n, sizeof(float));
	l.copies_of = place(&l.end, max_backups(cfg), sizeof(struct backup));
	l.backups = place(&l.end, n * max_backups(cfg), sizeof(float));
	l.tensors = place(&l.end, TENSOR_LIST_BYTES + 1, 1);
	l.results = place(&l.end, engine_blocks(cfg->engine, cfg->n_params), sizeof(double));
	l.electorate = place(&l.end, 1, sizeof(struct electorate));
	l.voters = place(&l.end, cfg->sessions.max_workers, sizeof(struct worker *));
	l.values = place(&l.end, cfg->sessions.max_workers, sizeof(double));
	l.newest = place(&l.end, places_of_keys(cfg), sizeof(struct worker *));
	return l;
}

size_t core_bytes(const struct core_config *cfg)
{
	return layout_of(cfg).end;
}

static float *floats_at(void *memory, size_t at)
{
	return (float *)(void *)((unsigned char *)memory + at);
}

static void place_parts(struct core *c, void *memory, const struct layout *l)
{
	struct gradient_accumulator *a = &c->accumulator;

	a->room = room(&c->cfg);
	if (a->room)
		a->part = (struct part *)(void *)floats_at(memory, l->parts);
	for (uint32_t i = 0; i < a->room; i++)
		a->part[i].g = floats_at(memory, l->kept) + i * stride(&c->cfg);
}

static void place_electorate(struct core *c, unsigned char *base, const struct layout *l)
{
	struct electorate *e = (struct electorate *)(void *)(base + l->electorate);

	e->worker = (const struct worker **)(void *)(base + l->voters);
	e->value = (double *)(void *)(base + l->values);
	e->newest = (const struct worker **)(void *)(base + l->newest);
	e->mask = places_of_keys(&c->cfg) - 1;
	c->electorate = e;
}

static void place_modes(struct core *c, void *memory, const struct layout *l)
{
	const struct core_config *cfg = &c->cfg;
	size_t n = stride(cfg);

	c->store.scratch = floats_at(memory, l->scratch);
	c->store.running = floats_at(memory, l->running);
	if (sums(cfg)) {
		c->accumulator.sum = (double *)(void *)floats_at(memory, l->sum);
		memset(c->accumulator.sum, 0, cfg->n_params * sizeof(double));
	}
	place_parts(c, memory, l);
	if (cfg->dc.kind) {
		struct backups *b = &c->backups;

		b->n = (uint32_t)max_backups(cfg);
		b->copy = (struct backup *)(void *)floats_at(memory, l->copies_of);
		memset(b->copy, 0, b->n * sizeof(*b->copy));
		b->values = floats_at(memory, l->backups);
		b->stride = n;
		c->store.dc_square = floats_at(memory, l->square);
		if (cfg->dc.kind == DC_ADAPTIVE)
			memset(c->store.dc_square, 0, cfg->n_params * sizeof(float));
	}
	if (cfg->optim.kind == OPTIM_LBFGS) {
		float *v = floats_at(memory, l->lbfgs);

		c->lbfgs.x = v;
		c->lbfgs.g = v + n;
		c->lbfgs.d = v + 2 * n;
		for (uint32_t i = 0; i < cfg->lbfgs.history; i++) {
			c->lbfgs.s[i] = v + (3 + 2 * i) * n;
			c->lbfgs.y[i] = v + (4 + 2 * i) * n;
		}
	}
}

static const struct rules *const rules_of_mode[] = {
	[MODE_DOWNPOUR] = &rules_downpour,
	[MODE_SSP] = &rules_ssp,
	[MODE_SYNC] = &rules_sync,
	[MODE_SANDBLASTER] = &rules_sandblaster,
	[MODE_EASGD] = &rules_downpour,
};

struct core *core_place(void *memory, float *weights, const struct core_config *cfg)
{
	struct layout l = layout_of(cfg);
	unsigned char *base = memory;
	struct core *c = memory;
	struct decision *d = (struct decision *)(void *)(base + l.decisions);

	/* the recent gradients, and all memory from the effects on, are written before they are
	 * read, so they need no zeros here */
	memset(base, 0, offsetof(struct core, norms.recent.norm));
	memset(base + l.workers, 0, l.effects - l.workers);
	c->cfg = *cfg;
	c->rules = rules_of_mode[cfg->training.mode];
	c->worker = (struct worker *)(void *)(base + l.workers);
	for (uint32_t i = 0; i < cfg->sessions.max_workers; i++)
		c->worker[i].ledger.decisions = d + (size_t)i * cfg->sessions.replay_window;
	c->epoch = (struct epoch_record *)(void *)(base + l.epochs);
	c->effects.effect = (struct effect *)(void *)(base + l.effects);
	c->effects.max = max_effects(cfg);
	c->leases.batch = base + l.batches;
	c->leases.copies = base + l.copies;
	c->leases.portion = base + l.portions;
	c->later.work = (struct work *)(void *)(base + l.later);
	c->blocks.engine = cfg->engine;
	c->blocks.result = (double *)(void *)(base + l.results);
	c->store.n = cfg->n_params;
	c->store.trained = cfg->n_params - cfg->n_running;
	c->store.weights = weights;
	c->store.eval_weights = floats_at(memory, l.eval);
	for (size_t i = 0; i < optim_vectors(cfg->optim.kind); i++)
		c->store.state[i] = floats_at(memory, l.state[i]);
	place_modes(c, memory, &l);
	place_electorate(c, base, &l);
	c->tensors.list = (char *)base + l.tensors;
	c->tensors.list[0] = '\0';
	c->checkpoints.generation = cfg->generation;
	c->store.version_term = cfg->term;
	return c;
}

struct core *core_init(void *memory, const struct core_config *cfg, float *weights)
{
	struct core *c = core_place(memory, weights, cfg);

	for (size_t v = 0; v < optim_vectors(cfg->optim.kind); v++)
		for (size_t i = 0; i < cfg->n_params; i++)
			c->store.state[v][i] = optim_first(&cfg->optim, v);
	return c;
}
