/* rights.c - see rights.h. */
#include "server/core/rights.h"
#include "common/siphash.h"
#include "server/core/batch_ledger.h"
#include "server/core/checks.h"
#include "server/core/core_state.h"
#include "server/core/leases.h"
#include "server/core/ledger.h"
#include "server/core/sessions.h"
#include "server/core/workers.h"
#include <math.h>
#include <string.h>

/* One of these numbers is the first word of the authenticated data. This word says what a code
 * proves, so that no code can serve as a proof of something else. */
enum { CODE_TRAIN = 1, CODE_EVAL = 2, CODE_DECISION = 3, CODE_SAMPLE = 4 };

static int has_key(const struct core *c)
{
	return (c->cfg.proof_key[0] | c->cfg.proof_key[1]) != 0;
}

int rights_have_key(const struct core *c)
{
	return has_key(c);
}

static uint64_t pair(uint32_t high, uint32_t low)
{
	return (uint64_t)high << 32 | low;
}

static uint64_t sender(const struct core *c, const struct worker *w)
{
	return pair(worker_id(c, w), w->session.incarnation);
}

/* A code is valid only for the data set that the worker had when the server made the code.
 * If a code were valid for any data set, a worker that comes back with other data after a crash
 * could replay an old push, and so make its new data the run's data set. */
static uint64_t data_sizes(const struct worker *w)
{
	return pair(w->session.data.n_train, w->session.data.n_test);
}

static uint64_t code_of_training(
	const struct core *c, const struct worker *w, const struct work *granted)
{
	const uint64_t word[] = {CODE_TRAIN, sender(c, w), w->session.data.xxh3, data_sizes(w),
		granted->epoch, pair(granted->first, granted->count)};

	return siphash(c->cfg.proof_key, word, sizeof(word) / sizeof(word[0]));
}

uint64_t rights_attempt(const struct core *c)
{
	const uint64_t outvoted = c->checks.stats.outvoted;

	if (c->leases.n_portions <= c->cfg.leases.eval_checks)
		return 0;
	return outvoted < MAX_REPEATS ? outvoted : MAX_REPEATS;
}

static uint64_t code_of_evaluation(
	const struct core *c, const struct worker *w, uint64_t id, uint32_t first, uint32_t count)
{
	const uint64_t word[] = {
		CODE_EVAL, sender(c, w), id, rights_attempt(c), pair(first, count)};

	return siphash(c->cfg.proof_key, word, sizeof(word) / sizeof(word[0]));
}

/* The first 16 bits of the code of a decision are the norm with which the gradient moved the
 * weights, as the upper half of a float32. The other bits authenticate this norm, too. The norm of
 * a replay can differ a little, because its values may come in other slices or as bfloat16. */
#define NORM_BITS  16
#define NORM_SHIFT (64 - NORM_BITS)
#define NORM_SLACK 1.01
#define ANY_NORM   0x7f80u /* upper half of infinity as a float32: any norm is permitted */

static uint64_t bits_of_norm(double norm)
{
	float value = (float)(NORM_SLACK * norm);
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return isfinite(value) ? (bits >> 16) + 1 : ANY_NORM;
}

static double norm_of_bits(uint64_t upper)
{
	uint32_t bits = (uint32_t)upper << 16;
	float value;

	memcpy(&value, &bits, sizeof(value));
	return (double)value;
}

static uint64_t code_of_decision(const struct core *c, const struct worker *w,
	const struct msg_push *p, const struct decision *d, uint64_t norm)
{
	const uint64_t word[] = {CODE_DECISION, sender(c, w), w->session.data.xxh3, data_sizes(w),
		p->seq,
		(uint64_t)d->verdict | (uint64_t)d->reject << 8 | (uint64_t)d->superseded << 16,
		pair(p->work.epoch, p->work.first), pair(p->work.count, p->images), p->base_version,
		p->base_term, norm};

	return siphash(c->cfg.proof_key, word, sizeof(word) / sizeof(word[0])) >> NORM_BITS |
	       norm << NORM_SHIFT;
}

uint64_t rights_of_grant(const struct core *c, const struct worker *w, const struct msg_grant *g)
{
	if (!has_key(c))
		return 0;
	return g->kind == GRANT_EVAL
		       ? code_of_evaluation(c, w, g->eval_id, g->eval_first, g->eval_count)
		       : code_of_training(c, w, &g->work);
}

uint64_t rights_of_decision(const struct core *c, const struct worker *w, const struct msg_push *p,
	const struct decision *d, double norm)
{
	return has_key(c) ? code_of_decision(c, w, p, d, bits_of_norm(norm)) : 0;
}

uint64_t rights_sample(const struct core *c, uint64_t evaluation, uint64_t draw)
{
	const uint64_t word[] = {CODE_SAMPLE, c->cfg.training.seed, evaluation, draw};

	return siphash(c->cfg.proof_key, word, sizeof(word) / sizeof(word[0]));
}

int rights_cover(const struct work *own, const struct work *work)
{
	return work->epoch == own->epoch && work->count && work->first >= own->first &&
	       work->first - own->first < own->count &&
	       work->count <= own->count - (work->first - own->first);
}

int rights_to_push(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	const struct msg_grant *g = &w->lease.grant;
	const struct work claimed = {p->work.epoch, p->grant_first, p->grant_count};

	if (c->cfg.training.epochs == 0 || !has_key(c))
		return 1;
	if (g->kind == GRANT_TRAIN && rights_cover(&g->work, &p->work))
		return 1;
	return rights_cover(&claimed, &p->work) &&
	       p->grant_code == code_of_training(c, w, &claimed);
}

int rights_to_result(const struct core *c, const struct worker *w, const struct msg_result *r)
{
	const struct msg_grant *g = &w->lease.grant;

	if (!has_key(c) || (g->kind == GRANT_EVAL && g->eval_id == r->eval_id &&
				   g->eval_first == r->eval_first))
		return 1;
	return r->code == code_of_evaluation(c, w, r->eval_id, r->eval_first, r->eval_count);
}

enum verdict rights_verdict(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	if (p->verdict == VERDICT_NONE || !has_key(c))
		return p->verdict;
	const struct decision claimed = {.verdict = (uint8_t)p->verdict,
		.reject = (uint8_t)p->reject,
		.superseded = (uint8_t)p->superseded};
	return p->code == code_of_decision(c, w, p, &claimed, p->code >> NORM_SHIFT) ? p->verdict
										     : VERDICT_NONE;
}

double rights_norm(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	return has_key(c) && rights_of_replay(c, w, p) ? norm_of_bits(p->code >> NORM_SHIFT)
						       : (double)INFINITY;
}

int rights_of_replay(const struct core *c, const struct worker *w, const struct msg_push *p)
{
	return p->seq <= w->ledger.replay_target && rights_verdict(c, w, p) == VERDICT_OK;
}
