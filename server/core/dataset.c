/*
 * dataset.c - decides which data set the run uses.
 *
 * Rules:
 * (0) the server refuses a worker whose images do not fit the model;
 * (1) with --data-id, the server refuses a worker that has a data set with another fingerprint or,
 *     if the option has the numbers of images, with other numbers;
 * (2) the first accepted push of batches fixes the data set of its worker as the run's data set,
 *     for all later starts too. The server refuses workers with another data set;
 * (3) until then workers with any data set may join, and the run uses the data set with the most
 *     votes. Without keys, each live worker has one vote. With keys, each key with a live worker
 *     has one vote instead, for the data set that most of its live workers have. If several data
 *     sets are equally common among these workers, the key votes for each of these data sets. If
 *     two data sets have the same number of votes, the run keeps the one that it uses. A stalled
 *     worker counts in a vote only while every live worker is stalled. Only workers with the run's
 *     data set get work, and only they count for --min-workers. The core accepts no push before
 *     --min-workers workers with the run's data set have joined.
 *
 * Invariants:
 * (1) a HELLO fixes nothing (asserted by sessions_on_hello in sessions.c; a_hello_fixes_nothing);
 * (2) all accepted pushes are of one data set (asserted by accept_push in ledger.c;
 *     a_push_of_the_other_data_is_rejected).
 *
 * Promises:
 * (1) if no push was accepted before a restart, the data set of the checkpoint has no vote, so the
 *     first worker with another data set replaces it (a_hello_fixes_nothing_on_disk);
 * (2) when a push that was accepted before a crash is replayed, it fixes the data set again as it
 *     did before the crash (tests/sim/replays.c).
 */
#include "server/core/dataset.h"
#include "common/clones.h"
#include "server/core/batch_ledger.h"
#include "server/core/core_state.h"
#include "server/core/departure.h"
#include "server/core/effects.h"
#include "server/core/leases.h"
#include "server/core/pace.h"
#include "server/core/rights.h"
#include "server/core/sessions.h"
#include "server/core/workers.h"
#include <string.h>

/* a data set that reports more classes than this has an image of its last class, so the reported
 * number is exact */
#define SURE_CLASSES 10

/* ---- refusals -------------------------------------------------------------------------------- */

static void say_images(struct say *s, const struct images *i)
{
	say_number(s, i->channels);
	say_text(s, "x");
	say_number(s, i->rows);
	say_text(s, "x");
	say_number(s, i->cols);
	say_text(s, ", ");
	say_number(s, i->classes);
	say_text(s, " classes");
}

static void say_data(struct say *s, const struct data_id *d)
{
	say_hex(s, d->xxh3);
	say_text(s, " (");
	say_number(s, d->n_train);
	say_text(s, " train, ");
	say_number(s, d->n_test);
	say_text(s, " test, ");
	say_images(s, &(struct images){data_channels(d), d->rows, d->cols, d->classes, 0});
	say_text(s, ")");
}

/* Writes a value of --data-id; without the numbers of images if n_train is 0. */
static void say_option(struct say *s, uint64_t xxh3, uint32_t n_train, uint32_t n_test)
{
	say_hex(s, xxh3);
	if (n_train == 0)
		return;
	say_text(s, ":");
	say_number(s, n_train);
	say_text(s, ":");
	say_number(s, n_test);
}

static void refuse_images(
	struct core *c, const struct images *run, const struct images *theirs, uint32_t peer)
{
	struct say *s = &c->effects.said;

	say_begin(s, "the run's model is for images of ");
	say_images(s, run);
	say_text(s, ", the images of this worker are ");
	say_images(s, theirs);
	say_text(s, ": give --data the run's files, or begin a new run with --input and --classes");
	effects_refuse(c, peer, PS_EWRONGDATA, 0, s->text);
}

static void refuse_data(struct core *c, const struct data_id *d, uint32_t peer)
{
	struct say *s = &c->effects.said;

	say_begin(s, "data set ");
	say_data(s, d);
	if (c->dataset.fixed) {
		say_text(s, " is not the run's ");
		say_data(s, &c->dataset.id);
	} else {
		say_text(s, " is not the server's --data-id ");
		say_option(s, c->cfg.data_id, c->cfg.data_train, c->cfg.data_test);
	}
	say_text(s, ": give --data the run's files, or begin a new run with --data-id ");
	say_option(s, d->xxh3, d->n_train, d->n_test);
	effects_refuse(c, peer, PS_EWRONGDATA, 0, s->text);
}

static void refuse_too_few(struct core *c, const struct data_id *d, uint32_t peer)
{
	struct say *s = &c->effects.said;

	say_begin(s, "--validate ");
	say_number(s, c->cfg.training.validate);
	say_text(s, " leaves none of the ");
	say_number(s, d->n_train);
	say_text(s, " training images of this worker: begin a run with a smaller --validate");
	effects_refuse(c, peer, PS_EWRONGDATA, 0, s->text);
}

static const char *metrics_or_accuracy(const char *text)
{
	return text[0] ? text : "accuracy";
}

static void refuse_metrics(struct core *c, const char *theirs, uint32_t peer)
{
	struct say *s = &c->effects.said;

	say_begin(s, "this worker evaluates the metrics \"");
	say_text(s, metrics_or_accuracy(theirs));
	say_text(s, "\", but the run has \"");
	say_text(s, metrics_or_accuracy(c->cfg.metrics));
	say_text(s, "\": begin a run with other --metrics");
	effects_refuse(c, peer, PS_EWRONGDATA, 0, s->text);
}

/* Returns 1 if the model can take these images. If a worker reports no image size, this function
 * does not check the size, because the worker's program does. A data set in MNIST's format reports
 * at least SURE_CLASSES classes, even if its labels have fewer, so a number up to SURE_CLASSES is
 * not checked. */
static int fits_model(const struct images *run, const struct images *theirs)
{
	int has_shape = theirs->rows && theirs->cols;
	int has_classes = theirs->classes > SURE_CLASSES;

	return !run->rows ||
	       ((!has_shape || (theirs->channels == run->channels && theirs->rows == run->rows &&
				       theirs->cols == run->cols)) &&
		       (!has_classes || theirs->classes <= run->classes));
}

int dataset_suits_option(const struct core_config *c, const struct data_id *d)
{
	int is_counted = c->data_train > 0;

	if (!c->data_id_given)
		return 1;
	return d->xxh3 == c->data_id &&
	       (!is_counted || (d->n_train == c->data_train && d->n_test == c->data_test));
}

int dataset_admits(struct core *c, const struct msg_hello *h, uint32_t peer)
{
	const struct data_id *d = &h->data;
	const struct images theirs = {data_channels(d), d->rows, d->cols, d->classes, 0};

	if (c->cfg.training.epochs == 0)
		return 1;
	if (d->n_train && d->n_train <= c->cfg.training.validate) {
		refuse_too_few(c, d, peer);
		return 0;
	}
	if (!leases_can_open(c, d)) {
		effects_refuse(c, peer, PS_EWRONGDATA, 0,
			"this run needs a data set: train and test images, at most 2^20 batches an "
			"epoch");
		return 0;
	}
	if (strcmp(h->metrics, c->cfg.metrics) != 0) {
		refuse_metrics(c, h->metrics, peer);
		return 0;
	}
	if (!fits_model(&c->cfg.images, &theirs)) {
		refuse_images(c, &c->cfg.images, &theirs, peer);
		return 0;
	}
	if (c->dataset.fixed ? workers_same_data(d, &c->dataset.id)
			     : dataset_suits_option(&c->cfg, d))
		return 1;
	refuse_data(c, d, peer);
	return 0;
}

/* ---- the choice ------------------------------------------------------------------------------ */

static int may_vote(const struct worker *w, int all_are_stalled)
{
	return all_are_stalled ? w->session.state == SESSION_LIVE : worker_is_active(w);
}

/* This struct lists the workers that may vote. strength: the number of workers with the key and the
 * data set of this worker, or 1 if it has no key; votes: 1 if the worker casts the vote of its
 * key. */
struct voters {
	uint32_t n;
	const struct worker *worker[WIRE_MAX_WORKERS];
	uint32_t strength[WIRE_MAX_WORKERS];
	uint32_t votes[WIRE_MAX_WORKERS];
};

static int are_of_one_key(const struct voters *v, uint32_t i, uint32_t k)
{
	return i == k || workers_same_key(v->worker[i]->session.owner, v->worker[k]->session.owner);
}

static int have_same_data(const struct voters *v, uint32_t i, uint32_t k)
{
	return workers_same_data(&v->worker[i]->session.data, &v->worker[k]->session.data);
}

/* Returns 1 if no other worker of the key of voter `i` has a data set that more workers of this key
 * have, and no earlier voter of this key has the same data set. */
static uint32_t casts_vote(const struct voters *v, uint32_t i)
{
	for (uint32_t k = 0; k < v->n; k++)
		if (are_of_one_key(v, i, k) &&
			(v->strength[k] > v->strength[i] || (k < i && have_same_data(v, i, k))))
			return 0;
	return 1;
}

static void find_voters(const struct core *c, struct voters *v, int all_are_stalled)
{
	v->n = 0;
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (may_vote(&c->worker[i], all_are_stalled))
			v->worker[v->n++] = &c->worker[i];
	for (uint32_t i = 0; i < v->n; i++) {
		v->strength[i] = 0;
		for (uint32_t k = 0; k < v->n; k++)
			v->strength[i] += are_of_one_key(v, i, k) && have_same_data(v, i, k);
	}
	for (uint32_t i = 0; i < v->n; i++)
		v->votes[i] = casts_vote(v, i);
}

static uint32_t votes_for(const struct voters *v, const struct data_id *d)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < v->n; i++)
		if (v->votes[i] && workers_same_data(&v->worker[i]->session.data, d))
			n++;
	return n;
}

/* Makes `d` the data set of the run. The run has counted no push of its previous data set. The
 * function ends all grants and opens the epoch again. */
static void adopt(struct core *c, const struct data_id *d)
{
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++) {
		struct worker *w = &c->worker[i];

		batch_ledger_release(c, w);
		w->lease.grant = (struct msg_grant){0};
		if (!w->lease.waiting)
			w->lease.request = 0;
		pace_expect_lease(c, w);
	}
	leases_open(c, d);
}

static int is_contested(const struct core *c, int all_are_stalled)
{
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (may_vote(&c->worker[i], all_are_stalled) &&
			!workers_same_data(&c->worker[i].session.data, &c->dataset.id))
			return 1;
	return 0;
}

void dataset_choose(struct core *c)
{
	struct data_id best = c->dataset.id;
	PS_UNINITIALIZED struct voters v;
	uint32_t max;
	int all_are_stalled;

	all_are_stalled = core_live_workers(c) == 0;
	if (!is_contested(c, all_are_stalled))
		return;
	find_voters(c, &v, all_are_stalled);
	max = votes_for(&v, &best);
	for (uint32_t i = 0; i < v.n; i++) {
		uint32_t n = v.votes[i] ? votes_for(&v, &v.worker[i]->session.data) : 0;

		if (n > max) {
			best = v.worker[i]->session.data;
			max = n;
		}
	}
	if (!workers_same_data(&best, &c->dataset.id))
		adopt(c, &best);
}

enum reject dataset_check(struct core *c, const struct worker *w, const struct msg_push *p)
{
	int replay = rights_of_replay(c, w, p);

	if (c->dataset.fixed || !replay)
		return REJECT_WORK;
	adopt(c, &w->session.data);
	return REJECT_NONE;
}

/* Ends the session of each worker with another data set. Each of these workers then sends HELLO
 * again, and the server refuses this HELLO. */
void dataset_contributed(struct core *c)
{
	c->dataset.fixed = 1;
	(void)effects_add(c, EFFECT_DATA_FIXED, 0);
	for (uint32_t i = 0; i < c->n_slots; i++) {
		struct worker *w = &c->worker[i];

		if (w->session.state == SESSION_JOINING || w->session.state == SESSION_LIVE ||
			w->session.state == SESSION_SUSPECT)
			if (!workers_same_data(&w->session.data, &c->dataset.id))
				departure_die(c, w, WORKER_GONE);
	}
}
