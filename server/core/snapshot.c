/*
 * snapshot.c - see snapshot.h. A put_ function describes the fields of one struct in their order.
 * The cursor decides whether the function measures, writes or reads the fields (cursor.h).
 *
 * Promises (tests of tests/unit/test_core_snapshot.c):
 * (1) with one configuration, encode(decode(encode(c))) == encode(c), except that decoding counts
 *     one more recovery and does not restore SNAPSHOT_SESSIONS
 *     (decoding_and_encoding_give_the_same_bytes);
 * (2) the decoder refuses a section that is too short, too long or holds an impossible number
 *     (every_section_that_is_cut_or_longer_is_refused,
 *     a_snapshot_with_an_impossible_value_is_refused);
 * (3) from a damaged snapshot the decoder makes no core, or a core that works
 *     (no_mutation_does_harm).
 */
#include "server/core/snapshot.h"
#include "common/assert.h"
#include "common/run_head.h"
#include "common/tensor_list.h"
#include "server/core/accumulator.h"
#include "server/core/backups.h"
#include "server/core/batch_ledger.h"
#include "server/core/checkpoints.h"
#include "server/core/checks.h"
#include "server/core/core_state.h"
#include "server/core/cursor.h"
#include "server/core/dataset.h"
#include "server/core/departure.h"
#include "server/core/later_epochs.h"
#include "server/core/lbfgs.h"
#include "server/core/layout.h"
#include "server/core/leases.h"
#include "server/core/ledger.h"
#include "server/core/norms.h"
#include "server/core/optim.h"
#include "server/core/pace.h"
#include "server/core/quarantine.h"
#include "server/core/run.h"
#include "server/core/sandblaster.h"
#include "server/core/sessions.h"
#include "server/core/snapshot_check.h"
#include "server/core/ssp.h"
#include "server/core/store.h"
#include "server/core/sync.h"
#include "server/core/tensors.h"
#include "server/core/workers.h"
#include <math.h>
#include <string.h>

#define OTHER_FORMAT                                                                               \
	"its snapshot has the format of another version of cnn-ps; continue with the version "     \
	"that "                                                                                    \
	"began the run"

_Static_assert(RUN_HEAD_MODEL == WIRE_MAX_MODEL + 1, "one size of model text");
_Static_assert(RUN_HEAD_FORMAT == SNAPSHOT_FORMAT, "run_head_data reads this format");

const char *const snapshot_names[SNAPSHOT_SECTIONS] = {
	[SNAPSHOT_RUN] = "run",
	[SNAPSHOT_LEDGER] = "ledger",
	[SNAPSHOT_LEASES] = "leases",
	[SNAPSHOT_WEIGHTS] = "weights",
	[SNAPSHOT_OPTIM] = "optim",
	[SNAPSHOT_TRUST] = "trust",
	[SNAPSHOT_METRICS] = "metrics",
	[SNAPSHOT_TENSORS] = "tensors",
	[SNAPSHOT_NORMS] = "norms",
	[SNAPSHOT_QUARANTINE] = "quarantine",
	[SNAPSHOT_CHECKS] = "checks",
	[SNAPSHOT_SESSIONS] = "live", /* release 0.1.0 gave the section this name */
};

/* ---- the state of the run -------------------------------------------------------------------- */

/* The core refuses a snapshot with a higher version. No run reaches this version, so versions never
 * overflow. */
#define MAX_VERSION (1ull << 62)

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
		set_error(k, MALFORMED);
	cfg->run.hi = h.run_hi;
	cfg->run.lo = h.run_lo;
	cfg->term = h.term;
	c->store.version = h.version;
	refuse_over(k, h.version, MAX_VERSION);
	/* a start has a later term than the snapshot */
	refuse_over(k, h.term, c->cfg.term);
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

/* Describes the model, the options and the counters of the run. */
static void put_run(struct cursor *k, struct core *c, struct core_config *cfg)
{
	uint32_t format = SNAPSHOT_FORMAT;
	uint64_t n = cfg->n_params;

	put_head(k, c, cfg);
	u32(k, &format);
	if (format != SNAPSHOT_FORMAT)
		set_error(k, OTHER_FORMAT);
	u64(k, &cfg->model_fingerprint);
	u64(k, &n);
	cfg->n_params = n;
	/* the value for a checkpoint of 0.2.0, which lacks the field */
	if (k->in)
		cfg->training.validate = 0;
	config_put(k, cfg);
	flag(k, &c->run.begun);
	u64(k, &c->store.version_term);
	refuse_over(k, c->store.version_term, cfg->term);
	put_stats(k, &c->stats);
	if (c->stats.version != c->store.version)
		set_error(k, MALFORMED);
}

/* Write FLATTEN before a function that calls cursor_part: the compiler inlines all its calls. */
#define FLATTEN __attribute__((flatten))

static inline void put_grant(struct cursor *k, struct msg_grant *g)
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

static inline void put_decision(struct cursor *k, struct decision *d)
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

#define DECISION_BYTES ((size_t)10)

/* Describes `n` decisions, the newest first. Decisions for which the window has no room are read
 * and dropped. */
static inline void put_newest_decisions(
	struct cursor *k, struct worker *w, uint32_t n, uint32_t window)
{
	uint32_t at = (uint32_t)(w->ledger.last_seq % window);

	for (uint32_t i = 0; i < n && !k->error; i++) {
		struct decision old = {0};

		put_decision(k, i < window ? &w->ledger.decisions[at] : &old);
		at = (at ? at : window) - 1;
	}
}

/* Does the same for a writing cursor with room for the decisions, where n <= window. */
static FLATTEN void write_newest_decisions(
	struct cursor *k, struct worker *w, uint32_t n, uint32_t window)
{
	struct cursor part = cursor_part(k);
	uint32_t at = (uint32_t)(w->ledger.last_seq % window);

	for (uint32_t i = 0; i < n; i++) {
		put_decision(&part, &w->ledger.decisions[at]);
		at = (at ? at : window) - 1;
	}
	cursor_join(k, &part);
}

/* Describes the newest decisions of a worker. If --replay-window is smaller at this start than in
 * the snapshot, the function drops the older decisions when it reads them. */
static void put_decisions(struct cursor *k, struct worker *w, uint32_t window)
{
	uint32_t n = w->ledger.last_seq < window ? (uint32_t)w->ledger.last_seq : window;

	u32(k, &n);
	refuse_over(
		k, n, w->ledger.last_seq < WIRE_MAX_WINDOW ? w->ledger.last_seq : WIRE_MAX_WINDOW);
	if (cursor_has_room(k, n * DECISION_BYTES))
		write_newest_decisions(k, w, n, window);
	else
		put_newest_decisions(k, w, n, window);
}

/* bits of the field with `overdue` and `lost`; release 0.2.0 wrote only the values 0 and 1 */
#define ABSENCE_OVERDUE 1u
#define ABSENCE_LOST    2u

/* Describes `bad` (6 bits), `shapes` (10 bits) and `earlier` (16 bits) as one number. In the
 * snapshot of a release that stored only `bad`, the other bits are 0. */
static void put_bad(struct cursor *k, struct worker_quarantine *q)
{
	uint32_t all = q->earlier << 16 | q->shapes << 6 | q->bad;

	u32(k, &all);
	q->bad = all & 0x3f;
	q->shapes = all >> 6 & 0x3ff;
	q->earlier = all >> 16;
}

static void put_worker(struct cursor *k, struct worker *w, uint32_t window)
{
	int used = w->session.state != SESSION_FREE, gone = w->session.state == SESSION_DEAD;
	uint32_t absence = w->session.overdue ? ABSENCE_OVERDUE : 0;

	absence |= w->session.lost ? ABSENCE_LOST : 0;
	flag(k, &used);
	if (!used)
		return;
	flag(k, &gone);
	u32(k, &absence);
	refuse_over(k, absence, ABSENCE_OVERDUE | ABSENCE_LOST);
	if (k->in) {
		w->session.state = gone ? SESSION_DEAD : SESSION_AWAY;
		w->session.overdue = (absence & ABSENCE_OVERDUE) != 0;
		w->session.lost = (absence & ABSENCE_LOST) != 0;
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
	put_bad(k, &w->quarantine);
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
		set_option_error(k, "it has more workers than --max-workers");
	if (k->in && !k->error)
		c->n_slots = n;
	for (uint32_t i = 0; i < n && !k->error; i++)
		put_worker(k, &c->worker[i], c->cfg.sessions.replay_window);
}

/* Describes the classes and the channels as one number, with the channels in its upper half. The
 * upper half is 0 in the snapshot of a release that had no channels. */
static inline void put_classes(struct cursor *k, struct data_id *d)
{
	uint64_t both = (uint64_t)d->channels << 32 | d->classes;

	u64(k, &both);
	d->channels = (uint32_t)(both >> 32);
	d->classes = (uint32_t)both;
}

static inline void put_data_id(struct cursor *k, struct data_id *d)
{
	u32(k, &d->n_train);
	u32(k, &d->n_test);
	u32(k, &d->rows);
	u32(k, &d->cols);
	put_classes(k, d);
	u64(k, &d->xxh3);
}

int snapshot_data_id(const unsigned char *leases, size_t size, struct data_id *d)
{
	struct cursor k = {.in = leases, .size = size};

	put_data_id(&k, d);
	return k.error ? PS_ECHECKPOINT : PS_OK;
}

/* Describes the data set of the run. When the function reads a data set, it also opens the batch
 * ledger. */
static void put_data(struct cursor *k, struct core *c)
{
	struct data_id d = c->dataset.id;

	put_data_id(k, &d);
	flag(k, &c->dataset.fixed);
	if (k->in && (d.n_train || c->dataset.fixed)) {
		if (c->cfg.training.epochs == 0 || !leases_can_open(c, &d))
			set_error(k, MALFORMED);
		else
			leases_open(c, &d);
	}
	if (k->in && c->dataset.fixed && !dataset_suits_option(&c->cfg, &d))
		set_option_error(k, "its data set is not that of --data-id");
}

/* Describes the portions under evaluation. The size of a portion is stored, too, because
 * --eval-images can have another value after a restart. */
static void put_portions(struct cursor *k, struct core *c)
{
	struct leases *l = &c->leases;
	uint64_t n_eval = core_eval_images(c);

	u32(k, &l->eval_size);
	if (k->error || l->eval_size == 0 || n_eval > (uint64_t)l->eval_size * WIRE_MAX_BATCHES) {
		set_error(k, MALFORMED);
		return;
	}
	l->n_portions = (uint32_t)((n_eval + l->eval_size - 1) / l->eval_size);
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

/* Describes the replayed pushes of later epochs (later_epochs.h). Returns the number of epochs that
 * have a record. The result is `n_epochs`, or more if a replayed push is of an epoch after the
 * first `n_epochs`. */
static uint32_t put_later_epochs(struct cursor *k, struct core *c, uint32_t n_epochs)
{
	struct later_epochs *e = &c->later;

	u32(k, &e->n);
	refuse_over(k, e->n, c->leases.n_batches ? MAX_LATER_EPOCHS : 0);
	for (uint32_t i = 0; i < e->n && !k->error; i++) {
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

	int training = l->epoch < c->cfg.training.epochs; /* a restart may change --epochs */
	uint32_t n_epochs;

	put_data(k, c);
	u32(k, &l->epoch);
	flag(k, &training);
	n_epochs = put_later_epochs(k, c, l->epoch + (training ? 1 : 0));
	if (l->epoch > c->cfg.training.epochs || n_epochs > c->cfg.training.epochs)
		set_option_error(k, "it has been trained for longer than --epochs");
	flag(k, &l->evaluating);
	refuse_over(k, (uint64_t)l->evaluating, l->epoch);
	u32(k, &c->sandblaster.first);
	u32(k, &c->sandblaster.end);
	flag(k, &c->sandblaster.open);
	refuse_over(k, (uint64_t)c->sandblaster.open, (uint64_t)training);
	flag(k, &c->sync.open);
	refuse_over(k, (uint64_t)c->sync.open, (uint64_t)training);
	u32(k, &c->sync.first);
	u32(k, &c->sync.end);
	u32(k, &c->sync.due);
	if (training)
		bytes(k, l->batch, l->n_batches);
	if (l->evaluating)
		put_portions(k, c);
	for (uint32_t i = 0; i < n_epochs && !k->error; i++)
		put_epoch(k, &c->epoch[i]);
}

/* Describes the gradients that the accumulator has not added up: in sync those of the step under
 * way, in the order of their batches; otherwise those of the buffer, in the order of their
 * workers. */
static void put_parts(struct cursor *k, struct core *c)
{
	struct gradient_accumulator *a = &c->accumulator;
	/* in sync the snapshot does not store `parts`, because each push is one part */
	uint32_t parts = k->in ? a->pushes : a->parts;

	if (c->cfg.training.mode != MODE_SYNC)
		u32(k, &parts);
	a->parts = parts;
	if (a->parts > a->room || a->parts > a->pushes)
		set_error(k, "it has more gradients of a step than --max-workers");
	for (uint32_t i = 0; i < a->parts && !k->error; i++) {
		double loss = (double)a->part[i].loss;

		u32(k, &a->part[i].batch);
		u32(k, &a->part[i].images);
		f64(k, &loss);
		a->part[i].loss = (float)loss;
		if (c->cfg.push.aggregate != AGGREGATE_MEAN)
			text(k, a->part[i].owner, sizeof(a->part[i].owner));
		floats(k, a->part[i].g, c->store.n);
	}
}

/* Describes the gradients that wait for an update, or their sum. */
static void put_accumulator(struct cursor *k, struct core *c)
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
	if (a->sum && a->pushes)
		doubles(k, a->sum, c->store.n);
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
		set_error(k, MALFORMED);
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
	for (uint32_t age = 0; age < b->pairs && !k->error; age++) {
		uint32_t m = c->cfg.lbfgs.history, j = (b->newest + m - age) % m;

		f64(k, &b->ys[j]);
		floats(k, b->s[j], c->store.n);
		floats(k, b->y[j], c->store.n);
	}
}

/* Describes a version that a worker holds, with the number of its copy. The weights of the copy
 * follow the first entry that has the number of this copy. */
static void put_held(struct cursor *k, struct core *c, struct held *h, uint32_t *copies)
{
	struct backup *b = &c->backups.copy[h->copy];
	uint32_t number = b->order < *copies ? b->order : *copies;
	uint64_t made = b->made;

	u64(k, &h->version);
	refuse_over(k, h->version, c->store.version);
	u64(k, &h->sent);
	u64(k, &made);
	u32(k, &number);
	refuse_over(k, number, *copies);
	if (k->error)
		return;
	if (k->in && number < *copies) {
		h->copy = number;
		c->backups.copy[number].refs++;
		if (c->backups.copy[number].version != h->version)
			set_error(k, MALFORMED);
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

/* Describes the state of delay compensation: the mean squares, and the versions that workers hold
 * (backups.h). */
static void put_backups(struct cursor *k, struct core *c)
{
	uint32_t copies = 0;

	if (c->cfg.dc.kind == DC_NONE)
		return;
	if (c->cfg.dc.kind == DC_ADAPTIVE)
		floats(k, c->store.dc_square, c->store.n);
	for (uint32_t i = 0; i < c->backups.n; i++)
		c->backups.copy[i].order = UINT32_MAX;
	for (uint32_t i = 0; i < c->n_slots && !k->error; i++) {
		struct worker *w = &c->worker[i];

		if (w->session.state == SESSION_FREE)
			continue;
		u32(k, &w->backups.n_held);
		refuse_over(k, w->backups.n_held, BACKUPS_MAX_HELD);
		for (uint32_t j = 0; j < w->backups.n_held && !k->error; j++)
			put_held(k, c, &w->backups.held[j], &copies);
	}
}

/* Describes n values that a device may keep. If `place` is not NULL, writes no values, but sets
 * *place to the place in the output where they belong. */
static void put_values(struct cursor *k, float *v, size_t n, void **place)
{
	if (place)
		*place = cursor_place(k, n * sizeof(float));
	else
		floats(k, v, n);
}

static void put_optim(struct cursor *k, struct core *c, struct snapshot_kept *kept)
{
	put_accumulator(k, c);
	put_lbfgs(k, c);
	put_backups(k, c);
	for (size_t i = 0; i < optim_vectors(c->cfg.optim.kind); i++)
		put_values(k, c->store.state[i], c->store.n, kept ? &kept->state[i] : NULL);
	if (!c->leases.evaluating)
		return;
	u64(k, &c->store.eval_version);
	floats(k, c->store.eval_weights, c->store.n);
	c->store.has_eval = 1;
}

/* ---- trust: the secret of the run, and the keys of its workers ------------------------------- */

static void put_trust(struct cursor *k, struct core *c)
{
	uint32_t n = c->cfg.sessions.max_workers;

	u64(k, &c->cfg.proof_key[0]);
	u64(k, &c->cfg.proof_key[1]);
	while (!k->in && n > 0 && !c->worker[n - 1].session.owner[0])
		n--;
	u32(k, &n);
	refuse_over(k, n, c->cfg.sessions.max_workers);
	for (uint32_t i = 0; i < n && !k->error; i++)
		text(k, c->worker[i].session.owner, sizeof(c->worker[i].session.owner));
}

/* ---- norms: the norms of the workers' gradients ---------------------------------------------- */

static void put_mean(struct cursor *k, double *mean)
{
	f64(k, mean);
	if (!isfinite(*mean) || *mean < 0)
		set_error(k, MALFORMED);
}

static void put_recent_gradients(struct cursor *k, struct recent_gradients *r)
{
	u64(k, &r->n);
	for (uint64_t i = 0; i < NORMS_RING && i < r->n && !k->error; i++) {
		put_mean(k, &r->norm[i]);
		u64(k, &r->print[i]);
		f64(k, &r->place[i]);
		if (!isfinite(r->place[i]))
			set_error(k, MALFORMED);
	}
}

/* Describes the norms of all workers' gradients. Without --norm-ratio, or if no worker ever joined,
 * the section is empty. */
static void put_norms(struct cursor *k, struct core *c)
{
	uint32_t n = c->cfg.limits.norm_ratio > 0 ? c->cfg.sessions.max_workers : 0;

	while (!k->in && n > 0 && c->worker[n - 1].session.state == SESSION_FREE)
		n--;
	if (k->in ? k->size == 0 : n == 0)
		return;
	u32(k, &n);
	if (n == 0)
		set_error(k, MALFORMED);
	refuse_over(k, n, c->cfg.sessions.max_workers);
	for (uint32_t i = 0; i < n && !k->error; i++) {
		struct worker_norms *norms = &c->worker[i].norms;

		put_mean(k, &norms->last);
		put_mean(k, &norms->mean);
		put_mean(k, &norms->size);
		u64(k, &norms->n_sizes);
		u64(k, &norms->push_no);
	}
	put_mean(k, &c->norms.yardstick);
	put_recent_gradients(k, &c->norms.recent);
	if (k->in && k->at == k->size)
		return; /* an earlier version wrote the section, and it ended here */
	for (uint32_t i = 0; i < n && !k->error; i++) {
		u64(k, &c->worker[i].norms.accepted_no);
		u64(k, &c->worker[i].norms.pass_pushes);
		u64(k, &c->worker[i].norms.pass_images);
	}
}

/* ---- quarantine: excluded workers ------------------------------------------------------------ */

/* Describes the list of excluded workers. If no worker was excluded, the section is empty. */
static void put_quarantine(struct cursor *k, struct core *c)
{
	struct quarantine *q = &c->quarantine;
	uint32_t n = q->n;

	if (k->in ? k->size == 0 : n == 0)
		return;
	u32(k, &n);
	if (n == 0)
		set_error(k, MALFORMED);
	refuse_over(k, n, MAX_QUARANTINE);
	for (uint32_t i = 0; i < n && !k->error; i++) {
		struct quarantine_entry *e = &q->entry[i];

		text(k, e->owner, sizeof(e->owner));
		text(k, e->name, sizeof(e->name));
		u32(k, &e->exclusions);
		q->n = i + 1;
		if (!quarantine_entry_is_valid(q, i) || (!e->owner[0] && !e->name[0]))
			set_error(k, MALFORMED);
	}
}

/* ---- checks: results of the evaluation under check ------------------------------------------- */

static void put_vote(struct cursor *k, struct vote *v)
{
	u32(k, &v->worker);
	u32(k, &v->incarnation);
	text(k, v->owner, sizeof(v->owner));
	text(k, v->name, sizeof(v->name));
	u32(k, &v->correct);
	f64(k, &v->loss_sum);
	for (size_t m = 0; m < MAX_METRICS; m++) {
		f64(k, &v->metric_sum[m]);
		if (!isfinite(v->metric_sum[m]))
			set_error(k, MALFORMED);
	}
}

/* Describes the open checks and the counters. If no portion was ever in a sample, the section is
 * empty. */
static void put_checks(struct cursor *k, struct core *c)
{
	struct checks *all = &c->checks;
	struct check_stats *s = &all->stats;
	uint32_t n = all->n;

	if (k->in ? k->size == 0
		  : !(n || s->agreed || s->disputed || s->outvoted || s->unchecked || all->ticks))
		return;
	u64(k, &s->agreed);
	u64(k, &s->disputed);
	u64(k, &s->outvoted);
	u64(k, &s->unchecked);
	u32(k, &all->ticks);
	u32(k, &n);
	refuse_over(k, n, MAX_CHECKS);
	for (uint32_t i = 0; i < n && !k->error; i++) {
		struct check *check = &all->check[i];

		u32(k, &check->portion);
		u32(k, &check->n);
		refuse_over(k, check->n, CHECK_VOTES - 1);
		for (uint32_t v = 0; v < check->n && !k->error; v++)
			put_vote(k, &check->vote[v]);
		all->n = i + 1;
	}
}

/* ---- sessions: what is true only while the process lives ------------------------------------- */

/* Reads or writes the enum value `v`. Sets the error if the value is outside of [min, max]. Returns
 * the value, or `min` after an error. */
static inline uint32_t choice(struct cursor *k, uint32_t v, uint32_t min, uint32_t max)
{
	u32(k, &v);
	if (v < min)
		set_error(k, MALFORMED);
	refuse_over(k, v, max);
	return k->error ? min : v;
}

/* Describes --data-id. The numbers of images follow only if the option has them, because earlier
 * releases had none. */
static void put_data_option(struct cursor *k, struct core_config *cfg)
{
	uint64_t parts = cfg->data_train ? 2 : cfg->data_id_given != 0;

	u64(k, &cfg->data_id);
	u64(k, &parts);
	refuse_over(k, parts, 2);
	if (k->in)
		cfg->data_id_given = parts > 0;
	if (k->in && parts < 2)
		cfg->data_train = cfg->data_test = 0;
	if (parts < 2)
		return;
	u32(k, &cfg->data_train);
	u32(k, &cfg->data_test);
	if (cfg->data_train == 0 || cfg->data_test == 0)
		set_error(k, MALFORMED);
}

void snapshot_put_config(struct cursor *k, struct core_config *cfg)
{
	uint64_t n = cfg->n_params;

	u64(k, &cfg->run.hi);
	u64(k, &cfg->run.lo);
	u64(k, &cfg->term);
	u64(k, &cfg->generation);
	flag(k, &cfg->durable);
	text(k, cfg->model, sizeof(cfg->model));
	if (!cfg->model[0]) /* put_head refuses it, too (run_head_read) */
		set_error(k, MALFORMED);
	u64(k, &cfg->model_fingerprint);
	u64(k, &n);
	refuse_over(k, n, WIRE_MAX_PARAMS);
	if (k->in)
		cfg->n_params = k->error ? 0 : (size_t)n;
	put_data_option(k, cfg);
	config_put(k, cfg);
}

static inline void put_recent(struct cursor *k, struct recent *r)
{
	u32(k, &r->n);
	u32(k, &r->next);
	refuse_over(k, r->n, PACE_RECENT);
	refuse_over(k, r->next, PACE_RECENT - 1);
	u32s(k, r->us, PACE_RECENT);
	u32(k, &r->median_us);
}

static inline void put_pace(struct cursor *k, struct pace *p)
{
	u64(k, &p->since_ms);
	u32(k, &p->left);
	flag(k, &p->late);
	flag(k, &p->stalled);
	flag(k, &p->shadow);
	u64(k, &p->owed_ms);
	u64(k, &p->paused_ms);
	u64(k, &p->moved_ms);
	u64(k, &p->moved);
	for (size_t i = 0; i < PACE_KINDS; i++)
		put_recent(k, &p->recent[i]);
}

static void put_fleet(struct cursor *k, struct fleet_pace *p)
{
	for (size_t i = 0; i < PACE_KINDS; i++) {
		put_recent(k, &p->recent[i]);
		u32(k, &p->n_late[i]);
	}
}

static inline void put_session_fields(struct cursor *k, struct worker *w)
{
	uint32_t state = choice(k, (uint32_t)w->session.state, SESSION_FREE, SESSION_DEAD);

	/* the session section must use the same slots as the ledger section */
	if ((state == SESSION_FREE) != (w->session.state == SESSION_FREE))
		set_error(k, MALFORMED);
	w->session.state = (enum session_state)state;
	u32(k, &w->session.peer);
	u32(k, &w->session.heartbeat_peer);
	u64(k, &w->session.last_message_ms);
	u64(k, &w->sync.active_ms);
	flag(k, &w->sync.idle);
	u64(k, &w->ledger.durable_seq);
	u64(k, &w->ledger.snapshot_seq);
	u64(k, &w->ledger.replay_target);
	u64(k, &w->session.join_generation);
	refuse_over(k, w->ledger.durable_seq, w->ledger.last_seq);
	refuse_over(k, w->ledger.snapshot_seq, w->ledger.last_seq);
	w->session.leave = (enum leave)choice(k, (uint32_t)w->session.leave, STAYS, HAS_LEFT);
	/* only a worker that has replayed its pushes, or is excluded, can leave */
	if (w->session.leave != STAYS &&
		(state != SESSION_DEAD || (worker_may_return(w) && !w->quarantine.excluded)))
		set_error(k, MALFORMED);
	flag(k, &w->lease.waiting);
	put_data_id(k, &w->session.data);
	put_pace(k, &w->pace);
}

static FLATTEN void write_session(struct cursor *k, struct worker *w)
{
	struct cursor part = cursor_part(k);

	put_session_fields(&part, w);
	PS_ASSERT(part.at <= 2 * sizeof(*w));
	cursor_join(k, &part);
}

/* The numbers of a session take less than twice the bytes of their struct, because each field of
 * the struct has at least 4 bytes and each number has 8. */
static void put_session(struct cursor *k, struct worker *w)
{
	if (cursor_has_room(k, 2 * sizeof(*w)))
		write_session(k, w);
	else
		put_session_fields(k, w);
}

/* Describes the number of backup copies of each batch, and the counts of the batch ledger. */
static void put_copies(struct cursor *k, struct core *c)
{
	struct leases *l = &c->leases;
	uint64_t n_eval = core_eval_images(c);

	u32(k, &l->eval_size);
	if (l->n_batches &&
		(l->eval_size == 0 || n_eval > (uint64_t)l->eval_size * WIRE_MAX_BATCHES)) {
		set_error(k, MALFORMED);
		return;
	}
	l->n_portions = l->n_batches ? (uint32_t)((n_eval + l->eval_size - 1) / l->eval_size) : 0;
	u32(k, &l->n_done);
	u32(k, &l->n_free);
	u32(k, &l->n_evaluated);
	refuse_over(k, l->n_done, l->n_batches);
	refuse_over(k, l->n_free, l->n_batches);
	bytes(k, l->copies, l->n_batches);
}

/* Returns the number of epochs up to the last epoch whose sums of metrics are not all 0. */
static uint32_t metric_epochs(const struct core *c)
{
	uint32_t n = c->cfg.training.epochs;

	for (; n > 0; n--)
		for (size_t m = 0; m < MAX_METRICS; m++)
			if (c->epoch[n - 1].metric_sum[m] < 0 || c->epoch[n - 1].metric_sum[m] > 0)
				return n;
	return 0;
}

int snapshot_metrics(const unsigned char *metrics, size_t size, char names[METRICS_TEXT])
{
	struct cursor k = {.in = metrics, .size = size};

	text(&k, names, METRICS_TEXT);
	return k.error ? PS_ECHECKPOINT : PS_OK;
}

/* If a snapshot has no section of metrics, accuracy is the only metric of its run, and the text of
 * the metrics is "". */
static void compare_metrics(struct cursor *k, const struct core *c, const char *then)
{
	if (strcmp(then, c->cfg.metrics) != 0)
		set_option_error(k, "it was begun with other --metrics");
}

static void put_metric_sums(struct cursor *k, struct core *c)
{
	char names[METRICS_TEXT];
	uint32_t n = k->in ? 0 : metric_epochs(c);

	memcpy(names, c->cfg.metrics, sizeof(names));
	text(k, names, sizeof(names));
	compare_metrics(k, c, names);
	u32(k, &n);
	refuse_over(k, n, c->cfg.training.epochs);
	for (uint32_t e = 0; e < n && !k->error; e++)
		for (size_t m = 0; m < MAX_METRICS; m++) {
			double sum = c->epoch[e].metric_sum[m];

			f64(k, &sum);
			if (!isfinite(sum))
				set_error(k, MALFORMED);
			c->epoch[e].metric_sum[m] = sum;
		}
}

/* Describes the list of tensors, including the NUL at its end. */
static void put_tensors(struct cursor *k, struct core *c)
{
	char *list = c->tensors.list;
	size_t n = k->in ? k->size : strlen(list) + 1, line;

	if (n == 0)
		set_error(k, MALFORMED);
	refuse_over(k, n, TENSOR_LIST_BYTES + 1);
	if (k->error)
		return;
	bytes(k, list, n);
	if (k->in && (strnlen(list, n) != n - 1 || (n > 1 && tensor_list_check(list, c->store.n,
								     c->store.trained, &line))))
		set_error(k, MALFORMED);
	else if (k->in)
		tensors_find_running(c);
}

static void put_snapshots(struct cursor *k, struct core *c)
{
	u64(k, &c->checkpoints.generation);
	flag(k, &c->checkpoints.saving);
	flag(k, &c->checkpoints.failing);
	flag(k, &c->checkpoints.urgent);
	flag(k, &c->checkpoints.dirty);
	u64(k, &c->checkpoints.begin_ms);
	for (size_t i = 0; i < CORE_MAX_ADMINS; i++) {
		u32(k, &c->checkpoints.waiting[i].peer);
		u64(k, &c->checkpoints.waiting[i].generation);
	}
}

/* Returns 1 if end_status agrees with `ending` and with `rule_met`: a run that does not end has
 * PS_OK, one that ends has one of the three reasons of an end, and a stop rule drains the run. */
static int end_fits(const struct run *r)
{
	if (r->rule_met && r->end_status != PS_ESHUTDOWN)
		return 0;
	if (r->ending == END_NOT)
		return r->end_status == PS_OK;
	return r->end_status == PS_EDONE || r->end_status == PS_ESHUTDOWN ||
	       r->end_status == PS_EDIVERGED;
}

static void put_run_state(struct cursor *k, struct core *c)
{
	uint32_t end_status = (uint32_t)-c->run.end_status;

	u64(k, &c->sync.begin_ms);
	flag(k, &c->run.recovering);
	u64(k, &c->run.recover_by_ms);
	c->run.ending = (enum ending)choice(k, (uint32_t)c->run.ending, END_NOT, END_OVER);
	u32(k, &end_status);
	c->run.end_status = -(int)(end_status & INT32_MAX);
	u64(k, &c->now_ms);
	/* The section of an earlier release ends here. A server of that release accepted every
	 * version that a worker claimed, and its core did not distinguish stop rules from other
	 * drains. */
	if (k->in && k->at == k->size) {
		c->store.first_version = UINT64_MAX;
		c->run.rule_met = 0;
	} else {
		u64(k, &c->store.first_version);
		flag(k, &c->run.rule_met);
	}
	if (!end_fits(&c->run))
		set_error(k, MALFORMED);
}

static void put_running(struct cursor *k, struct core *c)
{
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers && !k->error; i++)
		put_session(k, &c->worker[i]);
	put_fleet(k, &c->pace);
	if (!k->error)
		put_copies(k, c);
	put_snapshots(k, c);
	put_run_state(k, c);
}

/* ---- encoding -------------------------------------------------------------------------------- */

/* Describes a section. The cursor must not read the sections RUN and SESSIONS, because they contain
 * the configuration. `kept` is NULL, or the places of the values that the device keeps. */
static void put_section(
	struct cursor *k, struct core *c, enum snapshot_section s, struct snapshot_kept *kept)
{
	switch (s) {
	case SNAPSHOT_RUN:
		put_run(k, c, &c->cfg);
		break;
	case SNAPSHOT_SESSIONS:
		snapshot_put_config(k, &c->cfg);
		put_running(k, c);
		break;
	case SNAPSHOT_LEDGER:
		put_ledger(k, c);
		break;
	case SNAPSHOT_LEASES:
		put_leases(k, c);
		break;
	case SNAPSHOT_WEIGHTS:
		if (k->out && !kept)
			store_fetch_weights(c);
		put_values(k, c->store.weights, c->store.n, kept ? &kept->weights : NULL);
		break;
	case SNAPSHOT_OPTIM:
		if (k->out && !kept)
			store_fetch(c);
		put_optim(k, c, kept);
		break;
	case SNAPSHOT_TRUST:
		put_trust(k, c);
		break;
	case SNAPSHOT_METRICS:
		put_metric_sums(k, c);
		break;
	case SNAPSHOT_TENSORS:
		put_tensors(k, c);
		break;
	case SNAPSHOT_NORMS:
		put_norms(k, c);
		break;
	case SNAPSHOT_QUARANTINE:
		put_quarantine(k, c);
		break;
	case SNAPSHOT_CHECKS:
		put_checks(k, c);
		break;
	case SNAPSHOT_SECTIONS:
		break;
	}
}

size_t snapshot_size(struct core *c, enum snapshot_section s)
{
	struct cursor k = {0};

	put_section(&k, c, s, NULL);
	return k.at;
}

int snapshot_keep(const struct core *c)
{
	return store_keep(c);
}

size_t snapshot_encode(struct core *c, enum snapshot_section s, unsigned char *out, size_t room,
	struct snapshot_kept *kept)
{
	struct cursor k = {.out = out, .room = room};

	/* invariant 2 of ledger.c: the step is complete */
	PS_ASSERT(!c->store.update.pending && !c->ledger.pulling.worker);
	put_section(&k, c, s, kept);
	return k.at;
}

/* ---- decoding -------------------------------------------------------------------------------- */

int snapshot_config(const unsigned char *live, size_t size, struct core_config *cfg)
{
	struct cursor k = {.in = live, .size = size};

	snapshot_put_config(&k, cfg);
	return k.error ? PS_ECHECKPOINT : PS_OK;
}

/* Decodes the state that a restart continues with: all sections except SNAPSHOT_SESSIONS. */
static int decode_state(struct core *c, struct core_config *then,
	const unsigned char *const data[SNAPSHOT_SECTIONS], const size_t size[SNAPSHOT_SECTIONS],
	const char **why)
{
	*why = MALFORMED;
	for (int s = 0; s < SNAPSHOT_SESSIONS; s++) {
		struct cursor k = {.in = data[s], .size = data[s] ? size[s] : 0};

		if (!data[s] && !SNAPSHOT_MAY_LACK(s))
			return PS_ECHECKPOINT;
		if (!data[s] && s == SNAPSHOT_METRICS)
			compare_metrics(&k, c, "");
		else if (!data[s])
			continue;
		else if (s == SNAPSHOT_RUN)
			put_run(&k, c, then);
		else
			put_section(&k, c, (enum snapshot_section)s, NULL);
		if (s == SNAPSHOT_RUN && !k.error && snapshot_mismatch(&c->cfg, then))
			set_option_error(&k, snapshot_mismatch(&c->cfg, then));
		if (k.error)
			*why = k.error;
		if (k.error || k.at != k.size)
			return k.is_option_error ? PS_EUSAGE : PS_ECHECKPOINT;
	}
	return snapshot_is_consistent(c) ? PS_OK : PS_ECHECKPOINT;
}

/* Changes the decoded core as a restart does: marks the pushes of all workers as durable, begins a
 * recovery if workers of the snapshot are expected back, and counts the restart. If all epochs are
 * trained and evaluated, ends the run. */
static void reset_after_restart(struct core *c)
{
	const struct leases *l = &c->leases;

	for (uint32_t i = 0; i < c->n_slots; i++) {
		struct worker *w = &c->worker[i];

		w->ledger.durable_seq = w->ledger.last_seq;
		c->run.recovering |= w->session.state == SESSION_AWAY;
	}
	c->store.first_version = c->store.version;
	c->stats.recoveries++;
	if (l->n_batches && l->epoch >= c->cfg.training.epochs && !l->evaluating)
		run_end(c, PS_EDONE);
}

int snapshot_decode(void *memory, float *weights, const struct core_config *cfg,
	const unsigned char *const data[SNAPSHOT_SECTIONS], const size_t size[SNAPSHOT_SECTIONS],
	struct core **out, const char **why)
{
	struct core *c = core_place(memory, weights, cfg);
	struct core_config then = *cfg;

	*out = NULL;
	int rc = decode_state(c, &then, data, size, why);
	if (rc)
		return rc;
	if (cfg->run.hi == 0 && cfg->run.lo == 0)
		c->cfg.run = then.run;
	/* use the new secret, because a checkpoint or a log of release 0.2.0 has none */
	if ((c->cfg.proof_key[0] | c->cfg.proof_key[1]) == 0)
		memcpy(c->cfg.proof_key, cfg->proof_key, sizeof(c->cfg.proof_key));
	reset_after_restart(c);
	*out = c;
	return PS_OK;
}

int snapshot_decode_running(void *memory, float *weights, const struct core_config *cfg,
	const unsigned char *const data[SNAPSHOT_SECTIONS], const size_t size[SNAPSHOT_SECTIONS],
	struct core **out, const char **why)
{
	struct core *c = core_place(memory, weights, cfg);
	struct core_config then = *cfg;
	struct cursor k = {.in = data[SNAPSHOT_SESSIONS], .size = size[SNAPSHOT_SESSIONS]};

	*out = NULL;
	memset(c->cfg.proof_key, 0, sizeof(c->cfg.proof_key));
	if (!k.in || decode_state(c, &then, data, size, why))
		return PS_ECHECKPOINT;
	/* read the configuration again, to reach the fields that follow it */
	snapshot_put_config(&k, &then);
	put_running(&k, c);
	if (k.error || k.at != k.size || !snapshot_sessions_are_consistent(c))
		return PS_ECHECKPOINT;
	*out = c;
	return PS_OK;
}
