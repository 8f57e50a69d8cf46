/*
 * snapshot.c - the core as bytes and back. Every field is written by hand in one order; reading
 * uses the same order with a cursor that cannot run over its end.
 *
 * Invariants:
 * (1) write(read(write(c))) == write(c), but for one more recovery that is counted;
 * (2) a section that is too short, too long or holds an impossible number is refused;
 * (3) nothing of a refused image is used.
 */
#include "server/core/snapshot.h"
#include "server/core/snapshot_check.h"
#include "server/core/snapshot_sessions.h"
#include "server/core/cursor.h"
#include "server/core/leases.h"
#include "server/core/state.h"
#include "common/run_head.h"
#include <string.h>

#define OTHER_FORMAT                                                                               \
	"its snapshot has the format of another version of cnn-ps; continue with the version "     \
	"that "                                                                                    \
	"began the run"

_Static_assert(RUN_HEAD_MODEL == WIRE_MAX_MODEL + 1, "one size of model text");

const char *const image_names[IMAGE_SECTIONS] = {
	[IMAGE_RUN] = "run",
	[IMAGE_LEDGER] = "ledger",
	[IMAGE_LEASES] = "leases",
	[IMAGE_WEIGHTS] = "weights",
	[IMAGE_OPTIM] = "optim",
	[IMAGE_LIVE] = "live",
};

/* ---- sections -------------------------------------------------------------------------------- */

static void put_head(struct cursor *k, struct core *c, struct core_config *cfg)
{
	unsigned char raw[RUN_HEAD_BYTES];
	struct run_head h = {.run_hi = cfg->run.hi,
		.run_lo = cfg->run.lo,
		.term = cfg->term,
		.version = c->store.version};

	memcpy(h.model, cfg->model, sizeof(h.model));
	run_head_write(&h, raw);
	bytes(k, raw, sizeof(raw));
	if (!k->in)
		return;
	if (run_head_read(raw, sizeof(raw), &h) != 0)
		spoil(k, MALFORMED);
	cfg->run.hi = h.run_hi;
	cfg->run.lo = h.run_lo;
	cfg->term = h.term;
	c->store.version = h.version;
}

static void put_stats(struct cursor *k, struct core_stats *s)
{
	uint64_t *const count[] = {&s->version, &s->pushes, &s->duplicates, &s->refused, &s->gaps,
		&s->images, &s->pulls, &s->leases, &s->released, &s->hellos, &s->deaths,
		&s->rejoins, &s->recoveries, &s->staleness_sum, &s->snapshots, &s->save_failures,
		&s->updates, &s->accepted, &s->trials, &s->backups, &s->uncompensated,
		&s->superseded, &s->steps_short, &s->excluded, &s->expired, &s->stalls};

	for (size_t i = 0; i < sizeof(count) / sizeof(count[0]); i++)
		u64(k, count[i]);
	for (size_t i = 0; i < REJECT_REASONS; i++)
		u64(k, &s->rejected[i]);
	for (size_t i = 0; i < sizeof(s->staleness) / sizeof(s->staleness[0]); i++)
		u64(k, &s->staleness[i]);
	f64(k, &s->loss);
}

/* What a resumed run may not change, and what it has counted. */
static void put_run(struct cursor *k, struct core *c, struct core_config *cfg)
{
	uint32_t format = IMAGE_FORMAT;
	uint64_t n = cfg->n_params;

	put_head(k, c, cfg);
	u32(k, &format);
	if (format != IMAGE_FORMAT)
		spoil(k, OTHER_FORMAT);
	u64(k, &cfg->model_fingerprint);
	u64(k, &n);
	cfg->n_params = n;
	config_put(k, cfg);
	flag(k, &c->started);
	u64(k, &c->store.version_term);
	refuse_over(k, c->store.version_term, cfg->term);
	put_stats(k, &c->stats);
}

static void put_grant(struct cursor *k, struct msg_grant *g)
{
	uint32_t kind = (uint32_t)g->kind;

	u64(k, &g->request);
	u32(k, &kind);
	refuse_over(k, kind, GRANT_EVAL);
	g->kind = (enum grant_kind)kind;
	u32(k, &g->work.epoch);
	u32(k, &g->work.first);
	u32(k, &g->work.count);
	u32(k, &g->eval_first);
	u32(k, &g->eval_count);
	u64(k, &g->eval_id);
	u32(k, &g->exact);
	u64(k, &g->version);
}

static void put_decision(struct cursor *k, struct decision *d)
{
	uint8_t reason = (uint8_t)(d->reject | d->superseded << 7);

	u64(k, &d->version);
	bytes(k, &d->verdict, 1);
	bytes(k, &reason, 1);
	d->reject = reason & 127;
	d->superseded = reason >> 7;
	refuse_over(k, d->verdict, VERDICT_REJECTED);
	refuse_over(k, d->reject, REJECT_REASONS - 1);
	refuse_over(k, d->superseded, d->verdict == VERDICT_REJECTED);
}

/* The newest decisions; a smaller window than the image's keeps the newest ones of those. */
static void put_decisions(struct cursor *k, struct worker *w, uint32_t window)
{
	uint32_t n = w->ledger.last_seq < window ? (uint32_t)w->ledger.last_seq : window;

	u32(k, &n);
	refuse_over(
		k, n, w->ledger.last_seq < WIRE_MAX_WINDOW ? w->ledger.last_seq : WIRE_MAX_WINDOW);
	for (uint32_t i = 0; i < n && !k->bad; i++) {
		struct decision old = {0},
				*d = &w->ledger.decisions[(w->ledger.last_seq - i) % window];

		put_decision(k, i < window ? d : &old);
	}
}

static void put_worker(struct cursor *k, struct worker *w, uint32_t window)
{
	int used = w->session.state != SESSION_FREE, gone = w->session.state == SESSION_DEAD;
	int overdue = w->session.overdue;

	flag(k, &used);
	if (!used)
		return;
	flag(k, &gone);
	flag(k, &overdue);
	if (k->in) {
		w->session.state = gone ? SESSION_DEAD : SESSION_AWAY;
		w->session.overdue = overdue;
	}
	u32(k, &w->session.incarnation);
	u64(k, &w->session.born_term);
	text(k, w->session.name, sizeof(w->session.name));
	text(k, w->session.device, sizeof(w->session.device));
	u64(k, &w->ledger.last_seq);
	u64(k, &w->ledger.images);
	u64(k, &w->lease.request);
	put_grant(k, &w->lease.grant);
	u64(k, &w->ssp.clock);
	flag(k, &w->ssp.racing);
	u64(k, &w->sync.answered);
	u64(k, &w->sync.member);
	u32(k, &w->quarantine.bad_streak);
	flag(k, &w->quarantine.excluded);
	flag(k, &w->quarantine.sound);
	refuse_over(k, (uint64_t)w->quarantine.excluded, (uint64_t)gone);
	put_decisions(k, w, window);
}

static void put_ledger(struct cursor *k, struct core *c)
{
	uint32_t n = c->cfg.sessions.max_workers;

	while (!k->in && n > 0 && c->worker[n - 1].session.state == SESSION_FREE)
		n--;
	u32(k, &n);
	if (n > c->cfg.sessions.max_workers)
		misfit(k, "it has more workers than --max-workers");
	for (uint32_t i = 0; i < n && !k->bad; i++)
		put_worker(k, &c->worker[i], c->cfg.sessions.replay_window);
}

static void put_data_id(struct cursor *k, struct data_id *d)
{
	u32(k, &d->n_train);
	u32(k, &d->n_test);
	u32(k, &d->rows);
	u32(k, &d->cols);
	u32(k, &d->classes);
	u64(k, &d->xxh3);
}

int image_data(const unsigned char *leases, size_t size, struct data_id *d)
{
	struct cursor k = {.in = leases, .size = size};

	put_data_id(&k, d);
	return k.bad ? PS_ECHECKPOINT : PS_OK;
}

/* The run's data set; what is derived from it follows. */
static void put_data(struct cursor *k, struct core *c)
{
	struct data_id d = c->data;

	put_data_id(k, &d);
	flag(k, &c->data_fixed);
	if (k->in && (d.n_train || c->data_fixed)) {
		if (c->cfg.training.epochs == 0 || !leases_can_open(c, &d))
			spoil(k, MALFORMED);
		else
			leases_open(c, &d);
	}
	if (k->in && c->data_fixed && c->cfg.data_id_given && d.xxh3 != c->cfg.data_id)
		misfit(k, "its data set has another fingerprint than --data-id");
}

/* The portions under evaluation have the size that was asked for when it began. */
static void put_portions(struct cursor *k, struct core *c)
{
	struct leases *l = &c->leases;
	uint64_t n_test = c->data.n_test;

	u32(k, &l->eval_size);
	if (k->bad || l->eval_size == 0 || n_test > (uint64_t)l->eval_size * WIRE_MAX_BATCHES) {
		spoil(k, MALFORMED);
		return;
	}
	l->n_portions = (uint32_t)((n_test + l->eval_size - 1) / l->eval_size);
	bytes(k, l->portion, l->n_portions);
}

static void put_epoch(struct cursor *k, struct epoch_record *r)
{
	u64(k, &r->images);
	u64(k, &r->updates);
	f64(k, &r->loss_sum);
	u32(k, &r->eval_done);
	u32(k, &r->eval_correct);
	f64(k, &r->eval_loss_sum);
}

/* Returns the number of epochs that have a record: those begun, and those with work noted early. */
static uint32_t put_early(struct cursor *k, struct core *c, uint32_t n_epochs)
{
	struct early *e = &c->early;

	u32(k, &e->n);
	refuse_over(k, e->n, c->leases.n_batches ? EARLY_MAX : 0);
	for (uint32_t i = 0; i < e->n && !k->bad; i++) {
		u32(k, &e->work[i].epoch);
		refuse_over(k, e->work[i].epoch, WIRE_MAX_EPOCHS - 1);
		u32(k, &e->work[i].first);
		u32(k, &e->work[i].count);
		if (e->work[i].epoch >= n_epochs)
			n_epochs = e->work[i].epoch + 1;
	}
	return n_epochs;
}

static void put_leases(struct cursor *k, struct core *c)
{
	struct leases *l = &c->leases;
	int training =
		l->epoch < c->cfg.training.epochs; /* --epochs may be another one when it is read */
	uint32_t n_epochs;

	put_data(k, c);
	u32(k, &l->epoch);
	flag(k, &training);
	n_epochs = put_early(k, c, l->epoch + (training ? 1 : 0));
	if (l->epoch > c->cfg.training.epochs || n_epochs > c->cfg.training.epochs)
		misfit(k, "it has been trained for longer than --epochs");
	flag(k, &l->evaluating);
	refuse_over(k, (uint64_t)l->evaluating, l->epoch);
	u32(k, &c->blaster.first);
	u32(k, &c->blaster.end);
	flag(k, &c->blaster.open);
	refuse_over(k, (uint64_t)c->blaster.open, (uint64_t)training);
	flag(k, &c->step.open);
	refuse_over(k, (uint64_t)c->step.open, (uint64_t)training);
	u32(k, &c->step.first);
	u32(k, &c->step.end);
	u32(k, &c->step.due);
	if (training)
		bytes(k, l->batch, l->n_batches);
	if (l->evaluating)
		put_portions(k, c);
	for (uint32_t i = 0; i < n_epochs && !k->bad; i++)
		put_epoch(k, &c->epoch[i]);
}

/* The gradients of the step under way, by batch. */
static void put_parts(struct cursor *k, struct core *c)
{
	struct gradient_accumulator *a = &c->accumulator;

	if (a->pushes > a->room)
		spoil(k, "it has more gradients of a step than --max-workers");
	for (uint32_t i = 0; i < a->pushes && !k->bad; i++) {
		double loss = (double)a->part[i].loss;

		u32(k, &a->part[i].batch);
		u32(k, &a->part[i].images);
		f64(k, &loss);
		a->part[i].loss = (float)loss;
		floats(k, a->part[i].g, c->store.n);
	}
}

/* What has been gathered for the step under way. */
static void put_gather(struct cursor *k, struct core *c)
{
	struct gradient_accumulator *a = &c->accumulator;

	if (!a->sum && !a->part)
		return;
	u32(k, &a->pushes);
	u64(k, &a->images);
	f64(k, &a->weight);
	f64(k, &a->loss_sum);
	if (a->part)
		put_parts(k, c);
	for (size_t i = 0; a->sum && a->pushes && i < c->store.n; i++)
		f64(k, &a->sum[i]);
}

static void put_lbfgs(struct cursor *k, struct core *c)
{
	struct lbfgs *b = &c->lbfgs;

	if (!b->x)
		return;
	flag(k, &b->known);
	flag(k, &b->searching);
	u32(k, &b->pairs);
	u32(k, &b->newest);
	u32(k, &b->trials);
	if (b->pairs > c->cfg.lbfgs.history || b->newest >= c->cfg.lbfgs.history)
		spoil(k, MALFORMED);
	f64(k, &b->f);
	f64(k, &b->slope);
	f64(k, &b->step);
	f64(k, &b->low);
	f64(k, &b->high);
	f64(k, &b->yy);
	if (b->known || b->searching) {
		floats(k, b->x, c->store.n);
		floats(k, b->g, c->store.n);
		floats(k, b->d, c->store.n);
	}
	for (uint32_t age = 0; age < b->pairs && !k->bad; age++) {
		uint32_t m = c->cfg.lbfgs.history, j = (b->newest + m - age) % m;

		f64(k, &b->ys[j]);
		floats(k, b->s[j], c->store.n);
		floats(k, b->y[j], c->store.n);
	}
}

/* A version that a worker holds: the number of its copy, whose values follow the first mention. */
static void put_held(struct cursor *k, struct core *c, struct held *h, uint32_t *copies)
{
	struct backup *b = &c->backups.copy[h->copy];
	uint32_t number = b->order < *copies ? b->order : *copies;
	uint64_t made = b->made;

	u64(k, &h->version);
	u64(k, &h->sent);
	u64(k, &made);
	u32(k, &number);
	refuse_over(k, number, *copies);
	if (k->bad)
		return;
	if (k->in && number < *copies) {
		h->copy = number;
		c->backups.copy[number].refs++;
		if (c->backups.copy[number].version != h->version)
			spoil(k, MALFORMED);
		return;
	}
	if (k->in)
		h->copy = backups_take(c, h->version, made);
	c->backups.copy[h->copy].order = number;
	if (number == *copies) {
		floats(k, backups_values(c, h->copy), c->store.n);
		(*copies)++;
	}
}

/* Delay compensation: mean squares, and what the workers may still push gradients of. */
static void put_backups(struct cursor *k, struct core *c)
{
	uint32_t copies = 0;

	if (c->cfg.dc.kind == DC_NONE)
		return;
	if (c->cfg.dc.kind == DC_ADAPTIVE)
		floats(k, c->store.dc_square, c->store.n);
	for (uint32_t i = 0; i < c->backups.n; i++)
		c->backups.copy[i].order = UINT32_MAX;
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers && !k->bad; i++) {
		struct worker *w = &c->worker[i];

		if (w->session.state == SESSION_FREE)
			continue;
		u32(k, &w->backups.n_held);
		refuse_over(k, w->backups.n_held, BACKUPS_MAX_HELD);
		for (uint32_t j = 0; j < w->backups.n_held && !k->bad; j++)
			put_held(k, c, &w->backups.held[j], &copies);
	}
}

static void put_optim(struct cursor *k, struct core *c)
{
	put_gather(k, c);
	put_lbfgs(k, c);
	put_backups(k, c);
	for (size_t i = 0; i < optim_vectors(c->cfg.optim.kind); i++)
		floats(k, c->store.state[i], c->store.n);
	if (!c->leases.evaluating)
		return;
	u64(k, &c->store.eval_version);
	floats(k, c->store.eval_weights, c->store.n);
}

static void put_section(struct cursor *k, struct core *c, enum image_section s)
{
	struct core_config cfg = c->cfg;

	switch (s) {
	case IMAGE_RUN:
		put_run(k, c, &cfg);
		break;
	case IMAGE_LEDGER:
		put_ledger(k, c);
		break;
	case IMAGE_LEASES:
		put_leases(k, c);
		break;
	case IMAGE_WEIGHTS:
		floats(k, c->store.weights, c->store.n);
		break;
	case IMAGE_OPTIM:
		put_optim(k, c);
		break;
	case IMAGE_LIVE:
		live_put_config(k, &cfg);
		live_put_state(k, c);
		break;
	case IMAGE_SECTIONS:
		break;
	}
}

size_t image_size(struct core *c, enum image_section s)
{
	struct cursor k = {0};

	put_section(&k, c, s);
	return k.at;
}

void image_write(struct core *c, enum image_section s, unsigned char *out)
{
	struct cursor k = {.out = out};

	put_section(&k, c, s);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* What a restart goes on with: all sections but IMAGE_LIVE. */
static int read_lasting(struct core *c, struct core_config *then,
	const unsigned char *const data[IMAGE_SECTIONS], const size_t size[IMAGE_SECTIONS],
	const char **why)
{
	*why = MALFORMED;
	for (int s = 0; s < IMAGE_LIVE; s++) {
		struct cursor k = {.in = data[s], .size = size[s]};

		if (!data[s])
			return PS_ECHECKPOINT;
		if (s == IMAGE_RUN)
			put_run(&k, c, then);
		else
			put_section(&k, c, (enum image_section)s);
		if (s == IMAGE_RUN && !k.bad && image_differs(&c->cfg, then))
			misfit(&k, image_differs(&c->cfg, then));
		if (k.bad)
			*why = k.bad;
		if (k.bad || k.at != size[s])
			return k.other_options ? PS_EUSAGE : PS_ECHECKPOINT;
	}
	return image_is_sound(c) ? PS_OK : PS_ECHECKPOINT;
}

int image_read(void *memory, float *weights, const struct core_config *cfg,
	const unsigned char *const data[IMAGE_SECTIONS], const size_t size[IMAGE_SECTIONS],
	struct core **out, const char **why)
{
	struct core *c = core_place(memory, weights, cfg);
	struct core_config then = *cfg;

	*out = NULL;
	int rc = read_lasting(c, &then, data, size, why);
	if (rc)
		return rc;
	if (cfg->run.hi == 0 && cfg->run.lo == 0)
		c->cfg.run = then.run;
	image_revive(c);
	*out = c;
	return PS_OK;
}

int image_read_live(void *memory, float *weights, const struct core_config *cfg,
	const unsigned char *const data[IMAGE_SECTIONS], const size_t size[IMAGE_SECTIONS],
	struct core **out, const char **why)
{
	struct core *c = core_place(memory, weights, cfg);
	struct core_config then = *cfg;
	struct cursor k = {.in = data[IMAGE_LIVE], .size = size[IMAGE_LIVE]};

	*out = NULL;
	if (!k.in || read_lasting(c, &then, data, size, why))
		return PS_ECHECKPOINT;
	live_put_config(&k, &then); /* once more, to come to what is behind it */
	live_put_state(&k, c);
	if (k.bad || k.at != k.size || !image_live_is_sound(c))
		return PS_ECHECKPOINT;
	*out = c;
	return PS_OK;
}
