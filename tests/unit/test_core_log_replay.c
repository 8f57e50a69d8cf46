/*
 * Proves the property on which log replay depends, in every mode: a second core that decodes a
 * snapshot of any time, and then receives the events that followed the snapshot, equals the first
 * core byte for byte.
 */
#include "tests/support/random_workers.h"
#include "tests/support/core_cluster.h"
#include "tests/support/test.h"

/* ---- a twin --------------------------------------------------------------------------------- */

static void assert_same_bytes(const struct core_fixture *f)
{
	const struct core_fixture other = {.core = f->twin};
	struct core_snapshot mine = fixture_save(f), its = fixture_save(&other);

	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		assert_int_equal(mine.size[i], its.size[i]);
		assert_memory_equal(mine.data[i], its.data[i], mine.size[i]);
	}
	fixture_drop(&mine);
	fixture_drop(&its);
}

/* Decodes a snapshot of this moment into its own memory, as a second core. The caller frees the
 * result. */
static void *begin_twin(struct core_fixture *f)
{
	struct core_snapshot img = fixture_save(f);
	const unsigned char *data[SNAPSHOT_SECTIONS];
	struct core_config cfg = f->cfg;
	const char *why = NULL;

	memcpy(data, img.data, sizeof(data));
	assert_int_equal(
		snapshot_config(data[SNAPSHOT_SESSIONS], img.size[SNAPSHOT_SESSIONS], &cfg), PS_OK);
	assert_memory_equal(cfg.model, f->cfg.model, sizeof(cfg.model));
	assert_int_equal(core_bytes(&cfg), core_bytes(&f->cfg));
	void *memory = fixture_memory(&cfg);
	assert_int_equal(snapshot_decode_running(memory, fixture_weights(memory, &cfg), &cfg, data,
				 img.size, &f->twin, &why),
		PS_OK);
	fixture_drop(&img);
	assert_same_bytes(f);
	fixture_tick(f, 0); /* after this tick, the effects of both cores are equal, too */
	return memory;
}

/* Returns the first effect from index `*i` on that is neither EFFECT_BEGIN nor EFFECT_EPOCH_BEGUN,
 * and sets `*i` to its index. A core makes these two effects once after its start. The second core
 * started later, so it may make them at other times. */
static const struct effect *lasting_effect(const struct core *c, size_t *i)
{
	const struct effect *e;

	while ((e = core_effect(c, *i)) &&
		(e->kind == EFFECT_BEGIN || e->kind == EFFECT_EPOCH_BEGUN))
		++*i;
	return e;
}

/* Compare the core with the second core after an event: their states, their effects except for
 * those of the start, and what they report to the shell about the step. */
static void assert_twins(const struct core_fixture *f)
{
	const struct effect *e, *other;

	assert_same_bytes(f);
	assert_int_equal(core_new_versions(f->core), core_new_versions(f->twin));
	assert_int_equal(core_sends_weights(f->core), core_sends_weights(f->twin));
	assert_int_equal(core_dropped(f->core), core_dropped(f->twin));
	assert_int_equal(core_requester(f->core), core_requester(f->twin));
	for (size_t i = 0, j = 0; (e = lasting_effect(f->core, &i)); i++, j++) {
		other = lasting_effect(f->twin, &j);
		assert_non_null(other);
		assert_int_equal(e->kind, other->kind);
		assert_int_equal(e->durable_first, other->durable_first);
		assert_int_equal(e->peer, other->peer);
		assert_int_equal(e->generation, other->generation);
		assert_int_equal(e->worker, other->worker);
		if (e->kind == EFFECT_SEND)
			assert_int_equal(e->msg.type, other->msg.type);
	}
}

/* ---- random workers -------------------------------------------------------------------------- */

static struct random_workers anywhere(uint64_t seed)
{
	struct random_workers k = {.r = rng_seed(seed, RNG_SIM, 2)};
	struct core_config cfg = fixture_training();

	cfg.training.epochs = (uint32_t)rng_below(&k.r, 4);
	cfg.training.mode = rng_below(&k.r, 2) ? MODE_DOWNPOUR : MODE_SSP;
	cfg.ssp.bound = (uint32_t)rng_below(&k.r, 3);
	cfg.optim.kind = (enum optim_kind)rng_below(&k.r, OPTIM_LBFGS);
	cfg.sessions.replay_window = 8 + (uint32_t)rng_below(&k.r, 30);
	cfg.checkpoint.interval_ms = 1 + (uint32_t)rng_below(&k.r, 1000);
	cfg.leases.eval_images = 1 + (uint32_t)rng_below(&k.r, 7);
	cfg.sessions.accept_rollback = 1;
	cfg.checkpoint.wal = (enum durability)rng_below(&k.r, 2);
	cfg.dc.lambda = 0.5;
	cfg.dc.kind = rng_below(&k.r, 3) ? DC_NONE : DC_CONSTANT;
	cfg.dc.kind += rng_below(&k.r, 2) && cfg.dc.kind;
	fixture_open(&k.f, cfg);
	random_join(&k);
	return k;
}

TEST(a_core_from_a_snapshot_ends_in_the_same_bytes)
{
	for (uint64_t seed = 1; seed <= 200; seed++) {
		struct random_workers k = anywhere(seed);
		void *memory = NULL;

		print_message("seed %llu\r", (unsigned long long)seed);
		for (uint64_t steps = 20 + rng_below(&k.r, 200); steps--;) {
			struct core *before = k.f.twin;

			random_step(&k);
			if (k.f.twin)
				assert_twins(&k.f);
			if (before && k.f.twin && rng_below(&k.r, 30))
				continue;
			/* begin a new second core after each restart, and at random times */
			free(memory);
			memory = begin_twin(&k.f);
		}
		free(memory);
		fixture_close(&k.f);
	}
}

/* ---- the modes ------------------------------------------------------------------------------ */

static struct core_config of_mode(int i)
{
	struct core_config cfg = fixture_training();

	cfg.training.mode = i == 5 ? MODE_SANDBLASTER : (enum mode)(MODE_DOWNPOUR + i);
	cfg.training.batch_size = 5;
	cfg.checkpoint.interval_ms = 1;
	cfg.checkpoint.wal = 1;
	cfg.rate.lr = 0.01;
	cfg.dc.lambda = 0.5;
	cfg.dc.kind = i == 0 ? DC_CONSTANT : DC_NONE;
	cfg.sandblaster.step_images = i == 3 ? 20 : 0;
	if (i == 5) {
		cfg.optim.kind = OPTIM_LBFGS;
		cfg.lbfgs.history = 3;
		cfg.lbfgs.trials = 20;
		cfg.lbfgs.armijo = 1e-4;
		cfg.lbfgs.wolfe = 0.5;
	}
	return cfg;
}

/* Let time pass, let a snapshot end, or let a worker act. Returns 1 if the run is over. */
static int cluster_pass(struct cluster *k, struct rng *r)
{
	if (k->f.saving && rng_below(r, 3) == 0)
		fixture_saved(&k->f, rng_below(r, 4) ? EVENT_DURABLE : EVENT_SAVE_FAILED);
	else if (rng_below(r, 10) == 0 || k->f.core->run.ending != END_NOT)
		fixture_tick(&k->f, rng_below(r, 20));
	else
		cluster_act(k, (uint32_t)rng_below(r, k->n));
	cluster_receive(k);
	return fixture_count(&k->f, EFFECT_FINISH) > 0;
}

TEST(so_it_does_in_every_mode)
{
	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct rng r = rng_seed(seed, RNG_SIM, 3);
		struct cluster k;
		int over = 0;

		print_message("seed %llu\r", (unsigned long long)seed);
		cluster_open(&k, of_mode((int)(seed % 6)), 3, 35, cluster_bowl);
		for (uint64_t wait = rng_below(&r, 150); wait && !over; wait--)
			over = cluster_pass(&k, &r);
		void *memory = begin_twin(&k.f);
		for (int i = 0; i < 100000 && !over; i++) {
			over = cluster_pass(&k, &r);
			assert_twins(&k.f);
		}
		assert_true(over);
		free(memory);
		cluster_close(&k);
	}
}

/* ---- damaged checkpoint files, and files that no server has written ------------------------- */

/* Let every worker of a core that was decoded from an invented file request work, push, leave and
 * return. No file that the core accepts may lead to a failed assertion. */
static void live_on(struct core *c, uint64_t now)
{
	static const float zeros[FIXTURE_PARAMS];
	const struct core_config *cfg = core_config(c);
	struct worker_view v;

	for (uint32_t i = 0; i < 4 * cfg->sessions.max_workers; i++) {
		core_worker(c, i % cfg->sessions.max_workers, &v);
		const struct stamp s = {cfg->run, cfg->term, v.worker, v.incarnation};
		const struct msg said[] = {
			{.type = MSG_LEASE, .lease = {.stamp = s, .request = 1000 + i}},
			{.type = MSG_PUSH,
				.push = {.stamp = s,
					.seq = v.last_seq + 1,
					.base_version = core_stats(c)->version,
					.base_term = cfg->term,
					.work = {core_training_epoch(c), i,
						cfg->training.epochs > 0},
					.images = cfg->training.batch_size,
					.verdict = i % 2 ? VERDICT_OK : VERDICT_NONE,
					.slices = {1, {{.count = cfg->n_params, .data = zeros}}}}},
			{.type = MSG_BYE, .bye = {.stamp = s}},
			{.type = MSG_HELLO, .hello = {.role = ROLE_WORKER, .data = *core_data(c)}},
		};

		for (size_t m = 0; m < sizeof(said) / sizeof(said[0]); m++)
			if (m < 2 || i % 3 == 0)
				core_step(c, &(struct event){EVENT_MESSAGE, 7 + i, .msg = &said[m]},
					now + i);
		core_step(c, &(struct event){.kind = EVENT_DURABLE, .generation = UINT64_MAX},
			now + i);
	}
}

static int read_live(const struct core_snapshot *img, size_t live_bytes)
{
	const unsigned char *data[SNAPSHOT_SECTIONS];
	size_t size[SNAPSHOT_SECTIONS];
	struct core_config cfg = fixture_config();
	struct core *c;
	const char *why = NULL;

	memcpy(data, img->data, sizeof(data));
	memcpy(size, img->size, sizeof(size));
	size[SNAPSHOT_SESSIONS] = live_bytes;
	int rc = snapshot_config(data[SNAPSHOT_SESSIONS], live_bytes, &cfg);
	if (rc)
		return rc;
	if (cfg.n_params !=
		FIXTURE_PARAMS) /* the shell compares n_params with the section of the weights */
		return PS_ECHECKPOINT;
	void *memory = fixture_memory(&cfg);
	rc = snapshot_decode_running(
		memory, fixture_weights(memory, &cfg), &cfg, data, size, &c, &why);
	assert_true(rc == PS_OK || (rc == PS_ECHECKPOINT && why && !c));
	/* the core must be able to run with every state that it accepts */
	for (int i = 0; !rc && i < 20; i++)
		core_step(c, &(struct event){.kind = EVENT_TICK}, 1000000 + 100 * (uint64_t)i);
	if (!rc)
		live_on(c, 2000000);
	free(memory);
	return rc;
}

TEST(a_cut_section_is_refused_and_no_lie_does_harm)
{
	struct rng r = rng_seed(5, RNG_SIM, 4);
	uint32_t believed = 0, refused = 0;

	struct random_workers k = anywhere(3);
	for (int i = 0; i < 60; i++)
		random_step(&k);
	struct core_snapshot img = fixture_save(&k.f);
	size_t n = img.size[SNAPSHOT_SESSIONS];
	assert_int_equal(read_live(&img, n), PS_OK);
	/* a section without its last two numbers is valid, because an earlier release wrote it
	 * so */
	for (size_t cut = 0; cut < n; cut++)
		assert_int_equal(read_live(&img, cut), cut + 16 == n ? PS_OK : PS_ECHECKPOINT);
	assert_int_equal(read_live(&img, n + 1), PS_ECHECKPOINT);
	for (size_t at = 0; at < n; at++) {
		unsigned char *byte = &img.data[SNAPSHOT_SESSIONS][at], was = *byte;

		*byte ^= (unsigned char)(1u << rng_below(&r, 8));
		believed += read_live(&img, n) == PS_OK;
		*byte = was;
	}
	refused = (uint32_t)n - believed;
	print_message("%u believed, %u refused\n", believed, refused);
	assert_true(believed > 100 && refused > 100);
	fixture_drop(&img);
	fixture_close(&k.f);
}

/* The server could not resume a checkpoint whose run has no model. */
TEST(a_section_without_a_model_is_refused)
{
	struct random_workers k = anywhere(3);
	struct core_snapshot img = fixture_save(&k.f);
	const size_t n = img.size[SNAPSHOT_SESSIONS];
	char *model = memmem(img.data[SNAPSHOT_SESSIONS], n, k.f.cfg.model, sizeof(k.f.cfg.model));

	assert_non_null(model);
	model[0] = '\0';
	assert_int_equal(read_live(&img, n), PS_ECHECKPOINT);
	fixture_drop(&img);
	fixture_close(&k.f);
}

static void no_change(struct core *c)
{
	(void)c;
}

static void leaves_but_lives(struct core *c)
{
	c->worker[0].session.leave = LEAVES;
}

static void leaves_without_its_replays(struct core *c)
{
	c->worker[0].session.state = SESSION_DEAD;
	c->worker[0].session.leave = LEAVES;
	c->worker[0].ledger.replay_target = c->worker[0].ledger.last_seq + 1;
}

static void ends_without_a_status(struct core *c)
{
	c->run.ending = END_OVER;
}

static void has_a_status_but_no_end(struct core *c)
{
	c->run.end_status = PS_EDONE;
}

static void has_met_a_rule_but_no_end(struct core *c)
{
	c->run.rule_met = 1;
}

static void more_portions_than_are_done(struct core *c)
{
	c->leases.n_evaluated++;
}

TEST(a_section_that_contradicts_itself_is_refused)
{
	static void (*const falsify[])(struct core *) = {no_change, leaves_but_lives,
		leaves_without_its_replays, ends_without_a_status, has_a_status_but_no_end,
		has_met_a_rule_but_no_end, more_portions_than_are_done};

	for (size_t i = 0; i < sizeof(falsify) / sizeof(falsify[0]); i++) {
		struct core_fixture f;

		fixture_open(&f, fixture_training());
		struct stamp s = fixture_join(&f, 9, "");
		struct msg m = fixture_batch(s, 1, 0, 0, 4);
		/* delivers all batches of epoch 0, so its evaluation begins */
		fixture_applied(&f, 9, &m);
		falsify[i](f.core);
		struct core_snapshot img = fixture_save(&f);
		assert_int_equal(
			read_live(&img, img.size[SNAPSHOT_SESSIONS]), i ? PS_ECHECKPOINT : PS_OK);
		fixture_drop(&img);
		fixture_close(&f);
	}
}

TEST(a_stop_rule_stays_met)
{
	struct core_fixture f;

	fixture_open(&f, fixture_config());
	(void)fixture_join(&f, 9, "");
	fixture_meet_rule(&f);
	void *memory = begin_twin(&f);
	fixture_durable(&f);
	assert_twins(&f);
	for (size_t i = 0; i < 2; i++) {
		const struct core_fixture each = {.core = i ? f.twin : f.core};

		assert_int_equal(fixture_sent(&each, 9, MSG_BYE)->bye.status, PS_EDONE);
	}
	free(memory);
	fixture_close(&f);
}

/* ---- a run with the write-ahead log --------------------------------------------------------- */

/* With the write-ahead log, the shell sends a reply only after the event of the reply is on the
 * disk. Therefore the core may report a push as durable in its ACK. */
TEST(with_a_log_all_is_durable_when_it_is_acknowledged)
{
	struct core_config cfg = fixture_config();
	struct core_fixture f;
	struct msg hello = fixture_hello(""), push;

	cfg.checkpoint.wal = 1;
	fixture_open(&f, cfg);
	fixture_message(&f, 9, &hello);
	const struct msg *m = fixture_sent(&f, 9, MSG_WELCOME);
	assert_non_null(m);
	struct stamp s = m->welcome.stamp;
	for (uint64_t seq = 1; seq <= 200; seq++) {
		push = fixture_push_ones(s, seq);
		assert_int_equal(fixture_acked(&f, 9, &push).durable_seq, seq);
		assert_int_equal(fixture_count(&f, EFFECT_SNAPSHOT), 0);
	}
	push = fixture_push_ones(s, 7);
	struct msg_ack again = fixture_acked(&f, 9, &push);
	assert_int_equal(again.duplicate, 1);
	assert_int_equal(again.durable_seq, 200);
	/* HEARTBEAT does not wait for the disk, so it reports only pushes that a checkpoint
	 * contains */
	fixture_heartbeat(&f, 10, s);
	assert_int_equal(fixture_sent(&f, 10, MSG_HEARTBEAT)->heartbeat.durable_seq, 0);
	fixture_bye(&f, 9, s);
	assert_non_null(fixture_sent(&f, 9, MSG_BYE));
	fixture_close(&f);
}

TEST(a_snapshot_is_taken_when_the_shell_asks_for_one)
{
	struct core_fixture f;

	fixture_open(&f, fixture_config());
	fixture_step(&f, &(struct event){.kind = EVENT_SAVE});
	assert_int_equal(fixture_count(&f, EFFECT_SNAPSHOT), 1);
	/* a snapshot is being written; when it is durable, the core takes another one */
	fixture_step(&f, &(struct event){.kind = EVENT_SAVE});
	assert_int_equal(fixture_count(&f, EFFECT_SNAPSHOT), 0);
	fixture_durable(&f);
	assert_int_equal(fixture_count(&f, EFFECT_SNAPSHOT), 1);
	fixture_close(&f);
}
