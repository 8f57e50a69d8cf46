/*
 * snapshot_v5.c - see snapshot_v5.h. Each function reads the fields of format 5 in their order and
 * writes those of the current format.
 */
#include "server/core/snapshot_v5.h"
#include "common/run_head.h"
#include "server/core/batch_ledger.h"
#include "server/core/cursor.h"
#include "server/core/run.h"

#define FORMAT       5u
#define GRANT_FIELDS 10u
/* the 53 bits of a double fit into the 3 * 24 bits of 3 floats, so 3 floats have this double as
 * their exact sum */
#define MAX_TERMS 3u

/* IMAGES and ACCEPTED are positions of counters in put_stats (snapshot.c). OLD_COUNTERS is the
 * number of counters that release 0.1.0 wrote, and NEW_COUNTERS is the number of counters that were
 * added later. */
enum { IMAGES = 5, ACCEPTED = 17, OLD_COUNTERS = 20, NEW_COUNTERS = 6 };

struct rewrite {
	struct cursor in, out;
	/* options of the run; an option that 0.1.0 did not store has the value of this start */
	struct core_config cfg;
	uint32_t workers;  /* number of slots in use */
	uint64_t accepted; /* number of accepted pushes */
	uint32_t n_batches;
	const unsigned char *batch; /* states of the batches; NULL: no epoch is in training */
	struct {
		uint64_t images;
		uint32_t pushes;
		double weight, loss_sum;
	} step; /* sync: sums over the gradients of the step under way */
};

/* ---- fields ---------------------------------------------------------------------------------- */

static uint64_t next_u64(struct rewrite *r)
{
	uint64_t v = 0;

	u64(&r->in, &v);
	return v;
}

static void put_u64(struct rewrite *r, uint64_t v)
{
	u64(&r->out, &v);
}

static void put_real(struct rewrite *r, double v)
{
	f64(&r->out, &v);
}

static void put_zeros(struct rewrite *r, size_t n)
{
	while (n--)
		put_u64(r, 0);
}

static uint64_t copy(struct rewrite *r)
{
	uint64_t v = next_u64(r);

	put_u64(r, v);
	return v;
}

static void copy_fields(struct rewrite *r, size_t n)
{
	while (n--)
		(void)copy(r);
}

/* Returns the next n bytes of the old section, or NULL if fewer than n bytes are left. */
static const unsigned char *take(struct rewrite *r, uint64_t n)
{
	const unsigned char *at = r->in.in + r->in.at;

	if (n > r->in.size - r->in.at)
		set_error(&r->in, MALFORMED);
	if (r->in.error)
		return NULL;
	r->in.at += (size_t)n;
	return at;
}

static void copy_bytes(struct rewrite *r, uint64_t n)
{
	const unsigned char *at = take(r, n);

	/* a writing cursor does not change these bytes, although its parameter is not const */
	if (at)
		bytes(&r->out, (void *)at, (size_t)n);
}

static void copy_floats(struct rewrite *r, uint64_t vectors)
{
	copy_bytes(r, vectors * r->cfg.n_params * sizeof(float));
}

/* ---- run ------------------------------------------------------------------------------------- */

/* Reads the options that a resumed run must not change. Two sections of the new snapshot contain
 * these options. */
static void read_options(struct rewrite *r)
{
	struct core_config *cfg = &r->cfg;
	struct cursor *k = &r->in;
	uint32_t optimizer = 0, mode = 0, step_images = 0, history = 0;
	int compensated = 0, adaptive = 0, sum = 0;

	u64(k, &cfg->training.seed);
	u32(k, &cfg->training.batch_size);
	u32(k, &cfg->training.epochs);
	u32(k, &optimizer);
	u32(k, &mode);
	u32(k, &step_images);
	u32(k, &history);
	flag(k, &sum);
	flag(k, &compensated);
	flag(k, &adaptive);
	refuse_over(k, optimizer, OPTIM_KINDS - 1);
	refuse_over(k, mode, MODE_EASGD);
	if (cfg->training.batch_size == 0)
		set_error(k, MALFORMED);
	cfg->optim.kind = (enum optim_kind)optimizer;
	cfg->training.mode = (enum mode)mode;
	/* as 0.1.0 did, ignore the options of other modes and optimizers */
	if (mode == MODE_SANDBLASTER)
		cfg->sandblaster.step_images = step_images;
	if (optimizer == OPTIM_LBFGS)
		cfg->lbfgs.history = history;
	cfg->push.sum = sum ? PUSH_SUM : PUSH_MEAN;
	cfg->push.buffer_size = 1;
	cfg->push.aggregate = AGGREGATE_MEAN;
	cfg->training.validate = 0;
	cfg->limits.norm_ratio = 0;
	cfg->dc.kind = !compensated ? DC_NONE : adaptive ? DC_ADAPTIVE : DC_CONSTANT;
}

static void read_head(struct rewrite *r)
{
	struct core_config *cfg = &r->cfg;
	const unsigned char *raw = take(r, RUN_HEAD_BYTES);
	struct run_head h;
	uint64_t n;

	if (!raw || run_head_read(raw, RUN_HEAD_BYTES, &h) != 0 || next_u64(r) != FORMAT) {
		set_error(&r->in, MALFORMED);
		return;
	}
	cfg->run = (struct run_id){h.run_hi, h.run_lo};
	cfg->term = h.term;
	memcpy(cfg->model, h.model, sizeof(cfg->model));
	cfg->model_fingerprint = next_u64(r);
	n = next_u64(r);
	refuse_over(&r->in, n, WIRE_MAX_PARAMS);
	cfg->n_params = r->in.error ? 0 : (size_t)n;
	read_options(r);
}

static void rewrite_counters(struct rewrite *r)
{
	for (int i = 0; i < OLD_COUNTERS; i++) {
		uint64_t v = next_u64(r);

		/* 0.1.0 counted the images of a push at once, this release when the step ends */
		if (i == IMAGES) {
			refuse_over(&r->in, r->step.images, v);
			v -= r->step.images;
		}
		if (i == ACCEPTED)
			r->accepted = v;
		put_u64(r, v);
	}
	put_zeros(r, NEW_COUNTERS);
}

static void rewrite_run(struct rewrite *r)
{
	copy_bytes(r, RUN_HEAD_BYTES);
	(void)next_u64(r);
	put_u64(r, SNAPSHOT_FORMAT);
	copy_fields(r, 2); /* fingerprint of the model, number of parameters */
	read_options(r);
	config_put(&r->out, &r->cfg);
	copy_fields(r, 2); /* whether the run has begun; term of the weights */
	rewrite_counters(r);
	copy_bytes(r, r->in.size - r->in.at); /* rejected, staleness, loss */
}

/* ---- ledger ---------------------------------------------------------------------------------- */

static void rewrite_worker(struct rewrite *r)
{
	if (!copy(r))
		return;
	r->workers++;
	(void)next_u64(r);
	(void)next_u64(r);
	put_u64(r, 1);     /* the worker is gone */
	put_u64(r, 0);     /* the worker is neither overdue nor lost */
	copy_fields(r, 2); /* incarnation and its term */
	copy_bytes(r, 2 * (WIRE_MAX_NAME + 1));
	copy_fields(r, 3); /* last_seq, images, lease_request */
	for (size_t i = 0; i < GRANT_FIELDS; i++)
		(void)next_u64(r);
	put_zeros(r, GRANT_FIELDS);
	copy_fields(r, 3);           /* clock, racing, answered */
	put_zeros(r, 4);             /* member, bad, excluded, sound */
	copy_bytes(r, copy(r) * 10); /* decisions */
}

static void rewrite_ledger(struct rewrite *r)
{
	uint64_t n = copy(r);

	refuse_over(&r->in, n, WIRE_MAX_WORKERS);
	for (uint64_t i = 0; i < n && !r->in.error; i++)
		rewrite_worker(r);
}

/* ---- leases ---------------------------------------------------------------------------------- */

static uint32_t ceil_div(uint64_t a, uint64_t b)
{
	return (uint32_t)((a + b - 1) / b);
}

/* Copies the states of `n` batches. All leases have ended, so the function writes `free` for each
 * batch that was BATCH_LEASED or BATCH_FREE. `free` is BATCH_FREE. For the training batches in mode
 * sync, `free` is BATCH_SHUT, because no step is open. */
static void rewrite_states(struct rewrite *r, const unsigned char *state, uint32_t n, uint8_t free)
{
	for (uint32_t i = 0; state && i < n; i++) {
		uint8_t v = state[i] == BATCH_LEASED || state[i] == BATCH_FREE ? free : state[i];

		bytes(&r->out, &v, 1);
	}
}

static void rewrite_training(struct rewrite *r)
{
	uint8_t idle = r->cfg.training.mode == MODE_SYNC ? BATCH_SHUT : BATCH_FREE;

	r->batch = take(r, r->n_batches);
	rewrite_states(r, r->batch, r->n_batches, idle);
}

static void rewrite_portions(struct rewrite *r, uint32_t n_test)
{
	uint64_t each = copy(r);
	uint32_t n = each ? ceil_div(n_test, each) : 0;

	rewrite_states(r, take(r, n), n, BATCH_FREE);
}

static void rewrite_epoch(struct rewrite *r, int is_in_training)
{
	uint64_t images = next_u64(r);
	double loss_sum = 0;

	if (is_in_training)
		refuse_over(&r->in, r->step.images, images);
	put_u64(r, is_in_training ? images - r->step.images : images);
	(void)copy(r); /* the number of updates */
	f64(&r->in, &loss_sum);
	put_real(r, is_in_training ? loss_sum - r->step.loss_sum : loss_sum);
	copy_fields(r, 3); /* the three fields about the evaluation */
}

static void rewrite_leases(struct rewrite *r)
{
	uint64_t n_train = copy(r), n_test = copy(r), epoch, training, evaluating;

	copy_fields(r, 4);
	put_u64(r, n_train && r->accepted); /* an accepted push fixes the data set */
	r->n_batches = ceil_div(n_train & UINT32_MAX, r->cfg.training.batch_size);
	epoch = copy(r);
	training = copy(r);
	put_u64(r, 0); /* there are no batches of later epochs */
	evaluating = copy(r);
	copy_fields(r, 3); /* the three fields about the step of sandblaster */
	put_zeros(r, 4);   /* the four fields about the step of sync */
	if (training)
		rewrite_training(r);
	if (evaluating)
		rewrite_portions(r, (uint32_t)n_test);
	for (uint64_t i = 0; i < epoch + (training != 0) && !r->in.error; i++)
		rewrite_epoch(r, i == epoch);
}

/* ---- optim ----------------------------------------------------------------------------------- */

/* Reads the first fields of the section in mode sync, which describe the step under way. */
static void read_step(struct rewrite *r)
{
	u32(&r->in, &r->step.pushes);
	u64(&r->in, &r->step.images);
	f64(&r->in, &r->step.weight);
	f64(&r->in, &r->step.loss_sum);
	refuse_over(&r->in, r->step.pushes, r->step.images);
}

/*
 * Writes gradient number `i` of the step, so that the sum of all gradients, each times its
 * `weight`, is `sums`. The first gradient is the whole sum, rounded to floats. The second gradient
 * is the rest that this rounding has left, and so on.
 */
static void rewrite_gradient(
	struct rewrite *r, const unsigned char *sums, const double weight[MAX_TERMS], uint32_t i)
{
	size_t n = r->cfg.n_params;
	struct cursor k = {.in = sums, .size = n * sizeof(double)};

	if (!r->out.out) { /* only measuring */
		r->out.at += n * sizeof(float);
		return;
	}
	for (size_t j = 0; j < n; j++) {
		double sum = 0;

		f64(&k, &sum);
		for (uint32_t t = 0; t < i && t < MAX_TERMS; t++)
			sum -= weight[t] * (double)(float)(sum / weight[t]);
		float g = i < MAX_TERMS ? (float)(sum / weight[i]) : 0;
		floats(&r->out, &g, 1);
	}
}

/* Writes the sum as r->step.pushes gradients. Each gradient gets the number of a counted batch. Any
 * counted batch is suitable, but each gradient needs a different one. */
static void rewrite_parts(struct rewrite *r)
{
	const unsigned char *sums = take(r, r->cfg.n_params * sizeof(double));
	float loss = (float)(r->step.loss_sum / (double)r->step.images);
	uint64_t left = r->step.images;
	double weight[MAX_TERMS] = {0};
	uint32_t batch = 0;

	for (uint32_t i = 0; sums && i < r->step.pushes; i++) {
		uint64_t images = left / (r->step.pushes - i);

		while (r->batch && batch < r->n_batches && r->batch[batch] != BATCH_DONE)
			batch++;
		if (!r->batch || batch == r->n_batches) {
			set_error(&r->in, MALFORMED);
			return;
		}
		if (i < MAX_TERMS)
			weight[i] = r->cfg.push.sum ? 1 : (double)images;
		left -= images;
		put_u64(r, batch++);
		put_u64(r, images);
		put_real(r, (double)loss);
		rewrite_gradient(r, sums, weight, i);
	}
}

static void rewrite_step(struct rewrite *r)
{
	read_step(r);
	put_u64(r, r->step.pushes);
	put_u64(r, r->step.images);
	put_real(r, r->step.weight);
	put_real(r, 0); /* the sum of the losses: 0, because each gradient below has its own loss */
	if (r->step.pushes)
		rewrite_parts(r);
}

static void rewrite_sum(struct rewrite *r)
{
	uint64_t pushes = copy(r);

	copy_fields(r, 3);
	if (pushes)
		copy_bytes(r, r->cfg.n_params * sizeof(double));
}

static void rewrite_lbfgs(struct rewrite *r)
{
	uint64_t known = copy(r), searching = copy(r), pairs = copy(r);

	copy_fields(r, 2 + 6); /* `newest` and `trials`, then six numbers of type double */
	if (known || searching)
		copy_floats(r, 3);
	refuse_over(&r->in, pairs, r->cfg.lbfgs.history);
	for (uint64_t i = 0; i < pairs && !r->in.error; i++) {
		copy_fields(r, 1);
		copy_floats(r, 2);
	}
}

/* Drops the weights that workers had pulled, because these workers are gone. */
static void rewrite_backups(struct rewrite *r)
{
	if (r->cfg.dc.kind == DC_ADAPTIVE)
		copy_floats(r, 1);
	for (uint32_t i = 0; i < r->workers; i++) {
		if (next_u64(r))
			(void)take(r, r->cfg.n_params * sizeof(float));
		put_u64(r, 0);
	}
}

static void rewrite_optim(struct rewrite *r)
{
	if (r->cfg.training.mode == MODE_SYNC)
		rewrite_step(r);
	else if (r->cfg.training.mode == MODE_SANDBLASTER)
		rewrite_sum(r);
	if (r->cfg.optim.kind == OPTIM_LBFGS)
		rewrite_lbfgs(r);
	if (r->cfg.dc.kind != DC_NONE)
		rewrite_backups(r);
	copy_bytes(r, r->in.size - r->in.at); /* vectors of the optimizer and of the evaluation */
}

/* ---- the snapshot ---------------------------------------------------------------------------- */

static void rewrite_weights(struct rewrite *r)
{
	copy_floats(r, 1);
}

/* Writes only the configuration, because a restart reads nothing else of this section. The restart
 * needs it for the message that refuses another configuration. */
static void rewrite_live(struct rewrite *r)
{
	snapshot_put_config(&r->out, &r->cfg);
	(void)take(r, r->in.size);
}

/* Writes zeros, because release 0.1.0 had neither a secret of the run nor keys of workers. */
static void rewrite_trust(struct rewrite *r)
{
	put_zeros(r, 3);
}

/* Writes zeros, because release 0.1.0 had no metrics besides accuracy. */
static void rewrite_metrics(struct rewrite *r)
{
	put_zeros(r, METRICS_TEXT / 8 + 1);
}

/* Writes an empty section, because release 0.1.0 did not store norms. */
static void rewrite_norms(struct rewrite *r)
{
	(void)r;
}

/* Writes an empty section, because release 0.1.0 remembered no exclusions. */
static void rewrite_quarantine(struct rewrite *r)
{
	(void)r;
}

/* Writes an empty section, because release 0.1.0 checked no evaluation. */
static void rewrite_checks(struct rewrite *r)
{
	(void)r;
}

/* Writes an empty list, because release 0.1.0 had no names for tensors. */
static void rewrite_tensors(struct rewrite *r)
{
	uint8_t nul = 0;

	bytes(&r->out, &nul, sizeof(nul));
}

int snapshot_v5_is(const unsigned char *run, size_t size)
{
	return size >= RUN_HEAD_BYTES + 8 && le64_get(run + RUN_HEAD_BYTES) == FORMAT;
}

/* The last three fields of the section are enum ending, status and time. */
int snapshot_v5_is_final(const unsigned char *live, size_t size)
{
	return size >= 24 && le64_get(live + size - 24) >= END_SAVING;
}

int snapshot_v5_rewrite(const unsigned char *const data[SNAPSHOT_SECTIONS],
	const size_t size[SNAPSHOT_SECTIONS], const struct core_config *now, unsigned char *out,
	size_t new_size[SNAPSHOT_SECTIONS])
{
	void (*const put_section[SNAPSHOT_SECTIONS])(struct rewrite *) = {
		[SNAPSHOT_RUN] = rewrite_run,
		[SNAPSHOT_LEDGER] = rewrite_ledger,
		[SNAPSHOT_LEASES] = rewrite_leases,
		[SNAPSHOT_WEIGHTS] = rewrite_weights,
		[SNAPSHOT_OPTIM] = rewrite_optim,
		[SNAPSHOT_TRUST] = rewrite_trust,
		[SNAPSHOT_METRICS] = rewrite_metrics,
		[SNAPSHOT_TENSORS] = rewrite_tensors,
		[SNAPSHOT_NORMS] = rewrite_norms,
		[SNAPSHOT_QUARANTINE] = rewrite_quarantine,
		[SNAPSHOT_CHECKS] = rewrite_checks,
		[SNAPSHOT_SESSIONS] = rewrite_live,
	};
	struct rewrite r = {.cfg = *now};

	r.in = (struct cursor){.in = data[SNAPSHOT_RUN], .size = size[SNAPSHOT_RUN]};
	read_head(&r);
	if (r.cfg.training.mode == MODE_SYNC && !r.in.error) {
		r.in = (struct cursor){.in = data[SNAPSHOT_OPTIM], .size = size[SNAPSHOT_OPTIM]};
		read_step(&r);
	}
	for (int s = 0; s < SNAPSHOT_SECTIONS && !r.in.error; s++) {
		r.in = (struct cursor){.in = data[s], .size = size[s]};
		/* no limit, because the caller has measured the sections and allocated room for
		 * them */
		r.out = (struct cursor){.out = out, .room = out ? SIZE_MAX : 0};
		put_section[s](&r);
		new_size[s] = r.out.at;
		if (out)
			out += new_size[s];
		if (r.in.at != size[s])
			set_error(&r.in, MALFORMED);
	}
	return r.in.error ? PS_ECHECKPOINT : PS_OK;
}
