/*
 * core.c - fuzzes the state machine of the server. The first bytes choose a configuration that
 * cnn-ps accepts. If the second byte has the bit FURTHER, bytes for further options follow, and one
 * more kind of event is possible: all peers work in turn. Each later byte chooses an event: a
 * message of one of four peers, the passing of time, a snapshot that is written or fails, or a kill
 * of the server and a start from the last durable snapshot. A number in a message usually has the
 * value that an honest worker would send, sometimes a value near it, and seldom an arbitrary value.
 * After a kill, the workers replay the pushes that the server has lost. Every message passes
 * through the codec, so the core receives only messages that a peer can really send. In the flavour
 * fuzz-fast (FUZZ_FAST), messages do not pass through the codec: the target checks only the numbers
 * and rules of proto/schema.h. This flavour also ends an input after MAX_STEPS steps, and checks
 * snapshots less often.
 *
 * The target checks after each event that every effect has a receiver, at most one snapshot is in
 * progress, an epoch counts no image twice, and the invariants of the core hold
 * (tests/support/core_invariants.h). At the end, a snapshot that is decoded and encoded again must
 * have the same bytes. The assertions of the core (PS_ASSERT) check its numbered invariants, too.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "proto/schema.h"
#include "proto/wire.h"
#include "server/core/core_state.h"
#include "server/core/snapshot.h"
#include "server/core/view.h"
#include "server/core/workers.h"
#include "tests/support/core_config.h"
#include "tests/support/core_invariants.h"
#include "tests/support/fuzz_input.h"

#define PARAMS        FIXTURE_PARAMS
#define METRICS       "accuracy top5"
#define PEERS         4u
#define MAX_RETAINED  8u
#define START         12u /* the value for which event() kills and starts the server */
#define TOGETHER      60u /* with FURTHER: from this value on, event() lets all peers work */
#define FURTHER       128 /* the bit of the second byte that selects struct further */
#define KINDS_OF_KEYS 4u
#ifdef FUZZ_FAST
#define MAX_STEPS  28u /* an input ends after this number of steps of the core */
#define WITH_CHECK 64u
#else
#define MAX_STEPS  UINT32_MAX
#define WITH_CHECK 8u
#endif

struct sections {
	unsigned char *data[SNAPSHOT_SECTIONS];
	size_t size[SNAPSHOT_SECTIONS];
	uint64_t generation; /* number of the snapshot; 0: there is no snapshot */
};

/* A push that a worker retains for a replay. When the ACK of the push arrives, note_ack() writes
 * the decision to `push`. */
struct retained {
	struct msg_push push;
	float values[PARAMS];
};

struct peer {
	uint32_t connection;
	struct stamp stamp;
	struct msg_grant grant;
	uint64_t request, pulls, last_seq;
	uint32_t delivered; /* number of batches of `grant` that the peer has pushed */
	/* newest: seq of the newest push that was sent; replay: seq of the next push to replay, 0:
	 * none */
	uint64_t newest, replay;
	struct retained *retained; /* array of MAX_RETAINED elements */
};

/* How the target, as the shell of the core, takes a step of the core. */
enum stepping { STEP_AT_ONCE, STEP_BY_BLOCKS, STEP_ANY_ORDER, STEP_TO_NEXT_BUFFER };

/* Options that are not in struct core_config. The input sets them only if its bit FURTHER is 1. */
struct further {
	int chosen;
	uint32_t keys; /* which peers share a key: see key_of_peer */
	enum stepping stepping;
};

struct fuzz {
	struct core_config cfg;
	struct further further;
	struct core *core;
	struct core_values values; /* the weights after the last step (core_invariants.h) */
	struct input *in;
	uint64_t now_ms;
	struct peer peer[PEERS];
	struct sections saving, saved;
	struct wire *wire;
	/* the last byte of the input that can choose a start; NULL: no byte can */
	const uint8_t *last_start;
	uint32_t steps;
	int finished;        /* 1: the run is over, or the input has made MAX_STEPS steps */
	int checks_snapshot; /* 1: call check_snapshot at the end */
};

/* The memory of two cores. While one block has the old core, a start decodes a snapshot into the
 * other block. */
static void *memory[2];
static size_t memory_size[2];
static unsigned in_use;
static float *weights[2];
static float *spare; /* for STEP_TO_NEXT_BUFFER: the buffer that the core does not use */

/* ---- configuration --------------------------------------------------------------------------- */

/* Returns a number in [0, n), with n a power of 2, and removes its bits. */
static uint32_t pick(uint64_t *bits, uint32_t n)
{
	uint32_t v = (uint32_t)(*bits % n);

	*bits /= n;
	return v;
}

static void choose_rates(struct core_config *c, uint64_t *bits)
{
	int simple = c->training.mode == MODE_EASGD || c->optim.kind == OPTIM_LBFGS;
	static const double warmup[2] = {0, 0.3};
	static const enum lr_scaling scaling[4] = {
		LR_SCALING_NONE, LR_SCALING_SQRT, LR_SCALING_LINEAR, LR_SCALING_NONE};
	enum schedule_kind schedule = (enum schedule_kind)pick(bits, 4);
	double warm = warmup[pick(bits, 2)], decay = pick(bits, 2) ? 0.1 : 0;

	c->rate.scaling = scaling[pick(bits, 4)];
	c->rate.scaling_warmup = 3 * pick(bits, 2);
	c->rate.staleness_scaling = (enum staleness_scaling)(pick(bits, 4) % 3);
	c->optim.adagrad_init = pick(bits, 2) ? 0.5 : 0;
	c->schedule.gamma = 0.1;
	if (!simple) {
		c->schedule.kind = schedule;
		c->schedule.warmup = warm;
		c->optim.weight_decay = decay;
	}
}

static void choose_pushes(struct core_config *c, uint64_t *bits)
{
	enum mode mode = c->training.mode;
	uint32_t n_push = 1 + pick(bits, 2), n_fetch = n_push * (1 + pick(bits, 2));

	c->push.sum = mode != MODE_SANDBLASTER && pick(bits, 2) ? PUSH_SUM : PUSH_MEAN;
	if (mode != MODE_SYNC && mode != MODE_SANDBLASTER) {
		c->push.n_push = n_push;
		c->push.n_fetch = n_fetch;
	}
	if (c->dc.kind && n_push > 1)
		c->push.sum = PUSH_MEAN;
	if (mode == MODE_SYNC && c->push.sum)
		c->rate.scaling = LR_SCALING_NONE;
}

/* Choose --aggregate, with at least as many gradients in a step or buffer as the rule needs. */
static void choose_fuzz_aggregate(struct core_config *c, uint64_t *bits)
{
	enum aggregate_rule rule = (enum aggregate_rule)pick(bits, 4);
	uint32_t bad = pick(bits, 2), workers = pick(bits, 4);
	uint32_t needed = rule == AGGREGATE_KRUM      ? 2 * bad + 3
			  : rule == AGGREGATE_TRIMMED ? 2 * bad + 1
						      : 1;

	c->push.bad_workers = bad;
	if (c->training.mode == MODE_SYNC) {
		c->push.aggregate = rule;
		c->sync.workers = workers;
		if (rule != AGGREGATE_MEAN && workers < needed)
			c->sync.workers = needed;
	} else if (c->push.buffer_size > 1) {
		c->push.aggregate = rule;
		c->push.buffer_size = needed > 2 + bad ? needed : 2 + bad;
	}
}

static void choose_running_statistics(struct core_config *c, uint64_t *bits)
{
	/* number of batchnorms in the model; 3: none in the model, but one in a list of tensors */
	uint32_t n = pick(bits, 4);

	if (!n || !c->training.epochs || c->optim.kind == OPTIM_LBFGS)
		return;
	c->n_running = PARAMS / 2;
	c->running.n = n % 3;
	for (uint32_t i = 0; i < c->running.n; i++) {
		c->running.norm[i].first = i * PARAMS / 2 / n;
		c->running.norm[i].channels = PARAMS / 4 / n;
	}
}

static void choose_work(struct core_config *c, uint64_t *bits)
{
	static const uint32_t batches[4] = {1, 2, 4, 10}, checks[4] = {0, 1, 2, 8},
			      slots[4] = {3, 4, 5, 8};

	c->leases.max_batches = batches[pick(bits, 4)];
	if (c->leases.max_batches < c->push.n_push)
		c->leases.max_batches = c->push.n_push;
	c->leases.first_deadline_ms = pick(bits, 2) ? 500 : 30000;
	c->leases.eval_checks = checks[pick(bits, 4)];
	c->sessions.max_workers = slots[pick(bits, 4)];
	c->sessions.recovery_ms = pick(bits, 2) ? 0 : 500;
	c->checkpoint.interval_ms = pick(bits, 2) ? 100 : 100000;
	c->ssp.bound = 2 * pick(bits, 2);
	c->sandblaster.step_images = 20 * pick(bits, 2);
	c->lbfgs.history = 1 + 2 * pick(bits, 2);
	c->lbfgs.trials = 1 + 3 * pick(bits, 2);
}

/* Choose options that have no bits in the first two bytes. */
static struct further choose_further_options(struct core_config *c, struct input *in)
{
	static const double ratio[4] = {0, 1.2, 4, 100};
	static struct engine engine;
	struct further further = {.chosen = 1};
	uint64_t bits = input_u64(in);

	c->limits.norm_ratio = ratio[pick(&bits, 4)];
	c->limits.reject_norm = 8 * pick(&bits, 2);
	choose_fuzz_aggregate(c, &bits);
	choose_rates(c, &bits);
	choose_pushes(c, &bits);
	choose_running_statistics(c, &bits);
	choose_work(c, &bits);
	/* blocks with half of the weights each, because an order of blocks needs more than one
	 * block */
	engine = input_engine(PARAMS / 2);
	c->engine = pick(&bits, 2) ? &engine : NULL;
	further.keys = pick(&bits, KINDS_OF_KEYS);
	further.stepping = (enum stepping)pick(&bits, 4);
	c->limits.statistics_ratio = pick(&bits, 2) ? 0 : 2;
	return further;
}

static struct core_config choose_fuzz_config(struct input *in, struct further *further)
{
	struct core_config c = fixture_training();
	uint8_t flags = input_u8(in), more = input_u8(in);
	enum mode mode = (enum mode)(1 + input_below(in, 5));

	c.rate.lr = 0.5;
	c.lbfgs.trials = 2;
	c.sessions.max_workers = 3;
	c.sessions.replay_window = 8;
	c.training.mode = mode;
	if (mode == MODE_DOWNPOUR && (more & 1))
		c.training.epochs = 0;
	if (mode == MODE_SANDBLASTER && (flags & 1))
		c.optim.kind = OPTIM_LBFGS;
	else if (mode != MODE_EASGD)
		c.optim.kind = (enum optim_kind)input_below(in, OPTIM_LBFGS);
	if (mode == MODE_DOWNPOUR || mode == MODE_SSP) {
		c.dc.kind = (enum delay_compensation)input_below(in, 3);
		if (c.dc.kind == DC_NONE && (flags & 2))
			c.push.buffer_size = 3;
	}
	c.optim.clip_norm = (flags & 4) && mode != MODE_EASGD ? 1 : 0;
	c.durable = !(flags & 8);
	c.checkpoint.wal = c.durable && (flags & 16) ? DURABILITY_ALWAYS : DURABILITY_REPLAY;
	c.sessions.accept_rollback = (flags & 32) != 0;
	c.leases.backup_copies = (enum backup_copies)input_below(in, 3);
	c.leases.min_workers = 1 + (more >> 1) % 3;
	c.limits.max_staleness = more & 8 ? 2 : 1000;
	c.sync.backup_workers = mode == MODE_SYNC && (more & 16);
	c.training.max_updates = more & 32 ? 6 : 0;
	if (flags & 64)
		c.proof_key[0] = 5;
	if ((flags & 128) && c.training.epochs) {
		c.images = (struct images){1, 2, 3, 10, 0};
		c.data_id = 99;
		c.data_id_given = 1;
		c.training.validate = 5;
		memcpy(c.metrics, METRICS, sizeof(METRICS));
	}
	if ((more & 64) && (mode == MODE_DOWNPOUR || mode == MODE_SSP)) {
		c.rate.staleness_scaling = STALE_RELATIVE;
		c.leases.warm_start_updates = 2;
		c.leases.warm_start_ramp = 1;
	}
	if (more & FURTHER)
		*further = choose_further_options(&c, in);
	return c;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void reserve(const struct core_config *cfg)
{
	size_t n = core_bytes(cfg);

	in_use ^= 1;
	if (n > memory_size[in_use]) {
		free(memory[in_use]);
		memory[in_use] = aligned_alloc(64, n);
		PS_ASSERT(memory[in_use]);
		memset(memory[in_use], 0xa5, n);
		memory_size[in_use] = n;
	}
	if (!weights[in_use])
		weights[in_use] = aligned_alloc(64, 64);
	if (!spare)
		spare = aligned_alloc(64, 64);
	PS_ASSERT(weights[in_use] && spare);
}

static void drop_sections(struct sections *s)
{
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++)
		free(s->data[i]);
	*s = (struct sections){0};
}

static struct sections encode_all_sections(struct core *c)
{
	struct sections s = {0};

	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		s.size[i] = snapshot_size(c, (enum snapshot_section)i);
		s.data[i] = malloc(s.size[i] + 1);
		PS_ASSERT(s.data[i]);
		(void)snapshot_encode(c, (enum snapshot_section)i, s.data[i], s.size[i], NULL);
	}
	return s;
}

/* Start the server, from the last durable snapshot if there is one. */
static void start_fuzzed_core(struct fuzz *f)
{
	const unsigned char *data[SNAPSHOT_SECTIONS];
	const char *why = NULL;

	drop_sections(&f->saving);
	f->finished = f->steps >= MAX_STEPS;
	f->now_ms = 1000;
	reserve(&f->cfg);
	if (f->saved.generation == 0) {
		/* running statistics begin with 1, so no variance is 0 */
		for (uint32_t i = 0; i < PARAMS; i++)
			weights[in_use][i] = i < PARAMS - f->cfg.n_running ? 0 : 1;
		f->core = core_init(memory[in_use], &f->cfg, weights[in_use]);
		return;
	}
	memcpy(data, f->saved.data, sizeof(data));
	f->cfg.term++;
	f->cfg.generation = f->saved.generation + 1000;
	int rc = snapshot_decode(
		memory[in_use], weights[in_use], &f->cfg, data, f->saved.size, &f->core, &why);
	PS_ASSERT(rc == 0);
}

/* ---- effects --------------------------------------------------------------------------------- */

static void check_fuzzed_core(struct fuzz *f)
{
	const struct core *c = f->core;
	struct work_view work_view;
	struct hold_up_view hold_up;
	struct worker_view worker;

	core_work(c, &work_view);
	core_hold_up(c, &hold_up);
	for (uint32_t i = 0; i < c->cfg.sessions.max_workers; i++)
		core_worker(c, i, &worker);
	for (uint32_t e = 0; e < c->cfg.training.epochs; e++)
		PS_ASSERT(core_epoch(c, e)->images <= core_data(c)->n_train);
	const char *broken = core_broken_invariant(&f->values, c);
	if (broken)
		fprintf(stderr, "%s\n", broken);
	PS_ASSERT(!broken);
}

/* Process a WELCOME: in the same session, the worker replays the pushes that the server does not
 * have. In a new session, the worker forgets its pushes. */
static void note_welcome(struct peer *p, const struct msg_welcome *w)
{
	int same =
		w->stamp.worker == p->stamp.worker && w->stamp.incarnation == p->stamp.incarnation;

	p->stamp = w->stamp;
	p->last_seq = w->last_seq;
	p->replay = same && p->last_seq < p->newest ? p->last_seq + 1 : 0;
	if (!same)
		p->newest = w->last_seq;
}

static void note_ack(struct peer *p, const struct msg_ack *a)
{
	struct msg_push *push = &p->retained[a->seq % MAX_RETAINED].push;

	p->last_seq = a->seq;
	if (push->seq != a->seq || a->duplicate)
		return;
	push->verdict = a->verdict;
	push->reject = a->reject;
	push->superseded = a->superseded;
	push->code = a->code;
}

static void note_message(struct fuzz *f, uint32_t to, const struct msg *m)
{
	for (struct peer *p = f->peer; p < f->peer + PEERS; p++) {
		if (p->connection != to)
			continue;
		if (m->type == MSG_WELCOME) {
			note_welcome(p, &m->welcome);
		} else if (m->type == MSG_GRANT) {
			p->grant = m->grant;
			p->delivered = 0;
		} else if (m->type == MSG_ACK) {
			note_ack(p, &m->ack);
		} else if (m->type == MSG_PARAMS && m->params.ack.seq) {
			note_ack(p, &m->params.ack);
		}
	}
}

/* Take a step of the core in one of the ways that a shell can. All ways must have the same
 * result. */
static void step_fuzzed_core(struct fuzz *f, const struct event *ev)
{
	struct event in_parts = *ev;
	const float *values;

	if (f->further.stepping == STEP_AT_ONCE) {
		core_step(f->core, ev, f->now_ms);
		return;
	}
	if (f->further.stepping == STEP_TO_NEXT_BUFFER)
		in_parts.next_buffer = spare;
	core_decide(f->core, &in_parts, f->now_ms);
	size_t blocks = core_update_blocks(f->core);
	if (f->further.stepping == STEP_ANY_ORDER && blocks > 0) {
		while (blocks > 0)
			core_compute_block(f->core, --blocks);
		core_end_update(f->core);
	}
	while (core_compute(f->core, &values) > 0)
		;
	if (core_weights(f->core) == spare) {
		spare = weights[in_use];
		weights[in_use] = in_parts.next_buffer;
	}
}

static void step_and_check(struct fuzz *f, const struct event *ev)
{
	uint64_t version = core_stats(f->core)->version;

	step_fuzzed_core(f, ev);
	f->finished |= ++f->steps >= MAX_STEPS;
	PS_ASSERT(core_stats(f->core)->version == version + core_new_versions(f->core));
	for (size_t i = 0; core_effect(f->core, i); i++) {
		const struct effect *e = core_effect(f->core, i);

		if (e->kind == EFFECT_SEND || e->kind == EFFECT_STATUS)
			PS_ASSERT(e->peer != 0);
		if (e->kind == EFFECT_SEND)
			note_message(f, e->peer, &e->msg);
		if (e->kind == EFFECT_FINISH)
			f->finished = 1;
		if (e->kind == EFFECT_SNAPSHOT) {
			PS_ASSERT(f->saving.generation == 0 && e->generation > 0);
			/* no event after the last start reads a snapshot, so encode none */
			if (f->last_start && f->in->at <= f->last_start)
				f->saving = encode_all_sections(f->core);
			f->saving.generation = e->generation;
		}
	}
	check_fuzzed_core(f);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void add_slices(struct msg *m, struct input *in, float values[PARAMS])
{
	static const float choice[] = {
		0, 1, -1, 0.5f, 1e-30f, 1e10f, 1e15f, 1.1e15f, -FLT_MAX, INFINITY, NAN};
	uint64_t at = input_below(in, 3);

	while (at < PARAMS && m->push.slices.n < 3) {
		struct slice *s = &m->push.slices.slice[m->push.slices.n++];

		s->offset = at;
		s->count = 1 + input_below(in, (uint32_t)(PARAMS - at));
		s->encoding = ENCODING_F32;
		s->data = values + at;
		for (uint64_t i = at; i < at + s->count; i++) {
			uint8_t b = input_u8(in);

			values[i] = b < 200 ? (float)(b % 16) / 8 : choice[b % 11];
		}
		at += s->count + 1 + input_below(in, 4);
	}
}

static void make_input_push(
	struct fuzz *f, struct peer *p, struct input *in, struct msg *m, float values[PARAMS])
{
	const struct work *w = &p->grant.work;
	uint32_t epochs = f->cfg.training.epochs;

	m->type = MSG_PUSH;
	m->push.stamp = p->stamp;
	m->push.seq = input_near(in, p->last_seq + 1);
	m->push.base_version = input_near(in, core_stats(f->core)->version);
	m->push.base_term = input_near(in, p->stamp.term);
	if (epochs && input_u8(in) < 240) {
		m->push.work.epoch = (uint32_t)input_near(in, w->epoch);
		m->push.work.first = (uint32_t)input_near(in, w->first + p->delivered++);
		m->push.work.count = (uint32_t)input_near(in, p->grant.exact ? w->count : 1);
		m->push.images = (uint32_t)input_near(
			in, m->push.work.count * 10 - (m->push.work.first == 3 ? 5 : 0));
		m->push.grant_first = w->first;
		m->push.grant_count = w->count;
		m->push.grant_code = p->grant.code;
	}
	uint8_t loss = input_u8(in);
	m->push.loss = loss < 255 ? (float)loss / 16 : NAN;
	m->push.verdict = (enum verdict)(input_u8(in) < 200 ? 0 : input_below(in, 3));
	m->push.reject = m->push.verdict == VERDICT_REJECTED
				 ? (enum reject)(1 + input_below(in, REJECT_REASONS - 1))
				 : REJECT_NONE;
	m->push.pull = input_u8(in) < 128 ? ++p->pulls : 0;
	add_slices(m, in, values);
}

static void make_hello(
	const struct core_config *cfg, struct peer *p, struct input *in, struct msg *m)
{
	static const char names[4][5] = {"", "anna", "bert", "anna"};
	static const char *const lists[4] = {
		NULL, "w F32 2x4\n", "w F32 8\nn I64 scalar 3\n", "w F32 8\nw = w\n"};
	static const char batchnorm[] = "w F32 4\nb.running_mean F32 2\nb.running_var F32 2\n";
	uint8_t how = input_u8(in);

	m->type = MSG_HELLO;
	m->hello.role = how < 230 ? ROLE_WORKER : ROLE_OBSERVER;
	memcpy(m->hello.name, names[how % 4], 5);
	memcpy(m->hello.device, "cpu", 4);
	m->hello.data = (struct data_id){.n_train = 35,
		.n_test = 7,
		.rows = 2,
		.cols = 3,
		.classes = 10,
		.xxh3 = input_near(in, 99)};
	if (!(how & 64) || how % 4)
		memcpy(m->hello.metrics, cfg->metrics, sizeof(cfg->metrics));
	if (how & 128)
		m->hello.tensors =
			cfg->n_running && !cfg->running.n ? batchnorm : lists[how / 2 % 4];
	if (how & 16) {
		m->hello.data.n_train = (uint32_t)input_near(in, 35);
		m->hello.data.rows = how & 64 ? 4 : 2;
	}
	if (how & 32) {
		m->hello.resume = p->stamp;
		m->hello.resume.incarnation = (uint32_t)input_near(in, p->stamp.incarnation);
		m->hello.resume.term = input_near(in, p->stamp.term);
		m->hello.resume.worker = (uint32_t)input_near(in, p->stamp.worker);
		m->hello.last_seq = input_near(in, p->newest);
		m->hello.durable_seq = input_near(in, 0);
	}
}

static void make_input_result(struct peer *p, struct input *in, struct msg *m)
{
	m->type = MSG_RESULT;
	m->result.stamp = p->stamp;
	m->result.eval_id = input_near(in, p->grant.eval_id);
	m->result.eval_first = (uint32_t)input_near(in, p->grant.eval_first);
	m->result.eval_count = (uint32_t)input_near(in, p->grant.eval_count);
	m->result.correct = (uint32_t)input_near(in, p->grant.eval_count / 2);
	m->result.loss_sum = input_u8(in) < 250 ? 1 : NAN;
	m->result.code = p->grant.code;
	m->result.metric_sum[0] = 2;
}

static void make_admin(struct input *in, struct msg *m)
{
	static const enum admin_verb verbs[] = {ADMIN_CHECKPOINT, ADMIN_DRAIN, ADMIN_RELEASE};

	m->admin.verb = verbs[input_below(in, 3)];
	if (m->admin.verb == ADMIN_RELEASE)
		memcpy(m->admin.worker, "anna", 5);
}

static void make_worker_message(
	struct fuzz *f, struct peer *p, struct input *in, struct msg *m, float values[PARAMS])
{
	switch (input_below(in, 12)) {
	case 0:
		make_hello(&f->cfg, p, in, m);
		break;
	case 1:
		m->type = MSG_PULL;
		m->pull = (struct msg_pull){.stamp = p->stamp,
			.request = ++p->pulls,
			.which = (enum weights)(1 + input_below(in, 2))};
		break;
	case 2:
		m->type = MSG_RESULT;
		make_input_result(p, in, m);
		break;
	case 3:
		m->type = MSG_HEARTBEAT;
		m->heartbeat.stamp = p->stamp;
		break;
	case 4:
		m->type = MSG_BYE;
		m->bye = (struct msg_bye){.stamp = p->stamp, .status = (int)input_below(in, 4)};
		break;
	case 5:
		m->type = input_u8(in) & 1 ? MSG_STATUS : MSG_ADMIN;
		if (m->type == MSG_ADMIN)
			make_admin(in, m);
		else
			m->status.text = "";
		break;
	case 6:
	case 7:
	case 8:
		m->type = MSG_LEASE;
		m->lease = (struct msg_lease){.stamp = p->stamp, .request = ++p->request};
		break;
	default:
		make_input_push(f, p, in, m, values);
	}
	if (m->type != MSG_HELLO && msg_stamp(m) && input_u8(in) >= 240) {
		struct stamp *s = (struct stamp *)(void *)msg_stamp(m);

		s->worker = (uint32_t)input_near(in, s->worker);
		s->incarnation = (uint32_t)input_near(in, s->incarnation);
		s->term = input_near(in, s->term);
	}
}

/* Retain a push for a replay, if it is the next push of the worker. */
static void retain_push(struct peer *p, const struct msg_push *push)
{
	struct retained *k = &p->retained[push->seq % MAX_RETAINED];

	if (push->seq != p->newest + 1 || p->replay)
		return;
	p->newest = push->seq;
	k->push = *push;
	for (uint32_t i = 0; i < push->slices.n; i++) {
		struct slice *s = &k->push.slices.slice[i];

		memcpy(k->values + s->offset, s->data, s->count * sizeof(float));
		s->data = k->values + s->offset;
	}
}

/* Write the next push that the worker must replay to *m. Returns 0 if the worker must replay
 * none. */
static int replay_retained(struct peer *p, struct msg *m)
{
	const struct retained *k = &p->retained[p->replay % MAX_RETAINED];

	if (!p->replay)
		return 0;
	if (k->push.seq != p->replay) {
		p->replay = 0;
		return 0;
	}
	m->type = MSG_PUSH;
	m->push = k->push;
	m->push.stamp = p->stamp;
	m->push.pull = 0;
	p->replay = p->replay < p->newest ? p->replay + 1 : 0;
	return 1;
}

/* Write the key of a peer to `owner`, as the shell does. keys is 0: the server has no keys, 1: each
 * peer has its own key, 2: two peers share a key, 3: all do. */
static void key_of_peer(const struct fuzz *f, const struct peer *p, char *owner)
{
	static const char keys[KINDS_OF_KEYS][PEERS + 1] = {"", "abcd", "abca", "aaaa"};
	const char *key = keys[f->further.keys];

	owner[0] = key[0];
	if (key[0])
		owner[0] = key[p - f->peer];
	owner[1] = '\0';
}

static void deliver_message(struct fuzz *f, struct peer *p, struct msg *m)
{
	if (m->type == MSG_HELLO)
		key_of_peer(f, p, m->hello.owner);
	step_and_check(f, &(struct event){.kind = EVENT_MESSAGE, .peer = p->connection, .msg = m});
}

#ifdef FUZZ_FAST
/* Returns 1 if all numbers of the message `at` are in the ranges that the rows `row` allow. The
 * texts and slices of this target are always valid. */
static int has_valid_numbers(const void *at, const struct wire_field *row)
{
	for (; row->kind != WIRE_END; row++) {
		const unsigned char *value = (const unsigned char *)at + row->offset;
		uint64_t wide = 0; /* the machine is little-endian */

		if (row->kind == WIRE_NUMBER) {
			memcpy(&wide, value, row->size);
			if (wide < row->min || wide > row->max)
				return 0;
		} else if (row->kind == WIRE_INNER && !has_valid_numbers(value, row->inner)) {
			return 0;
		}
	}
	return 1;
}

/* Send a message to the core, unless the codec would refuse it. */
static void post_message(struct fuzz *f, struct peer *p, struct msg *m)
{
	const struct wire_message *w = &wire_messages[m->type];

	if (m->type == MSG_PUSH)
		retain_push(p, &m->push);
	if (has_valid_numbers(m, w->fields) && (!w->rule || !w->rule(m)))
		deliver_message(f, p, m);
}
#else
/* Send a message to the core, unless the codec refuses it. */
static void post_message(struct fuzz *f, struct peer *p, const struct msg *m)
{
	struct msg decoded;
	struct frames frames;

	if (wire_encode(m, &frames) != 0)
		return;
	if (m->type == MSG_PUSH)
		retain_push(p, &m->push);
	if (wire_decode(f->wire, &frames, &decoded, NULL) == 0)
		deliver_message(f, p, &decoded);
	frames_release(&frames);
}
#endif

static void send_made_message(struct fuzz *f, struct peer *p, struct input *in)
{
	float values[PARAMS] = {0};
	struct msg m = {0};

	make_worker_message(f, p, in, &m, values);
	post_message(f, p, &m);
}

/* Returns the number of batches in the next push of an honest worker. */
static uint32_t batches_of_push(const struct fuzz *f, const struct peer *p)
{
	uint32_t left = p->grant.work.count - p->delivered, n = f->cfg.push.n_push;

	return p->grant.exact ? p->grant.work.count : left > 0 && left < n ? left : n;
}

/* Take the next step of an honest worker: join, request work, push a batch of the grant, or
 * evaluate. */
static void deliver_work_honestly(struct fuzz *f, struct peer *p, struct input *in)
{
	const struct worker *w = p->stamp.worker ? &f->core->worker[p->stamp.worker - 1] : NULL;
	static const uint8_t zeros[16];
	struct input honest = {zeros, sizeof(zeros)};
	float values[PARAMS] = {0};
	struct msg m = {0};

	if (!w || w->session.state == SESSION_FREE || p->stamp.term != f->core->cfg.term) {
		make_hello(&f->cfg, p, &honest, &m);
		if (w) {
			m.hello.resume = p->stamp;
			m.hello.last_seq = p->newest;
		}
	} else if (replay_retained(p, &m)) {
	} else if (p->grant.request != p->request || p->grant.request == 0) {
		m.type = MSG_LEASE;
		m.lease = (struct msg_lease){.stamp = p->stamp, .request = ++p->request};
	} else if (p->grant.kind == GRANT_EVAL) {
		make_input_result(p, &honest, &m);
		p->grant.request = 0;
	} else {
		uint32_t at = p->delivered, n = batches_of_push(f, p);

		make_input_push(f, p, in, &m, values);
		m.push.seq = p->last_seq + 1;
		m.push.base_version = core_stats(f->core)->version;
		m.push.base_term = p->stamp.term;
		m.push.work = (struct work){p->grant.work.epoch, p->grant.work.first + at, n};
		m.push.images = n * 10 - (m.push.work.first + n == 4 ? 5 : 0);
		m.push.verdict = VERDICT_NONE;
		m.push.reject = REJECT_NONE;
		p->delivered = at + n;
		if (p->delivered >= p->grant.work.count)
			p->grant.request = 0;
	}
	post_message(f, p, &m);
}

/* Take one kind of step of an honest worker up to 31 times in a row. */
static void work_on(struct fuzz *f, struct peer *p, struct input *in)
{
	struct input same;

	for (uint32_t i = input_below(in, 32); i > 0 && !f->finished; i--) {
		same = *in;
		deliver_work_honestly(f, p, &same);
	}
	deliver_work_honestly(f, p, in);
}

/* Let each peer take an honest step up to 32 times, in turn. Their gradients differ. */
static void work_together(struct fuzz *f, struct input *in)
{
	for (uint32_t i = input_below(in, 32) + 1; i > 0; i--)
		for (uint32_t k = 0; k < PEERS && !f->finished; k++) {
			struct input own = *in;

			for (uint32_t skipped = 0; skipped < k; skipped++)
				(void)input_u8(&own);
			deliver_work_honestly(f, &f->peer[k], &own);
		}
}

/* ---- events ---------------------------------------------------------------------------------- */

static void saved(struct fuzz *f, enum event_kind kind)
{
	uint64_t generation = f->saving.generation;

	if (!generation)
		return;
	if (kind == EVENT_DURABLE) {
		drop_sections(&f->saved);
		f->saved = f->saving;
		f->saving = (struct sections){0};
	} else {
		drop_sections(&f->saving);
	}
	step_and_check(f, &(struct event){.kind = kind, .generation = generation});
}

/* Most values of `chance` drain nothing. */
static void drain_core(struct fuzz *f, uint8_t chance)
{
	if (chance > 200)
		step_and_check(f, &(struct event){.kind = EVENT_DRAIN, .rule_met = chance & 1});
}

/* Returns the address of the last input byte that can choose a start of the server, or NULL if no
 * byte can. */
static const uint8_t *find_last_start(const uint8_t *data, size_t size)
{
	while (size > 0)
		if (data[--size] / PEERS == START)
			return data + size;
	return NULL;
}

static void core_input_event(struct fuzz *f, struct input *in)
{
	uint8_t what = input_u8(in);
	struct peer *p = &f->peer[what % PEERS];

	switch (what / PEERS) {
	case 0:
	case 1:
	case 2:
		f->now_ms += input_u8(in) * 10u;
		step_and_check(f, &(struct event){.kind = EVENT_TICK,
					  .held_ms = input_u8(in) > 250 ? 50 : 0});
		break;
	case 3:
	case 4:
	case 5:
	case 6:
	case 7:
		saved(f, EVENT_DURABLE);
		break;
	case 8:
		saved(f, EVENT_SAVE_FAILED);
		break;
	case 9:
		step_and_check(f, &(struct event){.kind = EVENT_PEER_GONE, .peer = p->connection});
		break;
	case 10:
		p->connection += PEERS;
		break;
	case 11:
		step_and_check(f, &(struct event){.kind = EVENT_PROGRESS,
					  .peer = p->connection,
					  .bytes = input_u8(in)});
		break;
	case START:
		start_fuzzed_core(f);
		break;
	case 13:
		step_and_check(f, &(struct event){.kind = EVENT_SAVE});
		break;
	case 14:
		drain_core(f, input_u8(in));
		break;
	case 15:
	case 16:
	case 17:
	case 18:
	case 19:
	case 20:
	case 21:
	case 22:
	case 23:
	case 24:
		deliver_work_honestly(f, p, in);
		break;
	case 25:
	case 26:
		work_on(f, p, in);
		break;
	default:
		if (f->further.chosen && what / PEERS >= TOGETHER)
			work_together(f, in);
		else
			send_made_message(f, p, in);
	}
}

/* Encode the present core, decode it as log replay does, and encode the result: the bytes must be
 * the same. */
static void check_snapshot(struct fuzz *f)
{
	struct sections a = encode_all_sections(f->core), b;
	struct core_config cfg = f->cfg;
	const unsigned char *data[SNAPSHOT_SECTIONS];
	const char *why = NULL;
	struct core *again = NULL;

	memcpy(data, a.data, sizeof(data));
	PS_ASSERT(snapshot_config(a.data[SNAPSHOT_SESSIONS], a.size[SNAPSHOT_SESSIONS], &cfg) == 0);
	reserve(&cfg);
	int rc = snapshot_decode_running(
		memory[in_use], weights[in_use], &cfg, data, a.size, &again, &why);
	PS_ASSERT(rc == 0);
	b = encode_all_sections(again);
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		PS_ASSERT(a.size[i] == b.size[i]);
		PS_ASSERT(memcmp(a.data[i], b.data[i], a.size[i]) == 0);
	}
	drop_sections(&a);
	drop_sections(&b);
}

/* The retained pushes are static, because their memory takes long to clear. An element of the array
 * with seq 0 is empty. */
static void begin_peers(struct fuzz *f)
{
	static struct retained retained[PEERS][MAX_RETAINED];

	for (uint32_t i = 0; i < PEERS; i++) {
		f->peer[i].connection = i + 1;
		f->peer[i].retained = retained[i];
		for (uint32_t k = 0; k < MAX_RETAINED; k++)
			retained[i][k].push.seq = 0;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct wire *wire;
	struct input in = {data, size};
	struct fuzz f = {.in = &in, .last_start = find_last_start(data, size)};

	f.cfg = choose_fuzz_config(&in, &f.further);
	if (!wire)
		PS_ASSERT(wire_new(&wire, PARAMS) == 0);
	f.wire = wire;
	/* the test is the same with and without FUZZ_FAST, so an input that the fast fuzzer has
	 * found checks the snapshot in both builds */
	f.checks_snapshot = input_below(&in, WITH_CHECK) == WITH_CHECK - 8;
	begin_peers(&f);
	start_fuzzed_core(&f);
	while (in.left && !f.finished)
		core_input_event(&f, &in);
	if (f.checks_snapshot)
		check_snapshot(&f);
	drop_sections(&f.saving);
	drop_sections(&f.saved);
	return 0;
}
